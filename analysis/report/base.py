"""Building blocks of the report's sections, which :data:`analysis.report.build.CHAPTERS` puts on the page."""

import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pandas as pd

from analysis.diagnosis.evidence import PARTS, Evidence, size_of
from analysis.display import plots
from analysis.display.metrics import FACTORS, called, records, varied
from analysis.display.numbers import label_of
from analysis.display.output import Answer, Part, with_ranks
from analysis.display.plots import caption, encode
from analysis.frames.divide import EVERY, finest
from analysis.frames.study import Source, Study
from analysis.measures import factors
from analysis.report.render import Chapter, Chart, Section, facts
from jobs.run import Run
from jobs.run_fields import FACTOR
from profiling.errors import UserError

SIZE = ("nodes", "gpus_per_node", "world_size")
# Parts of a step, and stages, as the opening calls them.
NAMES = {part: words["name"] for part, words in PARTS.items() if part != "backward"}


def labelled(
    frame: pd.DataFrame, fields: Sequence[str], factors: Sequence[str] | None = None
) -> pd.DataFrame:
    """A frame with the ``label`` of each row by ``fields``, and ``facts`` by ``factors`` (or ``fields``)."""
    rows = records(frame)
    of_rows = [facts(row, fields if factors is None else factors) for row in rows]
    labels = [called(row, fields) for row in rows]
    return frame.assign(label=labels, facts=pd.Series(of_rows, frame.index, dtype=object))


def named(
    frame: pd.DataFrame, fields: Sequence[str], factors: Sequence[str] | None = None, unit: str = "GPU"
) -> pd.DataFrame:
    """:func:`labelled`, but each label is of one row: bars of one label would be stacked."""
    return labelled(frame, fields, factors).assign(label=labels_of(frame, fields, unit))


def sized(row: Mapping[str, Any], fields: Sequence[str], unit: str = "GPU") -> str:
    """:func:`called`, with the size of the job, if fields tell it: ``dali-cpu, 64 GPUs (16 nodes)``."""
    nodes, per_node = row.get("nodes"), row.get("gpus_per_node")
    count = row.get("world_size") or (nodes and per_node and nodes * per_node)
    others = [name for name in fields if name not in SIZE]
    if not count or len(others) == len(fields):
        return called(row, fields)
    name = [called(row, others)] if label_of(row, others) else []
    return ", ".join([*name, size_of(count, nodes, unit)])


def labels_of(rows: pd.DataFrame, fields: Sequence[str], unit: str = "GPU") -> list[str]:
    """What each row is called, by ``fields`` and, as far as these leave rows alike, by what else differs."""
    rest = (*FACTORS, *(name for name in Run.model_fields if name not in FACTORS), "repetition")
    distinguishing, each = list(fields), records(rows)
    for name in varied(rows, [name for name in rest if name not in distinguishing]):
        labels = {sized(row, distinguishing, unit) for row in each}
        if len(labels) == len(rows):
            break
        if len({sized(row, [*distinguishing, name], unit) for row in each}) > len(labels):
            distinguishing.append(name)
    return [sized(row, distinguishing, unit) for row in each]


def by_configuration(
    frame: pd.DataFrame, figures: Sequence[str], factors: Sequence[str], unit: str = "GPU"
) -> pd.DataFrame:
    """The bars of a chart, one a configuration: means of its runs' ``figures``, its ``label`` and ``facts``.

    ``frame``: a row a run, with its fields; ``factors``: those that tell configurations apart.
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
    labels = [sized(row, keys, unit) for row in records(means)]
    return labelled(means, keys, factors).assign(label=labels)


def finest_parts(frame: pd.DataFrame, before: str = "", after: str = "_ms") -> pd.DataFrame:
    """A frame whose parts of a step hold each time once: split where it is known how, else as a whole.

    Columns are called ``before``, the part and ``after``, the new ones without ``before``.
    """
    parts = [finest({name: row.get(f"{before}{name}{after}") for name in EVERY}) for row in records(frame)]
    return frame.assign(**{f"{name}{after}": [of.get(name, math.nan) for of in parts] for name in EVERY})


class Context(Evidence):
    """What the diagnosis reads, and several sections: by ``factors`` the page is filtered."""

    def __init__(self, study: Study, training: Mapping[str, Any] | None = None) -> None:
        super().__init__(study)
        self.training = training or {}  # as arguments of analysis.prediction.plan.plan
        self.unit = "rank" if study.on_cpus else "GPU"
        # What tells one line against ranks from another; each has one point at one number of ranks.
        at = self.own.reindex(columns=[*self.series, "world_size"]).astype(str)
        repeated = at.duplicated().any() and "gpus_per_node" in self.lines
        self.curves = [*self.series, "gpus_per_node"] if repeated else self.series

    def facts_of_lines(self, lines: Sequence[str]) -> list[str]:
        """What tells lines against nodes apart, and what else filters know of them."""
        return list(dict.fromkeys([*lines, *(name for name in self.factors if name != "nodes")]))

    def by_effect(self, names: Sequence[str]) -> list[str]:
        """Factors, the one that explains most first; those whose effect is not known as they were, last."""
        # Effects name a factor of a program's own as its sweep file does.
        place = {factor: number for number, factor in enumerate(self.once(effects)["factor"])}
        return sorted(names, key=lambda name: place.get(name.removeprefix(FACTOR), len(place)))


def effects(context: Context) -> pd.DataFrame:
    """What each factor and each pair explains (:func:`factors.effects`); no row: nothing varies."""
    try:
        return factors.effects(context.once(factors.responses, context.study)[1])
    except UserError:
        return pd.DataFrame({"factor": []})


@dataclass(frozen=True)
class SectionKind:
    """A section as it can be of any study."""

    id: str
    heading: str
    build: Callable[[Context], Section]  # raises UserError where it is not available
    applies: Callable[[Context], bool] = lambda _: True  # elsewhere nobody would look for it

    def section(self, context: Context, chapter: Chapter | None = None) -> Section | None:
        """The section of a study's page; None where it does not apply."""
        try:
            if not self.applies(context):
                return None
            section = self.build(context)
        except UserError as error:
            reason = portable(str(error), [context.study.path])
            return Section(id=self.id, heading=self.heading, chapter=chapter, unavailable=reason)
        tables = [with_ranks(part) if context.study.on_cpus else part for part in section.tables]
        return replace(section, id=self.id, heading=self.heading, tables=tables, chapter=chapter)


