"""python -m benchmarks.point_cost: what does the suite itself cost, beside the training it starts?

On a virtual cluster of 4 nodes, in a job of the batch system:

1. Between points. A sweep of points on all nodes; from the end of a point's last step (on the last rank) to
   the start of the next one's first process. In it fall the ranks' tables and reports, their processes' end,
   the manifest, the next point's claim and srun's start.
2. Beside srun. The same point of a minute by the suite and by its bare command (as --dry-run prints it), by
   turns: from the command to the first rank's start, from the last step to the command's end, and the
   processor time of what is no rank while the steps run (all of it less that of a dry run). How long ranks
   take to start is PyTorch's, and varies by more.

    python -m benchmarks.point_cost          (10 minutes; as root, with Slurm)
"""

import argparse
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import pairwise
from pathlib import Path
from typing import Any

import pyarrow.compute as pc

from benchmarks.child import facts, write
from benchmarks.training import machine
from benchmarks.virtual import Cluster, virtual_cluster
from jobs import store
from jobs.store import Manifest, RankReport
from profiling import tables
from profiling.errors import EXIT_DONE, EXIT_FAILED, run_command

NODES, POINTS, LONG_S, PAIRS = 4, 8, 60.0, 2
BAR_BETWEEN_S, BAR_LAUNCHER = 0.5, 0.02
RUN = "nodes: 4, network: eth, threads: 1, loader: synthetic, batch: 2, image_size: 32"
MODELS = ("squeezenet1_1", "resnet18", "resnet50")
# The same point, bare or by the suite. Said: processor time of a dry run, its begin, processor time, end.
PAIR = """#!/usr/bin/env bash
set -euo pipefail
TIMEFORMAT="%U %S"
mkdir -p "$2/bare/long" "$2/suite/long"
cp "$3" "$2/bare/long"; cp "$3" "$2/suite/long"
suite() { .venv/bin/python -m jobs.sweep "$1" --launcher slurm --out "$2" "${@:3}"; }
one() { if [[ $1 == bare ]]; then bash "$2/command"; else suite "$4" "$2/suite"; fi > "$3" 2>&1; }
{
    time suite "$1" "$2/bare" --dry-run 2>/dev/null > "$2/command"
    echo "$EPOCHREALTIME" >&2
    time one "$4" "$2" "$2/$4.log" "$1"
    echo "$EPOCHREALTIME" >&2
} 2> "$2/$4.time"
"""


@dataclass(frozen=True)
class Timed:
    """When a point's ranks were at work, in seconds since 1970."""

    first_process: float
    first_batch: float
    last_batch: float  # its end, on the last rank


def timed(directory: Path) -> Timed:
    """The instants of an ended point, from what its ranks left."""
    starts, ends, processes = [], [], []
    for rank in directory.glob("rank_*"):
        report = store.read_record(rank / store.RANK_REPORT, RankReport)
        batches = tables.read(rank, "batches", ["start_ns", "end_ns"])
        starts.append(pc.min(batches["start_ns"]).as_py())
        ends.append(pc.max(batches["end_ns"]).as_py())
        processes.append(starts[-1] - report.startup_ns)
    return Timed(min(processes) / 1e9, min(starts) / 1e9, max(ends) / 1e9)


def ended_runs(sweep: Path) -> list[Path]:
    return [path.parent for path in sorted(sweep.glob(f"run_*_ret_*/{store.MANIFEST}"))]


def seen_to_end(directory: Path) -> float:
    """When the suite saw a point's end, in seconds since 1970."""
    return datetime.fromisoformat(store.read_record(directory / store.MANIFEST, Manifest).ended).timestamp()


def between(sweep: Path) -> list[dict[str, float]]:
    """For each point but the last: seconds until the suite sees its end, and on to the next one's start."""
    found = [(timed(path), seen_to_end(path)) for path in ended_runs(sweep)]
    points = sorted(found, key=lambda each: each[1])
    return [
        {"ranks_end_s": ended - one.last_batch, "next_starts_s": two.first_process - ended}
        for (one, ended), (two, _) in pairwise(points)
    ]


def sweep_file(folder: Path, name: str, model: str, batches: int, repetitions: int) -> Path:
    file = folder / f"{name}.yaml"
    run = f"run: {{{RUN}, model: {model}, batches: {batches}}}"
    file.write_text(f"repetitions: {repetitions}\ntime_limit_s: 600\n{run}\n")
    return file


