"""Small databases made by code, as nvprof and as releases of Nsight Systems write them."""

import sqlite3
from collections.abc import Iterable
from pathlib import Path

EPOCH_NS = 1_700_000_000_000_000_000
STAGES = (("Forward Pass", 100, 400), ("Backward Pass", 400, 700), ("Model Update", 700, 800))
MANGLED, DEMANGLED = "_ZN2at6native6kernelIfLi4EEEvT_", "void at::native::kernel<float, 4>(float)"


def make_table(connection: sqlite3.Connection, name: str, columns: str, rows: Iterable[tuple]) -> None:
    """A table of integers with these rows, but where a column has another type."""
    names = columns.split()
    typed = ", ".join(word.replace(":", " ") if ":" in word else f"{word} int" for word in names)
    connection.execute(f"create table {name} ({typed})")
    connection.executemany(f"insert into {name} values ({', '.join('?' * len(names))})", rows)


class Nsys:
    """An export of Nsight Systems.

    Args:
        modern: as of 2024 (mangled names, sizes of strings apart); else as of 2020 (texts in the rows).
    """

    def __init__(self, path: Path, modern: bool = True) -> None:
        self.path, self.modern = path, modern
        self.connection = sqlite3.connect(path)
        self.texts: dict[str, int] = {}
        make = self.connection.execute
        make("create table StringIds (id integer primary key, value text)")
        make("create table NVTX_EVENTS (start integer, end integer, eventType integer, text text, "
             f"globalTid integer{', textId integer, domainId integer' if modern else ''})")  # fmt: skip
        make(
            "create table CUPTI_ACTIVITY_KIND_RUNTIME (start integer, end integer, globalTid integer, "
            "correlationId integer, nameId integer)"
        )
        mangled = ", mangledName integer" if modern else ""
        make(
            "create table CUPTI_ACTIVITY_KIND_KERNEL (start integer, end integer, deviceId integer, "
            "streamId integer, correlationId integer, globalPid integer, demangledName integer, "
            "shortName integer, gridX integer, gridY integer, gridZ integer, blockX integer, "
            f"blockY integer, blockZ integer{mangled})"
        )
        if modern:
            make("create table TARGET_INFO_SESSION_START_TIME (utcEpochNs integer)")
            make("insert into TARGET_INFO_SESSION_START_TIME values (?)", (EPOCH_NS,))
            make("create table META_DATA_EXPORT (name text, value text)")
        else:
            make("create table ANALYSIS_DETAILS (startTime integer)")

    def text(self, value: str) -> int:
        if value not in self.texts:
            self.texts[value] = len(self.texts) + 1
            self.connection.execute("insert into StringIds values (?, ?)", (self.texts[value], value))
        return self.texts[value]

    def range(
        self, name: str, start: int, end: int | None, pid: int = 7, tid: int = 7, kind: int = 59
    ) -> None:
        thread = pid << 24 | tid
        row = (start, end, kind, None, thread, self.text(name), 0) if self.modern else (
            start, end, kind, name, thread)  # fmt: skip
        self.connection.execute(f"insert into NVTX_EVENTS values ({', '.join('?' * len(row))})", row)

    def kernel(self, launched: int, start: int, end: int, number: int, pid: int = 7, tid: int = 7,
               device: int = 0) -> None:  # fmt: skip
        self.connection.execute(
            "insert into CUPTI_ACTIVITY_KIND_RUNTIME values (?, ?, ?, ?, ?)",
            (launched, launched + 2, pid << 24 | tid, number, self.text("cudaLaunchKernel")),
        )
        name = (self.text(DEMANGLED), self.text("kernel"))
        row = (start, end, device, 7, number, pid << 24, *name, 4, 2, 1, 128, 1, 1)
        row += (self.text(MANGLED),) if self.modern else ()
        self.connection.execute(
            f"insert into CUPTI_ACTIVITY_KIND_KERNEL values ({', '.join('?' * len(row))})", row
        )

    def batches(self, count: int, pid: int = 7, device: int = 0) -> None:
        """Batches of 1,000 ns: a kernel a stage, the backward pass's launched by a thread of its own."""
        for batch in range(count):
            at = 1000 * batch
            for name, start, end in STAGES:
                self.range(name, at + start, at + end, pid, pid)
            self.range("End of Batch", at + 900, None, pid, pid, kind=34)
            for place, (name, start, _) in enumerate(STAGES):
                tid = 9 if name == "Backward Pass" else pid
                self.kernel(
                    at + start + 10, at + start + 50, at + start + 90, 10 * batch + place, pid, tid, device
                )

    def close(self) -> Path:
        self.connection.commit()
        self.connection.close()
        return self.path


def tables_of(path: Path) -> list[str]:
    with sqlite3.connect(path) as connection:
        return [name for (name,) in connection.execute("select name from sqlite_master where type = 'table'")]


def change(path: Path, statements: Iterable[str]) -> Path:
    """Run statements on a database, as another release (or a mistake) would leave it."""
    connection = sqlite3.connect(path)
    for statement in statements:
        connection.execute(statement)
    connection.commit()
    connection.close()
    return path