def portable(text: str, folders: Iterable[Path]) -> str:
    """The text with the absolute paths of these folders, and in them, from the folder's name on."""
    for folder in folders:
        for path in dict.fromkeys((folder, folder.resolve())):
            if path.is_absolute() and path.name:
                # Not of a folder whose name only begins like this one's.
                text = path.name.join(re.split(rf"{re.escape(str(path))}(?!\w)", text))
    return text


def section(
    id: str, heading: str, applies: Callable[[Context], bool] = lambda _: True
) -> Callable[[Callable[[Context], Section]], SectionKind]:
    """Make a function that builds a section's content that section."""
    return lambda build: SectionKind(id, heading, build, applies)


def bare(answer: Answer) -> list[Part]:
    """An answer's tables below a heading that has said what they are."""
    return [replace(part, title="", caption="") for part in answer.tables]


def table_of(
    id: str, heading: str, measure: Callable[[Study], Answer], applies: Callable[[Context], bool]
) -> SectionKind:
    """The section that is the table of a measure."""
    return section(id, heading, applies)(lambda context: Section(tables=measure(context.study).tables[:1]))


def chart_of(context: Context, source: Source, id: str, figure: plots.Figure, caption: str = "") -> Chart:
    """A chart of one run alone, which filters leave or take as a whole."""
    meta = facts(source.fields, context.factors)
    return Chart(id, {**figure, "data": [{**trace, "meta": meta} for trace in figure["data"]]}, caption)


MOST_BARS = 40  # of a chart


def line_chart(context: Context, id: str, points: pd.DataFrame, axes: plots.Axes) -> Chart:
    """Lines of the points of a sweep (:func:`plots.lines`), by the factors that matter most."""
    facts = points["facts"].tolist()
    encoding = encode(facts, context.by_effect(list(facts[0])))
    sizes = [name for name in ("nodes", "gpus_per_node") if name in context.factors and name in points]
    known = [{name: row[name] for name in row if row[name] is not None} for row in records(points[sizes])]
    if axes.x == "world_size":
        axes = replace(axes, x_title=f"{context.unit}s")
    figure = plots.lines(points.assign(sizes=pd.Series(known, points.index, dtype=object)), encoding, axes)
    if axes.x == "world_size":
        _name_nodes(figure["layout"], points)
    cut = plots.CUT if figure["layout"].get("meta", {}).get("cut") else ""
    return Chart(id, figure, " ".join(filter(None, [caption(encoding), cut])))


def _name_nodes(layout: dict[str, Any], points: pd.DataFrame) -> None:
    """Write ``16 nodes`` below ``64`` on the axis of ranks, where that is so of all points."""
    nodes = points.dropna(subset="nodes").groupby("world_size")["nodes"].agg(["min", "max"])
    if (nodes["max"] == 1).all():
        return
    least = nodes["min"][nodes["min"] == nodes["max"]]
    below = {ranks: f"<br>{count:.0f} node{'s' * (count != 1)}" for ranks, count in least.items()}
    axis = layout["xaxis"]
    axis["ticktext"] = [f"{ranks:g}{below.get(ranks, '')}" for ranks in axis["tickvals"]]


def bar_chart(
    id: str, points: pd.DataFrame, colours: dict[str, str], title: str, unit: str = "ms",
    of: str = "ms per step",
) -> Chart:  # fmt: skip
    """Stacked bars (:func:`plots.parts`), one for each configuration, of many those on the most ranks."""
    count, some = len(points), ""
    if count > MOST_BARS:
        size = points.reindex(columns=["nodes", "gpus_per_node"]).astype(float).product(axis=1)
        points = points.loc[size.sort_values(ascending=False, kind="stable").index[:MOST_BARS].sort_values()]
        some = f"{MOST_BARS} of {count} configurations, those on the most ranks; the table has all."
    return Chart(id, plots.parts(points, colours, title, unit=unit, of=of, names=NAMES), some)


def with_lines(points: pd.DataFrame, x: str) -> pd.DataFrame:
    """The points of configurations that were measured at several ``x``; all of them if none was."""
    several = points.groupby("label")[x].transform("nunique") > 1
    return points[several] if several.any() else points
