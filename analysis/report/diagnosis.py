"""The report's opening as findings: what a step takes, how it scales, what is lost and why, what to try.

Each rule is a function of rows that measures give; ``opening.yaml`` has its words. A late rank costs a
data-parallel job its whole lateness in each step. In the anatomy that shows in two places: the others wait
for it, and its own step holds what makes it late. Both are taken off the parts, so that each percentage point
has one cause.
"""

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

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
from analysis.report import prediction, published, stragglers, traced
from analysis.report.base import Context, called
from jobs.run_fields import own_names
from profiling import yaml_text
from profiling.findings import Finding

_OPENING = yaml_text.parse(Path(__file__).with_name("opening.yaml").read_text(encoding="utf-8"))
HEADINGS = list(_OPENING["headings"])
# Code of a finding -> (heading in the opening, id of the section that backs it).
PLACES = {
    code: (heading, section)
    for heading, sections in _OPENING["headings"].items()
    for section, codes in sections.items()
    for code in codes
}
_CAUSES, _LATE = _OPENING["causes"], _OPENING["late"]
LATE_RANKS = "late ranks"  # the cause that is no part of a step
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
_NONE = pd.DataFrame()
_SHARE_OF_BANDWIDTH = 0.25  # of what transfer costs, that links of twice the bandwidth take off


def diagnosis(context: Context) -> list[Finding]:
    """The findings of the opening, in its order."""
    if len(context.own):
        return [*_incomplete(context), *_of_runs(context)]
    return [*(traced.findings_of(context) if context.traces else []), *_of_reference(context)]


def _of_runs(context: Context) -> list[Finding]:
    """How our runs scale, and the causes of the loss of the configuration that loses most."""
    names = [called(row, context.series) if context.series else None for row in records(context.own)]
    widest = context.once(stragglers.widest)
    return of_rows(
        context.own.assign(called=pd.Series(names, context.own.index, dtype=object)),
        widest.rows if widest else _NONE,
        context.frame_if_any(prediction.predicted),
        list(findings(points_of(context.study, None))),
    )


def of_rows(
    own: pd.DataFrame,
    late: pd.DataFrame = _NONE,
    predicted: pd.DataFrame = _NONE,
    of_points: Sequence[Finding] = (),
) -> list[Finding]:
    """The findings of rows of :mod:`analysis.scaled`, each with what it is ``called``.

    Args:
        late: rows of :mod:`analysis.stragglers` of the runs of most ranks, with their ``run`` and fields.
        predicted: rows of :mod:`analysis.predict` with what-ifs.
        of_points: findings on the configurations.
    """
    rows, of_scaled = records(own), records(own[own["world_size"] != own["base_world_size"]])
    if not of_scaled:
        slowest = max(rows, key=lambda row: (row["world_size"], _number(row, "step_ms")))
        return [*_fastest(rows), *_step_takes(slowest), *_if_any(late_ranks(late))]
    best, worst, judged = certainty.leading(of_scaled)
    names = (*CONFIGURATION, *own_names(judged), "nodes", "gpus_per_node")
    known = [name for name in names if name in late]
    of_judged = late.loc[[prediction.same(row, judged, known) for row in records(late)]]
    here = late_ranks(of_judged)
    gained = gains(judged, predicted)
    causes = _causes(rows, judged, here, gained)
    if not any(one.code == "straggler_costs" for one in causes):
        causes += _if_any(here or late_ranks(late))
    return [
        *(one for one in of_points if one.code in ("devices_differ", "threads_differ")),
        *certainty.uncertain(of_scaled),
        _efficiency(best),
        *([_efficiency(worst)] if worst is not best else []),
        *(one for one in of_points if one.code == "above_ideal"),
        *_step_takes(judged),
        *causes,
        *(_suspected(of_judged) if not here else []),
        *_measured_gain(judged, rows),
        *(prediction.disagreement(predicted) or _simulated(own, gained, causes, here)),
        *_advice(gained, causes, here),
    ]


def _incomplete(context: Context) -> list[Finding]:
    found = certainty.sizes_without_result(context.study)
    waiting = [one for one in context.study.failed if one.kind in ("running", "interrupted", "not started")]
    if waiting:
        of = len(context.study.of_kind("run")) + len(context.study.failed)
        found.insert(0, Finding("sweep_incomplete", data={"n": len(waiting), "of": of}))
    return found


def _if_any(finding: Finding | None) -> list[Finding]:
    return [finding] if finding else []


# --- how it scales ----------------------------------------------------------------------------------------


