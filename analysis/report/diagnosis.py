"""The report's opening as findings: what a step takes, how it scales, what is lost and why, what to try.

Each rule is a function of rows that measures give. :data:`PLACES` says below which heading of the opening a
finding stands, and which section of the page backs it. A late rank costs a data-parallel job its whole
lateness in each step. In the anatomy that shows in two places: the others wait for it, and its own step holds
what makes it late. Both are taken off the parts, so that each percentage point has one cause.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

import numpy as np

from analysis.display.metrics import Rows, records
from analysis.frames.divide import EVERY, finest
from analysis.measures import certainty
from analysis.measures.certainty import LEAST_PCT, LIMITING_SHARE, least_pct, lost_pct
from analysis.measures.lateness import BY_COLLECTIVES, CHANCE, STRAGGLER, TOO_FEW
from analysis.measures.loss import UNATTRIBUTED_SHARE, other_steps
from analysis.measures.points import NO_SAMPLES, bases_of, findings, point_names, points_of
from analysis.measures.scaled import above_ideal
from analysis.measures.stragglers import is_late
from analysis.prediction.configurations import CONFIGURATION
from analysis.report import prediction, stragglers, traced
from analysis.report.base import Context, called
from jobs.run_fields import own_names
from profiling.findings import Finding

SCALES, LOST, TRY = "How does it scale?", "What is lost, and why?", "What to try?"
# Code of a finding -> (heading in the opening, id of the section that backs it).
PLACES = {
    **dict.fromkeys(("scaling_efficiency", "scaling_unknown", "above_ideal"), (SCALES, "scaling")),
    **dict.fromkeys(("fastest", "efficiency_uncertain"), (SCALES, "table")),
    **dict.fromkeys(("size_without_result", "devices_differ", "threads_differ"), (SCALES, "findings")),
    **dict.fromkeys(("sweep_incomplete", "tables_of_startup"), (SCALES, "findings")),
    "published_efficiency": (SCALES, "published-scaling"),
    "traced_efficiency": (SCALES, "traced-scaling"),
    "step_takes": (LOST, "stages"),
    "traced_step_takes": (LOST, "anatomy"),
    **dict.fromkeys(("cause_of_loss", "cause_uncertain", "loss_unexplained", "loss_small"), (LOST, "loss")),
    **dict.fromkeys(("straggler", "straggler_costs", "straggler_suspected"), (LOST, "stragglers")),
    "longest_collective": (LOST, "communication"),
    **dict.fromkeys(("gain_simulated", "predictions_disagree"), (TRY, "prediction")),
    "gain_measured": (TRY, "scaling"),
    "advice": (TRY, "loss"),
    "saving_of_part": (TRY, "critical-path"),
}
# Part of the loss (a column loss_<part>_pct) -> what it is called.
CAUSES = {
    "exposed_transfer": "exposed transfer in collectives",
    "exposed_wait": "waiting for other ranks",
    "exposed_communication": "exposed communication",
    "exposed_loader": "waiting for data",
    "compute": "computation",
    "exposed_copies": "memory copies",
    "idle_host_bound": "late kernel launches (host)",
    "idle_other": "other idle time of the device",
    "idle": "idle time",
    "fewer_images": "computation with fewer images per rank",
}
LATE_RANKS = "late ranks"  # the cause that is no part of a step
# What to try against a cause, where no simulation says it.
ADVICE = {
    "exposed_transfer": "send less: fp16 gradients, larger batches; then a faster network",
    "exposed_communication": "profile all ranks, to tell transfer from waiting",
    "exposed_wait": "see the timeline for what delays ranks; batches of equal cost; fewer other jobs",
    "exposed_loader": "more workers, or a faster loader",
    "compute": "the same cores, clocks and threads for every rank",
    "exposed_copies": "fewer ranks per bus, or buffers that need no copy",
    "idle_host_bound": "a core for the launching thread; larger batches; fewer synchronisations",
    "idle_other": "see the timeline for what kernels wait for",
    "idle": "see the timeline for what ranks wait for",
}
ADVICE_AGAINST_LATE = {
    "GPU": "compare the GPU's clocks, temperature and power with the others'",
    "processor": "compare its cores' clocks, pinning and other jobs with the others'",
    "host": "a core for the launching thread; no other jobs on that host",
    "loader": "check the storage of its share of the data; more workers",
    "node": "compare the node's clocks, temperature and other jobs with the others'",
}
# What-ifs that change a part: of a part that has none, nothing was simulated.
WHAT_IFS = {
    **dict.fromkeys(
        ("exposed_transfer", "exposed_communication"),
        ("fp16-gradients", "network", "bucket-mb", "no-stragglers"),
    ),
    "exposed_loader": ("no-loader",),
    LATE_RANKS: ("no-stragglers",),
}
# The cause of a rank's lateness -> the part of its own step in which it shows.
_OWN_PART = {"GPU": "compute", "processor": "compute", "loader": "exposed_loader", "host": "idle_host_bound"}
STAGES = {"load": "waiting for data", "forward": "forward", "backward": "backward", "update": "update"}
# Options that leave the training job what it is.
OPTIONS = ("workers", "loader", "grad", "compute", "backend", "threads", "channels_last", "compile",
           "graph", "cudnn_benchmark", "hw_decoder_load", "bucket_mb", "network", "data_format")  # fmt: skip
LATE_RUNS_SHARE = 0.5  # of the runs: a rank that is named in no more is not what slows the job
LEAST_GAIN_PCT = 1.0  # of a simulated change that is worth a line
_MOST_GAINS = 3
# Why parts of a loss, or scaling, are not known.
STEPS_DISAGREE = "profiled and unprofiled steps disagree"
IN_LONG_STEPS = "most of it is in steps that take longer than the median"
NO_BASELINE = "no baseline among the results"
NO_DURATIONS = "kernel tables hold no step durations"
_SHARE_OF_BANDWIDTH = 0.25  # of what transfer costs, that links of twice the bandwidth take off


def diagnosis(context: Context) -> list[Finding]:
    """The findings of the opening, in its order."""
    if context.own:
        return [*_incomplete(context), *of_runs(context)]
    if context.traces:
        return [*traced.findings_of(context), *_of_reference(context.others)]
    return _of_reference(context.others)


def of_runs(context: Context) -> list[Finding]:
    """Of runs of our own: how they scale, and the causes of the loss of the configuration that loses most."""
    named = bool(context.series)
    own = [{**row, "called": called(row, context.series) if named else None} for row in context.own]
    widest = context.once(stragglers.widest)
    late = records(widest.rows) if widest else []
    predicted = context.rows_if_any(prediction.predicted)
    return of_rows(own, late, predicted, list(findings(points_of(context.study, None))))


def of_rows(
    own: Rows, late: Rows | None = None, predicted: Rows | None = None, of_points: Sequence[Finding] = ()
) -> list[Finding]:
    """The findings of rows of :mod:`analysis.scaled`, each with what it is ``called``.

    Args:
        late: rows of :mod:`analysis.stragglers` of the runs of most ranks, with their ``run`` and fields.
        predicted: rows of :mod:`analysis.predict` with what-ifs.
        of_points: findings on the configurations.
    """
    late, predicted = late or [], predicted or []
    if all(row["world_size"] == row["base_world_size"] for row in own):
        return [*_fastest(own), *_step_takes(_slowest(own)), *_held_up(late_ranks(late))]
    scaled = [row for row in own if row["world_size"] != row["base_world_size"]]
    best, worst, judged = certainty.leading(scaled)
    of_runs = [row for row in late if _of_point(row, judged)]
    here = late_ranks(of_runs)
    causes = _causes(own, judged, here, gains(judged, predicted))
    if not any(one.code == "straggler_costs" for one in causes):
        causes += _held_up(here or late_ranks(late))
    return [
        *(one for one in of_points if one.code in ("devices_differ", "threads_differ")),
        *certainty.uncertain(scaled),
        _efficiency(best),
        *([_efficiency(worst)] if worst is not best else []),
        *(one for one in of_points if one.code == "above_ideal"),
        *_step_takes(judged),
        *causes,
        *(_suspected(of_runs) if not here else []),
        *to_try(judged, own, predicted, causes, here),
    ]


def _incomplete(context: Context) -> list[Finding]:
    found = certainty.sizes_without_result(context.study)
    waiting = [one for one in context.study.failed if one.kind in ("running", "interrupted", "not started")]
    if waiting:
        of = len(context.study.of_kind("run")) + len(context.study.failed)
        found.insert(0, Finding("sweep_incomplete", data={"n": len(waiting), "of": of}))
    return found


def _of_point(late: Mapping[str, Any], row: Mapping[str, Any]) -> bool:
    names = (*CONFIGURATION, *own_names(row), "nodes", "gpus_per_node")
    return all(str(late.get(name, row.get(name))) == str(row.get(name)) for name in names)


# --- how it scales ----------------------------------------------------------------------------------------


def _efficiency(row: Mapping[str, Any]) -> Finding:
    shown = certainty.without_unusable_intervals(row)
    data = {
        "ranks": row["world_size"], "pct": row["scaling_efficiency_pct"],
        "ends": _ends(shown, "scaling_efficiency_pct"), "base": row["base"],
        "base_images_per_s": row["base_images_per_s"], "scaling": row["scaling"],
    }  # fmt: skip
    return Finding("scaling_efficiency", configuration=row["called"], data=data)


def _fastest(own: Rows) -> list[Finding]:
    """That scaling is not known and why, and the throughput that is."""
    known = [row for row in own if row["images_per_s"] is not None]
    sizes = {row["world_size"] for row in own}
    reason = NO_SAMPLES if not known else "one world size" if len(sizes) == 1 else "no common baseline"
    found = [Finding("scaling_unknown", data={"reason": reason})]
    if known:
        best = max(known, key=lambda row: row["images_per_s"])
        ends = _ends(certainty.without_unusable_intervals(best), "images_per_s")
        data = {"images_per_s": best["images_per_s"], "ends": ends, "ranks": best["world_size"]}
        found.append(Finding("fastest", configuration=best["called"], data=data))
    return found


def _slowest(own: Rows) -> dict[str, Any]:
    return max(own, key=lambda row: (row["world_size"], _number(row, "step_ms")))


def _step_takes(row: Mapping[str, Any]) -> list[Finding]:
    """What a step takes, and the shares of its stages: absolute, before all that is relative."""
    step_ms = _number(row, "step_ms")
    stages = {name: _number(row, f"{name}_ms") for name in STAGES}
    whole = sum(stages.values())
    if math.isnan(step_ms) or not whole > 0:  # NaN: a stage is not known
        return []
    shares = sorted(((100 * ms / whole, STAGES[name]) for name, ms in stages.items()), reverse=True)
    data = {
        "step_ns": 1e6 * step_ms, "ranks": row["world_size"], "stages_ms": stages,
        "shares": [f"{share:.0f} % {name}" for share, name in shares if share >= 1],
    }  # fmt: skip
    return [Finding("step_takes", configuration=row["called"], data=data)]


# --- what is lost -----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Late:
    """The ranks for which the others wait repeatedly.

    Attributes:
        ranks: those of one cause; the one that is waited for longest comes first.
        node: of the first one; empty if that differs between runs.
        ms, share_pct: how long the others wait for the first, per step; in percent of the step.
        by_collectives: whether collectives told that; else stages did, and it is a lower bound.
        cause: as analysis.stragglers has it.
    """

    ranks: tuple[int, ...]
    node: str
    ms: float
    share_pct: float
    by_collectives: bool
    cause: str


def late_ranks(rows: Rows) -> Late | None:
    """The ranks that are named in most of the runs that tell; None if there are none.

    Collectives tell by how much a rank is late, stages a lower bound of it. So either may name a rank, and
    where collectives were recorded they say by how much.

    Args:
        rows: of :mod:`analysis.stragglers`, of runs of one configuration and world size, with their ``run``.
    """
    recorded = [row for row in rows if row.get("told_by") == BY_COLLECTIVES]
    often = _often(recorded) or _often([row for row in rows if row.get("told_by") != BY_COLLECTIVES])
    measured = {
        rank: [row for row in recorded if row["rank"] == rank] or named for rank, named in often.items()
    }
    share_pct = {
        rank: median(100 * row["mean_lateness_ms"] / row["step_ms"] for row in of)
        for rank, of in measured.items()
    }
    ranks = sorted((rank for rank in often if share_pct[rank] >= LEAST_PCT), key=lambda one: -share_pct[one])
    if not ranks:
        return None
    causes = {rank: _most_often([row["cause"] for row in often[rank]]) for rank in ranks}
    first, nodes = ranks[0], {row["node"] for row in often[ranks[0]]}
    return Late(
        tuple(rank for rank in ranks if causes[rank] == causes[first]),
        (nodes.pop() or "") if len(nodes) == 1 else "",
        median(row["mean_lateness_ms"] for row in measured[first]),
        share_pct[first],
        all(row.get("told_by") == BY_COLLECTIVES for row in measured[first]),
        causes[first],
    )


def _most_often(causes: Sequence[str]) -> str:
    return max(causes, key=causes.count)


def _often(rows: Rows) -> dict[int, Rows]:
    """The rows in which a rank is named, of ranks that are named in most of the rows' runs."""
    runs = {row["run"] for row in rows}
    named: dict[int, Rows] = {}
    for row in rows:
        if row["verdict"] == STRAGGLER:
            named.setdefault(row["rank"], []).append(row)
    return {rank: of for rank, of in named.items() if len(of) > LATE_RUNS_SHARE * len(runs)}


