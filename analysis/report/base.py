"""What is a section of the report to the rest? An id, a heading, when it applies and how it is built.

A section's file defines a :class:`SectionKind`; a line in :data:`analysis.report.build.SECTIONS` puts it on
the page.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from analysis.display.metrics import Rows
from analysis.measures.scaling import factors
from analysis.published import by_method
from analysis.report.render import Chart, Section, TableView
from analysis.report.sentences import first_sentence
from analysis.report.views import FACTORS, varied, with_ranks
from analysis.results.study import Study
from jobs.run_fields import FACTOR
from profiling.errors import UserError

_SIZE = ("nodes", "gpus_per_node", "world_size")
T = TypeVar("T")
S = TypeVar("S")


class Context:
    """What sections are built from: a study, and what several of them read of it.

    Args:
        beside: the study with which it is compared: what varies in either is a factor of both.
        across: fields in which the two may differ, which are no factors.

    Attributes:
        study: whose page it is.
        rows: of analysis.scaled.
        traces: the jobs that it has traces of.
        own: those of them that are of runs of our own.
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
        methods = ["corrected"] if study.of_kind("run", "pyprof") else []
        methods = [*methods, "published"] if study.tau_intervals else methods
        self.traces = study.of_kind("trace")
        # Traces alone have no such rows: the section of traces has theirs.
        self.rows = by_method.rows(study, methods) if methods or not self.traces else []
        self.own: Rows = [row for row in self.rows if row.get("scaling")]
        self.others: Rows = [row for row in self.rows if not row.get("scaling")]
        sources = [*study.sources, *(beside.sources if beside else [])]
        fields = [source.fields for source in sources] or self.rows
        self.factors = varied(fields, [name for name in FACTORS if name not in ("world_size", *across)])
        jobs = {row["batch"] * row["world_size"] for row in self.own if row["scaling"] == "strong"}
        self.lines = [name for name in self.factors if name != "batch" or len(jobs) != 1]
        self.series = [name for name in self.lines if name not in _SIZE]
        at = [tuple(str(row.get(name)) for name in (*self.series, "world_size")) for row in self.own]
        repeated = len(set(at)) < len(at) and "gpus_per_node" in self.lines
        self.curves = [*self.series, "gpus_per_node"] if repeated else self.series
        self._results: dict[Callable[..., Any], Any] = {}

    def once(self, compute: Callable[["Context"], T]) -> T:
        """What ``compute`` gives for this context; computed when it is first asked for."""
        if compute not in self._results:
            self._results[compute] = compute(self)
        result: T = self._results[compute]
        return result

    def by_effect(self, names: Sequence[str]) -> list[str]:
        """Factors, the one that explains most first; those whose effect is not known as they were, last."""
        # Effects name a factor of a program's own as its sweep file does.
        place = {row["factor"]: number for number, row in enumerate(self.once(effects))}
        return sorted(names, key=lambda name: place.get(name.removeprefix(FACTOR), len(place)))


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
        finding: the answer in a sentence; by default the opening's sentence that refers to the section.
    """

    text: str
    charts: Sequence[Chart] = ()
    tables: Sequence[TableView] = ()
    notes: Sequence[str] = ()
    finding: str = ""


def _always(context: Context) -> bool:
    return True


@dataclass(frozen=True)
class SectionKind:
    """A section as it can be of any study.

    Attributes:
        id: the anchor that sentences of the opening link to.
        heading: its question.
        build: its content. What it raises as UserError becomes the section's sentence.
        applies: whether the page has it; where it does not, nobody would look for it.
        on_cpus: its question of runs without GPUs, if that is another.
    """

    id: str
    heading: str
    build: Callable[[Context], Content]
    applies: Callable[[Context], bool] = _always
    on_cpus: str = ""

    def section(self, context: Context) -> Section | None:
        """The section of a study's page; None where it does not apply."""
        content = content_or_why(self._content, context)
        heading = self.heading
        if content and context.study.on_cpus:
            heading = self.on_cpus or heading
            content = replace(content, tables=[with_ranks(view) for view in content.tables])
        return Section(self.id, heading, **vars(content)) if content else None

    def _content(self, context: Context) -> Content | None:
        return self.build(context) if self.applies(context) else None


def content_or_why(build: Callable[[S], T], of: S) -> T | Content:
    """What ``build`` gives, or in a sentence why it is not known."""
    try:
        return build(of)
    except UserError as error:
        text = f"Not available: {error}."
        return Content(text, finding=first_sentence(text))