def _efficiency(row: Mapping[str, Any]) -> Finding:
    shown = certainty.without_unusable_intervals(row)
    data = {
        "ranks": row["world_size"], "pct": row["scaling_efficiency_pct"],
        "ends": _ends(shown, "scaling_efficiency_pct"), "base": row["base"],
        "base_images_per_s": row["base_images_per_s"], "scaling": row["scaling"],
    }  # fmt: skip
    return Finding("scaling_efficiency", configuration=row["called"], data=data)


def _fastest(rows: Rows) -> list[Finding]:
    """That scaling is not known and why, and the throughput that is."""
    known = [row for row in rows if row["images_per_s"] is not None]
    sizes = {row["world_size"] for row in rows}
    reason = NO_SAMPLES if not known else "one world size" if len(sizes) == 1 else "no common baseline"
    found = [Finding("scaling_unknown", data={"reason": reason})]
    if known:
        best = max(known, key=lambda row: row["images_per_s"])
        ends = _ends(certainty.without_unusable_intervals(best), "images_per_s")
        data = {"images_per_s": best["images_per_s"], "ends": ends, "ranks": best["world_size"]}
        found.append(Finding("fastest", configuration=best["called"], data=data))
    return found


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


def late_ranks(frame: pd.DataFrame) -> Finding | None:
    """The finding on ranks that are named in most of the runs that tell; None: there are none.

    Collectives tell by how much a rank is late, stages a lower bound of it. So either may name a rank, and
    where collectives were recorded they say by how much. Ranks are those of one cause, the latest first.

    Args:
        frame: rows of :mod:`analysis.stragglers`, of runs of one configuration and world size.
    """
    if frame.empty:
        return None
    exact = frame["told_by"] == BY_COLLECTIVES
    named = _often(frame[exact])
    named = _often(frame[~exact]) if named.empty else named
    recorded = frame[exact & frame["rank"].isin(named["rank"])]
    measured = pd.concat([recorded, named[~named["rank"].isin(recorded["rank"])]])
    of_ranks = measured["rank"]
    shares_pct = (100 * measured["mean_lateness_ms"] / measured["step_ms"]).groupby(of_ranks).median()
    shares_pct = shares_pct[shares_pct >= LEAST_PCT].sort_values(ascending=False, kind="stable")
    if shares_pct.empty:
        return None
    causes = named.groupby("rank")["cause"].agg(lambda of: Counter(of).most_common(1)[0][0])
    first = shares_pct.index[0]
    nodes, of_first = named["node"][named["rank"] == first].unique(), measured[of_ranks == first]
    data = {
        "stragglers": [int(rank) for rank in shares_pct.index if causes[rank] == causes[first]],
        "node": (nodes[0] or "") if len(nodes) == 1 else "",
        "wait_ns": 1e6 * float(of_first["mean_lateness_ms"].median()),
        "share_pct": float(shares_pct[first]), "cause": causes[first],
        "from": "collectives" if first in set(recorded["rank"]) else "stages, at least",
    }  # fmt: skip
    return Finding("straggler_costs", data=data)


def _often(frame: pd.DataFrame) -> pd.DataFrame:
    """The rows that name a straggler, of ranks that are named in most of the runs."""
    named = frame[frame["verdict"] == STRAGGLER]
    times = named.groupby("rank")["rank"].transform("size")
    return named[times > LATE_RUNS_SHARE * frame["run"].nunique()]


def _suspected(frame: pd.DataFrame) -> list[Finding]:
    """Ranks that came late by enough in a traced run, which may be chance."""
    if frame.empty:
        return []
    may_be = (frame["told_by"] == BY_COLLECTIVES) & frame["verdict"].isin((CHANCE, TOO_FEW))
    unsure = frame[may_be & is_late(frame)]
    data = {"suspects": sorted(set(unsure["rank"].tolist())),
            "wait_ns": 1e6 * float(unsure["mean_lateness_ms"].max())}  # fmt: skip
    return [Finding("straggler_suspected", data=data)] if len(unsure) else []


def of_loss(row: Mapping[str, Any], late: Finding | None) -> dict[str, float]:
    """What costs scaling in percentage points, the largest first: :data:`LATE_RANKS`, and parts of a step.

    What late ranks cost is taken off the parts: the others wait for them, their own step holds it.

    Args:
        row: of :mod:`analysis.scaled`, whose parts of the loss are known.
    """
    costs = finest({name: _number(row, f"loss_{name}_pct") for name in EVERY})
    if late:
        share_pct, own = late.data["share_pct"], len(late.data["stragglers"]) / row["world_size"]
        waits = "exposed_wait" if "exposed_wait" in costs else "exposed_communication"
        # Of a node all ranks are late alike, by what is longest on them.
        longest = max((name for name in costs if name != waits), key=lambda name: costs[name])
        part = _LATE.get(late.data["cause"], {}).get("part", longest)
        part = part if part in costs else "idle" if "idle" in costs else longest
        costs = {
            name: cost - share_pct * ((1 - own) * (name == waits) + own * (name == part))
            for name, cost in costs.items()
        }
        costs = {LATE_RANKS: share_pct, **costs}
    return dict(sorted(costs.items(), key=lambda cost: -cost[1]))


