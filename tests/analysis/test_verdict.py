"""The sentences follow their rules, and say so when there is not enough to go by."""

from typing import Any

import pytest

from analysis.measures.anatomy.divide import SPLIT, WITHIN
from analysis.measures.scaling.certainty import leading
from analysis.measures.scaling.point import POINT_FIELDS
from analysis.prediction.simulate import DEFAULT_WHAT_IFS
from analysis.report.causes import Cause, Late, late_ranks, limit_of_transfer, lowest_of, of_loss
from analysis.report.forecast import forecast, to_try
from analysis.report.verdict import verdict

FIELDS: dict[str, Any] = dict.fromkeys(POINT_FIELDS) | {"nodes": 1, "grad": "fp32"}


def point(ranks: int, step_ms: float, **more: Any) -> dict[str, Any]:
    """A row of analysis.scaled: weak scaling of 32 images a rank from a base point of 100 ms."""
    rate = 32 * ranks / step_ms * 1e3
    efficiency = 100 * rate / (320 * ranks)
    row = {
        **FIELDS, "gpus_per_node": ranks, "world_size": ranks, "step_ms": step_ms, "images_per_s": rate,
        "base": "1 node x 1", "base_world_size": 1, "base_images_per_s": 320.0,
        "scaling_efficiency_pct": efficiency, "scaling_efficiency_pct_low": efficiency - 1,
        "scaling_efficiency_pct_high": efficiency + 1,
        "load_ms": 5.0, "forward_ms": 30.0, "backward_ms": step_ms - 45.0, "update_ms": 10.0,
    }  # fmt: skip
    return row | more


BASE = point(1, 100.0)


