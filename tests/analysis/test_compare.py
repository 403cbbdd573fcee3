"""Equal results are called equal, planted differences are found, and too few runs are said to be too few."""

import json
import shutil
from typing import Any

import numpy as np
import pandas as pd
import pytest

from analysis.display.metrics import records
from analysis.frames.load import load
from analysis.measures import compare
from analysis.measures.compare import differences, pairs_of, verdicts
from profiling.attribution.batch_times import WHOLE
from profiling.traced_job import JOB, read_job
from tests.analysis.commands import found, one_line_error, run
from tests.analysis.synthetic import Truth, run_of, write_sweep
from tests.analysis.traced import MS, job
from tests.profiling.traced_jobs import Planted


def write(path, step_ms: float, repetitions: int = 10, runs=None, **truth) -> None:
    planted = Truth(step_ms=dict.fromkeys((1, 2, 4), step_ms), run_noise_ms=0.5, **truth)
    write_sweep(path, runs or [run_of()], planted, repetitions={"none": repetitions, "torch": repetitions})


def shifted(path, step_ms: float) -> None:
    """Results with other noise: the noise follows from the run's id, so another name of repetition."""
    write(path, step_ms, noise_ms=1.5)


@pytest.fixture
def before(tmp_path):
    write(tmp_path / "before", 100.0)
    return tmp_path / "before"


def compared(*words) -> tuple[int, dict[str, dict[str, Any]], dict[str, dict[str, Any]]]:
    """The exit code, the rows by quantity, and the findings: code -> data."""
    ran = run("analysis.compare", *words, "--format", "json", "--notes")
    rows, findings = ran.json.values()
    return (
        ran.code, {row["quantity"]: row for row in rows}, {one["code"]: one.get("data") for one in findings},
    )  # fmt: skip


def test_a_result_against_itself_is_the_same(before):
    code, rows, said = compared(before, before)
    assert code == 0 and {row["verdict"] for row in rows.values()} == {"no difference"}
    assert rows["step_ms"]["effect_pct"] == 0
    assert not {"sides_apart_in_time", "not_compared", "devices_differ"} & said.keys()
    same = run("analysis.compare", before, before).out
    assert same.startswith("same runs") and "compared with" not in same
    assert "step_ms" not in same  # a table of zeros would look like an answer


@pytest.mark.parametrize(
    ("step_ms", "words", "code", "of_row", "of_all"),
    [
        (103.0, (), 1, "slower", "worse"),
        (103.0, ("--threshold", "5"), 0, "slower", "slower within --threshold"),
        (103.0, ("--threshold", "1"), 1, "slower", "worse"),
        # The effect that was measured is above 2.8, the end of its interval is not.
        (103.0, ("--threshold", "2.8"), 0, "slower", "slower within --threshold"),
        (90.0, (), 0, "faster", "better"),
        (100.0, (), 0, "no difference", "no difference shown"),
    ],
)
def test_a_planted_change_is_found_and_makes_the_exit_code(
    before, tmp_path, step_ms, words, code, of_row, of_all
):
    shifted(tmp_path / "after", step_ms)
    ended, rows, findings = compared(before, tmp_path / "after", *words)
    row, said = rows["step_ms"], findings["compared"]
    assert (ended, row["verdict"]) == (code, of_row)
    assert row["effect_pct"] == pytest.approx(step_ms - 100, abs=0.8)
    assert row["effect_pct_low"] < step_ms - 100 < row["effect_pct_high"]
    assert (said["verdict"], said["slower"], said["of"]) == (of_all, int(of_row == "slower"), 1)
    assert said["effect_pct"] == pytest.approx(row["effect_pct"])
    assert "combined" not in {row["kind"] for row in rows.values()}  # of one configuration


@pytest.mark.parametrize("runs", [1, 3])
def test_of_too_few_runs_there_is_no_verdict_and_no_interval(tmp_path, runs):
    write(tmp_path / "a", 100.0, repetitions=runs)
    write(tmp_path / "b", 150.0, repetitions=runs)
    code, rows, said = compared(tmp_path / "a", tmp_path / "b")
    assert code == 0 and {row["verdict"] for row in rows.values()} == {"too few runs"}
    row = rows["step_ms"]
    assert row["effect_pct"] == pytest.approx(50, abs=5)
    assert row["effect_pct_low"] is None
    assert said["few_runs"] == {"n": 1, "of": 1, "least": 4}
    assert said["compared"]["verdict"] == "too few runs"