def ends_of(row: Mapping[str, Any], kind: str, cost_pct: float) -> list[float]:
    """The interval of a cause's cost, percentage points; empty: it has none.

    What late ranks take off a part moves its interval as it moves the part.
    """
    part, low, high = (_number(row, f"loss_{kind}_pct{end}") for end in ("", "_low", "_high"))
    moved = cost_pct - part
    return [low + moved, high + moved] if math.isfinite(low + high + moved) else []


def _causes(rows: Rows, row: dict[str, Any], late: Finding | None, gained: Rows) -> list[Finding]:
    """What costs the configuration its scaling, the largest first; each percentage point has one cause.

    Args:
        gained: of :func:`gains`, which tell whether bandwidth or latency limits transfer.
    """
    if certainty.is_unsure(row):
        return []  # the finding efficiency_uncertain says it
    if lost_pct(row) < least_pct(row):
        data = {"lost_pct": max(0.0, lost_pct(row)), "least_pct": least_pct(row), "ranks": row["world_size"]}
        return [] if above_ideal(row) else [Finding("loss_small", configuration=row["called"], data=data)]
    base, rest = _base_of(rows, row), _number(row, "loss_unattributed_pct")
    if base is None or math.isnan(rest):
        return _from_stages(base, row)
    if other_steps(row) or abs(rest) > UNATTRIBUTED_SHARE * row["loss_pct"]:
        # Half of the loss is enough to call the late rank the cause.
        known = late and late.data["share_pct"] >= UNATTRIBUTED_SHARE * lost_pct(row)
        return [] if known else [_unexplained(row, STEPS_DISAGREE)]
    costs = of_loss(row, late)

    def found(kind: str, code: str = "cause_of_loss") -> Finding:
        if kind == LATE_RANKS and late:
            return late
        limit = limit_of_transfer(costs[kind], gained) if kind == "exposed_transfer" else ""
        return _cause(row, kind, costs[kind], code, limit)

    enough = max(least_pct(row), LIMITING_SHARE * row["loss_pct"])
    large = [kind for kind, cost in costs.items() if cost >= enough]
    if not large:
        return [found(next(iter(costs)))]
    certain = [one for one in large if not (ends := ends_of(row, one, costs[one])) or ends[0] > 0][:2]
    least = costs[certain[-1]] if certain else 0.0
    doubtful = [one for one in large if one not in certain and costs[one] >= least][:2]
    return [*(found(kind) for kind in certain), *(found(kind, "cause_uncertain") for kind in doubtful)]


