"""Rows of measures as DataFrames."""

from analysis.display.metrics import records
from analysis.measures import critical_path, kernels, scaled, stragglers


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
