"""Late ranks in the report's sentences: named, and as the cause of what is lost."""

from typing import Any

import pytest

from analysis.report.causes import Cause, Late, late_ranks, lowest_of, of_loss
from analysis.report.verdict import verdict
from tests.analysis.scaled_rows import BASE, TRACED, late, late_8, lost, point, what_if


def test_what_a_late_rank_takes_off_a_part_moves_its_interval_too():
    row = {"loss_exposed_wait_pct": 18.0, "loss_exposed_wait_pct_low": 10.0}
    assert lowest_of(row, Cause("exposed_wait", 18.0)) == 10
    assert lowest_of(row, Cause("exposed_wait", 5.0)) == -3
    assert lowest_of(row, Cause("late ranks", 5.0)) == float("inf")


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
    processor = {"mean_ms": 32.0, "cause": "processor"}
    said = said_of(late("a", 0, cause="processor"), late("a", 2, **processor))
    assert "Ranks 0, 2 are stragglers: the other ranks wait at least 32.0 ms per step for them (20 %" in said
    assert "Likely cause: processor (" in said and "Also late" not in said
    # Neither the wait for one rank nor its cause is that of a rank which is late for another cause.
    said = said_of(late("a", 0, cause="loader"), late("a", 5, cause="loader"), late("a", 2, **processor))
    assert "Rank 2 (n1) is a straggler: the other ranks wait at least 32.0 ms per step for it (20 %" in said
    assert "tors take longer than on the other ranks). Also late: ranks 0, 5; likely cause: loader (" in said


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
    rows = [row | {"verdict": "too few steps"} if row["run"] == "t" else row for row in late_8()]
    found = late_ranks(rows)
    assert found is not None and found.ranks == (3,) and found.ms == 32.0 and found.by_collectives


def test_ranks_that_may_be_late_by_chance_are_suspected_where_waiting_costs_most():
    rows = [late("t", rank, "may be chance", mean_ms=6.0 + rank) | TRACED for rank in (4, 5)]
    rows += [late("t", 6, "may be chance", mean_ms=1.0) | TRACED, late("t", 7, "no") | TRACED]
    row = point(8, 160.0, **lost(37.5, exposed_wait=30.0))
    said = " ".join(one.text for one in verdict([BASE, row], ["a", "b"], late=rows))
    assert "waited up to 11.0 ms per step for ranks 4, 5." in said and "this may be chance" in said
    assert "Largest cause: waiting for other ranks, 30.0" in said and "no straggler" not in said
    other = point(8, 160.0, **lost(37.5, compute=30.0))
    assert "chance" not in " ".join(one.text for one in verdict([BASE, other], ["a", "b"], late=rows))


def test_a_rank_that_stages_name_and_collectives_acquit_is_not_named():
    assert late_ranks(late_8(verdict="no", mean_lateness_ms=1.0)) is None


def test_late_ranks_of_another_configuration_are_not_this_one_s():
    row = point(8, 160.0, loader="pytorch", **lost(37.5, exposed_loader=25.0))
    others = [one | {"loader": "dali"} for one in late_8()]
    said = [one.text for one in verdict([BASE, row], ["a", "b"], late=others)]
    assert not said[0].startswith("Rank 3") and any("Rank 3" in text for text in said)


def test_a_rank_that_is_late_on_the_base_point_s_ranks_too_comes_first_and_costs_no_scaling():
    first, *rest = [one.text for one in verdict([BASE, point(8, 101.0)], ["a", "b"], late=late_8())]
    assert first.startswith("Rank 3 (n1) is a straggler") and any(
        "Nothing else limits" in one for one in rest
    )


def test_a_late_rank_is_the_cause_where_profiled_runs_miss_the_loss():
    row = point(8, 160.0, **lost(37.5, compute=5.0))
    first, *rest = [one.text for one in verdict([BASE, row], ["a", "b"], late=late_8())]
    assert first.startswith("Rank 3 (n1) is a straggler") and "Not enough data" not in " ".join(rest)
