"""Beyond data parallel: FSDP, tensor, pipeline and expert parallel groups in traces are not mixed."""

import pytest

from analysis.display.metrics import records
from analysis.measures import anatomy, communication
from tests.analysis.frames import kernels_frame
from tests.analysis.traced import study_of
from tests.profiling.traced_jobs import START_US, Planted, trace_of

BATCHES = 4
# Of each batch, in order: kind as PyTorch records it, the group that a rank is in, its transfer in us, and
# elements of 2 bytes that come in and go out. Ranks 0 and 1, 2 and 3 share layers; 0 and 2, 1 and 3 hold the
# same part of them.
TENSOR = {0: (0, 1), 1: (0, 1), 2: (2, 3), 3: (2, 3)}
DATA = {0: (0, 2), 1: (1, 3), 2: (0, 2), 3: (1, 3)}
EVERY = dict.fromkeys(range(4), (0, 1, 2, 3))
CALLS = (
    ("_allgather_base", "ncclDevKernel_AllGather_RING_LL(int)", DATA, 40.0, 10_000, 20_000),
    ("allreduce", "ncclDevKernel_AllReduce_Sum_bf16_RING_LL(int)", TENSOR, 25.0, 50_000, 50_000),
    ("all_to_all", "ncclDevKernel_SendRecv(int)", EVERY, 30.0, 8_000, 8_000),
    ("_reduce_scatter_base", "ncclDevKernel_ReduceScatter_Sum_bf16_RING_LL(int)", DATA, 60.0, 20_000, 10_000),
)
LATE = {3: 15.0}  # rank 3 comes so much later to each of them, in us


def rank_trace(rank):
    """A rank of a 2 x 2 mesh: between two collectives 100 us of a kernel, 15 us more on the late rank."""
    trace = trace_of(Planted(ranks=4, batches=0), rank)
    length = 1200.0
    for number in range(BATCHES):
        at = START_US + number * length
        trace.range(f"ProfilerStep#{number}", at, at + length - 1)
        done = at + 10
        for place, (kind, kernel, groups, lasts, given, got) in enumerate(CALLS):
            trace.kernel("ampere_bf16_s16816gemm", at + 3 + place, done, done + 100 + LATE.get(rank, 0.0))
            begins = done + 100 + LATE.get(rank, 0.0)
            members = groups[rank]
            # All leave when the last of the group has come, and its bytes have moved.
            ends = done + 100 + max(LATE.get(one, 0.0) for one in members) + lasts
            trace.kernel(kernel, at + 3.5 + place, begins, ends, stream=20, **{
                "Collective name": kind, "dtype": "BFloat16", "In msg nelems": given, "Out msg nelems": got,
                "Group size": len(members), "Process Group Name": "_".join(map(str, members)),
                "Process Group Ranks": str(list(members)),
            })  # fmt: skip
            done += 200.0  # the next begins at the same time on all ranks
    return trace


@pytest.fixture(scope="module")
def mesh(tmp_path_factory):
    return study_of(tmp_path_factory.mktemp("mesh"), *map(rank_trace, range(4)))


@pytest.mark.parametrize(
    ("kind", "size", "groups", "transfer", "wait", "mbytes", "factor"),
    [
        ("allgather", 2, 2, 40, 15 / 4, 0.04, 1 / 2),
        ("allreduce", 2, 2, 25, 15 / 4, 0.1, 2 * 1 / 2),
        ("alltoall", 4, 1, 30, 15 * 3 / 4, 0.016, 3 / 4),
        ("reducescatter", 2, 2, 60, 15 / 4, 0.04, 1 / 2),
    ],
)
def test_collectives_of_each_kind_of_group_have_their_own_figures(
    mesh, kind, size, groups, transfer, wait, mbytes, factor
):
    (row,) = [row for row in records(communication.communication(mesh).rows) if row["collective"] == kind]
    assert (row["group_size"], row["groups"], row["calls_per_step"]) == (size, groups, 1)
    assert row["transfer_ms"] == pytest.approx(transfer / 1e3, abs=1e-4)
    assert row["wait_ms"] == pytest.approx(wait / 1e3, abs=1e-4)
    assert row["mbyte_per_call"] == pytest.approx(mbytes)
    assert row["busbw_gb_per_s"] == pytest.approx(mbytes / transfer * 1e3 * factor, rel=1e-2)


