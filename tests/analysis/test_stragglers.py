"""A rank is named if the others wait for it, again and again; the planted cause is found; else nobody is."""

import json
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pyarrow.compute as pc
import pytest

from analysis.measures.anatomy.collectives import calls_of
from analysis.measures.anatomy.divide import activities_of
from analysis.measures.batches.series import Series
from analysis.measures.lateness import in_words
from analysis.measures.lateness import lateness as of
from analysis.measures.lateness.causes import KernelTimes, cause_of
from analysis.measures.lateness.in_words import sentences
from analysis.measures.lateness.notable import notable_ranks
from analysis.measures.lateness.straggler_table import caption
from analysis.measures.lateness.stragglers import rows
from analysis.measures.lateness.verdicts import (
    CHANCE,
    CLOCK,
    NO,
    SHORT_WAIT,
    STRAGGLER,
    TOO_FEW,
    chance,
    judge,
    stretches,
)
from analysis.report.build import build
from analysis.report.stragglers import MOST_NAMED, MOST_ROWS, heat_map, in_groups, narrowed
from analysis.results.load import load
from analysis.results.matching import match
from analysis.results.traces import arrays_of
from profiling import tables
from profiling.tools.recognition import read
from tests.analysis import late_ranks
from tests.analysis.commands import one_line_error, run
from tests.analysis.late_ranks import BATCHES, Job, Planted, write
from tests.analysis.synthetic import MS, Truth, run_of, write_run, write_sweep


def named(made) -> dict[int, str]:
    return {row["rank"]: row["cause"] for row in made if row["verdict"] == STRAGGLER}


def lateness(late_ns: np.ndarray, batch_ns: float = 100.0) -> of.Lateness:
    ranks, batches = late_ns.shape
    nothing = {name: np.zeros(late_ns.shape) for name in of.PARTS}
    return of.Lateness(of.BY_STAGES, np.arange(batches), late_ns, late_ns, late_ns * 0, nothing, batch_ns,
                       np.zeros(ranks))  # fmt: skip


# --- planted ------------------------------------------------------------------------------------------


def test_a_rank_is_last_if_all_others_came_before_it():
    late = np.array([[3.0, 1.0, 2.0], [1.0, 1.0, 2.0], [0.0, 0.0, 2.0]])
    zeros = np.zeros(late.shape)
    one = of.Lateness(of.BY_STAGES, np.arange(3), late, zeros, zeros, {}, 100.0, np.zeros(3))
    assert one.last.tolist() == [[True, False, False], [False] * 3, [False] * 3]


def test_a_slow_loader_of_one_rank(tmp_path):
    write(tmp_path, Job(planted={3: Planted(load=6.0)}))
    made = rows(load(tmp_path))
    assert named(made) == {3: "loader"}
    row = made[3]
    # 6 ms were planted; the last of seven others is some 0.5 ms after their median.
    assert row["lateness_ms"] == pytest.approx(6.0, abs=0.3) and row["held_up_ms"] == pytest.approx(
        5.4, abs=0.5
    )
    assert row["lateness_ms_low"] < row["lateness_ms"] < row["lateness_ms_high"]
    assert row["late_pct"] == row["last_pct"] == 100 and row["chance"] < 0.001
    assert "6.0" in row["evidence"] and "load stage" in row["evidence"]
    assert sum(row["last_pct"] for row in made) == pytest.approx(100)


@pytest.mark.parametrize("profile", ["none", "torch"])
def test_a_slow_node_is_a_node_and_not_four_ranks(tmp_path, profile):
    job = Job(nodes=2, planted={rank: Planted(forward=8.0) for rank in (4, 5, 6, 7)})
    # Two nodes take turns by chance as a coin does: 25 batches would be too few.
    write(tmp_path, job, profile=profile, attribute_from=5)
    made = rows(load(tmp_path))
    assert named(made) == dict.fromkeys((4, 5, 6, 7), "node")
    assert "all 4 ranks of node 1" in made[4]["evidence"] and "forward" in made[4]["evidence"]


