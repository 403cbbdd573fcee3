"""Ranks find their place from what the launcher gave them, and programs as torchrun would tell them."""

import os
import socket
import sys
from concurrent.futures import ThreadPoolExecutor

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


def test_where_ranks_meet():
    assert read_world({}) == World()
    assert read_world({**TORCHRUN, "SCALEPROF_RENDEZVOUS": "file:///x"}).rendezvous == "file:///x"
    assert read_world({**TORCHRUN, "MASTER_ADDR": "n0", "MASTER_PORT": "9"}).rendezvous == "tcp://n0:9"
    one_node = {"PMI_RANK": "2", "PMI_SIZE": "4", "MPI_LOCALRANKID": "2", "MPI_LOCALNRANKS": "4"}
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

    with pytest.raises(UserError, match=r"^[^\n]*$"):  # several nodes, and no word of where rank 0 is
        read_world(TORCHRUN)


def test_jobs_and_steps_on_one_host_are_told_apart():
    worlds = [{}, {"SLURM_STEP_ID": "1"}, {"SLURM_JOB_ID": "2"}, {"SCALEPROF_JOB": "/results/a"}]
    assert len({read_world({**SLURM, **more}).job for more in worlds}) == len(worlds)


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


# --- train.torchrun -----------------------------------------------------------------------------------


@pytest.fixture
def become(monkeypatch):
    """Calls the command with its words and a launcher's variables: what the process becomes, and where."""
    launchers = ("SLURM", "OMPI", "PMI", "MASTER", "SCALEPROF")
    own = {name: value for name, value in os.environ.items() if not name.startswith(launchers)}
    monkeypatch.setattr(os, "environ", own)
    calls = []
    monkeypatch.setattr(os, "execv", lambda program, words: calls.append(words))
    monkeypatch.setattr(os, "chdir", lambda folder: calls.append(folder))

    def become(words, **environment):
        os.environ.update(environment)
        monkeypatch.setattr(sys, "argv", ["torchrun", *words])
        torchrun.main()
        return tuple(calls)

    return become


def test_all_ranks_of_a_job_agree_on_a_port_that_is_free():
    worlds = [World(rank, 3, rank, 3, job=f"test-{os.getpid()}") for rank in range(3)]
    with ThreadPoolExecutor(3) as pool:
        ports = list(pool.map(torchrun.meet, worlds[::-1]))
    assert len(set(ports)) == 1
    with socket.socket() as free:
        free.bind(("", ports[0]))


def test_the_command_is_pythons_and_starts_in_its_folder(become, tmp_path):
    words = ["--device", "cpu", "--folder", str(tmp_path), "--", "train.py", "--lr", "0.1"]
    command = [sys.executable, "train.py", "--lr", "0.1"]
    assert become(words, CUDA_VISIBLE_DEVICES="0,1") == (tmp_path, command)
    assert [os.environ[name] for name in ("RANK", "WORLD_SIZE", "CUDA_VISIBLE_DEVICES")] == ["0", "1", ""]
    # Where this project is not installed, it is found from there all the same.
    assert os.environ["PYTHONPATH"].split(os.pathsep)[0] == str(torchrun.ROOT)


def test_where_the_user_has_said_where_to_meet_the_ranks_meet_there(become):
    launched = {
        "OMPI_COMM_WORLD_RANK": "1", "OMPI_COMM_WORLD_SIZE": "2", "OMPI_COMM_WORLD_LOCAL_RANK": "1",
        "OMPI_COMM_WORLD_LOCAL_SIZE": "2", "MASTER_ADDR": "node-7", "MASTER_PORT": "29500",
    }  # fmt: skip
    become(["--", "train.py"], **launched)
    names = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK", "GROUP_WORLD_SIZE",
             "MASTER_ADDR", "MASTER_PORT")  # fmt: skip
    assert [os.environ[name] for name in names] == ["1", "2", "1", "2", "0", "1", "node-7", "29500"]


def test_what_cannot_start_is_one_line(become):
    with pytest.raises(UserError, match="nothing to start"):
        become(["--"])
    with pytest.raises(UserError, match="no network interface nope0 on"):
        become(["--", "train.py"], **SLURM, MASTER_ADDR="n7", MASTER_PORT="29500", GLOO_SOCKET_IFNAME="nope0")
