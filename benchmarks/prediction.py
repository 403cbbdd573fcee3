"""python -m benchmarks.prediction: is a step on 4 nodes what a simulation from 1 and 2 nodes says?

On the virtual cluster (slurm/virtual_cluster.sh) every node's link is limited by the kernel (tc tbf). A sweep
trains SqueezeNet with DDP on 1, 2 and 4 nodes, a rank each, gradients in fp32 and fp16, and is traced on 1
and 2. From these analysis.predict says what 4 give: by a curve, and by the simulation of the step. What fp16
gradients would give on 4 nodes is also asked of the fp32 runs alone. All is compared with what 4 nodes gave.

The nodes share this machine's cores: on 4 of them computing is slower than on 2, which nothing that ran on 2
can say. Where the link is what a step waits for, that matters little.

Beside it stands the same question asked of what benchmarks.network has measured (results/network.json): four
nodes from a step on two nodes with unlimited links and from allreduces alone between two nodes.

    python -m benchmarks.prediction                             (as root, with Slurm)
    python -m benchmarks.prediction --keep DIR --compare        sweeps that are in DIR already
"""

import argparse
import json
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from analysis.display.metrics import records
from analysis.display.numbers import plain
from analysis.frames.load import load
from analysis.prediction import configurations
from analysis.prediction.allreduce import Cost, Layout, ring
from analysis.prediction.configurations import of_points
from analysis.prediction.predict import predictions
from analysis.prediction.simulation import SIMULATION, Model, simulate
from analysis.prediction.traced_step import Step, traced
from benchmarks import network
from benchmarks.child import RESULTS, facts, write
from benchmarks.training import machine
from benchmarks.virtual import virtual_cluster
from profiling.errors import EXIT_DONE, EXIT_FAILED, UserError, run_command

NODES = (1, 2, 4)
RATES = ["50mbit", "100mbit"]  # slow enough that a step waits for them
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
    because: 1 rank sends no gradients
  - when: {{world_size: 4, profile: torch}}
    because: what 4 nodes give is predicted from 1 and 2
"""
KEPT = (
    "world_size", "predicted_by", "what_if", "images_per_s", "images_per_s_low", "images_per_s_high",
    "step_ms", "measured_images_per_s", "error_pct", "measured_on", "fit_error_pct", "buckets", "exposed_ms",
    "alpha_us", "beta_gb_per_s",
)  # fmt: skip


def measure(keep: Path | None, repetitions: int, batches: int) -> dict[str, Path]:
    """The directories of the sweeps on links of each rate."""
    found = {}
    with virtual_cluster(max(NODES)) as (cluster, folder):
        kept = (keep or Path(tempfile.mkdtemp(prefix="prediction-"))).resolve()
        for rate in RATES:
            cluster.control("shape", rate)
            file = folder / f"prediction-{rate}.yaml"
            file.write_text(SWEEP.format(repetitions=repetitions, batches=batches))
            found[rate] = cluster.sweep(max(NODES), file, kept / rate)
            print(f"{rate}: {found[rate]}", file=sys.stderr)
    return found


def compared(directory: Path) -> list[dict[str, Any]]:
    """What is predicted of the most ranks of a sweep from fewer, and what they gave."""
    study = load(directory)
    found = configurations.of_study(study)
    steps = [[traced(study, point) for point in one.points] for one in found]
    kept = [
        row for row in records(predictions(found, steps, [])[0])
        if row["backtest"] and row["world_size"] == max(NODES)
    ]  # fmt: skip
    by_grad = {one.fields["grad"]: number for number, one in enumerate(found)}
    fp32, fp16 = (found[by_grad[grad]] for grad in ("fp32", "fp16"))
    fewer, steps_of_fewer = of_points(fp32.points[:-1]), steps[by_grad["fp32"]][:-1]
    what_if = records(predictions([fewer], [steps_of_fewer], [max(NODES)], [WHAT_IF])[0])[-1]
    measured = fp16.points[-1]["images_per_s"]
    error = 100 * (what_if["images_per_s"] / measured - 1)
    kept.append(what_if | {"measured_images_per_s": measured, "error_pct": error})
    timed = {one.fields["grad"]: one.points[-1]["timed"] for one in found}
    runs = {grad: [series.images_per_s for _, series in of] for grad, of in timed.items()}
    of_grad = ["fp16" if row["what_if"] else row["grad"] for row in kept]
    return [
        {"grad": row["grad"], **{name: plain(row.get(name)) for name in KEPT}, "measured_runs": runs[grad]}
        for row, grad in zip(kept, of_grad, strict=True)
    ]


def of_network(measured: Mapping[str, Any]) -> list[dict[str, Any]]:
    """DDP on four nodes of benchmarks.network by the simulation, from what it measured on two.

    The step is that of two nodes with unlimited links, what its allreduce costs there taken off; it has one
    bucket, ready when the backward pass is done. alpha and beta of a ring of two are halves of the timings'.
    """
    rows = {
        (row["rate"], row["nodes"], row["grad"]): row for row in measured["rows"] if row["backend"] == "ddp"
    }
    costs = {rate: _ring_of_two(of["2"]) for rate, of in measured["models"].items()}
    made = []
    for (rate, nodes, grad), row in rows.items():
        if rate == network.UNLIMITED or nodes != max(NODES):
            continue
        size = float(network.PARAMETERS * network.BYTES[grad])
        whole = 1e6 * rows[network.UNLIMITED, 2, grad]["step_ms"]
        alone = whole - float(costs[network.UNLIMITED].allreduce_ns(size, Layout(2))[0])
        elements = np.array([network.PARAMETERS])
        step = Step(0, 0, alone, 0, np.array([alone]), elements, True, np.array([alone]), np.zeros(1))
        model = Model(step, costs[rate], network.BYTES[grad], 25.0, stragglers=False)
        predicted = float(simulate(model, Layout(nodes)).step_ns[0]) / 1e6
        error = 100 * (row["step_ms"] / predicted - 1)
        made.append({
            "rate": rate, "grad": grad, "step_ms": predicted, "measured_step_ms": row["step_ms"],
            "error_pct": error,
        })  # fmt: skip
    return made


def _ring_of_two(timings: Sequence[float]) -> Cost:
    """A ring's alpha and beta from T(n) = a + n / b between two: a is two messages, n / b is all bytes."""
    a, b = timings
    return ring(1e9 * a / 2, 1e9 / b)


