"""configs/vgg16.yaml and configs/alexnet.yaml on a CPU, sized down, to the answers that they are for."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from jobs.flags import to_flags
from jobs.sweep_file import expand, read_sweep
from tests.analysis.commands import ROOT, run
from tests.train.many_runs import by_forked_pair

pytestmark = pytest.mark.long

SMALL = {"image_size": 32, "threads": 1, "device": "cpu", "workers": 1}


def sized_down(name: str, folder: Path, **sizes: Any) -> Path:
    """A sweep file of the project with other sizes; its factors and exclusions stay."""
    sweep = yaml.safe_load((ROOT / "configs" / f"{name}.yaml").read_text())
    sweep["repetitions"] = 1
    sweep["run"] |= SMALL | sizes
    if name == "vgg16":  # its exclusions name how many batches there are on one GPU, and on two
        for rule, batches in zip(sweep["exclude"], reversed(sizes["batches"]), strict=True):
            rule["when"]["batches"] = batches
    file = folder / f"{name}.yaml"
    file.write_text(yaml.safe_dump(sweep))
    return file


@pytest.fixture
def trained(train_here, ready) -> Callable[[Path], Path]:
    """Does a sweep's profiled runs by hand, those of one rank in this process; their results."""

    def train(file: Path) -> Path:
        results, sweep_runs = file.parent / "results", expand(read_sweep(file))[0]
        results.mkdir()
        runs = {one.id: one.configuration for one in sweep_runs if one.configuration.profile == "torch"}
        for name in [name for name in runs if runs[name].ranks == 1]:
            code, _, said = train_here(*to_flags(runs[name]), "--out", str(results / name))
            assert code == 0, said
        by_forked_pair({name: run for name, run in runs.items() if run.ranks == 2}, results, ready)
        return results

    return train


def test_one_or_two_says_a_row_a_rank_and_what_the_second_gained(tmp_path, trained):
    directory = trained(sized_down("vgg16", tmp_path, model="squeezenet1_1", batch=2, batches=[32, 16]))
    ran = run("analysis.utilization", directory, "--format", "csv")
    assert ran.code == 0, ran.err
    assert [(row["gpus_per_node"], row["rank"]) for row in ran.csv] == [("1", "0"), ("2", "0"), ("2", "1")]
    # Ten batches are recorded of 32 on one, and of 16 on each of two: the schedule says which. Its first are
    # not counted where they turn out to be warmup.
    assert all(5 <= int(row["attributed_steps"]) <= 10 for row in ran.csv)
    alone, *both = ran.csv
    assert float(alone["communication_pct"]) == 0 and all(float(row["communication_pct"]) > 0 for row in both)
    assert float(alone["speedup"]) == 1
    ratio = float(both[0]["images_per_s"]) / float(alone["images_per_s"])
    assert float(both[0]["speedup"]) == float(both[1]["speedup"]) == pytest.approx(ratio)
    # What only a GPU has is not known, and why.
    assert all(row["sm_efficiency_pct"] == "" and "a CPU has no" in row["unknown"] for row in ran.csv)


def test_ways_to_exchange_gradients_are_told_apart_by_their_shares(data_set, tmp_path, trained):
    sizes = {"gpus_per_node": [1, 2], "batch": 2, "batches": 6, "model": "squeezenet1_1"}
    sizes["data"] = str(data_set)
    directory = trained(sized_down("alexnet", tmp_path, **sizes))
    chart = tmp_path / "shares.html"
    ran = run("analysis.activities", directory, "--shares", "--chart", chart, "--format", "csv")
    assert ran.code == 0, ran.err
    shares = {(row["world_size"], row["backend"]): float(row["communication_pct"]) for row in ran.csv}
    assert set(shares) == {("1", "ddp"), ("1", "dp"), ("2", "ddp"), ("2", "dp")}
    # One rank exchanges nothing, but it waits for the thread that would, on a busy machine for some percent:
    # of what two ranks wait, most is for each other.
    assert shares["2", "ddp"] > 2 and shares["2", "ddp"] > 2 * shares["1", "ddp"]
    # Without GPUs DataParallel has nothing to broadcast to, and a note says so.
    assert shares["2", "dp"] == 0 and "without devices" in ran.err
    assert all(
        sum(float(row[f"{part}_pct"]) for part in ("communication", "copies", "compute"))
        == pytest.approx(100)
        for row in ran.csv
    )
    assert chart.read_text().count("dp") > 1
