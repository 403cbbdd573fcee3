"""python -m benchmarks.prediction_coverage: how often do the ranges of analysis.predict hold the truth?

Sweeps of clusters whose truth is known (benchmarks/planted_cluster.py), of every kind below, 2 to 4 points
with 1 to 3 runs, runs that differ by 0.3 to 3 % (standard deviation), weak and strong scaling. Each is
predicted at 2, 4 and 8 times its largest point, by curve and by simulation, and compared with what so many
ranks take. A range that spans more than a factor of 3, or links that were never seen, is refused.

    ring              latency 5 to 50 us, 1 to 40 GB/s
    hidden            a ring whose exchange the backward pass hides on the measured ranks, or nearly
    halving, tree, binomial   other forms of the exchange
    two levels        nodes of 4: 100 GB/s in them, 5 to 25 GB/s between them
    ring over nodes   the same links, one ring
    shared links      bandwidth is shared by more ranks than half of the largest point, seen on two sizes or
                      more
    fading links      a ring that loses 3 to 10 % of its bandwidth with every doubling: no form that is tried
    mixed             a tree for buckets below 20 MB, a ring above: no form that is tried
    slow rank         rank 1 computes 5 to 25 % longer
    random lateness   any rank is 15 ms late in 2 to 6 % of its batches
    contention ahead  bandwidth halves beyond the measured points: nothing measured can say so
    one node          measured on one node, asked for several
"""

import argparse
import zlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from analysis.display.metrics import records
from analysis.prediction.allreduce import FLAT, Layout
from analysis.prediction.configurations import of_points
from analysis.prediction.predict import CURVE, predictions
from analysis.prediction.simulation import SIMULATION
from benchmarks.child import facts, machine, write
from benchmarks.planted_cluster import Allreduce, Cluster, links, measured, truth_ms
from profiling.errors import EXIT_DONE, run_command

SIZES = {2: (1, 4), 3: (1, 2, 4), 4: (1, 2, 4, 8)}
NODES_OF_4 = {2: (4, 8), 3: (1, 4, 8), 4: (1, 4, 8, 16)}
FORMS = [form.name for form in FLAT]
AHEAD = (2, 4, 8)
UNKNOWABLE = ("contention ahead", "one node")


def _flat(form: str, alpha_us: float, gb_per_s: float) -> Allreduce:
    return links(form, (alpha_us,), (gb_per_s,))


def planted(kind: str, generator: np.random.Generator, largest: int) -> dict[str, Any]:
    """What is planted of a cluster of a kind, by chance."""
    alpha = float(np.exp(generator.uniform(np.log(5), np.log(50))))
    beta = float(np.exp(generator.uniform(np.log(1), np.log(40))))
    plain = _flat("ring", alpha, beta)
    if kind == "hidden":
        # 100 MB over 0.6 to 1 of a backward pass of 55 ms on the largest measured point.
        volume = 2 * (largest - 1) / largest * 0.1 / (generator.uniform(0.6, 1.0) * 0.055)
        return {"allreduce": _flat("ring", alpha, volume)}
    if kind in FORMS:
        return {"allreduce": _flat(kind, alpha, beta)}
    if kind in ("two levels", "ring over nodes"):
        form = "two-level ring" if kind == "two levels" else kind
        between = generator.uniform(5, 25)
        return {"allreduce": links(form, (5.0, alpha), (100.0, between)), "gpus_per_node": 4}
    if kind in ("shared links", "contention ahead"):
        free = largest if kind == "contention ahead" else largest / 2
        slow = _flat("ring", alpha, beta / 2)

        def shared(size: float, layout: Layout) -> float:
            if layout.ranks <= free:
                return plain(size, layout)
            if kind == "contention ahead":
                return slow(size, layout)
            return _flat("ring", alpha, beta * free / layout.ranks)(size, layout)

        return {"allreduce": shared}
    if kind == "fading links":
        lost = generator.uniform(0.03, 0.10)

        def fading(size: float, layout: Layout) -> float:
            return _flat("ring", alpha, beta * (1 - lost) ** np.log2(layout.ranks))(size, layout)

        return {"allreduce": fading}
    if kind == "mixed":
        small = _flat("tree", alpha, beta)
        return {"allreduce": lambda size, layout: (small if size < 2e7 else plain)(size, layout)}
    if kind == "slow rank":
        return {"allreduce": plain, "slow": {1: generator.uniform(1.05, 1.25)}}
    if kind == "random lateness":
        return {"allreduce": plain, "stray": generator.uniform(0.02, 0.06)}
    if kind == "one node":
        cost = links("two-level ring", (5.0, alpha), (100.0, generator.uniform(1, 5)))
        return {"allreduce": cost, "gpus_per_node": largest}
    return {"allreduce": plain}


KINDS = (
    "ring", "hidden", "halving", "tree", "binomial", "two levels", "ring over nodes", "shared links",
    "fading links", "mixed", "slow rank", "random lateness", *UNKNOWABLE,
)  # fmt: skip


