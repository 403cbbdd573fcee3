"""What a Kineto trace means here is what it means to HolisticTraceAnalysis, where definitions are the same.

Its figures are recorded: benchmarks/results/kineto_agreement.json says the versions and the command.
"""

import json

import pytest

from benchmarks.kineto_agreement import BAR, RESULT, TIMES, difference, ours

RECORDED = json.loads(RESULT.read_text())


def test_the_record_is_of_the_pinned_release_and_of_every_trace(shared_data):
    assert RECORDED["versions"]["HolisticTraceAnalysis"] == "0.5.0"
    kineto = shared_data / "kineto"
    assert set(RECORDED["traces"]) == {
        path.relative_to(kineto).as_posix() for path in kineto.rglob("*.json.gz")
    }


@pytest.mark.parametrize("name", RECORDED["traces"])
def test_compute_communication_memory_overlap_and_idle_agree(shared_data, name):
    theirs, mine = RECORDED["traces"][name]["peer"], ours(shared_data / "kineto" / name)
    assert mine["kernels"] == theirs["kernels"]
    apart = {field: difference(mine[field], theirs[field]) for field in TIMES}
    assert max(apart.values()) <= BAR, apart
    exposed = mine["communication_us"] - mine["overlap_us"]
    assert 0 <= mine["span_us"] - mine["compute_us"] - exposed - mine["idle_us"] <= mine["memory_us"] + 1e-6
