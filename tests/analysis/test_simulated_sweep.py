"""A sweep with planted gradients, latency and bandwidth: its simulated steps are as one computes by hand.

Three layers of 16, 32 and 8 MiB of gradients are ready 10, 30 and 50 ms into a backward pass of 50 ms;
buckets of 25 MiB are then two, of 48 MiB at 30 ms and of 8 MiB at 50 ms.
"""

import numpy as np
import pytest

from analysis.display.metrics import records
from analysis.frames.load import load
from analysis.prediction.configurations import ONE_SIZE
from analysis.prediction.predict import of_study
from jobs.run import Run
from profiling import tables
from tests.analysis.commands import one_line_error, run
from tests.analysis.frames import section_of
from tests.analysis.synthetic import MS, START_NS, Truth, run_of, write_run, write_sweep_record

MIB = 1 << 20
LAYERS = {"head": (10, 4 * MIB), "body": (30, 8 * MIB), "stem": (50, 2 * MIB)}  # ready in ms, elements
GRADIENTS = {f"{layer}.weight": LAYERS[layer][1] for layer in ("stem", "body", "head")}
ALPHA_US, BETA_GB_PER_S = 50.0, 2.0
LOAD, FORWARD, BACKWARD, UPDATE = 10, 30, 50, 10  # ms, of one rank by itself
ALONE_MS = LOAD + FORWARD + BACKWARD + UPDATE


def exchange(ranks: int, buckets=((30.0, 48 * MIB), (50.0, 8 * MIB))) -> list[tuple[float, float, int]]:
    """(begin, end, bytes) of each allreduce, ms from the begin of the backward pass, by hand."""
    made, done = [], 0.0
    for ready, size in buckets if ranks > 1 else ():
        begin = max(done, ready)
        done = begin + 2 * (ranks - 1) * ALPHA_US / 1e3 + 2 * (ranks - 1) / ranks * size / BETA_GB_PER_S / 1e6
        made.append((begin, done, size))
    return made


def step_ms(ranks: int, *buckets) -> float:
    return ALONE_MS + max(max([end for _, end, _ in exchange(ranks, *buckets)], default=0.0) - BACKWARD, 0.0)


def plant(directory, ranks: int, profile: str, layers=True, **fields) -> None:
    """A run whose ranks all do the same; its trace shows what the twin does."""
    run = run_of(profile=profile, **{"gpus_per_node": ranks, "batches": 12, **fields})
    ended = write_run(directory, run, Truth(step_ms={ranks: step_ms(ranks)}), gradient_elements=GRADIENTS)
    for rank in range(ranks):
        _write_tables(tables.rank_directory(ended, rank), rank, run, layers)


def _write_tables(directory, rank: int, run: Run, layers: bool) -> None:
    step, count = round(step_ms(run.world_size) * MS), run.batches
    index = np.arange(count)
    starts = START_NS + index * step
    same = {
        "rank": rank, "load_ns": LOAD * MS, "forward_ns": FORWARD * MS, "update_ns": UPDATE * MS,
        "backward_ns": step - (LOAD + FORWARD + UPDATE) * MS, "images": run.batch, "loss": 1.0,
    }  # fmt: skip
    batches = {name: np.full(count, value) for name, value in same.items()}
    batches |= {"batch_index": index, "start_ns": starts, "end_ns": starts + step}
    batches["attributed"] = (index >= run.first_attributed) & (run.profile != "none")
    tables.write(tables.as_table("batches", batches), directory, "batches")
    if run.profile == "none":
        return
    begins = [0, *(at for at, _ in LAYERS.values())]
    events = [
        (begin, at, "conv", "convolution", name if layers else None, 0.0)
        for begin, (name, (at, _)) in zip(begins, LAYERS.items(), strict=False)
    ]
    for begin, end, size in exchange(run.world_size):
        events.append((begin, end, "ncclAllReduce", "communication", None, float(size)))
    rows = [
        (n, starts[n] + round((FORWARD + LOAD + begin) * MS), round((end - begin) * MS), *rest)
        for n in range(run.first_attributed, count)
        for begin, end, *rest in events
    ]
    names = ("batch_index", "start_ns", "duration_ns", "short_name", "class", "layer", "bytes")
    kernels = dict(zip(names, map(list, zip(*rows, strict=True)), strict=True))
    same = {"rank": rank, "direction": "bprop", "device": 0, "stream": 7, "flops": 0.0}
    kernels |= {name: [value] * len(rows) for name, value in same.items()}
    tables.write(tables.as_table("kernels", kernels), directory, "kernels")


def sweep(directory, ranks=(1, 2), traced=(1, 2), **more):
    for count in ranks:
        for profile in ("none", *(["torch"] * (count in traced))):
            plant(directory, count, profile, **more)
    write_sweep_record(directory)
    return directory


