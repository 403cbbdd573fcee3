"""What sections of the report are built from: a study's context, what a section is, its tables and charts.

A section's file defines a :class:`SectionKind`; a line in :data:`analysis.report.build.SECTIONS` puts it on
the page.
"""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

import pandas as pd

from analysis.display import lines, plots
from analysis.display.lines import caption, encode, stacked
from analysis.display.metrics import FIELDS, RANKS_PER_NODE, Column, Rows, records, telling
from analysis.display.numbers import label_of, plain
from analysis.display.terminal import Answer, Part, by_repetition
from analysis.frames.study import Study
from analysis.measures import factors, scaled
from analysis.report.render import Cell, Chart, Heading, Row, Section, TableView
from jobs.run import Run
from jobs.run_fields import FACTOR, fields_of
from profiling.errors import UserError

_SIZE = ("nodes", "gpus_per_node", "world_size")
T = TypeVar("T")


# --- configurations and their names ---

# Fields that may tell configurations apart, in the order in which one reads them.
_FIRST = (
    "model", "loader", "workers", "batch", "grad", "compute", "nodes", "gpus_per_node", "world_size",
    "network", "backend", "image_size", "channels_last", "compile", "bucket_mb", "data_format", "threads",
    "sync_stages",
)  # fmt: skip
FACTORS = ("job", *_FIRST, *(name for name in fields_of("workload") if name not in _FIRST))


def varied(rows: Iterable[Mapping[str, Any]], fields: Sequence[str] = FACTORS) -> list[str]:
    """The fields that tell rows apart."""
    return telling(list(rows), fields)


def called(row: Mapping[str, Any], fields: Sequence[str]) -> str:
    """A configuration's name: ``dali-cpu, fp16 gradients``."""
    return label_of(row, fields) or str(
        row.get("model") or row.get("job") or row.get("program") or "all runs"
    )


def facts(row: Mapping[str, Any], fields: Sequence[str]) -> dict[str, Any]:
    """What the filters look at: a value a factor."""
    return {name: plain(row.get(name)) for name in fields}


def as_view(part: Part, id: str, factors: Sequence[str], searchable: bool = False) -> TableView:
    """A terminal's table as one of the report: it sorts by the figures themselves."""
    part = by_repetition(part)
    columns = [_heading(column) for column in part.columns]
    rows = [Row([_cell(column, row) for column in part.columns], facts(row, factors)) for row in part.rows]
    return TableView(id, columns, rows, searchable, part.caption, part.title)


def with_ranks(view: TableView) -> TableView:
    """A table of runs without GPUs: what a node has of them is ranks."""
    per_node, ranks = in_a_line(FIELDS["gpus_per_node"].header), in_a_line(RANKS_PER_NODE)
    named = [replace(one, header=ranks) if one.header == per_node else one for one in view.columns]
    return replace(view, columns=named)


def in_a_line(header: str) -> str:
    """A header that is broken into lines for the terminal."""
    return header.replace("-\n", "").replace("/\n", "/").replace("\n", " ")


def _heading(column: Column) -> Heading:
    return Heading(in_a_line(column.header), column.help, numeric=not column.left)


def _cell(column: Column, row: Mapping[str, Any]) -> Cell:
    text, value = column.text(row), plain(column.value(row))
    if column.left:
        return Cell(text, wide=len(text) > 40)
    return Cell(text, value if isinstance(value, int | float) else "", numeric=True)


def by_configuration(frame: pd.DataFrame, figures: Sequence[str], factors: Sequence[str]) -> pd.DataFrame:
    """The bars of a chart, one a configuration: means of its runs' ``figures``, its ``label`` and ``facts``.

    Args:
        frame: a row a run, with its fields.
        factors: the fields that tell configurations apart.
    """
    keys = [name for name in factors if name in frame]
    by = [frame[name] for name in keys] or [pd.Series(0, frame.index)]
    # What one configuration is called, and its size.
    others = [name for name in ("model", "job", "program", "nodes", "gpus_per_node") if name in frame]
    # A run that knows less (no collectives, say) has in other parts what the others have in these.
    known = frame[list(figures)].notna().sum(axis=1)
    fullest = known == known.groupby(by, dropna=False).transform("max")
    grouped = frame[fullest].groupby([one[fullest] for one in by], dropna=False, sort=False)
    first = grouped[list(dict.fromkeys([*keys, *others]))].first()
    means = pd.concat([first, grouped[list(figures)].mean()], axis=1).reset_index(drop=True)
    rows = records(means)
    labels = [called(row, keys) for row in rows]
    return means.assign(label=labels, facts=pd.Series([facts(row, factors) for row in rows]))


