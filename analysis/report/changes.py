"""What changed between two sets of runs? Each configuration, part of a step and kernel, before and after.

What differs beyond chance is what :mod:`analysis.measures.scaling.compared` finds; nothing is tested here.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pandas as pd

from analysis.display import plots
from analysis.display.colours import GREEN, GREY, SKY, VERMILLION
from analysis.display.lines import EFFICIENCY, THROUGHPUT
from analysis.display.metrics import CONFIDENCE, CONFIGURATION, NOMINAL, Metric, Rows, columns
from analysis.display.numbers import signed
from analysis.display.terminal import Part
from analysis.measures.anatomy import rows as anatomy
from analysis.measures.anatomy.divide import EVERY, PARTS, finest
from analysis.measures.scaling.compare_rows import Key, verdict_of
from analysis.measures.scaling.compared import Compared
from analysis.measures.scaling.points import point_names
from analysis.report.base import Content, Context, content_or_why
from analysis.report.encoded import bar_chart, line_chart
from analysis.report.per_point import labels_of, named
from analysis.report.render import Chart, Section
from analysis.report.scaling import anatomy_of_points, points_against_ranks
from analysis.report.views import as_view, facts
from profiling.errors import UserError

MOST_BARS = 40  # configurations of the chart of changes, and kernels
TOP_KERNELS = 15  # of a configuration, that changed most
RESULTS = "results"  # the factor by which charts of both tell them apart
_CHANGE = {"show": signed(2), "places": 2}
METRICS = (
    CONFIGURATION,
    Metric("a", "median step duration in A, over its runs", "step A\nms"),
    Metric("b", "median step duration in B, over its runs", "step B\nms"),
    Metric(
        "effect_pct",
        "step duration of B divided by that of A, minus 1; the interval holds the effects that the test "
        "does not reject (analysis.compare)",
        "change of step\n%",
        NOMINAL,
        places=2,
    ),
    Metric(
        "verdict",
        "of analysis.compare. slower or faster: significant at 5 %; no difference shown: none was found; too "
        "few runs: no result could have been significant",
        text=True,
    ),
    Metric("a_images_per_s", "images of all ranks divided by A's time", "images\n/s A", CONFIDENCE),
    Metric("b_images_per_s", "the same in B", "images\n/s B", CONFIDENCE),
    Metric(
        "rate_pct",
        "change of throughput that follows from the change of the step, its interval too: both sides "
        "compute as many images per step",
        "change of\nimages/s, %",
        NOMINAL,
        places=2,
    ),
    Metric("a_efficiency_pct", "scaling efficiency in A, of A's baseline", "efficiency A\n%", CONFIDENCE),
    Metric("b_efficiency_pct", "scaling efficiency in B, of B's baseline", "efficiency B\n%", CONFIDENCE),
    Metric("efficiency_points", "B minus A, percentage points", "change of\nefficiency", show=signed(1)),
)  # fmt: skip
_PARTS = (
    CONFIGURATION,
    Metric("a_wall_ms", "recorded step in A, mean over steps, ranks and runs", "step A\nms"),
    Metric("b_wall_ms", "the same in B", "step B\nms"),
    Metric("difference_ms", "B minus A", "B - A\nms", show=signed(2)),
)
_KERNELS = (
    CONFIGURATION,
    Metric("figure", "kernel and its direction", "kernel", text=True),
    Metric("a", "time per step and rank in A; 0: A has no such kernel", "A, ms\nper step"),
    Metric("b", "time per step and rank in B; 0: B has no such kernel", "B, ms\nper step"),
    Metric("difference_ms", "B minus A", "B - A\nms", show=signed(3)),
    Metric("effect_pct", "b divided by a, minus 1", "change\n%", NOMINAL, places=1),
    Metric("verdict", "of analysis.compare; new: only in B; gone: only in A", text=True),
)
_STAGES = (
    CONFIGURATION,
    Metric("figure", "stage of a step", "stage", text=True),
    Metric("a", "median in A, over its runs", "A\nms"),
    Metric("b", "median in B, over its runs", "B\nms"),
    Metric("effect_pct", "b divided by a, minus 1", "change\n%", NOMINAL, places=1),
    Metric("verdict", "of analysis.compare", text=True),
)
_COLOURS = {"slower": VERMILLION, "faster": GREEN, "no difference": GREY, "too few runs": SKY}
_SHOWN = {"no difference": "no difference shown"}


@dataclass(frozen=True)
class Sides:
    """Two sets of runs, what they are called, and what differs."""

    a: Context
    b: Context
    names: tuple[str, str]
    compared: Compared

    @property
    def factors(self) -> list[str]:
        """By which the page is filtered: of both sides the same."""
        return self.b.factors


# --- configurations -------------------------------------------------------------------------------------


def configurations(sides: Sides) -> Rows:
    """A row for each configuration that both have unprofiled runs of; with :data:`METRICS`."""
    found = sides.compared.by_configuration("batch")
    before, after = (_by_key(context.own, sides.compared.across) for context in (sides.a, sides.b))
    rows = []
    for key, tested in found:
        of_a, of_b = before.get(key, {}), after.get(key, {})
        row = {**_fields(of_b), "facts": facts(of_b, sides.factors), **_of_test(tested, len(found))}
        for side, of_side in (("a", of_a), ("b", of_b)):
            row |= _with_ends(of_side, "images_per_s", f"{side}_images_per_s")
            row |= _with_ends(of_side, "scaling_efficiency_pct", f"{side}_efficiency_pct")
        row["efficiency_points"] = _difference(row, "a_efficiency_pct", "b_efficiency_pct")
        rows.append({**row, **_rates(tested)})
    return _called(rows, sides)


def _by_key(rows: Rows, across: Sequence[str]) -> dict[Key, dict[str, Any]]:
    """Rows by the configuration that analysis.compare knows them by."""
    return {_key(row, across): row for row in rows}


def _key(row: Mapping[str, Any], across: Sequence[str]) -> Key:
    return tuple((name, str(row.get(name))) for name in point_names(row) if name not in across)


def _fields(row: Mapping[str, Any]) -> dict[str, Any]:
    return {name: row.get(name) for name in point_names(row)}


def _of_test(tested: Mapping[str, Any], tests: int) -> dict[str, Any]:
    names = ("family", "figure", "a", "b", "effect_pct", "effect_pct_low", "effect_pct_high")
    said = verdict_of(tested, tests)
    return {name: tested[name] for name in names} | {
        "judged": tested["verdict"], "verdict": _SHOWN.get(said, said)
    }  # fmt: skip


def _with_ends(row: Mapping[str, Any], name: str, new: str) -> dict[str, Any]:
    return {f"{new}{end}": row.get(f"{name}{end}") for end in ("", "_low", "_high")}


def _difference(row: Mapping[str, Any], a: str, b: str) -> float:
    known = [math.nan if row[name] is None else float(row[name]) for name in (a, b)]
    return known[1] - known[0]


def _rates(tested: Mapping[str, Any]) -> dict[str, float]:
    """What a change of the step is of images/s: the longer the step, the fewer."""
    ends = {"": "", "_low": "_high", "_high": "_low"}
    return {
        f"rate_pct{end}": 100 * (1 / (1 + tested[f"effect_pct{other}"] / 100) - 1)
        for end, other in ends.items()
    }


def _called(rows: Rows, sides: Sides) -> Rows:
    return [
        {**row, "configuration": label}
        for row, label in zip(rows, labels_of(rows, sides.factors), strict=True)
    ]


def _changes(sides: Sides) -> Content:
    rows = configurations(sides)
    text = (
        "Unprofiled runs of the configurations that both have. Negative changes of the step: B is faster. "
        "Intervals: 95 % confidence. Verdicts are those of analysis.compare, corrected for the number of "
        "configurations; a change without a verdict may be chance."
    )
    view = as_view(Part("", rows, columns(METRICS)), "change-table", sides.factors)
    return Content(text, [_chart(rows)], [view], finding=counted(rows))


def counted(rows: Rows) -> str:
    """``Of 5 configurations 4 are faster and 1 shows no difference.``"""
    said = {
        "faster": "{} faster", "slower": "{} slower", "no difference": "{} without a difference shown",
        "too few runs": "{} with too few runs to tell",
    }  # fmt: skip
    counts = {verdict: sum(row["judged"] == verdict for row in rows) for verdict in said}
    parts = [said[verdict].format(count) for verdict, count in counts.items() if count]
    return f"Of {len(rows)} configuration{'s' if len(rows) > 1 else ''}: {', '.join(parts)}."


def _chart(rows: Rows) -> Chart:
    """The change of each configuration's step; of many those that changed most, up and down."""
    ordered = sorted(rows, key=lambda row: row["effect_pct"])
    half = MOST_BARS // 2
    drawn = ordered if len(ordered) <= MOST_BARS else [*ordered[:half], *ordered[-half:]]
    figure = plots.changes(pd.DataFrame(drawn), _COLOURS, "Change of the step, B relative to A", _SHOWN)
    caption = "Error bars: 95 % confidence intervals. Left of 0: B is faster."
    if len(drawn) < len(rows):
        caption += f" Of {len(rows)} configurations the {half} that became fastest and the {half} slowest."
    return Chart(
        "change", figure, "Change of the step's duration of each configuration, in %", caption, wide=True
    )


