"""The reference's Kineto traces, against what is known of them."""

import collections

import numpy as np
import pytest

from profiling.tools import recognise, tool
from tests.builders import codes, data_of

read = tool("torch").read

RESNET50_PARAMETERS = 25_557_032
# Analytic, 1 multiply-add = 2: PyTorch's FlopCounterMode at 224 x 224, batch 32.
FORWARD, BACKWARD = 261.707792384e9, 515.86269184e9


@pytest.fixture(scope="module")
def kineto(shared_data):
    return shared_data / "kineto"


def rows_of(path):
    converted = read(path)
    return converted.tables["kernels"].to_pandas(), converted


def test_every_trace_is_read_whole(kineto):
    counts, communication_pct = {}, {}
    for path in sorted(kineto.rglob("*.gz")):
        assert recognise(path) == "torch"
        kernels, converted = rows_of(path)
        counts[path.name.partition(".")[0]] = len(kernels)
        shares = (
            100 * kernels.groupby("class", observed=True)["duration_ns"].sum() / kernels["duration_ns"].sum()
        )
        communication_pct[path.name.partition(".")[0]] = round(shares.get("communication", 0), 2)
        assert shares.get("other", 0) < 0.5, path
        assert kernels["duration_ns"].min() >= 0
        assert len(converted.tables["markers"]) > 0
        assert not {"records_damaged", "parts_unread"} & set(codes(converted.findings)), path
    assert counts["resnet_kineto"] == 9628 + 362 + 123
    assert counts["nccl_data"] == 2700 + 960 + 114
    assert counts["resnet50_v100_dims_old_schema"] == 8772 + 312 + 12
    assert counts["resnet18_ddp_mi300_rank0of8"] == 2995 + 550 + 108
    # One GPU has none; the MI300 ranks wait for one another inside their collectives.
    expected = {"nccl_data": 28.38, "resnet18_ddp_mi300_rank0of8": 71.35, "resnet_kineto": 0}
    assert {name: communication_pct[name] for name in expected} == expected


def test_a_steps_allreduces_are_resnet50s_parameters(kineto):
    kernels, _ = rows_of(kineto / "nccl_data.json.gz")
    reduced = kernels[kernels["name"].str.contains("AllReduce").astype(bool)]
    elements = reduced.groupby("batch_index")["bytes"].sum() / 4
    assert elements.to_dict() == dict.fromkeys((4, 5, 6), RESNET50_PARAMETERS)
    assert set(reduced["direction"]) == {"bprop"}


def test_the_old_schema_gives_the_analytic_flops_in_both_directions(kineto):
    kernels, converted = rows_of(kineto / "resnet50_v100_dims_old_schema.json.gz")
    assert converted.findings == []
    flops = kernels.groupby(["batch_index", "direction"], observed=True)["flops"].sum().unstack()
    assert list(flops.index) == [5, 6, 7, 8, 9, 10]
    assert flops["fprop"].to_list() == pytest.approx([FORWARD] * 6, rel=0.01)
    assert flops["bprop"].to_list() == pytest.approx([BACKWARD] * 6, rel=0.01)


def test_amd_recomputation_and_ranks(kineto):
    kernels, converted = rows_of(kineto / "resnet18_ddp_mi300_rank0of8.json.gz")
    collectives = kernels[(kernels["class"] == "communication") & kernels["batch_index"].notna()]
    by_batch = (
        collectives[collectives["direction"] == "bprop"].groupby("batch_index")["bytes"].sum() / 2
    )  # bf16
    assert set(by_batch) == {11_689_512}  # ResNet18's parameters
    assert {"ReLU_1", "Conv2d_0"} <= set(kernels["layer"].dropna())
    assert data_of(converted.findings, "launches_missing") == [{"n": 968, "of": 3653}]
    flops = kernels.groupby(["batch_index", "direction"], observed=True)["flops"].sum().unstack()
    assert flops["fprop"].iloc[0] == pytest.approx(36.28e9, rel=0.01)
    # Forward twice again, and the checkpointed layers' forward once more.
    assert 2.6 < flops["bprop"].iloc[0] / flops["fprop"].iloc[0] < 3


def test_batches_without_steps_are_told_by_the_optimizer(kineto):
    kernels, converted = rows_of(kineto / "resnet_kineto.json.gz")
    assert sorted(kernels["batch_index"].dropna().unique()) == list(range(30))
    assert data_of(converted.findings, "steps_unmarked") == [{"by": "Optimizer.step"}]
    forward = kernels[(kernels["direction"] == "fprop") & (kernels["class"] == "convolution")]
    assert forward.groupby("batch_index").size().nunique() <= 2  # batch 0 has one more


def test_all_ranks_of_a_job(kineto):
    ranks = collections.Counter()
    for path in sorted((kineto / "dlrm_8ranks").glob("*.gz")):
        kernels, converted = rows_of(path)
        ranks[int(kernels["rank"].iloc[0])] += 1
        communication = kernels[kernels["class"] == "communication"]
        assert len(communication) == 8, path
        assert communication["bytes"].notna().all()
        # Two ranks' traces begin with kernels of the step before.
        assert bool(converted.findings) == (path.name in ("rank1.json.gz", "rank3.json.gz"))
    assert ranks == collections.Counter(range(8))


def test_launches_and_allocations_of_real_traces(kineto):
    launches = read(kineto / "nccl_data.json.gz").tables["kernels"].to_pandas()
    on_device = launches[launches.grid.notna()]
    assert len(on_device) == on_device.blocks_per_sm.notna().sum() == on_device.occupancy_pct.notna().sum()
    assert on_device.occupancy_pct.between(0, 100).all()
    blocks = on_device.grid.astype(str).str.split(",", expand=True).astype(int).prod(axis=1)
    assert np.allclose(blocks / on_device.blocks_per_sm, 108, rtol=1e-4)  # the multiprocessors of an A100
    old = read(kineto / "resnet50_v100_dims_old_schema.json.gz").tables["memory"].to_pandas()
    assert len(old) == 12_838 and old.bytes.notna().all() and old.allocated_bytes.isna().all()
