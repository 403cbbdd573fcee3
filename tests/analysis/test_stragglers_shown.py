"""Late ranks in words, in the report, and where there are many of them."""

import json
from itertools import pairwise

import numpy as np
import pytest

from analysis.frames.load import load
from analysis.measures import lateness as of
from analysis.measures import stragglers
from analysis.measures.lateness import (
    CHANCE,
    CLOCK,
    NO,
    STRAGGLER,
    TOO_FEW,
)
from analysis.measures.stragglers import notable_ranks, verdict
from analysis.report.build import build
from analysis.report.stragglers import MOST_NAMED, MOST_ROWS, heat_map, in_groups, narrowed
from tests.analysis.commands import run
from tests.analysis.late_ranks import Job, Planted, write
from tests.analysis.synthetic import Truth, run_of, write_sweep


def test_runs_with_too_few_steps_are_counted_beside_those_that_tell():
    def found(*rows):
        (one,) = verdict(rows)
        return one.code, one.data["n"], one.data["of"]

    enough = rank_row(0, 0.1) | {"step_ms": 100.0, "steady_steps": 50}
    few = enough | {"run": "run_1", "verdict": TOO_FEW, "steady_steps": 3}
    assert found(enough, few) == ("no_stragglers", 1, 2)
    assert found(few) == ("stragglers_unknown", 0, 1)
    clock = enough | {"run": "run_2", "verdict": CLOCK, "mean_lateness_ms": 9.0}
    assert found(enough, few, clock) == ("no_stragglers", 1, 3)


def section_of(path):
    return next((one for one in build(load(path)).sections if one.id == "stragglers"), None)


def test_the_report_shows_the_widest_run_and_names_the_rank(tmp_path):
    write(tmp_path, Job(ranks=2, planted={0: Planted(load=9.0)}))
    write(tmp_path, Job(ranks=8, planted={3: Planted(load=6.0)}))
    found = section_of(tmp_path)
    (trace,) = found.charts[0].figure["data"]
    late = np.array(trace["z"])
    assert late.shape[0] == 8 and np.median(late[3]) == pytest.approx(6, abs=0.3)
    assert (late.argmax(axis=0) == 3).all() and trace["zmin"] == -trace["zmax"] < -4
    assert len(found.tables[0].rows) == 8


def test_a_report_of_one_rank_has_no_such_section(tmp_path):
    write_sweep(tmp_path, [run_of()])
    assert section_of(tmp_path) is None


def test_64_ranks_by_many_batches_stay_small():
    late = np.random.default_rng(1).normal(0, 1e6, (64, 5000))
    index, narrow = narrowed(np.arange(5000), late)
    assert narrow.shape == (64, 100) and index[1] == 50
    assert narrow[7, 2] == np.median(late[7, 100:150])
    figure = heat_map(narrow / 1e6, index.tolist(), [str(rank) for rank in range(64)], "", "ms", 1.0, {})
    assert len(json.dumps(figure)) < 80_000


@pytest.mark.parametrize(("steps", "ticks"), [(5, [0, 1, 2, 3, 4]), (6, None)])
def test_the_axis_of_a_few_steps_has_a_tick_for_each(steps, ticks):
    figure = heat_map(np.zeros((2, steps)), range(steps), ["0", "1"], "", "ms", 1.0, {})
    assert figure["layout"]["xaxis"].get("tickvals") == ticks


def test_the_rank_to_show_is_the_one_that_the_sentences_are_about():
    def row(name, verdict, late_ms, step_ms):
        return {"run": name, "verdict": verdict, "mean_lateness_ms": late_ms, "step_ms": step_ms}

    on_time = row("a", "no", 90.0, 100.0)
    small, large = row("b", TOO_FEW, 30.0, 1000.0), row("c", CHANCE, 20.0, 100.0)
    assert stragglers.foremost([on_time]) is None
    assert stragglers.foremost([on_time, small, large]) is large
    named = row("d", STRAGGLER, 3.0, 100.0)
    assert stragglers.foremost([small, large, named]) is named
    traced = row("e", TOO_FEW, 2.0, 100.0) | {"told_by": of.BY_COLLECTIVES}
    assert stragglers.foremost([named, traced]) is traced  # of the same rank: it tells the whole lateness
    assert stragglers.foremost([named, traced | {"rank": 5}]) is named


def rank_row(rank: int, mean_ms: float, verdict: str = NO, run_id: str = "run_0") -> dict:
    row = {"run": run_id, "rank": rank, "mean_lateness_ms": mean_ms, "verdict": verdict}
    return row | {"step_ms": 1000.0}  # late from 20 ms on