def test_the_only_rank_of_a_node_is_no_node(tmp_path):
    write(tmp_path, Job(ranks=4, nodes=4, planted={2: Planted(load=6.0)}))
    assert named(rows(load(tmp_path))) == {2: "loader"}


def test_a_clock_that_is_ahead_is_not_blamed(tmp_path):
    write(tmp_path, Job(planted={2: Planted(clock_ms=250.0)}), profile="torch")
    made = rows(load(tmp_path))
    assert {row["verdict"] for row in made} == {NO} and {row["told_by"] for row in made} == {"collectives"}


def test_a_clock_that_jumps_is_called_a_clock(tmp_path):
    write(tmp_path, Job(planted={2: Planted(jump_ms=40.0)}), profile="torch")
    made = rows(load(tmp_path))
    assert named(made) == {} and made[2]["verdict"] == CLOCK
    assert "Verdict clock: " in caption(made) and "Verdict clock: " not in caption(made[:2])


def test_a_rank_that_waited_for_the_others_is_no_matter_of_its_clock():
    late = np.zeros((4, 50))
    late[1] = -10.0
    early = replace(lateness(late), told_by=of.BY_COLLECTIVES, residual_ns=np.full(4, 5.0))
    assert [verdict for verdict, _ in judge(early)] == [CLOCK, NO, CLOCK, CLOCK]


def test_a_late_rank_whose_clock_is_ahead_too_is_named_for_what_others_waited(tmp_path):
    write(tmp_path, Job(planted={2: Planted(load=6.0, clock_ms=-90.0)}), profile="torch")
    made = rows(load(tmp_path))
    assert named(made) == {2: "loader"} and made[2]["lateness_ms"] == pytest.approx(6.0, abs=1.0)


def test_a_slow_gpu_by_its_own_kernels_or_those_of_its_profiled_twin(tmp_path):
    job = Job(planted={5: Planted(slower=1.2)})
    write(tmp_path, job, profile="torch")
    write(tmp_path, job)
    made = {row["profile"]: row for row in rows(load(tmp_path)) if row["rank"] == 5}
    assert {row["cause"] for row in made.values()} == {"GPU"}
    assert "1.20 times" in made["torch"]["evidence"] and "1.20 times" in made["none"]["evidence"]
    # 18 ms of 90: stages show what of that comes before the backward pass.
    assert made["torch"]["lateness_ms"] == pytest.approx(18, abs=1)
    assert made["none"]["lateness_ms"] == pytest.approx(6, abs=1)


def test_kernels_that_come_late_are_the_hosts(tmp_path):
    write(tmp_path, Job(planted={1: Planted(forward=9.0)}), profile="torch")
    made = rows(load(tmp_path))
    assert named(made) == {1: "host"} and "1.00 times" in made[1]["evidence"]
    assert made[1]["evidence"].startswith("in this profiled run its forward stage takes 9")
    (said,) = sentences(made)
    assert "rank 1 (node0) is a straggler: on average 9" in said  # collectives tell all of it: no bound


@pytest.mark.parametrize(
    ("forward", "ratio", "says"),
    [
        (9.0, 0.87, "in this unprofiled run its forward stage takes 9.00 ms longer"),
        (9.0, 1.01, "in this unprofiled run its forward stage takes 9.00 ms longer; in the profiled run"),
        (1.0, 0.87, "neither its stages nor its kernels explain the lateness"),
    ],
)
def test_only_what_supports_a_slow_host_is_named_and_of_which_run(forward, ratio, says):
    late = np.zeros((2, 10))
    late[1] = 9.0 * MS
    one = lateness(late, 100.0 * MS)
    one.parts_ns["forward"][1] = forward * MS
    own = np.full((2, 10), 50.0 * MS)
    own[1] *= ratio
    kernels = KernelTimes(np.arange(10), own, own - 50.0 * MS, borrowed=True)
    found = cause_of(1, one, kernels, "cpu", [], "node0")
    assert found.cause == "host" and found.evidence.startswith(says)
    assert ("times as long" in found.evidence) == (ratio == 1.01)


