"""Read Nsight Compute's CSV in all layouts: launches and their metrics.

On the raw page a row is a launch and a column a metric, with a row of units below the header; on the details
page a row is a metric of a launch. Both are read as the metrics of one launch after the other. A summary
(``--print-summary``) has one row per kernel and metric, over all launches.
"""

import math
import re
from collections.abc import Iterator, Mapping
from pathlib import Path

import pyarrow as pa

from profiling.attribution.context import stage_in
from profiling.attribution.events import OPERATOR
from profiling.errors import UserError
from profiling.findings import Finding
from profiling.readers import printed
from profiling.readers.files import UNKNOWN, Origin, rank_in, read_head
from profiling.readers.gpu_records import parse_text
from profiling.schemas import DIRECTIONS
from profiling.traced_job import TraceFacts

_NEEDED = (b'"Process ID"', b'"Kernel Name"')
_PAGES = (b'"ID"', b'"Invocations"')  # raw and details; summaries
# What describes the device or the replay, not the launch.
_NOT_MEASURED = re.compile(
    r"^(device__attribute|nvlink__|numa__|profiler__|launch__(context|device|stream|func)|smsp?__max)"
)
_NVTX = re.compile(r'"<[^>]*>:(.*?)(?::(?:none|[^:"]*)){6}"')
_NODE = re.compile(r"Backward\d*$|^torch::autograd::|^autograd::engine::")
# A fused multiply-add is two operations.
_OPERATIONS = {
    f"smsp__sass_thread_inst_executed_op_{kind}{name}_pred_on.sum": count
    for kind in "hfd"
    for name, count in (("add", 1.0), ("mul", 1.0), ("fma", 2.0))
}
_TENSOR_METRIC = re.compile(r"(inst_executed|ops_path|pipe)\w*tensor\w*\.sum$")
TENSOR_KERNEL = re.compile(
    r"tensorop|[shif](1688|16816|884|8816)|hmma|gmma|tensor\d+x|tf32|wmma|nvjet|warpgroup", re.IGNORECASE
)
_DURATIONS = ("gpu__time_duration.sum", "Duration")
_TRAFFIC = ("dram__bytes_read.sum", "dram__bytes_write.sum")
_REGISTERS = ("launch__registers_per_thread", "Registers Per Thread")
_SHARED = [
    (f"launch__shared_mem_per_block_{kind.lower()}", f"{kind} Shared Memory Per Block")
    for kind in ("Static", "Dynamic")
]
_NONE = (math.nan, "")

Values = dict[str, tuple[float, str]]  # by metric: value and unit


def _is_header(cells: list[str]) -> bool:
    return "Kernel Name" in cells and (cells[0] == "ID" or {"Invocations", "Metric Name"} <= set(cells))


def recognise(path: Path, head: bytes) -> bool:
    """Whether a text is Nsight Compute's CSV: its columns' names are in it."""
    return any(
        all(name in line for name in _NEEDED) and any(name in line for name in _PAGES)
        for line in head.splitlines()
        if line.startswith((b'"ID"', b'"Process ID"'))
    )


def facts(path: Path) -> TraceFacts | None:
    """What launches say of their job; None: the file is a summary, without launches."""
    if b'"ID"' not in read_head(path):
        return None
    return TraceFacts(rank=rank_in(path))


def stream(path: Path, findings: list[Finding], origin: Origin = UNKNOWN) -> Iterator[tuple[str, pa.Table]]:
    """Nsight Compute's CSV as pieces of tables: ``kernels``, and in ``atomics`` each kernel's metrics; of
    a summary ``intervals`` in place of ``kernels``.

    FLOPs are those of the counted scalar instructions, where they were counted and the kernel does not
    compute on tensor cores; bytes are those that reached the device's memory.
    """
    rank = origin.rank_of(path) or 0
    reader = _Reader(path)
    pieces = printed.stream_printed(
        reader.launches(), reader.activities, reader.metrics, rank, origin.batches
    )
    if not (yield from pieces):
        raise UserError(f"{path} holds no launch: Nsight Compute profiled none, or the file is truncated")
    damaged: list[tuple[str, int, str]] = [
        ("flops_missing", reader.on_tensor_cores, "launches on tensor cores"),
        ("records_damaged", reader.untimed, "durations of launches"),
        ("records_damaged", reader.blocks.damaged, "lines"),
    ]
    findings += [Finding(code, data={"n": n, "what": what}) for code, n, what in damaged if n]


