"""Runs of a program in folders of their own, each named with its number of ranks: ``1=DIR 2=DIR``."""

import shutil

import pytest

from analysis.results.load import load_named
from benchmarks.planted_sweep import NO_NOISE, Job, write_sweep
from jobs import store
from jobs.run_id import format_id
from jobs.store import Manifest
from profiling.errors import UserError
from tests.analysis.commands import run

REPETITIONS = 2


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """Runs on one, two and four ranks, with commands that differ in where they write."""
    folder = tmp_path_factory.mktemp("named")
    for ranks in (1, 2, 4):
        job = Job(ranks=ranks, load_ms=5.0 * (ranks - 1))
        write_sweep(folder / str(ranks), [job], noise=NO_NOISE, repetitions={"none": REPETITIONS})
        for directory in (folder / str(ranks)).glob("run_*"):
            manifest = store.read_record(directory / store.MANIFEST, Manifest)
            run = manifest.run.model_copy(update={"program": f"train.py --out {ranks}"})
            renamed = directory.with_name(format_id(run, manifest.repetition, 0))
            store.write_record(directory / store.MANIFEST, manifest.model_copy(update={"run": run}))
            directory.rename(renamed)
    return {ranks: folder / str(ranks) for ranks in (1, 2, 4)}


def named(folders, *sizes):
    return [f"{ranks}={folders[ranks]}" for ranks in sizes or folders]


def test_runs_in_several_folders_are_one_programs_scaling(folders):
    done = run("analysis.scaled", *named(folders), "--scaling", "weak", "--format", "json")
    rows = done.json
    assert [row["world_size"] for row in rows] == [1, 2, 4]
    assert [row["repetitions"] for row in rows] == [REPETITIONS] * 3
    efficiencies = [row["scaling_efficiency_pct"] for row in rows]
    assert efficiencies[0] == 100 and 100 > efficiencies[1] > efficiencies[2]


def test_the_same_run_in_two_folders_has_two_names(folders):
    sources = load_named(named(folders, 2, 2)).of_kind("run")
    assert len({source.id for source in sources}) == 2 * REPETITIONS


def test_another_number_of_ranks_and_a_mixture_are_one_clear_line(folders, tmp_path):
    with pytest.raises(UserError, match=r"8=.*: its run .* has 4 ranks"):
        load_named([f"1={folders[1]}", f"8={folders[4]}"])
    with pytest.raises(UserError, match="give each with its number of ranks"):
        load_named([f"1={folders[1]}", str(folders[4])])


def test_a_command_of_more_ranks_only_is_no_baseline_of_its_own(folders, tmp_path):
    for ranks in (1, 2):
        for directory in folders[ranks].glob("run_*"):
            shutil.copytree(directory, tmp_path / directory.name)
    done = run("analysis.scaled", tmp_path, "--format", "json")
    one, two = done.json
    assert (one["speedup"], one["scaling_efficiency_pct"]) == (1, 100)
    assert (two["speedup"], two["scaling_efficiency_pct"]) == (None, None)
    assert (
        "2 ranks are not compared with 1: the commands differ (train.py --out 1 | train.py --out 2). To "
        "compare them: analysis.scaled 1=DIR 2=DIR" in done.err
    )
    table = run("analysis.scaled", tmp_path).out
    assert table.count("images/s on") == 1  # of the baselines
    assert run("analysis.report.__main__", tmp_path).code == 0
