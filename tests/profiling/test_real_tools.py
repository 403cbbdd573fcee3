"""Real nsys, nvprof, TAU and Horovod where they are: do they know our options, and see what our ranks do?"""

import json
import os
import shutil
import subprocess
import sys
from importlib.util import find_spec

import numpy as np
import pyarrow.parquet as pq
import pytest

from jobs.flags import to_flags
from jobs.run import make_run
from profiling.tools import recognise, tool
from profiling.wrap import wrapped

pytestmark = pytest.mark.long

needs_nsys = pytest.mark.skipif(shutil.which("nsys") is None, reason="nsys is not installed")
needs_tau = pytest.mark.skipif(shutil.which("tau_exec") is None, reason="TAU is not installed")


# What a program may be told, and the tool could take for its own.
def train_under(name, out, *flags, mode="auto", batches=6, first=0, ranks=1, environment=()):
    """Train for real under a tool, as the local launcher starts it; the ranks' directories."""
    fields = {"model": "resnet18", "batch": 2, "batches": batches, "image_size": 32, "gpus_per_node": ranks,
              "profile": name, "profile_mode": mode, "attribute_from": first}  # fmt: skip
    run = ["-m", "train", *to_flags(make_run(fields)), f"--out={out}", *flags]
    command = wrapped(name, [sys.executable, *run], out, "cpu", first, True, mode)
    shared = {"WORLD_SIZE": str(ranks), "LOCAL_WORLD_SIZE": str(ranks), "OMP_NUM_THREADS": "1",
              "SCALEPROF_RENDEZVOUS": (out / "meet").absolute().as_uri(), **dict(environment)}  # fmt: skip
    out.mkdir(parents=True)
    with (out / "log.txt").open("w") as log:
        children = [
            subprocess.Popen(command, stdout=log, stderr=log,
                             env={**os.environ, **shared, "RANK": str(rank), "LOCAL_RANK": str(rank)})
            for rank in range(ranks)
        ]  # fmt: skip
        try:
            codes = [child.wait(timeout=150) for child in children]
        finally:
            for child in children:
                child.terminate()  # and with it all that it started
    assert codes == [0] * ranks, (out / "log.txt").read_text()[-2000:]
    return [out / f"rank_{rank:04d}" for rank in range(ranks)]


def train_under_nsys(out, **options):
    """The same under nsys, which now and then loses its own agent on a busy machine: then once more."""
    try:
        return train_under("nsys", out, **options)
    except subprocess.TimeoutExpired:
        return train_under("nsys", out.with_name("again"), **options)


def stage_errors(directory):
    """How far each marker's start and end, by batch, stand from where the batches' own clock saw them.

    As parts of the batch: a series for each end of each marker.
    """
    batches = pq.read_table(directory / "batches.parquet").to_pandas()
    batches = batches[batches["attributed"]].reset_index(drop=True)
    markers = pq.read_table(directory / "markers.parquet").to_pandas()
    forward = batches["start_ns"] + batches["load_ns"]
    backward = forward + batches["forward_ns"]
    update = backward + batches["backward_ns"]
    seen = {
        "Forward Pass": (forward, backward), "Backward Pass": (backward, update),
        "Model Update": (update, update + batches["update_ns"]), "End of Batch": (batches["end_ns"],) * 2,
    }  # fmt: skip
    errors = []
    for name, (start, end) in seen.items():
        mine = markers[markers["name"] == name].reset_index(drop=True)
        assert len(mine) == len(batches), (name, len(mine), len(batches))
        took = batches["end_ns"] - batches["start_ns"]
        errors += [(mine["start_ns"] - start).abs() / took, (mine["end_ns"] - end).abs() / took]
    return errors


@needs_nsys
@pytest.mark.parametrize(("ranks", "first"), [(1, 3), pytest.param(2, 0, marks=pytest.mark.wide)])
def test_the_real_nsys_finds_every_marker_of_every_batch_on_every_rank(ranks, first, tmp_path):
    for directory in train_under_nsys(tmp_path / "run", first=first, ranks=ranks):
        errors = stage_errors(directory)
        # Where another process takes the core between two clock readings, that one reading is off. A wrong
        # clock would move all of them; a mark of another batch, all of one kind, by a whole stage or step.
        assert np.median(np.concatenate(errors)) < 0.01, errors
        assert max(min(one) for one in errors) < 0.05, errors
        assert pq.read_table(directory / "markers.parquet")["kind"].to_pylist().count("mark") == 6 - first
        report = directory / "raw" / "nsys.nsys-rep"
        assert recognise(report) == "nsys"
        for path in directory.glob("*.parquet"):
            assert b"PATH" not in path.read_bytes()  # the report holds the environment, the tables do not


@needs_tau
@pytest.mark.parametrize("mode", tool("tau").modes)
def test_the_real_tau_times_every_stage_and_batch_on_every_rank(mode, tmp_path):
    for rank, directory in enumerate(train_under("tau", tmp_path / "run", mode=mode, ranks=2)):
        intervals = pq.read_table(directory / "intervals.parquet").to_pandas()
        atomics = pq.read_table(directory / "atomics.parquet").to_pandas().set_index("event")
        assert set(intervals["rank"]) == {rank}
        calls = intervals[intervals["thread"] == 0].set_index("function")["calls"]
        forward = atomics["count"]["Forward Pass (ns)"] if mode == "python" else calls["Forward Pass"]
        assert forward == atomics["count"]["Batch Duration (ns)"] == 6
        batches = pq.read_table(directory / "batches.parquet").to_pandas()
        own_ns = (batches["end_ns"] - batches["start_ns"]).mean()
        assert atomics["mean"]["Batch Duration (ns)"] == pytest.approx(own_ns, rel=0.05)


@pytest.mark.wide
@pytest.mark.skipif(find_spec("horovod") is None, reason="Horovod is not installed (make horovod)")
def test_the_real_horovod_times_every_gradient_of_every_batch(tmp_path):
    ranks = train_under(
        "horovod",
        tmp_path / "run",
        "--backend",
        "horovod",
        ranks=2,
        environment={"HOROVOD_CONTROLLER": "gloo"},
    )
    batches = pq.read_table(ranks[0] / "batches.parquet").to_pandas().set_index("batch_index")
    kernels = pq.read_table(ranks[0] / "kernels.parquet").to_pandas()
    reduced = kernels[(kernels["name"] == "hvd:allreduce") & kernels["layer"].notna()]
    # ResNet18's 62 parameters of 11,689,512 elements.
    assert reduced.groupby("batch_index").size().to_dict() == dict.fromkeys(range(6), 62)
    assert reduced.groupby("batch_index")["bytes"].sum().tolist() == [4 * 11_689_512] * 6
    its = batches.loc[reduced["batch_index"]]
    assert (reduced["start_ns"].to_numpy() >= its["start_ns"].to_numpy()).all()
    findings = [json.loads((rank / "rank.json").read_text())["findings"] for rank in ranks]
    # Where Horovod stops before its writer, the ends of the last collective (after training) are not written.
    assert {finding["code"] for finding in findings[0]} <= {"not_recorded"} and findings[1] == []
    assert not (ranks[1] / "kernels.parquet").exists()  # rank 0 writes for all