def pairs(cluster: Cluster, folder: Path, calibration: Path, batches: int) -> list[dict[str, float]]:
    """The bare command and the suite by turns: seconds beside the steps, and processor seconds."""
    script = folder / "pair.sh"
    script.write_text(PAIR)
    found = []
    for number, order in enumerate([("bare", "suite"), ("suite", "bare")] * ((PAIRS + 1) // 2)):
        row: dict[str, float] = {}
        for which in order:
            out = folder / f"pair-{number}"
            file = sweep_file(folder, "long", MODELS[0], batches, 1)
            cluster.batch(
                NODES, out / f"{which}.txt", str(script), str(file), str(out), str(calibration), which
            )
            *dry, began, user, system, ended = map(float, (out / f"{which}.time").read_text().split())
            (directory,) = (out / which / "long").glob("run_*")
            at = timed(directory)
            row |= {
                f"{which}_trained_s": at.last_batch - at.first_batch,
                f"{which}_before_s": at.first_process - began,
                f"{which}_after_s": ended - at.last_batch,
                f"{which}_meanwhile_s": user + system - (sum(dry) if which == "suite" else 0.0),
            }
        found.append(row)
    return found[:PAIRS]


_PARTS = ("before", "after", "meanwhile")


def launcher_share(rows: Sequence[Mapping[str, float]], next_starts_s: float) -> float:
    """What the suite adds to a point of a minute: before its ranks start, while they train, and after.

    The suite's own start, once a sweep, is not in it: before a point are the seconds from the end of another.
    """
    after = statistics.mean(row["suite_after_s"] - row["bare_after_s"] for row in rows)
    while_training = statistics.mean(
        (row["suite_meanwhile_s"] - row["bare_meanwhile_s"]) / row["suite_trained_s"] for row in rows
    )
    return (next_starts_s + after) / LONG_S + while_training


def measure(cluster: Cluster, folder: Path) -> dict[str, Any]:
    gaps = {}
    for model in MODELS:
        file = sweep_file(folder, model, model, 10, POINTS)
        sweep = cluster.sweep(NODES, file, folder / "between")
        gaps[model] = between(sweep)
    a_batch_s = statistics.median(
        (at.last_batch - at.first_batch) / 10
        for at in (timed(path) for path in ended_runs(folder / "between" / MODELS[0]))
    )
    calibration = folder / "between" / MODELS[0] / store.CALIBRATION
    return {"between": gaps, "pairs": pairs(cluster, folder, calibration, max(10, round(LONG_S / a_batch_s)))}


def as_markdown(report: Mapping[str, Any]) -> str:
    """The report as tables for people."""
    lines = [
        "# What the suite costs beside the training", "",
        f"{facts(report['machine'])}. A virtual cluster of {NODES} nodes, a rank each, "
        "that share this machine's cores.", "", f"    {report['command']}", "",
        f"From a point's last step to the next point's first process, medians of {POINTS - 1} (bar: "
        f"{BAR_BETWEEN_S:g} s):", "",
        "| model | ranks end, s | next starts, s | together, s | highest, s |",
        "| --- | ---: | ---: | ---: | ---: |",
    ]  # fmt: skip
    for model, rows in report["between"].items():
        sums = sorted(sum(row.values()) for row in rows)
        parts = [statistics.median(row[name] for row in rows) for name in ("ranks_end_s", "next_starts_s")]
        cells = [*parts, statistics.median(sums), sums[-1]]
        lines.append(f"| {model} | {' | '.join(f'{cell:.2f}' for cell in cells)} |")
    lines += [
        "", "The same point by the suite and by its bare srun, in seconds:", "",
        "| | steps | to the first rank's start | from the last step | processor, meanwhile |",
        "| --- | ---: | ---: | ---: | ---: |",
    ]  # fmt: skip
    for row in report["pairs"]:
        for which in ("bare", "suite"):
            cells = [row[f"{which}_{name}_s"] for name in ("trained", *_PARTS)]
            lines.append(f"| {which} | {' | '.join(f'{cell:.2f}' for cell in cells)} |")
    share = 100 * report["launcher_share"]
    lines += [
        "", f"The suite adds {share:.1f} % to a point of {LONG_S:g} s (bar: {100 * BAR_LAUNCHER:g} %): the "
        "next one's start and what comes after the last step, by the clock, and the processor's time "
        "meanwhile. Its own start, once a sweep, stands in the second column.",
    ]  # fmt: skip
    return "\n".join(lines) + "\n"


def main() -> int:
    """The command; exit code 1 if a bar is missed."""
    argparse.ArgumentParser(prog="python -m benchmarks.point_cost", description=__doc__).parse_args()
    where = machine()
    with virtual_cluster(NODES) as (cluster, folder):
        found = measure(cluster, folder)
    next_starts_s = statistics.median(row["next_starts_s"] for row in found["between"][MODELS[0]])
    share = launcher_share(found["pairs"], next_starts_s)
    about = {"command": "python -m benchmarks.point_cost", "machine": where}
    report = {**about, **found, "launcher_share": share}
    write("point_cost", report, as_markdown(report))
    worst = max(statistics.median(sum(row.values()) for row in rows) for rows in found["between"].values())
    return EXIT_DONE if worst <= BAR_BETWEEN_S and share <= BAR_LAUNCHER else EXIT_FAILED


if __name__ == "__main__":
    run_command(main)
