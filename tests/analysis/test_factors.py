"""Planted effects are found, absent ones are not; the tests agree with others' implementations."""

import itertools
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import scipy

from analysis.display.metrics import records
from analysis.frames.study import Study
from analysis.measures.factors import analysis_of_variance, effects, note_design, signal_to_noise_db
from profiling.errors import UserError
from tests.analysis.commands import one_line_error, run
from tests.analysis.synthetic import run_of, write_sweep

LOADERS, GRADS, WORKERS = ("dali-gpu", "synthetic"), ("fp32", "fp16"), (1, 2, 4)


def observed(fields: dict, values) -> pd.DataFrame:
    return pd.DataFrame([{**fields, "response": value} for value in values])


def design(
    loader: float, interaction: float = 0.0, noise: float = 1.0, repetitions: int = 8, seed: int = 1
) -> pd.DataFrame:
    """Responses of 100, ``loader`` more with synthetic, ``interaction`` more with synthetic and fp16."""
    generator = np.random.default_rng(seed)
    made = []
    for name, grad, workers in itertools.product(LOADERS, GRADS, WORKERS):
        mean = 100 + loader * (name == "synthetic")
        mean += interaction * (name == "synthetic") * (grad == "fp16")
        fields = {"loader": name, "grad": grad, "workers": workers}
        made.append(observed(fields, mean + generator.normal(0, noise, repetitions)))
    return pd.concat(made, ignore_index=True)


def by_factor(observations: pd.DataFrame) -> dict[str, dict]:
    return {row["factor"]: row for row in records(effects(observations))}


def test_a_planted_effect_is_found_and_absent_ones_are_not():
    found = by_factor(design(loader=10))
    assert next(iter(found)) == "loader" and found["loader"]["best_level"] == "synthetic"
    assert found["loader"]["effect_pct"] == pytest.approx(100 * 10 / 105, abs=0.5)
    assert found["loader"]["p_value"] < 1e-9 and found["loader"]["omega_squared"] > 0.9
    assert all(row["p_value"] > 0.05 for name, row in found.items() if name != "loader")
    assert found["loader"]["rank_by_signal"] == 1
    # Of levels that do not differ none is best, and no share is below none.
    assert all((row["best_level"] is None) == (row["p_value"] > 0.05) for row in found.values())
    assert min(row["omega_squared"] for row in found.values()) == 0


def test_intervals_of_effects_hold_what_was_planted_and_of_none_hold_none():
    found = by_factor(design(loader=10, noise=3))
    assert 0 < found["loader"]["effect_pct_low"] < 100 * 10 / 105 < found["loader"]["effect_pct_high"]
    assert found["grad"]["effect_pct_low"] < 0.5 and found["grad"]["effect_pct"] < 1.5
    assert found["loader x grad"]["effect_pct"] is None
    found = by_factor(design(loader=0, interaction=8))
    assert found["loader x grad"]["p_value"] < 1e-9 < 0.05 < found["loader x workers"]["p_value"]
    found = by_factor(design(loader=10, repetitions=1))  # no interaction, and no interval
    assert set(found) == {"loader", "grad", "workers"} and found["loader"]["effect_pct"] > 0
    assert found["loader"]["effect_pct_low"] is None


def test_one_factor_agrees_with_scipy():
    generator = np.random.default_rng(3)
    groups = [generator.normal(mean, 1, 9) for mean in (0, 0.5, 1.5)]
    levels = [name for name in "abc" for _ in range(9)]
    effect = analysis_of_variance({"x": levels}, np.concatenate(groups), [("x",)])["x",]
    theirs = scipy.stats.f_oneway(*groups)
    assert float(effect.f_value) == pytest.approx(theirs.statistic)
    assert float(effect.p_value) == pytest.approx(theirs.pvalue)


def test_taguchis_signal_to_noise():
    # y = 10, 20: -10 log10((1/100 + 1/400) / 2)
    assert signal_to_noise_db(np.array([10.0, 20.0])) == pytest.approx(22.0412, abs=1e-4)