def named(rows: Rows, fields: Sequence[str], factors: Sequence[str] | None = None) -> pd.DataFrame:
    """Rows with what the bars of a chart need: a ``label`` that no other row has, and ``facts``.

    Bars of one label would be stacked: where ``fields`` do not tell the rows apart, what else differs does.

    Args:
        factors: what the filters look at; by default ``fields``.
    """
    labels = labels_of(rows, fields)
    tips = [facts(row, fields if factors is None else factors) for row in rows]
    return pd.DataFrame([
        {**row, "label": label, "facts": fact} for row, label, fact in zip(rows, labels, tips, strict=True)
    ])  # fmt: skip


def labels_of(rows: Rows, fields: Sequence[str]) -> list[str]:
    """What each row is called, by ``fields`` and, as far as these leave rows alike, by what else differs."""
    rest = (*FACTORS, *(name for name in Run.model_fields if name not in FACTORS), "repetition")
    distinguishing = list(fields)
    for name in varied(rows, [name for name in rest if name not in distinguishing]):
        labels = [called(row, distinguishing) for row in rows]
        if len(set(labels)) == len(labels):
            break
        if len({called(row, [*distinguishing, name]) for row in rows}) > len(set(labels)):
            distinguishing.append(name)
    return [called(row, distinguishing) for row in rows]


# --- sections ---


class Context:
    """A study, and what several sections read of it.

    Attributes:
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

    def __init__(self, study: Study) -> None:
        self.study = study
        methods = ["corrected"] if study.of_kind("run", "pyprof") else []
        methods = [*methods, "published"] if study.tau_intervals else methods
        # Traces alone have no such rows: the section of traces has theirs.
        asked = methods or not study.of_kind("trace")
        rows = records(scaled.configurations(study, methods)) if asked else []
        self.own = [row for row in rows if row.get("scaling")]
        self.others = [row for row in rows if not row.get("scaling")]
        self.configurations = [*(source.fields for source in study.sources), *self.others]
        self.factors = varied(self.configurations, [name for name in FACTORS if name != "world_size"])
        self.traces = list(study.of_kind("trace"))
        jobs = {row["batch"] * row["world_size"] for row in self.own if row["scaling"] == "strong"}
        self.lines = [name for name in self.factors if name != "batch" or len(jobs) != 1]
        self.series = [name for name in self.lines if name not in _SIZE]
        at = [tuple(str(row.get(name)) for name in (*self.series, "world_size")) for row in self.own]
        repeated = len(set(at)) < len(at) and "gpus_per_node" in self.lines
        self.curves = [*self.series, "gpus_per_node"] if repeated else self.series
        self._results: dict[Callable[..., Any], Any] = {}

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

    def rows_if_any(self, compute: Callable[["Context"], Rows | Answer]) -> Rows:
        """The rows of a measure; none where it cannot answer."""
        try:
            answer = self.once(compute)
        except UserError:
            return []
        return records(answer.rows) if isinstance(answer, Answer) else answer

    def with_facts(self, points: Rows, lines: Sequence[str]) -> Rows:
        """Points of lines with ``facts``: what tells lines apart, and what else filters know of them."""
        names = dict.fromkeys([*lines, *(name for name in self.factors if name != "nodes")])
        return [{**point, "facts": facts(point, list(names))} for point in points]

    def by_effect(self, names: Sequence[str]) -> list[str]:
        """Factors, the one that explains most first; those whose effect is not known as they were, last."""
        # Effects name a factor of a program's own as its sweep file does.
        place = {row["factor"]: number for number, row in enumerate(self.once(effects))}
        return sorted(names, key=lambda name: place.get(name.removeprefix(FACTOR), len(place)))


def effects(context: Context) -> Rows:
    """What each factor and each pair explains (:func:`factors.effects`); empty: nothing varies."""
    try:
        _, observations = context.once(responses)
        return records(factors.effects(observations))
    except UserError:
        return []


def responses(context: Context) -> tuple[str, pd.DataFrame]:
    """What the factors are to explain, and the observations: of :func:`factors.responses`.

    Raises:
        UserError: the study holds no repeated runs, nor TAU tables.
    """
    return factors.responses(context.study)


@dataclass(frozen=True)
class Content:
    """What a section shows below its heading."""

    text: str = ""
    charts: Sequence[Chart] = ()
    tables: Sequence[TableView] = ()
    notes: Sequence[str] = ()


def _always(context: Context) -> bool:
    return True


@dataclass(frozen=True)
class SectionKind:
    """A section as it can be of any study.

    Attributes:
        id: the anchor that findings of the opening link to.
        build: its content. What it raises as UserError becomes the section's text.
        applies: whether the page has it; where it does not, nobody would look for it.
        on_cpus: its heading for runs without GPUs, if that is another.
        opened: whether the page shows its content at once.
    """

    id: str
    heading: str
    build: Callable[[Context], Content]
    applies: Callable[[Context], bool] = _always
    on_cpus: str = ""
    opened: bool = False

    def section(self, context: Context) -> Section | None:
        """The section of a study's page; None where it does not apply."""
        heading = self.heading
        try:
            if not self.applies(context):
                return None
            content = self.build(context)
        except UserError as error:
            content = Content(f"Not available: {portable(str(error), [context.study.path])}.")
        if context.study.on_cpus:
            heading = self.on_cpus or heading
            content = replace(content, tables=[with_ranks(view) for view in content.tables])
        return Section(self.id, heading, **vars(content), opened=self.opened)


