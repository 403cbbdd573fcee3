"""The host side of GPU runs, on stand-ins for NVIDIA's libraries: what is asked of a GPU, what errors become.

`make gpu-fake` makes the environment (fake_gpu.sh: what is real in it, and what is not); CI has it.
"""

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path

import pytest

from jobs.failures import explain
from jobs.run import make_run
from jobs.run_fields import to_flags
from profiling import tables
from tests.forked import Child, Parent
from tests.gpu.fake.environment import HERE, LIMIT_S, SCRIPT, run, with_variables
from train import data

pytestmark = pytest.mark.long
STEPS = ("fp32", "tf32", "bf16", "fp16", "channels_last", "pytorch")
GRAPHED = ("graph", "graph fp16", "graph channels_last", "graph ddp", "graph pytorch")
TINY = {"model": "resnet18", "image_size": 64, "batch": 4, "batches": 4, "device": "gpu", "workers": 0}


@dataclass(frozen=True)
class Machine:
    """A machine with fake GPUs, and on it a process that has imported all that ranks import.

    Variables of the environment say how many GPUs there are, and the like (fake_gpu.sh).
    """

    parent: Parent
    outputs: Path
    numbers: Iterator[int] = field(default_factory=count)

    def start(self, *words: object, **variables: object) -> Child:
        """Fork ``python -m WORDS``."""
        output = self.outputs / f"{next(self.numbers)}.txt"
        return self.parent.start(output, *words, environment=with_variables(variables))

    def train(self, out: Path, fields: dict, **variables: object) -> tuple[int, str]:
        """The exit code and what is said of one rank."""
        flags = to_flags(make_run({**TINY, **fields}))
        return self.start("train", *flags, f"--out={out}", **variables).wait(LIMIT_S)

    def train_two(self, out: Path, fields: dict, *differing: dict, **variables: object) -> list[Child]:
        """Two ranks of one node, which meet at a file, and may have variables that differ."""
        flags = to_flags(make_run({**TINY, "gpus_per_node": 2, **fields}))
        meet = f"file://{out}.meet"
        common = {"WORLD_SIZE": 2, "LOCAL_WORLD_SIZE": 2, "SCALEPROF_RENDEZVOUS": meet, **variables}
        return [
            self.start("train", *flags, f"--out={out}", RANK=rank, LOCAL_RANK=rank, **common, **own)
            for rank, own in enumerate(differing or ({}, {}))
        ]


@pytest.fixture(scope="module")
def machine(tmp_path_factory) -> Iterator[Machine]:
    with Parent(["tests.train.imported"], with_variables({}), [str(SCRIPT), "run", str(HERE)]) as parent:
        yield Machine(parent, tmp_path_factory.mktemp("outputs"))


def report(out: Path, rank: int = 0) -> dict:
    return json.loads((out / f"rank_{rank:04d}" / "rank.json").read_text())


@pytest.fixture(scope="module")
def counted(tmp_path_factory, machine) -> dict:
    """What one step asks of the GPU, by case."""
    folder = tmp_path_factory.mktemp("counted")
    data.make(folder / "data", 16, 2, seed=1)
    counting = machine.start("tests.gpu.fake.counted", folder / "out", folder / "data", FAKE_GPUS=2)
    code, said = counting.wait(LIMIT_S)
    assert code == 0, said
    return json.loads(said.strip().splitlines()[-1])


@pytest.mark.parametrize("case", [*STEPS, *GRAPHED])
def test_a_step_waits_for_nothing_and_reads_nothing_back(counted, case):
    step = counted[case]
    waits = ("sync_stream", "sync_device", "sync_event", "d2h", "pageable_h2d", "waited_ns", "mallocs")
    assert {name: step[name] for name in waits} == dict.fromkeys(waits, 0)
    assert step["events"] >= 6
    assert step["kernels"] > 100 or case in GRAPHED


@pytest.mark.parametrize("case", GRAPHED)
def test_the_stages_of_a_graphed_step_are_three_launches(counted, case):
    assert counted[case]["graph_launches"] == 3
    # Of the pytorch loader's own: it normalises images on the GPU.
    assert counted[case]["kernels"] <= (4 if "pytorch" in case else 0)


def test_what_is_copied_and_waited_for_is_counted(counted):
    assert counted["sync_stages"]["sync_device"] >= 2  # else the first test could not fail
    assert counted["fp32"]["graph_launches"] == 0
    # Images and labels of a graph are copied to where the first lay; the synthetic batch is always the same.
    loss = 1
    assert counted["graph"]["d2d"] == loss and counted["graph pytorch"]["d2d"] == loss + 2
    # A batch of the pytorch loader is bytes from pinned memory; the computing stream waits for the copying.
    images, labels = 4 * 3 * 64 * 64, 4 * 8
    step = counted["pytorch"]
    assert (step["h2d"], step["h2d_bytes"], step["waits"]) == (2, images + labels, 1)
    assert counted["fp32"]["h2d"] == counted["channels_last"]["h2d"] == 0
    assert counted["replicas"] == ["torch.bfloat16"] * 2  # of DataParallel