def _held_up(late: Late | None) -> list[Finding]:
    if late is None:
        return []
    data = {
        "stragglers": late.ranks, "node": late.node, "wait_ns": 1e6 * late.ms, "share_pct": late.share_pct,
        "cause": late.cause, "from": "collectives" if late.by_collectives else "stages, at least",
    }  # fmt: skip
    return [Finding("straggler_costs", data=data)]


def _suspected(rows: Rows) -> list[Finding]:
    """Ranks that came late by enough in a traced run, which may be chance."""
    unsure = [
        row for row in rows
        if row.get("told_by") == BY_COLLECTIVES and row["verdict"] in (CHANCE, TOO_FEW) and is_late(row)
    ]  # fmt: skip
    if not unsure:
        return []
    longest = max(row["mean_lateness_ms"] for row in unsure)
    data = {"suspects": sorted({row["rank"] for row in unsure}), "wait_ns": 1e6 * longest}
    return [Finding("straggler_suspected", data=data)]


@dataclass(frozen=True)
class Cause:
    """What costs scaling: :data:`LATE_RANKS` or a part of a step, in percentage points of efficiency."""

    kind: str
    cost_pct: float


def of_loss(row: Mapping[str, Any], late: Late | None) -> list[Cause]:
    """The causes of a configuration's loss, the one that costs most first.

    Args:
        row: of :mod:`analysis.scaled`, whose parts of the loss are known.
        late: the ranks that are late there.
    """
    parts = finest({name: None if row.get(f"loss_{name}_pct") is None else float(row[f"loss_{name}_pct"])
                    for name in EVERY})  # fmt: skip
    causes = [Cause(LATE_RANKS, late.share_pct)] if late else []
    if late:
        parts = _without(parts, late, int(row["world_size"]))
    causes += [Cause(name, cost) for name, cost in parts.items()]
    return sorted(causes, key=lambda cause: -cause.cost_pct)


