"""Which configurations were measured, with which responses, and in which fields do they differ?

What :mod:`analysis.measures.scaling.factors` compares: unprofiled runs, or the reference's TAU tables.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from analysis.measures.batches.series import all_series
from analysis.measures.scaling.point import NO_SAMPLES, OWN_RUNS, point_fields
from analysis.measures.tau import applications as tau
from analysis.measures.tau.applications import EPOCH_IMAGES
from analysis.results.study import Study
from jobs.run import Run
from jobs.run_fields import ID_FIELDS, own_names
from profiling.errors import UserError


@dataclass(frozen=True)
class Cell:
    """A configuration: its fields, and the response of each repetition."""

    fields: Mapping[str, Any]
    responses: np.ndarray


def responses(study: Study) -> tuple[str, list[Cell]]:
    """What is compared, and its values by configuration.

    Raises:
        UserError: the study holds no repeated runs, nor TAU tables, or not the samples of their steps.
    """
    if study.tau_intervals:
        return "published scaling efficiency, %", _of_tau(study)
    cells: dict[tuple, tuple[dict[str, Any], list[float]]] = {}
    series = all_series(study)
    for source in study.of_kind("run"):
        if source.fields["profile"] == "none":
            fields = point_fields(source.fields)
            cell = cells.setdefault(tuple(map(str, fields.items())), (fields, []))
            cell[1].append(series[source.id].images_per_s / (source.world_size or 1))
    if not cells:
        neither = "no unprofiled run and no TAU table: there is nothing to compare"
        raise UserError(f"{study.path} holds {f'only traces: {OWN_RUNS}' if study.only_traces else neither}")
    if np.isnan([rate for _, rates in cells.values() for rate in rates]).any():
        raise UserError(f"{study.path}: {NO_SAMPLES}")
    return "images/s per rank", [Cell(fields, np.array(values)) for fields, values in cells.values()]


def _of_tau(study: Study) -> list[Cell]:
    timed, _ = tau.timed_and_started(study)
    cells = []
    for row in tau.tau_rows(study):
        seconds = timed[tuple(row[name] for name in ID_FIELDS)]
        epochs = seconds * EPOCH_IMAGES / (50 * row["batch"] * row["world_size"])
        # The efficiency of the row is of the median epoch; each repetition's is that over its own.
        cells.append(Cell(row, row["scaling_efficiency_pct"] * row["epoch_duration_s"] / epochs))
    return cells


def varying_of(cells: Sequence[Cell]) -> list[str]:
    """The fields of a run that are not the same in all configurations."""
    names = [*Run.model_fields, *own_names(*(cell.fields for cell in cells))]
    return [name for name in names if len({str(cell.fields.get(name)) for cell in cells}) > 1]
