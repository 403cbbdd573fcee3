"""What does the first screen show beside its sentences? A small drawing of what each answer rests on."""

import math

from analysis.display.numbers import digits
from analysis.measures.anatomy.divide import EVERY, finest
from analysis.measures.scaling.certainty import leading, without_unusable_intervals
from analysis.measures.scaling.loss import without_meaningless_parts
from analysis.measures.scaling.point import UNPROFILED
from analysis.report import prediction, small, traced_advice, traced_opening
from analysis.report.base import Context
from analysis.report.forecast import to_try
from analysis.report.sentences import LOST, SCALES, TRY, number
from analysis.report.views import called, varied

_LEAST = 0.05  # of a bar: percent, percentage points


def drawings(context: Context) -> dict[str, small.Drawing]:
    """Question of the opening -> its drawing, where there is something to draw."""
    of_traces = bool(context.traces) and not context.own
    lost = traced_opening.step_drawing(context) if of_traces else _lost(context)
    tried = traced_advice.savings(context) if of_traces else _gains(context)
    drawn = {SCALES: _scaling(context), LOST: lost, TRY: tried}
    return {question: drawing for question, drawing in drawn.items() if drawing}


def _scaling(context: Context) -> small.Drawing | None:
    """The best and the worst configuration on the most ranks."""
    rows = context.own or context.others
    fields = context.curves if context.own else [
        name for name in varied(rows) if name not in ("nodes", "world_size")
    ]  # fmt: skip
    curves: dict[str, dict[float, float]] = {}
    ends: dict[str, dict[float, tuple[float, float]]] = {}
    # Of one name and size, what unprofiled runs say is drawn: the last.
    ordered = sorted(rows, key=lambda row: row.get("kind_of_runs") == UNPROFILED)
    for row in map(without_unusable_intervals, ordered):
        if row.get("world_size") and not math.isnan(number(row, "scaling_efficiency_pct")):
            curve = curves.setdefault(called(row, fields), {})
            if base := row.get("base_world_size"):
                curve.setdefault(base, 100.0)
            curve[row["world_size"]] = row["scaling_efficiency_pct"]
            low, high = row.get("scaling_efficiency_pct_low"), row.get("scaling_efficiency_pct_high")
            ends.setdefault(called(row, fields), {}).pop(row["world_size"], None)
            if low is not None and high is not None and -math.inf < low < high < math.inf:
                ends.setdefault(called(row, fields), {})[row["world_size"]] = low, high
    lines = {name: sorted(curve.items()) for name, curve in curves.items() if len(curve) > 1}
    if not lines:
        return None
    most = max(points[-1][0] for points in lines.values())
    largest = {name: points for name, points in lines.items() if points[-1][0] == most}
    # A line that begins on more ranks is relative to these: it is not ranked with the others.
    first = min(points[0][0] for points in largest.values())
    widest = sorted((points[-1][1], name) for name, points in largest.items() if points[0][0] == first)
    names = dict.fromkeys((widest[-1][1], widest[0][1]))
    label = "Scaling efficiency by number of ranks"
    label += ", of the best and the worst configuration" if len(names) > 1 else ""
    label += ", with 95 % confidence intervals" if any(ends.get(name) for name in names) else ""
    return small.lines([(name, lines[name]) for name in names], "%", label, ends)


def _lost(context: Context) -> small.Drawing | None:
    """The largest parts of the loss of the configuration that is explained; None where they are not known."""
    scaled = [row for row in context.own if row["world_size"] != row["base_world_size"]]
    if not scaled:
        return None
    # The parts of another configuration would be taken for those of the one that the sentences are of.
    judged = without_meaningless_parts(leading(scaled)[-1])
    if judged["loss_unattributed_pct"] is None:
        return None
    parts = finest({name: judged.get(f"loss_{name}_pct") for name in EVERY})
    parts["unattributed"] = number(judged, "loss_unattributed_pct")
    largest = sorted(parts.items(), key=lambda part: -part[1])[: small.MOST_BARS]
    shown = [(name.replace("_", " "), value) for name, value in largest if value >= _LEAST]
    of = called(judged, context.series)
    label = (
        f"Percentage points of scaling efficiency lost on {judged['world_size']} ranks ({of}), largest parts"
    )
    # Else the parts that are drawn seem to add up to more than is lost.
    shrank = {name.replace("_", " "): value for name, value in parts.items() if value <= -_LEAST}
    below = [f"{name} {digits(value, 3)}" for name, value in shrank.items()]
    label += f"; below 0 and not shown: {', '.join(below)}" if below else ""
    unsure = {name.replace("_", " ") for name, _ in largest if number(judged, f"loss_{name}_pct_low") <= 0}
    return small.bars(shown, "points", label, unsure) if shown else None


def _gains(context: Context) -> small.Drawing | None:
    """What the changes would give that were simulated together with the one that gives most."""
    rows = prediction.known(context) if context.own else []
    best = to_try(rows, context.own)
    if best is None:
        return None
    alike = [
        row
        for row in rows
        if row["world_size"] == best["world_size"]
        and row.get("what_if")
        and (row.get("gain_pct") or 0) >= _LEAST
        and prediction.same_configuration(row, best)
    ]
    alike.sort(key=lambda row: -row["gain_pct"])
    shown = [(row["what_if"], row["gain_pct"]) for row in alike[: small.MOST_BARS]]
    return small.bars(shown, "%", f"Simulated gain in images/s on {best['world_size']} ranks, by change")
