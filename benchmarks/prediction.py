"""python -m benchmarks.prediction: is a step on 4 nodes what a simulation from 1 and 2 nodes says?

On the virtual cluster (slurm/virtual_cluster.sh) every node's link is limited by the kernel (tc tbf). A sweep
trains SqueezeNet with DDP on 1, 2 and 4 nodes, a rank each, gradients in fp32 and fp16, and is traced on 1
and 2. From these analysis.predict says what 4 give: by a curve, and by the simulation of the step. What fp16
gradients would give on 4 nodes is also asked of the fp32 runs alone. All is compared with what 4 nodes gave.

The nodes share this machine's cores: on 4 of them computing is slower than on 2, which nothing that ran on 2
can say. Where the link is what a batch waits for, that matters little.

    python -m benchmarks.prediction          (as root, with Slurm)
"""

import argparse
import json
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from analysis import extrapolate, simulate_rows
from analysis.extrapolate import Configuration
from analysis.load import load
from analysis.terminal import plain
from benchmarks.training import RESULTS, machine
from benchmarks.virtual import virtual_cluster
from profiling.errors import EXIT_DONE, EXIT_FAILED, run_command

NODES = (1, 2, 4)
RATES = ["50mbit", "100mbit"]  # slow enough that a batch waits for them
WHAT_IF = "fp16-gradients"
WITHIN_PCT = 10.0  # of what was measured a simulation is to be
SWEEP = """
repetitions: {{none: {repetitions}, torch: 1}}
time_limit_s: 300
run:
  nodes: [1, 2, 4]
  network: eth
  threads: 1
  model: squeezenet1_1
  loader: synthetic
  batch: 2
  image_size: 32
  batches: {batches}
  bucket_mb: 1.0
  grad: [fp32, fp16]
  profile: [none, torch]
exclude:
  - when: {{world_size: 1, grad: fp16}}
    because: one rank sends no gradients
  - when: {{world_size: 4, profile: torch}}
    because: what 4 nodes give is predicted from 1 and 2
"""
KEPT = (
    "ranks", "method", "what_if", "images_per_s", "images_per_s_low", "images_per_s_high", "batch_ms",
    "measured_images_per_s", "error_pct", "measured_on", "fit_error_pct", "buckets", "exposed_ms", "alpha_us",
    "beta_gb_per_s",
)  # fmt: skip


def compared(directory: Path) -> list[dict[str, Any]]:
    """What is predicted of the most ranks of a sweep from fewer, and what they gave."""
    study = load(directory)
    found = extrapolate.configurations(study)
    made = extrapolate.rows(extrapolate.series_of(found), []) + simulate_rows.rows(study, found, [])[0]
    kept = [row for row in made if row["backtest"] and row["ranks"] == max(NODES)]
    by_grad = {one.fields["grad"]: one for one in found}
    fp32, fp16 = by_grad["fp32"], by_grad["fp16"]
    fewer = Configuration(fp32.fields, fp32.points[:-1])
    what_if = simulate_rows.rows(study, [fewer], [max(NODES)], [WHAT_IF])[0][-1]
    measured = fp16.points[-1].rate.value
    error = 100 * (what_if["images_per_s"] / measured - 1)
    kept.append(what_if | {"measured_images_per_s": measured, "error_pct": error})
    return [{"grad": row["grad"], **{name: plain(row.get(name)) for name in KEPT}} for row in kept]


def as_markdown(report: Mapping[str, Any]) -> str:
    """The report as a table for people."""
    facts = ", ".join(f"{name} {value}" for name, value in report["machine"].items())
    lines = [
        "# Four nodes, predicted from one and two", "",
        f"{facts}; load before: {report['load_before']}. SqueezeNet 1.1, batch 2 of 32 px a rank, buckets of "
        f"1 MiB, {report['batches']} batches, {report['repetitions']} repetitions. All nodes share this "
        "machine's cores, and links are limited.", "", f"    {report['command']}", "",
        "| link | gradients | by | images/s on 4 (range) | measured | error, % | on 2, error, % "
        "| beta, MB/s |",
        "| --- | --- | --- | ---: | ---: | ---: | ---: | ---: |",
    ]  # fmt: skip
    for row in report["rows"]:
        by = f"{row['method']}, what if {row['what_if']}" if row["what_if"] else row["method"]
        rate = f"{row['images_per_s']:.1f} ({row['images_per_s_low']:.1f} to {row['images_per_s_high']:.1f})"
        fit = "" if row["fit_error_pct"] is None else f"{row['fit_error_pct']:+.1f}"
        beta = "" if row["beta_gb_per_s"] is None else f"{1e3 * row['beta_gb_per_s']:.1f}"
        cells = [row["rate"], row["grad"], by, rate, f"{row['measured_images_per_s']:.1f}"]
        lines.append(f"| {' | '.join(cells)} | {row['error_pct']:+.1f} | {fit} | {beta} |")
    return "\n".join(lines) + "\n"


def worst_pct(rows: Sequence[Mapping[str, Any]]) -> float:
    """The largest error of a simulation, in percent."""
    return max(abs(row["error_pct"]) for row in rows if row["method"] == simulate_rows.SIMULATION)


def main() -> int:
    """The command; exit code 1 if a simulation is off by more than 10 %."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.prediction", description=__doc__)
    parser.add_argument("--repetitions", type=int, default=3)
    parser.add_argument("--batches", type=int, default=16)
    parser.add_argument("--keep", type=Path, help="folder of the sweeps; those that are there are resumed")
    given = parser.parse_args()
    load_before = round(os.getloadavg()[0], 1)
    rows = []
    with virtual_cluster(max(NODES)) as (cluster, folder):
        for rate in RATES:
            cluster.control("shape", rate)
            file = folder / f"prediction-{rate}.yaml"
            file.write_text(SWEEP.format(repetitions=given.repetitions, batches=given.batches))
            kept = (given.keep or folder).resolve()
            found = compared(cluster.sweep(max(NODES), file, kept / rate))
            print(json.dumps({rate: found}), file=sys.stderr)
            rows += [{"rate": rate, **row} for row in found]
    report = {
        "command": "python -m benchmarks.prediction "
        f"--repetitions {given.repetitions} --batches {given.batches}",
        "machine": machine(),
        "load_before": load_before,
        "repetitions": given.repetitions,
        "batches": given.batches,
        "rows": rows,
    }
    (RESULTS / "prediction.json").write_text(json.dumps(report, indent=1) + "\n")
    (RESULTS / "prediction.md").write_text(as_markdown(report))
    print(as_markdown(report))
    return EXIT_DONE if worst_pct(rows) <= WITHIN_PCT else EXIT_FAILED


if __name__ == "__main__":
    run_command(main)