# --- scaling --------------------------------------------------------------------------------------------


def _scaling(sides: Sides) -> Content:
    points = []
    curves = max(sides.a.curves, sides.b.curves, key=len)
    for context, name in zip((sides.a, sides.b), sides.names, strict=True):
        # A base point that is lent from another configuration has the facts of those that it stands for.
        for point in points_against_ranks(context.own, curves):
            with_side = {**point["facts"], RESULTS: name}
            points.append({**point, "facts": with_side, "label": f"{name}: {point['label']}"})
    if not points:
        raise UserError("neither side has unprofiled runs")
    charts = [
        line_chart(
            sides.b, f"changed-{axes.y}", points, axes, f"{axes.title} of both results, by ranks", [RESULTS]
        )
        for axes in (THROUGHPUT, EFFICIENCY)
    ]
    text = "Both results in one chart. Error bars: 95 % confidence intervals over repeated runs."
    rows = configurations(sides)
    most = max(
        rows, key=lambda row: (row["nodes"] * row["gpus_per_node"], abs(row["efficiency_points"] or 0))
    )
    finding = ""
    if not math.isnan(most["efficiency_points"]):
        finding = (
            f"Scaling efficiency of {most['configuration']}: {most['a_efficiency_pct']:.0f} % in A, "
            f"{most['b_efficiency_pct']:.0f} % in B."
        )
    return Content(text, charts, finding=finding)