def test_a_rank_that_is_named_in_one_repetition_of_several_is_said_to_be(tmp_path):
    write(tmp_path, Job(planted={3: Planted(load=6.0)}))
    made = rows(load(tmp_path))
    quiet = {"verdict": NO, "mean_lateness_ms": 0.1}
    others = [
        row | quiet | {"id": f"run_{number}", "repetition": number} for row in made for number in (1, 2)
    ]
    assert "repetition" not in sentences(made)[0]
    (said,) = sentences([*made, *others])
    assert "rank 3 (node0) is a straggler (in 1 of 3 repetitions): on average" in said


def test_without_kernels_gpu_and_host_are_not_told_apart(tmp_path):
    write(tmp_path, Job(planted={1: Planted(forward=9.0)}))
    made = rows(load(tmp_path))
    assert named(made) == {1: "GPU or host"} and "profile: torch" in made[1]["evidence"]


def test_rank_0_whose_broadcast_the_others_wait_for_in_their_forward_pass(tmp_path):
    write(tmp_path, Job(broadcast=True, planted={0: Planted(load=6.0)}))
    assert named(rows(load(tmp_path))) == {0: "loader"}


def test_late_in_every_fourth_batch_repeats_and_one_batch_does_not(tmp_path):
    write(tmp_path / "a", Job(planted={6: Planted(load=25.0, every=4)}))
    made = rows(load(tmp_path / "a"))
    assert named(made) == {6: "loader"} and abs(made[6]["lateness_ms"]) < 1
    assert made[6]["mean_lateness_ms"] == pytest.approx(6, abs=1) and 20 < made[6]["late_pct"] < 30
    write(tmp_path / "b", Job(planted={6: Planted(load=400.0, every=BATCHES - 5)}))
    assert named(rows(load(tmp_path / "b"))) == {}


def test_a_rank_that_nobody_waits_for_is_not_named(tmp_path):
    write(tmp_path, Job(planted={4: Planted(forward=10.0, waits=False)}))
    made = rows(load(tmp_path))
    assert named(made) == {} and made[4]["verdict"] == SHORT_WAIT


@pytest.mark.parametrize(
    ("told_by", "waited", "verdict"),
    [
        (of.BY_STAGES, 1.8, SHORT_WAIT),
        (of.BY_COLLECTIVES, 1.8, SHORT_WAIT),
        (of.BY_STAGES, 0.0, SHORT_WAIT),
        (of.BY_COLLECTIVES, 0.0, CLOCK),
        (of.BY_COLLECTIVES, 1.0, CLOCK),
    ],
)
def test_a_verdict_does_not_deny_what_the_row_shows(told_by, waited, verdict):
    """Behind by 2.2 % of a step, while the others wait for less than the 2 % that make a rank late."""
    late, behind = np.full((4, 50), -waited / 3), np.zeros((4, 50))
    late[1], behind[1] = waited, 2.2
    one = replace(lateness(late), told_by=told_by, behind_ns=behind)
    assert judge(one)[1][0] == verdict


def test_a_gpu_that_is_slow_at_times_is_compared_at_these_times(tmp_path):
    """Every third backward pass of rank 3 takes 15 ms longer, and all others wait in the allreduce for it."""
    result = write(tmp_path, Job(), profile="torch")
    for rank in range(8):
        directory = tables.rank_directory(result, rank)
        of_rank = tables.read(directory, "kernels").to_pylist()
        for row in of_rank:
            if row["batch_index"] % 3 == 0 and row["short_name"] != "conv_fprop":
                collective = row["short_name"] == "ncclAllReduce"
                if rank == 3 and collective:
                    row["start_ns"] += 15 * MS
                elif rank == 3 or collective:
                    row["duration_ns"] += 15 * MS
        columns = {name: [row[name] for row in of_rank] for name in of_rank[0]}
        tables.write(tables.as_table("kernels", columns), directory, "kernels")
    made = rows(load(tmp_path))
    assert named(made) == {3: "GPU"}
    assert "1.17 times as long" in made[3]["evidence"] and "in which it is late" in made[3]["evidence"]
    # Which batches of an unprofiled run those were is not known: means are compared.
    write(tmp_path, Job(planted={3: Planted(forward=15.0, every=3)}))
    plain = [row for row in rows(load(tmp_path)) if row["profile"] == "none"]
    assert named(plain) == {3: "GPU"} and "in the profiled run" in plain[3]["evidence"]


