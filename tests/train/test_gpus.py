"""Ranks, GPUs and processes: who has which GPU, what is near it, how a failed process ends."""

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import Mock

import pytest
import torch
import torch.distributed as dist

from jobs import ROOT
from jobs.run import make_run
from profiling.errors import UserError
from profiling.findings import ranges
from train import rank
from train.backends import ddp
from train.backends.ddp import Gpu, check_gpus
from train.device import UCX_CARDS, bind_near, choose_device, device_name
from train.world import World

H100 = Gpu("node1", "00:1b:00", "11-22", "NVIDIA H100 80GB HBM3")


def test_two_ranks_on_one_gpu_or_on_slices_of_it_are_named():
    other = replace(H100, address="00:43:00", uuid="33-44")
    check_gpus([H100, other, replace(H100, host="node2")])
    check_gpus([replace(one, address="") for one in (H100, other)])
    told = r"^ranks 1 and 2 have the same GPU \(node1, NVIDIA H100 80GB HBM3, 11-22\).*gpus-per-task=1"
    with pytest.raises(UserError, match=told):
        check_gpus([other, H100, H100])
    for uuids, name in ((("1", "2"), H100.name), (("1", "1"), "NVIDIA H100 MIG 1g.10gb")):
        with pytest.raises(UserError, match=r"^ranks 0 and 1 have MIG slices of one GPU"):
            check_gpus([replace(H100, uuid=uuid, name=name) for uuid in uuids])


@pytest.mark.parametrize("name", ["NVIDIA H100", "NVIDIA H100 80GB HBM3"])
def test_a_name_of_several_boards_has_the_memory_added(monkeypatch, name):
    had = SimpleNamespace(total_memory=95.6 * 2**30)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda _: name)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: had)
    assert device_name(torch.device("cuda", 0)) == name + " 96GB" * (name == "NVIDIA H100")


def have_gpus(monkeypatch, count, capability=(9, 0), built_for=("sm_80", "sm_90")) -> Mock:
    """What torch.cuda says of a node's GPUs, as this process sees them; what is called to choose one."""
    says = {
        "is_available": True, "device_count": count, "get_device_name": "NVIDIA H100 80GB HBM3",
        "get_device_capability": capability, "get_arch_list": list(built_for), "set_device": None,
    }  # fmt: skip
    for name, value in says.items():
        monkeypatch.setattr(torch.cuda, name, Mock(return_value=value))
    return torch.cuda.set_device


@pytest.mark.parametrize(
    ("count", "visible", "world", "told"),
    [
        (4, None, World(local_rank=3, local_size=4), 3),
        (1, "1", World(local_rank=3, local_size=4), 0),
        (1, None, World(local_rank=1, local_size=2), "local rank 1 has no GPU: this node has 1"),
        (2, None, World(local_rank=2, local_size=4), "local rank 2 of 4 sees 2 GPUs: start fewer"),
    ],
)
def test_each_rank_has_its_gpu_or_is_told_why_not(monkeypatch, count, visible, world, told):
    chosen = have_gpus(monkeypatch, count)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if visible:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    if isinstance(told, int):
        assert choose_device(make_run({}), world) == torch.device("cuda", told)
        chosen.assert_called_once_with(told)
    else:
        with pytest.raises(UserError, match=told):
            choose_device(make_run({}), world)


def test_a_gpu_that_this_pytorch_has_no_kernels_for_is_told_before_the_first_of_them(monkeypatch):
    have_gpus(monkeypatch, 1, capability=(7, 0), built_for=["sm_75", "sm_90"])
    with pytest.raises(UserError, match=r"capability 7\.0.* install PyTorch for CUDA 12\.6"):
        choose_device(make_run({}), World())
    assert choose_device(make_run({"device": "cpu"}), World()).type == "cpu"
    monkeypatch.setattr(torch.version, "hip", "7.0")
    with pytest.raises(UserError, match=r"^AMD GPUs are not supported.*--device cpu trains on the CPU"):
        choose_device(make_run({}), World())


def test_what_a_run_says_of_compilation_and_the_update_reaches_pytorch(monkeypatch):
    asked, cuda, layer = [], torch.device("cuda", 0), torch.nn.Linear(2, 2)
    monkeypatch.setattr(torch, "compile", lambda model, mode: asked.append(mode) or model)
    for value in (False, True, "max-autotune"):
        assert rank.compiled(layer, make_run({"compile": value})) is layer
    assert asked == [None, "max-autotune"]
    # The update is one kernel on a GPU, but under Horovod, which stands between it and the gradients.
    monkeypatch.setattr(torch.optim, "SGD", lambda parameters, **words: words["fused"])
    ways = [({}, cuda), ({}, torch.device("cpu")), ({"backend": "horovod"}, cuda)]
    assert [rank.make_optimizer(layer, make_run(one), device) for one, device in ways] == [True, None, None]