def text(*rows: dict[str, Any]) -> str:
    return " ".join(
        sentence.alone for sentence in verdict(rows, [f"P = {row['world_size']}" for row in rows])
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


NO_INTERVAL = {"scaling_efficiency_pct_low": float("nan"), "scaling_efficiency_pct_high": float("nan")}


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
    assert "superlinear" not in text(BASE, point(4, 98.0))
    strong: dict[str, Any] = {"scaling": "strong"}
    row = point(4, 17.5, batch=8, **strong, scaling_efficiency_pct=143.0)
    row |= {"scaling_efficiency_pct_low": 142.0, "scaling_efficiency_pct_high": 144.0}
    said = text(BASE | strong | {"batch": 32}, row)
    assert "Smaller batches per rank may also fit the device's caches better" in said


def test_in_strong_scaling_computing_is_blamed_on_the_small_batch_and_not_on_cores():
    strong: dict[str, Any] = {"scaling": "strong"}
    row = point(4, 40.0, **strong, **lost(37.5, compute=30.0), scaling_efficiency_pct=62.5, batch=8)
    row |= {"scaling_efficiency_pct_low": 62.0, "scaling_efficiency_pct_high": 63.0}
    said = text(BASE | strong | {"batch": 32}, row)
    assert "Largest cause: computation with fewer images per rank, 30.0" in said
    assert "A larger global batch size" in said and "clocks" not in said


@pytest.mark.parametrize("more", [{}, {"loader": "pytorch"}])
def test_what_is_lost_on_fewer_ranks_only_is_said_too(more):
    fewer = point(2, 200.0, **more, loss_pct=50.0, loss_note="no profiled run")
    said = text(BASE, fewer, point(4, 103.0))
    assert "lowest scaling efficiency is on 2 ranks: 50 % [49, 51] (P = 2)" in said
    assert "Nothing limits" not in said


def lost(lost_pct: float, **parts: float) -> dict[str, Any]:
    """Columns of a loss by part; what the parts leave is not attributed."""
    known = dict.fromkeys(
        ("compute", "exposed_communication", "exposed_loader", "exposed_copies", "idle"), 0.0
    )
    within: dict[str, float | None] = {}
    for part in SPLIT:
        given = {name: parts.pop(name) for name in WITHIN[part] if name in parts}
        known[part] = sum(given.values())
        within |= dict.fromkeys(WITHIN[part], 0.0 if given else None) | given
    known |= parts
    columns: dict[str, Any] = {f"loss_{name}_pct": value for name, value in {**within, **known}.items()}
    return columns | {
        "loss_pct": lost_pct,
        "loss_unattributed_pct": lost_pct - sum(known.values()),
        "loss_note": "",
    }


# 160 ms instead of 100: of the batch 37.5 % are lost.
LOST_PCT = 37.5


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
    assert said.startswith("Not enough runs: identical runs differ so much") and "What to try" not in said
    # Before the efficiency of which it is said that it means little.
    assert said.index("differ so much") < said.index("Scaling efficiency on")


def test_an_interval_too_wide_of_the_best_configuration_is_said_first_though_the_worst_is_explained():
    wild = point(4, 110.0, loader="synthetic", scaling_efficiency_pct_high=190.0)
    said = text(BASE, wild, point(4, 160.0, **lost(LOST_PCT, compute=30.0)))
    assert said.startswith("Not enough runs: ") and "spans 100 percentage points" in said
    assert "Largest cause: computation" in said


def test_the_interval_that_is_too_wide_has_its_configuration_and_others_as_wide_are_counted():
    wide = {"scaling_efficiency_pct_low": 20.0, "scaling_efficiency_pct_high": 170.0}
    few = [point(2, 140.0, **wide), point(2, 150.0, loader="pytorch", **wide), point(2, 120.0, loader="dali")]
    first = verdict([BASE, *few, point(4, 160.0, loader="pytorch", **wide)], list("abcde"))[0].text
    assert (
        "spans 150 percentage points (pytorch on 4 ranks); 2 of the other 3 intervals are wider than 40 p"
        in first
    )
    first = verdict([BASE, *few[:1], point(4, 160.0, loader="pytorch", **wide)], list("abc"))[0].text
    assert "; the only other one is wider than 40 percentage points. Was" in first
    first = verdict([BASE, *few[2:], point(4, 160.0, loader="pytorch", **wide)], list("abc"))[0].text
    assert "spans 150 percentage points (pytorch on 4 ranks). Was the machine busy?" in first


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


def test_a_simulated_gain_is_said_with_the_range_of_what_is_possible():
    row = what_if("network=2x", 8.0, images_per_s_low=1064.0, images_per_s_high=2257.0)
    assert "2000 images/s (1064 to 2257 is possible; +8 %)." in forecast([row], [BASE])[0].text
    assert "2000 images/s (1064 or more is possible; +8 %)." in (
        forecast([row | {"images_per_s_high": None}], [BASE])[0].text
    )


NO_BASE = {"base_world_size": 2}


def test_a_part_whose_interval_holds_zero_is_no_cause():
    parts = lost(LOST_PCT, compute=20.0, exposed_loader=15.0)
    unsure = {"loss_compute_pct_low": -4.0, "loss_compute_pct_high": 44.0}
    sure = {"loss_exposed_loader_pct_low": 12.0, "loss_exposed_loader_pct_high": 18.0}
    both = verdict([BASE, point(4, 160.0, **parts, **unsure, **sure)], ["a", "b"])
    said = " ".join(one.text for one in both)
    # Computation may cost more: loading is the largest only of those that certainly cost something.
    assert "Largest certain cause: data loading, 15.0 [12.0, 18.0] of 37.5" in said and "Second" not in said
    assert "Not distinguishable from zero (percentage points): computation, 20.0 [-4.0, 44.0]." in said
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
    few = "What it costs has no confidence interval, because too few steps were recorded"
    assert few in text(BASE, point(4, 160.0, **parts, loss_compute_pct_low=None))
    assert few not in text(BASE, point(4, 160.0, **parts, loss_compute_pct_low=25.0))


def test_what_a_late_rank_takes_off_a_part_moves_its_interval_too():
    row = {"loss_exposed_wait_pct": 18.0, "loss_exposed_wait_pct_low": 10.0}
    assert lowest_of(row, Cause("exposed_wait", 18.0)) == 10
    assert lowest_of(row, Cause("exposed_wait", 5.0)) == -3
    assert lowest_of(row, Cause("late ranks", 5.0)) == float("inf")


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


def late(
    run: str, rank: int, verdict: str = "straggler", mean_ms: float = 8.0, cause: str = "loader"
) -> dict:
    """A row of analysis.stragglers of a run with batches of 160 ms."""
    return {
        "id": run, "rank": rank, "node": f"n{rank // 2}", "verdict": verdict, "step_ms": 160.0,
        "mean_lateness_ms": mean_ms, "cause": cause,
    }  # fmt: skip


def said_of(*rows: dict[str, Any]) -> str:
    points = [BASE, point(4, 160.0)]
    return " ".join(one.text for one in verdict(points, ["base", "slow"], late=rows))


def test_a_rank_that_most_runs_name_is_said_to_hold_up_the_others():
    said = said_of(
        late("a", 3), late("b", 3, cause="loader"), late("c", 3, "no"), late("c", 1, "may be chance")
    )
    assert "Rank 3 (n1) is a straggler: the other ranks wait at least 8.00 ms per step for it (5 % of" in said
    assert "in the stage times of 2 of 3 runs). Likely cause: loader (" in said


def test_the_rank_that_is_waited_for_longest_comes_first_and_others_are_counted():
    said = said_of(late("a", 0), late("a", 2, mean_ms=32.0, cause="processor"))
    assert "Ranks 0, 2 are stragglers: the other ranks wait at least 32.0 ms per step for them (20 %" in said
    assert "Likely cause: processor (" in said


def test_a_rank_that_is_on_another_node_each_time_is_not_called_by_one():
    said = said_of(late("a", 3), late("b", 3) | {"node": "n7"})
    assert "Rank 3 is a straggler" in said


def test_a_late_rank_is_named_where_one_world_size_was_measured():
    alone = point(4, 160.0, base_world_size=4)
    said = " ".join(one.text for one in verdict([alone], ["slow"], late=[late("a", 3)]))
    assert "one world size" in said and "Rank 3 (n1) is a straggler" in said


def test_a_rank_that_is_named_in_half_of_the_runs_or_less_is_not_said():
    assert "straggler" not in said_of(late("a", 3), late("b", 3, "no"))
    assert "straggler" not in said_of()


# --- a late rank as the cause, and the advice ---------------------------------------------------------


TRACED = {"told_by": "collectives"}


def late_8(**more: Any) -> list[dict[str, Any]]:
    """Rank 3 of 8 is late by 32 ms of a batch of 160, by its traced run; three others see a third of that."""
    stages = [late(str(n), 3, mean_ms=11.0, cause="GPU") | {"told_by": "stages"} for n in range(3)]
    return [late("t", 3, mean_ms=32.0, cause="GPU") | TRACED | more, *stages]


def test_a_late_rank_that_costs_most_comes_first_by_its_traced_run_and_no_network_is_advised():
    # Of 25 points lost 20 are the late rank's: the others wait in 7 of 8 ranks' batches, its own is longer.
    parts = lost(25.0, exposed_wait=18.5, compute=3.0, exposed_transfer=2.0)
    row = point(8, 160.0, **parts)
    first, *rest = verdict([BASE, row], ["a", "b"], [what_if("network=2x", 0.1)], late_8())
    assert first.text.startswith("Rank 3 (n1) is a straggler: the other ranks wait 32.0 ms per step")
    assert first.cause == "rank: GPU" and first.figure == "stragglers"
    said = " ".join(one.text for one in rest)
    assert "Largest cause: waiting for rank 3 (n1), 20.0 of 25.0 percentage points lost" in said
    assert "fp16" not in said and "faster network" not in said and "Second cause" not in said


def test_a_late_rank_that_costs_less_than_a_part_comes_after_it():
    row = point(8, 160.0, **lost(37.5, exposed_loader=25.0, exposed_wait=4.4, compute=0.6))
    rows = [late("t", 3, mean_ms=8.0, cause="GPU") | TRACED]
    causes = [one.cause for one in verdict([BASE, row], ["a", "b"], late=rows) if one.cause]
    assert causes == ["loader", "rank: GPU"]


def test_what_the_late_rank_explains_is_taken_off_the_parts():
    found = of_loss(
        {"world_size": 4, **lost(30.0, exposed_wait=16.0, compute=6.0, exposed_loader=8.0)},
        Late((1,), "n0", 20.0, 20.0, True, 1, 1, "loader"),
    )
    costs = {cause.kind: cause.cost_pct for cause in found}
    # Of 20 points, three of four ranks wait; one of four loads longer.
    assert costs["late ranks"] == 20 and costs["exposed_wait"] == pytest.approx(1.0)
    assert costs["exposed_loader"] == pytest.approx(3.0) and costs["compute"] == 6.0
    assert found[0].kind == "late ranks"


def test_stages_name_a_rank_where_too_few_batches_were_recorded():
    rows = [row | {"verdict": "too few steps"} if row["id"] == "t" else row for row in late_8()]
    found = late_ranks(rows)
    assert found is not None and found.ranks == (3,) and found.ms == 32.0 and found.by_collectives


def test_ranks_that_may_be_late_by_chance_are_suspected_where_waiting_costs_most():
    rows = [late("t", rank, "may be chance", mean_ms=6.0 + rank) | TRACED for rank in (4, 5)]
    rows += [late("t", 6, "may be chance", mean_ms=1.0) | TRACED, late("t", 7, "no") | TRACED]
    row = point(8, 160.0, **lost(37.5, exposed_wait=30.0))
    said = " ".join(one.text for one in verdict([BASE, row], ["a", "b"], late=rows))
    assert "waited up to 11.0 ms per step for ranks 4, 5." in said and "this may be chance" in said
    other = point(8, 160.0, **lost(37.5, compute=30.0))
    assert "chance" not in " ".join(one.text for one in verdict([BASE, other], ["a", "b"], late=rows))


def test_a_rank_that_stages_name_and_collectives_acquit_is_not_named():
    assert late_ranks(late_8(verdict="no", mean_lateness_ms=1.0)) is None


def test_late_ranks_of_another_configuration_are_not_this_one_s():
    row = point(8, 160.0, loader="pytorch", **lost(37.5, exposed_loader=25.0))
    others = [one | {"loader": "dali"} for one in late_8()]
    said = [one.text for one in verdict([BASE, row], ["a", "b"], late=others)]
    assert not said[0].startswith("Rank 3") and any("Rank 3" in text for text in said)


def test_of_what_was_simulated_only_what_gains_is_advised():
    row = point(8, 160.0, **lost(37.5, exposed_transfer=30.0))
    gained = [
        what_if("fp16-gradients", 9.0),
        what_if("bucket-mb=50", 0.2),
        what_if("network=2x", 12.0, alpha_us=4.0),
    ]
    said = " ".join(one.text for one in verdict([BASE, row], ["a", "b"], gained))
    assert "simulated on 8 ranks: 2x link bandwidth (+12 %), fp16 gradients (+9 %). Or" in said
    assert "In simulation, the limit is link bandwidth." in said and "buckets" not in said


def test_a_simulation_that_the_curve_is_preferred_to_advises_nothing():
    row = point(8, 160.0, **lost(37.5, exposed_transfer=30.0))
    gained = [what_if("network=2x", 12.0, alpha_us=4.0, believed=False)]
    said = " ".join(one.text for one in verdict([BASE, row], ["a", "b"], gained))
    assert "imulat" not in said and "Larger buckets (bucket_mb)" in said


def test_where_faster_links_gain_nothing_latency_limits_the_transfer():
    row = point(8, 160.0, **lost(37.5, exposed_transfer=30.0))
    gained = [what_if("fp16-gradients", 0.1), what_if("network=2x", 0.2, alpha_us=400.0)]
    said = verdict([BASE, row], ["a", "b"], gained)
    text = " ".join(one.text for one in said)
    assert "latency" in {one.cause for one in said} and "None of these gains 1 % or more" in text
    assert "a network of lower latency" in text


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


def test_a_rank_that_is_late_on_the_base_point_s_ranks_too_comes_first_and_costs_no_scaling():
    first, *rest = [one.text for one in verdict([BASE, point(8, 101.0)], ["a", "b"], late=late_8())]
    assert first.startswith("Rank 3 (n1) is a straggler") and any(
        "Nothing else limits" in one for one in rest
    )


def test_a_late_rank_is_the_cause_where_profiled_runs_miss_the_loss():
    row = point(8, 160.0, **lost(37.5, compute=5.0))
    first, *rest = [one.text for one in verdict([BASE, row], ["a", "b"], late=late_8())]
    assert first.startswith("Rank 3 (n1) is a straggler") and "Not enough data" not in " ".join(rest)


def test_what_was_measured_is_not_advised_against_a_cause():
    row = point(8, 160.0, **lost(37.5, exposed_transfer=30.0))
    gained = [what_if("fp16-gradients", 9.0), what_if("network=2x", 12.0, alpha_us=4.0)]
    rows = [BASE, row, point(8, 150.0, grad="fp16")]
    said = " ".join(one.text for one in verdict(rows, ["a", "b", "c"], gained))
    assert "2x link bandwidth (+12 %)" in said and "fp16 gradients (" not in said


def test_waiting_is_no_communication():
    said = text(BASE, point(4, 160.0, **lost(LOST_PCT, exposed_wait=30.0)))
    assert "waiting for other ranks (no straggler)" in said and "fp16" not in said


# --- the forecast -------------------------------------------------------------------------------------


def plain(method: str, low: float, high: float) -> dict[str, Any]:
    """A row of analysis.predict of the job as it is."""
    return what_if("", 0.0, method=method, images_per_s_low=low, images_per_s_high=high)


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
    assert said.text.startswith("Largest simulated gain on 8 ranks (dali): 2x link bandwidth")


def what_if(name: str, gain_pct: float, **more: Any) -> dict[str, Any]:
    """A row of analysis.predict for 8 ranks."""
    row = {"what_if": name, "ranks": 8, "gain_pct": gain_pct, "images_per_s": 2000.0, "name": ""}
    return FIELDS | row | more


@pytest.mark.parametrize(("grad", "advised"), [("bf16", "fp16 gradients"), ("fp16", "2x link")])
def test_what_was_measured_is_not_advised_from_a_simulation(grad, advised):
    points = [BASE, point(4, 160.0), point(4, 150.0, grad=grad)]
    predicted = [what_if("fp16-gradients", 30.0), what_if("network=2x", 20.0)]
    said = " ".join(one.text for one in verdict(points, ["a", "b", "c"], predicted))
    assert advised in said.partition("Largest simulated gain")[2]


@pytest.mark.parametrize(("grad", "also"), [("fp32", "fp16 gradients, "), ("fp16", "")])
def test_changes_that_could_not_be_simulated_are_named_beside_the_largest_gain(grad, also):
    late = what_if("no-stragglers", 6.0, grad=grad)
    (said,) = forecast([late, what_if("no-loader", 0.0, grad=grad)], [BASE])
    unknown = f"unknown: {also}2x link bandwidth, 50 MiB buckets."
    assert "no late ranks" in said.text and said.text.endswith(unknown)
    every = [what_if(name, 0.0, grad=grad) for name in DEFAULT_WHAT_IFS if name != "no-stragglers"]
    (known,) = forecast([late, *every], [BASE])
    assert "unknown" not in known.text


def test_buckets_that_were_measured_are_not_advised():
    points = [BASE, point(4, 160.0, bucket_mb=50.0)]
    assert to_try([what_if("bucket-mb=50", 30.0, bucket_mb=25.0)], points) is None
    assert to_try([what_if("bucket-mb=100", 30.0, bucket_mb=25.0)], points) is not None


def test_what_is_to_be_tried_is_of_the_fewest_ranks():
    near, far = what_if("network=2x", 10.0), what_if("network=2x", 30.0, ranks=16)
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


def with_rate(row: dict[str, Any], half: float) -> dict[str, Any]:
    rate = row["images_per_s"]
    return row | {"images_per_s_low": rate - half, "images_per_s_high": rate + half}


def test_an_option_that_the_sweep_measured_to_be_faster_is_said_with_its_gain():
    slow, fast = with_rate(point(4, 200.0), 20), with_rate(point(4, 160.0, grad="fp16"), 20)
    assert (
        "Measured on 4 ranks: fp16 gradients instead of fp32 gradients gives 800 images/s (+25 %)."
        in text(BASE, slow, fast)
    )
    names = ["all", "dali-cpu, fp32 gradients", "dali-cpu, fp16 gradients"]
    (gain,) = [one.text for one in verdict([BASE, slow, fast], names) if one.text.startswith("Measured")]
    assert gain.endswith("gives 800 images/s (+25 %, dali-cpu).")
    # Intervals that overlap tell nothing, nor does a run that differs in two options, or in what is learnt.
    assert "Measured" not in text(BASE, with_rate(slow, 100), with_rate(fast, 100))
    assert "Measured" not in text(BASE, slow, fast | {"workers": 7})
    assert "Measured" not in text(BASE, slow, fast | {"grad": "fp32", "batch": 64})
    # The synthetic loader is a bound, not a setting.
    assert "Measured" not in text(BASE, slow, fast | {"grad": "fp32", "loader": "synthetic"})


def test_a_profiled_run_is_not_judged_where_an_unprofiled_one_has_as_many_ranks():
    plain = point(4, 200.0) | {"timed_by": "unprofiled runs"}
    profiled = point(4, 140.0) | {"timed_by": "profiled runs", "batches": 30}
    assert leading([profiled, plain]) == (plain, plain, plain)
    assert leading([profiled]) == (profiled, profiled, profiled)
    assert "50 %" in text(BASE, plain, profiled) and "71 %" not in text(BASE, plain, profiled)
