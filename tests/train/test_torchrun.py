"""Ranks of any launcher become what torchrun would have started."""

import os
import socket
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from profiling.errors import UserError
from train import torchrun
from train.world import World

ROOT = Path(torchrun.__file__).resolve().parents[1]


@pytest.fixture
def become(monkeypatch):
    """Calls the command with its words and a launcher's variables: what the process becomes, and where."""
    monkeypatch.setattr(os, "environ", dict(os.environ))
    for name in [
        name for name in os.environ if name.startswith(("SLURM", "OMPI", "PMI", "MASTER", "SCALEPROF"))
    ]:
        del os.environ[name]
    calls = []
    monkeypatch.setattr(os, "execv", lambda program, words: calls.append(words))
    monkeypatch.setattr(os, "chdir", lambda folder: calls.append(folder))

    def become(words, **environment):
        os.environ.update(environment)
        monkeypatch.setattr(sys, "argv", ["torchrun", *words])
        torchrun.main()
        folder, command = calls
        return folder, command

    return become


def test_all_ranks_of_a_job_agree_on_a_port_that_is_free():
    worlds = [World(rank, 3, rank, 3, job=f"test-{os.getpid()}") for rank in range(3)]
    with ThreadPoolExecutor(3) as pool:
        ports = list(pool.map(torchrun.meet, worlds[::-1]))
    assert len(set(ports)) == 1
    with socket.socket() as free:
        free.bind(("", ports[0]))


def test_the_command_is_pythons_and_starts_in_its_folder(become, tmp_path):
    words = ["--folder", str(tmp_path), "--", "train.py", "--lr", "0.1"]
    assert become(words) == (tmp_path, [sys.executable, "train.py", "--lr", "0.1"])
    assert (os.environ["RANK"], os.environ["WORLD_SIZE"]) == ("0", "1")
    # Where this project is not installed, it is found from there all the same.
    assert os.environ["PYTHONPATH"].split(os.pathsep)[0] == str(ROOT)


def test_where_the_user_has_said_where_to_meet_the_ranks_meet_there(become):
    launched = {
        "OMPI_COMM_WORLD_RANK": "1", "OMPI_COMM_WORLD_SIZE": "2", "OMPI_COMM_WORLD_LOCAL_RANK": "1",
        "OMPI_COMM_WORLD_LOCAL_SIZE": "2", "MASTER_ADDR": "node-7", "MASTER_PORT": "29500",
    }  # fmt: skip
    become(["--", "train.py"], **launched)
    names = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK", "GROUP_WORLD_SIZE",
             "MASTER_ADDR", "MASTER_PORT")  # fmt: skip
    assert [os.environ[name] for name in names] == ["1", "2", "1", "2", "0", "1", "node-7", "29500"]


def test_on_the_cpu_the_program_sees_no_gpu(become):
    become(["--device", "cpu", "--", "train.py"], CUDA_VISIBLE_DEVICES="0,1")
    assert os.environ["CUDA_VISIBLE_DEVICES"] == ""


def test_nothing_to_start_is_one_line(become):
    with pytest.raises(UserError, match="nothing to start"):
        become(["--"])
