"""The page that compares two results, before and after, with the verdicts of analysis.compare."""

import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd

from analysis.display import plots
from analysis.display.metrics import varied
from analysis.display.output import Answer
from analysis.display.plots import GREEN, GREY, SKY, VERMILLION
from analysis.frames.study import Study
from analysis.measures.compare import SHOWN, compared
from analysis.report.base import MOST_BARS, labels_of
from analysis.report.build import MEASURED_RUNS, MEASURED_TRACES, findings_section, provenance_of
from analysis.report.render import Chart, Line, Page, Section
from profiling.errors import UserError
from profiling.findings import lines

_LONGER, _SHORTER = "longer in B", "shorter in B"
_COLOURS = {"slower": VERMILLION, "faster": GREEN, "no difference": GREY, "too few runs": SKY,
            _LONGER: VERMILLION, _SHORTER: GREEN}  # fmt: skip


def build(a: Study, b: Study, across: Sequence[str] = ()) -> Page:
    """The page of two results, which may differ in ``across``; UserError: they have nothing in common."""
    names = names_of(a.path, b.path)
    of_traces = a.only_traces and b.only_traces
    answer = compared(a, b, across)
    if not answer.tables:
        same = "traces" if of_traces else "runs"
        raise UserError(f"A and B are the same {same}, so nothing can differ; compare two separate results")
    change = _change(answer, b)
    a.join(b)
    return Page(
        title=f"{names[1].removeprefix('B: ')} compared with {names[0].removeprefix('A: ')}",
        subtitle="; ".join(names),
        summary=[Line(text, "change") for text in lines(answer.verdict)],
        sections=[change, findings_section(a.findings, [a.path, b.path])],
        methods=MEASURED_TRACES if of_traces else MEASURED_RUNS,
        provenance=[(f"{key} of {side}", value) for side, study in (("A", a), ("B", b))
                    for key, value in provenance_of(study)],
    )  # fmt: skip


def names_of(a: Path, b: Path) -> tuple[str, str]:
    """What the two are called on their page: ``A: before``, ``B: after``."""
    paths = [a.resolve(), b.resolve()]
    named = [path.name for path in paths]
    if a.name == b.name:
        common = os.path.commonpath([path.parent for path in paths])
        named = [str(path.relative_to(common)) for path in paths]
    return f"A: {named[0]}", f"B: {named[1]}"


def _change(answer: Answer, b: Study) -> Section:
    """The change of each configuration's step as bars, of traces that of each part; and the rows of both."""
    rows = answer.rows
    bars = _parts(rows) if b.only_traces else _steps(rows, b)
    if b.only_traces:
        of = ("Parts of a step, B minus A", "ms per step, B minus A", "%{x:+.2f} ms per step")
    else:
        of = ("Step, B relative to A", "% of the step in A", "%{x:+.1f} %")
    figure = plots.bars(bars, _COLOURS, *of, SHOWN)
    charts = [Chart("change", figure)] if len(bars) else []
    tables = [replace(part, title="") for part in answer.tables]
    return Section("", charts, tables, id="change", heading="What changed?")


def _steps(rows: pd.DataFrame, b: Study) -> pd.DataFrame:
    """A bar a configuration; of too many those that changed most."""
    steps = rows[rows["kind"] == "step"]
    # A size that all have is no column.
    runs = b.of_kind("run")
    sizes = {name: {source.fields[name] for source in runs} for name in ("nodes", "gpus_per_node")}
    known = {name: steps.get(name, of.pop() if len(of) == 1 else None) for name, of in sizes.items()}
    named = steps.assign(**known).astype(dict.fromkeys(sizes, float))
    unit = "rank" if b.on_cpus else "GPU"
    labels = labels_of(named, [*dict.fromkeys(["nodes", *varied(named)])], unit)
    columns = {"effect_pct": "value", "effect_pct_low": "low", "effect_pct_high": "high", "verdict": "series"}
    bars = steps.rename(columns=columns).assign(label=labels).sort_values("value", kind="stable")
    half = MOST_BARS // 2
    return bars if len(bars) <= MOST_BARS else pd.concat([bars.head(half), bars.tail(half)])


def _parts(rows: pd.DataFrame) -> pd.DataFrame:
    """A bar a part of a step, the largest change on top."""
    parts = rows[rows["kind"] == "parts"].dropna(subset="difference_ms")
    if rows["run"].nunique() > 1:
        parts = parts.assign(quantity=parts["run"] + ": " + parts["quantity"])
    parts = parts.sort_values("difference_ms", key=lambda ms: -ms.abs(), kind="stable").head(MOST_BARS)
    series = np.where(parts["difference_ms"] > 0, _LONGER, _SHORTER)
    return parts.assign(label=parts["quantity"], value=parts["difference_ms"], series=series)
