"""Traces of two jobs beside each other: what grew between them is what was planted."""

import shutil

import pytest

from analysis.display.metrics import records
from analysis.frames.load import load
from analysis.measures.compare import compared, of_traces
from profiling.attribution.batch_times import WHOLE
from profiling.traced_job import JOB, read_job
from tests.analysis.commands import one_line_error
from tests.analysis.traced import MS, job, run
from tests.profiling.traced_jobs import Planted


@pytest.fixture(scope="module")
def pair(tmp_path_factory):
    """The same job before and after: its collective takes 60 us more, its batches scatter by some."""
    folder = tmp_path_factory.mktemp("pair")
    before, after = Planted(ranks=2, batches=40), Planted(ranks=2, batches=40, transfer=160.0)
    return before, after, job(folder, before, "before"), job(folder, after, "after")


def test_the_difference_of_two_jobs_is_what_was_planted(pair):
    before, after, a, b = pair
    rows = {(row["kind"], row["quantity"]): row for row in records(of_traces(load(a), load(b)))}
    batch = rows["step", "step"]
    assert batch["difference_ms"] == pytest.approx((after.batch - before.batch) / MS, rel=1e-2)
    assert batch["verdict"] == "slower"
    assert rows["parts", "exposed transfer"]["difference_ms"] == pytest.approx(0.06, rel=2e-2)
    assert rows["parts", "compute"]["difference_ms"] == pytest.approx(0, abs=1e-3)
    assert rows["collectives", "allreduce of 2"]["difference_ms"] == pytest.approx(0.06, rel=2e-2)
    assert rows["kernels", "communication"]["difference_ms"] == pytest.approx(0.06, rel=2e-2)


def test_compare_ends_with_1_where_a_batch_of_traces_became_slower(pair):
    _, _, a, b = pair
    slower = run("compare", a, b)
    assert slower.code == 1 and slower.out.startswith("worse: step +6.1 %")
    assert "different jobs" not in slower.out
    assert run("compare", b, a).code == 0
    assert run("compare", a, b, "--threshold", "50").code == 0
    same = run("compare", a, a)
    assert same.code == 0 and same.out.startswith("same runs") and "allreduce" not in same.out


def test_two_jobs_that_have_no_figure_in_common_are_not_the_same_traces(pair, tmp_path):
    _, _, a, b = pair
    for path in (a, b):
        shutil.copytree(path, tmp_path / path.name, ignore=shutil.ignore_patterns("kernels.parquet"))
    record = tmp_path / "after" / JOB
    changed = read_job(record.parent).model_copy(update={"batches_from": WHOLE})
    record.write_text(changed.model_dump_json())
    said = one_line_error(run("compare", tmp_path / "before", tmp_path / "after"))
    assert said.startswith("scaleprof: error: ")


@pytest.mark.parametrize("steps", [6, 1])
def test_a_side_of_few_steps_is_not_tested(pair, tmp_path, steps):
    few = job(tmp_path, Planted(ranks=2, batches=steps), "few")
    for a, b in ((few, pair[2]), (pair[2], few)):
        rows = compared(load(a), load(b)).rows
        assert list(rows["verdict"][rows["kind"] == "step"]) == ["too few steps"]


def test_jobs_that_are_none_of_each_other_are_one_line(pair, tmp_path):
    _, _, a, _ = pair
    for name in ("one", "two"):
        shutil.copytree(a, tmp_path / name)
        changed = read_job(a).model_copy(update={"world_size": 4})
        (tmp_path / name / JOB).write_text(changed.model_dump_json())
    said = one_line_error(run("compare", a, tmp_path))
    assert "one job each" in said