def _without(parts: Mapping[str, float], late: Late, ranks: int) -> dict[str, float]:
    """The parts without what the late ranks cost: the others wait for it, their own step holds it."""
    own = len(late.ranks) / ranks
    waits = "exposed_wait" if "exposed_wait" in parts else "exposed_communication"
    # Of a node all ranks are late alike, by what is longest on them.
    longest = max((name for name in parts if name != waits), key=lambda name: parts[name])
    part = _OWN_PART.get(late.cause, longest)
    part = part if part in parts else "idle" if "idle" in parts else longest
    return {
        name: cost - late.share_pct * ((1 - own) * (name == waits) + own * (name == part))
        for name, cost in parts.items()
    }


def ends_of(row: Mapping[str, Any], cause: Cause) -> list[float]:
    """The interval of a cause's cost, percentage points; empty: it has none.

    What late ranks take off a part moves its interval as it moves the part.
    """
    part, low, high = (_number(row, f"loss_{cause.kind}_pct{end}") for end in ("", "_low", "_high"))
    moved = cause.cost_pct - part
    return [low + moved, high + moved] if math.isfinite(low + high + moved) else []


def _causes(
    own: Rows, row: dict[str, Any], late: Late | None, gained: Mapping[str, Mapping[str, Any]]
) -> list[Finding]:
    """What costs the configuration its scaling, the largest first; each percentage point has one cause.

    Args:
        gained: of :func:`gains`, which tell whether bandwidth or latency limits transfer.
    """
    if certainty.is_unsure(row):
        return []  # the finding efficiency_uncertain says it
    if lost_pct(row) < least_pct(row):
        data = {"lost_pct": max(0.0, lost_pct(row)), "least_pct": least_pct(row), "ranks": row["world_size"]}
        return [] if above_ideal(row) else [Finding("loss_small", configuration=row["called"], data=data)]
    base, rest = _base_of(own, row), _number(row, "loss_unattributed_pct")
    if base is None or math.isnan(rest):
        return _from_stages(base, row)
    if other_steps(row) or abs(rest) > UNATTRIBUTED_SHARE * row["loss_pct"]:
        if late and late.share_pct >= UNATTRIBUTED_SHARE * lost_pct(row):
            return []  # half of the loss is enough to call the late rank the cause
        return [_unexplained(row, STEPS_DISAGREE)]
    causes = of_loss(row, late)
    large = [one for one in causes if one.cost_pct >= max(least_pct(row), LIMITING_SHARE * row["loss_pct"])]

    def found(cause: Cause, code: str = "cause_of_loss") -> list[Finding]:
        if cause.kind == LATE_RANKS:
            return _held_up(late)
        limit = limit_of_transfer(cause.cost_pct, gained) if cause.kind == "exposed_transfer" else ""
        return [_cause(row, cause, code, limit)]

    if not large:
        return found(causes[0])
    certain = [one for one in large if not (ends := ends_of(row, one)) or ends[0] > 0][:2]
    least = certain[-1].cost_pct if certain else 0.0
    doubtful = [one for one in large if one not in certain and one.cost_pct >= least][:2]
    return [
        *(finding for one in certain for finding in found(one)),
        *(finding for one in doubtful for finding in found(one, "cause_uncertain")),
    ]


