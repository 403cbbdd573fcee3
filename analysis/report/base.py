"""What is a section of the report to the rest? An id, a heading, when it applies and how it is built.

A section's file defines a :class:`SectionKind`; a line in :data:`analysis.report.build.SECTIONS` puts it on
the page.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Protocol, TypeVar

from analysis.display.metrics import Rows
from analysis.measures.scaling import factors
from analysis.measures.scaling.rows import without_baseline
from analysis.published import by_method
from analysis.report.choices import Coverage, Key
from analysis.report.portable import portable
from analysis.report.render import Chart, Section, TableView
from analysis.report.sentences import first_sentence
from analysis.report.views import FACTORS, facts, varied, with_ranks
from analysis.results.source import Source
from analysis.results.study import Study
from jobs.run_fields import FACTOR
from profiling.errors import UserError

_SIZE = ("nodes", "gpus_per_node", "world_size")


class OfFolders(Protocol):
    """What is made of results in some folders."""

    @property
    def folders(self) -> Sequence[Path]: ...


T = TypeVar("T")
S = TypeVar("S", bound=OfFolders)


class Context:
    """What sections are built from: a study, and what several of them read of it.

    Args:
        beside: the study with which it is compared: what varies in either is a factor of both.
        across: fields in which the two may differ, which are no factors.

    Attributes:
        study: whose page it is.
        whole: of all configurations; the context itself, if it is not of some of them (:meth:`only`).
        configurations: the fields of runs, and the rows of tables that the reference published.
        traces: the jobs that it has traces of.
        own: rows of analysis.scaled of runs of our own.
        others: those of tables that the reference published.
        factors: the fields of ``Run`` that vary, but for the world size: by these the page is filtered.
        lines: the factors that may tell lines of a chart apart: not the batch size of a GPU where that of the
            job is constant.
        series: those of ``lines`` that tell one line against ranks from another: not the number of ranks.
        curves: ``series``, and the ranks per node where a number of ranks was measured on several numbers of
            nodes: no line has two points at one number of ranks.

    Raises:
        UserError: nothing in the study can be reported.
    """

    def __init__(self, study: Study, beside: Study | None = None, across: Sequence[str] = ()) -> None:
        self.study = study
        self.whole = self
        methods = ["corrected"] if study.of_kind("run", "pyprof") else []
        methods = [*methods, "published"] if study.tau_intervals else methods
        # Traces alone have no such rows: the section of traces has theirs.
        rows = by_method.rows(study, methods) if methods or not study.of_kind("trace") else []
        own = [row for row in rows if row.get("scaling")]
        others = [row for row in rows if not row.get("scaling")]
        configurations = [*(source.fields for source in study.sources), *others]
        fields = [*configurations, *(source.fields for source in (beside.sources if beside else ()))]
        names = [name for name in FACTORS if name not in ("world_size", *across)]
        self._hold(configurations, own, others, varied(fields, names))

    def _hold(self, configurations: Rows, own: Rows, others: Rows, factors: Sequence[str]) -> None:
        self.configurations, self.own, self.others, self.factors = configurations, own, others, list(factors)
        self.traces = [source for source in self.sources if source.kind == "trace"]
        jobs = {row["batch"] * row["world_size"] for row in own if row["scaling"] == "strong"}
        self.lines = [name for name in factors if name != "batch" or len(jobs) != 1]
        self.series = [name for name in self.lines if name not in _SIZE]
        at = [tuple(str(row.get(name)) for name in (*self.series, "world_size")) for row in own]
        repeated = len(set(at)) < len(at) and "gpus_per_node" in self.lines
        self.curves = [*self.series, "gpus_per_node"] if repeated else self.series
        self._results: dict[Callable[..., Any], Any] = {}

    @property
    def sources(self) -> list[Source]:
        """The runs, traces and PyProf tables that count."""
        return list(self.study.sources)

    def has(self, source: Source) -> bool:
        """Whether a run is of this context's configurations."""
        return True

    def once(self, compute: Callable[["Context"], T]) -> T:
        """What ``compute`` gives for this context, or raises; computed when it is first asked for."""
        if compute not in self._results:
            try:
                self._results[compute] = compute(self)
            except UserError as error:
                self._results[compute] = error
        result = self._results[compute]
        if isinstance(result, UserError):
            raise result
        answer: T = result
        return answer

    def rows_of(self, measure: Callable[["Context"], Rows]) -> Rows:
        """The rows of a measure of the whole, of the configurations that this context is of."""
        return self.once(measure)

    @property
    def folders(self) -> Sequence[Path]:
        """Where its results are, which the page does not say: it is sent to others."""
        return [self.study.path]

    def only(self, left: frozenset[Key]) -> "Context":
        """The same of some configurations, as :attr:`coverage` knows them."""
        return _Part(self, left)

    @cached_property
    def coverage(self) -> Coverage:
        """Of which configurations a row is, by the levels of the factors."""
        return Coverage(self.factors, self.configurations)

    def with_facts(self, points: Rows, lines: Sequence[str]) -> Rows:
        """Points of lines with ``facts``: what tells lines apart, and what else filters know of them."""
        names = dict.fromkeys([*lines, *(name for name in self.factors if name != "nodes")])
        return [{**point, "facts": facts(point, list(names))} for point in points]

    def by_effect(self, names: Sequence[str]) -> list[str]:
        """Factors, the one that explains most first; those whose effect is not known as they were, last."""
        # Effects name a factor of a program's own as its sweep file does.
        place = {row["factor"]: number for number, row in enumerate(self.once(effects))}
        return sorted(names, key=lambda name: place.get(name.removeprefix(FACTOR), len(place)))


