"""Rows of measures as DataFrames."""

from analysis.display import output
from analysis.measures import kernels
from analysis.published import by_method


def kernels_frame(study, **asked):
    return output.to_frame(*kernels.rows(study, **asked))


def scaled_frame(study, **asked):
    answer = by_method.rows(study, **asked)
    return output.to_frame(answer, by_method.columns_of(asked.get("group_by", ())))
