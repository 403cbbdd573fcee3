"""Why scaling is lost: the sentences name the part that costs most, or say why none is named."""

from typing import Any

import pytest

from analysis.report.causes import limit_of_transfer
from analysis.report.sentences import TRY
from analysis.report.verdict import verdict
from tests.analysis.scaled_rows import BASE, LOST_PCT, NO_INTERVAL, lost, point, text, what_if


def test_in_strong_scaling_computing_is_blamed_on_the_small_batch_and_not_on_cores():
    strong: dict[str, Any] = {"scaling": "strong"}
    row = point(4, 40.0, **strong, **lost(37.5, compute=30.0), scaling_efficiency_pct=62.5, batch=8)
    row |= {"scaling_efficiency_pct_low": 62.0, "scaling_efficiency_pct_high": 63.0}
    said = text(BASE | strong | {"batch": 32}, row)
    assert "Largest cause: computation with fewer images per rank, 30.0" in said
    assert "A larger global batch size" in said and "clocks" not in said


@pytest.mark.parametrize(
    ("part", "cause", "advice"),
    [
        (
            "exposed_communication",
            "non-overlapped (exposed) communication",
            "Profile all ranks",
        ),
        ("exposed_loader", "data loading", "More workers"),
        ("compute", "computation", "the same cores, clocks and memory bandwidth: most likely each had less"),
        ("exposed_copies", "memory copies", "need no copy"),
        ("idle", "idle time", "timeline"),
    ],
)
def test_the_part_that_costs_most_is_named(part, cause, advice):
    said = text(BASE, point(4, 160.0, **lost(LOST_PCT, **{part: 30.0})))
    assert f"Largest cause: {cause}, 30.0 of 37.5 percentage points lost." in said and advice in said
    assert "A step takes 160 ms on 4 ranks (P = 4), 60 ms longer than on 1 rank (100 ms)." in said
    assert "62 % [62, 64]" in said


def test_what_no_profiled_run_explains_is_said_where_it_is_more_than_the_largest_part():
    row = point(4, 160.0, **lost(LOST_PCT, compute=12.0, exposed_loader=8.0))
    said = "computation, 12.0 of 37.5 percentage points lost. Profiled runs leave 18 points unexplained."
    assert said in text(BASE, row)


@pytest.mark.parametrize(
    ("parts", "why"),
    [
        ({"compute": 41.5}, "steps grew more under the profiler than without it"),
        ({"compute": 41.5, "exposed_loader": -4.0}, "other parts shrank"),
    ],
)
def test_a_part_that_costs_more_than_the_loss_says_why(parts, why):
    """41.5 of 37.5 points: what is not attributed, or another part, is -4."""
    said = f"computation, 41.5 percentage points. That is more than the 37.5 lost in all, since {why}."
    assert said in text(BASE, point(4, 160.0, **lost(LOST_PCT, **parts)))


@pytest.mark.parametrize(
    ("host", "other", "said_of_it"),
    [(20.0, 9.0, "late kernel launches (host-bound)"), (9.0, 20.0, "idle time other than late launches")],
)
def test_idle_time_that_is_split_is_named_by_its_kind(host, other, said_of_it):
    row = point(4, 160.0, **lost(LOST_PCT, idle_host_bound=host, idle_other=other))
    assert f"{said_of_it}, 20.0 of" in text(BASE, row)


def test_many_small_parts_have_no_single_cause():
    names = ("compute", "exposed_communication", "exposed_loader", "exposed_copies", "idle")
    spread = lost(LOST_PCT, **dict.fromkeys(names, 7.5))
    said = text(BASE, point(4, 160.0, **spread))
    assert "No single part of the step limits scaling" in said and "What to try" not in said


@pytest.mark.parametrize("parts", [10.0, 60.0])
def test_parts_that_miss_the_loss_tell_no_cause(parts):
    said = text(BASE, point(4, 160.0, **lost(LOST_PCT, exposed_communication=parts)))
    assert "Not enough data to say what limits scaling: 38 percentage points are lost" in said
    assert f"runs disagree by {abs(LOST_PCT - parts):.0f}" in said


@pytest.mark.parametrize(("ratio", "told"), [(1.2, True), (0.7, False), (2.0, False)])
def test_parts_of_other_steps_tell_no_cause_though_they_sum_to_the_loss(ratio, told):
    said = text(BASE, point(4, 160.0, **lost(LOST_PCT, compute=LOST_PCT), perturbation=ratio))
    assert ("Largest cause" in said) is told
    assert ("Do not use their parts: profiled steps took" in said) is not told


def test_without_profiled_runs_the_wait_for_data_is_known():
    row = point(4, 160.0, load_ms=60.0, backward_ms=60.0)
    said = text(BASE, row)
    assert "Data loading grew by 55 ms" in said and "More workers" in said


