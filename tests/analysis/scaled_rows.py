"""Rows as analysis.scaled, stragglers and predict give them, for the report's opening."""

from typing import Any

from analysis.frames.divide import SPLIT, WITHIN
from analysis.measures.points import POINT_FIELDS, UNPROFILED

FIELDS: dict[str, Any] = dict.fromkeys(POINT_FIELDS) | {"nodes": 1, "grad": "fp32"}
NO_INTERVAL = {"scaling_efficiency_pct_low": float("nan"), "scaling_efficiency_pct_high": float("nan")}
TRACED = {"told_by": "collectives"}
# 160 ms instead of 100: of the batch 37.5 % are lost.
LOST_PCT = 37.5


def point(ranks: int, step_ms: float, **more: Any) -> dict[str, Any]:
    """A row of analysis.scaled: weak scaling of 32 images a rank from a base point of 100 ms."""
    rate = 32 * ranks / step_ms * 1e3
    efficiency = 100 * rate / (320 * ranks)
    row = {
        **FIELDS, "gpus_per_node": ranks, "world_size": ranks, "step_ms": step_ms, "images_per_s": rate,
        "base": "1 node x 1", "base_world_size": 1, "base_images_per_s": 320.0,
        "scaling_efficiency_pct": efficiency, "scaling_efficiency_pct_low": efficiency - 1,
        "scaling_efficiency_pct_high": efficiency + 1,
        "called": f"P = {ranks}", "scaling": "weak", "kind_of_runs": UNPROFILED,
        "mean_load_ms": 5.0, "mean_forward_ms": 30.0, "mean_backward_ms": step_ms - 45.0,
        "mean_update_ms": 10.0, "mean_other_ms": 0.0, "mean_late_ranks_ms": 0.0,
    }  # fmt: skip
    return row | more


BASE = point(1, 100.0)


def lost(lost_pct: float, **parts: float) -> dict[str, Any]:
    """Columns of a loss by part; what the parts leave is not attributed."""
    known = dict.fromkeys(
        ("compute", "exposed_communication", "exposed_loader", "exposed_copies", "idle"), 0.0
    )
    within: dict[str, float | None] = {}
    for part in SPLIT:
        given = {name: parts.pop(name) for name in WITHIN[part] if name in parts}
        known[part] = sum(given.values())
        within |= dict.fromkeys(WITHIN[part], 0.0 if given else None) | given
    known |= parts
    columns: dict[str, Any] = {f"loss_{name}_pct": value for name, value in {**within, **known}.items()}
    return columns | {
        "loss_pct": lost_pct,
        "loss_unattributed_pct": lost_pct - sum(known.values()),
        "loss_note": "",
    }


def late(
    run: str, rank: int, verdict: str = "straggler", mean_ms: float = 8.0, cause: str = "loader"
) -> dict:
    """A row of analysis.stragglers of a run with batches of 160 ms."""
    return {
        "run": run, "rank": rank, "node": f"n{rank // 2}", "verdict": verdict, "step_ms": 160.0,
        "mean_lateness_ms": mean_ms, "cause": cause, "told_by": "stages",
    }  # fmt: skip


def late_8(**more: Any) -> list[dict[str, Any]]:
    """Rank 3 of 8 is late by 32 ms of a batch of 160, by its traced run; three others see a third of that."""
    stages = [late(str(n), 3, mean_ms=11.0, cause="GPU") for n in range(3)]
    return [late("t", 3, mean_ms=32.0, cause="GPU") | TRACED | more, *stages]


def plain(method: str, low: float, high: float) -> dict[str, Any]:
    """A row of analysis.predict of the job as it is."""
    return what_if("", 0.0, predicted_by=method, images_per_s_low=low, images_per_s_high=high)


def what_if(name: str, gain_pct: float, **more: Any) -> dict[str, Any]:
    """A row of analysis.predict for 8 ranks."""
    row = {"what_if": name, "world_size": 8, "gain_pct": gain_pct, "images_per_s": 2000.0, "of": 0}
    row |= {"images_per_s_low": None, "images_per_s_high": None, "believed": True, "backtest": False}
    return FIELDS | row | more


def with_rate(row: dict[str, Any], half: float) -> dict[str, Any]:
    rate = row["images_per_s"]
    return row | {"images_per_s_low": rate - half, "images_per_s_high": rate + half}