def _cause(row: Mapping[str, Any], cause: Cause, code: str = "cause_of_loss", limit: str = "") -> Finding:
    strong = cause.kind == "compute" and row.get("scaling") == "strong"
    name = CAUSES["fewer_images" if strong else cause.kind] + (f" ({limit})" if limit else "")
    ends = ends_of(row, cause)
    data = {
        "kind": cause.kind, "limit": limit, "cause": name, "cost_pct": cause.cost_pct, "ends": ends,
        "high_pct": ends[1] if ends else cause.cost_pct,
        "lost_pct": lost_pct(row), "ranks": row["world_size"],
    }  # fmt: skip
    return Finding(code, configuration=row["called"], data=data)


def _unexplained(row: Mapping[str, Any], reason: str) -> Finding:
    data = {"lost_pct": lost_pct(row), "ranks": row["world_size"], "reason": reason}
    return Finding("loss_unexplained", configuration=row["called"], data=data)


def _from_stages(base: Mapping[str, Any] | None, row: Mapping[str, Any]) -> list[Finding]:
    """The cause without profiled runs of both: every rank's steps hold its wait for the loader."""
    if base is not None:
        share = base["world_size"] / row["world_size"] if row.get("scaling") == "strong" else 1.0
        lost_ms = _number(row, "step_ms") - share * _number(base, "step_ms")
        grown_ms = _number(row, "load_ms") - share * _number(base, "load_ms")
        # The median step shows little of a loss that is in few long steps, nor do medians of stages.
        shown = lost_ms >= LIMITING_SHARE * lost_pct(row) / 100 * _number(row, "step_ms")
        if shown and grown_ms >= LIMITING_SHARE * lost_ms:
            cost = 100 * grown_ms / _number(row, "step_ms")
            return [_cause(row, Cause("exposed_loader", cost))]
        if not shown:
            return [_unexplained(row, IN_LONG_STEPS)]
    return [_unexplained(row, row.get("loss_note") or NO_BASELINE)]