def test_of_equal_ranks_none_is_last(tmp_path):
    write_sweep(tmp_path, [run_of(gpus_per_node=2)])
    assert {row["last_pct"] for row in rows(load(tmp_path))} == {0}


# --- chance -------------------------------------------------------------------------------------------


def correlated(generator, ranks, batches, rho):
    noise = generator.standard_normal((ranks, batches))
    values = noise.copy()
    for batch in range(1, batches):
        values[:, batch] = rho * values[:, batch - 1] + noise[:, batch]
    return values


@pytest.mark.parametrize(("ranks", "rho"), [(2, 0.0), (8, 0.0), (8, 0.5)])
def test_equal_ranks_are_named_in_at_most_a_run_of_twenty(ranks, rho):
    """120 runs of noise of 5 % of a batch: at 5 %, more than 11 false alarms come once in 50 such tests."""
    generator = np.random.default_rng(7)
    alarms = 0
    for _ in range(120):
        late = of.over_others(100 + 5 * correlated(generator, ranks, BATCHES, rho))
        alarms += any(verdict == STRAGGLER for verdict, _ in judge(lateness(late)))
    assert alarms <= 11


def test_chance_of_two_ranks_is_the_binomials():
    """One of two is late in 9 of 10 independent batches, the other in the tenth: 2 x (10 + 1) / 1024."""
    late = np.zeros((2, 10), dtype=bool)
    late[0, :9] = late[1, 9] = True
    assert chance(late, 1)[0] == pytest.approx(22 / 1024, abs=0.008)
    assert chance(np.zeros((2, 10), dtype=bool), 1).tolist() == [1, 1]


def test_lateness_that_hangs_together_makes_long_stretches():
    generator = np.random.default_rng(3)
    loose, tied = (stretches(correlated(generator, 8, 200, rho)).mean() for rho in (0.0, 0.9))
    assert loose < 8 and tied > 2 * loose


def test_ranks_that_are_late_as_often_are_judged_alike_however_long_their_lateness_hangs_together():
    late = np.array([[-8.0], [8.0], [10.0], [-9.0]]) + correlated(np.random.default_rng(104), 4, 25, 0.3)
    assert stretches(late).tolist() == [4, 4, 5, 7]
    _, first, second, _ = judge(lateness(late))
    # By the longest stretches of those that are late; rank 3, whose are longer still, is not.
    assert first == second == (CHANCE, chance(late > 0, 5)[2])


def test_few_batches_repeat_nothing():
    late = np.zeros((8, 3))
    late[2] = 30.0
    assert {verdict for verdict, _ in judge(lateness(late))} == {TOO_FEW}
    # Nor is a rank known not to be late again and again, where no p can be computed.
    assert {verdict for verdict, _ in judge(lateness(np.zeros((8, 3))))} == {TOO_FEW}
    assert {verdict for verdict, _ in judge(lateness(np.zeros((8, 30))))} == {NO}


@pytest.mark.parametrize("ranks", [2, 3, 4, 7, 8])
def test_over_others_is_less_the_median_of_the_others(ranks):
    values = np.random.default_rng(ranks).integers(0, 9, (ranks, 40)).astype(float)  # with ties
    expected = [values[rank] - np.median(np.delete(values, rank, axis=0), axis=0) for rank in range(ranks)]
    assert (of.over_others(values) == np.array(expected)).all()


