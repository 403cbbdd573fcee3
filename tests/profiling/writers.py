"""Launches of kernels as the file of each tool holds them, the name as that tool prints it."""

import csv
import io
import sqlite3
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from tests.profiling.gpu_databases import Nsys, make_table
from tests.profiling.traces import Trace

# One kernel: mangled, demangled, as nvprof prints it, as Nsight's tools print it, and as PyProf shortens it.
MANGLED = "_ZN2at6native29vectorized_elementwise_kernelILi4ENS0_11FillFunctorIfEESt5arrayIPcLm1EEEEviT0_T1_"
FILL = "at::native::FillFunctor<float>"
DEMANGLED = (
    f"void at::native::vectorized_elementwise_kernel<4, {FILL}, "
    f"std::array<char*, 1ul> >(int, {FILL}, std::array<char*, 1ul>)"
)
NVPROF, NSIGHT = (
    f"void at::native::vectorized_elementwise_kernel<{four}, {FILL}, {array}>(int, {FILL}, {array})"
    for four, array in (
        ("int=4", "std::array<char*, unsigned long=1>"), ("(int)4", "std::array<char *, (unsigned long)1>"),
    )
)  # fmt: skip
SHORT = "at::native::vectorized_elementwise_kernel"


@dataclass(frozen=True)
class Kernel:
    """A launch; times in ns."""

    start: int
    duration: int
    device: int = 0
    stream: int = 7
    grid: tuple[int, int, int] = (4, 2, 1)
    block: tuple[int, int, int] = (128, 1, 1)


REGISTERS, STATIC, DYNAMIC = 40, 1024, 2048  # of each launch: of a thread; bytes of shared memory of a block
OF_LAUNCHES = {"registersPerThread": REGISTERS, "staticSharedMemory": STATIC, "dynamicSharedMemory": DYNAMIC}


def _csv(rows: list[list[object]]) -> str:
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows(rows)
    return text.getvalue()


def kineto(folder: Path, kernels: list[Kernel]) -> Path:
    trace = Trace()
    for one in kernels:
        # Microseconds: of these the nanoseconds stand in a float's fraction.
        start, end = one.start / 1000, (one.start + one.duration) / 1000
        trace.kernel(DEMANGLED, 0, start, end, device=one.device, stream=one.stream, grid=[*one.grid],
                     block=[*one.block],
                     **{"registers per thread": REGISTERS, "shared memory": STATIC + DYNAMIC})  # fmt: skip
    return trace.write(folder / "trace.json")


def nvprof_database(folder: Path, kernels: list[Kernel]) -> Path:
    path = folder / "nvprof.sql"
    connection = sqlite3.connect(path)
    make_table(connection, "StringTable", "_id_:integer:primary:key value:text", [(1, MANGLED)])
    sizes = ("gridX", "gridY", "gridZ", "blockX", "blockY", "blockZ", *OF_LAUNCHES)
    columns = " ".join(["start end deviceId streamId correlationId name", *sizes])
    rows = [
        (one.start, one.start + one.duration, one.device, one.stream, number, 1, *one.grid, *one.block,
         *OF_LAUNCHES.values())
        for number, one in enumerate(kernels)
    ]  # fmt: skip
    make_table(connection, "CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL", columns, rows)
    connection.commit()
    connection.close()
    return path


def nsys_database(modern: bool):
    def write(folder: Path, kernels: list[Kernel]) -> Path:
        database = Nsys(folder / "nsys.sqlite", modern)
        full, short = database.text(DEMANGLED), database.text("vectorized_elementwise_kernel")
        for number, one in enumerate(kernels):
            row = [one.start, one.start + one.duration, one.device, one.stream, number, 7 << 24, full, short]
            row += [*one.grid, *one.block, *([database.text(MANGLED)] if modern else [])]
            places = ", ".join("?" * len(row))
            database.connection.execute(f"insert into CUPTI_ACTIVITY_KIND_KERNEL values ({places})", row)
        for name, value in OF_LAUNCHES.items():
            column = f"{name} integer default {value}"
            database.connection.execute(f"alter table CUPTI_ACTIVITY_KIND_KERNEL add column {column}")
        return database.close()

    return write


