"""Ranks find their place from what the launcher gave them, and each other; programs as by torchrun."""

import os
import socket
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from unittest.mock import Mock

import pytest

from profiling.errors import UserError
from train import torchrun
from train.world import (
    World,
    announce,
    ask,
    candidates,
    gather_at,
    gloo_interface,
    job_name,
    open_store,
    read_world,
    tell_port_to_all,
)

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
    assert gloo_interface({"GLOO_SOCKET_IFNAME": socket.if_nameindex()[0][1]}, world) == {}
    assert gloo_interface({}, World(0, 2, 0, 1)) == {}


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


# --- ranks of a job meet on a port that nobody agreed on, whatever else listens on that host -----------

HOST = "127.0.0.1"


def soon(seconds: float = 20) -> float:
    return time.monotonic() + seconds


def test_a_rank_learns_the_port_even_if_it_asks_first():
    with ThreadPoolExecutor(2) as pool:
        asking = [pool.submit(ask, HOST, "early", rank, soon()) for rank in (1, 2)]
        time.sleep(0.3)
        announce("early", 4711, 2, soon())
        assert [each.result() for each in asking] == [4711, 4711]


def test_jobs_whose_ports_are_the_same_do_not_meet(monkeypatch):
    monkeypatch.setattr("train.world.candidates", lambda name: candidates("both"))
    ports = [announce(name, port, 1, soon()) for name, port in (("job-one", 1), ("job-two", 2))]
    assert ports == candidates("both")[:2]
    assert [ask(HOST, name, 1, soon()) for name in ("job-two", "job-one")] == [2, 1]


def test_other_programs_on_the_ports_are_passed_over(monkeypatch):
    monkeypatch.setattr("train.world._ANSWER_S", 0.5)
    name = "b" * 64
    silent, chatty = (socket.create_server(("", port)) for port in candidates(name)[:2])
    with silent, chatty, ThreadPoolExecutor(1) as pool:
        asking = pool.submit(ask, HOST, name, 1, soon(30))
        connection, _ = chatty.accept()  # after `silent`, which takes connections and says nothing
        connection.sendall(b"220 mail.example.org\n")
        connection.close()
        assert announce(name, 4712, 1, soon(30)) == candidates(name)[2]
        assert asking.result() == 4712


def test_a_rank_that_gave_up_before_the_answer_came_is_answered_again():
    with socket.create_connection((HOST, announce("overloaded", 4713, 1, soon()))) as impatient:
        impatient.sendall(b"overloaded 1\n")
    assert ask(HOST, "overloaded", 1, soon(5)) == 4713


def test_a_missing_rank_0_is_one_line_that_names_the_host():
    with pytest.raises(UserError, match=rf"^rank 3 did not find rank 0 on {HOST} \(.*refused\).*"):
        ask(HOST, "nobody", 3, soon(0.3))


def test_two_jobs_at_once_have_a_store_each():
    stores = []  # rank 0's serves the other until both are done

    def meet(job: str, rank: int) -> bytes:
        store = open_store(World(rank, 2, rank, 2, host=HOST, job=job), timedelta(seconds=60))
        stores.append(store)
        store.set(f"from {rank}", f"{job} {rank}")
        return store.get(f"from {1 - rank}")

    with ThreadPoolExecutor(4) as pool:
        met = {(job, rank): pool.submit(meet, job, rank) for job in ("one", "two") for rank in (1, 0)}
        assert {key: each.result() for key, each in met.items()} == {
            (job, rank): f"{job} {1 - rank}".encode() for job, rank in met
        }


def test_ranks_that_do_not_come_are_named(monkeypatch, capfd):
    world = World(0, 4, 0, 4, host=HOST, job="late")
    monkeypatch.setattr("train.world.MEETING_S", 1.0)
    with ThreadPoolExecutor(1) as pool:
        pool.submit(ask, HOST, job_name(world), 2, soon())
        with pytest.raises(UserError, match=r"not started within 1 s: 2 of 4 ranks \(1, 3\)"):
            tell_port_to_all(world, 4711)
    announce("later", 4711, 1, soon(0.1))
    said = ""
    while not said:
        said = capfd.readouterr().err
    assert said.startswith("scaleprof: error: ") and "1 of 2 ranks (1)" in said


def test_all_ranks_read_what_rank_0_has_collected_once():
    """Each of P ranks reading all others' values would be P squared questions at one store."""
    values = {"1": b"of 1", "2": b"of 2"}
    store = Mock(get=Mock(side_effect=values.__getitem__))
    store.set = lambda key, value: values.update({key: value.encode()})
    assert gather_at(store, World(0, 3), "of 0") == ["of 0", "of 1", "of 2"]
    store.get.reset_mock()
    assert gather_at(store, World(2, 3), "of 2") == ["of 0", "of 1", "of 2"]
    assert store.get.call_count == 1
