"""Ranks, GPUs and processes: who has which GPU, what a thread computes in, how a failed process ends."""

import subprocess
import sys
import threading
from dataclasses import replace
from datetime import timedelta

import pytest
import torch
import torch.distributed as dist

from jobs.execution import ROOT
from jobs.sweep_file import Sweep
from profiling.errors import UserError
from train.backends import ddp
from train.backends.dp import autocast_in_threads
from train.backends.gpus import Gpu, check_gpus, exchange
from train.world import World

H100 = Gpu("node1", "00:1b:00", "11-22", "NVIDIA H100 80GB HBM3")


def test_gpus_of_their_own_are_right():
    check_gpus([H100, replace(H100, address="00:43:00", uuid="33-44"), replace(H100, host="node2")])
    check_gpus([replace(H100, address=""), replace(H100, address="", uuid="33-44")])


def test_two_ranks_on_one_gpu_are_named_with_it():
    other = replace(H100, address="00:43:00", uuid="33-44")
    told = r"^ranks 1 and 2 have the same GPU \(node1, NVIDIA H100 80GB HBM3, 11-22\).*gpus-per-task=1"
    with pytest.raises(UserError, match=told):
        check_gpus([other, H100, H100])


@pytest.mark.parametrize(
    ("uuids", "name"), [(("1", "2"), H100.name), (("1", "1"), "NVIDIA H100 MIG 1g.10gb")]
)
def test_slices_of_one_gpu_are_told_from_one_gpu(uuids, name):
    with pytest.raises(UserError, match=r"^ranks 0 and 1 have MIG slices of one GPU"):
        check_gpus([replace(H100, uuid=uuid, name=name) for uuid in uuids])


def test_ranks_tell_each_other_their_gpus_through_the_store():
    store, told = dist.HashStore(), {}
    store.set_timeout(timedelta(seconds=20))

    def meet(rank):
        told[rank] = exchange(store, World(rank, 3), replace(H100, uuid=str(rank)))

    ranks = [threading.Thread(target=meet, args=(rank,)) for rank in range(3)]
    for one in ranks:
        one.start()
    for one in ranks:
        one.join()
    assert [[gpu.uuid for gpu in told[rank]] for rank in range(3)] == [["0", "1", "2"]] * 3


def test_a_replicas_thread_computes_in_what_the_run_says():
    """DataParallel switches autocast on in each replica's thread, without a type."""
    layer, seen = torch.nn.Linear(2, 2), []
    autocast_in_threads(layer, "cpu", torch.float16)

    def replica():
        with torch.autocast("cpu"):  # by default bf16 on CPUs, as it is fp16 on GPUs
            seen.append(layer(torch.ones(1, 2)).dtype)

    thread = threading.Thread(target=replica)
    thread.start()
    thread.join()
    assert seen == [torch.float16] and layer(torch.ones(1, 2)).dtype == torch.float32


def test_nccl_waits_longer_for_a_collective_than_a_sweep_does_for_a_batch():
    """Else its watchdog ends a healthy rank before the launcher has kept the stacks of all."""

    assert ddp.COLLECTIVE_TIME.total_seconds() > 10 * Sweep.model_fields["hang_limit_s"].default


@pytest.mark.parametrize("error", ["UserError('no memory')", "RuntimeError('a bug')"])
def test_a_process_still_joined_to_others_says_why_and_leaves_at_once(error):
    """NCCL's group would wait for the others when Python ends: here a thread that never ends does."""
    code = f"""
import threading, torch.distributed as dist
from profiling.errors import UserError
from train import __main__ as train
dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
threading.Thread(target=threading.Event().wait).start()
def main(): raise {error}
train.main = main
train.run_and_leave()
"""
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=100, check=False
    )
    assert done.returncode == (2 if "User" in error else 1)
    assert done.stderr.strip().splitlines()[-1].endswith(error.partition("'")[2].rstrip("')"))