# Durations in ns are whole numbers: three digits behind a point are thousands, so that the comma is decimal.
_THOUSANDS_OF_NS = re.compile(r'"gpu__time_duration\.sum","ns\w*","\d{1,3}(\.\d{3})+"')


class _Reader:
    """The launches of a CSV, one by one, and sums over them: a summary's activities, what was not counted."""

    def __init__(self, path: Path) -> None:
        self.blocks = printed.Blocks(path, _is_header)
        # ncu prints numbers as the user's language has them: 12,5.
        lines = read_head(path).decode("utf-8", "replace").splitlines()
        self._comma = any(
            printed.has_decimal_commas(printed.cells_of(line)) or _THOUSANDS_OF_NS.search(line)
            for line in lines
            if line.startswith('"')
        )
        self._spreads = printed.Spreads()
        self._summary_metrics: list[printed.Metric] = []
        self.activities: list[printed.Activity] = []
        self.on_tensor_cores = self.untimed = 0

    def metrics(self) -> list[printed.Metric]:
        """Each metric's spread over the launches of each kernel."""
        return self._spreads.metrics() + self._summary_metrics

    def launches(self) -> Iterator[printed.Launch]:
        for facts, values in self._measurements():
            launch = _launch(facts, values)
            for name, (value, unit) in values.items():
                if not _NOT_MEASURED.match(name) and not math.isnan(value):
                    label = f"{name} ({unit})" if unit else name
                    self._spreads.add(label, launch.name, value)
            self.untimed += math.isnan(launch.duration_ns)
            self.on_tensor_cores += math.isnan(launch.flops) and not values.keys().isdisjoint(_OPERATIONS)
            yield launch

    def _measurements(self) -> Iterator[tuple[Mapping[str, str], Values]]:
        """(facts of a launch, its metrics) for each launch."""
        units: list[str] = []
        header: list[str] = []
        key, facts, values = "", dict[str, str](), Values()
        sections: dict[str, str] = {}  # of its metrics
        for columns, cells in self.blocks:
            if columns is not header:
                header, units = columns, []
            row = dict(zip(header, cells, strict=True))
            if "Invocations" in header and "Metric Name" in header:
                self._add_summary(row)
            elif not cells[0] and not units:
                units = cells  # under the head of the raw page
            elif "Metric Name" in header:
                if key != (key := row["ID"] + row.get("Process ID", "")):
                    if facts:
                        yield facts, values
                    facts, values, sections = row, Values(), {}
                if row["Metric Name"]:  # else the row is what a rule of ncu's says
                    self._add(values, sections, row)
            elif cells[0].isdecimal():
                metrics = zip(header, cells, units or [""] * len(cells), strict=True)
                measured = {
                    name: printed.number_and_unit(cell, unit, self._comma)
                    for name, cell, unit in metrics
                    if "__" in name
                }
                yield row, measured
            else:
                self.blocks.damaged += 1
        if facts:
            yield facts, values

    def _add_summary(self, facts: Mapping[str, str]) -> None:
        unit, count = facts.get("Metric Unit", ""), printed.number_and_unit(facts["Invocations"])[0]
        cells = [facts.get(name, "") for name in ("Minimum", "Maximum", "Average")]
        figures = [printed.number_and_unit(cell, unit, self._comma) for cell in cells]
        (low, high, mean), unit = (value for value, _ in figures), figures[2][1]
        name, kernel = facts["Metric Name"], facts["Kernel Name"]
        if math.isnan(mean) or not count > 0:
            return
        if name in _DURATIONS and unit == "ns":
            self.activities.append(printed.Activity(kernel, count, mean * count, mean, low, high))
        else:
            label = f"{name} ({unit})" if unit else name
            self._summary_metrics.append(printed.Metric(label, kernel, count, low, high, mean))

    def _add(self, values: Values, sections: dict[str, str], facts: Mapping[str, str]) -> None:
        """Add a row of the details page to the metrics of its launch.

        Sections share names of metrics: Memory Throughput is a percentage in one, and bytes a second in
        another. The first keeps the name, each other has its section (within a section: its unit) behind it.
        """
        name, section = facts["Metric Name"], facts.get("Section Name", "")
        unit = facts.get("Metric Unit", "")
        value = printed.number_and_unit(facts.get("Metric Value", ""), unit, self._comma)
        if sections.setdefault(name, section) != section:
            name = f"{name} [{section}]"
        if name in values and values[name][1] != value[1]:
            name = f"{name} [{unit}]"
        values[name] = value