def nvprof_trace(folder: Path, kernels: list[Kernel]) -> Path:
    """As ``--print-gpu-trace --csv -u ns`` prints it."""
    head = ["Start", "Duration", "Grid X", "Grid Y", "Grid Z", "Block X", "Block Y", "Block Z", "Device",
            "Context", "Stream", "Name", "Correlation_ID", "Registers Per Thread", "Static SMem",
            "Dynamic SMem"]  # fmt: skip
    rows: list[list[object]] = [head, ["ns", "ns", *[""] * 12, "B", "KB"]]
    for number, one in enumerate(kernels):
        device = f"Tesla V100-SXM2 ({one.device})"
        said = [device, 1, one.stream, NVPROF, number, REGISTERS, STATIC, DYNAMIC // 1024]
        rows.append([one.start, one.duration, *one.grid, *one.block, *said])
    path = folder / "nvprof.csv"
    path.write_text("==7== Profiling result:\n" + _csv(rows))
    return path


def ncu(details: bool):
    """As ``ncu --csv`` prints its details page, or its raw one; it knows no start."""

    def write(folder: Path, kernels: list[Kernel]) -> Path:
        shared = [f"launch__shared_mem_per_block_{kind}" for kind in ("static", "dynamic")]
        facts = ["ID", "Process ID", "Kernel Name", "Context", "Stream", "Block Size", "Grid Size", "Device"]
        rows: list[list[object]] = (
            [[*facts, "Section Name", "Metric Name", "Metric Unit", "Metric Value"]]
            if details
            else [
                [*facts, "gpu__time_duration.sum", "launch__registers_per_thread", *shared],
                [*[""] * len(facts), "ns", "register/thread", "byte/block", "Kbyte/block"],
            ]
        )
        for number, one in enumerate(kernels):
            said = [number, 7, NSIGHT, 1, one.stream, str(one.block), str(one.grid), one.device]
            printed = f"{one.duration:,}"
            if not details:
                rows.append([*said, printed, REGISTERS, STATIC, DYNAMIC / 1000])
                continue
            rows.append([*said, "Speed", "Duration", "nsecond", printed])
            rows.append([*said, "Launch", "Registers Per Thread", "register/thread", REGISTERS])
            for kind, size in (("Static", STATIC), ("Dynamic", DYNAMIC)):
                rows.append([*said, "Launch", f"{kind} Shared Memory Per Block", "byte/block", size])
        path = folder / "ncu.csv"
        text = io.StringIO()
        csv.writer(text, lineterminator="\n", quoting=csv.QUOTE_ALL).writerows(rows)
        path.write_text("==PROF== Connected to process 7\n" + text.getvalue())
        return path

    return write


def pyprof(folder: Path, kernels: list[Kernel]) -> Path:
    """PyProf knows durations and order only."""
    rows = [
        {"Idx": number, "Direction": "fprop", "Module": "torch", "Op": "fill_", "Kernel": SHORT,
         "Sil(ns)": one.duration, "Device": one.device, "Stream": one.stream, "FLOPs": 0.0, "Bytes": 0.0,
         "Grid": ",".join(map(str, one.grid)), "Block": ",".join(map(str, one.block))}
        for number, one in enumerate(kernels)
    ]  # fmt: skip
    path = folder / "pyprof.parquet"
    pq.write_table(pa.Table.from_pylist(rows), path)
    return path


def nvprof_summary(form: str):
    """The kernel's row in a summary, plain or CSV; all its launches together."""

    def write(folder: Path, kernels: list[Kernel]) -> Path:
        took = [one.duration for one in kernels]
        values = [sum(took), len(took), sum(took) / len(took), min(took), max(took)]
        path = folder / "nvprof.txt"
        if form == "csv":
            head = ["Type", "Time(%)", "Time", "Calls", "Avg", "Min", "Max", "Name"]
            units = ["", "%", "ns", "", "ns", "ns", "ns", ""]
            text = _csv([head, units, ["GPU activities", 100.0, *values, NVPROF]])
        else:
            total, calls, *spread = values
            shown = "  ".join(f"{value}ns" for value in spread)
            text = "            Type  Time(%)      Time     Calls       Avg       Min       Max  Name\n"
            text += f" GPU activities:  100.00%  {total}ns  {calls}  {shown}  {NVPROF}\n"
        path.write_text("==7== Profiling result:\n" + text)
        return path

    return write


# tool's form -> (tool, what writes it, whether it knows when a launch began)
LAUNCHES = {
    "torch": ("torch", kineto, True),
    "nvprof database": ("nvprof", nvprof_database, True),
    "nvprof trace": ("nvprof", nvprof_trace, True),
    "nsys export of 2024": ("nsys", nsys_database(True), True),
    "nsys export of 2020": ("nsys", nsys_database(False), True),
    "ncu details": ("ncu", ncu(True), False),
    "ncu raw": ("ncu", ncu(False), False),
    "pyprof": ("pyprof", pyprof, False),
}


def nsys_summary(folder: Path, kernels: list[Kernel]) -> Path:
    took = [one.duration for one in kernels]
    head = ["Time (%)", "Total Time (ns)", "Instances", "Avg (ns)", "Min (ns)", "Max (ns)", "Name"]
    row = [100.0, sum(took), len(took), sum(took) / len(took), min(took), max(took), NSIGHT]
    path = folder / "sum.csv"
    path.write_text(_csv([head, row]))
    return path


SUMMARIES = {
    "nsys stats": ("nsys", nsys_summary),
    "nvprof summary": ("nvprof", nvprof_summary("plain")),
    "nvprof summary as CSV": ("nvprof", nvprof_summary("csv")),
}
