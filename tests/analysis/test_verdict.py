"""The sentences follow their rules, and say so when there is not enough to go by."""

from typing import Any

import pytest

from analysis.measures.scaling.certainty import leading
from analysis.report.verdict import verdict
from tests.analysis.scaled_rows import (
    BASE,
    LOST_PCT,
    NO_BASE,
    NO_INTERVAL,
    late_8,
    lost,
    point,
    text,
    with_rate,
)


def test_no_run_is_said():
    assert text().startswith("Not enough data to say how training scales: no run")


def test_a_sentence_on_one_of_several_configurations_names_it_and_of_one_alone_does_not():
    slow = point(4, 160.0, loader="pytorch", loss_pct=37.5, loss_note="no profiled run")
    said = text(BASE, slow)
    assert "what limits scaling: no profiled run" in said
    both = [BASE, point(4, 130.0), slow]
    said = " ".join(one.text for one in verdict(both, ["all", "dali", "pytorch"]))
    assert "what limits scaling on 4 ranks (pytorch): no profiled run" in said
    said = " ".join(one.text for one in verdict([BASE, point(2, 100.5), point(4, 101.5)], ["all"] * 3))
    assert "percentage points are lost on 4 ranks, and less than" in said
    late = [*late_8(), *late_8()]
    both = [BASE, point(8, 140.0), point(8, 160.0, **lost(37.5, compute=5.0))]
    first = verdict(both, ["all", "dali", "pytorch"], late=late)[0].text
    assert first.startswith("Rank 3 (n1) is a straggler on 8 ranks (pytorch): the other ranks wait")


def test_one_world_size_gives_the_rate_and_says_that_scaling_is_unknown():
    said = text(BASE)
    assert (
        "320" in said and "Not enough data to say how training scales: there is only one world size" in said
    )


def test_near_ideal_scaling_has_no_culprit():
    said = text(BASE, point(4, 102.0))
    assert "98 %" in said and "Nothing limits scaling yet" in said and "What to try" not in said


def test_points_that_ran_once_are_said_to_have_run_once():
    assert "ran only once" in text(BASE, point(4, 125.0, **NO_INTERVAL))
    assert "ran only once" in text(BASE, point(4, 125.0), point(4, 130.0, loader="pytorch", **NO_INTERVAL))
    assert "ran only once" not in text(BASE, point(4, 125.0))


def test_scaling_better_than_ideal_is_called_superlinear_with_what_it_means():
    said = text(BASE, point(4, 70.0))
    assert "on 4 ranks: 143 % [142, 144] (in br" in said and "143 % on 4 ranks is superlinear" in said
    assert "baseline (1 node x 1) ran too slowly" in said and "caches better" not in said
    assert "Nothing" not in said
    assert "superlinear" in text(BASE, point(2, 80.0), point(4, 160.0))
    # As little above ideal as equal runs differ is nothing to explain.
    said = text(BASE, point(4, 98.0))
    assert "superlinear" not in said and "Nothing limits scaling yet: no percentage points are lost" in said
    strong: dict[str, Any] = {"scaling": "strong"}
    row = point(4, 17.5, batch=8, **strong, scaling_efficiency_pct=143.0)
    row |= {"scaling_efficiency_pct_low": 142.0, "scaling_efficiency_pct_high": 144.0}
    said = text(BASE | strong | {"batch": 32}, row)
    assert "Smaller batches per rank may also fit the device's caches better" in said


@pytest.mark.parametrize("more", [{}, {"loader": "pytorch"}])
def test_what_is_lost_on_fewer_ranks_only_is_said_too(more):
    fewer = point(2, 200.0, **more, loss_pct=50.0, loss_note="no profiled run")
    said = text(BASE, fewer, point(4, 103.0))
    assert "lowest scaling efficiency is on 2 ranks: 50 % [49, 51] (P = 2)" in said
    assert "Nothing limits" not in said