# --- real ranks ---------------------------------------------------------------------------------------


def repeated(tables, times: int):
    """The collectives of real ranks, their one step ``times`` times over."""
    ranks = []
    for number, table in enumerate(tables):
        one = arrays_of(table)
        kernels = {name: np.tile(values, times) for name, values in one.items()}
        step = np.repeat(np.arange(times), len(one["start_ns"]))
        kernels["batch_index"], kernels["start_ns"] = step, kernels["start_ns"] + step * 10**8
        begin = one["start_ns"].min() + np.arange(times) * 10**8
        windows = (begin, begin + 10**8)
        ranks.append(calls_of(number, kernels, np.arange(times), windows, activities_of(kernels)))
    return ranks


def test_eight_real_ranks(shared_data):
    """The step's first all-to-all waits for ranks 2, 6 and 7, and 0 before them; one step repeats nothing."""
    traces = sorted((shared_data / "kineto/dlrm_8ranks").glob("*.gz"))
    kernels = [read(path).tables["kernels"] for path in traces]
    kernels = [table.filter(pc.is_valid(table["batch_index"])) for table in kernels]
    for times in (1, 20):
        ranks = repeated(kernels, times)
        shape = (8, times)
        stages = {name: np.full(shape, 2e6) for name in ("load", "forward", "backward", "update")}
        series = Series(np.full(shape, 8e6), np.full(times, 8), stages, np.full(times, True), 0)
        found = of.of_collectives(ranks, match(ranks), series)
        assert found.residual_ns.max() < 5_000
        waited = sorted(one.end_ns[0] - one.start_ns[0] for one in ranks[:7])[3]
        own = ranks[7].end_ns[0] - ranks[7].start_ns[0]
        assert ranks[7].kind[0] == "alltoall" and waited > 4_600_000
        assert found.late_ns[7, -1] == pytest.approx(waited - own)
        assert (found.late_ns[[2, 6], -1] > 4_000_000).all() and found.late_ns[1, -1] < -5_000_000
        late = np.flatnonzero(found.late_ns.mean(axis=1) >= of.LATE_SHARE * found.batch_ns)
        assert late.tolist() == [0, 2, 6, 7]
        # Half of eight ranks, in a handful of stretches: of equal ranks some would be late as often.
        few = [TOO_FEW] * 8
        assert [verdict for verdict, _ in judge(found)] == (
            few if times == 1 else [CHANCE if rank in late else NO for rank in range(8)]
        )


# --- the command --------------------------------------------------------------------------------------


def test_the_command_by_rank_and_by_batch(tmp_path):
    write(tmp_path, Job(planted={3: Planted(load=6.0)}))
    ran = run("analysis.stragglers", tmp_path)
    assert ran.code == 0 and "rank 3 (node 0) is late" not in ran.out  # one host: it has a name
    said = " ".join(ran.out.split())
    assert "rank 3 (node0) is a straggler: on average at least 6" in said and "Likely cause: loader" in said
    by_step = run("analysis.stragglers", tmp_path, "--by", "step", "--format", "csv").csv
    assert len(by_step) == 8 * len({row["step"] for row in by_step})
    longer = [float(row["load_longer_ms"]) for row in by_step if row["rank"] == "3"]
    assert np.median(longer) == pytest.approx(6, abs=0.1)


def test_nobody_is_named_in_words(tmp_path):
    write(tmp_path, Job())
    assert "No stragglers: no rank repeatedly delayed the others." in run("analysis.stragglers", tmp_path).out


def test_three_steps_do_not_tell_that_there_is_no_straggler(tmp_path, monkeypatch):
    monkeypatch.setattr(late_ranks, "BATCHES", 4)  # the first has none before it
    write(tmp_path, Job(ranks=2))
    ran = run("analysis.stragglers", tmp_path)
    assert "Too few steps (3) to tell whether a rank is a straggler." in ran.out
    assert "No stragglers" not in ran.out and ran.out.count("too few steps") == 3
    said = " ".join(ran.out.split())
    assert "A rank of the same run that was not behind has the verdict no, which needs no test." in said