def one_case(kind: str, strong: bool, seed: int) -> Iterable[dict[str, Any]]:
    """What is said of one cluster, a row a method and number of ranks."""
    generator = np.random.default_rng(zlib.crc32(f"{kind} {strong}".encode()) + seed)
    fewest = 3 if kind == "shared links" else 2
    points, runs = int(generator.integers(fewest, 5)), int(generator.integers(1, 4))
    sizes = (NODES_OF_4 if kind in ("two levels", "ring over nodes") else SIZES)[points]
    noise = float(np.exp(generator.uniform(np.log(0.003), np.log(0.03))))
    cluster = Cluster(**planted(kind, generator, sizes[-1]), run_noise=noise, strong=strong)
    found, steps = measured(cluster, sizes, runs, seed)
    # The truth of one node asked for several is what the cluster's nodes hold.
    if kind == "one node":
        found = of_points(found.points, strong, cluster.gpus_per_node)
    wanted = [sizes[-1] * times for times in AHEAD]
    frame, _ = predictions([found], [steps], wanted)
    said = {(row["predicted_by"], row["world_size"]): row for row in records(frame) if not row["backtest"]}
    for ranks in wanted:
        true = truth_ms(cluster, ranks)
        for method in (CURVE, SIMULATION):
            row = said.get((method, ranks))
            base = {"kind": kind, "strong": strong, "method": method, "times": ranks // sizes[-1],
                    "points": points, "runs": runs, "noise": noise, "refused": row is None}  # fmt: skip
            if row is None:
                yield base
                continue
            low, high = row["step_ms_low"], row["step_ms_high"]
            yield base | {
                "holds": low <= true <= high,
                "width_pct": 100 * (high / low - 1),
                "error_pct": 100 * (row["step_ms"] / true - 1),
            }


def summed(rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Of some cases: shares in percent, medians."""
    told = [row for row in rows if not row["refused"]]
    return {
        "cases": len(rows),
        "refused_pct": 100 * (1 - len(told) / len(rows)),
        "holds_pct": 100 * float(np.mean([row["holds"] for row in told])) if told else None,
        "width_pct": float(np.median([row["width_pct"] for row in told])) if told else None,
        "error_pct": float(np.median([abs(row["error_pct"]) for row in told])) if told else None,
    }


def tables(rows: Sequence[Mapping[str, Any]]) -> dict[str, list[dict[str, Any]]]:
    """By kind; then, of what can be known, by distance, points, runs and noise."""
    known = [row for row in rows if row["kind"] not in UNKNOWABLE]
    groups: dict[str, tuple[Sequence[Mapping[str, Any]], Callable[[Mapping[str, Any]], Any]]] = {
        "kind": (rows, lambda row: row["kind"]),
        "times the largest point": (known, lambda row: row["times"]),
        "points": (known, lambda row: row["points"]),
        "runs of a point": (known, lambda row: row["runs"]),
        "runs differ by": (known, lambda row: "up to 1 %" if row["noise"] < 0.01 else "1 to 3 %"),
        "all but what nothing measured can say": (known, lambda row: "all"),
    }  # fmt: skip
    made = {}
    for name, (of, key) in groups.items():
        made[name] = [
            {"what": value, "scaling": "strong" if strong else "weak", "method": method, **summed(members)}
            for value in dict.fromkeys(map(key, of))
            for strong in (False, True)
            for method in (CURVE, SIMULATION)
            if (members := [row for row in of if (key(row), row["strong"], row["method"]) ==
                            (value, strong, method)])
        ]  # fmt: skip
    return made


def as_markdown(report: Mapping[str, Any]) -> str:
    lines = [
        "# Do ranges of predictions hold the truth?", "",
        f"`{report['command']}`: planted clusters, {report['cases']} of each kind and scaling,",
        "predicted at 2, 4 and 8 times the largest measured point. The machine:",
        f"{facts(report['machine'])}.", "",
        "Width: high over low, less one. Error: of the estimate. Medians, of what was not refused.", "",
    ]  # fmt: skip
    for name, rows in report["tables"].items():
        lines += [
            f"| {name} | scaling | method | predictions | refused, % | holds the truth, % | width, % "
            "| error, % |",
            "| --- | --- | --- | --: | --: | --: | --: | --: |",
        ]
        for row in rows:
            figures = [row["refused_pct"], row["holds_pct"], row["width_pct"], row["error_pct"]]
            cells = ["" if value is None else f"{value:.3g}" for value in figures]
            lines.append(f"| {row['what']} | {row['scaling']} | {row['method']} | {row['cases']} | "
                         f"{' | '.join(cells)} |")  # fmt: skip
        lines.append("")
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.prediction_coverage", description=__doc__)
    parser.add_argument("--cases", type=int, default=15, help="of each kind and scaling [15]")
    parser.add_argument("--kinds", default=",".join(KINDS), help="of these only [all]")
    given = parser.parse_args()
    kinds = given.kinds.split(",")
    rows = [
        row
        for kind in kinds
        for strong in (False, True)
        for seed in range(given.cases)
        for row in one_case(kind, strong, seed)
    ]
    report = {
        "command": f"python -m benchmarks.prediction_coverage --cases {given.cases}",
        "cases": given.cases, "machine": machine(["numpy", "scipy"]), "tables": tables(rows),
    }  # fmt: skip
    if kinds == list(KINDS):
        write("prediction_coverage", report, as_markdown(report))
    else:
        print(as_markdown(report))
    return EXIT_DONE


if __name__ == "__main__":
    run_command(main)