def _launch(facts: Mapping[str, str], values: Values) -> printed.Launch:
    name, named = facts["Kernel Name"], printed.whole_number(facts.get("Device", ""), 9)
    device = values.get("launch__device_id", (named, ""))[0]
    operator, direction = _operator(" ".join(facts[key] for key in facts if "Push/Pop_Range" in key))
    traffic = [values[key][0] for key in _TRAFFIC if key in values]
    return printed.Launch(
        name,
        duration_ns=_first(values, *_DURATIONS),
        device=int(device) if 0 <= device < 1 << 31 else 0,
        stream=printed.whole_number(facts.get("Stream", "")),
        grid=_sizes(values, "launch__grid_dim", facts.get("Grid Size", "")),
        block=_sizes(values, "launch__block_dim", facts.get("Block Size", "")),
        bytes=sum(traffic) if traffic else values.get("dram__bytes.sum", _NONE)[0],
        flops=_flops(name, values),
        correlation=printed.whole_number(facts["ID"]),
        operator=operator,
        direction=direction,
        registers=_first(values, *_REGISTERS),
        shared_bytes=sum(_first(values, *names) for names in _SHARED),
    )


def _first(values: Values, *names: str) -> float:
    """The metric of the first of several names that is there; NaN: none."""
    return next((values[name][0] for name in names if name in values), math.nan)


def _flops(name: str, values: Values) -> float:
    tensor = any(value > 0 for key, (value, _) in values.items() if _TENSOR_METRIC.search(key))
    if values.keys().isdisjoint(_OPERATIONS) or tensor or TENSOR_KERNEL.search(name):
        return math.nan
    return sum(count * values[key][0] for key, count in _OPERATIONS.items() if key in values)


def _operator(ranges: str) -> tuple[str, str]:
    """(innermost operator, direction) by the ranges of NVTX around a launch."""
    parsed = [parse_text(text) for text in _NVTX.findall(ranges)]
    operators = [one for one in parsed if one.kind == OPERATOR]
    stages = [DIRECTIONS[stage] for one in parsed if (stage := stage_in(one.name)) >= 0]
    if any(_NODE.search(one.name) for one in operators):
        direction = "bprop"
    elif stages:
        direction = stages[-1]
    else:
        direction = "fprop" if any(one.sequence >= 0 for one in operators) else "none"
    return operators[-1].name if operators else "", direction


def _sizes(values: Values, prefix: str, text: str) -> str:
    """``x,y,z`` of metrics, or of a text such as ``(256, 1, 1)``."""
    sizes = re.findall(r"\d+", text)
    of_metrics = [values.get(f"{prefix}_{axis}", _NONE)[0] for axis in "xyz"]
    if all(map(math.isfinite, of_metrics)):
        sizes = [str(int(value)) for value in of_metrics]
    return ",".join(sizes) if len(sizes) == 3 else ""
