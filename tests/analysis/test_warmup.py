"""Which steps of traces are warmup: of few only what is slow by far, of many what is off the level.

Durations, means and parts are of the same steps, and tables say which are left out.
"""

import numpy as np
import pytest

from analysis.display.metrics import records
from analysis.estimates import FEWEST_FOR_WIDTH, slower_from, warmup
from analysis.frames.load import load
from analysis.frames.steps import ALL, Counted, counted_steps, series_of, warmup_of_traces
from analysis.measures import anatomy, communication, kernels, traced
from benchmarks.warmup import steps
from tests.analysis.commands import run
from tests.analysis.frames import critical_path_rows, kernels_frame, stragglers_rows
from tests.analysis.synthetic import MS, Truth, change_rows, run_of, write_run
from tests.analysis.traced import job, study_of
from tests.profiling.traced_jobs import Planted, trace_of

SHORT = (3, 4, 5, 8, 10, 12, FEWEST_FOR_WIDTH - 1)


def warmups(count: int, head: tuple[float, ...] = (), spikes: float = 0.0, of: int = 200) -> np.ndarray:
    """Of traces of one rank whose steps vary by 5 %."""
    every = steps(np.random.default_rng(count), of, count, head, spikes)
    return np.array([warmup_of_traces(one[None, :], np.ones((1, count), bool)) for one in every])


@pytest.mark.parametrize("count", [5, 8, 12, 14, 30])
@pytest.mark.parametrize("head", [(3.0,), (3.0, 3.0), (20.0, 2.5)])
def test_slow_first_steps_of_a_trace_are_dropped(count, head):
    assert np.mean(warmups(count, head) == len(head)) >= 0.95


@pytest.mark.parametrize(("count", "every"), [(12, 2), (13, 4), (14, 5), (30, 5), (100, 25)])
def test_a_first_step_that_is_slow_as_every_nth_is_no_warmup(count, every):
    durations = steps(np.random.default_rng(count), 200, count, (), 0.0)
    durations[:, ::every] *= 3
    one_rank = np.ones((1, count), bool)
    dropped = [warmup_of_traces(one[None, :], one_rank) or warmup(one) for one in durations]
    assert np.mean(np.array(dropped) > 0) <= 0.05  # where one more is off the level by chance
    # It is where it takes longer than they do, and where only some of them recur.
    durations[:, 0] *= 3
    assert np.mean([warmup_of_traces(one[None, :], one_rank) == 1 for one in durations]) >= 0.95
    durations[:, 0] /= 3
    durations[:, every * 2 :: every] /= 3
    assert np.mean([warmup_of_traces(one[None, :], one_rank) == 1 for one in durations]) >= 0.95


@pytest.mark.parametrize("change", [24, 30, 45])
def test_a_series_that_becomes_slower_has_no_warmup_and_its_step_is_known(change):
    values = steps(np.random.default_rng(1), 1, 60, (3.0,), 0.0)[0]
    values[change:] *= 1.3
    place, pct = slower_from(values)
    assert warmup(values) == 1 and abs(place - change) <= 2 and pct == pytest.approx(30, abs=5)
    for steady in (values[:change], values[change:], values[::-1], np.linspace(100, 150, 60)):
        assert slower_from(steady) is None
    assert warmup(steps(np.random.default_rng(1), 1, 60, (0.7,) * 8, 0.0)[0]) == 8


@pytest.mark.parametrize("count", SHORT)
def test_no_step_of_a_short_trace_is_dropped_for_noise_or_a_small_change_of_level(count):
    assert not warmups(count).any()
    # A tenth of the steps takes half as long again, also the first ones.
    assert not warmups(count, spikes=1.5).any()
    if count == FEWEST_FOR_WIDTH - 1:
        assert not warmups(count, (1.5, 1.5)).any()
        assert np.mean(warmups(count + 1, (1.5, 1.5)) >= 2) > 0.97


