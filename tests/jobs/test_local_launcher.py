"""The local launcher: the place of each rank, its cores and threads, and what it cannot start."""

import pytest

from jobs.launchers.local import Local
from jobs.machine import Machine
from jobs.run import make_run
from tests.jobs.scripted import HERE, WITH_DALI


def test_the_local_launcher_gives_each_rank_its_place_and_its_share_of_the_cores(tmp_path):
    run = make_run({"gpus_per_node": 2})
    first, second = Local(HERE).processes(run, ["python", "-m", "train"], tmp_path)
    assert first.argv == second.argv == ["python", "-m", "train"]
    assert first.environment == {
        "WORLD_SIZE": "2",
        "LOCAL_WORLD_SIZE": "2",
        "SCALEPROF_RENDEZVOUS": f"{tmp_path.as_uri()}/rendezvous",
        "OMP_NUM_THREADS": "1",
        "GOMP_SPINCOUNT": "10000",
        "RANK": "0",
        "LOCAL_RANK": "0",
    }
    assert second.environment["RANK"] == second.environment["LOCAL_RANK"] == "1"
    (alone,) = Local(HERE).processes(make_run({"threads": 1}), ["python"], tmp_path)
    assert alone.environment["OMP_NUM_THREADS"] == "1"


@pytest.mark.parametrize(
    ("gpus", "values", "says"),
    [
        (0, {"nodes": 2}, "2 nodes requested"),
        (0, {"device": "gpu"}, "no usable GPU"),
        (0, {"loader": "dali-gpu"}, "needs a GPU"),
        (0, {"graph": True}, "graph true needs a GPU, and this machine has none; use graph false"),
        (1, {"graph": True}, None),
        (0, {"gpus_per_node": 3}, "2 CPU cores"),
        (
            0,
            {"profile": "nvprof"},
            "profile nvprof records GPU activity only, and this run computes on the CPU",
        ),
        (1, {"profile": "ncu", "device": "cpu"}, "profile ncu records GPU activity only"),
        (1, {"profile": "nvprof"}, None),
        (0, {"profile": "nsys"}, None),
        (1, {"gpus_per_node": 2}, "this machine has 1"),
        (2, {"gpus_per_node": 2, "profile": "ncu"}, "a collective of 2 ranks would never end: use one rank"),
        (1, {"gpus_per_node": 2, "device": "cpu"}, None),
        (1, {"loader": "dali-gpu", "data": "."}, None),
    ],
)
def test_the_local_launcher_says_why_it_cannot(gpus, values, says, tmp_path, monkeypatch):
    for name in ("nsys", "nvprof", "ncu"):
        (tmp_path / name).touch(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    machine = Machine("h", "o", "c", 2, 1, ("NVIDIA H200",) * gpus, None, WITH_DALI)
    launcher, run = Local(machine), make_run(values)
    assert says in launcher.why_not(run) if says else not launcher.why_not(run)
