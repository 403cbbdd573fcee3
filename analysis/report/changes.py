"""The page of two results, before and after: what changed, as analysis.compare and its tests have it."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pandas as pd

from analysis.display import plots
from analysis.display.lines import EFFICIENCY, THROUGHPUT
from analysis.display.metrics import Rows, records
from analysis.display.plots import GREEN, GREY, SKY, VERMILLION
from analysis.display.terminal import Answer
from analysis.frames.study import Study
from analysis.measures.compare import SHOWN, compared
from analysis.measures.watched import align_watched
from analysis.report.base import Context, as_view, labels_of, line_chart, varied
from analysis.report.build import MEASURED_RUNS, MEASURED_TRACES, findings_section, provenance_of
from analysis.report.render import Chart, Line, Page, Section
from analysis.report.scaling import points_against_ranks
from profiling.errors import UserError
from profiling.findings import lines

MOST_BARS = 40
RESULTS = "results"  # the factor by which charts of both tell them apart
_COLOURS = {"slower": VERMILLION, "faster": GREEN, "no difference": GREY, "too few runs": SKY}
_SAME = "A and B are the same {what}, so nothing can differ; compare two separate results"


def build(a: Study, b: Study, across: Sequence[str] = ()) -> Page:
    """The page of two results.

    Args:
        across: fields in which the two may differ.

    Raises:
        UserError: they have nothing in common, or one of them cannot be reported.
    """
    names = names_of(a.path, b.path)
    of_traces = all(study.only_traces for study in (a, b))
    a, b = align_watched(a, b, across)
    answer = compared(a, b, across)
    if not answer.tables:
        raise UserError(_SAME.format(what="traces" if of_traces else "runs"))
    sections = [_change_of_traces(answer)] if of_traces else [_change(answer), *_scaling(a, b, names)]
    a.log.join(b.log, a.path.resolve() == b.path.resolve())
    folders = [a.path, b.path]
    return Page(
        title=f"{names[1].removeprefix('B: ')} compared with {names[0].removeprefix('A: ')}",
        subtitle="; ".join(names),
        summary=[Line(text, "change") for text in lines(answer.verdict)],
        sections=[*sections, findings_section(a.findings, folders)],
        methods=MEASURED_TRACES if of_traces else MEASURED_RUNS,
        provenance=[(f"{key} of {side}", value) for side, study in (("A", a), ("B", b))
                    for key, value in provenance_of(study)],
    )  # fmt: skip


def names_of(a: Path, b: Path) -> tuple[str, str]:
    """What the two are called on their page: ``A: before``, ``B: after``."""
    of_a, of_b = a.resolve().name, b.resolve().name
    if of_a == of_b:
        of_a, of_b = str(a), str(b)
    return f"A: {of_a}", f"B: {of_b}"


def _change(answer: Answer) -> Section:
    """The change of each configuration's step as bars, and the rows of analysis.compare."""
    rows = records(answer.rows)
    steps = [row for row in rows if row["kind"] == "step"]
    named = [{**row, "configuration": label, "facts": {}, "judged": row["verdict"]}
             for row, label in zip(steps, labels_of(steps, varied(steps)), strict=True)]  # fmt: skip
    ordered = sorted(named, key=lambda row: row["effect_pct"])
    half = MOST_BARS // 2
    drawn = ordered if len(ordered) <= MOST_BARS else [*ordered[:half], *ordered[-half:]]
    charts = []
    if drawn:
        figure = plots.changes(pd.DataFrame(drawn), _COLOURS, "Step, B relative to A", SHOWN)
        charts = [Chart("change", figure, wide=True)]
    return _section(answer, charts)


def _section(answer: Answer, charts: Sequence[Chart]) -> Section:
    views = [as_view(replace(part, title=""), "change-table", ()) for part in answer.tables]
    return Section("change", "What changed?", "", charts, views, opened=True)


def _scaling(a: Study, b: Study, names: tuple[str, str]) -> list[Section]:
    """Throughput and efficiency of both against ranks; none where neither has unprofiled runs."""
    contexts = Context(a), Context(b)
    curves = max((context.curves for context in contexts), key=len)
    points: Rows = []
    for context, name in zip(contexts, names, strict=True):
        for point in points_against_ranks(context.own, curves):
            with_side = {**point["facts"], RESULTS: name}
            points.append({**point, "facts": with_side, "label": f"{name}: {point['label']}"})
    if not points:
        return []
    charts = [
        line_chart(contexts[1], f"changed-{axes.y}", points, axes, [RESULTS])
        for axes in (THROUGHPUT, EFFICIENCY)
    ]
    return [Section("changed-scaling", "Scaling, before and after", "", charts)]


def _change_of_traces(answer: Answer) -> Section:
    """The growth of each part of a step, and the rows of analysis.compare."""
    rows = records(answer.rows)
    parts = [row for row in rows if row["kind"] == "parts" and row["difference_ms"] is not None]
    several = len({row["run"] for row in rows}) > 1
    grown = [
        {**row, "quantity": f"{row['run']}: {row['quantity']}" if several else row["quantity"], "facts": {}}
        for row in sorted(parts, key=lambda row: -abs(row["difference_ms"]))[:MOST_BARS]
    ]
    charts = (
        [Chart("change", plots.growth(pd.DataFrame(grown), "Parts of a step, B minus A"))] if grown else []
    )
    return _section(answer, charts)