def test_kernels_are_compared_and_damaged_ones_do_not_cost_the_comparison_of_batches(tmp_path):
    for name, kernel_ms in (("a", 60.0), ("b", 66.0)):
        both = [run_of(), run_of(profile="torch")]
        write(tmp_path / name, 100.0, repetitions=5, runs=both, kernel_ms=kernel_ms)
    _, rows, _ = compared(tmp_path / "a", tmp_path / "b")
    assert rows["conv_fprop (fprop)"]["effect_pct"] == pytest.approx(10, abs=0.1)
    _, *others = (tmp_path / "a").glob("run_*_torch_*/rank_*/kernels.parquet")
    for table in others:
        table.write_bytes(table.read_bytes()[:500])
    code, rows, said = compared(tmp_path / "a", tmp_path / "a")
    assert code == 1 and {"step", "kernels"} == {row["kind"] for row in rows.values()} - {"stages"}
    assert said["not_compared"] == {"what": "kernels"}


@pytest.mark.parametrize(
    ("a", "b", "verdict"),  # ms and calls per step of each side
    [((10, 100), (20, 200), "more calls"), ((20, 200), (10, 100), "fewer calls"),
     ((10, 100), (20, 100), "slower"), ((20, 100), (10, 100), "faster"), ((10, 100), (20, 110), "slower"),
     ((10, 100), (10, 200), "no difference")],
)  # fmt: skip
def test_a_kernel_that_is_called_more_often_is_not_slower(a, b, verdict):
    runs = pd.DataFrame([
        {"side": side, "kind": "kernels", "quantity": "conv", "value": ms + 0.01 * number, "calls": calls}
        for side, (ms, calls) in (("A", a), ("B", b))
        for number in range(6)
    ])  # fmt: skip
    assert list(differences(pairs_of(runs))["verdict"]) == [verdict]


def test_the_fewest_fields_that_match_are_suggested(tmp_path):
    """A has 1 and 2 nodes, B 2 and 4 of more steps: 2 nodes match across batches alone."""
    for name, nodes, batches in (("a", (1, 2), 60), ("b", (2, 4), 90)):
        write(tmp_path / name, 100.0, runs=[run_of(nodes=of, batches=batches) for of in nodes])
    paths = tmp_path / "a", tmp_path / "b"
    assert one_line_error(run("analysis.compare", *paths)).rstrip().endswith("--across batches")
    assert "step_ms" in run("analysis.compare", *paths, "--across", "batches").out


def test_configurations_that_are_all_a_little_slower_are_one_finding(tmp_path):
    """Six configurations, each 3 % slower, 4 runs a side: none can be found by itself."""
    runs = [run_of(workers=workers) for workers in range(1, 7)]
    write(tmp_path / "a", 100.0, repetitions=4, runs=runs)
    write(tmp_path / "b", 103.0, repetitions=4, runs=runs, noise_ms=1.5)
    code, rows, said = compared(tmp_path / "a", tmp_path / "b")
    verdicts = {row["kind"]: row["verdict"] for row in rows.values()}
    assert code == 1 and verdicts["step"] == "too few runs" and verdicts["combined"] == "slower"
    (row,) = [row for row in rows.values() if row["kind"] == "combined"]
    assert row["effect_pct_low"] < 3 < row["effect_pct_high"]
    assert (row["runs_a"], row["runs_b"]) == (24, 24)
    assert said["compared"]["verdict"] == "worse" and said["few_runs"]["least"] == 5
    assert run("analysis.compare", tmp_path / "a", tmp_path / "b", "--threshold", "5").code == 0