def _cause(
    row: Mapping[str, Any], kind: str, cost_pct: float, code: str = "cause_of_loss", limit: str = ""
) -> Finding:
    names = _CAUSES[kind]
    name = names.get("name_strong", names["name"]) if row.get("scaling") == "strong" else names["name"]
    name += f" ({limit})" if limit else ""
    ends = ends_of(row, kind, cost_pct)
    data = {
        "kind": kind, "limit": limit, "cause": name, "cost_pct": cost_pct, "ends": ends,
        "high_pct": ends[1] if ends else cost_pct, "lost_pct": lost_pct(row), "ranks": row["world_size"],
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
            return [_cause(row, "exposed_loader", 100 * grown_ms / _number(row, "step_ms"))]
        if not shown:
            return [_unexplained(row, IN_LONG_STEPS)]
    return [_unexplained(row, row.get("loss_note") or NO_BASELINE)]


def _base_of(rows: Rows, row: Mapping[str, Any]) -> dict[str, Any] | None:
    """The row of the baseline; None: it is not among them."""
    names = point_names(*rows)
    every = [{name: one.get(name) for name in names} for one in rows]
    place = every.index({name: row.get(name) for name in names})
    base = rows[bases_of(every, row.get("scaling", "weak"))[place]]
    return base if base["world_size"] == row["base_world_size"] else None


# --- what to try ------------------------------------------------------------------------------------------


def gains(row: Mapping[str, Any], predicted: pd.DataFrame) -> Rows:
    """The what-ifs of a configuration on the fewest ranks that were simulated.

    Where the curve is the better founded prediction, the simulation advises nothing.
    """
    if predicted.empty:
        return []
    known = (predicted["what_if"] != "") & predicted["gain_pct"].notna() & predicted["believed"]
    own = [one for one in records(predicted[known]) if prediction.same(one, row, CONFIGURATION)]
    fewest = min((one["world_size"] for one in own), default=0)
    return [one for one in own if one["world_size"] == fewest]


def _changed(one: Mapping[str, Any]) -> str:
    """What a what-if changes: ``network`` of ``network=2x``."""
    return str(one["what_if"]).partition("=")[0]


def limit_of_transfer(cost_pct: float, gained: Rows) -> str:
    """``bandwidth`` or ``latency`` of the network; empty: no simulation tells them apart.

    Args:
        cost_pct: of the transfer, in percent of a step.
        gained: of :func:`gains`.
    """
    faster = next((one for one in gained if _changed(one) == "network"), None)
    if faster is None or faster.get("alpha_us") is None:
        return ""
    if faster["gain_pct"] >= _SHARE_OF_BANDWIDTH * cost_pct:
        return "bandwidth"
    return "latency" if faster["alpha_us"] > 0 else ""


def _kinds(causes: Iterable[Finding]) -> list[str]:
    return [one.data["kind"] for one in causes if "kind" in one.data]


def _simulated(
    own: pd.DataFrame, gained: Rows, causes: Sequence[Finding], late: Finding | None
) -> list[Finding]:
    """What a simulation gains by changes of what costs most, that were not measured."""
    kinds = [*_kinds(causes), *([LATE_RANKS] if late else [])]
    changes = {name for kind in kinds for name in _CAUSES[kind].get("what_ifs", ())}
    best = sorted(
        (one for one in gained if _changed(one) in changes and one["gain_pct"] >= LEAST_GAIN_PCT
         and not prediction.was_measured(one, own)),
        key=lambda one: -one["gain_pct"],
    )  # fmt: skip
    names = ("images_per_s", "images_per_s_low", "images_per_s_high", "gain_pct", "what_if")
    return [
        Finding("gain_simulated", data={
            **{name: one.get(name) for name in names}, "ranks": one["world_size"],
            "range": _ends(one, "images_per_s"),
        })
        for one in best[:_MOST_GAINS]
    ]  # fmt: skip


def _advice(gained: Rows, causes: Sequence[Finding], late: Finding | None) -> list[Finding]:
    """What may help against late ranks, and against the first cause where no simulation says it."""
    found = []
    if late and (of_late := _LATE.get(late.data["cause"])):
        data = {"cause": f"late {late.data['cause']}", "advice": of_late["advice"]}
        found.append(Finding("advice", data=data))
    for kind in _kinds(causes)[:1]:
        cause = _CAUSES[kind]
        if not set(map(_changed, gained)) & set(cause.get("what_ifs", ())):
            found.append(Finding("advice", data={"cause": cause["name"], "advice": cause["advice"]}))
    return found


def _measured_gain(row: Mapping[str, Any], rows: Rows) -> list[Finding]:
    """The option that made this configuration fastest, where runs tell the two apart; nothing if none did.

    Their confidence intervals of images/s do not overlap: stricter than a test of the difference.
    """
    faster = [
        (_number(other, "images_per_s") / row["images_per_s"] - 1, other, option)
        for other in rows
        if (option := only_difference(row, other))
        and _number(other, "images_per_s_low") > _number(row, "images_per_s_high")
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


def _of_reference(context: Context) -> list[Finding]:
    """Of tables of the reference: what they measure first, then the efficiency that was published."""
    timed = published.published(context)
    found = []
    if len(timed):
        fixed_pct = timed["batch_independent_pct"].dropna()
        if len(fixed_pct):
            data = {"pct": float(fixed_pct.median()), "n": len(fixed_pct)}
            found.append(Finding("tables_of_startup", data=data))
        largest, every_pct = int(timed["world_size"].max()), timed["scaling_efficiency_pct"]
        of_largest = every_pct[timed["world_size"] == largest]
        data = {"ranks": largest, "low_pct": float(of_largest.min()), "high_pct": float(of_largest.max()),
                "least_pct": float(every_pct.min())}  # fmt: skip
        found.append(Finding("published_efficiency", data=data))
    if len(published.known(context, "tables")):
        found.append(Finding("scaling_unknown", data={"reason": NO_DURATIONS}))
    return found


def _number(row: Mapping[str, Any], name: str) -> float:
    value = row.get(name)
    return math.nan if value is None else float(value)


def _ends(row: Mapping[str, Any], name: str) -> list[float]:
    ends = [_number(row, f"{name}_low"), _number(row, f"{name}_high")]
    return ends if bool(np.isfinite(ends).all()) else []
