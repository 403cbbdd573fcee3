"""Simulated recordings of known parts: how often do the intervals of a loss's parts hold the truth?

A part of :mod:`benchmarks.interval_coverage`. One recorded run on 1 rank, without communication, and one on
4, whose exposed communication is transfer and the wait for late ranks. Wait is skewed, and transfer either
knows nothing of it or is long where wait is short, so that their sum is steadier than either.
"""

import itertools
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from analysis.frames import steps as series
from analysis.frames.divide import PARTS, STAGES, WITHIN
from analysis.frames.study import Source
from analysis.measures.loss import parts_of_points, parts_of_run
from analysis.measures.points import points_of_runs
from analysis.measures.scaled import against_base
from benchmarks.coverage_inside_run import correlated
from jobs.run import Run

Rows = list[dict[str, Any]]
COMPUTE_MS, TRANSFER_MS, WAIT_MS, RANKS = 60.0, 20.0, 6.0, 4
STEP_MS = COMPUTE_MS + TRANSFER_MS + WAIT_MS
# What was planted; the last is the sum of the others.
PLANTED_MS = {
    "exposed_transfer": TRANSFER_MS,
    "exposed_wait": WAIT_MS,
    "exposed_communication": TRANSFER_MS + WAIT_MS,
}
_FIELDS = Run.model_validate({"batches": 4, "profile": "torch"}).model_dump()
ALONE, OPPOSED = "apart from wait", "long where wait is short"


def of_loss(cases: int, steps: tuple[int, ...] = (5, 8, 20, 50)) -> Rows:
    """Coverage of transfer, wait and their sum, and whether the sum may be what they cannot be together."""
    made = []
    for way, correlation, count in itertools.product((ALONE, OPPOSED), (0.0, 0.3, 0.8), steps):
        generator = np.random.default_rng(count)
        found = _losses(generator, way, correlation, count, cases)
        row: dict[str, Any] = {
            "transfer": way,
            "correlation of neighbours": correlation,
            "recorded steps": count,
        }
        for name, took_ms in PLANTED_MS.items():
            truth = 100 * took_ms / STEP_MS
            low, high = (found[f"loss_{name}_pct_{end}"] for end in ("low", "high"))
            row[f"{name.removeprefix('exposed_')}, held %"] = 100 * float(
                ((low <= truth) & (truth <= high)).mean()
            )
        width = found["loss_exposed_transfer_pct_high"] - found["loss_exposed_transfer_pct_low"]
        row["transfer, half width, points"] = float(width.median() / 2)
        made.append(row | {"sum beyond its parts, %": 100 * float(beyond(found).mean())})
    return made


def beyond(rows: pd.DataFrame) -> pd.Series:
    """Whether communication may be less, or more, than transfer and wait may be together."""
    low, high = ([rows[f"loss_{name}_pct_{end}"] for name in PLANTED_MS] for end in ("low", "high"))
    return (low[2] < low[0] + low[1] - 1e-9) | (high[2] > high[0] + high[1] + 1e-9)


def _losses(
    generator: np.random.Generator, way: str, correlation: float, count: int, cases: int
) -> pd.DataFrame:
    """The losses on 4 ranks against 1, of so many recorded steps; a row a case, which its workers number."""
    runs, parts = [], []
    for case in range(cases):
        alone, compute, moved, waited = correlated(generator, correlation, (4, count))
        wait = WAIT_MS * np.exp(waited / 2 - 1 / 8)
        transfer = TRANSFER_MS + (moved if way == ALONE else WAIT_MS - wait + moved / 4)
        runs += [_run(case, 1, COMPUTE_MS), _run(case, RANKS, STEP_MS)]
        anatomies = (
            _anatomy(COMPUTE_MS + alone, np.zeros(count), np.zeros(count)),
            _anatomy(COMPUTE_MS + compute, transfer, wait),
        )
        parts += [parts_of_run(run.id, of) for (run, _), of in zip(runs[-2:], anatomies, strict=True)]
    points = points_of_runs(runs)
    rows = against_base(points, points.index.to_series(), parts_of_points(points, pd.concat(parts)))
    return rows[points["world_size"] == RANKS]


def _anatomy(compute_ms: np.ndarray, transfer_ms: np.ndarray, wait_ms: np.ndarray) -> pd.DataFrame:
    """Of one rank; all of a step's time is in the first of its stages."""
    steps = len(compute_ms)
    parts_ms = {name: np.zeros(steps) for name in (*PARTS, "overlapped_communication")} | {
        "compute": compute_ms,
        "exposed_communication": transfer_ms + wait_ms,
        "wall": compute_ms + transfer_ms + wait_ms,
        **dict(zip(WITHIN["exposed_communication"], (transfer_ms, wait_ms), strict=True)),
    }
    rank: dict[str, Any] = {"rank": 0, "step": np.repeat(np.arange(steps), len(STAGES))}
    for name, took_ms in parts_ms.items():
        by_stage = np.zeros((steps, len(STAGES)))
        by_stage[:, 0] = 1e6 * took_ms
        rank[f"{name}_ns"] = by_stage.ravel()
    return pd.DataFrame(rank)


def _run(case: int, ranks: int, step_ms: float) -> tuple[Source, series.Series]:
    """A run, timed and recorded at once, of which every step takes as long."""
    fields = _FIELDS | {"gpus_per_node": ranks, "workers": case}
    took = np.full((1, 4), round(1e6 * step_ms), np.int64)
    stages = dict.fromkeys(series.STAGES, np.zeros_like(took))
    timed = series.Series(took, np.full(4, 32 * ranks), stages, np.zeros(4, bool), 0)
    return Source(f"{case} on {ranks}", "run", fields, Path()), timed
