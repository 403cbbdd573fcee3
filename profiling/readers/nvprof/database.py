"""What does an ``nvprof -o`` database hold, as events?

It is CUPTI's records as they were, a table a kind; names are numbers of ``StringTable``, mangled.
"""

import numpy as np

from profiling.attribution.events import Builder, Trace
from profiling.cost.names import full_name
from profiling.cost.shapes import Inputs
from profiling.readers.gpu_records import (
    add_device,
    add_launches,
    add_ranges,
    call_names,
    coded,
    copy_name,
    memory_name,
    triples,
)
from profiling.readers.sqlite import Database
from profiling.wording import how_many

NAMES = "StringTable"
_KIND = "CUPTI_ACTIVITY_KIND_"
_KERNELS = (_KIND + "CONCURRENT_KERNEL", _KIND + "KERNEL", _KIND + "CDP_KERNEL")
_COPIES = (_KIND + "MEMCPY", _KIND + "MEMCPY2")
_CALLS = (_KIND + "RUNTIME", _KIND + "DRIVER")
_MARKER = _KIND + "MARKER"
_INSTANT, _START, _END = 1, 2, 4  # flags of a marker's row
_UNKNOWN = "(a kernel without a name)"
# What every activity of a device has, and what it is where the database does not say.
_ON_DEVICE = {"start": None, "end": None, "deviceId": 0, "streamId": -1, "correlationId": -1}


def is_nvprof(database: Database) -> bool:
    """Whether a database is nvprof's."""
    return database.has(NAMES, "_id_", "value") and any(name.startswith(_KIND) for name in database.tables)


def read_database(database: Database) -> Trace:
    """The events of a database; what is odd about them is among the findings.

    Raises:
        UserError: damaged, or of a release that is not known.
    """
    builder = Builder(lambda _: Inputs())
    texts = database.texts(NAMES, "_id_", "value")
    for table in _KERNELS:
        _add_kernels(builder, database, table, texts)
    for table in _COPIES:
        _add_copies(builder, database, table)
    _add_sets(builder, database)
    for table in _CALLS:
        if table in database.tables:
            columns = {"start": None, "end": 0, "threadId": 0, "correlationId": None, "cbid": 0}
            for rows in database.integers(table, columns):
                add_launches(
                    builder,
                    rows["start"],
                    rows["end"],
                    rows["threadId"] & 0xFFFFFFFF,
                    rows["correlationId"],
                    call_names(builder, rows["cbid"], table == _CALLS[0]),
                )
    findings = _add_markers(builder, database, texts)
    builder.malformed += database.malformed
    trace = builder.finish()
    trace.findings += findings
    return trace


def _when_and_where(rows: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Of activities of a device, what :data:`_ON_DEVICE` names."""
    return {
        "start_ns": rows["start"],
        "end_ns": rows["end"],
        "device": rows["deviceId"],
        "stream": rows["streamId"],
        "correlation": rows["correlationId"],
    }


def _add_kernels(builder: Builder, database: Database, table: str, texts: dict[int, str]) -> None:
    if table not in database.tables:
        return
    sizes = ("gridX", "gridY", "gridZ", "blockX", "blockY", "blockZ")
    for rows in database.integers(table, {**_ON_DEVICE, "name": None, **dict.fromkeys(sizes, 0)}):
        add_device(
            builder,
            name=coded(builder, rows["name"], lambda key: full_name(texts.get(key, _UNKNOWN))),
            **_when_and_where(rows),
            grid=triples(builder, *(rows[name] for name in sizes[:3])),
            block=triples(builder, *(rows[name] for name in sizes[3:])),
        )


def _add_copies(builder: Builder, database: Database, table: str) -> None:
    if table not in database.tables:
        return
    kinds = {"copyKind": 0, "srcKind": 0, "dstKind": 0}
    for rows in database.integers(table, {**_ON_DEVICE, "bytes": 0, **kinds}):
        kind = sum((rows[name] & 0xFF) << 8 * place for place, name in enumerate(kinds))
        add_device(
            builder,
            name=coded(
                builder,
                np.asarray(kind),
                lambda key: copy_name(
                    key & 0xFF, memory_name(key >> 8 & 0xFF), memory_name(key >> 16 & 0xFF)
                ),
            ),
            **_when_and_where(rows),
            size=rows["bytes"],
        )


def _add_sets(builder: Builder, database: Database) -> None:
    table = _KIND + "MEMSET"
    if table not in database.tables:
        return
    for rows in database.integers(table, {**_ON_DEVICE, "bytes": 0, "memoryKind": 0}):
        add_device(
            builder,
            name=coded(builder, rows["memoryKind"], lambda key: f"Memset ({memory_name(key)})"),
            **_when_and_where(rows),
            size=rows["bytes"],
        )


def _add_markers(builder: Builder, database: Database, texts: dict[int, str]) -> list[str]:
    """Add ranges and marks; a range is a row where it starts and a row of the same id where it ends."""
    if _MARKER not in database.tables:
        return []
    names = ("flags", "timestamp", "id", "name")
    chunks = list(database.integers(_MARKER, dict.fromkeys(names, None), texts=["objectId"]))
    if not chunks:
        return []
    rows = {name: np.concatenate([chunk[name] for chunk in chunks]) for name in (*names, "objectId")}
    if not len(rows["id"]):
        return []
    thread = np.fromiter(map(_thread_of, rows["objectId"]), np.int64, len(rows["id"]))
    place, partner, unended = _pair(rows)
    instant = rows["flags"][place] & _INSTANT > 0
    end_ns = np.where(partner >= 0, rows["timestamp"][partner], rows["timestamp"].max())
    end_ns = np.where(instant, rows["timestamp"][place], end_ns)
    range_texts = [texts.get(name, "") for name in rows["name"][place].tolist()]
    add_ranges(builder, range_texts, rows["timestamp"][place], end_ns, thread[place])
    return [f"{how_many(unended, 'range')} never ended; the end of the trace is used"] if unended else []


def _pair(rows: dict[str, np.ndarray]) -> tuple[np.ndarray, np.ndarray, int]:
    """(rows that begin something, the row that ends each or -1, how many ranges have no end)."""
    # By id, in the order of the file: the end of a range is the row behind its start, if it has one.
    order = np.argsort(rows["id"], kind="stable")
    flags, number = rows["flags"][order], rows["id"][order]
    starts = flags & _START > 0
    follows = np.zeros(len(order), dtype=bool)
    follows[:-1] = starts[:-1] & (flags[1:] & _END > 0) & (number[1:] == number[:-1])
    partner = np.where(follows, np.roll(order, -1), -1)
    begins = starts | (flags & _INSTANT > 0)
    return order[begins], partner[begins], int((starts & ~follows).sum())


def _thread_of(owner: object) -> int:
    # CUpti_ActivityObjectKindId: the process's number, then the thread's, 4 bytes each.
    return int.from_bytes(owner[4:8], "little") if isinstance(owner, bytes) and len(owner) >= 8 else 0
