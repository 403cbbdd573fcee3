"""The sentences follow their rules, and say so when there is not enough to go by."""

from typing import Any

import pytest

from analysis.scaling import POINT_FIELDS
from analysis.verdict import growth_ms, verdict

FIELDS: dict[str, Any] = dict.fromkeys(POINT_FIELDS) | {"nodes": 1, "grad": "fp32"}


def point(ranks: int, batch_ms: float, **more: Any) -> dict[str, Any]:
    """A row of analysis.scaled: weak scaling of 32 images a rank from a base point of 100 ms."""
    rate = 32 * ranks / batch_ms * 1e3
    efficiency = 100 * rate / (320 * ranks)
    row = {
        **FIELDS, "gpus_per_node": ranks, "world_size": ranks, "batch_ms": batch_ms, "images_per_s": rate,
        "base": "1 node x 1", "base_world_size": 1, "base_images_per_s": 320.0,
        "scaling_efficiency_pct": efficiency, "scaling_efficiency_pct_low": efficiency - 1,
        "scaling_efficiency_pct_high": efficiency + 1,
        "load_ms": 5.0, "forward_ms": 30.0, "backward_ms": batch_ms - 45.0, "update_ms": 10.0,
    }  # fmt: skip
    return row | more


BASE = point(1, 100.0)


def text(*rows: dict[str, Any]) -> str:
    return " ".join(sentence.text for sentence in verdict(rows, [f"P = {row['world_size']}" for row in rows]))


def test_no_run_is_said():
    assert "not enough data" in text()


def test_one_world_size_gives_the_rate_and_says_that_scaling_is_unknown():
    said = text(BASE)
    assert "320" in said and "Not enough data to say how it scales" in said


def test_near_ideal_scaling_has_no_culprit():
    said = text(BASE, point(4, 102.0))
    assert "98 %" in said and "Nothing limits it yet" in said and "What to try" not in said


def test_exposed_communication_is_named():
    said = text(BASE, point(4, 160.0, exposed_communication_ms=50.0))
    assert "communication is the largest part (by 50 ms)" in said and "fp16" in said
    assert "62 % [62, 64]" in said


def test_waiting_for_data_is_named():
    said = text(BASE, point(4, 160.0, load_ms=60.0, backward_ms=60.0, exposed_communication_ms=2.0))
    assert "loading data is the largest part (by 55 ms)" in said and "more workers" in said


def test_slower_computing_is_named():
    said = text(BASE, point(4, 160.0, exposed_communication_ms=5.0))
    assert "computing is the largest part (by 55 ms)" in said


def test_an_unknown_cause_stays_unknown():
    # Without a profiled run communication is unknown, and the loader did not grow.
    assert "Not enough data to say what limits it" in text(BASE, point(4, 160.0))


def test_runs_that_differ_too_much_explain_nothing():
    wild = point(4, 160.0, exposed_communication_ms=50.0, scaling_efficiency_pct_high=140.0)
    said = text(BASE, wild)
    assert "equal runs differ too much" in said and "What to try" not in said


def test_the_base_of_fp16_gradients_may_be_said_to_be_fp32():
    said = text(BASE, point(2, 160.0, grad="fp16", exposed_communication_ms=50.0))
    assert "100 ms" in said and "communication" in said


@pytest.mark.parametrize("exposed", [None, float("nan")])
def test_growth_leaves_out_what_is_unknown(exposed):
    assert set(growth_ms(BASE, point(4, 160.0, exposed_communication_ms=exposed))) == {"loading data"}


def test_best_and_worst_configuration_are_named():
    rows = [BASE, point(4, 110.0), point(4, 160.0, loader="pytorch")]
    said = " ".join(s.text for s in verdict(rows, ["base", "good", "bad"]))
    assert "with good, and 62 % " in said
