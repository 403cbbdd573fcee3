"""What to try: what was measured or simulated, and the forecast."""

import pytest

from analysis.prediction.simulate import DEFAULT_WHAT_IFS
from analysis.report.forecast import forecast, to_try
from analysis.report.sentences import TRY
from analysis.report.verdict import verdict
from tests.analysis.scaled_rows import BASE, lost, plain, point, text, what_if, with_rate


def test_a_simulated_gain_is_said_with_the_range_of_what_is_possible():
    row = what_if("network=2x", 8.0, images_per_s_low=1064.0, images_per_s_high=2257.0)
    (said,) = forecast([row], [BASE])
    assert "network=2x, +8.0 %: 2000 images/s (range 1064 to 2257)." in said.text
    untold = forecast([row | {"images_per_s_high": None}], [BASE])[0].text
    assert "2000 images/s (range 1064 or more)." in untold
    # What it is compared with is known no better.
    now = row | {"what_if": "", "gain_pct": None, "images_per_s": 1852.0}
    curve = now | {"predicted_by": "curve", "images_per_s": 1700.0}
    (said,) = forecast([curve, row, now], [BASE])
    assert "(range 1064 to 2257) instead of 1852 (range 1064 to 2257)." in said.text


def test_of_what_was_simulated_only_what_gains_is_advised():
    row = point(8, 160.0, **lost(37.5, exposed_transfer=30.0))
    gained = [
        what_if("fp16-gradients", 9.0),
        what_if("bucket-mb=50", 0.2),
        what_if("network=2x", 12.0, alpha_us=4.0),
    ]
    said = " ".join(one.text for one in verdict([BASE, row], ["a", "b"], gained))
    assert "simulated on 8 ranks: network=2x (+12 %), fp16-gradients (+9.0 %). Not" in said
    assert "In simulation, the limit is link bandwidth." in said and "buckets" not in said


def test_a_simulation_that_the_curve_is_preferred_to_advises_nothing():
    row = point(8, 160.0, **lost(37.5, exposed_transfer=30.0))
    gained = [what_if("network=2x", 12.0, alpha_us=4.0, believed=False)]
    said = " ".join(one.text for one in verdict([BASE, row], ["a", "b"], gained))
    assert "imulat" not in said and "Larger buckets (bucket_mb)" in said


def test_what_was_measured_is_not_advised_against_a_cause():
    row = point(8, 160.0, **lost(37.5, exposed_transfer=30.0))
    gained = [what_if("fp16-gradients", 9.0), what_if("network=2x", 12.0, alpha_us=4.0)]
    rows = [BASE, row, point(8, 150.0, grad="fp16")]
    said = " ".join(one.text for one in verdict(rows, ["a", "b", "c"], gained))
    assert "network=2x (+12 %)" in said and "fp16-gradients (" not in said


@pytest.mark.parametrize(("low", "forecast"), [(150.0, False), (99.0, True), (None, True)])
def test_no_forecast_where_curve_and_simulation_contradict_each_other(low, forecast):
    rows = [plain("curve", 50.0, 100.0), plain("simulation", low, 195.0), what_if("network=2x", 20.0)]
    said = " ".join(one.text for one in verdict([BASE, point(4, 160.0)], ["a", "b"], rows))
    assert ("Largest simulated gain" in said) == forecast
    assert ("the curve predicts 50.0 to 100 images/s, the simulation 150 to 195" in said) != forecast


def test_a_configuration_on_which_the_methods_contradict_each_other_keeps_no_other_from_its_forecast():
    apart = [plain("curve", 50.0, 100.0), plain("simulation", 150.0, 195.0), what_if("network=2x", 20.0)]
    apart = [row | {"loader": "synthetic", "name": "synthetic"} for row in apart]
    (said,) = forecast(apart, [BASE])
    assert said.text.startswith(
        "No forecast (synthetic): for 8 ranks the curve predicts 50.0 to 100 images/s"
    )
    (said,) = forecast([*apart, what_if("network=2x", 10.0) | {"name": "dali"}], [BASE])
    assert said.text.startswith("Largest simulated gain on 8 ranks (dali): network=2x")


