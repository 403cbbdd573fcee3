"""Ranks find their place from what the launcher gave them."""

import os
import socket
import sys

import pytest

from profiling.errors import UserError
from train import torchrun
from train.world import World, check_interface, gloo_interface, read_world

TORCHRUN = {"RANK": "3", "WORLD_SIZE": "4", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "2"}

SLURM = {
    "SLURM_PROCID": "1", "SLURM_STEP_NUM_TASKS": "2", "SLURM_LOCALID": "0", "SLURM_NODEID": "1",
    "SLURM_STEP_TASKS_PER_NODE": "1(x2)", "SLURM_STEP_ID": "0", "SLURM_STEP_NODELIST": "n[7,9]",
    "SLURM_JOB_ID": "1", "SLURM_JOB_NODELIST": "n[7,9]", "SLURM_JOB_NUM_NODES": "2",
}  # fmt: skip


def test_without_a_launcher_there_is_one_rank():
    assert read_world({}) == World()


def test_where_ranks_meet():
    assert read_world({**TORCHRUN, "SCALEPROF_RENDEZVOUS": "file:///x"}).rendezvous == "file:///x"
    assert read_world({**TORCHRUN, "MASTER_ADDR": "n0", "MASTER_PORT": "9"}).rendezvous == "tcp://n0:9"
    one_node = {"PMI_RANK": "2", "PMI_SIZE": "4"}
    assert read_world(one_node).host == "127.0.0.1"
    assert read_world(SLURM).host == "n7"
    assert read_world({**TORCHRUN, "MASTER_ADDR": "n0"}).host == "n0"
    # mpirun tells its ranks of no host: ours says it, else it is the first of the allocation.
    by_mpirun = {
        "PMI_RANK": "2", "PMI_SIZE": "4", "MPI_LOCALRANKID": "0", "MPI_LOCALNRANKS": "2",
        "SLURM_JOB_NODELIST": "n[4-8]", "SLURM_JOB_NUM_NODES": "5",
    }  # fmt: skip
    assert read_world(by_mpirun).host == "n4"
    assert read_world({**by_mpirun, "SCALEPROF_HOST": "n6"}).host == "n6"
    assert read_world({**SLURM, "SLURM_STEP_NODELIST": ""}).host == "n7"  # an empty list is no list


def test_jobs_and_steps_on_one_host_are_told_apart():
    worlds = [
        {},
        {"SLURM_STEP_ID": "1"},
        {"SLURM_JOB_ID": "2"},
        {"SCALEPROF_JOB": "/results/a"},
        {"SCALEPROF_JOB": "/results/b"},
    ]
    assert len({read_world({**SLURM, **more}).job for more in worlds}) == len(worlds)


def test_several_nodes_and_no_word_of_where_rank_0_is_are_one_clear_line():
    with pytest.raises(UserError) as error:
        read_world(TORCHRUN)
    assert "\n" not in str(error.value)


@pytest.fixture
def as_by_srun(monkeypatch) -> dict[str, str]:
    """The environment of rank 1, alone on the second of two nodes; what is started there is not."""
    environment = {**SLURM, "MASTER_ADDR": "n7", "MASTER_PORT": "29500"}
    monkeypatch.setattr(os, "environ", environment)
    monkeypatch.setattr(os, "execv", lambda program, words: None)
    monkeypatch.setattr(sys, "argv", ["train.torchrun", "--", "train.py"])
    return environment


def test_each_node_says_which_interface_it_lacks(as_by_srun):
    as_by_srun["GLOO_SOCKET_IFNAME"] = "nope0"
    with pytest.raises(UserError, match="no network interface nope0 on"):
        torchrun.main()


def test_gloo_is_told_of_loopback_only_where_the_host_is_unknown(monkeypatch):
    world = World(0, 2, 0, 2)
    monkeypatch.setattr("socket.getaddrinfo", lambda *_: [])
    assert gloo_interface({}, world) == {}

    def unknown(*_):
        raise OSError("Name or service not known")

    monkeypatch.setattr("socket.getaddrinfo", unknown)
    assert gloo_interface({}, world)["GLOO_SOCKET_IFNAME"].startswith("lo")
    here = socket.if_nameindex()[0][1]
    assert gloo_interface({"GLOO_SOCKET_IFNAME": here}, world) == {}
    assert gloo_interface({}, World(0, 2, 0, 1)) == {}


def test_an_interface_that_is_not_here_is_named_with_the_site_files_key():
    here = socket.if_nameindex()[0][1]
    check_interface({}, "GLOO_SOCKET_IFNAME", "eth")
    check_interface({"GLOO_SOCKET_IFNAME": here}, "GLOO_SOCKET_IFNAME", "eth")
    wrong = rf"no network interface ib9 on .*, which has {here}.*network\.ib\.interface.*HOROVOD_GLOO_IFACE"
    with pytest.raises(UserError, match=wrong):
        check_interface({"HOROVOD_GLOO_IFACE": f"{here},ib9"}, "HOROVOD_GLOO_IFACE", "IB")
