"""How is what runs cost shown? The table's columns, and what stands below it."""

from collections.abc import Mapping, Sequence
from typing import Any

from analysis.display.metrics import Column, Metric, Rows, columns, fields, filled, telling
from analysis.display.numbers import digits
from analysis.measures.scaling.expense import MEMORY, METRICS, RANK_METRICS, Spent
from analysis.measures.scaling.point import POINT_FIELDS
from jobs.run import Run
from profiling.wording import how_many

_NOT_SHOWN = ("kind_of_runs", "node", "memory_rank", "least_memory_gb", "energy_note")


def caption(rows: Rows, runs: Sequence[Spent], interrupted: int = 0) -> str:
    """What stands below the table: the node-hours of all, and why energies are not there.

    Args:
        interrupted: how many runs began and did not end (:func:`interrupted_of`).
    """
    total, failed = (sum(run.node_hours for run in runs if run.counts is counts) for counts in (True, False))
    used = sum(run.counts for run in runs)
    whole, of_used, of_failed = (digits(hours, 3) for hours in (total + failed, total, failed))
    if used < len(runs):
        lines = [
            f"Node-hours: {whole}, of which {of_used} for {how_many(used, 'used run')} and {of_failed} for "
            f"{how_many(len(runs) - used, 'failed run')} (of runs that failed repeatedly in the same way, "
            "the last)."
        ]
    else:
        lines = [f"Node-hours: {whole} for {how_many(used, 'used run')}."]
    lines.append(
        "Node-hours are of the runs only, each by its own nodes. A job takes more: it holds all its nodes "
        "also while it starts, calibrates, and runs on fewer of them."
    )
    if interrupted:
        lines.append(f"Not counted: {how_many(interrupted, 'interrupted run')}, whose time was not recorded.")
    for why in dict.fromkeys(row.get("energy_note") for row in rows):
        if why:
            lines.append(f"No energy: {why}.")
    return "\n".join(lines)


def columns_of(by_rank: bool = False) -> list[Metric]:
    """The columns of :func:`rows`."""
    return [*fields(POINT_FIELDS), *(RANK_METRICS if by_rank else METRICS)]


def shown(rows: Rows) -> list[Column]:
    """The tables' columns: fields that vary, and figures that are known."""
    figures = RANK_METRICS if "rank" in rows[0] else METRICS
    wanted = [metric for metric in figures if metric.name not in _NOT_SHOWN]
    made = [metric.column() if metric is not MEMORY else _memory_column(rows) for metric in wanted]
    return filled([*columns(fields(telling(rows, Run.model_fields))), *made], rows)


def _memory_column(rows: Rows) -> Column:
    """The memory, and of a configuration which rank needed so much: ``4.21 (rank 3)``."""

    def printed(row: Mapping[str, Any]) -> str:
        memory, rank = MEMORY.printed(row), row.get("memory_rank")
        return memory if rank is None else f"{memory} (rank {rank})"

    return MEMORY.column("most memory\nof a rank, GB" if "rank" not in rows[0] else None, printed)