def _base_of(own: Rows, row: Mapping[str, Any]) -> dict[str, Any] | None:
    """The row of the baseline; None: it is not among them."""
    names = point_names(*own)
    every = [{name: one.get(name) for name in names} for one in own]
    place = every.index({name: row.get(name) for name in names})
    base = own[bases_of(every, row.get("scaling", "weak"))[place]]
    return base if base["world_size"] == row["base_world_size"] else None


# --- what to try ------------------------------------------------------------------------------------------


def to_try(
    row: Mapping[str, Any], own: Rows, predicted: Rows, causes: Iterable[Finding], late: Late | None
) -> list[Finding]:
    """What runs show to be faster, what a simulation gains, and what may help against the first cause."""
    kinds = [one.data["kind"] for one in causes if "kind" in one.data]
    known = gains(row, predicted)
    changes = {name for kind in [*kinds, *([LATE_RANKS] if late else [])] for name in WHAT_IFS.get(kind, ())}
    new = [
        one
        for one in known.values()
        if one["what_if"].partition("=")[0] in changes and not prediction.was_measured(one, own)
    ]
    found = measured_gain(row, own)
    if contradicted := prediction.disagreement(predicted):
        found.append(contradicted)
    else:
        best = sorted(new, key=lambda one: -one["gain_pct"])
        found += [_simulated(one) for one in best if one["gain_pct"] >= LEAST_GAIN_PCT][:_MOST_GAINS]
    if late and late.cause in ADVICE_AGAINST_LATE:
        data = {"cause": f"late {late.cause}", "advice": ADVICE_AGAINST_LATE[late.cause]}
        found.append(Finding("advice", data=data))
    simulated = {name.partition("=")[0] for name in known}
    for kind in kinds[:1]:
        if kind in ADVICE and not simulated & set(WHAT_IFS.get(kind, ())):
            found.append(Finding("advice", data={"cause": CAUSES[kind], "advice": ADVICE[kind]}))
    return found


