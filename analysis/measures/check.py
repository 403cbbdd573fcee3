"""Slow nodes of an allocation, by what ``jobs.check`` measured on each of them.

In each round, all nodes were measured at the same time; if nodes are alike, a round's values are exchangeable
between them. The statistic of the permutation test is the largest mean distance of a node below the median of
its round, in logarithms. The slowest node is tested first; if it is named, the others are tested without it
(step-down maxT: Westfall and Young 1993). If all nodes are alike, one is named in 5 % of checks, over all
figures together. Three nodes are needed: of two, it is unknown which is slow.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd

from analysis.display.metrics import NODE, Metric, filled
from analysis.display.output import Answer, Part
from analysis.estimates import SEED, SIGNIFICANCE
from analysis.frames.measure import measure
from jobs import store
from jobs.store import Check, CheckedRank
from profiling.errors import UserError
from profiling.findings import Finding

FEWEST = 3  # nodes
LEAST_PCT = 5.0  # below the median: less is no reason to leave a node out
_ORDERS = 1999  # random ones
_TINY = 1e-9  # values that are equal but for their last digits

# figure -> what it is called, the rank's record of it, in which unit, and its meaning; a link is of a node
FIGURES = {
    "gemm_tflops_per_s": ("matrix product", "gemm_flops_per_s", 1e12, "matrix product of the slowest GPU"),
    "copy_gb_per_s": ("copy in memory", "copy_bytes_per_s", 1e9, "read and written, on the slowest GPU"),
    "steps_per_s": ("training step", "steps_per_s", 1, "steps of the slowest GPU, without an exchange"),
    "link_gb_per_s": ("link", "", 1e9, "bus bandwidth of allreduces with one other node, median"),
}
METRICS = (
    NODE,
    Metric("slow", "quantities in which it is slow", text=True, key=True),
    *(Metric(name, meaning, priority=2) for name, (*_, meaning) in FIGURES.items()),
    *(Metric(f"{name}_below_pct", "below the median of all nodes", table=False) for name in FIGURES),
    *(Metric(f"{name}_p_value", "p-value, for all nodes and figures", table=False) for name in FIGURES),
)
COLUMNS = {"Columns, one row per node:": METRICS}
_TOGETHER = (
    Metric("size", "bytes", "bytes", key=True),
    Metric("all_ms", "duration of an allreduce of all nodes", "all nodes\nms"),
    Metric("all_gb_per_s", "its bus bandwidth, as in nccl-tests", "all nodes\nGB/s"),
    Metric("pairs_gb_per_s", "of pairs of nodes, median", "pairs,\nmedian GB/s"),
    Metric("least_gb_per_s", "of the slowest pair", "slowest\npair GB/s"),
)


@dataclass(frozen=True)
class Checked:
    """What a check found; to an answer also what it is of."""

    path: Path
    check: Check
    findings: Sequence[Finding] = ()
    missing = ()
    on_cpus = False


def load(path: Path) -> Checked:
    """The result in a folder, or that file; UserError: it is none, or damaged."""
    file = path / store.CHECK if path.is_dir() else path
    if not file.is_file():
        raise UserError(f"{path} holds no {store.CHECK}: python -m jobs.check makes one")
    return Checked(path, store.read_record(file, Check))


@measure(COLUMNS)
def check(checked: Checked) -> Answer:
    """A row a node, the slow ones first."""
    found = checked.check
    ranks_of = {rank.node: [one for one in found.ranks if one.node == rank.node] for rank in found.ranks}
    nodes = list(ranks_of)
    frame = pd.DataFrame({"node": nodes})
    slow: dict[str, list[str]] = {node: [] for node in nodes}
    verdict, chance = [], []
    rounds = _rounds(found, ranks_of)
    for name, values in rounds.items():
        frame[name] = np.median(values, axis=0)
        if len(nodes) < FEWEST:
            continue
        what, (below, p_value, least) = FIGURES[name][0], slowness(values, len(rounds))
        frame[f"{name}_below_pct"], frame[f"{name}_p_value"] = below, p_value
        chance.append(f"{what} {least:.2g} %")
        for node, pct, p in zip(nodes, below, p_value, strict=True):
            if p <= SIGNIFICANCE and pct >= LEAST_PCT:
                slow[node].append(what)
                data = {"what": what, "nodes": [node], "pct": pct, "n": len(nodes)}
                verdict.append(Finding("node_slow", data=data))
    if len(nodes) < FEWEST:
        why = f"nodes: {len(nodes)} of at least {FEWEST}"
        verdict = [Finding("uncertain", data={"figure": "slow nodes", "why": why})]
    frame["slow"] = [", ".join(of) for of in slow.values()]
    frame = frame.sort_values("slow", key=lambda text: text == "", kind="stable", ignore_index=True)
    frame = frame.reindex(columns=[metric.name for metric in METRICS])
    shown = filled([metric for metric in METRICS if metric.table], frame)
    title = f"{found.device}, {found.precision}, ranks: {len(found.ranks)}, measured in {found.seconds:.0f} s"
    caption = "May be chance (family-wise error 5 %): differences below " + ", ".join(chance) + "."
    parts = [Part(title, frame, shown, caption if chance else "")]
    if len(sizes := pd.DataFrame(_together(found))):
        parts.append(Part("Allreduce", sizes, filled(_TOGETHER, sizes)))
    return Answer(frame, METRICS, parts, verdict=verdict, regressed=any(slow.values()))


def _rounds(found: Check, ranks_of: Mapping[str, Sequence[CheckedRank]]) -> dict[str, np.ndarray]:
    """Each figure that is known, shape (rounds, nodes): of a node's slowest rank, or its links' median."""
    rounds = {}
    largest = max((pair.size for pair in found.pairs), default=0)
    links = [pair for pair in found.pairs if pair.size == largest]
    for name, (_, record, unit, _) in FIGURES.items():
        if record:
            of = [np.min([getattr(one, record) for one in ranks], axis=0) for ranks in ranks_of.values()]
        elif links:
            every = ([pair.bus_bytes_per_s for pair in links if node in pair.nodes] for node in ranks_of)
            of = [np.median(of_node, axis=0) for of_node in every]
        else:
            continue
        rounds[name] = np.stack(of, axis=1) / unit
    return rounds


def _together(found: Check) -> list[dict[str, float]]:
    """Rows of :data:`_TOGETHER`."""
    rows, ranks = [], len(found.ranks)
    for link in found.together:
        bus = float(np.median(link.bus_bytes_per_s))
        pairs = [float(np.median(pair.bus_bytes_per_s)) for pair in found.pairs if pair.size == link.size]
        row = {"size": link.size, "all_gb_per_s": bus / 1e9}
        row["all_ms"] = 1e3 * link.size * 2 * (ranks - 1) / ranks / bus
        if pairs:
            row |= {"pairs_gb_per_s": float(np.median(pairs)) / 1e9, "least_gb_per_s": min(pairs) / 1e9}
        rows.append(row)
    return rows


def slowness(values: np.ndarray, tests: int = 1) -> tuple[np.ndarray, np.ndarray, float]:
    """How far each node is below the median, %, its p-value, and from where on it would be significant, %.

    ``values``: positive, (rounds, nodes); ``tests``: figures for which p is corrected (Bonferroni).
    """
    logs = np.log(values)
    generator = np.random.default_rng(SEED)
    below = np.median(logs, axis=1, keepdims=True) - logs
    p_value, left, before, least = np.ones(logs.shape[1]), list(range(logs.shape[1])), 0.0, math.nan
    while len(left) >= FEWEST:
        part = np.median(logs[:, left], axis=1, keepdims=True) - logs[:, left]
        null = generator.permuted(np.tile(part, (_ORDERS, 1, 1)), axis=2).mean(axis=1).max(axis=1)
        least = float(np.quantile(null, 1 - SIGNIFICANCE / tests))
        reached = (null[:, None] >= part.mean(axis=0) - _TINY).sum(axis=0)
        p_value[left] = np.clip(tests * (1 + reached) / (1 + _ORDERS), before, 1)
        slowest = int(np.argmax(part.mean(axis=0)))
        before = float(p_value[left[slowest]])
        if before > SIGNIFICANCE:
            break
        del left[slowest]
    return -100 * np.expm1(-below.mean(axis=0)), p_value, -100 * math.expm1(-least)