@pytest.mark.parametrize("wanted", [True, False])
def test_ddp_broadcasts_buffers_if_the_run_says_so(wanted):
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        backend = object.__new__(ddp.Ddp)
        backend._run, backend._device = make_run({"broadcast_buffers": wanted}), torch.device("cpu")
        model = backend.wrap(torch.nn.BatchNorm2d(2))
        told = getattr(model, "forward_sync_buffers", None)
        assert (model.broadcast_buffers if told is None else told) is wanted
        # The last owner of a group ends it. DDP would with the GIL held, for which Gloo's thread may wait.
        del model
    finally:
        dist.destroy_process_group()


def test_a_process_still_joined_to_others_says_why_and_leaves_at_once():
    """NCCL's group would wait for the others when Python ends: here a thread that never ends does."""
    code = """
import os, threading, torch.distributed as dist
from profiling.errors import UserError
from profiling.process import run_and_leave
def main(): raise error
for error in (UserError("no memory"), RuntimeError("a bug")):
    if not (child := os.fork()):
        dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
        threading.Thread(target=threading.Event().wait).start()
        run_and_leave(main)
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""
    words = [sys.executable, "-c", code]
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, timeout=100, check=False)
    assert done.stdout.split() == ["2", "1"], done.stderr
    assert "scaleprof: error: no memory\n" in done.stderr and done.stderr.endswith("RuntimeError: a bug\n")


def test_a_rank_that_is_done_ends_as_python_does_so_that_profilers_write(tmp_path):
    program = tmp_path / "done.py"
    program.write_text("from profiling.process import run_and_leave; run_and_leave(lambda: 0)")
    words = [sys.executable, "-m", "cProfile", "-o", str(tmp_path / "done.prof"), str(program)]
    subprocess.run(words, env={**os.environ, "PYTHONPATH": str(ROOT)}, check=True)
    assert (tmp_path / "done.prof").is_file()


# --- near a GPU, by a /sys of two sockets: a GPU and a card on each switch ------------------------------

# address -> (the bridges above it, its processors)
DEVICES = {
    "0000:17:00.0": ("pci0000:15/0000:15:01.0/0000:16:00.0", "0-3"),  # a GPU
    "0000:18:00.0": ("pci0000:15/0000:15:01.0/0000:16:00.0", "0-3"),  # mlx5_0, below the same switch
    "0000:3b:00.0": ("pci0000:15/0000:15:02.0/0000:3a:00.0", "0-3"),  # mlx5_1, below another
    "0000:9a:00.0": ("pci0000:97/0000:97:01.0/0000:98:00.0", "4-7"),  # a GPU of the other socket
    "0000:9b:00.0": ("pci0000:97/0000:97:01.0/0000:98:00.0", "4-7"),  # mlx5_2
}
CARDS = {"mlx5_0": "0000:18:00.0", "mlx5_1": "0000:3b:00.0", "mlx5_2": "0000:9b:00.0"}


@pytest.fixture
def pci(tmp_path: Path) -> Path:
    (tmp_path / "bus/pci/devices").mkdir(parents=True)
    (tmp_path / "class/infiniband").mkdir(parents=True)
    for address, (bridges, cpus) in DEVICES.items():
        real = tmp_path / "devices" / bridges / address
        real.mkdir(parents=True)
        (real / "local_cpulist").write_text(cpus + "\n")
        (tmp_path / "bus/pci/devices" / address).symlink_to(real)
    for card, address in CARDS.items():
        (tmp_path / "class/infiniband" / card).mkdir()
        (tmp_path / "class/infiniband" / card / "device").symlink_to(tmp_path / "bus/pci/devices" / address)
    return tmp_path


SWITCHES = ["mlx5_0", "mlx5_1", "mlx5_2"]


@pytest.mark.parametrize(
    ("gpu", "allowed", "cpus", "cards", "near"),
    [
        (0x17, range(8), "0-3", SWITCHES, ["mlx5_0"]),
        (0x17, range(8), "0-3", ["mlx5_1", "mlx5_2"], ["mlx5_1"]),  # at least the same socket
        (0x9A, range(2, 6), "4-5", SWITCHES, ["mlx5_2"]),
        # The launcher has bound it already, or all that it may use are far; there is no choice of cards, or
        # not all are known.
        (0x9A, range(4, 8), "", ["mlx5_2"], []),
        (0x9A, range(4), "", ["mlx5_0", "eth0"], []),
        (0xFF, range(8), "", [""], []),  # the kernel does not know it
    ],
)
def test_a_rank_is_bound_to_what_is_near_its_gpu(pci, monkeypatch, gpu, allowed, cpus, cards, near):
    bound = []
    properties = SimpleNamespace(pci_domain_id=0, pci_bus_id=gpu, pci_device_id=0)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: properties)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(allowed))
    monkeypatch.setattr(os, "sched_setaffinity", lambda _, found: bound.append(found))
    environment = {UCX_CARDS: ",".join(f"{card}:1" for card in cards)}
    place = bind_near(torch.device("cuda", 1), environment, pci)
    assert (place.cpus, place.cards) == (cpus, tuple(near))
    assert [",".join(ranges(found)) for found in bound] == [cpus] * bool(cpus)
    assert environment == {UCX_CARDS: ",".join(f"{card}:1" for card in near or cards)}
