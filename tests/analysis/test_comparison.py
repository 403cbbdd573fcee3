"""The benchmark of comparisons measures what it says: planted noise is found, and scaled as asked for."""

import numpy as np
import pytest

from benchmarks.comparison import REPETITIONS, in_sequence, noise, recorded, share
from tests.analysis.synthetic import Truth, run_of, write_sweep


def runs(scatter: float, drift: float = 0.0, count: int = 400) -> np.ndarray:
    """Medians of ``count`` runs; with ``drift`` each run's noise carries on a part of the one before."""
    generator = np.random.default_rng(1)
    logs = generator.normal(0, 1, count)
    for number in range(1, count):
        logs[number] = drift * logs[number - 1] + np.sqrt(1 - drift**2) * logs[number]
    return 50 * np.exp(scatter * logs)


def test_planted_scatter_and_drift_are_found():
    steady, drifting = noise(runs(0.03)), noise(runs(0.03, drift=0.9))
    assert steady["median_ms"] == pytest.approx(50, rel=0.01)
    assert steady["scatter_pct"] == pytest.approx(3, rel=0.1)
    assert steady["robust_scatter_pct"] == pytest.approx(3, rel=0.15)
    assert abs(steady["correlation_of_neighbours"]) < 0.2
    assert drifting["correlation_of_neighbours"] > 0.8
    # Neighbours differ less where the noise is slow: sqrt(1 - 0.9) of it.
    assert drifting["scatter_of_neighbours_pct"] < 0.5 * drifting["scatter_pct"]


def test_a_drift_makes_false_alarms_of_runs_in_sequence_but_not_in_random_order():
    drifting = runs(0.03, drift=0.9, count=80)
    assert in_sequence(drifting) > 0.3
    assert share(drifting, 0, 100, seed=1, found=("slower", "faster")) <= 0.05 + 0.066  # 3 standard errors


def test_the_noise_of_a_sweep_is_that_of_its_runs(tmp_path):
    write_sweep(tmp_path, [run_of()], Truth(run_noise_ms=2.0), repetitions={"none": 2 * REPETITIONS})
    found = recorded(tmp_path)
    assert len(found["step_ms"]) == 2 * REPETITIONS and found["point"]["batches"] == 40
    assert noise(found["step_ms"])["scatter_pct"] == pytest.approx(2, abs=0.8)