# --- parts of a step, stages ------------------------------------------------------------------------------


def part_changes(sides: Sides) -> Rows:
    """A row for each configuration that both have profiled runs of: what grew, what shrank, in ms."""
    across = sides.compared.across
    before, after = (_by_key(anatomy_of_points(context.study), across) for context in (sides.a, sides.b))
    rows = []
    for key, of_b in after.items():
        if of_a := before.get(key):
            walls = {"a_wall_ms": of_a["wall_ms"], "b_wall_ms": of_b["wall_ms"]}
            grew = {f"{name}_ms": ms for name, ms in _grew(of_a, of_b).items()}
            total = {"difference_ms": of_b["wall_ms"] - of_a["wall_ms"]}
            rows.append({**_fields(of_b), "facts": facts(of_b, sides.factors), **walls, **total, **grew})
    if not rows:
        raise UserError("no configuration has profiled runs on both sides")
    return _called(rows, sides)


def _grew(a: Mapping[str, Any], b: Mapping[str, Any]) -> dict[str, float]:
    """Part -> by how much it is longer in B; split as far as both are."""
    of_a, of_b = (finest({name: row[f"{name}_ms"] for name in EVERY}) for row in (a, b))
    if set(of_a) != set(of_b):
        of_a, of_b = ({name: float(row[f"{name}_ms"]) for name in PARTS} for row in (a, b))
    return {name: of_b[name] - of_a[name] for name in of_a}