def test_runs_with_too_few_steps_are_counted_beside_those_that_tell():
    enough = rank_row(0, 0.1) | {"step_ms": 100.0, "judged_steps": 50}
    few = enough | {"id": "run_1", "verdict": TOO_FEW, "judged_steps": 3}
    assert sentences([enough, few]) == [
        "No stragglers: no rank repeatedly delayed the others. 1 of 2 runs: too few steps to tell."
    ]
    assert sentences([few]) == ["Too few steps (3) to tell whether a rank is a straggler."]


@pytest.mark.parametrize(
    ("verdict", "says"), [(TOO_FEW, "Too few steps to tell"), (CHANCE, "which may be chance")]
)
def test_who_is_late_but_not_named_is_said_to_be_late(verdict, says):
    row = {"id": "run", "node": "a", "step_ms": 100.0, "judged_steps": 5, "verdict": NO}
    made = [{**row, "rank": rank, "mean_lateness_ms": late} for rank, late in enumerate((1.0, 29.8, -3.0))]
    made[1]["verdict"] = verdict
    (line,) = sentences(made)
    assert "rank 1 (a), 29.8 ms per step (mean of 5)" in line and says in line


def test_one_rank_is_one_line(tmp_path):
    write_sweep(tmp_path, [run_of()])
    assert "no run of several ranks" in one_line_error(run("analysis.stragglers", tmp_path))


def test_dataparallel_has_one_rank_however_many_gpus(tmp_path):
    write_run(tmp_path / "dp", run_of(gpus_per_node=4, backend="dp"), Truth())
    (source,) = load(tmp_path / "dp").sources
    assert source.hosts == ["node0"]  # its host
    assert "no run of several ranks" in one_line_error(run("analysis.stragglers", tmp_path / "dp"))
    write_run(tmp_path / "ddp", run_of(nodes=2, gpus_per_node=2), Truth())
    assert load(tmp_path / "ddp").sources[0].hosts == ["node 0", "node 0", "node 1", "node 1"]


def test_a_damaged_table_takes_out_its_run_only(tmp_path):
    write(tmp_path, Job())
    broken = write(tmp_path, Job(), profile="torch")
    (broken / "rank_0002" / "kernels.parquet").write_bytes(b"PAR1")
    ran = run("analysis.stragglers", tmp_path, "--format", "csv")
    assert ran.code == 1 and {row["profile"] for row in ran.csv} == {"none"}
    assert "rank_0002" in ran.err


def test_a_missing_rank_is_said(tmp_path):
    write(tmp_path, Job())
    cut = write_run(tmp_path, run_of(gpus_per_node=2, batch=64), Truth())
    (cut / "rank_0001" / "batches.parquet").unlink()
    ran = run("analysis.stragglers", tmp_path, "--format", "csv")
    assert ran.code == 1 and "rank_0001" in ran.err and len(ran.csv) == 8


# --- the report ---------------------------------------------------------------------------------------


def section_of(path):
    return next((one for one in build(load(path)).sections if one.id == "stragglers"), None)


def test_the_report_shows_the_widest_run_and_names_the_rank(tmp_path):
    write(tmp_path, Job(ranks=2, planted={0: Planted(load=9.0)}))
    write(tmp_path, Job(ranks=8, planted={3: Planted(load=6.0)}))
    found = section_of(tmp_path)
    assert "8 ranks" in found.text and "rank 3" in found.notes[0] and len(found.notes) == 1
    (trace,) = found.charts[0].figure["data"]
    late = np.array(trace["z"])
    assert late.shape[0] == 8 and np.median(late[3]) == pytest.approx(6, abs=0.3)
    assert (late.argmax(axis=0) == 3).all() and trace["zmin"] == -trace["zmax"] < -4
    assert len(found.tables[0].rows) == 8


