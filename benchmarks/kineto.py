"""python -m benchmarks.kineto: how fast, and in how much memory, does a Kineto trace become tables?

The peer is HolisticTraceAnalysis's load, as its users write it: ``TraceAnalysis(trace_dir=...)``. Real traces
are tiled to a million events (times, correlations, ids and sequence numbers shifted), and each repetition is
a process of its own, ours and the peer's by turns. Time is that of the call, without interpreter and imports;
memory is the peak of the whole process (Linux).

    python -m benchmarks.kineto --peer-python VENV/bin/python  # its pip: HolisticTraceAnalysis==0.5.0
"""

import argparse
import gzip
import json
import statistics
import sys
import tempfile
from pathlib import Path
from typing import Any

import orjson

from benchmarks.child import RESULTS, ROOT, facts, machine, result_of, write
from profiling.errors import UserError, run_command

DATA = ROOT.parent / "shared" / "data" / "kineto"
TRACES = ("resnet_kineto.json.gz", "nccl_data.json.gz")
BAR_TIMES, BAR_MEMORY = 3.0, 0.5

_MEASURE = """
import json, sys, time
{imports}
start = time.perf_counter()
rows = {call}
seconds = time.perf_counter() - start
# ru_maxrss would begin at the size of the process that forked us.
peak = next(int(line.split()[1]) for line in open("/proc/self/status") if line.startswith("VmHWM"))
print("RESULT" + json.dumps(dict(seconds=seconds, peak_mb=peak / 1024, rows=rows, version={version})))
"""
OURS = _MEASURE.format(
    imports="from pathlib import Path\nfrom profiling.tools import tool",
    call='tool("torch").read(Path(sys.argv[1])).tables["kernels"].num_rows',
    version="'this tree'",
)
PEER = _MEASURE.format(
    imports="from importlib.metadata import version\nfrom hta.trace_analysis import TraceAnalysis",
    call="len(TraceAnalysis(trace_dir=str(__import__('pathlib').Path(sys.argv[1]).parent)).t.get_trace(0))",
    version="version('HolisticTraceAnalysis')",
)

# Fields that tell one step's records from another's.
_SHIFTED = ("External id", "correlation", "Sequence number", "Ev Idx", "Record function id")


