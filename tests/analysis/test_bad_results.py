"""Results that are damaged, incomplete or none: what is wrong is said, figures are of what was recorded."""

import json
import os
import shutil
import socket
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from analysis.frames.load import load
from jobs import store
from jobs.store import OWNER, claim, release, this_owner
from profiling import tables
from tests.analysis import synthetic
from tests.analysis.commands import Ran, one_line_error, run
from tests.analysis.frames import section_of
from tests.analysis.synthetic import MS, Truth, run_of, write_run, write_sweep
from tests.builders import a_folder


def sweep(path: Path, **fields: object) -> Path:
    """Two points, each twice unprofiled and once profiled; the run to break is profiled, on 2 ranks."""
    runs = [run_of(gpus_per_node=size, profile=p, **fields) for size in (1, 2) for p in ("none", "torch")]
    write_sweep(path, runs)
    return next(path.glob("run_0_config_1_2_*torch*"))


def change(path: Path, column: str, values: Callable[[list], list]) -> None:
    synthetic.change(path.parent, path.stem, **{column: values})


def truncate(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def batches(run: Path, rank: int) -> Path:
    return run / f"rank_{rank:04d}" / "batches.parquet"


def a_batch_less(run: Path) -> None:
    pq.write_table(pq.ParquetFile(batches(run, 1)).read()[:-1], batches(run, 1))


def changed(column: str, values: Callable[[list], list], rank: int = 0) -> Callable[[Path], None]:
    return lambda run: change(batches(run, rank), column, values)


def as_text(column: str) -> Callable[[Path], None]:
    def damage(run: Path) -> None:
        table = pq.ParquetFile(batches(run, 0)).read()
        place = table.column_names.index(column)
        pq.write_table(table.set_column(place, column, pa.array(["x"] * len(table))), batches(run, 0))

    return damage


def flip_a_bit(path: Path, column: str = "end_ns") -> None:
    """In a page of times: the file opens, and the page may decompress to other values."""
    group = pq.read_metadata(path).row_group(0)
    times = next(c for c in map(group.column, range(group.num_columns)) if c.path_in_schema == column)
    content = bytearray(path.read_bytes())
    start = times.dictionary_page_offset or times.data_page_offset
    content[start + times.total_compressed_size - 3] ^= 1
    path.write_bytes(content)


def a_pipe(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


MOST = 2**63 - 1
# what is done to a run's directory -> what is then said of it
DAMAGE: dict[str, tuple[Callable[[Path], object], str]] = {
    "batches truncated": (lambda run: truncate(batches(run, 1)), "not a readable batches table"),
    "batches absent": (lambda run: batches(run, 1).unlink(), "no batches table"),
    "a rank absent": (lambda run: shutil.rmtree(run / "rank_0001"), "no batches table"),
    "batches of another kind": (
        lambda run: pq.write_table(pa.table({"x": [1]}), batches(run, 0)), "not a readable batches table"
    ),
    "batches a pipe": (lambda run: a_pipe(batches(run, 1)), "no file but a pipe"),
    "a batch less": (a_batch_less, "recorded 39 of 40 steps"),
    "a batch of no time": (
        changed("end_ns", lambda ends: [ends[0] - 10**12, *ends[1:]]), "ends before it starts"
    ),
    "a time missing": (changed("start_ns", lambda starts: [None, *starts[1:]]), "steps without timestamps"),
    "other batches": (
        changed("batch_index", lambda index: [one + 1 for one in index], rank=1),
        "batches are not numbered 0 to 39",
    ),
    "batches twice": (changed("batch_index", lambda at: [n // 2 for n in at]), "not numbered"),
    **{f"text in {name}": (as_text(name), "not a readable batches table") for name in ("end_ns", "images")},
    "batches with a bit flipped": (lambda run: flip_a_bit(batches(run, 0)), "not a readable batches table"),
    "a time beyond all": (changed("end_ns", lambda ends: [MOST, *ends[1:]]), "is damaged: end_ns"),
    "a step of years": (changed("end_ns", lambda ends: [ends[0] + 10**17, *ends[1:]]), "a step of"),
    "images beyond all": (changed("images", lambda images: [2**31 - 1, *images[1:]]), "samples"),
    "manifest a pipe": (lambda run: a_pipe(run / store.MANIFEST), "no file but a pipe"),
    "manifest a folder": (lambda run: a_folder(run / store.MANIFEST), "Is a directory"),
    "manifest truncated": (lambda run: truncate(run / store.MANIFEST), "damaged or from another release"),
    "manifest absent": (lambda run: (run / store.MANIFEST).unlink(), "manifest missing"),
    "manifest of nothing": (
        lambda run: (run / store.MANIFEST).write_text("{}"), "damaged or from another release"
    ),
}  # fmt: skip


def assert_named(ran: Ran, broken: Path, says: str) -> None:
    assert ran.code == 1
    assert any(broken.name in line and says in line for line in ran.err.splitlines())


@pytest.mark.parametrize("what", DAMAGE)
def test_a_damaged_run_is_named_and_costs_no_other(tmp_path: Path, what: str) -> None:
    broken = sweep(tmp_path)
    damage, says = DAMAGE[what]
    damage(broken)
    ran = run("analysis.batches", tmp_path, "--format", "csv")
    assert_named(ran, broken, says)
    assert len(ran.csv) == 5
    assert says in one_line_error(run("analysis.batches", broken))


# Of damage that is found when results are loaded, when a table is opened, and in its values.
@pytest.mark.parametrize("what", ["manifest absent", "batches truncated", "a time missing"])
def test_a_configuration_whose_profiled_run_is_damaged_is_still_timed(tmp_path: Path, what: str) -> None:
    broken = sweep(tmp_path)
    damage, says = DAMAGE[what]
    damage(broken)
    ran = run("analysis.scaled", tmp_path, "--format", "csv", "--all")
    assert_named(ran, broken, says)
    rows = {row["world_size"]: row for row in ran.csv}
    # Unprofiled runs time it; what needs the profiled run is not known.
    assert float(rows["2"]["step_ms"]) == pytest.approx(110, rel=0.01)
    assert (rows["2"]["perturbation"], rows["2"]["kernel_ms_per_step"]) == ("", "")
    assert float(rows["1"]["kernel_ms_per_step"]) == pytest.approx(60)
    assert says in one_line_error(run("analysis.scaled", broken))


@pytest.mark.parametrize("value", [-1, MOST, "text"])
@pytest.mark.parametrize(("table", "command"), [("kernels", "anatomy"), ("markers", "timeline")])
def test_impossible_times_cost_their_run_alone(tmp_path: Path, table: str, command: str, value) -> None:
    broken = sweep(tmp_path)
    path = broken / "rank_0000" / f"{table}.parquet"
    rows = tables.read(path.parent, table) if path.exists() else tables.as_table(table, {"start_ns": [5] * 9})
    starts = pa.array(["x"] * len(rows) if value == "text" else [value] + [5] * (len(rows) - 1))
    pq.write_table(rows.set_column(rows.column_names.index("start_ns"), "start_ns", starts), path)
    for given in (broken, tmp_path):
        ran = run(f"analysis.{command}", given)
        assert f"{table}.parquet" in "".join((ran.out + ran.err).split()) and "Traceback" not in ran.err


@pytest.mark.parametrize(
    ("rank", "damage"), [("rank_0000", truncate), ("rank_0001", partial(flip_a_bit, column="duration_ns"))]
)
def test_a_damaged_table_of_kernels_is_named_and_costs_no_other(tmp_path: Path, rank: str, damage) -> None:
    broken = sweep(tmp_path)
    damage(broken / rank / "kernels.parquet")
    answers = {
        c: run(f"analysis.{c}", tmp_path, "--format", "csv", "--all")
        for c in ("scaled", "efficiency", "kernels", "activities")
    }
    for ran in answers.values():
        assert (ran.code, bool(ran.csv)) == (1, True)
        (line,) = [line for line in ran.err.splitlines() if broken.name in line]
        assert "not a readable kernels table" in line
    rows = {row["world_size"]: row for row in answers["scaled"].csv}
    assert float(rows["2"]["step_ms"]) == pytest.approx(110, rel=0.01)
    assert rows["2"]["kernel_ms_per_step"] == ""


def test_kernels_without_their_figures_do_not_spoil_the_sums(tmp_path: Path) -> None:
    path = sweep(tmp_path) / "rank_0000" / "kernels.parquet"
    change(path, "duration_ns", lambda values: [None, *values[1:]])
    change(path, "flops", lambda values: [values[0], float("nan"), None, *values[3:]])
    answers = {
        name: run(f"analysis.{name}", tmp_path, "--format", "csv", "--all")
        for name in ("scaled", "efficiency", "kernels")
    }
    for ran in answers.values():
        assert ran.code == 0, ran.err
        assert "nan" not in ran.out.lower()
    rows = {row["world_size"]: row for row in answers["scaled"].csv}
    assert float(rows["2"]["kernel_ms_per_step"]) == pytest.approx(60, rel=0.02)
    assert float(rows["2"]["exposed_communication_ms"]) == pytest.approx(5, rel=0.2)


def change_kernels(run: Path, column: str, value: object, every: int = 1, kind: str | None = None) -> int:
    """Every n-th kernel of rank 0 (of a class) gets ``value``; how many did."""
    kinds = tables.read(run / "rank_0000", "kernels")["class"].to_pylist()
    chosen = {place for place, of in enumerate(kinds) if kind in (None, of)}
    chosen = {place for number, place in enumerate(sorted(chosen)) if number % every == 0}
    made = {column: lambda of: [value if place in chosen else one for place, one in enumerate(of)]}
    synthetic.change(run / "rank_0000", "kernels", **made)
    return len(chosen)


def untimed(broken: Path, count: int) -> str:
    return f"left out: {count} launches without a duration ({broken.name})"


READS_KERNELS = ("anatomy", "communication", "efficiency", "kernels", "utilization")


@pytest.mark.parametrize(("command", "duration"), [*zip(READS_KERNELS, [None, -1_000_000] * 3, strict=False)])
def test_launches_without_a_duration_are_left_out_and_counted(tmp_path: Path, command: str, duration) -> None:
    broken = sweep(tmp_path)
    count = change_kernels(broken, "duration_ns", duration, every=7)
    ran = run(f"analysis.{command}", tmp_path, "--format", "csv")
    assert (ran.code, bool(ran.csv)) == (0, True)
    assert ran.err.count(untimed(broken, count)) == 1
    assert "-" not in {value[:1] for row in ran.csv for value in row.values()}


def test_collectives_without_a_duration_are_left_out(tmp_path: Path) -> None:
    broken = sweep(tmp_path)
    count = change_kernels(broken, "duration_ns", None, every=2, kind="communication")
    ran = run("analysis.communication", tmp_path, "--by", "rank", "--format", "csv")
    assert ran.code == 0
    assert [float(row["calls_per_step"]) for row in ran.csv] == [0.5, 1]
    assert untimed(broken, count) in ran.err
    assert "different calls" in ran.err
    assert section_of(load(tmp_path), "communication").charts


def test_a_step_whose_stages_took_no_time_is_not_simulated(tmp_path: Path) -> None:
    broken = sweep(tmp_path)
    for stage in ("forward_ns", "update_ns"):
        change(batches(broken, 0), stage, lambda took: [0] * len(took))
    ran = run("analysis.predict", tmp_path, "--format", "csv")
    assert (ran.code, "simulation" in ran.out) == (0, False)
    assert "not simulated: step" in ran.err


def test_kernels_without_a_device_and_activities_without_a_name(tmp_path: Path) -> None:
    broken = sweep(tmp_path)
    count = change_kernels(broken, "device", None)
    ran = run("analysis.utilization", tmp_path, "--format", "csv")
    assert (ran.code, [row["rank"] for row in ran.csv]) == (0, ["0", "1"])
    assert f": {count}" in ran.err and "device" in ran.err
    count = change_kernels(broken, "name", None, every=3)
    ran = run("analysis.activities", tmp_path, "--format", "csv")
    assert ran.code == 0
    assert sum(int(row["calls"]) for row in ran.csv if row["name"] == "(without a name)") == count


def test_batches_without_a_time_or_that_nobody_knows_to_be_recorded_do_not_count(tmp_path: Path) -> None:
    broken = sweep(tmp_path)
    change(batches(broken, 0), "attributed", lambda recorded: [*recorded[:-1], None])
    for command in ("anatomy", "communication"):
        row = run(f"analysis.{command}", tmp_path, "--format", "csv").csv[-1]
        assert (row["run"], row["attributed_steps"]) == (broken.name, "39")
    change(batches(broken, 0), "forward_ns", lambda took: [*took[:-2], None, None])
    ran = run("analysis.anatomy", tmp_path, "--format", "csv")
    assert (ran.code, ran.csv[-1]["attributed_steps"]) == (0, "38")
    assert f"1 steps without times ({broken.name})" in ran.err
    assert float(ran.csv[-1]["compute_ms"]) == pytest.approx(60)
    change(batches(broken, 0), "attributed", lambda recorded: [False] * len(recorded))
    ran = run("analysis.communication", tmp_path, "--by", "rank", "--format", "csv")
    assert (ran.code, [row["rank"] for row in ran.csv]) == (0, ["1"])


@pytest.mark.parametrize(
    ("report", "says"),
    [
        ({"batches_done": 39}, "steps done: 39 of 40"),
        ({"losses_finite": False}, "had a loss that is not finite"),
        ({"world_size": 3}, "saw 3 ranks, not 2"),
    ],
)
def test_a_run_counts_only_if_it_is_right(tmp_path: Path, report: dict, says: str) -> None:
    write_sweep(tmp_path, [run_of()])
    write_run(tmp_path, run_of(gpus_per_node=2), Truth(), **report)
    ran = run("analysis.scaled", tmp_path, "--format", "csv")
    assert (ran.code, len(ran.csv)) == (1, 1)
    assert says in ran.err


def test_ranks_with_different_parameters_at_the_end_do_not_count(tmp_path: Path) -> None:
    write_sweep(tmp_path, [run_of()])
    broken = write_run(tmp_path, run_of(gpus_per_node=2), Truth())
    manifest = json.loads((broken / store.MANIFEST).read_text())
    manifest["ranks"][1]["parameter_digest"] = "1" * 64
    (broken / store.MANIFEST).write_text(json.dumps(manifest))
    ran = run("analysis.batches", tmp_path)
    assert ran.code == 1
    assert "different parameters" in ran.out
    manifest["ranks"].pop()
    (broken / store.MANIFEST).write_text(json.dumps(manifest))
    assert "1 of 2" in run("analysis.batches", tmp_path).out


def test_a_run_that_was_killed_and_one_that_was_not_reached(tmp_path: Path) -> None:
    write_sweep(tmp_path, [run_of()])
    killed = write_run(tmp_path, run_of(gpus_per_node=2), Truth())
    (killed / store.MANIFEST).unlink()
    killed = killed.rename(killed.with_name(killed.name.removesuffix("_ret_0")))
    record = json.loads((tmp_path / store.SWEEP).read_text())
    record["order"] = [killed.name, "run_0_config_1_4_eth_none_2_resnet50_synthetic_32_fp32_fp32"]
    (tmp_path / store.SWEEP).write_text(json.dumps(record))
    ran = run("analysis.batches", tmp_path, "--format", "csv")
    assert (ran.code, len(ran.csv)) == (1, 2)
    states = {one.point: one.kind for one in load(tmp_path).failed}
    assert states == {killed.name: "interrupted", record["order"][1]: "not started"}
    more = "run_0_config_1_8_eth_none_2_resnet50_synthetic_32_fp32_fp32"
    (tmp_path / store.SWEEP).write_text(json.dumps({**record, "order": [*record["order"], more]}))
    by_hand = tmp_path / "a" / "run_0_config_x"  # killed in its first step
    (by_hand / "rank_0000").mkdir(parents=True)
    for given in (by_hand, by_hand.parent):
        assert "by hand" in one_line_error(run("analysis.scaled", given))
    store.write_record(killed / OWNER, this_owner({}))
    states = {one.point: (one.kind, one.reason) for one in load(tmp_path).failed}
    assert states[killed.name] == ("running", f"on {socket.gethostname()}")
    assert states[more][0] == "not started"
    (killed / OWNER).unlink()
    measuring = tmp_path / ".calibration-n1-7"
    measuring.mkdir()
    store.write_record(measuring / OWNER, this_owner({"SLURM_JOB_ID": "5"}))
    assert load(tmp_path).failed[-1].reason == "the sweep is running"
    (measuring / OWNER).unlink()
    assert load(tmp_path).failed[-1].reason != "the sweep is running"
    store.write_record(killed / OWNER, this_owner({}))
    for done in tmp_path.glob("run_*_ret_0"):
        shutil.rmtree(done)
    assert f"{killed.name}: on " in one_line_error(run("analysis.scaled", tmp_path))


@pytest.mark.parametrize(
    ("given", "meant"), [("loaders", "loaders"), ("results/loders", "loaders"), ("3=qick", "quick")]
)
def test_results_that_are_not_there_name_those_that_are(tmp_path: Path, monkeypatch, given, meant) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("quick", "loaders"):
        (tmp_path / "results" / name).mkdir(parents=True)
        (tmp_path / "results" / name / store.SWEEP).write_text("{}")
    said = f"{given.removeprefix('3=')} does not exist; did you mean 'results/{meant}'?"
    for module in ("analysis.scaled", "analysis.report.__main__"):
        assert said in one_line_error(run(module, given))


def test_a_point_that_failed_counts_as_what_it_was_later(tmp_path: Path) -> None:
    write_sweep(tmp_path, [run_of()])
    write_run(tmp_path, run_of(), Truth(), exit_code=1, reason="no space left")
    assert (run("analysis.batches", tmp_path).code, load(tmp_path).failed) == (0, [])
    failed = write_run(tmp_path, run_of(gpus_per_node=2), Truth(), exit_code=1, reason="no space left")
    again = failed.with_name(failed.name.removesuffix("_ret_1"))
    claim(again, this_owner({}))
    ran = run("analysis.batches", tmp_path, "--format", "csv")
    assert "running: on " in ran.err and again.name in ran.err and "failed: " not in ran.err
    assert "no space left" not in ran.err
    release(again)
    ran = run("analysis.batches", tmp_path, "--format", "csv")
    assert "interrupted: " in ran.err and again.name in ran.err
    (again / store.LOG).touch()
    assert again.name in one_line_error(run("analysis.scaled", again))


@pytest.mark.parametrize("command", ["scaled", "kernels"])
def test_nothing_to_read_is_one_line(tmp_path: Path, command: str) -> None:
    def said(path: Path) -> str:
        return one_line_error(run(f"analysis.{command}", path))

    assert "does not exist" in said(tmp_path / "absent")
    (tmp_path / "notes.txt").write_text("hello")
    pq.write_table(pa.table({"x": [1]}), tmp_path / "other.parquet")
    for name in ("notes.txt", "other.parquet"):
        assert "PyProf or TAU" in said(tmp_path / name)
    assert "holds no results" in said(tmp_path)
    write_sweep(tmp_path / "one", [])
    assert "holds no results" in said(tmp_path / "one")
    write_run(tmp_path / "one", run_of(), Truth(), exit_code=1, reason="the data folder")
    assert "the data folder" in said(tmp_path / "one")
    write_sweep(tmp_path / "two", [])
    assert "holds 2 sweeps" in said(tmp_path)


STRANGE = [
    "run_0_config_..", "run_..", "run_0_config_1_1_eth_none_2_$(touch hacked)_synthetic_32_fp32_fp32_ret_0",
    "run_0_config_1_1_eth_none_2_resnet50_synthetic_32_fp32_fp32_ret_0; rm -rf x", "run_`id`", "run_'\"",
    "run_[0-9]*",
]  # fmt: skip


def test_directories_whose_names_are_no_run_ids(tmp_path: Path) -> None:
    good = tmp_path / "sweep"
    write_sweep(good, [run_of()])
    made = write_run(tmp_path / "other", run_of(), Truth())
    for name in STRANGE:
        shutil.copytree(made, good / name)
    ran = run("analysis.scaled", good, "--format", "json", "--notes")
    ((row,), findings) = ran.json.values()
    assert (ran.code, row["runs"]) == (1, 2)
    assert {one["run"] for one in findings if one["code"] == "run_left_out"} == set(STRANGE)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["other", "sweep"]


@pytest.mark.parametrize("name", ["a [1]*?", "c'\"{d,e}", "$(id); ls", "ü 字%20", "-x"])
def test_a_sweep_in_a_folder_of_any_name(tmp_path: Path, name: str) -> None:
    sweep(tmp_path / name)
    for command in ("batches", "kernels"):
        ran = run(f"analysis.{command}", tmp_path / name, "--format", "csv")
        assert ran.code == 0 and ran.csv, ran.err


@pytest.mark.parametrize("content", ["", "[]", '{"order": 3, "excluded": [1]}'])
def test_damaged_records_of_the_sweep_are_notes(tmp_path: Path, content: str) -> None:
    sweep(tmp_path)
    for record in (store.SWEEP, store.CALIBRATION):
        (tmp_path / record).write_text(content)
    ran = run("analysis.scaled", tmp_path, "--format", "csv")
    assert (ran.code, len(ran.csv)) == (0, 2)
    assert store.SWEEP in ran.err and store.CALIBRATION in ran.err


def test_without_a_folder_scaled_answers_for_the_newest_sweep(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    one_line_error(run("analysis.scaled"))
    for age_s, (name, ranks) in enumerate([("new", 2), ("old", 4)]):
        write_sweep(Path("results") / name, [run_of(gpus_per_node=n) for n in (1, ranks)])
        os.utime(Path("results") / name / "sweep.json", (1e9 - age_s, 1e9 - age_s))
    ran = run("analysis.scaled", "--format", "json")
    assert [row["world_size"] for row in ran.json] == [1, 2]
    assert "results/new" in ran.err


# Recordings that hold only a part of a run. Truth in all: 60 ms of kernels and 0.74 TFLOP a batch of a rank,
# 5 ms of exposed communication.
LEFT_OUT = "steps without kernels"


def keep(directory: Path, kept: range) -> None:
    synthetic.change_rows(directory, "kernels", lambda rows: [r for r in rows if r["batch_index"] in kept])


def one_rank_alone(ranks: list[Path]) -> None:
    (ranks[1] / "kernels.parquet").unlink()
    synthetic.change(ranks[1], "batches", attributed=False)


def cut(ranks: list[Path]) -> None:
    for rank in ranks:
        keep(rank, range(20, 28))


def another_clock(ranks: list[Path]) -> None:
    synthetic.change(ranks[1], "kernels", start_ns=lambda at: [one + 5 * 3600 * 1000 * MS for one in at])


@pytest.mark.parametrize(
    ("damage", "says", "in_time"),
    [
        (one_rank_alone, "ranks missing in the recording: 1 of 2 (1)", 20),
        (lambda ranks: keep(ranks[1], range(0)), "ranks missing in the recording: 1 of 2 (1)", 20),
        (cut, f"left out: 24 of 40 {LEFT_OUT}", 16),
        (another_clock, f"left out: 20 of 40 {LEFT_OUT}", 20),
    ],
)
def test_figures_are_of_what_was_recorded(tmp_path: Path, damage, says: str, in_time: int) -> None:
    write_sweep(tmp_path, [run_of(gpus_per_node=2, profile=profile) for profile in ("none", "torch")])
    damage(sorted(next(tmp_path.glob("run_*torch*")).glob("rank_*")))
    names = ("scaled", "efficiency", "kernels", "anatomy", "utilization", "communication")
    ran = {name: run(f"analysis.{name}", tmp_path, "--format", "json", "--all") for name in names}
    of_a_part = [one for one in load(tmp_path).findings if one.code == "profiles_missing"]
    assert len(of_a_part) == ("1 of 2" in says)
    (row,) = ran["scaled"].json
    assert row["kernel_ms_per_step"] == pytest.approx(60)
    assert row["tflop_per_step"] == pytest.approx(0.74)
    assert row["exposed_communication_ms"] == pytest.approx(5)
    assert ran["efficiency"].json[0]["kernel_ms_per_step"] == pytest.approx(60)
    assert {row["kernel"]: row["ms_per_step"] for row in ran["kernels"].json}["relu"] == pytest.approx(15)
    (row,) = ran["communication"].json
    figures = [row[name] for name in ("calls_per_step", "mbyte_per_step", "ms_per_step")]
    assert figures == pytest.approx([1, 100, 20])
    # What was not recorded is no idle time, whatever else is.
    (row,) = ran["anatomy"].json
    assert row["attributed_steps"] == in_time
    assert row["compute_ms"] == pytest.approx(60) and row["exposed_communication_ms"] == pytest.approx(5)
    assert all(row["gpu_utilization_pct"] == pytest.approx(47.3, abs=0.5) for row in ran["utilization"].json)
    # Costs go by batch and not by time: another clock does not matter there.
    in_place = ("anatomy", "utilization")
    assert all(says in ran[name].err for name in (in_place if damage is another_clock else ran))


def test_flops_that_nobody_knows_are_not_zero(tmp_path: Path) -> None:
    runs = [run_of(profile=profile) for profile in ("none", "nsys")]
    write_sweep(tmp_path / "alone", runs, Truth(flops=0.0, bytes=0.0))
    (row,) = run("analysis.efficiency", tmp_path / "alone", "--format", "json", "--all").json
    assert row["kernel_ms_per_step"] == pytest.approx(60)
    unknown = ("compute_efficiency_pct", "tflops_per_s", "bandwidth_gb_per_s", "flops_efficiency_pct")
    assert [row[name] for name in unknown] == [None] * 4
    ran = run("analysis.scaled", tmp_path / "alone", "--format", "json", "--all")
    assert (ran.json[0]["tflop_per_step"], ran.json[0]["flop_coverage_pct"]) == (None, None)
    assert "analytic" not in ran.err
    # Beside a run whose FLOPs are known, the rate is of that one.
    write_sweep(tmp_path / "both", runs, Truth(flops=0.0, bytes=0.0))
    write_sweep(tmp_path / "both", [run_of(gpus_per_node=2, profile="torch")])
    (row,) = run("analysis.efficiency", tmp_path / "both", "--format", "json", "--all").json
    assert row["tflops_per_s"] == pytest.approx(0.74 / 0.06)
    assert row["compute_efficiency_pct"] == pytest.approx(50)


def test_batches_that_only_gather_gradients_count(tmp_path: Path) -> None:
    """Every second batch exchanges them: half a call a batch, and nothing is left out."""

    def exchanging(rows):
        return [row for row in rows if row["class"] != "communication" or row["batch_index"] % 2]

    write_sweep(tmp_path, [run_of(gpus_per_node=2, profile="torch")])
    for rank in sorted(tmp_path.glob("run_*/rank_*")):
        synthetic.change_rows(rank, "kernels", exchanging)
    ran = run("analysis.communication", tmp_path, "--format", "json", "--all")
    assert ran.json[0]["calls_per_step"] == pytest.approx(0.5) and LEFT_OUT not in ran.err