def test_mean_and_parts_are_of_the_same_steps_as_the_median(tmp_path):
    """The first two of 20 steps are longer by half: too little for the conversion, but off the level."""
    step = Planted(ranks=2).batch
    planted = Planted(ranks=2, batches=20, head=(0.5 * step, 0.5 * step))
    study = load(job(tmp_path, planted))
    (row,) = records(traced.jobs(study))
    assert (row["warmup_dropped"], row["steady_steps"]) == (2, 18)
    assert row["step_ms"] == pytest.approx((step - 1) / 1000, rel=1e-9)  # times are since 1970
    assert row["wall_ms"] == pytest.approx(row["step_ms"], rel=2e-3)
    assert row["idle_ms"] == pytest.approx(planted.idle / 1000, abs=2e-3)
    (whole,) = records(anatomy.anatomy(study).rows)
    assert whole["wall_ms"] == row["wall_ms"]
    assert (whole["warmup_dropped"], whole["attributed_steps"]) == (2, 2 * 18)
    assert anatomy.batches(study).rows["warmup_dropped"][0] == 2

    assert [one.data["n"] for one in study.findings if one.code == "first_steps_left_out"] == [2]
    by_step = records(anatomy.anatomy(study, ["step"]).rows)  # no mean, and so nothing is left out of it
    assert [one["step"] for one in by_step] == list(range(20))


def test_kernels_and_collectives_are_of_the_same_steps_as_the_anatomy(tmp_path):
    """In the first two of 20 steps, which are longer, the collective takes three times as long."""
    step = Planted(ranks=2).batch
    planted = Planted(ranks=2, batches=20, head=(0.5 * step, 0.5 * step))
    folder = job(tmp_path, planted)
    for path in folder.glob("rank_*"):
        change_rows(path, "kernels", lambda rows: [
            row | {"duration_ns": row["duration_ns"] * (1 + 2 * (row["batch_index"] < 2))}
            if row["class"] == "communication" else row for row in rows
        ])  # fmt: skip
    study = load(folder)
    (whole,) = records(anatomy.anatomy(study).rows)
    (talk,) = records(communication.communication(study).rows)
    assert talk["ms_per_step"] == pytest.approx(planted.transfer / 1000)
    for name in ("exposed", "overlapped"):
        assert talk[f"{name}_ms"] == pytest.approx(whole[f"{name}_communication_ms"], abs=1e-9)
    assert talk["attributed_steps"] == whole["attributed_steps"]
    assert talk["repetition"] == whole["repetition"]
    by_class = dict(kernels_frame(study, by=["class"])[["class", "ms_per_step"]].itertuples(index=False))
    assert by_class.pop("communication") == pytest.approx(talk["ms_per_step"])
    assert sum(by_class.values()) == pytest.approx(whole["compute_ms"])
    # What their difference from another run is explained by.
    side = kernels.side_of(study, study.sources[0])
    assert side.wall_ms == pytest.approx(whole["wall_ms"])
    assert side.wall_ms - side.busy_ms == pytest.approx(whole["idle_ms"] + whole["loader_wait_ms"])
    for rows in (critical_path_rows(study), stragglers_rows(study)):
        assert {row["steady_steps"] for row in rows} == {18}
    for command in ("analysis.kernels", "analysis.communication", "analysis.critical_path"):
        assert "left out, warmup: 2" in run(command, folder).out
    # But for the summary of all that was launched, which says so.
    for words in ((), ("--shares",)):
        assert "All recorded launches" in run("analysis.activities", folder, *words).out


@pytest.mark.parametrize(
    ("first", "warm", "begin"),
    [(1, 1, 1), (3, 3, 3), (4, 3, 4), (4, 6, 6), (9, 20, 20), (4, 1, 0), (20, 3, 0)],
)
def test_steps_before_a_recording_that_are_all_warmup_do_not_count(tmp_path, first, warm, begin):
    """Nor do recorded ones that still are; of a run that had warmed up before it all recorded steps do."""
    planted = run_of(profile="torch", attribute_from=first)
    study = load(write_run(tmp_path, planted, Truth(warmup=warm, noise_ms=0)))
    (source,) = study.sources
    assert counted_steps(study, source) == (Counted(range(begin, 40), max(warm - first, 0)) if begin else ALL)
    assert series_of(study, source).steady_ns.max() == 100 * MS * (1.25 if begin else 1)
    assert any(one.code == "first_steps_left_out" for one in study.findings) == (warm > first)


def test_means_are_of_steps_that_all_ranks_recorded(tmp_path):
    counts = enumerate((9, 7))
    study = study_of(tmp_path, *(trace_of(Planted(ranks=2, batches=count), rank) for rank, count in counts))
    (whole,) = records(anatomy.anatomy(study).rows)
    assert whole["attributed_steps"] == 2 * 7 == 2 * traced.jobs(study)["steady_steps"][0]
