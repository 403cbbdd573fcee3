"""The sentences follow their rules, and say so when there is not enough to go by."""

from typing import Any

import pytest

from analysis.scaling import POINT_FIELDS
from analysis.verdict import to_try, verdict

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


@pytest.mark.parametrize("more", [{}, {"loader": "pytorch"}])
def test_what_is_lost_on_fewer_ranks_only_is_said_too(more):
    fewer = point(2, 200.0, **more, loss_pct=50.0, loss_note="no profiled run")
    said = text(BASE, fewer, point(4, 103.0))
    assert "Less is kept on 2 ranks with P = 2: 50 %" in said and "Nothing limits it" not in said


def lost(lost_pct: float, **parts: float) -> dict[str, float | str]:
    """Columns of a loss by part; what the parts leave is not attributed."""
    known = dict.fromkeys(("compute", "exposed_communication", "exposed_loader", "exposed_copies"), 0.0)
    known |= {"idle": parts.pop("idle_host_bound", 0.0) + parts.pop("idle_other", 0.0)} | parts
    columns: dict[str, float | str] = {f"loss_{name}_pct": value for name, value in known.items()}
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
        ("exposed_communication", "communication", "fp16"),
        ("exposed_loader", "loading data", "more workers"),
        ("compute", "computing", "the same cores"),
        ("exposed_copies", "copies", "need no copy"),
        ("idle", "idle time", "timeline"),
    ],
)
def test_the_part_that_costs_most_is_named(part, cause, advice):
    said = text(BASE, point(4, 160.0, **lost(LOST_PCT, **{part: 30.0})))
    verb = "cost" if cause == "copies" else "costs"
    assert f"of 38 percentage points lost, {cause} {verb} most (30.0)" in said and advice in said
    assert "60 ms more than on 1 rank (160 against 100 ms)" in said and "62 % [62, 64]" in said


def test_what_no_profiled_run_explains_is_said_where_it_is_more_than_the_largest_part():
    row = point(4, 160.0, **lost(LOST_PCT, compute=12.0, exposed_loader=8.0))
    assert "computing costs most (12.0); 18 no profiled run explains." in text(BASE, row)


@pytest.mark.parametrize(
    ("host", "other", "said_of_it"),
    [(20.0, 9.0, "late launches cost"), (9.0, 20.0, "waiting of the device costs")],
)
def test_idle_time_that_is_split_is_named_by_its_kind(host, other, said_of_it):
    row = point(4, 160.0, **lost(LOST_PCT, idle_host_bound=host, idle_other=other))
    row |= {"loss_idle_host_bound_pct": host, "loss_idle_other_pct": other}
    assert f"{said_of_it} most (20.0)" in text(BASE, row)


def test_many_small_parts_have_no_single_cause():
    names = ("compute", "exposed_communication", "exposed_loader", "exposed_copies")
    spread = lost(LOST_PCT, **dict.fromkeys(names, 7.5), idle_other=7.5)
    said = text(BASE, point(4, 160.0, **spread))
    assert "No part of the batch alone limits it" in said and "What to try" not in said


@pytest.mark.parametrize("parts", [10.0, 60.0])
def test_parts_that_miss_the_loss_tell_no_cause(parts):
    said = text(BASE, point(4, 160.0, **lost(LOST_PCT, exposed_communication=parts)))
    assert "Not enough data to say what limits it" in said and "misses the 38" in said


def test_without_profiled_runs_the_wait_for_data_is_known():
    row = point(4, 160.0, load_ms=60.0, backward_ms=60.0)
    said = text(BASE, row)
    assert "loading data is the largest part (by 55 ms)" in said and "more workers" in said


def test_strong_scaling_is_judged_by_the_share_of_a_batch():
    strong: dict[str, Any] = {"scaling": "strong"}
    row = point(4, 40.0, load_ms=16.0, scaling_efficiency_pct=62.5, batch=8, **strong)
    row |= {"scaling_efficiency_pct_low": 62.0, "scaling_efficiency_pct_high": 63.0}
    said = text(BASE | strong | {"batch": 32}, row)
    assert "of ideal strong scaling" in said and "15 ms more than its share" in said
    assert "(40 against 25 ms)" in said and "largest part (by 15 ms)" in said


def test_an_unknown_cause_stays_unknown():
    row = point(4, 160.0, loss_pct=LOST_PCT, loss_note="no profiled run with kernels at the base point")
    said = text(BASE, row)
    assert "Not enough data to say what limits it: no profiled run" in said and "What to try" not in said


def test_runs_that_differ_too_much_explain_nothing():
    wild = point(4, 160.0, **lost(LOST_PCT, compute=30.0), scaling_efficiency_pct_high=140.0)
    said = text(BASE, wild)
    assert "equal runs differ too much" in said and "What to try" not in said