def gains(row: Mapping[str, Any], predicted: Rows) -> dict[str, dict[str, Any]]:
    """What-if -> its row, of a configuration on the fewest ranks that were simulated.

    Where the curve is the better founded prediction, the simulation advises nothing.
    """
    own = [
        one
        for one in predicted
        if one.get("what_if") and one.get("gain_pct") is not None and one.get("believed", True)
        and all(str(one.get(name)) == str(row.get(name)) for name in CONFIGURATION)
    ]  # fmt: skip
    fewest = min((one["world_size"] for one in own), default=0)
    return {one["what_if"]: one for one in own if one["world_size"] == fewest}


def limit_of_transfer(cost_pct: float, gained: Mapping[str, Mapping[str, Any]]) -> str:
    """``bandwidth`` or ``latency`` of the network; empty: no simulation tells them apart.

    Args:
        cost_pct: of the transfer, in percent of a step.
        gained: of :func:`gains`.
    """
    faster = next((row for name, row in gained.items() if name.partition("=")[0] == "network"), None)
    if faster is None or faster.get("alpha_us") is None:
        return ""
    if faster["gain_pct"] >= _SHARE_OF_BANDWIDTH * cost_pct:
        return "bandwidth"
    return "latency" if faster["alpha_us"] > 0 else ""