def test_of_many_ranks_a_table_shows_the_late_and_the_extremes_and_says_what_the_others_are():
    of_run = [rank_row(rank, rank / 100) for rank in range(1000)]
    of_run[5] |= {"verdict": STRAGGLER}
    of_run[6] |= {"verdict": CHANCE, "mean_lateness_ms": 25.0}
    kept, others = notable_ranks(of_run)
    assert [row["rank"] for row in kept] == [0, 1, 2, 5, 6, *range(993, 1000)]
    assert others.startswith("988 of 1,000 rows")


def test_of_many_runs_a_table_shows_late_ranks_and_the_latest_of_each_configuration():
    rows = [
        rank_row(rank, float(rank), run_id=f"run_{run}") | {"nodes": 1 + run // 2, "repetition": run % 2}
        for run in range(8)
        for rank in range(4)
    ]
    assert notable_ranks(rows[:24]) == (rows[:24], "")
    rows[0] |= {"verdict": STRAGGLER, "mean_lateness_ms": 30.0}
    rows[5] |= {"verdict": CHANCE, "mean_lateness_ms": 21.0}
    rows[9] |= {"verdict": TOO_FEW}  # not late: of its run there are too few steps to tell
    kept, others = notable_ranks(rows)
    assert [(row["nodes"], row["rank"]) for row in kept] == [(1, 0), (1, 1), (2, 3), (3, 3), (4, 3)]
    assert others.startswith("27 of 32 rows")


@pytest.mark.parametrize("ranks", [65, 512, 1024, 3000])
def test_of_many_ranks_the_map_keeps_its_size_and_loses_no_late_one(ranks):
    late = np.random.default_rng(1).normal(0, 1, (ranks, 20))
    late[37, 4] = 50.0  # once: no straggler, but to be seen
    late[60] = 90.0
    rows, names = in_groups(late, [f"rank {rank}" for rank in range(ranks)], [60])
    assert len(rows) == len(names) <= MOST_ROWS + 1 and rows.shape[1] == 20
    assert names[0] == "rank 60" and (rows[0] == 90.0).all()
    spans = [name.partition(" to ") for name in names[1:]]
    bounds = [(int(first), int(last or first)) for first, _, last in spans]
    assert bounds[0][0] == 0 and bounds[-1][1] == ranks - 1
    assert all(one[1] + 1 == two[0] for one, two in pairwise(bounds))
    for row, (first, last) in zip(rows[1:], bounds, strict=True):
        sharing = [rank for rank in range(first, last + 1) if rank != 60]
        np.testing.assert_array_equal(row, late[sharing].max(axis=0))
    alone, _ = in_groups(late, [""] * ranks, range(ranks - 4, ranks))
    assert np.isnan(alone[-1]).all() == (bounds[-1][0] >= ranks - 4)


def test_the_reports_section_is_as_large_for_eighty_ranks_as_for_two_hundred(tmp_path):
    sizes = []
    for ranks in (80, 200):
        folder = tmp_path / str(ranks)
        write(folder, Job(ranks=ranks, nodes=ranks // 40, planted={70: Planted(load=9.0)}))
        found = section_of(folder)
        (trace,) = found.charts[0].figure["data"]
        assert trace["y"][0].startswith("70 (") and len(trace["z"]) <= MOST_ROWS + MOST_NAMED
        assert np.median(trace["z"][0]) == pytest.approx(9, abs=0.5)
        assert "ranks share a row" in found.charts[0].caption
        assert any(row.cells[0].text == "70" for row in found.tables[0].rows)
        sizes.append(len(json.dumps(trace["z"])) + len(found.tables[0].rows))
    assert sizes[1] < 1.3 * sizes[0]


def test_the_data_hold_all_ranks_whatever_the_table_shows(tmp_path):
    ranks = 32
    write_sweep(tmp_path, [run_of(gpus_per_node=ranks)], Truth(step_ms={ranks: 100.0}), {"none": 1})
    shown = run("analysis.stragglers", tmp_path).out
    assert "of 32 rows" in shown
    assert len(run("analysis.stragglers", tmp_path, "--format", "csv").csv) == ranks
    whole = run("analysis.stragglers", tmp_path, "--wide").out
    assert "not shown" not in whole and len(whole.splitlines()) > len(shown.splitlines()) + 15
    by_step = run("analysis.stragglers", tmp_path, "--by", "step").out
    assert "rows not shown" in by_step and len(by_step.splitlines()) < 100