def test_the_base_of_fp16_gradients_may_be_said_to_be_fp32():
    said = text(BASE, point(2, 160.0, grad="fp16", **lost(LOST_PCT, exposed_communication=30.0)))
    assert "100 ms" in said and "communication" in said


def test_best_and_worst_configuration_are_named():
    rows = [BASE, point(4, 110.0), point(4, 160.0, loader="pytorch")]
    said = " ".join(s.text for s in verdict(rows, ["base", "good", "bad"]))
    assert "with good, and 62 % " in said


def test_each_of_best_and_worst_is_named_with_its_own_base():
    other = {"base": "1 node x 1, pytorch", "base_images_per_s": 280.0}
    rows = [BASE, point(4, 110.0), point(4, 160.0, loader="pytorch", **other)]
    said = " ".join(s.text for s in verdict(rows, ["base", "good", "bad"]))
    assert (
        "1 node x 1 (320 images/s) with the one, of 1 node x 1, pytorch (280 images/s) with the other" in said
    )


def late(
    run: str, rank: int, verdict: str = "straggler", mean_ms: float = 8.0, cause: str = "loader"
) -> dict:
    """A row of analysis.stragglers of a run with batches of 160 ms."""
    return {
        "id": run, "rank": rank, "node": f"n{rank // 2}", "verdict": verdict, "batch_ms": 160.0,
        "mean_lateness_ms": mean_ms, "cause": cause,
    }  # fmt: skip


def said_of(*rows: dict[str, Any]) -> str:
    points = [BASE, point(4, 160.0)]
    return " ".join(one.text for one in verdict(points, ["base", "slow"], late=rows))


def test_a_rank_that_most_runs_name_is_said_to_hold_up_the_others():
    said = said_of(
        late("a", 3), late("b", 3, cause="loader"), late("c", 3, "no"), late("c", 1, "may be chance")
    )
    assert "Rank 3 (n1) makes the others wait, for 8.00 ms a batch (5 %) in 2 of 3 runs" in said
    assert "likely cause: loader" in said


def test_the_rank_that_is_waited_for_longest_comes_first_and_others_are_counted():
    said = said_of(late("a", 0), late("a", 2, mean_ms=32.0, cause="processor"))
    assert (
        "Rank 2 (n1), and 1 more, make the others wait, for 32.0 ms" in said
        and "(20 %)" in said
        and "cause: processor" in said
    )


def test_a_rank_that_is_on_another_node_each_time_is_not_called_by_one():
    said = said_of(late("a", 3), late("b", 3) | {"node": "n7"})
    assert "Rank 3 makes the others wait" in said


def test_a_late_rank_is_named_where_one_world_size_was_measured():
    alone = point(4, 160.0, base_world_size=4)
    said = " ".join(one.text for one in verdict([alone], ["slow"], late=[late("a", 3)]))
    assert "one world size" in said and "Rank 3 (n1) makes the others wait" in said


def test_a_rank_that_is_named_in_half_of_the_runs_or_less_is_not_said():
    assert "makes the others wait" not in said_of(late("a", 3), late("b", 3, "no"))
    assert "makes the others wait" not in said_of()


def what_if(name: str, gain_pct: float, **more: Any) -> dict[str, Any]:
    """A row of analysis.predict for 8 ranks."""
    row = {"what_if": name, "ranks": 8, "gain_pct": gain_pct, "images_per_s": 2000.0, "name": ""}
    return FIELDS | row | more


@pytest.mark.parametrize(("grad", "advised"), [("bf16", "gradients in fp16"), ("fp16", "links of 2x")])
def test_what_was_measured_is_not_advised_from_a_simulation(grad, advised):
    points = [BASE, point(4, 160.0), point(4, 150.0, grad=grad)]
    predicted = [what_if("fp16-gradients", 30.0), what_if("network=2x", 20.0)]
    said = " ".join(one.text for one in verdict(points, ["a", "b", "c"], predicted))
    assert f"{advised}" in said.partition("simulated and not measured")[2]


def test_buckets_that_were_measured_are_not_advised():
    points = [BASE, point(4, 160.0, bucket_mb=50.0)]
    assert to_try([what_if("bucket-mb=50", 30.0, bucket_mb=25.0)], points) is None
    assert to_try([what_if("bucket-mb=100", 30.0, bucket_mb=25.0)], points) is not None


def test_what_is_to_be_tried_is_of_the_fewest_ranks():
    near, far = what_if("network=2x", 10.0), what_if("network=2x", 30.0, ranks=16)
    assert to_try([far, near], [BASE]) == near