def _simulated(row: Mapping[str, Any]) -> Finding:
    names = ("images_per_s", "images_per_s_low", "images_per_s_high", "gain_pct", "what_if")
    ends = [row.get("images_per_s_low"), row.get("images_per_s_high")]
    known = [end for end in ends if end is not None and math.isfinite(end)]
    data = {**{name: row.get(name) for name in names}, "ranks": row["world_size"],
            "range": known if len(known) == 2 else []}  # fmt: skip
    return Finding("gain_simulated", data=data)


def measured_gain(row: Mapping[str, Any], own: Rows) -> list[Finding]:
    """The option that made this configuration fastest, where runs tell the two apart; nothing if none did.

    Their confidence intervals of images/s do not overlap: stricter than a test of the difference.
    """
    high = _number(row, "images_per_s_high")
    faster = [
        (_number(other, "images_per_s") / row["images_per_s"] - 1, other, option)
        for other in own
        if (option := only_difference(row, other)) and _number(other, "images_per_s_low") > high
    ]
    if not faster:
        return []
    gain, best, option = max(faster, key=lambda one: one[0])
    data = {"option": option, "value": str(best[option]), "instead_of": str(row[option]),
            "gain_pct": 100 * gain, "ranks": row["world_size"]}  # fmt: skip
    return [Finding("gain_measured", configuration=row["called"], data=data)]


def only_difference(row: Mapping[str, Any], other: Mapping[str, Any]) -> str:
    """The one option in which two rows differ; empty: in none, in more, or in what is no option."""
    differing = [name for name in point_names(row, other) if row.get(name) != other.get(name)]
    # Without a loader nothing is learnt: that is a bound of the others.
    bound = other.get("loader") == "synthetic" != row.get("loader")
    return differing[0] if len(differing) == 1 and differing[0] in OPTIONS and not bound else ""


# --- the reference's tables -------------------------------------------------------------------------------


def _of_reference(rows: Rows) -> list[Finding]:
    """Of tables of the reference: what they measure first, then the efficiency that was published."""
    published = [row for row in rows if row.get("epoch_duration_s")]
    found = []
    fixed = [row["batch_independent_pct"] for row in published if row.get("batch_independent_pct")]
    if fixed:
        data = {"pct": median(fixed), "n": len(fixed)}
        found.append(Finding("tables_of_startup", data=data))
    if published:
        largest = max(row["world_size"] for row in published)
        values = [row["scaling_efficiency_pct"] for row in published if row["world_size"] == largest]
        every = [row["scaling_efficiency_pct"] for row in published]
        data = {"ranks": largest, "low_pct": min(values), "high_pct": max(values), "least_pct": min(every)}
        found.append(Finding("published_efficiency", data=data))
    if any(row["tables"] is not None for row in rows):
        found.append(Finding("scaling_unknown", data={"reason": NO_DURATIONS}))
    return found


def _number(row: Mapping[str, Any], name: str) -> float:
    value = row.get(name)
    return math.nan if value is None else float(value)


def _ends(row: Mapping[str, Any], name: str) -> list[float]:
    ends = [_number(row, f"{name}_low"), _number(row, f"{name}_high")]
    return ends if bool(np.isfinite(ends).all()) else []