def test_opposite_effects_are_not_no_difference():
    runs = pd.DataFrame([
        {"side": side, "kind": "step", "quantity": "step_ms", "workers": str(one), "value": ms + n / 99}
        for one, sides in enumerate(((100, 105), (100, 95)))
        for side, ms in zip("AB", sides, strict=True)
        for n in range(6)
    ]).assign(calls=np.nan)  # fmt: skip
    rows = differences(pairs_of(runs))
    assert list(rows["verdict"]) == ["slower", "faster", "slower and faster"]
    (found,) = verdicts(rows, same=False, threshold_pct=10.0)
    assert found.data["each"] == pytest.approx([-5, 5], abs=0.1)


def test_what_differs_beside_the_steps_is_named(before, tmp_path):
    write(tmp_path / "b", 140.0, runs=[run_of(), run_of(workers=7)], device="Tesla V100-SXM2-16GB")
    for file in (tmp_path / "b").glob("run_*/manifest.json"):
        file.write_text(file.read_text().replace("2026-01-01T00:0", "2026-01-02T00:0"))
    said = found("analysis.compare", before, tmp_path / "b")
    assert said["not_compared"] == {"what": ["workers=7"]} and "sides_apart_in_time" in said
    assert said["devices_differ"]["devices"] == ["NVIDIA A100-SXM4-40GB", "Tesla V100-SXM2-16GB"]


def test_profiled_runs_have_no_steps_to_compare(tmp_path):
    write(tmp_path / "a", 100.0, runs=[run_of(), run_of(profile="torch")])
    write(tmp_path / "b", 100.0, runs=[run_of(profile="torch")])
    write(tmp_path / "c", 100.0)  # the same configuration, never profiled: no field differs
    for a in ("a", "c"):
        assert "nothing to compare" in one_line_error(run("analysis.compare", tmp_path / a, tmp_path / "b"))
    ran = run("analysis.compare", tmp_path / "b", tmp_path / "b")
    assert "not compared: steps" in ran.out and "nan" not in ran.out


@pytest.fixture(scope="module")
def nights(tmp_path_factory):
    """Ten nightly sweeps; from the seventh on steps are 5 % longer, and in the last 20 %."""
    folder = tmp_path_factory.mktemp("nights")
    for night, offset in enumerate(np.random.default_rng(3).normal(0, 0.25, 10)):
        step_ms = (100 if night < 6 else 105 if night < 9 else 120) + offset
        truth = Truth(step_ms={1: step_ms, 2: 1.25 * step_ms}, noise_ms=1 + night / 50)
        runs = [run_of(gpus_per_node=ranks) for ranks in (1, 2)]
        write_sweep(folder / f"night-{night}", runs, truth, repetitions={"none": 2})
        for file in (folder / f"night-{night}").glob("run_*/manifest.json"):
            record = json.loads(file.read_text()) | {"git_revision": f"{night}" * 40}
            record["started"] = record["started"].replace("2026-01-01", f"2026-01-{night + 1:02}")
            file.write_text(json.dumps(record))
    return [folder / f"night-{night}" for night in range(10)]


def test_of_results_in_order_the_change_is_dated_and_the_last_makes_the_exit_code(nights):
    ran = run("analysis.compare", *nights[:9], "--format", "csv")
    assert ran.code == 0 and len(ran.csv) == 18  # on 1 and on 2 ranks
    changes = [row for row in ran.csv if row["change_pct"]]
    assert [(row["gpus_per_node"], row["result"], row["date"], row["revision"]) for row in changes] == [
        (ranks, "night-6", "2026-01-07 00:00", "6" * 10) for ranks in "12"
    ]
    assert all(float(row["change_pct"]) == pytest.approx(5, abs=0.8) for row in changes)
    assert [row["result"] for row in ran.csv if row["verdict"]] == ["night-8"] * 2
    of_two = [row for row in ran.csv if row["gpus_per_node"] == "2"]
    assert all(float(row["scaling_efficiency_pct"]) == pytest.approx(80, abs=0.5) for row in of_two)
    assert all(
        float(row["images_per_s"]) == pytest.approx(64e3 / float(row["step_ms"]), rel=0.01) for row in of_two
    )