@pytest.mark.parametrize(("grad", "advised"), [("bf16", "fp16-gradients"), ("fp16", "network=2x")])
def test_what_was_measured_is_not_advised_from_a_simulation(grad, advised):
    points = [BASE, point(4, 160.0), point(4, 150.0, grad=grad)]
    predicted = [what_if("fp16-gradients", 30.0), what_if("network=2x", 20.0)]
    said = " ".join(one.text for one in verdict(points, ["a", "b", "c"], predicted))
    assert advised in said.partition("Largest simulated gain")[2]


@pytest.mark.parametrize(("grad", "also"), [("fp32", "fp16-gradients, "), ("fp16", "")])
def test_changes_that_could_not_be_simulated_are_named_beside_the_largest_gain(grad, also):
    late = what_if("no-stragglers", 6.0, grad=grad)
    (said,) = forecast([late, what_if("no-loader", 0.0, grad=grad)], [BASE])
    unknown = f"unknown: {also}network=2x, bucket-mb=50."
    assert "no-stragglers (upper limit), +6.0 %: " in said.text and said.text.endswith(unknown)
    every = [what_if(name, 0.0, grad=grad) for name in DEFAULT_WHAT_IFS if name != "no-stragglers"]
    (known,) = forecast([late, *every], [BASE])
    assert "unknown" not in known.text


def test_buckets_that_were_measured_are_not_advised():
    points = [BASE, point(4, 160.0, bucket_mb=50.0)]
    assert to_try([what_if("bucket-mb=50", 30.0, bucket_mb=25.0)], points) is None
    assert to_try([what_if("bucket-mb=100", 30.0, bucket_mb=25.0)], points) is not None


def test_what_is_to_be_tried_is_of_the_fewest_ranks():
    near, far = what_if("network=2x", 10.0), what_if("network=2x", 30.0, world_size=16)
    assert to_try([far, near], [BASE]) == near
    # Another configuration was measured on as many.
    assert to_try([far, near], [BASE, point(8, 160.0)]) == far


@pytest.mark.parametrize(("grad", "advised"), [("fp32", True), ("fp16", False)])
def test_gradients_of_16_bits_are_no_advice_where_they_were_measured(grad, advised):
    row = point(8, 160.0, **lost(37.5, exposed_transfer=30.0)) | {"grad": grad}
    said = text(BASE, row)
    assert "Largest cause: non-overlapped (exposed) gradient transfer" in said
    assert "Larger buckets (bucket_mb)" in said
    assert ("fp16 gradients (grad)" in said) is advised


@pytest.mark.parametrize(("nodes", "advised"), [(1, False), (2, True)])
def test_a_faster_network_is_no_advice_where_there_is_none(nodes, advised):
    row = point(8, 160.0, **lost(37.5, exposed_transfer=30.0))
    row |= {"nodes": nodes, "gpus_per_node": 8 // nodes}
    assert ("a faster network" in text(BASE, row)) is advised


def test_an_option_that_the_sweep_measured_to_be_faster_is_said_with_its_gain():
    slow, fast = with_rate(point(4, 200.0), 20), with_rate(point(4, 160.0, grad="fp16"), 20)
    assert (
        "Measured on 4 ranks: fp16 gradients instead of fp32 gradients gives 800 images/s (+25 %)."
        in text(BASE, slow, fast)
    )
    names = ["all", "dali-cpu, fp32 gradients", "dali-cpu, fp16-gradients"]
    # What was measured comes before what only might help.
    tried = [
        one.text
        for one in verdict(
            [BASE, slow | lost(37.5, exposed_transfer=30.0), fast],
            ["all", "a", "b"],
            [what_if("network=2x", 12.0, world_size=4)],
        )
        if one.question == TRY
    ]
    assert tried[0].startswith("Measured on 4 ranks: ") and tried[1].startswith("Gain in images/s, "), tried
    (gain,) = [one.text for one in verdict([BASE, slow, fast], names) if one.text.startswith("Measured")]
    assert gain.endswith("gives 800 images/s (+25 %, dali-cpu).")
    # Intervals that overlap tell nothing, nor does a run that differs in two options, or in what is learnt.
    assert "Measured" not in text(BASE, with_rate(slow, 100), with_rate(fast, 100))
    assert "Measured" not in text(BASE, slow, fast | {"workers": 7})
    assert "Measured" not in text(BASE, slow, fast | {"grad": "fp32", "batch": 64})
    # The synthetic loader is a bound, not a setting.
    assert "Measured" not in text(BASE, slow, fast | {"grad": "fp32", "loader": "synthetic"})
