"""Results are whole files or none, and what is damaged is named."""

import json
import os
import subprocess

import pytest

from jobs import machine, store
from jobs.run import make_run
from jobs.store import Allreduce, Calibration, Manifest
from profiling.errors import UserError

RUN = make_run({"batches": 2})
MANIFEST = Manifest(run=RUN, repetition=0, exit_code=0, command=["x"], started="a", ended="b", seconds=1.0)


def test_a_record_is_read_back_as_it_was_written(tmp_path):
    store.write_record(tmp_path / "manifest.json", MANIFEST)
    assert store.read_record(tmp_path / "manifest.json", Manifest) == MANIFEST
    calibration = Calibration(
        gemm_flops_per_s={1: 1e11, 2: 5e10}, copy_bytes_per_s={1: 1e10},
        allreduces=[Allreduce(nodes=1, ranks_per_node=2, network="eth", bus_bytes_per_s=1e9)],
        device="cpu", seconds=1.0,
    )  # fmt: skip
    store.write_record(tmp_path / "calibration.json", calibration)
    assert store.read_record(tmp_path / "calibration.json", Calibration) == calibration


@pytest.mark.parametrize("keep", [0.0, 0.3, 0.9])
def test_a_truncated_record_is_named_and_is_no_result(tmp_path, keep):
    path = tmp_path / "manifest.json"
    text = MANIFEST.model_dump_json()
    path.write_text(text[: int(len(text) * keep)])
    with pytest.raises(UserError, match=r"manifest\.json is damaged"):
        store.read_record(path, Manifest)


def test_a_record_of_a_later_release_is_still_read(tmp_path):
    path = tmp_path / "manifest.json"
    path.write_text(json.dumps({**json.loads(MANIFEST.model_dump_json()), "news": 1}))
    assert store.read_record(path, Manifest) == MANIFEST


def test_a_failed_write_leaves_the_file_as_it_was(tmp_path, monkeypatch):
    path = tmp_path / "a.json"
    store.write_text(path, "before")

    def full(_descriptor):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(store.os, "fsync", full)
    with pytest.raises(OSError, match="No space"):
        store.write_text(path, "after")
    assert path.read_text() == "before"
    assert [p.name for p in tmp_path.iterdir()] == ["a.json"]


def test_only_variables_that_say_how_a_run_was_set_up_are_recorded():
    environment = {
        "NCCL_IB_HCA": "mlx5_0", "OMP_NUM_THREADS": "4", "SLURM_JOB_ID": "7", "SCALEPROF_RENDEZVOUS": "file:///x",
        "HOME": "/home/me", "NCCL_TOKEN": "s", "CUDA_AUTH_KEY": "s", "SLURM_JWT": "s", "MY_PASSWORD": "s",
    }  # fmt: skip
    assert list(machine.recorded_environment(environment)) == [
        "NCCL_IB_HCA", "OMP_NUM_THREADS", "SCALEPROF_RENDEZVOUS", "SLURM_JOB_ID",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("setting", "count"), [(None, 2), ("0", 1), ("1,0", 2), ("", 0), ("0,7,1", 1), ("GPU-abc", 1), ("-1", 0)]
)
def test_cuda_visible_devices_is_read_as_cuda_reads_it(setting, count):
    assert len(machine.visible(("A", "B"), setting)) == count


def test_the_state_of_a_repository_is_read_without_writing_to_it(tmp_path):
    def git(*words: str) -> str:
        command = ["git", "-c", "user.name=n", "-c", "user.email=e", "-C", str(tmp_path), *words]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()

    (tmp_path / "file").write_text("as it was")
    git("init", "--quiet")
    git("add", "file")
    git("commit", "--quiet", "--message", "first")
    # The file is as it was, but for its date, which an ordinary status writes into the index.
    os.utime(tmp_path / "file", (1, 1))
    before = (tmp_path / ".git" / "index").read_bytes()
    assert machine.git_state(tmp_path) == (git("rev-parse", "HEAD"), False)
    assert (tmp_path / ".git" / "index").read_bytes() == before
    (tmp_path / "mine.yaml").write_text("run: {}")  # a sweep file of the user's is no change of the code
    assert machine.git_state(tmp_path) == (git("rev-parse", "HEAD"), False)
    (tmp_path / "file").write_text("changed")
    assert machine.git_state(tmp_path) == (git("rev-parse", "HEAD"), True)
