"""python -m benchmarks.network: how do slow links and fp16 gradients change the scaling of a small model?

On the virtual cluster (slurm/virtual_cluster.sh) every node's link is limited by the kernel (tc tbf). A sweep
trains SqueezeNet on 1, 2 and 4 nodes, a rank each, with DDP and with Horovod, gradients in fp32 and fp16.
Beside it stands the alpha-beta model: an allreduce of n bytes takes alpha + n / beta, fitted to timings of
allreduces alone on the same links. What a link adds to a step is its duration less that on unlimited links,
where the same ranks share the same cores; the model says what communication alone would add.

    python -m benchmarks.network          (as root, with Slurm and Horovod)
"""

import argparse
import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from analysis.display.numbers import plain
from analysis.frames.load import load
from analysis.measures import scaled
from benchmarks.child import facts, write
from benchmarks.training import machine
from benchmarks.virtual import Cluster, virtual_cluster
from profiling.errors import EXIT_DONE, EXIT_FAILED, run_command

NODES, UNLIMITED = (1, 2, 4), "off"
RATES = ["100mbit", "400mbit", UNLIMITED]
PARAMETERS = 1_235_496  # of squeezenet1_1
BYTES = {"fp32": 4, "fp16": 2}  # of a gradient on the wire
MESSAGES = {"ddp": 2, "horovod": 1}  # buckets of a batch: DDP's first holds 1 MB, Horovod fuses all
SWEEP = """
repetitions: {repetitions}
time_limit_s: 300
run:
  nodes: {nodes}
  network: eth
  threads: 1
  model: squeezenet1_1
  loader: synthetic
  batch: 2
  image_size: 32
  batches: {batches}
  backend: [ddp, horovod]
  grad: [fp32, fp16]
exclude:
  - when: {{world_size: 1, grad: fp16}}
    because: 1 rank sends no gradients
"""


def probe(cluster: Cluster, ranks: int) -> dict[int, float]:
    """Bytes -> seconds of an allreduce between so many nodes."""
    srun = ["srun", f"--nodes={ranks}", f"--ntasks={ranks}", sys.executable]
    said = cluster.control("exec", *srun, "-m", "benchmarks.allreduce_probe")
    return {int(size): seconds for size, seconds in json.loads(said.splitlines()[-1]).items()}


def alpha_beta(probe: Mapping[int, float]) -> tuple[float, float]:
    """(alpha in s, beta in bytes/s) of T(n) = alpha + n / beta, with least relative squares."""
    sizes, seconds = np.array(list(probe)), np.array(list(probe.values()))
    columns = np.stack([1 / seconds, sizes / seconds], axis=1)
    alpha, per_byte = np.linalg.lstsq(columns, np.ones(len(sizes)), rcond=None)[0]
    return max(float(alpha), 0.0), 1 / max(float(per_byte), 1e-12)


def of_rate(cluster: Cluster, rate: str, folder: Path, repetitions: int, batches: int) -> dict[str, Any]:
    """What was measured on links of one rate: allreduces alone, and a sweep."""
    cluster.control("shape", rate)
    nodes = [count for count in NODES if count > 1 or rate == UNLIMITED]
    file = folder / f"network-{rate}.yaml"
    file.write_text(SWEEP.format(repetitions=repetitions, nodes=nodes, batches=batches))
    models = {count: alpha_beta(probe(cluster, count)) for count in NODES if count > 1}
    directory = cluster.sweep(max(NODES), file, folder / rate)
    rows = scaled.configurations(load(directory)).to_dict("records")
    kept = ("nodes", "backend", "grad", "step_ms", "step_ms_low", "step_ms_high", "images_per_s")
    return {"models": models, "rows": [{name: plain(row[name]) for name in kept} for row in rows]}


