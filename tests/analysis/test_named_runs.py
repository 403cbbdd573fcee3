"""Runs of a program in folders of their own, each named with its number of ranks: ``1=DIR 2=DIR``."""

import re
import shutil
from pathlib import Path

import pytest

from analysis.frames.load import load, load_named
from analysis.prediction import configurations
from analysis.prediction.predict import curves
from benchmarks.planted_sweep import IMAGES, NO_NOISE, Job, write_sweep
from jobs import store
from jobs.run_fields import format_id
from jobs.store import Manifest
from profiling import tables
from profiling.errors import UserError
from tests.analysis.commands import answered, one_line_error, run
from tests.analysis.frames import scaled_rows
from tests.analysis.synthetic import Truth, run_of, write_run, write_sweep_record

REPETITIONS = 2


def become(directory: Path, **fields: object) -> None:
    """Let a run be one with other fields."""
    manifest = store.read_record(directory / store.MANIFEST, Manifest)
    run = manifest.run.model_copy(update=fields)
    store.write_record(directory / store.MANIFEST, manifest.model_copy(update={"run": run}))
    directory.rename(directory.with_name(format_id(run, manifest.repetition, 0)))


def plant(folder: Path, ranks: int, program: str) -> None:
    """Runs of a program on so many ranks."""
    before = {*folder.glob("run_*")}
    job = Job(ranks=ranks, load_ms=5.0 * (ranks - 1))
    write_sweep(folder, [job], noise=NO_NOISE, repetitions={"none": REPETITIONS})
    for directory in {*folder.glob("run_*")} - before:
        become(directory, program=program)


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """Runs on one, two and four ranks, with commands that differ in where they write."""
    folder = tmp_path_factory.mktemp("named")
    for ranks in (1, 2, 4):
        plant(folder / str(ranks), ranks, f"train.py --out {ranks}")
    return {ranks: folder / str(ranks) for ranks in (1, 2, 4)}


def named(folders, *sizes):
    return [f"{ranks}={folders[ranks]}" for ranks in sizes or folders]


def test_runs_in_several_folders_are_one_programs_scaling(folders):
    rows = run("analysis.scaled", *named(folders), "--scaling", "weak", "--format", "json").json
    assert [row["world_size"] for row in rows] == [1, 2, 4]
    assert [row["runs"] for row in rows] == [REPETITIONS] * 3
    efficiencies = [row["scaling_efficiency_pct"] for row in rows]
    assert efficiencies[0] == 100 and 100 > efficiencies[1] > efficiencies[2]


def test_another_number_of_ranks_and_a_mixture_are_one_clear_line(folders, tmp_path):
    with pytest.raises(UserError, match=r"8=.*: run_.* has 4 ranks"):
        load_named([f"1={folders[1]}", f"8={folders[4]}"])
    with pytest.raises(UserError, match=rf"with its number of ranks: P={folders[4]}$"):
        load_named([f"1={folders[1]}", str(folders[4])])


def test_a_command_of_more_ranks_only_is_no_baseline_of_its_own(folders, tmp_path):
    for ranks in folders:
        for directory in folders[ranks].glob("run_*"):
            shutil.copytree(directory, tmp_path / directory.name)
    (one, *others), said = answered("analysis.scaled", tmp_path)
    assert (one["speedup"], one["scaling_efficiency_pct"]) == (1, 100)
    assert [(row["speedup"], row["scaling_efficiency_pct"]) for row in others] == [(None, None)] * 2
    assert said["not_compared"]["what"] == "4 ranks, other command"


def take_samples(folder: Path, ranks: int | None = None) -> None:
    """Runs (on so many ranks) of which ``profiling.watch`` was not told the samples of a step."""
    for directory in folder.glob("run_*"):
        of_rank = sorted(directory.glob("rank_*"))
        for path in of_rank if ranks in (None, len(of_rank)) else []:
            read = tables.read(path, "batches")
            columns = {name: read[name] for name in read.column_names if name != "images"}
            tables.write(tables.as_table("batches", columns), path, "batches")


