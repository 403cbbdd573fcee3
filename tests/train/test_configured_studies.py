"""configs/vgg16.yaml on a CPU, sized down, to the answer that it is for."""

from pathlib import Path

import pytest
import yaml

from jobs.flags import to_flags
from jobs.sweep_file import expand, read_sweep
from tests.analysis.commands import ROOT, run
from tests.train.many_runs import by_forked_pair

pytestmark = pytest.mark.long

SMALL = {"image_size": 32, "threads": 1, "device": "cpu", "model": "squeezenet1_1", "batch": 2,
         "batches": [32, 16]}  # fmt: skip


@pytest.fixture
def results(tmp_path, train_here, ready) -> Path:
    """Those of the profiled runs by hand, of one rank in this process; factors and exclusions stay."""
    sweep = yaml.safe_load((ROOT / "configs" / "vgg16.yaml").read_text())
    sweep["repetitions"] = 1
    sweep["run"] |= SMALL
    # Its exclusions name how many batches there are on one GPU, and on two.
    for rule, batches in zip(sweep["exclude"], reversed(SMALL["batches"]), strict=True):
        rule["when"]["batches"] = batches
    (tmp_path / "vgg16.yaml").write_text(yaml.safe_dump(sweep))
    sweep_runs = expand(read_sweep(tmp_path / "vgg16.yaml"))[0]
    runs = {one.id: one.configuration for one in sweep_runs if one.configuration.profile == "torch"}
    results = tmp_path / "results"
    results.mkdir()
    for name in [name for name in runs if runs[name].ranks == 1]:
        code, _, said = train_here(*to_flags(runs[name]), "--out", str(results / name))
        assert code == 0, said
    by_forked_pair({name: run for name, run in runs.items() if run.ranks == 2}, results, ready)
    return results


def test_one_or_two_says_a_row_a_rank_and_what_the_second_gained(results):
    ran = run("analysis.utilization", results, "--format", "csv")
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
