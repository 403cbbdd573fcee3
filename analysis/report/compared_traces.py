"""What changed between the traces of two jobs, or of several pairs? As analysis.compare has it."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import pandas as pd

from analysis.display import plots
from analysis.display.metrics import Rows
from analysis.display.numbers import change
from analysis.measures.scaling import traced_difference
from analysis.report import beside, changed_steps
from analysis.report.base import Context
from analysis.report.choices import Coverage, Key
from analysis.report.filtered import Said, filtered
from analysis.report.render import Chart, Page, Section
from analysis.report.sentences import GREW, Sentence
from analysis.report.views import as_view, facts
from analysis.results.study import Study
from profiling.errors import UserError

_NONE_LEFT = "Not compared: each of the chosen jobs is on one side only."
_VERDICTS = {
    traced_difference.SLOWER: "Worse", traced_difference.FASTER: "Better",
    traced_difference.NOT_SHOWN: "No difference could be shown",
}  # fmt: skip


def build(a: Study, b: Study, names: tuple[str, str]) -> Page:
    """The page of two sets of traces.

    Raises:
        UserError: they have no jobs in common, or are the same.
    """
    rows = traced_difference.rows(a, b)
    if traced_difference.same_traces(rows):
        raise UserError("A and B are the same traces, so nothing can differ; compare two separate results")
    contexts = Context(a, b), Context(b, a)
    pairs, differ = _Pairs(a, b, contexts), {one.run: str(one) for one in traced_difference.unlike(a, b)}
    rows = pairs.with_fields(rows)
    text = "What other runs would differ by is not known from one of each."
    view = as_view(traced_difference.part(rows, ""), "change-table", pairs.shared)
    changed = Section(
        "change",
        "What changed?",
        text,
        _parts_charts(rows, pairs.shared),
        [view],
        finding=_in_words(rows)[0],
        follows=True,
    )
    page = beside.page(contexts, names, [changed])
    follow = [section for section in page.sections if section.follows]

    def say(left: frozenset[Key]) -> Said:
        of_pairs = pairs.left(rows, left)
        alone = beside.said((contexts[0].only(left), contexts[1].only(left)), follow)
        changed = _in_words(of_pairs)[0] if of_pairs else ""
        return replace(
            alone, findings={**alone.findings, "change": changed}, summary=_summary(of_pairs, differ)
        )

    return replace(page, summary=_summary(rows, differ), filtered=filtered(page.filters, pairs.coverage, say))


class _Pairs:
    """The jobs that are compared, by the name of their rows.

    Attributes:
        shared: the factors in which the two jobs of every pair are alike, by which filters know their rows.
        coverage: of which jobs, of either side, a row is.
    """

    def __init__(self, a: Study, b: Study, contexts: tuple[Context, Context]) -> None:
        pairs = traced_difference.pairs(a, b)
        self._fields = {
            traced_difference.name_of(one, other): (one.fields, other.fields) for one, other in pairs
        }
        factors = contexts[1].factors
        self.shared = [
            name
            for name in factors
            if all(one.get(name) == other.get(name) for one, other in self._fields.values())
        ]
        self.coverage = Coverage(factors, [one for context in contexts for one in context.configurations])

    def with_fields(self, rows: Rows) -> Rows:
        """Rows with the factors that both jobs share."""
        return [row | {name: self._fields[row["run"]][0].get(name) for name in self.shared} for row in rows]

    def left(self, rows: Rows, left: frozenset[Key]) -> Rows:
        """The rows of pairs of which filters leave a job."""
        covered = {name: [self.coverage.of(fields) for fields in both] for name, both in self._fields.items()}
        return [row for row in rows if any(one and one <= left for one in covered[row["run"]])]


def _summary(rows: Rows, differ: Mapping[str, str]) -> list[Sentence]:
    """What changed, a sentence for each pair of jobs; which are different jobs; and what grew most.

    Args:
        differ: of :func:`traced_difference.unlike`.
    """
    if not rows:
        return [Sentence(_NONE_LEFT, "change")]
    unlike = [differ[name] for name in dict.fromkeys(row["run"] for row in rows) if name in differ]
    return [*(Sentence(line, "change") for line in [*_in_words(rows), *unlike]), *_grown(rows)]


def _in_words(rows: Rows) -> list[str]:
    """Better or worse, a sentence for each pair of jobs; one that was not tested says so itself."""
    said = [str(one) for one in traced_difference.verdicts(rows)]
    verdicts = [_VERDICTS.get(row["verdict"]) for row in traced_difference.steps(rows)]
    if not verdicts:
        return said
    return [f"{verdict}: {line}" if verdict else line for verdict, line in zip(verdicts, said, strict=True)]


def _with_jobs(rows: Rows) -> Callable[[Mapping[str, Any]], str]:
    """What a row's quantity is called: of several pairs of jobs with theirs."""
    several = len({row["run"] for row in rows}) > 1
    return lambda row: f"{row['run']}: {row['quantity']}" if several else str(row["quantity"])


def _parts_charts(rows: Rows, factors: Sequence[str]) -> list[Chart]:
    """The growth of each part; none where the traces of a side hold no kernel.

    Args:
        factors: that rows have.
    """
    known = [row for row in rows if row["kind"] == "parts" and row["difference_ms"] == row["difference_ms"]]
    if not known:
        return []
    called = _with_jobs(rows)
    part = pd.DataFrame([
        {"quantity": called(row), "difference_ms": row["difference_ms"], "facts": facts(row, factors)}
        for row in sorted(known, key=lambda row: -abs(row["difference_ms"]))[: changed_steps.TOP_KERNELS]
    ])  # fmt: skip
    figure = plots.growth(part, "Parts of a step that changed most")
    return [Chart("change", figure, "Growth of each part of a step from A to B, in milliseconds")]


def _grown(rows: Rows) -> list[Sentence]:
    """The class of kernels that changed most."""
    kernels = [row for row in rows if row["kind"] == "kernels"]
    if not kernels:
        return []
    most = max(kernels, key=lambda row: abs(row["difference_ms"]))
    changed = f"{_with_jobs(rows)(most)} {change(most['difference_ms'])} ms per step"
    text = f"Largest change of a class of kernels: {changed}."
    return [Sentence(text, "change", answers=GREW)]
