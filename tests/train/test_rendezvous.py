"""Ranks of a job meet on a port that nobody agreed on, whatever else listens on that host."""

import socket
import time
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from unittest.mock import Mock

import pytest

from profiling.errors import UserError
from train import rendezvous
from train.rendezvous import announce, ask, candidates, gather_at, job_name, open_store
from train.world import World

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
    monkeypatch.setattr("train.rendezvous.candidates", lambda name: candidates("both"))
    ports = [announce(name, port, 1, soon()) for name, port in (("job-one", 1), ("job-two", 2))]
    assert ports == candidates("both")[:2]
    assert [ask(HOST, name, 1, soon()) for name in ("job-two", "job-one")] == [2, 1]


def test_other_programs_on_the_ports_are_passed_over(monkeypatch):
    monkeypatch.setattr(rendezvous, "_ANSWER_S", 0.5)
    name = "b" * 64
    silent, chatty = (socket.create_server(("", port)) for port in candidates(name)[:2])
    with silent, chatty, ThreadPoolExecutor(1) as pool:
        asking = pool.submit(ask, HOST, name, 1, soon(30))
        connection, _ = chatty.accept()  # after `silent`, which takes connections and says nothing
        connection.sendall(b"220 mail.example.org\n")
        connection.close()
        assert announce(name, 4712, 1, soon(30)) == candidates(name)[2]
        assert asking.result() == 4712


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
    monkeypatch.setattr(rendezvous, "MEETING_S", 1.0)
    with ThreadPoolExecutor(1) as pool:
        pool.submit(ask, HOST, job_name(world), 2, soon())
        with pytest.raises(UserError, match=r"not started within 1 s: 2 of 4 ranks \(1, 3\)"):
            rendezvous.tell_all(world, 4711)
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