def as_markdown(report: Mapping[str, Any]) -> str:
    """The report as a table for people."""
    lines = [
        "# Four nodes, predicted from one and two", "",
        f"{facts(report['machine'])}. SqueezeNet 1.1, batch 2 of 32 px a rank, buckets of "
        f"1 MiB, {report['batches']} steps, {report['repetitions']} repetitions. All nodes share this "
        "machine's cores, and links are limited.", "", f"    {report['command']}", "",
        "| link | gradients | by | images/s on 4 (range) | measured (runs) | error, % | on 2, error, % "
        "| beta, MB/s |",
        "| --- | --- | --- | ---: | ---: | ---: | ---: | ---: |",
    ]  # fmt: skip
    for row in report["rows"]:
        by = f"{row['predicted_by']}, what if {row['what_if']}" if row["what_if"] else row["predicted_by"]
        rate = f"{row['images_per_s']:.1f} ({_range(row)})"
        fit = "" if row["fit_error_pct"] is None else f"{row['fit_error_pct']:+.1f}"
        beta = "" if row["beta_gb_per_s"] is None else f"{1e3 * row['beta_gb_per_s']:.1f}"
        runs = ", ".join(f"{one:.1f}" for one in row["measured_runs"])
        cells = [row["rate"], row["grad"], by, rate, f"{row['measured_images_per_s']:.1f} ({runs})"]
        lines.append(f"| {' | '.join(cells)} | {row['error_pct']:+.1f} | {fit} | {beta} |")
    lines += [
        "", "From benchmarks.network's figures (results/network.json), DDP, one bucket:", "",
        "| link | gradients | step on 4, ms | measured | images/s, error, % |",
        "| --- | --- | ---: | ---: | ---: |",
    ]  # fmt: skip
    for row in report["of_network"]:
        steps = f"{row['step_ms']:.0f} | {row['measured_step_ms']:.0f}"
        lines.append(f"| {row['rate']} | {row['grad']} | {steps} | {row['error_pct']:+.1f} |")
    return "\n".join(lines) + "\n"


def _range(row: Mapping[str, Any]) -> str:
    """Of a prediction; a curve may have no upper limit."""
    low, high = row["images_per_s_low"], row["images_per_s_high"]
    return f"{low:.1f} or more" if high is None else f"{low:.1f} to {high:.1f}"


def worst_pct(rows: Sequence[Mapping[str, Any]]) -> float:
    """The largest error of a simulation, in percent."""
    return max(abs(row["error_pct"]) for row in rows if row["predicted_by"] == SIMULATION)


def main() -> int:
    """The command; exit code 1 if a simulation is off by more than 10 %."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.prediction", description=__doc__)
    parser.add_argument("--repetitions", type=int, default=3)
    parser.add_argument("--batches", type=int, default=16)
    parser.add_argument("--keep", type=Path, help="folder of the sweeps; those that are there are resumed")
    parser.add_argument("--compare", action="store_true", help="only compare what is in --keep")
    given = parser.parse_args()
    if given.compare and not given.keep:
        raise UserError("--compare needs --keep DIR, where the sweeps are")
    where = machine()
    directories = (
        {rate: given.keep / rate / f"prediction-{rate}" for rate in RATES}
        if given.compare
        else measure(given.keep, given.repetitions, given.batches)
    )
    rows = [{"rate": rate, **row} for rate, directory in directories.items() for row in compared(directory)]
    report = {
        "command": "python -m benchmarks.prediction "
        f"--repetitions {given.repetitions} --batches {given.batches}",
        "machine": where,
        "repetitions": given.repetitions,
        "batches": given.batches,
        "rows": rows,
        "of_network": of_network(json.loads((RESULTS / "network.json").read_text())),
    }
    write("prediction", report, as_markdown(report))
    return EXIT_DONE if worst_pct(rows) <= WITHIN_PCT else EXIT_FAILED


if __name__ == "__main__":
    run_command(main)
