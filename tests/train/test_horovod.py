"""Horovod in the place of DDP: the same losses, over Gloo and over MPI; what happens where it is absent."""

import json
from pathlib import Path

import pytest

from jobs.flags import to_flags
from jobs.run import NO_HOROVOD, has_horovod, make_run
from profiling import tables
from tests.train.many_runs import by_forked_pair
from train import __main__ as command

pytestmark = pytest.mark.long

BATCHES = 3
TINY = {"gpus_per_node": 2, "device": "cpu", "model": "resnet18", "image_size": 32, "batch": 4, "threads": 1,
        "workers": 0, "loader": "pytorch", "batches": BATCHES, "learning_rate": 0.01}  # fmt: skip


def losses_of(out: Path) -> list[float]:
    ranks = [tables.read(tables.rank_directory(out, rank), "batches") for rank in range(2)]
    return [loss for rank in ranks for loss in rank["loss"].to_pylist()]


def backends_of(out: Path) -> set[str]:
    return {json.loads(path.read_text())["backend"] for path in out.glob("rank_*/rank.json")}


# Horovod is the last: with it in a process, that process does not end at once.
BY_GLOO = {"ddp fp32": {}, "ddp fp16": {"grad": "fp16"}, "horovod fp32": {"backend": "horovod"}}


@pytest.fixture(scope="module")
def by_gloo(data_set, tmp_path_factory, ready) -> dict[str, Path]:
    """What two ranks left for each of BY_GLOO, all from one pair of processes."""
    if not has_horovod():
        pytest.skip("Horovod is not installed (make horovod)")
    runs = {name: make_run({**TINY, **fields, "data": str(data_set)}) for name, fields in BY_GLOO.items()}
    return by_forked_pair(runs, tmp_path_factory.mktemp("gloo"), ready)


def test_horovod_over_gloo_has_the_losses_of_ddp(by_gloo):
    assert backends_of(by_gloo["ddp fp32"]) == {"ddp/gloo"}
    assert backends_of(by_gloo["horovod fp32"]) == {"horovod/gloo"}
    losses = losses_of(by_gloo["ddp fp32"])
    assert losses_of(by_gloo["horovod fp32"]) == pytest.approx(losses, rel=1e-6)
    assert losses_of(by_gloo["ddp fp16"]) != pytest.approx(losses, rel=1e-6)


def test_where_horovod_is_absent_a_line_says_so_and_ddp_trains(train_here, tmp_path, monkeypatch):
    monkeypatch.setattr(command, "has_horovod", lambda: False)
    flags = to_flags(make_run({**TINY, "gpus_per_node": 1, "loader": "synthetic", "backend": "horovod"}))
    code, _, said = train_here(*flags, "--out", str(tmp_path / "run"))
    assert code == 0 and NO_HOROVOD in said
    assert backends_of(tmp_path / "run") == {"ddp/gloo"}
