"""How does an answer become a table of the report? The terminal's columns, with values to sort by."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from analysis.display.metrics import FIELDS, RANKS_PER_NODE, Column, telling
from analysis.display.numbers import label_of, plain
from analysis.display.terminal import Part, by_repetition
from analysis.report.render import Cell, Heading, Row, TableView
from jobs.run_fields import fields_of

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