def _anatomy(sides: Sides) -> Content:
    rows = part_changes(sides)
    frame = named(
        [{name: value for name, value in row.items() if name != "facts"} for row in rows], sides.factors
    )
    label = "Growth of each part of a step from A to B, in milliseconds"
    chart = bar_chart(
        sides.b, "changed-parts", frame, plots.PART_COLOURS, "Growth of a step, B minus A", label
    )
    grown = [metric for metric in anatomy.METRICS if any(metric.name in row for row in rows)
             and metric.name.removesuffix("_ms") in plots.PART_COLOURS]  # fmt: skip
    view = as_view(Part("", rows, columns((*_PARTS, *grown))), "changed-parts-table", sides.factors)
    text = (
        "B minus A, ms per step, of profiled runs: mean over steps, ranks and runs. Parts that grew are "
        "positive, parts that shrank negative; they sum to the difference of the recorded step. Profiled "
        "runs are few: these differences say where to look and have no verdict; the stages below have one."
    )
    return Content(text, [chart], [view], finding=_largest_part(rows))


def _largest_part(rows: Rows) -> str:
    """The part that changed most in the configuration of most ranks."""
    most = max(rows, key=lambda row: (row["nodes"] * row["gpus_per_node"], abs(row["difference_ms"])))
    parts = {name: most[f"{name}_ms"] for name in plots.PART_COLOURS if f"{name}_ms" in most}
    ordered = sorted(parts.items(), key=lambda part: -abs(part[1]))
    largest = [f"{name.replace('_', ' ')} {ms:+.2f} ms" for name, ms in ordered[:2]]
    return (
        f"A recorded step changes by {most['difference_ms']:+.2f} ms, of which {' and '.join(largest)} "
        f"({most['configuration']})."
    )


def _tested(family: str, sides: Sides) -> Rows:
    """The rows of a family, each with its configuration's name and facts."""
    found = sides.compared.by_configuration(family)
    sources = _by_key([source.fields for source in sides.b.study.sources], sides.compared.across)
    rows = []
    for key, row in found:
        fields = sources[key]
        rows.append({**_fields(fields), "facts": facts(fields, sides.factors), **_of_test(row, len(found))})
    return rows


def _stages(sides: Sides) -> Content:
    rows = _called_by_point(_tested("stages", sides), sides)
    if not rows:
        raise UserError("neither side has unprofiled runs")
    view = as_view(Part("", rows, columns(_STAGES)), "changed-stages-table", sides.factors)
    text = "Stages of a step in unprofiled runs, with the verdicts of analysis.compare."
    sure = [row for row in rows if row["judged"] in ("slower", "faster")]
    finding = "No stage is longer or shorter beyond chance."
    if all(row["judged"] == "too few runs" for row in rows):
        finding = "Too few runs to tell whether a stage changed."
    if sure:
        most = max(sure, key=lambda row: abs(row["b"] - row["a"]))
        finding = (
            f"Largest change beyond chance: {most['figure'].removesuffix('_ms')} "
            f"{most['b'] - most['a']:+.3g} ms ({most['configuration']})."
        )
    return Content(text, tables=[view], finding=finding)


def _called_by_point(rows: Rows, sides: Sides) -> Rows:
    """Rows of which several are of one configuration, with its name."""
    points: dict[Key, dict[str, Any]] = {_key(row, ()): row for row in rows}
    names = dict(zip(points, labels_of(list(points.values()), sides.factors), strict=True))
    return [{**row, "configuration": names[_key(row, ())]} for row in rows]


