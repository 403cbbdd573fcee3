"""Traces of several jobs: how they scale, and when they do not."""

import json

import pytest

from analysis.display.metrics import records
from analysis.frames.divide import PARTS
from analysis.frames.load import load, load_named
from analysis.measures import traced
from analysis.report.build import build
from analysis.report.render import render
from profiling.errors import UserError
from tests.analysis.synthetic import run_of, write_sweep
from tests.analysis.traced import MS, converted, job, run
from tests.profiling.traced_jobs import Planted, write_job


@pytest.fixture(scope="module")
def scaled(tmp_path_factory):
    """One, two and four ranks of one job, as results of their own."""
    folder = tmp_path_factory.mktemp("scaled")
    planted = {ranks: Planted(ranks=ranks, batches=8, transfer=50.0 * ranks) for ranks in (1, 2, 4)}
    return planted, {ranks: job(folder, of, f"job{ranks}") for ranks, of in planted.items()}


def noted(study) -> dict[str, dict]:
    return {finding.code: dict(finding.data) for finding in study.findings}


def test_scaling_of_traces_named_by_their_ranks(scaled):
    planted, paths = scaled
    study = load_named([f"{ranks}={path}" for ranks, path in paths.items()])
    found = records(traced.jobs(study))
    assert [row["world_size"] for row in found] == [1, 2, 4]
    for row in found:
        ideal = 100 * planted[1].batch / planted[row["world_size"]].batch
        assert row["scaling_efficiency_pct"] == pytest.approx(ideal, rel=2e-3)
        assert row["speedup"] == pytest.approx(row["world_size"] * ideal / 100, rel=2e-3)
    assert found[2]["grew_exposed_transfer_ms"] == pytest.approx(0.2, rel=2e-2)
    assert noted(study)["batch_assumed"]["scaling"] == "weak"
    assert noted(study)["batch_assumed"]["ratio"] == pytest.approx(1, abs=0.01)


def test_scaling_of_traces_that_say_their_ranks_themselves(scaled):
    _, paths = scaled
    out = paths[4].parent
    answer = json.loads(run("scaled", out, "--format", "json", "--notes").out)
    # The traces of one GPU do not tell the world size, so they are left out.
    assert [row["world_size"] for row in answer["rows"]] == [2, 4]
    lacks = [finding["data"]["what"] for finding in answer["findings"] if finding["code"] == "not_recorded"]
    assert "number of ranks" in lacks and "1 of ? ranks" in run("summary", paths[1]).out
    found = traced.jobs(load(out))
    assert list(found[found["compared"]]["world_size"]) == [2, 4]


def test_strong_scaling_is_told_by_what_the_kernels_take(tmp_path):
    one = Planted(ranks=2, batches=6, forward=600.0, backward=1000.0)
    paths = [job(tmp_path, one, "two"), job(tmp_path, Planted(ranks=4, batches=6), "four")]
    study = load_named([f"2={paths[0]}", f"4={paths[1]}"])
    found = records(traced.jobs(study))
    assert noted(study)["batch_assumed"]["scaling"] == "strong"
    batch = Planted(ranks=4).batch
    assert found[1]["scaling_efficiency_pct"] == pytest.approx(100 * one.batch / batch / 2, rel=2e-3)
    weak = records(traced.jobs(study, "weak"))
    assert noted(study)["batch_assumed"]["scaling"] == "weak"
    assert weak[1]["scaling_efficiency_pct"] == pytest.approx(100 * one.batch / batch, rel=2e-3)


def test_folders_that_cannot_be_compared_are_one_clear_line(scaled, tmp_path):
    _, paths = scaled
    write_sweep(tmp_path / "one", [run_of()], repetitions={"none": 1})
    for named, says in (
        ([f"1={paths[1]}", paths[2]], "with its number of ranks"),
        ([f"1={paths[1].parent}", f"2={paths[2]}"], "holds 3 jobs"),
        ([f"1={tmp_path / 'one'}", f"2={paths[2]}"], "holds traces, the folders before it runs"),
        ([f"1={paths[1]}", f"8={paths[4]}"], "has 4 ranks"),
    ):
        with pytest.raises(UserError, match=says):
            load_named([str(one) for one in named])