def test_a_missing_configuration_invents_no_effect():
    found = by_factor(design(loader=30).query("not (loader == 'dali-gpu' and grad == 'fp16')"))
    assert found["loader"]["effect_pct"] == pytest.approx(100 * 30 / 120, abs=1)
    assert found["grad"]["effect_pct_low"] < 0.5 and found["grad"]["effect_pct"] < 1.5


def test_factors_that_change_together_only_have_no_known_effect():
    found = by_factor(pd.concat([
        observed({"loader": name, "grad": grad, "workers": workers}, [mean, mean + 1])
        for (name, grad, mean), workers in itertools.product((("a", "x", 10.0), ("b", "y", 20.0)), (1, 2))
    ]))  # fmt: skip
    assert found["loader"]["effect_pct"] is None and found["loader"]["best_level"] is None
    assert found["loader"]["omega_squared"] is None and next(iter(found)) == "workers"
    assert found["workers"]["effect_pct"] == pytest.approx(0, abs=1e-9)
    confounded = noted(pd.concat([observed({"nodes": n, "workers": n}, [n, n + 0.1]) for n in (1, 2)]))
    assert confounded["unbalanced_design"]["factors"] == ["nodes", "workers"]


def noted(observations: pd.DataFrame) -> dict[str, dict]:
    study = Study(Path("results"))
    note_design(study, observations, effects(observations))
    return {finding.code: dict(finding.data) for finding in study.findings}


def test_designs_that_cannot_separate_effects_are_found():
    every = design(loader=10)
    assert noted(every) == {}
    assert noted(every.iloc[7:]) == {"few_runs": {"n": 1, "of": 12, "least": 3}}
    # Two precisions on 2 and 4 nodes, one of them on 1 node, as of a rank that sends nothing.
    means = {(1, "fp32"): 63, (2, "fp32"): 24, (4, "fp32"): 16, (2, "fp16"): 35, (4, "fp16"): 26}
    noise = np.array([-1.0, 0.2, 0.9])
    missing = pd.concat([
        observed({"nodes": nodes, "grad": grad}, mean + noise) for (nodes, grad), mean in means.items()
    ])  # fmt: skip
    assert noted(missing) == {"unbalanced_design": {"n": 5, "of": 6, "factors": ["none"]}}


def test_the_references_ranking(shared_data):
    """The reference ranks node count first; it separates loaders and gradients, and workers matter least."""
    path = shared_data / "surfboard" / "tau" / "lisa_interval.gzip"
    made = run("analysis.factors", path, "--format", "csv")
    ranks = {row["factor"]: int(row["rank_by_signal"]) for row in made.csv if row["rank_by_signal"]}
    assert ranks["nodes"] == 1 and ranks["workers"] == max(ranks.values())
    signals = {row["factor"]: float(row["signal_to_noise_db"]) for row in made.csv if row["rank_by_signal"]}
    assert signals["nodes"] > 2 * max(value for name, value in signals.items() if name != "nodes")


def test_what_cannot_be_compared_is_one_line(tmp_path):
    with pytest.raises(UserError, match="nothing varies"):
        effects(design(1).iloc[:8])
    write_sweep(tmp_path, [run_of(profile="torch")])
    assert "no unprofiled run" in one_line_error(run("analysis.factors", tmp_path))


def test_the_interval_of_an_effect_is_of_99_pct_of_student_t_for_two_levels():
    """So wide it holds in 95 % where levels scatter unlike (benchmarks.interval_coverage)."""
    low, high = np.array([99.0, 101.0, 100.0, 104.0]), np.array([110.0, 112.0, 108.0, 118.0])
    two = pd.concat([observed({"workers": level}, values) for level, values in ((1, low), (2, high))])
    (row,) = records(effects(two))
    error = np.sqrt((low.var(ddof=1) + high.var(ddof=1)) / 2 * (1 / 4 + 1 / 4))
    half = scipy.stats.t.ppf(0.995, 6) * error * 100 / np.mean([low.mean(), high.mean()])
    assert row["effect_pct_high"] - row["effect_pct"] == pytest.approx(half, rel=1e-6)