@pytest.mark.parametrize("profile", ["torch", "cupti"])
def test_a_profiler_records_kernels_of_every_direction(tmp_path, profile):
    """By a process of its own, which takes CUPTI apart when it ends."""
    code, said = run("-m", "train", *to_flags(make_run({**TINY, "profile": profile})), f"--out={tmp_path}")
    assert code == 0, said
    kernels = tables.read(tables.rank_directory(tmp_path, 0), "kernels").to_pandas()
    assert {"fprop", "bprop", "update"} <= set(kernels["direction"]) and set(kernels["batch_index"]) >= {2, 3}
    if profile == "torch":
        assert kernels[kernels["direction"] == "fprop"]["layer"].notna().any()
        assert kernels["flops"].sum() > 0
    assert not any("no GPU activity" in finding for finding in report(tmp_path)["findings"])


@pytest.mark.parametrize("profile", ["torch", "cupti"])
def test_kernels_of_graphs_have_their_step_and_stage_and_what_is_not_known_is_said(
    tmp_path, machine, profile
):
    fields = {"graph": True, "batches": 14, "attribute_from": 12, "profile": profile}
    code, said = machine.train(tmp_path, fields)
    assert code == 0, said
    kernels = tables.read(tables.rank_directory(tmp_path, 0), "kernels").to_pandas()
    by_stage = kernels.groupby(["batch_index", "direction"]).size()
    for step in (12, 13):
        assert by_stage[step, "bprop"] > by_stage[step, "fprop"] > 60 and by_stage[step, "update"] > 0
    # ResNet18 has 20 convolutions; cuDNN is off, which makes each of four images a product of its own.
    forward = kernels[(kernels["batch_index"] == 13) & (kernels["direction"] == "fprop")]
    assert (forward["class"] == "convolution").sum() == 4 * 20
    assert kernels["layer"].isna().all()
    assert "option_limited" in [one["code"] for one in report(tmp_path)["findings"]]


def test_a_cupti_that_does_not_answer_leaves_no_kernels_of_a_cpu(tmp_path, machine):
    code, said = machine.train(tmp_path, {"profile": "torch"}, FAKE_CUPTI_NO=1)
    assert code == 0, said
    assert "not_recorded" in [one["code"] for one in report(tmp_path)["findings"]]
    assert not (tmp_path / "rank_0000" / "kernels.parquet").exists()


@pytest.mark.parametrize("fields", [{"grad": "bf16"}, {"graph": True, "batches": 14}])
def test_two_ranks_train_over_nccl_and_end_with_the_same_parameters(tmp_path, machine, fields):
    ranks = [rank.wait(LIMIT_S) for rank in machine.train_two(tmp_path, fields, FAKE_GPUS=2)]
    assert [code for code, _ in ranks] == [0, 0], ranks
    reports = [report(tmp_path, rank) for rank in range(2)]
    assert [one["backend"] for one in reports] == ["ddp/nccl"] * 2
    assert reports[0]["parameter_digest"] == reports[1]["parameter_digest"]
    assert reports[0]["device_used_bytes"] > reports[0]["peak_device_reserved_bytes"] > 0
    assert reports[0]["device_energy_j"] > 0


def test_a_rank_that_runs_out_of_memory_says_so_while_the_other_waits_for_it(tmp_path, machine):
    """Communicators are destroyed by all ranks or none: the other is in its allreduce."""
    memory = ({"FAKE_MEM_MB": 81559}, {"FAKE_MEM_MB": 1100})
    large = {"batch": 256, "image_size": 224}
    other, full = machine.train_two(tmp_path, large, *memory, FAKE_GPUS=2, FAKE_NCCL_COLLECTIVE=1)
    try:
        code, said = full.wait(LIMIT_S)  # before, it waited without a word
    finally:
        other.kill()
        other.wait(LIMIT_S)
    assert code == 1 and "batch 256" in said
    assert explain(1, "", said).kind == "out of memory"


def test_two_ranks_that_see_one_gpu_are_told_so_and_not_that_the_address_is_wrong(tmp_path, machine):
    for rank in machine.train_two(tmp_path, {}, FAKE_GPUS=1, CUDA_VISIBLE_DEVICES=0):
        code, said = rank.wait(LIMIT_S)
        assert code == 2 and "ranks 0 and 1" in said and "MASTER_ADDR" not in said


CAPTURING = """
import os, torch
import torch.distributed as dist

device = torch.device("cuda", 0)
dist.init_process_group("nccl", store=dist.HashStore(), rank=0, world_size=1, device_id=device)
model, data = torch.nn.Linear(8, 8, device=device), torch.ones(4, 8, device=device)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

def step():
    model(data).sum().backward()
    dist.all_reduce(model.weight.grad)
    optimizer.step()

dist.all_reduce(data)
graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):
    step()
graph.replay()
for _ in range(3):
    step()
"""


def test_a_watched_program_may_capture_first_of_all_and_keep_the_graph_to_its_end(tmp_path, machine):
    """Waiting for the GPU breaks a capture; NCCL's group can be left only when no graph has work of it."""
    (tmp_path / "program.py").write_text(CAPTURING)
    words = (f"--out={tmp_path / 'run'}", tmp_path / "program.py")
    code, said = machine.start("profiling.watch", *words).wait(LIMIT_S)
    assert code == 0, said
    assert len(tables.read(tables.rank_directory(tmp_path / "run", 0), "batches")) == 3