def test_strong_scaling_is_judged_by_the_share_of_a_batch():
    strong: dict[str, Any] = {"scaling": "strong"}
    row = point(4, 40.0, load_ms=16.0, scaling_efficiency_pct=62.5, batch=8, **strong)
    row |= {"scaling_efficiency_pct_low": 62.0, "scaling_efficiency_pct_high": 63.0}
    said = text(BASE | strong | {"batch": 32}, row)
    assert "Strong scaling (fixed global batch size)" in said and "A step takes 40 ms on 4 ranks" in said
    assert "15 ms longer than with ideal scaling from 1 rank (25 ms). Data loading grew by 15 ms" in said


def test_a_loss_that_the_median_step_does_not_show_is_that_of_long_steps_and_blames_no_loader():
    low, high = {"scaling_efficiency_pct_low": 64.0}, {"scaling_efficiency_pct_high": 68.0}
    row = point(4, 98.0, loss_note="no profiled run", scaling_efficiency_pct=66.0, **low, **high)
    said = text(BASE, row)
    assert (
        "to say what limits scaling: no profiled run. The median step takes 98 ms on 4 ranks (P = 4), "
        in said
    )
    assert "and 100 ms on 1 rank: most of the loss is in the steps that take longer" in said
    assert "Data loading" not in said and "More workers" not in said and " ms longer than" not in said
    said = text(BASE, row | lost(34.0, idle=30.0))
    assert "Largest cause: idle time" in said and "The median step takes 98 ms" in said


def test_steps_of_less_than_a_millisecond_have_digits():
    short = {"step_ms": 0.048, "load_ms": 0.018}
    said = text(BASE | {"step_ms": 0.03, "load_ms": 0.0015}, point(4, 160.0) | short)
    assert "takes 0.0480 ms on 4 ranks (P = 4), 0.0180 ms longer than on 1 rank (0.0300 ms). Data" in said
    assert "grew by 0.0165 ms" in said


@pytest.mark.parametrize("load_ms", [None, float("nan")])
def test_data_loading_whose_time_is_unknown_is_not_ruled_out(load_ms):
    said = text(BASE, point(4, 160.0, load_ms=load_ms, loss_note="no profiled run"))
    assert "to say what limits scaling: no profiled run." in said and "Data loading" not in said


def test_the_baseline_may_have_run_another_number_of_steps():
    row = point(4, 160.0, batches=50, **lost(LOST_PCT, compute=30.0))
    assert "60 ms longer than on 1 rank (100 ms). Largest cause: computation" in text(
        BASE | {"batches": 100}, row
    )


def test_an_unknown_cause_stays_unknown():
    row = point(4, 160.0, loss_pct=LOST_PCT, loss_note="no profiled run with kernels of the baseline")
    said = text(BASE, row)
    assert "Not enough data to say what limits scaling: no profiled run" in said
    assert "What to try" not in said


def test_runs_that_differ_too_much_explain_nothing():
    wild = point(4, 160.0, **lost(LOST_PCT, compute=30.0), scaling_efficiency_pct_high=140.0)
    said = text(BASE, wild)
    assert said.startswith("Runs differ too much: the 95 % conf") and "What to try" not in said
    # Before the efficiency of which it is said that it means little.
    assert said.index("differ too much") < said.index("Scaling efficiency on")


def test_a_part_whose_interval_holds_zero_is_no_cause():
    parts = lost(LOST_PCT, compute=20.0, exposed_loader=15.0)
    unsure = {"loss_compute_pct_low": -4.0, "loss_compute_pct_high": 44.0}
    sure = {"loss_exposed_loader_pct_low": 12.0, "loss_exposed_loader_pct_high": 18.0}
    both = verdict([BASE, point(4, 160.0, **parts, **unsure, **sure)], ["a", "b"])
    said = " ".join(one.text for one in both)
    # Computation may cost more: loading is the largest only of those that certainly cost something.
    assert (
        "Largest certain cause: data loading, 15.0 [12.0, 18.0 within the profiled runs] of 37.5" in said
        and "Second" not in said
    )
    assert (
        "Not distinguishable from zero (percentage points): computation, 20.0 [-4.0, 44.0 within the "
        "profiled runs]." in said
    )
    assert [one.cause for one in both if one.cause] == ["loader"]
    none = verdict([BASE, point(4, 160.0, **lost(LOST_PCT, compute=30.0), **unsure)], ["a", "b"])
    said = " ".join(one.text for one in none)
    assert "Largest cause" not in said and "What to try" not in said and "computation, 30.0" in said
    assert not [one for one in none if one.cause]


def test_a_cause_is_the_largest_or_the_second_only_of_those_that_are_certain_where_another_may_cost_more():
    sure = {"loss_exposed_loader_pct_low": 12.0, "loss_compute_pct_low": 8.0}
    unsure = {"loss_exposed_copies_pct_low": -4.0}

    def said(loader: float, compute: float, copies: float) -> str:
        parts = lost(LOST_PCT, exposed_loader=loader, compute=compute, exposed_copies=copies)
        return text(BASE, point(4, 160.0, **parts, **sure, **unsure))

    assert "Largest cause: data loading" in said(14.0, 12.0, 10.0) and "Second cause:" in said(14, 12, 10)
    between = said(14.0, 11.0, 12.0)
    assert "Largest cause: data loading" in between and "Second certain cause: computation" in between
    above = said(13.0, 11.0, 14.0)
    assert "Largest certain cause: data loading" in above and "Second certain cause: computation" in above


