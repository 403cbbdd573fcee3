"""What holds of the findings of any results."""

import pytest

from analysis.diagnosis import as_lines
from analysis.diagnosis.evidence import WORDS
from profiling.findings import Finding


def by_code(found: list[Finding], code: str) -> list[Finding]:
    return [one for one in found if one.code == code]


def check(found: list[Finding]) -> None:
    """Raises AssertionError where findings contradict each other, or do not add up."""
    lines = "\n".join(map(str, found))
    assert len(as_lines(found)) <= 10, "\n" + "\n".join(as_lines(found))
    causes = [one for one in found if one.code in ("cause_of_loss", "cause_uncertain", "straggler_costs")]
    for step in by_code(found, "step_takes") + by_code(found, "traced_step_takes"):
        shares = step.data["parts_pct"]
        assert sum(shares.values()) == pytest.approx(100, abs=0.1)
        waits = {name: share for name, share in shares.items() if name in WORDS["avoidable"]}
        costs = [one.data["cost_pct"] for one in causes]
        # A step that waits for most of its time is never said to have no problem.
        if step.code == "step_takes" and max(waits.values(), default=0.0) > max([20.0, *costs]):
            assert by_code(found, "step_waits")
    for loss in by_code(found, "loss"):
        parts = loss.data["parts_pct"]
        assert sum(parts.values()) == pytest.approx(loss.data["cost_pct"])
        largest = max((name for name in parts if name != "unattributed"), key=lambda name: parts[name])
        assert largest in [one.data["kind"] for one in causes]
        # Each point has one cause: they add up to no more than is lost and what other parts shrank by.
        kinds = [one.data["kind"] for one in causes]
        shrank = -sum(min(0.0, pct) for pct in parts.values())
        assert len(set(kinds)) == len(kinds)
        assert sum(one.data["cost_pct"] for one in causes) <= loss.data["cost_pct"] + shrank + 1e-6
    if by_code(found, "efficiency_uncertain"):
        assert not by_code(found, "cause_of_loss")
    if by_code(found, "tables_of_startup"):
        assert not by_code(found, "scaling_efficiency") and "93" not in lines
    if by_code(found, "profiles_missing"):
        assert found[0].code == "profiles_missing"
        assert [one.data["advice"] for one in by_code(found, "advice")] == [["record_all_ranks"]]
    prices = [one.data["price"] for one in by_code(found, "gain_simulated")]
    assert prices == sorted(prices, key=["free", "software", "hardware"].index)
