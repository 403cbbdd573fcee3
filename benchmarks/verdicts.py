"""python -m benchmarks.verdicts: which cause does the report's opening name first, of causes that are planted?

Each sweep is of 1 and 8 ranks, three runs without a profiler and one under it, with the noise of real runs
(benchmarks/planted_sweep.py). A cause of 20 % makes a batch on 8 ranks take 20 % longer than without it. A
row counts what the opening names first: the planted cause, another one, or none.
"""

import argparse
import tempfile
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from analysis.load import load
from analysis.report.build import opening
from analysis.sentences import Sentence
from benchmarks.child import facts, machine, write
from benchmarks.planted_sweep import Job, Network, Noise, strength, write_sweep
from profiling.errors import EXIT_DONE, run_command

SIZES_PCT = (1.0, 4.0, 20.0)
NONE = "none"
JOB = Job()
ON_ONE = replace(JOB, slow=(3,))
ON_NODE = replace(JOB, nodes=2, slow=(4, 5, 6, 7))
STRONG = 8 * JOB.batch  # images of the job's batch, where that is constant


@dataclass(frozen=True)
class Plant:
    """A cause: the job with it at any strength, and what the opening should call it (the first, the next)."""

    job: Callable[[float], Job]
    named: tuple[str, ...]
    base_batch: int = JOB.batch


PLANTS = {
    "slow GPU": Plant(lambda x: replace(ON_ONE, gpu=x), ("rank: GPU",)),
    "slow host": Plant(lambda x: replace(ON_ONE, host_ms=x), ("rank: host",)),
    "slow loader, one rank": Plant(lambda x: replace(ON_ONE, load_ms=x), ("rank: loader",)),
    "slow loader, all ranks": Plant(lambda x: replace(JOB, all_load_ms=x), ("loader",)),
    "slow node": Plant(lambda x: replace(ON_NODE, gpu=x), ("node",)),
    "thin links": Plant(lambda x: replace(JOB, network=Network(beta_gb_per_s=200 / (1 + x))), ("bandwidth",)),
    "high latency": Plant(lambda x: replace(JOB, network=Network(alpha_us=5 + x)), ("latency",)),
    "small batch": Plant(lambda x: replace(JOB, fixed=x), ("small batch",), STRONG),
    "launches": Plant(lambda x: replace(JOB, host_ms=x), ("launches",)),
    "copies": Plant(lambda x: replace(JOB, copies_ms=x), ("copies",)),
    "slow GPU, and loader on all": Plant(
        lambda x: replace(ON_ONE, gpu=x, all_load_ms=60 * x), ("rank: GPU", "loader")
    ),
    "thin links, and copies": Plant(
        lambda x: replace(JOB, network=Network(beta_gb_per_s=200 / (1 + 100 * x)), copies_ms=20 * x),
        ("bandwidth", "copies"),
    ),
}


def sentences_of(plant: Plant, size_pct: float, seed: int, directory: Path, **more: Any) -> list[Sentence]:
    """The opening of a sweep with a cause of that size, written into ``directory``.

    Args:
        more: of :func:`benchmarks.planted_sweep.write_sweep`.
    """
    job = plant.job(strength(plant.job, size_pct / 100) if size_pct else 0.0)
    base = replace(JOB, ranks=1, batch=plant.base_batch)
    write_sweep(directory, [base, job], seed, **more)
    return opening(load(directory))


def named(sentences: Iterable[Sentence]) -> list[str]:
    """The causes that an opening names, the first one first."""
    return list(dict.fromkeys(sentence.cause for sentence in sentences if sentence.cause))


def cell(name: str, size_pct: float, seeds: range) -> dict[str, Any]:
    """What is named first, and whether a second planted cause is next; how many of the seeds."""
    plant = PLANTS.get(name, Plant(lambda _: JOB, ()))
    first: Counter[str] = Counter()
    next_one = 0
    for seed in seeds:
        with tempfile.TemporaryDirectory() as folder:
            found = named(sentences_of(plant, size_pct, seed, Path(folder)))
        first[found[0] if found else NONE] += 1
        next_one += len(plant.named) > 1 and tuple(found[:2]) == plant.named
    right = first[plant.named[0]] if plant.named else first[NONE]
    wrong = len(seeds) - right - (first[NONE] if plant.named else 0)
    row = {"planted": name, "size_pct": size_pct, "sweeps": len(seeds), "right": right, "wrong": wrong}
    return row | {"next": next_one if len(plant.named) > 1 else None, "first": dict(first.most_common())}


def as_markdown(report: dict[str, Any]) -> str:
    lines = [
        "# Does the opening name the cause?", "",
        "`python -m benchmarks.verdicts`: sweeps of 1 and 8 ranks with a planted cause that makes a batch on 8",
        "ranks so much longer, by what the report's opening names first. The machine:",
        f"{facts(report['machine'])}.", "",
        f"Noise: {', '.join(f'{name} {value:g}' for name, value in report['noise'].items())} (shares; "
        "`benchmarks/planted_sweep.py`).", "",
        "| planted | size, % | sweeps | right | wrong | none | named first |",
        "| --- | --: | --: | --: | --: | --: | --- |",
    ]  # fmt: skip
    for row in report["rows"]:
        said = ", ".join(f"{name} {count}" for name, count in row["first"].items())
        none = row["sweeps"] - row["right"] - row["wrong"]
        said += f"; and next, as planted, {row['next']}" if row["next"] is not None else ""
        lines.append(
            f"| {row['planted']} | {row['size_pct']:g} | {row['sweeps']} | {row['right']} | {row['wrong']} | "
            f"{none} | {said} |"
        )
    return "\n".join([*lines, ""])


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.verdicts", description=__doc__)
    parser.add_argument("--seeds", type=int, default=5, help="sweeps of each cause and size [5]")
    parser.add_argument("--only", default="", help="causes whose name holds this [all]")
    given = parser.parse_args()
    rows = [] if given.only else [cell("nothing", 0.0, range(100, 100 + 6 * given.seeds))]
    for name in PLANTS:
        if given.only in name:
            rows += [cell(name, size_pct, range(given.seeds)) for size_pct in SIZES_PCT]
    report = {"machine": machine(["numpy"]), "noise": asdict(Noise()), "rows": rows}
    if given.only:
        print(as_markdown(report))
    else:
        write("verdicts", report, as_markdown(report))
    return EXIT_DONE


if __name__ == "__main__":
    run_command(main)