def not_simulated(directory, ranks: str = "", what_ifs=()) -> tuple[list[dict], dict[str, str]]:
    """The rows of all methods; of what is not simulated, what it lacks."""
    study = load(directory)
    rows = records(of_study(study, ranks, what_ifs))
    found = [one.data for one in study.findings if one.code == "not_simulated"]
    return rows, {data["what"]: data["lacks"] for data in found}


def simulated(directory, *words) -> list[dict]:
    ran = run("analysis.predict", directory, *words, "--format", "json")
    assert ran.code == 0, ran.err
    return [row for row in ran.json if row["predicted_by"] == "simulation"]


def test_the_planted_network_is_found_and_more_ranks_are_as_by_hand(tmp_path):
    (row,) = simulated(sweep(tmp_path), "--ranks", "8")
    ms = step_ms(8)
    figures = {
        "alpha_us": ALPHA_US, "beta_gb_per_s": BETA_GB_PER_S, "step_ms": ms, "exposed_ms": ms - ALONE_MS,
        "images_per_s": 8 * 32e3 / ms, "buckets": 2, "traced_ranks": 2,
    }  # fmt: skip
    assert {name: row[name] for name in figures} == pytest.approx(figures, rel=1e-3) and ms > 130
    assert row["measured_on"] == "1 2"
    assert row["fit_error_pct"] == pytest.approx(0, abs=1e-5)  # times are since 1970


def test_strong_scaling_is_replayed_with_smaller_batches(tmp_path):
    """Computing takes as long whatever the batch, as planted: none of it is saved."""
    for ranks in (1, 2, 4):
        for profile in ("none", "torch"):
            plant(tmp_path, ranks, profile, batch=64 // ranks)
    write_sweep_record(tmp_path)
    tested, made = simulated(tmp_path, "--ranks", "8")
    assert {(row["scaling"], row["backtest"]) for row in (tested, made)} == {
        ("strong", True),
        ("strong", False),
    }
    assert (tested["world_size"], tested["error_pct"]) == (4, pytest.approx(0, abs=0.5))
    ms = step_ms(8)
    figures = {"step_ms": ms, "images_per_s": 64e3 / ms, "scaling_efficiency_pct": 100 * ALONE_MS / ms / 8}
    assert {name: made[name] for name in figures} == pytest.approx(figures, rel=5e-3)


def test_what_ifs_stand_beside_the_plain_prediction(tmp_path):
    what_ifs = "fp16-gradients,network=2x,bucket-mb=1,no-stragglers,no-loader"
    made = simulated(sweep(tmp_path), "--ranks", "8", "--what-if", what_ifs)
    here = [row for row in made if row["world_size"] == 2]  # measured: what a change gives there is surest
    assert [row["what_if"] for row in here] == what_ifs.split(",")
    plain, *changed = [row for row in made if row["world_size"] == 8]
    ms = {row["what_if"]: row["step_ms"] for row in changed}
    assert not plain["what_if"] and list(ms) == what_ifs.split(",")
    half = step_ms(8, ((30.0, 24 * MIB), (50.0, 4 * MIB)))
    assert ms["fp16-gradients"] == pytest.approx(half, rel=1e-4)
    assert ms["network=2x"] == pytest.approx(half, rel=1e-4)
    small = step_ms(8, ((10.0, 16 * MIB), (30.0, 32 * MIB), (50.0, 8 * MIB)))
    assert ms["bucket-mb=1"] == pytest.approx(small, rel=1e-4)
    assert ms["no-loader"] == pytest.approx(step_ms(8) - LOAD, rel=1e-4)
    assert ms["no-stragglers"] == pytest.approx(step_ms(8), rel=1e-4)
    assert all(
        row["gain_pct"] == pytest.approx(100 * (step_ms(8) / row["step_ms"] - 1), abs=0.1) for row in changed
    )


def test_one_rank_is_not_enough(tmp_path):
    said = one_line_error(run("analysis.predict", sweep(tmp_path, ranks=(1,))))
    assert ONE_SIZE in said and "no allreduces" in said
    section = section_of(load(tmp_path), "prediction")
    assert section.unavailable and not section.charts


def test_without_layers_the_buckets_that_were_sent_stand_in(tmp_path):
    sweep(tmp_path, layers=False)
    rows, lacking = not_simulated(tmp_path, "8", ["bucket-mb=1"])
    (row,) = [row for row in rows if row["predicted_by"] == "simulation"]
    # The second bucket was seen to begin when the wire was free, not when it was ready: 5 ms later.
    assert row["step_ms"] == pytest.approx(step_ms(8), rel=0.05)
    assert set(lacking) == {"bucket-mb=1"}


def test_a_damaged_trace_costs_only_its_run(tmp_path):
    sweep(tmp_path)
    next(tmp_path.glob("*_2_eth_torch*/rank_0000/kernels.parquet")).write_bytes(b"PAR1 no")
    assert [row["predicted_by"] for row in records(of_study(load(tmp_path), "4"))] == ["curve"]