@pytest.mark.parametrize(("words", "code"), [((), 1), (("--threshold", "15"), 0), (("--threshold", "2"), 1)])
def test_a_last_result_that_is_slower_than_those_before_is_an_error(nights, words, code):
    ran = run("analysis.compare", *nights, *words, "--format", "json", "--notes")
    rows, findings = ran.json.values()
    assert ran.code == code
    assert [row["verdict"] for row in rows if row["verdict"]] == ["slower"] * 2
    (said,) = [one["data"] for one in findings if one["code"] == "compared"]
    assert (said["slower"], said["of"]) == (2, 2) and said["effect_pct"] == pytest.approx(18, abs=2)


def test_a_configuration_counts_if_it_is_in_the_last_result_and_two_others(nights, tmp_path):
    write(tmp_path / "other", 100.0, runs=[run_of(workers=7)])
    order = (nights[0], tmp_path / "other", nights[1])
    assert "no configuration" in one_line_error(run("analysis.compare", *order))
    ran = run("analysis.compare", nights[0], tmp_path / "other", *nights[1:3], "--format", "csv")
    assert {row["result"] for row in ran.csv} == {"night-0", "night-1", "night-2"}


@pytest.fixture(scope="module")
def pair(tmp_path_factory):
    """The same job before and after: its collective takes 60 us more, its batches scatter by some."""
    folder = tmp_path_factory.mktemp("pair")
    before, after = Planted(ranks=2, batches=40), Planted(ranks=2, batches=40, transfer=160.0)
    return before, after, job(folder, before, "before"), job(folder, after, "after")


def test_the_difference_of_two_jobs_is_what_was_planted(pair):
    before, after, a, b = pair
    rows = {(row["kind"], row["quantity"]): row for row in records(compare.of_traces(load(a), load(b)))}
    batch = rows["step", "step"]
    assert batch["difference_ms"] == pytest.approx((after.batch - before.batch) / MS, rel=1e-2)
    assert batch["verdict"] == "slower"
    assert rows["parts", "exposed transfer"]["difference_ms"] == pytest.approx(0.06, rel=2e-2)
    assert rows["parts", "compute"]["difference_ms"] == pytest.approx(0, abs=1e-3)
    assert rows["collectives", "allreduce of 2"]["difference_ms"] == pytest.approx(0.06, rel=2e-2)
    assert rows["kernels", "communication"]["difference_ms"] == pytest.approx(0.06, rel=2e-2)


def test_compare_ends_with_1_where_a_batch_of_traces_became_slower(pair):
    _, _, a, b = pair
    slower = run("analysis.compare", a, b)
    assert slower.code == 1 and slower.out.startswith("worse: step +6.1 %")
    assert "different jobs" not in slower.out
    assert run("analysis.compare", b, a).code == 0
    assert run("analysis.compare", a, b, "--threshold", "50").code == 0
    same = run("analysis.compare", a, a)
    assert same.code == 0 and same.out.startswith("same runs") and "allreduce" not in same.out


def test_two_jobs_that_have_no_figure_in_common_are_not_the_same_traces(pair, tmp_path):
    _, _, a, b = pair
    for path in (a, b):
        shutil.copytree(path, tmp_path / path.name, ignore=shutil.ignore_patterns("kernels.parquet"))
    record = tmp_path / "after" / JOB
    record.write_text(read_job(record.parent).model_copy(update={"batches_from": WHOLE}).model_dump_json())
    said = one_line_error(run("analysis.compare", tmp_path / "before", tmp_path / "after"))
    assert said.startswith("scaleprof: error: ")


@pytest.mark.parametrize("steps", [6, 1])
def test_a_side_of_few_steps_is_not_tested(pair, tmp_path, steps):
    few = job(tmp_path, Planted(ranks=2, batches=steps), "few")
    for a, b in ((few, pair[2]), (pair[2], few)):
        rows = compare.compared(load(a), load(b)).rows
        assert list(rows["verdict"][rows["kind"] == "step"]) == ["too few steps"]


def test_jobs_that_are_none_of_each_other_are_one_line(pair, tmp_path):
    _, _, a, _ = pair
    for name in ("one", "two"):
        shutil.copytree(a, tmp_path / name)
        (tmp_path / name / JOB).write_text(read_job(a).model_copy(update={"world_size": 4}).model_dump_json())
    assert "one job each" in one_line_error(run("analysis.compare", a, tmp_path))
