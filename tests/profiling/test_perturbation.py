"""benchmarks.perturbation: which tools it measures, what a step is, and how pairs become a figure."""

import numpy as np
import pytest

pytest.importorskip("torch")
from benchmarks.perturbation import steps_of, summary
from profiling.tables import as_table, rank_directory, write


def test_a_step_is_the_slowest_ranks_and_of_recorded_batches_only(tmp_path):
    for rank, took in enumerate(([9, 9, 2, 3], [9, 9, 4, 1])):
        ends = np.cumsum(took) * 10**6
        columns = {"batch_index": range(4), "start_ns": ends - np.array(took) * 10**6, "end_ns": ends}
        write(as_table("batches", columns), rank_directory(tmp_path, rank), "batches")
    assert steps_of(tmp_path, ranks=2, first=2).tolist() == [4, 3]


def test_the_figure_is_the_median_of_ratios_of_pairs_not_the_ratio_of_medians():
    pairs = [
        {"without": {"median": one}, "with": {"median": one * by}}
        for one, by in ((1, 1.1), (9, 1.2), (2, 1.3))
    ]
    made = summary(pairs, "median")
    assert made["ratio"] == pytest.approx(1.2) and made["without_ms"] == 2
    assert made["low"] is None and made["high"] is None  # three pairs bound no median with 95 %
    made = summary(pairs * 2, "median")
    assert made["low"] == pytest.approx(1.1) and made["high"] == pytest.approx(1.3)