@pytest.fixture(scope="module")
def unlike(tmp_path_factory):
    """Two jobs of other kernels, on two and on four ranks, in one folder; and each job's own folder."""
    folder = tmp_path_factory.mktemp("unlike")
    two = job(folder, Planted(ranks=2, batches=6), "two")
    write_job(folder / "four", Planted(ranks=4, batches=6, transfer=300.0))
    for path in (folder / "four").glob("*.json"):
        path.write_text(
            path.read_text().replace("ampere_bf16", "other_model").replace("multi_tensor", "single")
        )
    converted(folder / "four", folder / "out")
    return two, folder / "out" / "four"


def test_jobs_of_other_kernels_are_compared_only_when_asked(unlike):
    two, four = unlike
    study = load(two.parent)
    found = traced.jobs(study)
    assert list(found["world_size"]) == [2, 4] and not found["compared"].any()
    assert found["scaling_efficiency_pct"].isna().all()
    assert noted(study)["jobs_differ"] == {"jobs": ["two", "four"], "differ": "devices or kernels"}
    page = render(build(load(two.parent)))
    assert "Scaling efficiency on" not in page and "in the kernels on more ranks" not in page
    asked = traced.jobs(load_named([f"2={two}", f"4={four}"]))
    assert asked["compared"].all() and asked["scaling_efficiency_pct"][1] < 100


def test_jobs_named_as_one_program_that_are_not_have_no_efficiency(unlike, tmp_path):
    """Other kernels, and twice the time in them, on more ranks: of neither kind of scaling."""
    two, _ = unlike
    write_job(tmp_path / "eight", Planted(ranks=8, batches=6, forward=1200.0))
    for path in (tmp_path / "eight").glob("*.json"):
        path.write_text(path.read_text().replace("ampere_bf16", "other_model"))
    converted(tmp_path / "eight", tmp_path / "out")
    named = [f"2={two}", f"8={tmp_path / 'out' / 'eight'}"]
    study = load_named(named)
    found = traced.jobs(study)
    assert found[["scaling_efficiency_pct", "speedup"]].isna().all(axis=None)
    assert found["step_ms"][1] > 0 and not found["compared"].any() and len(traced.tables(found)) == 1
    assert noted(study)["jobs_differ"] == {"jobs": ["two", "eight"], "differ": "devices or kernels"}
    assert run("scaled", *named).code == 0
    study = load_named(named)
    asked = traced.jobs(study, "weak")
    assert asked["compared"].all() and asked["scaling_efficiency_pct"][1] < 100
    assert noted(study)["batch_assumed"]["ratio"] == pytest.approx(2.06, abs=0.01)


def test_the_parts_of_a_step_beside_its_median_are_all_shown_and_sum_to_its_mean(scaled):
    planted, paths = scaled
    found = traced.jobs(load(paths[4]))
    (row,) = records(found)
    assert row["wall_ms"] == pytest.approx(planted[4].batch / MS, rel=1e-3)
    assert row["wall_ms"] == pytest.approx(sum(row[f"{part}_ms"] for part in PARTS))
    shown = {column.header.replace("\n", " ") for column in traced.tables(found)[0].columns}
    assert {"wall", "compute", "exposed comm.", "exposed loader", "other copies", "idle"} <= shown
    (one,) = records(traced.jobs(load_named([f"1={paths[1]}"])))
    of_others = ("speedup", "scaling_efficiency_pct")
    compared = [value for name, value in one.items() if name in of_others or "grew" in name]
    assert len(compared) > 2 and set(compared) == {None}


def test_a_comparison_of_different_jobs_says_so_and_tests_nothing_of_a_few_steps(unlike):
    two, four = unlike
    answer = json.loads(run("compare", two, four, "--format", "json", "--notes").out)
    said = {one["code"]: one.get("data") for one in answer["findings"]}
    assert said["compared"]["verdict"] == "too few steps"
    assert said["jobs_differ"] == {"jobs": ["two", "four"], "differ": ["ranks", "kernels"]}