def test_a_cause_of_too_few_recorded_steps_for_an_interval_says_so():
    parts = lost(LOST_PCT, compute=30.0)
    few = "What it costs has no confidence interval, because too few steps were profiled"
    assert few in text(BASE, point(4, 160.0, **parts, loss_compute_pct_low=None))
    assert few not in text(BASE, point(4, 160.0, **parts, loss_compute_pct_low=25.0))


def test_where_faster_links_gain_nothing_latency_limits_the_transfer():
    row = point(8, 160.0, **lost(37.5, exposed_transfer=30.0))
    gained = [what_if("fp16-gradients", 0.1), what_if("network=2x", 0.2, alpha_us=400.0)]
    said = verdict([BASE, row], ["a", "b"], gained)
    text = " ".join(one.text for one in said)
    assert (
        "latency" in {one.cause for one in said}
        and "No simulated change gains 1 % or more on 8 ranks: " in text
    )
    assert "network=2x (+0.2 %), fp16-gradients (+0.1 %). Not simulated: " in text
    assert "a network of lower latency, a larger batch size (batch)." in text


def test_what_to_try_names_what_was_simulated_with_its_gain_and_what_was_not():
    row = point(8, 160.0, **lost(37.5, exposed_transfer=30.0))
    late = what_if("no-stragglers", 3.5, buckets=1)
    (said,) = [one.text for one in verdict([BASE, row], ["a", "b"], [late]) if one.question == TRY]
    assert said == (
        "Gain in images/s, simulated on 8 ranks: no-stragglers (+3.5 %, upper limit). Not simulated: "
        "smaller buckets (bucket_mb: one bucket holds all gradients, so no computation overlaps its "
        "allreduce), fp16 gradients (grad), a larger batch size (batch)."
    )
    several = [late | {"buckets": 4}, what_if("bucket-mb=50", 0.2, buckets=2)]
    (said,) = [one.text for one in verdict([BASE, row], ["a", "b"], several) if one.question == TRY]
    assert "no-stragglers (+3.5 %, upper limit). Not simulated: fp16" in said and "buckets" not in said
    # What can be done comes before what no change does as such.
    less = [late, what_if("network=2x", 1.5)]
    (said,) = [one.text for one in verdict([BASE, row], ["a", "b"], less) if one.question == TRY]
    assert "8 ranks: network=2x (+1.5 %), no-stragglers (+3.5 %, upper limit)." in said, said
    # What was measured in the sweep is not named as missing, whether it was simulated or not.
    for measured, own_buckets in ((1, 1), (50, 4)):
        other = point(8, 150.0, bucket_mb=measured)
        points = [BASE | {"bucket_mb": 25}, row | {"bucket_mb": 25}, other]
        tried = verdict(points, ["a", "b", "c"], [late | {"buckets": own_buckets, "bucket_mb": 25}])
        (said,) = [one.text for one in tried if one.text.startswith("Gain in images/s, simulated")]
        assert "Not simulated: fp16" in said and "buckets" not in said


@pytest.mark.parametrize(
    ("alpha_us", "gain_pct", "limit"),
    [
        (None, 12.0, ""),
        (0.0, 12.0, "bandwidth"),
        (5.0, 12.0, "bandwidth"),
        (5.0, 2.0, "latency"),
        (0.0, 2.0, ""),
    ],
)
def test_latency_or_bandwidth_is_named_where_the_fit_tells_them_apart(alpha_us, gain_pct, limit):
    gained = {"network=2x": what_if("network=2x", gain_pct, alpha_us=alpha_us)}
    assert limit_of_transfer(30.0, gained) == limit


def test_small_losses_are_named_where_runs_agree_and_not_where_they_scatter():
    parts = lost(4.0, compute=3.5)
    close = point(4, 100 / 0.96, **parts)
    wide = close | {"scaling_efficiency_pct_low": 91.0, "scaling_efficiency_pct_high": 101.0}
    once = close | NO_INTERVAL
    assert "Largest cause: computation, 3.5 of" in text(BASE, close)
    untold = (
        "No cause can be identified: 4.0 percentage points are lost, and less than 5.0 cannot be resolved"
    )
    assert f"{untold} given the spread between identical runs" in text(BASE, wide)
    assert f"{untold} without repetitions" in text(BASE, once)


def test_waiting_is_no_communication():
    said = text(BASE, point(4, 160.0, **lost(LOST_PCT, exposed_wait=30.0)))
    assert "waiting for other ranks (no straggler)" in said and "fp16" not in said
