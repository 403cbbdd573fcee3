"""Answers as tables that sort, and rows of runs as rows of points: a bar, and a table's row, a point."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd

from analysis.display.metrics import FIELDS, RANKS_PER_NODE, TELLING, Column, Rows, telling
from analysis.display.numbers import label_of, plain
from analysis.display.terminal import Part, by_repetition
from analysis.report.render import Cell, Heading, Row, TableView
from jobs.run import Run
from jobs.run_fields import fields_of, own_names

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


# In these the runs of one bar may differ.
_OF_A_RUN = ("run", "repetition", "seed", "attribute_from")


def merged(rows: Rows, figures: Sequence[str], apart: Sequence[str] = ()) -> Rows:
    """A row a point: the mean of its runs' ``figures``, and ``runs``, how many these are.

    A figure that one of the runs does not know is not known of the point. Where a row is one of several of a
    run (a collective, say) and some runs lack it, it counts there as 0. What is neither a figure nor tells
    rows apart is kept where it is the same in all runs, so that no other column ever parts a point's runs.

    Args:
        rows: of runs, each with its ``run``.
        apart: what tells the rows of a run apart.
    """
    points: dict[tuple, set[str]] = {}
    groups: dict[tuple, Rows] = {}
    for row in rows:
        point = point_of(row)
        points.setdefault(point, set()).add(row["run"])
        groups.setdefault((point, _key(row, apart)), []).append(row)
    return [
        _same(members) | _means(members, figures, len(points[point])) | {"runs": len(points[point])}
        for (point, _), members in groups.items()
    ]


def _same(members: Rows) -> dict[str, Any]:
    """What the rows have in common; None: they differ."""
    return {
        name: value if all(str(one.get(name)) == str(value) for one in members) else None
        for name, value in members[0].items()
        if name not in _OF_A_RUN
    }


def _means(members: Rows, figures: Sequence[str], runs: int) -> dict[str, Any]:
    """Figures of a point of so many runs, of those of its rows in them."""
    means: dict[str, Any] = {}
    for name in figures:
        values = np.array([one.get(name) for one in members], dtype=float)  # None becomes NaN
        mean = float(values.sum() / runs)
        # As many batches in each run are so many, and not "25.00".
        counted = all(isinstance(one.get(name), int) for one in members) and mean.is_integer()
        means[name] = None if np.isnan(mean) else int(mean) if counted else mean
    return means


def knowing(rows: Rows, figure: str) -> Rows:
    """The rows of runs, less those that do not know a figure where another run of their point does."""

    def has_figure(row: Mapping[str, Any]) -> bool:
        return row.get(figure) is not None and bool(np.isfinite(row[figure]))

    points = {point_of(row) for row in rows if has_figure(row)}
    return [row for row in rows if has_figure(row) or point_of(row) not in points]


def point_of(row: Mapping[str, Any]) -> tuple:
    """Which point a row is of: its run's fields, and the factors of a program's own."""
    return _key(row, [*TELLING, *own_names(row)])


def _key(row: Mapping[str, Any], names: Iterable[str]) -> tuple:
    return tuple((name, str(row.get(name))) for name in names if name not in _OF_A_RUN)


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
