"""The opening names planted causes: some cells of benchmarks/results/verdicts.md, each a whole sweep."""

import shutil
from dataclasses import replace

import numpy as np
import pytest

from analysis.diagnosis import diagnosis
from analysis.frames.load import load
from analysis.frames.matching import CAUSES, WAITS
from analysis.measures.critical_path import critical_path
from analysis.measures.loss import BY_STAGES
from analysis.report.base import Context
from benchmarks.planted_sweep import IMAGES, NO_NOISE, Job, Network, step_ms, strength, times_of, write_sweep
from benchmarks.verdicts import JOB, ON_ONE, PLANTS, Plant, findings_of, named
from profiling.findings import Finding
from tests.analysis.consistent import check
from tests.analysis.frames import scaled_rows, section_of

FAST = {"repetitions": {"none": 3, "torch": 1}, "batches": 30}


def said_of(plant: Plant, size_pct: float, directory) -> list[Finding]:
    found = findings_of(plant, size_pct, 1, directory, **FAST)
    check(found)
    return found


@pytest.mark.parametrize(
    ("name", "size_pct"),
    [("slow host", 20.0), ("high latency", 20.0), ("launches", 20.0), ("small batch", 20.0),
     ("thin links, and copies", 20.0), ("copies", 4.0)],
)  # fmt: skip
def test_the_planted_cause_is_named_first(name, size_pct, tmp_path):
    plant = PLANTS[name]
    assert named(said_of(plant, size_pct, tmp_path))[: len(plant.named)] == list(plant.named)


@pytest.mark.parametrize(("name", "size_pct"), [("slow GPU", 0.0), ("copies", 1.0)])
def test_next_to_nothing_planted_names_no_cause(name, size_pct, tmp_path):
    assert named(said_of(PLANTS[name], size_pct, tmp_path)) == []


@pytest.fixture(scope="module")
def slow_gpu(tmp_path_factory):
    """8 ranks on links of 200 GB/s, rank 3's kernels a quarter slower: 31 ms of a batch of 154."""
    folder = tmp_path_factory.mktemp("slow_gpu")
    write_sweep(folder, [replace(JOB, ranks=1), replace(ON_ONE, gpu=0.25)], seed=1, **FAST)
    return folder


def test_a_slow_gpu_is_the_first_cause_its_section_shows_it_and_its_wait_is_no_transfer(slow_gpu):
    study = load(slow_gpu)
    found = diagnosis(Context(study))
    planted_ms = step_ms(replace(ON_ONE, gpu=0.25)) - step_ms(ON_ONE)
    assert planted_ms == pytest.approx(30.5, abs=0.1)
    first = next(one for one in found if one.code in ("straggler_costs", "cause_of_loss"))
    assert first.code == "straggler_costs" and first.data["stragglers"] == [3]
    # The GPUs differ by 0.3 %, and runs by 0.8 %, of 122 ms.
    assert first.data["wait_ns"] / 1e6 == pytest.approx(planted_ms, abs=2.0) and first.data["why"] == "GPU"
    assert not [one for one in found if one.code == "gain_simulated" and "network" in one.data["what_if"]]
    (trace,) = section_of(study, "stragglers").charts[0].figure["data"]
    assert np.median(trace["z"][3]) == pytest.approx(30.5, abs=2.0)
    (row,) = [row for row in scaled_rows(study) if row["world_size"] == 8]
    # Seven of eight ranks wait for 30.5 of 154 ms.
    assert row["loss_exposed_wait_pct"] == pytest.approx(100 * 7 / 8 * 30.5 / 154, abs=1.0)
    assert row["loss_exposed_transfer_pct"] < 0.5
    both = row["loss_exposed_wait_pct"] + row["loss_exposed_transfer_pct"]
    assert both == pytest.approx(row["loss_exposed_communication_pct"], rel=1e-9)


# What is planted on ranks -> the cause of the others' waits, and their waits in ms, of each of eight ranks.
CAUSES_OF_WAITS = {
    "data by turns": (Job(by_turns_ms=14.0), {"data": 14.0 * 7 / 8}),
    "host of one rank, each fifth step": (Job(slow=(0,), host_ms=60.0, every=5), {"host": 12.0 * 7 / 8}),
    "kernels and data of one rank": (
        Job(slow=(3,), gpu=0.1, load_ms=14.0), {"compute": 12.2 * 7 / 8, "data": 14 * 7 / 8}
    ),
    "nothing": (Job(), {}),
}  # fmt: skip