@pytest.mark.parametrize(
    ("lacking", "efficiencies"),
    [(4, [100, pytest.approx(96, abs=1), None]), (1, [None] * 3), (None, [None] * 3)],
)
def test_where_samples_of_runs_are_unknown_the_others_are_reported(tmp_path, lacking, efficiencies):
    mine = tmp_path / "mine"
    for ranks in (1, 2, 4):
        plant(mine, ranks, "train.py")
    take_samples(mine, lacking)
    rows, said = answered("analysis.scaled", mine, "--scaling", "weak")
    assert [row["scaling_efficiency_pct"] for row in rows] == efficiencies
    assert said["not_recorded"]["of"] == 3 and all(row["step_ms"] > 0 for row in rows)
    if lacking:
        found = configurations.of_study(load(mine))
        assert {point.world_size for one in found for point in one.points} == {1, 2, 4} - {lacking}
        return
    assert {row[name] for row in rows for name in ("images_per_s", "speedup")} == {None}
    assert "nan" not in run("analysis.scaled", mine).out
    assert run("analysis.report.__main__", mine, "--output", tmp_path / "report.html").code == 0
    text = re.sub("<script.*?</script>", "", (tmp_path / "report.html").read_text(), flags=re.DOTALL)
    assert "samples per step" in text and not re.search(r"\bnan\b|>None", text)
    for command in ("predict", "factors"):
        assert "--samples N" in one_line_error(run(f"analysis.{command}", mine))


def test_named_runs_with_another_batch_per_rank_and_in_all_are_not_compared(folders, tmp_path):
    shutil.copytree(folders[2], tmp_path / "2")
    for directory in (tmp_path / "2").glob("run_*"):
        become(directory, batch=2 * IMAGES)
    (one, two), said = answered("analysis.scaled", f"1={folders[1]}", f"2={tmp_path / '2'}")
    assert (one["speedup"], one["scaling_efficiency_pct"]) == (1, 100)
    assert (two["speedup"], two["scaling_efficiency_pct"]) == (None, None)
    assert said["not_compared"] == {"what": "2 ranks, other batch size"}


WIDE = Truth({1: 100.0, 2: 190.0})


def test_runs_without_a_factor_have_an_empty_level_of_it(tmp_path):
    for ranks in (1, 2):
        for command, factors in (("mine.py", {}), ("mine.py --lr {lr}", {"lr": 0.1})):
            one = run_of(gpus_per_node=ranks, program=command, factors=factors)
            write_run(tmp_path, one, WIDE, outside=tuple(factors))
    write_sweep_record(tmp_path)
    study = load(tmp_path)
    levels = [row["factors.lr"] for row in scaled_rows(study, group_by=["factors.lr", "gpus_per_node"])]
    assert sorted(map(str, levels)) == ["0.1", "0.1", "None", "None"]
    reasons = [finding for one in configurations.of_study(study) for finding in curves(one, [8])[1]]
    assert sorted(str(reason.configuration) for reason in reasons) == ["mine.py", "mine.py --lr {lr}, lr 0.1"]


def test_what_is_compared_with_nothing_is_called_by_what_it_has(tmp_path):
    """A folder with and without a factor against one with it, and the other way round."""
    with_lr = run_of(program="mine.py --lr {lr}", factors={"lr": 0.1})
    for name, runs in (("both", (run_of(program="mine.py"), with_lr)), ("one", (with_lr,))):
        for one in runs:
            write_run(tmp_path / name, one, WIDE, outside=tuple(one.factors))
        write_sweep_record(tmp_path / name)
    other = run_of(program="mine.py --lr {lr}", factors={"lr": 0.2})
    write_run(tmp_path / "one", other, WIDE, outside=("lr",))
    answer = run("analysis.compare", tmp_path / "both", tmp_path / "one", "--format", "json", "--notes").json
    alone = {one["side"]: one["data"]["what"] for one in answer["findings"] if one["code"] == "not_compared"}
    assert alone == {"A": ["program=mine.py"], "B": ["program=mine.py --lr {lr} lr=0.2"]}
