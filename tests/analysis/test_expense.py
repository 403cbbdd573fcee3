"""What a sweep cost: planted memory, energy, start-up and node-hours are found, absent ones said."""

from pathlib import Path
from typing import Any

import pytest

from analysis.display.metrics import records
from analysis.frames.load import load
from analysis.measures import expense
from jobs import store
from jobs.run_fields import attempted
from tests.analysis.synthetic import Truth, change_manifest, run_of, write_run, write_sweep_record

METERED = {"metered_s": 10.0, "device_energy_j": 2560.0, "peak_memory_bytes": 2 * 10**9}


def cost(path: Path) -> list[dict[str, Any]]:
    return records(expense.expense(load(path)).rows)


def plant(directory: Path, seconds: float, **of_ranks: list) -> None:
    """Give a run's manifest a wall time, and its ranks figures: a value a rank."""
    of = {name: dict(enumerate(values)) for name, values in of_ranks.items()}
    change_manifest(directory, lambda one: {name: of[name][one.rank] for name in of}, seconds=seconds)


@pytest.fixture
def sweep(tmp_path) -> Path:
    """Two nodes of two GPUs, 40 batches of 32 a rank: two unprofiled runs, a profiled and a failed one."""
    truth, plain = Truth(), run_of(nodes=2, gpus_per_node=2)
    for repetition, startup_s in enumerate((4.0, 8.0)):
        directory = write_run(tmp_path, plain, truth, repetition, **METERED)
        gb = {
            "peak_memory_bytes": (2, 1, 1, 3), "peak_device_memory_bytes": (5, 6, 5, 5),
            "peak_device_reserved_bytes": (8, 8, 8, 8), "device_used_bytes": (9, 11, 10, 9),
        }  # fmt: skip
        startup_ns = [round(startup_s * 1e9), 10**9, 10**9, 10**9]
        joules = [1000.0, None, 1560.0, None]
        sizes = {name: [10**9 * one for one in values] for name, values in gb.items()}
        own = {"local_rank": [0, 1, 0, 1], "processors_energy_j": joules, "startup_ns": startup_ns}
        plant(directory, 1800.0, **own, **sizes)
    profiled = write_run(tmp_path, run_of(nodes=2, gpus_per_node=2, profile="torch"), truth)
    plant(profiled, 3600.0, peak_memory_bytes=[9 * 10**9] * 4, startup_ns=[60 * 10**9] * 4)
    plant(write_run(tmp_path, run_of(), truth, exit_code=1, reason="a rank was killed"), 900.0)
    write_sweep_record(tmp_path)
    return tmp_path


def test_planted_costs_are_found(sweep):
    failed, row = cost(sweep)  # in the order of nodes
    images, runs = 40 * 32 * 4, 2
    assert (row["runs"], row["kind_of_runs"]) == (3, "unprofiled runs")
    assert (row["memory_gb"], row["memory_rank"], row["least_memory_gb"]) == (3.0, 3, 1.0)
    assert (row["device_memory_gb"], row["device_reserved_gb"], row["device_used_gb"]) == (6.0, 8.0, 11.0)
    assert row["device_j_per_image"] == pytest.approx(4 * 2560 / images)
    assert row["device_w"] == pytest.approx(256.0)
    assert row["processors_j_per_image"] == pytest.approx(2560 / images)  # once a node, whatever its ranks
    assert row["processors_w"] == pytest.approx(128.0)
    assert row["startup_s"] == 6.0  # the slowest rank's; the median of two runs
    assert 0.4 < row["first_step_s"] < 0.6  # 125 ms, four times as long at the head
    assert row["node_hours"] == pytest.approx(runs * 2 * 0.5 + 2 * 1.0)
    # 128 images in each step of 125 ms, on two nodes.
    assert row["node_hours_per_million_images"] == pytest.approx(2 * 1e6 / (128 / 0.125) / 3600, rel=0.02)
    assert row["kwh_per_million_images"] == pytest.approx((4 * 2560 + 2560) / images / 3.6)
    assert failed["node_hours_per_million_images"] is failed["kwh_per_million_images"] is None
    assert (failed["runs"], failed["node_hours"], failed["failed_node_hours"]) == (0, 0, 0.25)
    assert row["energy_note"] == "" and failed["memory_gb"] is None


def test_energy_that_one_rank_lacks_is_not_made_up(sweep):
    plain = sorted(sweep.glob("run_*_none_*_ret_0"))
    why = "NVML does not report the energy of this GPU (Not Supported)"
    plant(plain[0], 1800.0, device_energy_j=[1.0, None, 1.0, 1.0], unmetered=[[], [why], [], []])
    row = next(row for row in cost(sweep) if row["runs"])
    assert row["device_j_per_image"] is None and row["energy_note"] == why
    assert row["processors_w"] == pytest.approx(128.0)


@pytest.mark.parametrize(
    ("fields", "why"),
    [({}, "the ranks recorded none"), ({"program": "train.py"}, "profiling.watch does not record it")],
)
def test_results_without_energy_say_what_they_lack(tmp_path, fields, why):
    write_run(tmp_path, run_of(**fields), Truth())
    (row,) = cost(tmp_path)
    assert row["energy_note"].startswith(why) and row["startup_s"] == 5.0
    assert row["node_hours"] > 0 and row["memory_gb"] is None


def test_an_unfinished_run_and_a_lost_table_are_told(sweep):
    killed = sweep / "run_5_config_1_1_eth_none_2_resnet50_synthetic_32_fp32_fp32"
    killed.mkdir()
    (killed / store.LOG).write_text("")
    first = next(sweep.glob("run_0_*_none_*_ret_0")) / "rank_0001" / "batches.parquet"
    first.write_bytes(b"PAR1")
    study = load(sweep)
    expense.expense(study)
    assert [one.run for one in study.findings if one.code == "not_recorded"] == [killed.name]
    assert [one.point for one in study.failed if one.kind == "unusable"] == [first.parents[1].name]


def test_an_attempt_that_failed_costs_what_it_costs_while_the_next_one_is_under_way(sweep):
    (failed,) = (path for path in sweep.iterdir() if store.is_run(path) and not path.name.endswith("_ret_0"))
    before = expense.spent(load(sweep))
    failed.with_name(attempted(failed.name)).mkdir()
    study = load(sweep)
    assert expense.spent(study).equals(before) and not before["counts"].all()
    (unknown,) = [finding for finding in study.findings if finding.data.get("what") == "cost"]
    assert unknown.run == attempted(failed.name)
    (row,) = cost(next(sweep.glob("run_0_*_none_*_ret_0")))  # a run alone
    assert (row["runs"], row["node_hours"]) == (1, 1.0)
