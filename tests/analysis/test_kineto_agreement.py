"""What a Kineto trace means here is what it means to HolisticTraceAnalysis, where definitions are the same.

Its figures are recorded: benchmarks/results/kineto_agreement.json says the versions and the command.
"""

import json

import pytest

from benchmarks.kineto_agreement import BAR, RESULT, TIMES, difference, ours
from tests.profiling.traces import Trace

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


def test_times_are_unions_not_sums(tmp_path):
    trace = Trace()
    for name, start, end in (
        ("sm80_gemm", 0, 10), ("sm80_gemm", 5, 12), ("ncclKernel_AllReduce(float*)", 8, 20),
        ("Memcpy HtoD (Pinned -> Device)", 18, 21), ("Memset (Device)", 30, 31),
    ):  # fmt: skip
        trace.kernel(
            name, start, start + 100, end + 100, category="gpu_memcpy" if name[:3] == "Mem" else "kernel"
        )
    assert ours(trace.write(tmp_path / "trace.json")) == {
        "kernels": 5, "span_us": 31, "compute_us": 12, "communication_us": 12, "memory_us": 4,
        "overlap_us": 4, "idle_us": 9,
    }  # fmt: skip