# --- kernels --------------------------------------------------------------------------------------------


def kernel_changes(sides: Sides) -> Rows:
    """The kernels that changed most, a row each; those that only one side has, too."""
    rows = [{**row, "difference_ms": row["b"] - row["a"]} for row in _tested("kernels", sides)]
    both = {key for key, _ in sides.compared.by_configuration("kernels")}
    sources = _by_key([source.fields for source in sides.b.study.sources], sides.compared.across)
    for verdict, here, there in (("gone", "a", "b"), ("new", "b", "a")):
        values, others = getattr(sides.compared, here), getattr(sides.compared, there)
        for (key, family, figure), of_runs in values.items():
            if family == "kernels" and key in both and (key, family, figure) not in others:
                ms = float(pd.Series(of_runs).median())
                fields = sources[key]
                rows.append({
                    **_fields(fields), "facts": facts(fields, sides.factors), "figure": figure, here: ms,
                    there: 0.0, "difference_ms": ms if here == "b" else -ms, "judged": verdict,
                    "verdict": verdict,
                })  # fmt: skip
    by_point: dict[Key, Rows] = {}
    for row in sorted(rows, key=lambda row: -abs(row["difference_ms"])):
        by_point.setdefault(_key(row, ()), []).append(row)
    return _called_by_point([row for of in by_point.values() for row in of[:TOP_KERNELS]], sides)


def _kernels(sides: Sides) -> Content:
    rows = kernel_changes(sides)
    if not rows:
        raise UserError("no configuration has profiled runs on both sides")
    most = max(rows, key=lambda row: (row["nodes"] * row["gpus_per_node"], abs(row["difference_ms"])))
    of_most = [row for row in rows if row["configuration"] == most["configuration"]]
    figure = plots.growth(pd.DataFrame(of_most), f"Kernels that changed most: {most['configuration']}")
    chart = Chart("changed-kernels", figure, "Growth of kernels from A to B, in milliseconds per step")
    note = f"The {TOP_KERNELS} of each configuration that changed most."
    view = as_view(Part("", rows, columns(_KERNELS), note), "changed-kernels-table", sides.factors, True)
    text = (
        "Time per step and rank of profiled runs. The verdicts of analysis.compare need several profiled "
        "runs of each configuration."
    )
    changed = f"{most['figure']} {most['difference_ms']:+.3g} ms per step"
    finding = f"Largest change: {changed} ({most['configuration']})."
    return Content(text, [chart], [view], finding=finding)


# --- what could not be compared ---------------------------------------------------------------------------


def _alone(sides: Sides) -> Content:
    """The configurations that only one side has, all of them by name."""
    notes = [
        f"only in {name}: {one}"
        for name, names in zip(sides.names, sides.compared.alone, strict=True)
        for one in names
    ]
    if not notes:
        text = "Both results have the same configurations."
        return Content(text, finding=text)
    sizes = zip(sides.names, map(len, sides.compared.alone), strict=True)
    counts = [f"{count} only in {name}" for name, count in sizes if count]
    return Content(
        "Nothing is said of configurations that only one side has.", notes=notes,
        finding=f"Configurations on one side: {', '.join(counts)}.",
    )  # fmt: skip


SECTIONS: Sequence[tuple[str, str, Callable[[Sides], Content]]] = (
    ("change", "Which configurations changed?", _changes),
    ("changed-scaling", "How does it scale, before and after?", _scaling),
    ("changed-parts", "What grew and what shrank in a step?", _anatomy),
    ("changed-stages", "Which stages of a step changed?", _stages),
    ("changed-kernels", "Which kernels changed?", _kernels),
    ("not-compared", "What could not be compared?", _alone),
)


def sections(sides: Sides) -> list[Section]:
    """The sections that say what changed."""
    return [Section(id, heading, **vars(content_or_why(build, sides))) for id, heading, build in SECTIONS]
