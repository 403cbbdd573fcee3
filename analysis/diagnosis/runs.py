"""Diagnosis rules for runs: how a step divides, how configurations scale, what costs most, what may help.

A late rank costs a data-parallel job its whole lateness in each step. In the anatomy this appears twice: as
the wait of the other ranks, and as whatever makes the late rank's own step longer. Both are subtracted from
the other parts, so that each percentage point has one cause.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd

from analysis.diagnosis.evidence import PARTS, WORDS, ends, in_words, number, on, shares_of
from analysis.display.metrics import records
from analysis.frames.divide import EVERY, finest
from analysis.frames.steps import STAGES
from analysis.measures.loss import BY_STAGES, UNATTRIBUTED_SHARE, most_unattributed, other_steps
from analysis.measures.loss import LATE_RANKS as LATE
from analysis.measures.points import NO_SAMPLES, UNPROFILED, point_names
from analysis.measures.scaled import WIDEST_INTERVAL_PCT, above_ideal, uncertain
from analysis.measures.stragglers import LATE_RANKS, late_ranks, suspected
from analysis.prediction.configurations import CONFIGURATION
from jobs.run_fields import own_names
from profiling.findings import Finding

TRANSFER = "exposed_transfer"
# Options that leave the training job what it is.
OPTIONS = ("workers", "loader", "grad", "compute", "backend", "threads", "channels_last", "compile",
           "graph", "cudnn_benchmark", "hw_decoder_load", "bucket_mb", "network", "data_format")  # fmt: skip
WAITING_SHARE_PCT = 20.0  # of a step, from which on a part that it need not have is worth a line
PROFILED_ALIKE = 0.15  # of the step: a profiled step that differs by more does not tell its parts
LEAST_GAIN_PCT = 1.0  # of a simulated change that is worth a line
_MOST_GAINS, _MOST_WORDS = 3, 2  # lines; advice in one that is not simulated, the cheapest first
_SHOWN_PCT = 0.05  # the lower end of a cost that is not printed as 0.0
# A loss of fewer percentage points is not worth a line ...
LEAST_PCT = 2.5
# ... or of fewer than this where points ran once, so that the spread between runs is unknown.
_LEAST_UNREPEATED_PCT = 5.0
# What makes up less than this share of what is lost is not what limits scaling.
_LIMITING_SHARE = 0.25
# Why parts of a loss, or scaling, are not known.
STEPS_DISAGREE = "profiled and unprofiled steps disagree"
NO_BASELINE = "no baseline among the results"
_LATE, _ADVICE = WORDS["late"], WORDS["advice"]
_PRICES = ("free", "software", "hardware")  # the cheapest first
_NONE = pd.DataFrame()
PartsOf = Callable[[Mapping[str, Any]], dict[str, float]]


def of_rows(
    own: pd.DataFrame,
    late: pd.DataFrame = _NONE,
    what_ifs: pd.DataFrame = _NONE,
    of_points: Sequence[Finding] = (),
    parts_of: PartsOf = lambda _: {},
    limit_of: Callable[[Mapping[str, Any]], str] = lambda _: "",
) -> list[Finding]:
    """The findings of rows of :mod:`analysis.scaled`, each with what it is ``called``.

    Args:
        late: rows of :mod:`analysis.stragglers` of the runs of most ranks, with their ``run`` and fields.
        what_ifs: rows of :mod:`analysis.predict`.
        of_points: findings on the configurations.
        parts_of: the parts of a row's profiled step, ms; empty: not known.
        limit_of: whether bandwidth or latency limits its transfers; empty: not known.
    """
    of_scaled = own[own["world_size"] != own["base_world_size"]]
    (judged,) = records(own.sort_values(["world_size", "step_ms"], ascending=False, kind="stable").head(1))
    if len(of_scaled):
        best, worst, judged = leading(of_scaled)
    names = [one for one in (*CONFIGURATION, *own_names(judged), "nodes", "gpus_per_node") if one in late]
    of_judged = late.loc[[same(row, judged, names) for row in records(late)]]
    here = late_ranks(of_judged, LEAST_PCT)
    if here:
        cost_pct = 100 * here.data["cost_ms"] / _step_ms(judged)
        if len(of_scaled) and judged.get("slower_pct"):  # what was recorded later costs less of the whole run
            cost_pct = min(cost_pct, max(0.0, lost_pct(judged)))
        cost = {"cost_pct": cost_pct, "cost_ms": cost_pct / 100 * _step_ms(judged)}
        here = here.of(data={**here.data, **cost})
    limit = limit_of(judged)
    step, waits = _step(judged, parts_of(judged), here, limit)
    gained = gains(judged, what_ifs)
    late_here = here or late_ranks(late, LEAST_PCT)
    if of_scaled.empty:
        causes = sorted(filter(None, [waits, late_here]), key=lambda one: -one.data["cost_pct"])
        return [*_fastest(own), *step, *causes, *_advice(judged, own, gained, causes)]
    causes = _causes(judged, here, limit)
    lost = max((one.data["cost_pct"] for one in causes if one.code == "cause_of_loss"), default=0.0)
    told = {one.data["cause"] for one in causes if one.code == "cause_of_loss"}
    if waits and waits.data["cost_pct"] > lost and waits.data["cause"] not in told:
        causes.append(waits)
    if late_here and not any(one.code == "straggler_costs" for one in causes):
        causes.append(late_here)
    disagree = disagreement(what_ifs)
    return [
        *(one for one in of_points if one.code in ("devices_differ", "threads_differ")),
        *step,
        *(unsure := uncertain(own)),
        # Where intervals are too wide to tell configurations apart, there is no best one.
        *([_efficiency(best)] if worst is best or not unsure else []),
        *([_efficiency(worst)] if worst is not best else []),
        *(one for one in of_points if one.code == "above_ideal"),
        *causes,
        *(
            one.of(configuration=judged["called"])
            for one in suspected(of_judged)
            if not here and 2 * one.data["n"] > one.data["of"]
        ),
        *_measured_gain(judged, own),
        *disagree,
        *_advice(judged, own, gained[:0] if disagree else gained, causes),
    ]


def lost_pct(row: Mapping[str, Any]) -> float:
    """Percentage points that are lost to scaling."""
    return 100 - float(row["scaling_efficiency_pct"])


def half_width_pct(row: Mapping[str, Any]) -> float:
    """Of the interval of the scaling efficiency, percentage points; NaN without one."""
    return (number(row, "scaling_efficiency_pct_high") - number(row, "scaling_efficiency_pct_low")) / 2


def least_pct(row: Mapping[str, Any]) -> float:
    """Percentage points from which on a loss, or a part of it, exceeds the spread between identical runs."""
    half = half_width_pct(row)
    return _LEAST_UNREPEATED_PCT if math.isnan(half) else max(LEAST_PCT, half)


def leading(scaled: pd.DataFrame) -> tuple[dict[str, Any], dict[str, Any], dict[str, Any]]:
    """(the best and the worst configuration on the most ranks, the one whose loss is to be explained).

    The most ranks matter most; what is lost on fewer only is still lost. What a profiler slowed down is not
    compared with what it did not, where there are unprofiled runs of as many ranks. Best and worst have
    baselines of as many ranks, the fewest: 90 % of what 4 ranks give may be less than 85 % of what one does.
    ``scaled``: one or more rows of configurations that are compared with one of fewer ranks.
    """
    largest = scaled["world_size"].max()
    unprofiled = scaled[scaled["kind_of_runs"] == UNPROFILED]
    if (unprofiled["world_size"] == largest).any():
        scaled = unprofiled
    scaled = scaled.sort_values("scaling_efficiency_pct", ascending=False, kind="stable")
    widest = scaled[scaled["world_size"] == largest]
    comparable = records(widest[widest["base_world_size"] == widest["base_world_size"].min()])
    (most_lost,) = records(widest.tail(1))
    (lowest,) = records(scaled.loc[[scaled["scaling_efficiency_pct"].idxmin()]])
    enough = max(least_pct(most_lost), _LIMITING_SHARE * lost_pct(lowest))
    return comparable[0], comparable[-1], most_lost if lost_pct(most_lost) >= enough else lowest


def is_unsure(row: Mapping[str, Any]) -> bool:
    """Whether runs differ too much for the efficiency of a row to mean anything."""
    return 2 * half_width_pct(row) > WIDEST_INTERVAL_PCT


def _finding(code: str, row: Mapping[str, Any], **data: Any) -> Finding:
    data = {"on": on(row), "ranks": row["world_size"], **data}
    return Finding(code, configuration=row["called"], data=data)


def _step(
    row: Mapping[str, Any], parts_ms: Mapping[str, float], late: Finding | None, limit: str
) -> tuple[list[Finding], Finding | None]:
    """What a step takes with the shares of its parts, and the one it waits for most, if that is much.

    Shares are of the parts of profiled steps, or of stages: these are of all runs. What late ranks cost is
    not the step's own.
    """
    step_ms = _step_ms(row)
    stages = {name: number(row, f"mean_{name}_ms") for name in (*STAGES, LATE)}
    stages[LATE] = np.nan_to_num(stages[LATE])  # one rank waits for none
    profiled_alike = abs(sum(parts_ms.values()) - step_ms) <= PROFILED_ALIKE * step_ms
    divided = parts_ms if parts_ms and (profiled_alike or math.isnan(sum(stages.values()))) else stages
    if not (step_ms > 0 and sum(divided.values()) > 0):  # NaN: one is not known
        return [], None
    shares = shares_of(divided)
    step = _finding("step_takes", row, step_ns=1e6 * step_ms, parts_pct=shares, shares=in_words(shares))
    costs = of_loss(shares, late, row["world_size"])
    part, share = next((one for one in costs.items() if one[0] in WORDS["avoidable"]), ("", 0.0))
    if share < WAITING_SHARE_PCT:
        return [step], None
    lost = {"cost_pct": share, "cost_ms": share / 100 * step_ms, "cost_ns": share * 1e4 * step_ms}
    limit = limit if part == TRANSFER else ""
    of = {name: PARTS[limit or part][name] for name in ("cause", "name")}
    return [step], _finding("step_waits", row, kind=part, limit=limit, **of, **lost)


def _step_ms(row: Mapping[str, Any]) -> float:
    """The mean step of a job, as shares and losses are of means: the median is shorter where few are long."""
    mean = sum(number(row, f"mean_{name}_ms") for name in (*STAGES, LATE))
    return number(row, "step_ms") if math.isnan(mean) else mean


def _efficiency(row: Mapping[str, Any]) -> Finding:
    pct, base = row["scaling_efficiency_pct"], on(row, int(row["base_world_size"]))
    interval = ends(row, "scaling_efficiency_pct")
    return _finding("scaling_efficiency", row, pct=pct, ends=interval, base=base, scaling=row["scaling"])


def _fastest(own: pd.DataFrame) -> list[Finding]:
    """That scaling is not known and why, and the throughput that is."""
    known, one_size = own.dropna(subset="images_per_s"), own["world_size"].nunique() == 1
    reason = NO_SAMPLES if known.empty else "one world size" if one_size else "no common baseline"
    found = [Finding("scaling_unknown", data={"reason": reason})]
    for best in records(known[known["images_per_s"] == known["images_per_s"].max()].head(1)):
        rate = {"images_per_s": best["images_per_s"], "ends": ends(best, "images_per_s")}
        found.append(_finding("fastest", best, **rate))
    return found


def parts_explain(row: Mapping[str, Any]) -> bool:
    """Whether what grew in profiled runs is the loss, to within half of it."""
    rest = abs(number(row, "loss_unattributed_pct"))
    most = most_unattributed(lost_pct(row), row.get("slower_pct") or 0.0)
    return bool(rest <= most) and not other_steps(row.get("perturbation"))


def divided_loss(row: Mapping[str, Any]) -> dict[str, float]:
    """The loss by part and by the cause of waits, percentage points; by stage where parts explain it ill.

    Stages are of all runs. A profiled run whose steps were longer or shorter than the others' still tells
    what takes the time of stages, if one part is most of what it lost.

    Returns:
        Empty: neither is known.
    """
    names, waits = (EVERY, "exposed_wait") if parts_explain(row) else (BY_STAGES, LATE)
    costs = {name: number(row, f"loss_{name}_pct") for name in names}
    costs = costs if waits == LATE else finest(costs)
    if waits in costs and not other_steps(row.get("perturbation")):
        causes = {name: number(row, f"loss_{name}_pct") for name in WORDS["waits"]}
        if not math.isnan(sum(causes.values())):
            costs |= {**causes, waits: costs[waits] - sum(causes.values())}
        if waits == LATE:
            costs |= _of_stages(row, costs)
    return {} if math.isnan(sum(costs.values())) else costs


def _of_stages(row: Mapping[str, Any], costs: Mapping[str, float]) -> dict[str, float]:
    """What stages lost as the loss of the part that took it by the profile; empty: none is most of it."""
    grown = finest({name: number(row, f"loss_{name}_pct") for name in EVERY})
    largest = max(grown, key=lambda name: grown[name], default="")
    stages = WORDS["stages"].get(largest, [])
    most = UNATTRIBUTED_SHARE * sum(max(of, 0.0) for of in grown.values())
    if not stages or not grown[largest] >= max(least_pct(row), most):
        return {}
    return {**dict.fromkeys(stages, 0.0), largest: sum(costs[stage] for stage in stages)}


def of_loss(costs: Mapping[str, float], late: Finding | None, ranks: int) -> dict[str, float]:
    """Of :func:`divided_loss` what costs scaling, the largest first: :data:`LATE_RANKS`, and parts of a step.

    What late ranks cost is taken off: the others wait for them, their own step holds it. Other waits count
    with what made the last rank late.
    """
    costs = dict(costs)
    by_stages = "backward" in costs
    if late:
        own_pct = late.data["cost_pct"] * len(late.data["stragglers"]) / ranks
        waited_pct, of_late = late.data["cost_pct"] - own_pct, _LATE.get(late.data["why"], {})
        waits = [one for one in ("exposed_wait", "exposed_communication", LATE, "backward") if one in costs]
        if (of_cause := of_late.get("wait")) in costs:
            taken = min(waited_pct, max(costs[of_cause], 0.0))
            costs[of_cause] -= taken
            waited_pct -= taken
        costs[waits[0]] -= waited_pct
        # Of a node all ranks are late alike, by what is longest on them.
        own = of_late.get("stages" if by_stages else "parts") or {*costs} - {*waits, *WORDS["waits"]}
        costs[max((name for name in own if name in costs), key=lambda name: costs[name])] -= own_pct
        costs[LATE_RANKS] = late.data["cost_pct"]
    for wait, parts in WORDS["waits"].items():
        if wait in costs:
            costs[next(part for part in parts if part in costs)] += costs.pop(wait)
    return dict(sorted(costs.items(), key=lambda cost: -cost[1]))


def within(costs: Mapping[str, float], lost: float) -> dict[str, float]:
    """Costs that add up to no more than what is lost.

    Parts grew by more if others shrank, or if profiled steps were longer: they are less in proportion.
    """
    others = sum(max(cost, 0.0) for kind, cost in costs.items() if kind != LATE_RANKS)
    share = min(1.0, max(lost - costs.get(LATE_RANKS, 0.0), 0.0) / others) if others else 1.0
    return {kind: cost if kind == LATE_RANKS else share * max(cost, 0.0) for kind, cost in costs.items()}


def ends_of(row: Mapping[str, Any], kind: str, cost_pct: float) -> list[float]:
    """The interval of a cause's cost, percentage points; empty: it has none.

    Waits that are added to a part are as sure as all waits. What late ranks take off a part moves its
    interval as it moves the part.
    """
    waited = number(row, "loss_exposed_wait_pct")
    of_waits = {
        wait: number(row, f"loss_{wait}_pct") / waited if waited > 0 else 0.0 for wait in WORDS["waits"]
    }
    shares = {kind: 1.0}
    if kind == "exposed_wait":
        shares[kind] -= sum(of_waits.values())
    elif added := sum(share for wait, share in of_waits.items() if kind in WORDS["waits"][wait]):
        shares["exposed_wait"] = added
    part, low, high = (
        sum(share * number(row, f"loss_{name}_pct{end}") for name, share in shares.items())
        for end in ("", "_low", "_high")
    )
    moved = cost_pct - part
    return [low + moved, high + moved] if math.isfinite(low + high + moved) else []


def _causes(row: dict[str, Any], late: Finding | None, limit: str) -> list[Finding]:
    """What is lost, and what costs it, the largest first; each percentage point has one cause."""
    unsure = is_unsure(row)
    if not unsure and lost_pct(row) < least_pct(row):
        lost = max(0.0, lost_pct(row))
        small = _finding("loss_small", row, cause="none", cost_pct=lost, least_pct=least_pct(row))
        return [] if above_ideal(row) else [small]
    divided = divided_loss(row)
    grown = of_loss(divided, late, row["world_size"]) if divided else {}
    if not grown:
        # Half of the loss is enough to call the late rank the cause.
        known = late and late.data["cost_pct"] >= UNATTRIBUTED_SHARE * lost_pct(row)
        disagree = not math.isnan(number(row, "loss_unattributed_pct"))
        reason = STEPS_DISAGREE if disagree else row.get("loss_note") or NO_BASELINE
        data = {"cause": "cannot_tell", "cost_pct": lost_pct(row), "reason": reason}
        return [] if known or unsure else [_finding("loss_unexplained", row, **data)]
    costs = within(grown, lost_pct(row))

    def interval(kind: str) -> list[float]:
        ends = ends_of(row, kind, grown[kind]) if parts_explain(row) and grown[kind] > 0 else []
        # A cause costs no more than may be lost.
        return [float(np.fmin(costs[kind] / grown[kind] * end, number(row, "loss_pct_high"))) for end in ends]

    def found(kind: str, code: str = "cause_of_loss") -> Finding:
        if kind == LATE_RANKS and late:
            return late.of(data={**late.data, "on": on(row)})
        part, pct, ends = PARTS[(kind == TRANSFER and limit) or kind], costs[kind], interval(kind)
        most = float(np.fmax(pct, number(row, "loss_pct_high")))  # no more than all that may be lost
        name = part.get("name_strong", part["name"]) if row.get("scaling") == "strong" else part["name"]
        data = {
            "kind": kind, "limit": limit if kind == TRANSFER else "", "cause": part["cause"],
            "name": name, "cost_pct": pct, "ends": ends, "high_pct": ends[1] if ends else most,
            "grown": [grown[kind]] if grown[kind] - pct >= _SHOWN_PCT and not late else [],
            "cost_ms": pct / 100 * _step_ms(row), "lost_pct": lost_pct(row),
        }  # fmt: skip
        return _finding(code, row, **data)

    enough = max(least_pct(row), _LIMITING_SHARE * lost_pct(row))
    large = [kind for kind, cost in costs.items() if cost >= enough] or list(costs)[:1]
    if unsure:  # nothing is certain, and what is most is not hidden
        return [found(kind, "cause_uncertain") for kind in large[:2] if kind != LATE_RANKS]
    certain = [one for one in large if not (ends := interval(one)) or ends[0] >= _SHOWN_PCT][:2]
    least = costs[certain[-1]] if certain else 0.0
    doubtful = [one for one in large if one not in certain and costs[one] >= least][:2]
    few_pct = number(row, "loss_few_steps_pct")
    few = [_finding("loss_in_few_steps", row, few_pct=few_pct)] if few_pct >= enough else []
    doubts = [found(kind, "cause_uncertain") for kind in doubtful]
    return [_lost(row, costs), *few, *map(found, certain), *doubts]


def _lost(row: Mapping[str, Any], costs: Mapping[str, float]) -> Finding:
    """What is lost in all, as nodes (or GPUs) whose work it is, and by part: the parts add up to it."""
    nodes = row.get("nodes") or 1
    of, unit = (nodes, "nodes") if nodes > 1 else (row["world_size"], on(row).split()[1])
    rest = lost_pct(row) - sum(costs.values())
    data = {
        "cause": "none", "cost_pct": lost_pct(row), "cost_ms": lost_pct(row) / 100 * _step_ms(row),
        "lost": lost_pct(row) / 100 * of, "of": of, "unit": unit,
        "parts_pct": {**costs, "unattributed": rest},
    }  # fmt: skip
    return _finding("loss", row, **data)


def same(row: Mapping[str, Any], other: Mapping[str, Any], names: Sequence[str]) -> bool:
    """Whether two rows have the same fields of these."""
    return all(str(row.get(name)) == str(other.get(name)) for name in names)


def gains(row: Mapping[str, Any], what_ifs: pd.DataFrame) -> pd.DataFrame:
    """The what-ifs of a configuration on the fewest ranks that were simulated.

    Where the curve is the better founded prediction, the simulation advises nothing.
    """
    if what_ifs.empty:
        return what_ifs
    known = (what_ifs["what_if"] != "") & what_ifs["gain_pct"].notna() & what_ifs["believed"]
    own = what_ifs[known]
    own = own.loc[[same(one, row, CONFIGURATION) for one in records(own)]]
    return own[own["world_size"] == own["world_size"].min()]


def disagreement(what_ifs: pd.DataFrame) -> list[Finding]:
    """Where the ranges of curve and simulation, of the job as it is, do not overlap."""
    if what_ifs.empty:
        return []
    ahead = what_ifs[(what_ifs["what_if"] == "") & ~what_ifs["backtest"]]
    lows = ahead.groupby(["of", "world_size"])["images_per_s_low"].transform("max")
    apart = ahead[ahead["images_per_s_high"].fillna(math.inf) < lows.fillna(0.0)]
    return [Finding("predictions_disagree", data={"ranks": int(ranks)}) for ranks in apart["world_size"][:1]]


def was_measured(what_if: Mapping[str, Any], own: pd.DataFrame) -> bool:
    """Whether a row of several ranks has the change, and is otherwise of the same configuration."""
    fields = {"fp16-gradients": ("grad", "fp16"), "bucket-mb": ("bucket_mb", ""),
              "no-loader": ("loader", "synthetic")}  # fmt: skip
    name, _, value = what_if["what_if"].partition("=")
    field, measured = fields.get(name, ("", value))
    names = [one for one in (*CONFIGURATION, *own_names(what_if)) if one != field]
    several = [row for row in records(own[own["world_size"] > 1]) if same(row, what_if, names)]
    # A what-if says 50 where the field is 50.0.
    return any(str(row.get(field)).removesuffix(".0") == (measured or value) for row in several if field)


def _advice(
    row: Mapping[str, Any], own: pd.DataFrame, gained: pd.DataFrame, causes: Sequence[Finding]
) -> list[Finding]:
    """What may help: simulated changes of what costs most, the cheapest first; else what is known to help.

    Options are named of our own trainer's runs alone, and not what is set already.
    """
    ours = not row.get("program")
    measured = {one["what_if"] for one in records(gained) if was_measured(one, own)}
    simulated = {one["what_if"].partition("=")[0]: one for one in records(gained)}  # network=2x: network
    found: dict[str, Finding] = {}
    plain: list[Finding] = []
    costly = [one for one in causes if "kind" in one.data]
    for cause in sorted(costly, key=lambda one: -one.data["cost_pct"]):
        of_late = _LATE.get(cause.data.get("why", ""), {}).get("advice")
        codes = PARTS[cause.data.get("limit") or cause.data["kind"]]["advice"]
        codes = [of_late, *codes] if of_late else codes
        known = {
            code: _ADVICE[code] for code in codes
            if not any(row.get(name) in values for name, values in _ADVICE[code].get("done", {}).items())
        }  # fmt: skip
        # Without what costs so much of a step; a simulation that gives less than half of it explains it ill.
        gone_pct = 100 * cause.data["cost_pct"] / max(100 - cause.data["cost_pct"], 1)
        settable, most_pct = [], 0.0
        for code, one in known.items():
            gain = simulated.get(one.get("what_if", ""))
            least = gone_pct / 2 if one.get("only") else LEAST_GAIN_PCT
            if gain and gain["gain_pct"] >= max(least, most_pct) and gain["what_if"] not in measured:
                found[code] = _simulated(row, code, gain, ours)
                settable += [] if one.get("only") else [code]
                most_pct = gain["gain_pct"] + LEAST_GAIN_PCT  # what is dearer has to gain more
        others = {code: one for code, one in known.items() if one.get("what_if") not in simulated}
        if not plain and (of_late or not settable) and cause.code != "cause_uncertain":
            plain = advised(cause.data.get("name", f"late {cause.data.get('why')}"), list(others), ours)
    order = sorted(found.values(), key=lambda one: (_PRICES.index(one.data["price"]), -one.data["gain_pct"]))
    return [*order[:_MOST_GAINS], *plain]


def advised(against: str, codes: Sequence[str], ours: bool) -> list[Finding]:
    """What may help, in words for our own trainer's runs or others; bounds, which nobody can set, are not."""
    codes = [code for code in codes if not _ADVICE[code].get("only")]
    words = [_words(code, ours) for code in codes[:_MOST_WORDS]]
    data = {"against": against, "advice": codes, "words": words}
    return [Finding("advice", data=data)] if codes else []


