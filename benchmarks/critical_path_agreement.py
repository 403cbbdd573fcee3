"""python -m benchmarks.critical_path_agreement: is our critical path that of HolisticTraceAnalysis?

Of each of PyTorch's steps in each reference trace that both read: how long the path is, and what is on it, by
the peer's kinds: the host (``cpu_bound``), kernels and copies (``gpu_compute_bound``), collectives
(``gpu_communication_bound``), delays between kernels and from a launch to its kernel. The peer reads a rank
at a time; so do we here. There is no bar, for the two define other things:

- The peer's path does not sum to the step. Edges between operators of a thread that are in no other operator
  have no length in it, so the host's own code is not on it, and threads do not wait for each other. Ours has
  both, as ``host``.
- The peer's step is the profiler's range on the host, and the kernels launched in it; ours ends when the
  device has done them, and begins where the one before it ended.
- The peer learns from events which stream waited for which, where the trace has them (``cuda_sync``); we
  conclude it from times (docs/methods.md). Without these events the peer's path does not leave a stream: what
  another stream's collective took is a delay between kernels.

    python -m benchmarks.critical_path_agreement --peer-python VENV/bin/python [TRACE ...]
        # its pip: HolisticTraceAnalysis==0.5.0 'pandas<3'
"""

import argparse
import json
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from analysis.frames.load import load
from analysis.measures.critical_path import COLLECTIVES, paths_of
from benchmarks.kineto_agreement import DATA
from benchmarks.kineto_agreement import RESULT as KINETO
from benchmarks.peer import ask_peer
from profiling.convert import convert
from profiling.errors import UserError, run_command

RESULT = KINETO.with_name("critical_path_agreement.json")
NAMES = (
    "nccl_data.json.gz", "resnet50_v100_dims_old_schema.json.gz", "resnet18_ddp_mi300_rank0of8.json.gz",
    "dlrm_8ranks/rank0.json.gz",
)  # fmt: skip
KINDS = ("host", "kernels", "collectives", "delays")
_HOST = ("host", "data loading", "synchronization")

PEER = """
import json, shutil, sys, tempfile, warnings
from importlib.metadata import version
from pathlib import Path
warnings.simplefilter("ignore")
from hta.trace_analysis import TraceAnalysis

KINDS = {"cpu_bound": "host", "gpu_compute_bound": "kernels", "gpu_communication_bound": "collectives",
         "gpu_kernel_kernel_overhead": "delays", "gpu_kernel_launch_overhead": "delays"}
found = {}
for path in map(Path, sys.argv[1:]):
    with tempfile.TemporaryDirectory() as folder:
        trace = Path(folder) / path.name
        shutil.copy(path, trace)
        try:
            hta = TraceAnalysis({0: str(trace)}, folder, include_last_profiler_step=True)
            names = [name for name in hta.t.symbol_table.get_sym_table() if name.startswith("ProfilerStep#")]
            steps = []
            for instance in range(len(names)):
                graph, ok = hta.critical_path_analysis(0, "ProfilerStep", instance)
                edges = graph.get_critical_path_breakdown() if ok else None
                if edges is None:
                    continue
                of = edges.groupby("bound_by").duration.sum()
                step = dict.fromkeys(("host", "kernels", "collectives", "delays"), 0.0)
                for kind, us in of.items():
                    if kind:
                        step[KINDS[kind]] += float(us)
                steps.append(step)
            events = "cuda_sync" in hta.t.symbol_table.get_sym_id_map()
            found[str(path)] = {"steps": steps, "sync_events": events}
        except Exception as error:
            found[str(path)] = {"steps": [], "sync_events": False, "error": repr(error)[:200]}
versions = {one: version(one) for one in ("HolisticTraceAnalysis", "pandas", "networkx")}
print("RESULT" + json.dumps({"versions": versions, "traces": found}))
"""


def ours(trace: Path) -> list[dict[str, float]]:
    """Of each step what is on our path, by :data:`KINDS`, in microseconds.

    Raises:
        UserError: it cannot be read.
    """
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "out"
        convert([trace], out=out, jobs=1)
        study = load(out)
        (source,) = study.recorded
        return [of_step(pieces) for _, pieces in paths_of(study, source).pieces.groupby("path")]


def of_step(pieces: pd.DataFrame) -> dict[str, float]:
    """What is on the path of a step, by :data:`KINDS`, in microseconds."""
    of = dict.fromkeys(KINDS, 0.0)
    for part, ns in zip(pieces["part"], pieces["duration_ns"], strict=True):
        kind = "host" if part in _HOST else COLLECTIVES if part == COLLECTIVES else "kernels"
        of["delays" if part in ("gaps", "launches") else kind] += ns / 1e3
    return of


def as_markdown(report: dict[str, Any]) -> str:
    """The report as a table for people."""
    versions = ", ".join(f"{name} {value}" for name, value in report["versions"].items())
    lines = [
        "# The critical path of a step, to HolisticTraceAnalysis and to us", "",
        f"Milliseconds per step (means of the steps), the peer's / ours. {versions}. What the two define "
        "differently is in the benchmark's docstring.", "", f"    {report['command']}", "",
        f"| trace | steps | sync events | path | {' | '.join(KINDS)} |",
        "| --- | --- | --- | --- | --- | --- | --- | --- |",
    ]  # fmt: skip
    for name, one in report["traces"].items():
        if not one["peer"]:
            lines.append(f"| {name} | 0 / {len(one['ours'])} | the peer: {one['error']} | | | | | |")
            continue
        peer, mine = (_mean(one[whose]) for whose in ("peer", "ours"))
        cells = [f"{sum(peer.values()):.3f} / {sum(mine.values()):.3f}"]
        cells += [f"{peer[kind]:.3f} / {mine[kind]:.3f}" for kind in KINDS]
        events = "yes" if one["sync_events"] else "no"
        lines.append(f"| {name} | {len(one['peer'])} / {len(one['ours'])} | {events} | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def _mean(steps: Sequence[dict[str, float]]) -> dict[str, float]:
    return {kind: sum(step[kind] for step in steps) / len(steps) / 1e3 for kind in KINDS}


def main() -> int:
    """The command."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.critical_path_agreement", description=__doc__)
    parser.add_argument(
        "--peer-python", default=sys.executable, help="a Python that has HolisticTraceAnalysis"
    )
    parser.add_argument("traces", nargs="*", type=Path, help="[the reference traces; only these are stored]")
    given = parser.parse_args()
    traces = {str(path): path for path in given.traces} or {name: DATA / name for name in NAMES}
    absent = [str(path) for path in traces.values() if not path.is_file()]
    if absent:
        raise UserError(f"the traces are not on this machine: {', '.join(absent)}")
    peer = ask_peer(given.peer_python, PEER, *traces.values())
    compared = {}
    for name, path in traces.items():
        theirs = peer["traces"][str(path)]
        compared[name] = {
            "peer": theirs["steps"], "ours": ours(path), "sync_events": theirs["sync_events"],
            "error": theirs.get("error", "no ProfilerStep"),
        }  # fmt: skip
    command = "python -m benchmarks.critical_path_agreement --peer-python VENV/bin/python"
    report = {"command": command, "versions": peer["versions"], "traces": compared}
    if not given.traces:
        RESULT.write_text(json.dumps(report, indent=2) + "\n")
        RESULT.with_suffix(".md").write_text(as_markdown(report))
    print(as_markdown(report))
    return 0


if __name__ == "__main__":
    run_command(main)