class _Part(Context):
    """A context of the configurations that the page's filters leave.

    No measure is asked again: of what it says of all configurations, some rows are left. So a sentence has
    the figures of the page's tables and charts, of which filters leave the same rows. What configurations are
    called tells them from each other, not from those that are left out.
    """

    def __init__(self, whole: Context, left: frozenset[Key]) -> None:
        self.study, self.whole, self._left = whole.study, whole, left
        self._sources = [source for source in whole.sources if self.has(source)]
        configurations = self.rows_of(_configurations)
        own = self.rows_of(_own)
        if len({row["world_size"] for row in own}) == 1:
            own = [without_baseline(row) for row in own]  # nothing of this size says how training scales
        self._hold(configurations, own, self.rows_of(_others), varied(configurations, whole.factors))

    @property
    def sources(self) -> list[Source]:
        return self._sources

    def has(self, source: Source) -> bool:
        return self._leaves(self.whole.once(_covered)[source.id])

    def rows_of(self, measure: Callable[[Context], Rows]) -> Rows:
        rows = self.whole.once(measure)
        of = self.whole.coverage.of_rows(measure, rows)
        return [row for row, covered in zip(rows, of, strict=True) if self._leaves(covered)]

    def _leaves(self, covered: frozenset[Key]) -> bool:
        """Whether a row of these configurations is left: if they all are."""
        return bool(covered) and covered <= self._left


def _covered(context: Context) -> dict[str, frozenset[Key]]:
    return {source.id: context.coverage.of(source.fields) for source in context.study.loaded}


def _configurations(context: Context) -> Rows:
    return context.configurations


def _own(context: Context) -> Rows:
    return context.own


def _others(context: Context) -> Rows:
    return context.others


def effects(context: Context) -> Rows:
    """What each factor, and each pair of them, explains: of :func:`factors.rows`; empty: nothing varies."""
    try:
        _, cells = context.once(responses)
        return factors.rows(cells)
    except UserError:
        return []


def responses(context: Context) -> tuple[str, list[factors.Cell]]:
    """What the factors are to explain, and its values by configuration.

    Raises:
        UserError: the study holds no repeated runs, nor TAU tables.
    """
    return factors.responses(context.study)


@dataclass(frozen=True)
class Content:
    """What a section says below its heading.

    Attributes:
        finding: the answer in a sentence, of all configurations whatever filters are set; by default
            :attr:`SectionKind.finding`.
    """

    text: str
    charts: Sequence[Chart] = ()
    tables: Sequence[TableView] = ()
    notes: Sequence[str] = ()
    finding: str = ""


def _always(context: Context) -> bool:
    return True


def _of_opening(context: Context) -> str:
    return ""


@dataclass(frozen=True)
class SectionKind:
    """A section as it can be of any study.

    Attributes:
        id: the anchor that sentences of the opening link to.
        heading: its question.
        build: its content. What it raises as UserError becomes the section's sentence.
        applies: whether the page has it; where it does not, nobody would look for it.
        on_cpus: its question of runs without GPUs, if that is another.
        finding: the answer in a sentence, of the configurations that filters leave; empty: the opening's
            sentence that refers to the section.
    """

    id: str
    heading: str
    build: Callable[[Context], Content]
    applies: Callable[[Context], bool] = _always
    on_cpus: str = ""
    finding: Callable[[Context], str] = _of_opening

    def section(self, context: Context) -> Section | None:
        """The section of a study's page; None where it does not apply."""
        content = content_or_why(self._content, context)
        heading = self.heading
        if content and context.study.on_cpus:
            heading = self.on_cpus or heading
            content = replace(content, tables=[with_ranks(view) for view in content.tables])
        if content and content.finding:
            return Section(self.id, heading, **vars(content))
        return Section(self.id, heading, **vars(content), follows=True) if content else None

    def said(self, context: Context) -> str:
        """Its finding, or why there is none."""
        try:
            return self.finding(context)
        except UserError as error:
            return first_sentence(_why(error, context))

    def _content(self, context: Context) -> Content | None:
        return self.build(context) if self.applies(context) else None


def content_or_why(build: Callable[[S], T], of: S) -> T | Content:
    """What ``build`` gives, or in a sentence why it is not known."""
    try:
        return build(of)
    except UserError as error:
        text = _why(error, of)
        return Content(text, finding=first_sentence(text))


def _why(error: UserError, of: OfFolders) -> str:
    return f"Not available: {portable(str(error), of.folders)}."
