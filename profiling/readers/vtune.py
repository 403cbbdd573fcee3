"""Read functions and metrics from reports of VTune (CSV of ``vtune -report``) and of its ``aps --report``."""

import re
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa

from profiling.errors import UserError
from profiling.findings import Finding
from profiling.readers import printed
from profiling.readers.files import UNKNOWN, Origin, read_head, read_lines

# What a row is of, in the order in which it is preferred.
_KEYS = (
    "Function", "Function Stack", "Function / Call Stack", "Computing Task", "Source Computing Task",
    "Task Type", "Module", "Source Function", "Thread", "Process",
)  # fmt: skip
_ON_DEVICE, _COUNT = ("Computing Task", "Source Computing Task"), "Computing Task:Instance Count"
_TIMES = (
    "CPU Time", "CPU Time:Self", "Task Time", "Computing Task:Total Time", "Total Time", "Elapsed Time",
    "CPU Time:Effective Time:Self", "CPU Time:Effective Time",
)  # fmt: skip
_MEMORY = ("Allocation", "Deallocation", "Memory Consumption")
_MEASURED = (
    "CPU Time", "Hardware Event Count:", "Clockticks", "Task Time", "Computing Task:Total Time", *_MEMORY,
)  # fmt: skip
_NOT_NUMBERS = re.compile(
    r"^(Start Address|Source File|Function \(Full\)|Module Path|Source Line|TID|PID|.* ID$)"
)
_DELIMITERS = "\t,;|"
_METRICS = {"Metric Name", "Metric Value"}
_SECONDS_NS = 1e9
_APS = re.compile(r"^\| Summary information\s*$", re.MULTILINE)
# A value of aps and its unit, without the rank or node in brackets; 2026-01-31 is none.
_APS_VALUE = re.compile(r"(-?\d[\d,]{0,30}(?:\.\d+)?)(?: ?([%A-Za-z][^()]*))?(?:\(.*\))?")


def recognise(path: Path, head: bytes) -> bool:
    text = head.decode("utf-8", "replace")
    return _APS.search(text) is not None or _delimiter(text) is not None


def stream(path: Path, findings: list[Finding], origin: Origin = UNKNOWN) -> Iterator[tuple[str, pa.Table]]:
    """A report as pieces of tables: a function is a row of ``intervals`` (its own CPU time; VTune samples,
    and counts no calls; a GPU's tasks it counts), every other number of it an event of ``atomics``, as are
    aps's metrics: seconds, counts and percents as they come; memory in bytes, summed over stacks.
    """
    rank = origin.rank_of(path) or 0
    head = read_head(path).decode("utf-8", "replace")
    if _APS.search(head):
        of_run = list(_of_aps(path))
        yield "atomics", printed.summary_atomics([], of_run, rank)
        findings += [] if of_run else [Finding("recording_empty")]
        return
    delimiter = _delimiter(head)
    if delimiter is None:
        raise UserError(
            f"{path} is not a report of VTune; write it again (vtune -report hotspots -format csv)"
        )
    # VTune may have run in a language that writes 12,5.
    comma = any(printed.has_decimal_commas(printed.cells_of(line, delimiter)) for line in head.splitlines())
    blocks = printed.Blocks(path, _is_header, delimiter)
    activities, metrics = list[printed.Activity](), list[printed.Metric]()
    memory: dict[tuple[str, str], float] = {}

    def add_metric(name: str, function: str, text: str) -> None:
        value, unit = printed.number_and_unit(text, decimal_comma=comma)
        if value == value:
            value = value / _SECONDS_NS if unit == "ns" else value
            metrics.append(printed.Metric(name, function, 1, value, value, value))

    for header, cells in blocks:
        values = dict(zip(header, cells, strict=True))
        if values.keys() >= _METRICS:  # of the whole
            add_metric(values["Metric Name"].strip(), "", values["Metric Value"])
            continue
        key = next((key for key in _KEYS if key in values), "")
        name = values.get(key, "").strip()
        of_memory = [column for column in values if column.startswith(_MEMORY)]
        for column in of_memory:
            label, _, of_what = column.partition(":")
            unit, label = ("", label) if label in ("Allocations", "Deallocations") else ("B", f"{label} (B)")
            value = printed.number_and_unit(values[column], unit, comma)[0]
            if value == value and of_what != "Total":
                memory[label, name] = memory.get((label, name), 0) + value
        time_column = next((time for time in _TIMES if time in values), "")
        if time_column or not of_memory:
            total, unit = printed.number_and_unit(values.get(time_column, ""), decimal_comma=comma)
            calls = printed.number_and_unit(values.get(_COUNT, ""), decimal_comma=comma)[0]
            total_ns = total if unit == "ns" else total * _SECONDS_NS
            activities.append(printed.Activity(name, calls, total_ns, on_device=key in _ON_DEVICE))
        for column, text in values.items():
            if column not in (*_KEYS, *of_memory, time_column) and not _NOT_NUMBERS.match(column):
                add_metric(column, name, text)
    metrics += [printed.Metric(*key, 1, value, value, value) for key, value in memory.items()]
    yield "intervals", printed.summary_intervals(activities, rank)
    yield "atomics", printed.summary_atomics([], metrics, rank)
    if blocks.damaged:
        findings.append(Finding("records_damaged", data={"n": blocks.damaged, "what": "lines"}))
    if not activities and not metrics:
        findings.append(Finding("recording_empty"))


def _of_aps(path: Path) -> Iterator[printed.Metric]:
    """The metrics of aps: ``  MPI Time:   65.98 s   38.53% of Elapsed Time``, and below each its parts."""
    above: list[tuple[int, str]] = []  # how far headings and metrics are indented, and their names
    for line in read_lines(path):
        name, _, text = line.partition(":")
        indent, name = len(line) - len(line.lstrip(" ")), name.strip()
        if not indent or not (above or name.lower() == "elapsed time"):
            continue
        while above and above[-1][0] >= indent:
            above.pop()
        for part in text.strip().split("  "):
            if match := _APS_VALUE.fullmatch(part.strip()):
                label = f"{above[-1][1]}: {name}" if above else name
                label += f" ({match[2].strip()})" if match[2] else ""
                value = float(match[1].replace(",", ""))
                yield printed.Metric(label, "", 1, value, value, value)
        above.append((indent, name))


def _delimiter(head: str) -> str | None:
    for line in head.splitlines()[:20]:
        for delimiter in _DELIMITERS:
            if _is_header([cell.strip('" ') for cell in line.split(delimiter)]):
                return delimiter
    return None


def _is_header(cells: list[str]) -> bool:
    names = [cell.strip() for cell in cells]
    if set(names) >= _METRICS:
        return "Hierarchy Level" in names
    return any(name.startswith(_MEASURED) for name in names) and any(key in names for key in _KEYS)
