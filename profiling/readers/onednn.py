"""Read what oneDNN prints about each primitive it executes (``ONEDNN_VERBOSE=1``), in any program's output.

A line is ``mkldnn_verbose,exec,PRIMITIVE,IMPLEMENTATION,PROPAGATION,...,MS``. Later releases begin it with
``dnnl_verbose`` or ``onednn_verbose``, write the engine before the primitive, and before ``exec`` the version
of the format (``v1``), the time in ms (``ONEDNN_VERBOSE_TIMESTAMP=1``) and ``primitive``. From 2.0 on a line
``template:`` names the fields.
"""

import math
import re
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa

from profiling.errors import UserError
from profiling.findings import Finding
from profiling.readers.files import UNKNOWN, Origin, read_lines
from profiling.readers.printed import Activity, Launch, stream_printed, summary_intervals

_MARKER = r"(?:onednn|dnnl|mkldnn)_verbose,"
_LINE = re.compile(rf"{_MARKER}(?:v\d,)?(?:[\d.]+,)?(?:primitive,)?(?:info|exec|create)".encode())
_START = re.compile(_MARKER)
_EXECUTED = re.compile(r"(?:v\d,)?(?:(\d{1,16}(?:\.\d*)?),)?(?:primitive,)?exec,(.*)")
_ENGINE = re.compile(r"(cpu|gpu)(?::(\d{1,4}))?(?:2[cg]pu)?")
_DIRECTIONS = {"forward": "fprop", "backward": "bprop"}
_MS = re.compile(r"\d{1,9}(?:\.\d+)?(?:e[-+]\d{1,2})?")
_TEMPLATE = re.compile(r"(?:v\d,)?(?:primitive,)?info,(?:prim_)?template:.*\bprimitive,(.*)")
_LEAST = 7  # fields from the primitive on, where no template says how many there are


def recognise(path: Path, head: bytes) -> bool:
    return _LINE.search(head) is not None


def stream(path: Path, findings: list[Finding], origin: Origin = UNKNOWN) -> Iterator[tuple[str, pa.Table]]:
    """Each execution as a row of ``kernels``, their sums as ``intervals``; UserError: unreadable or foreign.

    Both are named by primitive, propagation and implementation. Executions of oneDNN's graphs are left out:
    they consist of primitives.
    """
    rank = origin.rank_of(path) or 0
    sums: dict[str, Activity] = {}
    lines, damaged, least = 0, 0, _LEAST

    def launches() -> Iterator[Launch]:
        nonlocal lines, damaged, least
        for line in read_lines(path):
            for text in _START.split(line)[1:]:  # threads may print into each other's lines
                lines += 1
                least = 2 + match[1].count(",") if (match := _TEMPLATE.match(text)) else least
                executed = _EXECUTED.match(text)
                if executed and (launch := _launch(executed[1], executed[2].split(","), least)):
                    new = Activity(launch.name, 0, 0.0, on_device=launch.device >= 0)
                    sums.setdefault(launch.name, new).add(launch.duration_ns)
                    yield launch
                elif executed:
                    damaged += 1

    yield from stream_printed(launches(), [], list, rank)
    if not lines:
        raise UserError(f"{path} holds no line of oneDNN's log; is it the right file?")
    yield "intervals", summary_intervals(list(sums.values()), rank)
    findings += [Finding("records_damaged", data={"n": damaged, "what": "lines"})] if damaged else []
    findings += [] if sums else [Finding("recording_empty")]


def _launch(begun_ms: str | None, fields: list[str], least: int) -> Launch | None:
    """An execution by the fields after ``exec``; None: they are damaged."""
    engine = _ENGINE.fullmatch(fields[0])
    fields = fields[1:] if engine else fields
    ms = fields[-1].strip() if len(fields) >= max(least, 4) else ""
    if not _MS.fullmatch(ms):
        return None
    primitive, implementation, propagation = fields[:3]
    return Launch(
        ", ".join(text for text in (primitive, propagation, implementation) if text not in ("", "undef")),
        start_ns=float(begun_ms) * 1e6 if begun_ms else math.nan,
        duration_ns=float(ms) * 1e6,
        device=int(engine[2] or 0) if engine and engine[1] == "gpu" else -1,
        operator=primitive,
        direction=_DIRECTIONS.get(propagation.partition("_")[0], "none"),
    )