def test_the_anatomy_of_a_mesh_adds_up(mesh):
    (row,) = records(anatomy.anatomy(mesh).rows)
    transfer, wait = sum(one[3] for one in CALLS), 15 * (1 + 1 + 3 + 1) / 4
    assert row["exposed_transfer_ms"] == pytest.approx(transfer / 1e3, abs=1e-3)
    assert row["exposed_wait_ms"] == pytest.approx(wait / 1e3, abs=1e-3)
    # Whatever group waits for rank 3, it is for its kernels.
    assert row["wait_compute_ms"] == pytest.approx(row["exposed_wait_ms"], rel=0.01)
    classes = dict(kernels_frame(mesh, by=["class"])[["class", "ms_per_step"]].itertuples(index=False))
    assert set(classes) == {"gemm", "communication"}


def test_groups_that_are_whole_are_matched_though_other_ranks_are_missing(tmp_path):
    """Of ranks 0 and 1 the tensor parallel group is whole, and no other is."""
    study = study_of(tmp_path, *map(rank_trace, (0, 1)))
    rows = {row["collective"]: row for row in records(communication.communication(study).rows)}
    assert rows["allreduce"]["transfer_ms"] == pytest.approx(0.025, abs=1e-4)
    assert all(rows[kind].get("transfer_ms") is None for kind in ("allgather", "alltoall", "reducescatter"))
    said = " ".join(study.notes())
    assert "ranks not recorded" in said
    assert "recording: 2 of 4 (2-3)" in said


# What each of three stages does with a micro-batch, in order: send or receive, with which stage, when it
# enters and when it is done, in us. Stage 2 waits 100 us for its activations, stage 1 also for its gradients.
PIPELINE = {
    0: (("send", 1, 110, 150), ("recv", 1, 560, 600)),
    1: (("recv", 0, 110, 150), ("send", 2, 260, 300), ("recv", 2, 300, 450), ("send", 0, 560, 600)),
    2: (("recv", 1, 160, 300), ("send", 1, 410, 450)),
}
MICRO_BATCHES = 2


def stage_trace(stage):
    """The trace of a stage, which makes its own calls of each micro-batch before those of the next."""
    trace = trace_of(Planted(ranks=3, batches=0), stage)
    for number in range(BATCHES):
        at = START_US + 1500.0 * number
        trace.range(f"ProfilerStep#{number}", at, at + 1499)
        for part in range(MICRO_BATCHES):
            trace.kernel("ampere_bf16_s16816gemm", at + part, at + 700 * part + 10, at + 700 * part + 60)
            for kind, peer, came, left in PIPELINE[stage]:
                begins, ends = at + 700 * part + came, at + 700 * part + left
                trace.kernel("ncclDevKernel_SendRecv(int)", at + 2 + part, begins, ends, stream=20, **{
                    "Collective name": kind, "dtype": "BFloat16", "In msg nelems": 4000,
                    "Out msg nelems": 4000, "Group size": 3, "Process Group Name": "7",
                    "Process Group Ranks": "[0, 1, 2]",
                    ("Dst Rank" if kind == "send" else "Src Rank"): peer,
                })  # fmt: skip
    return trace


def test_sends_and_receives_of_three_stages_are_told_apart_by_their_ranks_and_direction(tmp_path):
    study = study_of(tmp_path, *map(stage_trace, PIPELINE))
    (row,) = records(communication.communication(study).rows)
    assert (row["collective"], row["group_size"], row["calls_per_step"]) == ("sendrecv", 2, 16 / 3)
    # 40 us each, on both sides of the four of a micro-batch; of three ranks.
    assert row["transfer_ms"] == pytest.approx(2 * 4 * 2 * 0.040 / 3, rel=1e-3)
    assert row["wait_ms"] == pytest.approx(2 * (0.100 + 0.110) / 3, rel=1e-3)
    assert not [note for note in study.notes() if "not available" in note]