def test_the_report_calls_runs_by_what_they_differ_in(tmp_path):
    write(tmp_path, Job(planted={3: Planted(load=6.0)}), grad="fp16")
    write(tmp_path, Job(), grad="fp32")
    (said,) = section_of(tmp_path).notes
    assert said.startswith("fp16 gradients: rank 3 (node0) is a straggler: ")


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


def test_a_rank_of_an_unknown_host_is_named_without_one():
    row = {"id": "job", "rank": 7, "mean_lateness_ms": 3.0, "step_ms": 100.0, "judged_steps": 2,
           "verdict": CHANCE}  # fmt: skip
    assert "in job: rank 7, 3.00 ms" in sentences([{**row, "node": None}])[0]
    assert "in job: rank 7 (node0), 3.00 ms" in sentences([{**row, "node": "node0"}])[0]


def test_the_rank_to_show_is_the_one_that_the_sentences_are_about():
    def row(name, verdict, late_ms, step_ms):
        return {"id": name, "verdict": verdict, "mean_lateness_ms": late_ms, "step_ms": step_ms}

    on_time = row("a", "no", 90.0, 100.0)
    small, large = row("b", TOO_FEW, 30.0, 1000.0), row("c", CHANCE, 20.0, 100.0)
    assert in_words.foremost([on_time]) is None
    assert in_words.foremost([on_time, small, large]) is large
    named = row("d", STRAGGLER, 3.0, 100.0)
    assert in_words.foremost([small, large, named]) is named
    traced = row("e", TOO_FEW, 2.0, 100.0) | {"told_by": of.BY_COLLECTIVES}
    assert in_words.foremost([named, traced]) is traced, "of the same rank: it tells the whole lateness"
    assert in_words.foremost([named, traced | {"rank": 5}]) is named


# --- many ranks ---------------------------------------------------------------------------------------


def rank_row(rank: int, mean_ms: float, verdict: str = NO, run_id: str = "run_0") -> dict:
    return {"id": run_id, "rank": rank, "mean_lateness_ms": mean_ms, "verdict": verdict}


def test_of_many_ranks_a_table_shows_the_late_and_the_extremes_and_says_what_the_others_are():
    of_run = [rank_row(rank, rank / 100) for rank in range(1000)]
    of_run[5] |= {"verdict": STRAGGLER}
    of_run[6] |= {"verdict": CHANCE}
    small = [rank_row(rank, 0.0, run_id="run_1") for rank in range(8)]
    kept, others = notable_ranks([*of_run, *small])
    assert [row["rank"] for row in kept if row["id"] == "run_0"] == [0, 1, 2, 5, 6, *range(992, 1000)]
    assert [row for row in kept if row["id"] == "run_1"] == small
    assert others.startswith("987 of 1,008 rows not shown (--wide or --format csv shows all)")
    assert "mean lateness 0.0300 to 9.91 ms; verdict: no (987)" in others
    assert notable_ranks(small) == (small, "")


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
        assert f"of {ranks} rows not shown (analysis.stragglers --format csv shows all)" in (
            found.tables[0].note
        )
        sizes.append(len(json.dumps(trace["z"])) + len(found.tables[0].rows))
    assert sizes[1] < 1.3 * sizes[0]


def test_the_data_hold_all_ranks_whatever_the_table_shows(tmp_path):
    ranks = 32
    write_sweep(tmp_path, [run_of(gpus_per_node=ranks)], Truth(step_ms={ranks: 100.0}), {"none": 1})
    shown = run("analysis.stragglers", tmp_path).out
    assert "of 32 rows not shown" in shown
    assert len(run("analysis.stragglers", tmp_path, "--format", "csv").csv) == ranks
    whole = run("analysis.stragglers", tmp_path, "--wide").out
    assert "not shown" not in whole and len(whole.splitlines()) > len(shown.splitlines()) + 15
    by_step = run("analysis.stragglers", tmp_path, "--by", "step").out
    assert "rows not shown" in by_step and len(by_step.splitlines()) < 100
