"""Certainty of scaling results: unusable intervals, their resolution, sizes without a result."""

import math
from collections.abc import Mapping
from typing import Any

import pandas as pd

from analysis.display.metrics import Rows, records
from analysis.display.numbers import OPEN, is_unusable
from analysis.frames.study import Study
from analysis.measures.loss import without_meaningless_parts
from analysis.measures.points import UNPROFILED
from jobs.run_fields import parse_id
from profiling.errors import UserError
from profiling.findings import Finding

# A scaling efficiency whose interval is wider than this (percentage points) explains nothing yet.
WIDEST_INTERVAL_PCT = 40.0
# A loss of fewer percentage points is not worth a line ...
LEAST_PCT = 2.5
# ... or of fewer than this where points ran once, so that the spread between runs is unknown.
LEAST_UNREPEATED_PCT = 5.0
# What makes up less than this share of what is lost is not what limits scaling.
LIMITING_SHARE = 0.25

_EFFICIENCY, _LOSS = "scaling_efficiency_pct", "loss_pct"
# All are above 0 but what is lost, which is as sure as the efficiency that it is the rest of.
_POSITIVE = (
    "step_ms", "images_per_s", "speedup", _EFFICIENCY, "perturbation", "flops_efficiency_of_step_pct",
    "bandwidth_efficiency_of_step_pct", "mfu_pct",
)  # fmt: skip


def without_unusable_intervals(frame: pd.DataFrame) -> pd.DataFrame:
    """Rows of analysis.scaled as tables and charts show them; data keep the rows themselves.

    The ends of an interval that does not tell the order of magnitude are :data:`OPEN`.
    """
    frame = frame.copy()
    for name in [name for name in _POSITIVE if f"{name}_low" in frame]:
        value, low, high = (frame[f"{name}{end}"].astype(float) for end in ("", "_low", "_high"))
        unusable = is_unusable(value, low, high)
        for figure in (name, _LOSS) if name == _EFFICIENCY and _LOSS in frame else (name,):
            frame.loc[unusable, [f"{figure}_low", f"{figure}_high"]] = OPEN
    return frame


def lost_pct(row: Mapping[str, Any]) -> float:
    """Percentage points that are lost to scaling."""
    return 100 - float(row[_EFFICIENCY])


def half_width_pct(row: Mapping[str, Any]) -> float:
    """Of the interval of the scaling efficiency, percentage points; NaN without one."""
    low, high = row.get(f"{_EFFICIENCY}_low"), row.get(f"{_EFFICIENCY}_high")
    return math.nan if low is None or high is None else (float(high) - float(low)) / 2


def least_pct(row: Mapping[str, Any]) -> float:
    """Percentage points from which on a loss, or a part of it, exceeds the spread between identical runs."""
    half = half_width_pct(row)
    return LEAST_UNREPEATED_PCT if math.isnan(half) else max(LEAST_PCT, half)


def leading(scaled: Rows) -> tuple[dict[str, Any], dict[str, Any], dict[str, Any]]:
    """(the best and the worst configuration on the most ranks, the one whose loss is to be explained).

    The most ranks matter most; what is lost on fewer only is still lost. What a profiler slowed down is not
    compared with what it did not, where there are unprofiled runs of as many ranks. Best and worst have
    baselines of as many ranks, the fewest: 90 % of what 4 ranks give may be less than 85 % of what one does.

    Args:
        scaled: one or more rows of configurations that are compared with one of fewer ranks.
    """
    largest = max(row["world_size"] for row in scaled)
    unprofiled = [row for row in scaled if row.get("kind_of_runs") == UNPROFILED]
    if any(row["world_size"] == largest for row in unprofiled):
        scaled = unprofiled
    widest = sorted((row for row in scaled if row["world_size"] == largest), key=lost_pct)
    fewest = min(row["base_world_size"] for row in widest)
    comparable = [row for row in widest if row["base_world_size"] == fewest]
    most_lost, lowest = widest[-1], max(scaled, key=lost_pct)
    enough = max(least_pct(most_lost), LIMITING_SHARE * lost_pct(lowest))
    return comparable[0], comparable[-1], most_lost if lost_pct(most_lost) >= enough else lowest


def is_unsure(row: Mapping[str, Any]) -> bool:
    """Whether identical runs differ too much for the efficiency of a row to mean anything."""
    return 2 * half_width_pct(row) > WIDEST_INTERVAL_PCT


def uncertain(frame: pd.DataFrame) -> list[Finding]:
    """A finding where intervals of scaling efficiencies are too wide to mean anything; else none.

    Args:
        frame: rows of analysis.scaled.
    """
    size, base = frame["world_size"].astype("Int64"), frame["base_world_size"].astype("Int64")
    scaled = frame[base.notna() & (base != size).fillna(True)]
    widths = (scaled[f"{_EFFICIENCY}_high"] - scaled[f"{_EFFICIENCY}_low"])[scaled["world_size"].notna()]
    if not len(wide := widths[widths > WIDEST_INTERVAL_PCT]):
        return []
    data = {"n": len(wide), "of": len(scaled), "most": WIDEST_INTERVAL_PCT, "width": wide.max()}
    return [Finding("efficiency_uncertain", data=data)]


def unexplained(frame: pd.DataFrame) -> list[Finding]:
    """Of configurations whose profiled runs do not explain their loss: why.

    Args:
        frame: rows of analysis.scaled.
    """
    shown = without_meaningless_parts(frame[frame["loss_note"] == ""])
    return [
        Finding("loss_unexplained", data={
            "cost_pct": lost_pct(row), "on": f"{row['world_size']} ranks", "reason": row["loss_note"],
        })
        for row in records(shown[shown["loss_note"] != ""])
    ]  # fmt: skip


# --- what was measured, and what more ranks would share ---------------------------------------------------


def sizes_without_result(study: Study) -> list[Finding]:
    """A finding on world sizes of which all runs failed: else the largest completed one looks the largest."""
    completed = {source.world_size for source in study.of_kind("run")}
    failed = [one for one in study.missing if one.kind in ("failed", "unusable")]
    lost = [
        (ranks, one.reason) for one in failed if (ranks := _ranks_of(one.point)) not in {*completed, None}
    ]
    if not lost:
        return []
    sizes, reasons = zip(*lost, strict=True)
    data = {"ranks": sorted(set(sizes)), "n": len(lost), "reason": reasons[0].partition("\n")[0]}
    return [Finding("size_without_result", data=data)]


def _ranks_of(name: str) -> int | None:
    """The world size of a run by its id; None: the name of a run by hand is none."""
    try:
        return parse_id(name).run.world_size
    except UserError:
        return None


def shared_cores(study: Study) -> bool:
    """Whether more ranks would have fewer cores each than the measured ones.

    So it is where ranks without GPUs run on one host, and twice as many would have more threads than it has
    cores, or get their share of these by being so many (``threads: 0``). Points of several hosts are taken to
    get more hosts with more ranks.
    """
    runs = [(run, run.manifest) for run in study.of_kind("run") if run.manifest and run.manifest.ranks]
    hosts = {rank.hostname for _, manifest in runs for rank in manifest.ranks}
    if len(hosts) != 1:
        return False
    widest, manifest = max(runs, key=lambda run: run[0].ranks)
    if any(rank.device != "cpu" for rank in manifest.ranks):
        return False
    cores, threads = manifest.host.get("cores"), widest.fields["threads"]
    enough = threads and 2 * widest.ranks * threads <= (cores if isinstance(cores, int) else 0)
    return not enough
