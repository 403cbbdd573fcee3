"""python -m benchmarks.kineto_agreement: does a Kineto trace mean the same to HolisticTraceAnalysis?

Of each reference trace: the time from the first kernel's start to the last one's end, and in it the time in
which kernels compute, communicate and move memory (each a union of intervals), in which communication is
hidden by computing, and in which nothing runs. Ours are the intervals by which
``analysis.frames.divide`` divides a batch; the peer's are of its own classes, merged by its own
functions, over the kernels that it keeps. Where its definitions differ from ours (docs/methods.md), it is
asked for ours: times unrounded, the last step included. The results are what
``tests/analysis/test_kineto_agreement.py`` holds us to without the peer.

    python -m benchmarks.kineto_agreement --peer-python VENV/bin/python
        # its pip: HolisticTraceAnalysis==0.5.0 'pandas<3' (with pandas 3 it cannot read the MI300's trace)
"""

import argparse
import json
import sys
from pathlib import Path
from typing import Any

import numpy as np

from analysis.frames.divide import activities_of, length, split, union
from benchmarks.peer import ask_peer
from profiling.errors import UserError, run_command
from profiling.tools import tool

ROOT = Path(__file__).resolve().parents[1]
DATA = ROOT.parent / "shared" / "data" / "kineto"
RESULT = ROOT / "benchmarks" / "results" / "kineto_agreement.json"
BAR = 0.001
TIMES = ("span_us", "compute_us", "communication_us", "memory_us", "overlap_us", "idle_us")

PEER = """
import json, shutil, sys, tempfile, warnings
from importlib.metadata import version
from pathlib import Path
warnings.simplefilter("ignore")
from hta.trace_analysis import TraceAnalysis
from hta.utils.utils import get_kernel_type, merge_kernel_intervals

def length(kernels):
    merged = merge_kernel_intervals(kernels.copy())
    return float((merged["end"] - merged["ts"]).sum())

found = {}
for name in sys.argv[2:]:
    with tempfile.TemporaryDirectory() as folder:
        trace = Path(folder) / Path(name).name
        shutil.copy(Path(sys.argv[1]) / name, trace)
        hta = TraceAnalysis({0: str(trace)}, folder, include_last_profiler_step=True)
    whole = hta.get_temporal_breakdown(visualize=False).iloc[0]
    kernels = hta.t.get_trace(0)
    kernels = kernels[kernels["stream"].ne(-1)].copy()
    names = hta.t.symbol_table.get_sym_table()
    kind = kernels["name"].map(lambda number: get_kernel_type(names[number]))
    of = {one: kernels[kind.eq(one)] for one in ("COMPUTATION", "COMMUNICATION", "MEMORY")}
    either = kernels[kind.isin(["COMPUTATION", "COMMUNICATION"])]
    lengths = {one: length(some) for one, some in of.items()}
    found[name] = {
        "kernels": len(kernels),
        "span_us": float(whole["kernel_time(us)"]), "compute_us": float(whole["compute_time(us)"]),
        "communication_us": lengths["COMMUNICATION"], "memory_us": lengths["MEMORY"],
        "overlap_us": lengths["COMPUTATION"] + lengths["COMMUNICATION"] - length(either),
        "idle_us": float(whole["idle_time(us)"]),
    }
versions = {one: version(one) for one in ("HolisticTraceAnalysis", "pandas", "numpy")}
print("RESULT" + json.dumps({"versions": versions, "traces": found}))
"""


def traces() -> list[str]:
    """The reference traces, by their paths below the folder of all.

    Raises:
        UserError: they are not on this machine.
    """
    found = sorted(path.relative_to(DATA).as_posix() for path in DATA.rglob("*.json.gz"))
    if not found:
        raise UserError(f"the traces are not on this machine: {DATA} does not exist")
    return found


def ours(trace: Path) -> dict[str, float]:
    """Our times of a trace in microseconds (:data:`TIMES`), and how many kernels they are of.

    Of a trace with several of PyTorch's steps, kernels of no step (launched before the trace) are left out,
    as the peer leaves them out.
    """
    tables = tool("torch").read(trace).tables
    table, ranges = tables["kernels"], set(tables["markers"]["name"].unique().to_pylist())
    columns = {
        name: table[name].to_numpy(zero_copy_only=False)
        for name in ("start_ns", "duration_ns", "class", "direction", "batch_index")
    }
    if sum(name.startswith("ProfilerStep") for name in ranges) > 1:
        of_a_step = columns["batch_index"] >= 0
        columns = {name: column[of_a_step] for name, column in columns.items()}
    start, end = columns["start_ns"], columns["start_ns"] + columns["duration_ns"]
    activities = activities_of(columns)
    parts = split((np.array([start.min()]), np.array([end.max()])), activities)
    moves = np.isin(columns["class"], ("memcpy", "memset"))
    ns = {
        "span_us": int(end.max() - start.min()),
        "compute_us": int(parts["compute"][0]),
        "communication_us": length(union(*activities.communication)),
        "memory_us": length(union(start[moves], end[moves])),
        "overlap_us": int(parts["overlapped_communication"][0]),
        "idle_us": int(parts["idle"][0]),
    }
    return {"kernels": len(start), **{name: value / 1e3 for name, value in ns.items()}}


def difference(mine: float, theirs: float) -> float:
    """By how much two times differ, as a part of the peer's; 0 where both are 0."""
    return abs(mine - theirs) / theirs if theirs else float(mine != 0)


def as_markdown(report: dict[str, Any]) -> str:
    """The report as a table for people."""
    versions = ", ".join(f"{name} {value}" for name, value in report["versions"].items())
    lines = [
        "# What a Kineto trace means, to HolisticTraceAnalysis and to us", "",
        f"Milliseconds, the peer's / ours, where the definitions are the same. {versions}. Bar: they differ "
        f"by at most {BAR:.1%}.", "", f"    {report['command']}", "",
        "| trace | kernels | span | compute | communication | memory | overlap | idle | largest difference |",
        "| --- | --- | --- | --- | --- | --- | --- | --- | --- |",
    ]  # fmt: skip
    for name, one in report["traces"].items():
        cells = [f"{one['peer'][field] / 1e3:.3f} / {one['ours'][field] / 1e3:.3f}" for field in TIMES]
        lines.append(
            f"| {name} | {one['peer']['kernels']:,} | {' | '.join(cells)} | {one['difference']:.4%} |"
        )
    return "\n".join(lines) + "\n"


def main() -> int:
    """The command; exit code 1 if a time differs by more than the bar."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.kineto_agreement", description=__doc__)
    parser.add_argument(
        "--peer-python", default=sys.executable, help="a Python that has HolisticTraceAnalysis"
    )
    given = parser.parse_args()
    names = traces()
    peer = ask_peer(given.peer_python, PEER, DATA, *names)
    compared = {}
    for name in names:
        theirs, mine = peer["traces"][name], ours(DATA / name)
        largest = max(difference(mine[field], theirs[field]) for field in ("kernels", *TIMES))
        compared[name] = {"peer": theirs, "ours": mine, "difference": largest}
    command = "python -m benchmarks.kineto_agreement --peer-python VENV/bin/python"
    report = {"command": command, "versions": peer["versions"], "traces": compared}
    RESULT.write_text(json.dumps(report, indent=2) + "\n")
    RESULT.with_suffix(".md").write_text(as_markdown(report))
    print(as_markdown(report))
    return 1 if any(one["difference"] > BAR for one in compared.values()) else 0


if __name__ == "__main__":
    run_command(main)