def _words(code: str, ours: bool) -> str:
    return str(_ADVICE[code].get("ours" if ours else "words", _ADVICE[code]["words"]))


def _simulated(row: Mapping[str, Any], code: str, gain: Mapping[str, Any], ours: bool) -> Finding:
    names = ("images_per_s", "images_per_s_low", "images_per_s_high", "gain_pct", "what_if")
    unchanged = gain["images_per_s"] / (1 + gain["gain_pct"] / 100)
    data = {
        **{name: gain.get(name) for name in names}, "ranks": gain["world_size"],
        "range": [100 * (end / unchanged - 1) for end in ends(gain, "images_per_s")],
        "on": on(row, gain["world_size"]), "advice": [code], "price": _ADVICE[code]["cost"],
        "words": _words(code, ours),
    }  # fmt: skip
    return Finding("gain_simulated", data=data)


def _measured_gain(row: Mapping[str, Any], own: pd.DataFrame) -> list[Finding]:
    """The option that made this configuration fastest, where runs tell the two apart; nothing if none did.

    Their confidence intervals of images/s do not overlap: stricter than a test of the difference.
    """
    faster = [
        (number(other, "images_per_s") / row["images_per_s"] - 1, other, option)
        for other in records(own)
        if (option := only_difference(row, other))
        and number(other, "images_per_s_low") > number(row, "images_per_s_high")
    ]
    if not faster:
        return []
    gain, best, option = max(faster, key=lambda one: one[0])
    values = {"value": str(best[option]), "instead_of": str(row[option])}
    return [_finding("gain_measured", row, option=option, **values, gain_pct=100 * gain)]


def only_difference(row: Mapping[str, Any], other: Mapping[str, Any]) -> str:
    """The one option in which two rows differ; empty: in none, in more, or in what is no option."""
    differing = [name for name in point_names(row, other) if row.get(name) != other.get(name)]
    # Without a loader nothing is learnt: that is a bound of the others.
    bound = other.get("loader") == "synthetic" != row.get("loader")
    return differing[0] if len(differing) == 1 and differing[0] in OPTIONS and not bound else ""