def joined(found: Mapping[str, Any]) -> list[dict[str, Any]]:
    """A row a rate and point, with its efficiency and what its link adds, measured and by the model."""
    made = []
    free = {_key(row): row for row in found[UNLIMITED]["rows"]}
    for rate, of in found.items():
        for row in of["rows"]:
            nodes, backend, grad = _key(row)
            base = free[1, backend, "fp32"]["images_per_s"]
            more = {"rate": rate, "efficiency_pct": 100 * row["images_per_s"] / nodes / base}
            if rate != UNLIMITED:
                added = row["step_ms"] - free[nodes, backend, grad]["step_ms"]
                by_model = _model_ms(of["models"][nodes], backend, grad)
                by_model -= _model_ms(found[UNLIMITED]["models"][nodes], backend, grad)
                more |= {"added_ms": added, "model_ms": by_model}
            made.append({**row, **more})
    return made


def _key(row: Mapping[str, Any]) -> tuple[int, str, str]:
    return row["nodes"], row["backend"], row["grad"]


def _model_ms(model: tuple[float, float], backend: str, grad: str) -> float:
    alpha, beta = model
    return 1e3 * (MESSAGES[backend] * alpha + PARAMETERS * BYTES[grad] / beta)


def as_markdown(report: Mapping[str, Any]) -> str:
    """The report as a table for people."""
    lines = [
        "# Scaling on slow links", "",
        f"{facts(report['machine'])}. SqueezeNet 1.1 ({PARAMETERS:,} parameters), batch 2 "
        f"of 32 px a rank, {report['batches']} steps, {report['repetitions']} repetitions. All "
        "nodes share this machine's cores: efficiencies on unlimited links show that, the others the links.",
        "", f"    {report['command']}", "",
        "| link | nodes | backend | gradients | step, ms (95 %) | images/s "
        "| efficiency, % | link adds, ms | alpha-beta, ms |",
        "| --- | ---: | --- | --- | ---: | ---: | ---: | ---: | ---: |",
    ]  # fmt: skip
    for row in report["rows"]:
        known = row["step_ms_low"] is not None  # else it ran once
        interval = f"({row['step_ms_low']:.0f} to {row['step_ms_high']:.0f})" if known else ""
        added = [f"{row[name]:.0f}" if name in row else "" for name in ("added_ms", "model_ms")]
        cells = [
            row["rate"], row["nodes"], row["backend"], row["grad"], f"{row['step_ms']:.0f} {interval}",
            f"{row['images_per_s']:.1f}", f"{row['efficiency_pct']:.1f}", *added,
        ]  # fmt: skip
        lines.append(f"| {' | '.join(str(cell) for cell in cells)} |")
    lines += ["", "Allreduces alone, T(n) = alpha + n / beta:", ""]
    lines += ["| link | nodes | alpha, ms | beta, MB/s |", "| --- | ---: | ---: | ---: |"]
    for rate, models in report["models"].items():
        for nodes, (alpha, beta) in models.items():
            lines.append(f"| {rate} | {nodes} | {alpha * 1e3:.2f} | {beta / 1e6:.1f} |")
    return "\n".join(lines) + "\n"


def fp16_wins(rows: list[dict[str, Any]]) -> bool:
    """Whether fp16 gradients are faster on the slowest link, for each backend and number of nodes."""
    slow = {_key(row): row["step_ms"] for row in rows if row["rate"] == RATES[0]}
    return all(
        slow[nodes, backend, "fp16"] < slow[nodes, backend, "fp32"]
        for nodes, backend, grad in slow
        if grad == "fp32"
    )


def main() -> int:
    """The command; exit code 1 if fp16 gradients do not win on the slowest link."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.network", description=__doc__)
    parser.add_argument("--repetitions", type=int, default=2)
    parser.add_argument("--batches", type=int, default=16)
    given = parser.parse_args()
    where = machine()
    found = {}
    with virtual_cluster(max(NODES)) as (cluster, folder):
        for rate in RATES:
            found[rate] = of_rate(cluster, rate, folder, given.repetitions, given.batches)
            print(json.dumps({rate: found[rate]}), file=sys.stderr)
    report = {
        "command": "python -m benchmarks.network "
        f"--repetitions {given.repetitions} --batches {given.batches}",
        "machine": where,
        "repetitions": given.repetitions,
        "batches": given.batches,
        "models": {rate: of["models"] for rate, of in found.items()},
        "rows": joined(found),
    }
    write("network", report, as_markdown(report))
    return EXIT_DONE if fp16_wins(report["rows"]) else EXIT_FAILED


if __name__ == "__main__":
    run_command(main)
