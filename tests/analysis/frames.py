"""Rows of measures as DataFrames, and single parts of the report."""

from collections.abc import Sequence

import numpy as np
import pandas as pd

from analysis.diagnosis import diagnosis
from analysis.display.metrics import records
from analysis.frames.matching import Matched, match
from analysis.frames.study import Study
from analysis.measures import critical_path, kernels, scaled, stragglers
from analysis.report.base import Context
from analysis.report.build import CHAPTERS
from analysis.report.render import Section


def kernels_frame(study, **asked):
    return kernels.figures(study, kernels.with_kernels(study), **asked)


def scaled_frame(study, **asked):
    return scaled.configurations(study, **asked)


def scaled_rows(study, **asked):
    return records(scaled_frame(study, **asked))


def stragglers_rows(study, by="rank"):
    return records(stragglers.stragglers(study, by=by).rows)


def critical_path_rows(study, by=()):
    return records(critical_path.critical_path(study, by=by).rows)


def section_of(study: Study, id: str) -> Section | None:
    """One section of a study's page, which has twenty; None where it does not apply."""
    (kind,) = [one for kinds in CHAPTERS.values() for one in kinds if one.id == id]
    return kind.section(Context(study))


def opening_of(study: Study) -> str:
    """What the page's opening says."""
    return " ".join(map(str, diagnosis(Context(study))))


def matched_of(ranks: Sequence[pd.DataFrame]) -> Matched | None:
    """The collectives of ranks, each with a frame of its calls."""
    calls = pd.concat([one.assign(place=place) for place, one in enumerate(ranks)], ignore_index=True)
    return match(calls, len(ranks))[0]


def by_rank(matched: Matched, name: str) -> list[np.ndarray]:
    """A column of a run's calls, an array a rank."""
    return [of.to_numpy() for _, of in matched.calls.groupby("place")[name]]
