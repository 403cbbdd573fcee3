"""Which functions and metrics are in a report of VTune, as ``vtune -report`` writes CSV?"""

import math
import re
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa

from profiling.errors import UserError
from profiling.readers.chunks import read_head
from profiling.readers.origin import UNKNOWN, Origin
from profiling.readers.printed import (
    Activity,
    Blocks,
    Metric,
    Row,
    atomics_table,
    cells_of,
    has_decimal_commas,
    intervals_table,
    number_and_unit,
)
from profiling.wording import left_out

# What a row is of, in the order in which it is preferred.
_KEYS = (
    "Function", "Function Stack", "Function / Call Stack", "Computing Task", "Source Computing Task",
    "Task Type", "Module", "Source Function", "Thread", "Process",
)  # fmt: skip
_ON_DEVICE, _COUNT = ("Computing Task", "Source Computing Task"), "Computing Task:Instance Count"
_TIMES = (
    "CPU Time", "CPU Time:Self", "Task Time", "Computing Task:Total Time", "Total Time", "Elapsed Time",
    "CPU Time:Effective Time:Self", "CPU Time:Effective Time", "Clockticks:Self", "Clockticks",
)  # fmt: skip
_MEASURED = ("CPU Time", "Hardware Event Count:", "Clockticks", "Task Time", "Computing Task:Total Time")
_NOT_NUMBERS = re.compile(
    r"^(Start Address|Source File|Function \(Full\)|Module Path|Source Line|TID|PID|.* ID$)"
)
_DELIMITERS = "\t,;|"
_METRICS = ["Metric Name", "Metric Value"]
_SECONDS_NS = 1e9


def recognise(path: Path, head: bytes) -> bool:
    """Whether a text is a report of VTune: its columns are named as VTune names them."""
    return _delimiter(head.decode("utf-8", "replace")) is not None


def stream(path: Path, findings: list[str], origin: Origin = UNKNOWN) -> Iterator[tuple[str, pa.Table]]:
    """A report of VTune as pieces of tables: a function is a row of ``intervals`` (its own CPU time;
    VTune samples, and counts no calls; a GPU's tasks it counts), every other number of it an event of
    ``atomics``.
    """
    head = read_head(path).decode("utf-8", "replace")
    delimiter = _delimiter(head)
    if delimiter is None:
        raise UserError(
            f"{path} is not a report of VTune; write it again (vtune -report hotspots -format csv)"
        )
    rank = origin.rank_of(path) or 0
    report = _Report(any(has_decimal_commas(cells_of(line, delimiter)) for line in head.splitlines()))
    blocks = Blocks(path, _is_header, delimiter)
    for row in blocks:
        report.add(row)
    yield "intervals", intervals_table(report.activities, rank)
    yield "atomics", atomics_table([], report.metrics, rank)
    if blocks.damaged:
        findings.append(f"{path.name}: {left_out(blocks.damaged, 'damaged line')}")
    if not report.activities and not report.metrics:
        findings.append(f"{path.name}: the report is empty: VTune collected nothing, or was not finalised")


def _delimiter(head: str) -> str | None:
    for line in head.splitlines()[:20]:
        for delimiter in _DELIMITERS:
            if _is_header([cell.strip('" ') for cell in line.split(delimiter)]):
                return delimiter
    return None


def _is_header(cells: list[str]) -> bool:
    names = [cell.strip() for cell in cells]
    if set(_METRICS) <= set(names):
        return "Hierarchy Level" in names
    timed = any(name.startswith(_MEASURED) for name in names)
    return timed and any(key in names for key in _KEYS)


class _Report:
    """Collects rows.

    Args:
        decimal_comma: VTune ran in a language that writes 12,5.
    """

    def __init__(self, decimal_comma: bool) -> None:
        self.activities: list[Activity] = []
        self.metrics: list[Metric] = []
        self._comma = decimal_comma

    def add(self, row: Row) -> None:
        """Take a row of functions, or of metrics of the whole."""
        values = row.values
        if set(_METRICS) <= values.keys():
            self._add_metric(values["Metric Name"].strip(), "", values["Metric Value"])
            return
        key = next((key for key in _KEYS if key in values), "")
        name = values.get(key, "").strip()
        timed = next((time for time in _TIMES if time in values), "")
        timed = timed if "Time" in timed else ""
        self._add_activity(name, key in _ON_DEVICE, values.get(timed, ""), values.get(_COUNT, ""))
        for column, text in values.items():
            if column not in _KEYS and column != timed and not _NOT_NUMBERS.match(column):
                self._add_metric(column, name, text)

    def _add_activity(self, name: str, on_device: bool, time: str, count: str) -> None:
        took = self._number(time) * _SECONDS_NS
        calls = self._number(count)
        self.activities.append(Activity(name, calls, took, math.nan, math.nan, math.nan, on_device=on_device))

    def _add_metric(self, name: str, function: str, text: str) -> None:
        value = self._number(text)
        if not math.isnan(value):
            self.metrics.append(Metric(name, function, 1, value, value, value))

    def _number(self, text: str) -> float:
        """A number with its unit taken away: seconds, counts and percents come as they are."""
        value, unit = number_and_unit(text, decimal_comma=self._comma)
        return value / _SECONDS_NS if unit == "ns" else value