def tile(source: Path, target: Path, events: int) -> int:
    """Write a trace of at least ``events`` events, copies of ``source`` one after another; how many."""
    trace = orjson.loads(gzip.decompress(source.read_bytes()))
    one = trace.pop("traceEvents")
    times = [event["ts"] + event.get("dur", 0) for event in one if event.get("ph") == "X"]
    period = max(times) - min(event["ts"] for event in one if event.get("ph") == "X") + 1000
    steps = {
        field: 1 + max((_args(event).get(field, 0) for event in one if event.get("ph") == "X"), default=0)
        for field in _SHIFTED
    }
    steps["id"] = 1 + max(event.get("id", 0) for event in one)
    copies = -(-events // len(one))
    head = orjson.dumps(trace, option=orjson.OPT_INDENT_2).rstrip(b"}\n ")
    with gzip.open(target, "wb", compresslevel=4) as file:
        file.write(head + b',\n  "traceEvents": [\n')
        for copy in range(copies):
            shifted = (_shifted(event, copy, period, steps) for event in one)
            pieces = [orjson.dumps(event, option=orjson.OPT_INDENT_2) for event in shifted]
            file.write((b",\n" if copy else b"") + b",\n".join(pieces))
        file.write(b"\n  ]\n}\n")
    return copies * len(one)


def _args(event: dict[str, Any]) -> dict[str, Any]:
    return event.get("args") or {}


def _shifted(event: dict[str, Any], copy: int, period: float, steps: dict[str, int]) -> dict[str, Any]:
    moved = {**event, "ts": event["ts"] + copy * period}
    if "id" in event:
        moved["id"] = event["id"] + copy * steps["id"]
    args = _args(event)
    if event.get("ph") == "X" and args:
        moved["args"] = {
            **args,
            **{field: args[field] + copy * steps[field] for field in _SHIFTED if field in args},
        }
    return moved


def measure(python: str, code: str, trace: Path) -> dict[str, Any]:
    """Seconds, peak memory and rows of one load in a process of its own."""
    return result_of([python, "-c", code, str(trace)], {"PYTHONPATH": str(ROOT)}, 900)


def compare(trace: Path, peer_python: str, repeats: int) -> dict[str, Any]:
    """Medians of ours and the peer's, taken by turns, and their ratios."""
    runs: dict[str, list[dict[str, Any]]] = {"ours": [], "peer": []}
    for number in range(repeats):
        order = [("ours", sys.executable, OURS), ("peer", peer_python, PEER)]
        for name, python, code in order if number % 2 == 0 else reversed(order):
            runs[name].append(measure(python, code, trace))
    medians = {
        f"{name}_{field}": round(statistics.median(run[field] for run in some), 3)
        for name, some in runs.items()
        for field in ("seconds", "peak_mb")
    }
    return {
        "trace": trace.name,
        **medians,
        "times_faster": round(medians["peer_seconds"] / medians["ours_seconds"], 2),
        "memory_ratio": round(medians["ours_peak_mb"] / medians["peer_peak_mb"], 3),
        "ours_each_s": [round(run["seconds"], 3) for run in runs["ours"]],
        "peer_each_s": [round(run["seconds"], 3) for run in runs["peer"]],
        "kernels": runs["ours"][0]["rows"],
        "peer_rows": runs["peer"][0]["rows"],
        "peer_version": runs["peer"][0]["version"],
    }


def as_markdown(report: dict[str, Any]) -> str:
    """The report as a table for people."""
    lines = [
        "# Kineto JSON to tables, against HolisticTraceAnalysis's load", "",
        f"{facts(report['machine'])}; HolisticTraceAnalysis {report['traces'][0]['peer_version']}; medians "
        f"of {report['repeats']} processes each, by turns. Bars: at least {BAR_TIMES:g} times as fast, in at "
        f"most {BAR_MEMORY:g} of the peak memory.", "", f"    {report['command']}", "",
        "| trace | events | ours, s | peer, s | times faster | ours, MB | peer, MB | memory ratio |",
        "| --- | --- | --- | --- | --- | --- | --- | --- |",
    ]  # fmt: skip
    for one in report["traces"]:
        lines.append(
            f"| {one['trace']} | {one['events']:,} | {one['ours_seconds']:.2f} | {one['peer_seconds']:.2f} "
            f"| {one['times_faster']:.1f} | {one['ours_peak_mb']:.0f} | {one['peer_peak_mb']:.0f} "
            f"| {one['memory_ratio']:.2f} |"
        )
    return "\n".join(lines) + "\n"


def main() -> int:
    """The command; exit code 1 if a bar is missed."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.kineto", description=__doc__)
    parser.add_argument(
        "--peer-python", default=sys.executable, help="a Python that has HolisticTraceAnalysis"
    )
    parser.add_argument("--events", type=int, default=1_000_000)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--out", type=Path, default=RESULTS)
    given = parser.parse_args()
    if not DATA.is_dir():
        raise UserError(f"the traces are not on this machine: {DATA} does not exist")
    traces, where = [], machine(("numpy", "orjson", "pyarrow"))
    for name in TRACES:
        with tempfile.TemporaryDirectory() as folder:
            trace = Path(folder) / name
            count = tile(DATA / name, trace, given.events)
            traces.append({"events": count, **compare(trace, given.peer_python, given.repeats)})
            print(json.dumps(traces[-1]), file=sys.stderr)
    command = "python -m benchmarks.kineto --peer-python VENV/bin/python"
    report = {"command": command, "repeats": given.repeats, "machine": where, "traces": traces}
    write("kineto", report, as_markdown(report), given.out)
    missed = [one for one in traces if one["times_faster"] < BAR_TIMES or one["memory_ratio"] > BAR_MEMORY]
    return 1 if missed else 0


if __name__ == "__main__":
    run_command(main)