@pytest.mark.parametrize("name", CAUSES_OF_WAITS)
def test_waits_have_the_cause_that_made_the_last_rank_late(name, tmp_path):
    job, planted_ms = CAUSES_OF_WAITS[name]
    write_sweep(tmp_path, [replace(job, ranks=1), job], noise=NO_NOISE, **FAST)
    (row,) = [row for row in scaled_rows(load(tmp_path)) if row["world_size"] == 8]
    step = sum(row[f"mean_{stage}_ms"] for stage in BY_STAGES)
    assert step == pytest.approx(8 * IMAGES / row["images_per_s"] * 1e3)
    for cause in CAUSES:
        expected = 100 * planted_ms.get(cause, 0.0) / step
        assert row[f"loss_wait_{cause}_pct"] == pytest.approx(expected, abs=0.15), cause
    assert sum(row[f"loss_{wait}_pct"] for wait in WAITS) == pytest.approx(row["loss_exposed_wait_pct"])
    # Stages alone tell as much of the data, and add up to the loss.
    (tmp_path / "stages").mkdir()
    write_sweep(tmp_path / "stages", [replace(job, ranks=1), job], noise=NO_NOISE, repetitions={"none": 2})
    (row,) = [row for row in scaled_rows(load(tmp_path / "stages")) if row["world_size"] == 8]
    assert row["loss_wait_data_pct"] == pytest.approx(100 * planted_ms.get("data", 0.0) / step, abs=0.15)
    assert row["mean_wait_data_ms"] == pytest.approx(planted_ms.get("data", 0.0), abs=0.15)
    assert sum(row[f"loss_{stage}_pct"] for stage in BY_STAGES) == pytest.approx(row["loss_pct"])
    assert sum(row[f"loss_{wait}_pct"] for wait in WAITS) == pytest.approx(row["loss_late_ranks_pct"])


def test_bursts_of_workers_are_data_and_in_few_steps(tmp_path):
    job = Job(bursts_ms=40.0)
    write_sweep(
        tmp_path, [replace(job, ranks=1), job], seed=2, batches=100, repetitions={"none": 3, "torch": 1}
    )
    study = load(tmp_path)
    (row,) = [row for row in scaled_rows(study) if row["world_size"] == 8]
    # Of every fourth step the largest of eight: 40 (1 + 1/2 ... + 1/8) = 109 ms, a quarter of it a step.
    assert row["loss_pct"] == pytest.approx(100 * 27.2 / 150, abs=7)
    data = row["loss_exposed_loader_pct"] + row["loss_wait_data_pct"]
    assert data == pytest.approx(row["loss_pct"], abs=5) and row["loss_few_steps_pct"] > 0.7 * row["loss_pct"]
    (found,) = [one for one in study.findings if one.code == "few_long_steps"]
    assert (found.data["n"], found.data["of"]) == (1, 2) and 10 < found.data["tail_pct"] < 30


def test_one_rank_s_trace_tells_no_transfer_from_wait_and_says_so(slow_gpu, tmp_path):
    shutil.copytree(slow_gpu, tmp_path / "copy")
    (run,) = (tmp_path / "copy").glob("*_1_8_eth_torch_*")
    for rank in range(1, 8):
        (run / f"rank_{rank:04d}" / "kernels.parquet").unlink()
    study = load(tmp_path / "copy")
    (row,) = [row for row in scaled_rows(study) if row["world_size"] == 8]
    assert row["loss_exposed_transfer_pct"] is None and row["loss_exposed_communication_pct"] > 15
    first, *others = diagnosis(Context(study))
    assert (first.code, first.data["ranks"], first.data["of"]) == ("profiles_missing", [*range(1, 8)], 8)
    assert next(one.data["kind"] for one in others if one.code == "cause_of_loss") == "exposed_communication"
    loss = section_of(study, "loss")
    assert "collectives, transfer or waiting" in {trace["name"] for trace in loss.charts[0].figure["data"]}
    assert "transfer_unknown" in {one.code for one in study.findings}


def test_data_loading_is_on_the_critical_path_of_a_host_that_is_ahead(tmp_path):
    """The update was launched 6 ms before its end on the device; then 4 ms of loading keep that idle."""
    write_sweep(tmp_path, [Job(ranks=2, all_load_ms=3.0)], noise=NO_NOISE, repetitions={"torch": 1})
    paths = critical_path(load(tmp_path)).rows.set_index("part")
    assert paths.loc["data loading", "path_ms"] == pytest.approx(4.0, abs=0.01)


def test_a_strength_makes_a_batch_longer_by_the_size_that_was_asked():
    for name, plant in PLANTS.items():
        found = plant.job(strength(plant.job, 0.2))
        assert step_ms(found) == pytest.approx(1.2 * step_ms(plant.job(0.0)), rel=1e-6), name


def test_an_exchange_takes_what_a_ring_takes_and_ends_on_all_ranks_together():
    job = Job(ranks=4, network=Network(alpha_us=50.0, beta_gb_per_s=2.0))
    begin, end = times_of(job, 2, NO_NOISE, np.random.default_rng(0), 2, np.zeros(4)).exchange
    assert (end == end[:, :1]).all() and len(end) == 4
    # The last bucket of 4 x 1.82 million bytes: 6 messages of 50 us, and 6 quarters of it at 2 GB/s.
    assert (end - begin)[-1, 0, 0] == pytest.approx(0.3 + 1.5 * SIZE / 2e6, rel=1e-9)


SIZE = 4 * (10_000 + 75_000 + 75_000 + 280_000 + 280_000 + 1_100_000)