def portable(text: str, folders: Iterable[Path]) -> str:
    """The text with the absolute paths of these folders, and in them, from the folder's name on.

    A report is sent to others, to whom this machine's folders mean nothing.
    """
    for folder in folders:
        for path in dict.fromkeys((folder, folder.resolve())):
            if path.is_absolute() and path.name:
                # Not of a folder whose name only begins like this one's.
                text = path.name.join(re.split(rf"{re.escape(str(path))}(?!\w)", text))
    return text


MOST_BARS = 16  # that a chart names one by one


def line_chart(context: Context, id: str, points: Rows, axes: lines.Axes, first: Sequence[str] = ()) -> Chart:
    """Lines of the points of a sweep, by the factors that matter most.

    Args:
        points: with the columns of ``axes``, ``facts`` (the factors that tell lines apart) and ``label``.
        first: factors that get the best channels, whatever they explain.
    """
    facts = [point["facts"] for point in points]
    others = context.by_effect([name for name in facts[0] if name not in first])
    encoding = encode(facts, [*first, *others])
    sizes = [name for name in ("nodes", "gpus_per_node") if name in context.factors]
    sized = [
        {**point, "sizes": {name: point[name] for name in sizes if point.get(name) is not None}}
        for point in points
    ]
    figure = lines.lines(pd.DataFrame(sized), encoding, axes, _name)
    wide = bool(encoding.columns)
    said = [caption(encoding)]
    if plots.is_cut(figure):
        said.append(plots.CUT)
    return Chart(id, figure, " ".join(filter(None, said)), wide)


def bar_chart(
    context: Context,
    id: str,
    points: pd.DataFrame,
    colours: dict[str, str],
    title: str,
    unit: str = "ms",
    of: str = "ms per step",
) -> Chart:
    """Stacked bars: one for each configuration, or, of many, one for each number of ranks in panels.

    Args:
        points: as :func:`plots.parts` has them, with the fields of the runs.
    """
    # Of a trace the nodes are not known.
    sized = {"nodes", "gpus_per_node"} <= set(points) and points["nodes"].notna().all()
    if len(points) <= MOST_BARS or not sized:
        return Chart(id, plots.parts(points, colours, title, unit=unit, of=of))
    facts = points["facts"].tolist()
    factors = [name for name in facts[0] if name not in ("nodes", "gpus_per_node")]
    encoding = encode(facts, context.by_effect(factors), are_bars=True)
    # Only the parts: a field of the run may be called like one (compute).
    columns = {part: points[f"{part}_{unit}"] for part in colours if f"{part}_{unit}" in points}
    ranks = points["nodes"] * points["gpus_per_node"]
    by_part = pd.DataFrame({**columns, "ranks": ranks, "facts": points["facts"]})
    figure = stacked(by_part, encoding, colours, title, of, _name)
    said = caption(encoding, spread="error bars")
    return Chart(id, figure, said, bool(encoding.columns))


def with_lines(points: Rows, x: str) -> Rows:
    """The points of configurations that were measured at several ``x``; all of them if none was."""
    measured: dict[str, set[Any]] = {}
    for point in points:
        measured.setdefault(point["label"], set()).add(point[x])
    return [point for point in points if len(measured[point["label"]]) > 1] or points


def _name(factor: str, level: Any) -> str:
    return called({factor: level}, [factor])