def test_an_interval_too_wide_of_the_best_configuration_is_said_first_though_the_worst_is_explained():
    wild = point(4, 110.0, loader="synthetic", scaling_efficiency_pct_high=190.0)
    said = text(BASE, wild, point(4, 160.0, **lost(LOST_PCT, compute=30.0)))
    assert "1 of 2; widest 100" in said.split("Largest cause")[0]
    assert "Largest cause: computation" in said


def test_the_fastest_configuration_is_said_with_its_interval_and_whether_others_reach_it():
    slow, fast = with_rate(point(2, 160.0), 10), with_rate(point(2, 128.0, loader="dali"), 20)
    (said,) = [
        one.text for one in verdict([slow | NO_BASE, fast | NO_BASE], ["a", "b"]) if "Fast" in one.text
    ]
    assert said.endswith("500 images/s on 2 ranks (b; 95 % confidence interval 480 to 520).")
    slow = with_rate(slow, 90)
    (said,) = [
        one.text for one in verdict([slow | NO_BASE, fast | NO_BASE], ["a", "b"]) if "Fast" in one.text
    ]
    assert said.endswith("interval 480 to 520, within that of others).")


def test_the_base_of_fp16_gradients_may_be_said_to_be_fp32():
    said = text(BASE, point(2, 160.0, grad="fp16", **lost(LOST_PCT, exposed_communication=30.0)))
    assert "100 ms" in said and "communication" in said


def test_best_and_worst_configuration_are_named():
    rows = [BASE, point(4, 110.0), point(4, 160.0, loader="pytorch")]
    said = " ".join(s.text for s in verdict(rows, ["base", "good", "bad"]))
    assert " with good, 62 % [62, 64] with bad (" in said


def test_each_of_best_and_worst_is_named_with_its_own_base():
    other = {"base": "1 node x 1, pytorch", "base_images_per_s": 280.0}
    rows = [BASE, point(4, 110.0), point(4, 160.0, loader="pytorch", **other)]
    said = " ".join(s.text for s in verdict(rows, ["base", "good", "bad"]))
    assert (
        "relative to 1 node x 1 (320 images/s) for good, and 1 node x 1, pytorch (280 images/s) for bad."
        in said
    )


def test_efficiencies_of_baselines_of_other_numbers_of_ranks_are_not_ranked_with_each_other():
    of_four = {"base": "4 nodes x 1", "base_world_size": 4, "scaling_efficiency_pct": 95.0}
    of_four |= {"scaling_efficiency_pct_low": 94.0, "scaling_efficiency_pct_high": 96.0}
    rows = [BASE, point(8, 110.0), point(8, 125.0, loader="pytorch"), point(8, 130.0, batch=64, **of_four)]
    names = ["base", "good", "bad", "batch 64"]
    first, second, *_ = (one.text for one in verdict(rows, names))
    assert first.startswith("Scaling efficiency on 8 ranks: 91 % [90, 92] with good, 80 % [79, 81] with bad")
    assert second == (
        "Not comparable with efficiencies relative to 1 rank: 95 % [94, 96] with batch 64, relative to 4 "
        "ranks."
    )
    # The worst is explained though the best of all is relative to one rank.
    most_lost = point(8, 260.0, batch=64, **of_four) | {"scaling_efficiency_pct": 50.0}
    said = " ".join(one.text for one in verdict([*rows, most_lost], [*names, "slow"]))
    assert "95 % [94, 96] with batch 64 and 50 %" in said and "lowest scaling efficiency is" not in said
    assert leading([*rows[1:], most_lost]) == (rows[1], rows[2], most_lost)


def test_a_profiled_run_is_not_judged_where_an_unprofiled_one_has_as_many_ranks():
    plain = point(4, 200.0) | {"kind_of_runs": "unprofiled runs"}
    profiled = point(4, 140.0) | {"kind_of_runs": "profiled runs", "batches": 30}
    assert leading([profiled, plain]) == (plain, plain, plain)
    assert leading([profiled]) == (profiled, profiled, profiled)
    assert "50 %" in text(BASE, plain, profiled) and "71 %" not in text(BASE, plain, profiled)
