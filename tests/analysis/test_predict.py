"""Points that follow a known cost are predicted; the range holds what others may follow."""

import re
import shutil

import numpy as np
import pytest

from analysis.diagnosis import diagnosis
from analysis.display.metrics import records
from analysis.frames.load import load
from analysis.measures.points import shared_cores
from analysis.prediction import configurations, curve
from analysis.prediction.configurations import LINKS, ONE_SIZE, TOO_FAR, TOO_WIDE, Configuration, read_table
from analysis.prediction.predict import of_study, predictions
from analysis.report.base import Context
from profiling.findings import Finding
from tests.analysis.commands import found, one_line_error, run
from tests.analysis.frames import opening_of, section_of
from tests.analysis.synthetic import (
    Truth,
    change_manifest,
    run_of,
    write_run,
    write_sweep,
    write_sweep_record,
)


def predicted(found, wanted):
    """The rows, and findings, of configurations without traces."""
    frame, findings = predictions(found, [[]] * len(found), wanted)
    return records(frame), findings


@pytest.mark.parametrize("shape", sorted(curve.SHAPES))
def test_each_shape_is_recovered_from_five_points(shape):
    ranks = np.array([1, 2, 4, 8, 16])
    times = 0.1 + 0.01 * curve.SHAPES[shape](ranks.astype(float))
    found = curve.predict(ranks.tolist(), times.tolist(), 64)
    truth = 0.1 + 0.01 * float(curve.SHAPES[shape](np.array([64.0]))[0])
    assert found.low <= truth <= found.high
    assert found.time == pytest.approx(truth, rel=0.05)


def test_what_few_points_tell():
    found = curve.predict([1, 2], [0.1, 0.11], 16)
    assert set(found.shapes) == set(curve.SHAPES)
    # All of 10 ms at once, a tree's 4 x 10 ms, and a ring's 15 x 10 ms are possible.
    assert found.low < 0.1 + 0.02 and found.high > 0.1 + 0.14
    assert curve.predict([1, 2, 4], [0.1, 0.1, 0.1], 8).time == pytest.approx(0.1, rel=1e-6)
    with pytest.raises(ValueError, match="two world sizes"):
        curve.predict([4], [0.1], 8)


def test_horovods_published_points(tmp_path):
    """ResNet50 on V100s over 25 Gbit/s, 1 to 128 GPUs (Horovod's published benchmark)."""
    table = tmp_path / "horovod.csv"
    table.write_text("n_gpus,img_per_s\n1,872\n8,6679\n16,12828\n32,23870\n64,47195\n128,89783\n")
    ran = run("analysis.predict", table, "--format", "csv")
    tested = [row for row in ran.csv if row["backtest"] == "True"]
    assert [int(row["world_size"]) for row in tested] == [16, 32, 64, 128]
    assert np.median([abs(float(row["error_pct"])) for row in tested]) < 5
    assert [int(row["world_size"]) for row in ran.csv if row["backtest"] == "False"] == [256, 512]


def test_a_sweep_of_our_own(tmp_path):
    truth = Truth(step_ms={1: 100.0, 2: 105.0, 4: 107.5}, noise_ms=0.1)
    write_sweep(tmp_path, [run_of(gpus_per_node=ranks) for ranks in (1, 2, 4)], truth)
    tested, predicted = run("analysis.predict", tmp_path, "--ranks", "8", "--format", "csv").csv
    assert float(tested["measured_images_per_s"]) == pytest.approx(4 * 32 / 0.1075, rel=0.01)
    # 10 ms x (P - 1) / P was planted.
    assert float(predicted["step_ms"]) == pytest.approx(108.75, rel=0.02)
    assert float(predicted["step_ms_low"]) <= 108.75 <= float(predicted["step_ms_high"])


def strong_sweep(directory, batch=64):
    """Half of what a batch takes on one rank is divided by the ranks; ``batch`` images of the job."""
    truth = Truth(step_ms={ranks: 50.0 + 50.0 / ranks for ranks in (1, 2, 4)}, noise_ms=0.1)
    write_sweep(directory, [run_of(gpus_per_node=ranks, batch=batch // ranks) for ranks in (1, 2, 4)], truth)


def test_strong_scaling_is_served_where_only_that_was_measured(tmp_path):
    strong_sweep(tmp_path)
    assert ONE_SIZE in one_line_error(run("analysis.predict", tmp_path, "--scaling", "weak"))
    tested, row = run("analysis.predict", tmp_path, "--ranks", "8", "--format", "csv").csv
    assert row["scaling"] == tested["scaling"] == "strong"
    # Of 64 images in all each of 8 ranks has 8, though the largest run had 16.
    assert [(one["world_size"], one["batch"], one["global_batch"]) for one in (tested, row)] == [
        ("4", "16", "64"), ("8", "8", "64"),
    ]  # fmt: skip
    assert float(row["step_ms_low"]) <= 56.25 <= float(row["step_ms_high"])
    assert float(tested["measured_images_per_s"]) == pytest.approx(64 / 0.0625, rel=0.01)
    assert float(row["images_per_s"]) == pytest.approx(64 / float(row["step_ms"]) * 1e3, rel=0.01)


def test_predictions_of_strong_scaling_are_called_by_the_global_batch(tmp_path):
    for batch in (64, 128):
        strong_sweep(tmp_path, batch)
    study = load(tmp_path)
    found = configurations.of_study(study, "strong")
    assert [one.name for one in found] == ["global batch 64", "global batch 128"]
    title = section_of(study, "prediction").charts[0].figure["layout"]["title"]["text"]
    assert re.search("global batch (64|128)$", title), title


def test_a_step_is_never_below_zero_and_a_rate_without_an_upper_limit_has_none():
    """Of points that are hardly known the range of the step reaches to zero, not beyond."""
    series = Configuration({}, (1, 2, 4), (100.0, 110.0, 300.0), 1.0, (0.6, 0.6, 0.6))
    frame, findings = predictions([series], [[]], [16])
    tested = records(frame)
    assert any(row["images_per_s_high"] is None for row in tested)
    for row in tested:
        assert 0 <= row["step_ms_low"] <= row["step_ms"] <= row["step_ms_high"]
        assert 0 < row["images_per_s_low"] <= row["images_per_s"]
        assert row["images_per_s_high"] is None or row["images_per_s_high"] >= row["images_per_s"]
    assert [one.data for one in findings] == [{"ranks": [16], "lacks": TOO_WIDE}]


HOROVOD = "n_gpus,img_per_s\n1,872\n8,6679\n"


@pytest.mark.parametrize(
    ("text", "ranks", "says"),
    [
        ("a,b\n1,2\n", "16", "needs a column of ranks"),
        ("n_gpus,img_per_s\n1,872\n-8,6679\n", "16", "line 3"),
        ("n_gpus,img_per_s\n1,872\n", "16", ONE_SIZE),
        ("", "16", "not a CSV table"), (HOROVOD, "0", "invalid list"), (HOROVOD, "16 32", "invalid list"),
        (HOROVOD, "4096", "give at most 128"), (HOROVOD, "8", "give more than 8"),
    ],
)  # fmt: skip
def test_a_bad_table_and_bad_ranks_are_one_line(tmp_path, text, ranks, says):
    table = tmp_path / "t.csv"
    table.write_text(text)
    assert says in one_line_error(run("analysis.predict", table, "--ranks", ranks))


def test_equal_ranks_on_other_numbers_of_nodes_are_points_of_their_own(tmp_path):
    runs = [run_of(nodes=nodes, gpus_per_node=gpus) for nodes, gpus in ((1, 1), (1, 2), (2, 2), (1, 4))]
    write_sweep(tmp_path, runs, repetitions={"none": 3})
    (chart,) = section_of(load(tmp_path), "prediction").charts
    lines = {trace["name"]: trace["x"] for trace in chart.figure["data"]}
    assert lines["measured"] == [1, 2, 4] and lines["measured on 2 nodes"] == [4]


EVEN = Truth({1: 100.0, 2: 105.0, 4: 107.5, 8: 108.75}, noise_ms=0.1)
ERRATIC = Truth({1: 100.0, 2: 150.0}, noise_ms=20.0, run_noise_ms=40.0)


def sweep_of_loaders(directory, sizes):
    """A sweep of loaders: numbers of ranks of each, and its truth."""
    for loader, (ranks, truth) in sizes.items():
        write_sweep(directory, [run_of(gpus_per_node=count, loader=loader) for count in ranks], truth)
    return directory


def lacking(findings):
    return {
        (one.configuration, *one.data["ranks"], one.data["lacks"])
        for one in findings
        if one.code == "not_predicted"
    }


def test_configurations_that_cannot_be_predicted_are_named_in_one_line_and_the_others_have_rows(tmp_path):
    sizes = {"pytorch": ((1, 2, 4), EVEN), "synthetic": ((1, 2), ERRATIC), "dali-cpu": ((1, 2), ERRATIC)}
    sweep_of_loaders(tmp_path, sizes | {"dali-gpu": ((1,), EVEN)})
    study = load(tmp_path)
    made = [row for row in records(of_study(study, "8")) if not row["backtest"]]
    assert {(row["loader"], row["world_size"]) for row in made} == {("pytorch", 8)}
    assert lacking(study.findings) == {
        ("dali-gpu", 8, ONE_SIZE), ("dali-cpu", 8, TOO_WIDE), ("synthetic", 8, TOO_WIDE),
    }  # fmt: skip
    assert section_of(load(tmp_path), "prediction").charts


def test_a_baseline_of_other_gradients_is_no_configuration_that_lacks_a_prediction(tmp_path):
    """One rank sends no gradients: it is the first point of fp16, and fp32 was not asked about."""
    grads = {1: "fp32", 2: "fp16", 4: "fp16"}
    write_sweep(tmp_path, [run_of(gpus_per_node=ranks, grad=grad) for ranks, grad in grads.items()], EVEN)
    study = load(tmp_path)
    assert len(of_study(study, "8")) and not lacking(study.findings)


def test_a_configuration_of_fewer_ranks_is_predicted_although_another_has_more(tmp_path):
    """16 ranks would need nodes that nobody measured; 4 of the loader that was measured on 2 would not."""
    sweep_of_loaders(tmp_path, {"pytorch": ((1, 2, 4, 8), EVEN), "synthetic": ((1, 2), EVEN)})
    study = load(tmp_path)
    assert ("synthetic", 4) in {(row["loader"], row["world_size"]) for row in records(of_study(study))}
    assert ("pytorch", 16, LINKS) in lacking(study.findings)


def test_how_far_a_prediction_reaches_is_a_matter_of_the_ranks_of_its_own_configuration(tmp_path):
    table = tmp_path / "t.csv"
    large = "".join(f"a,{count},{count * 99 + 1}\n" for count in (1, 2, 4, 8, 16, 32, 64))
    small = "b,1,100\nb,2,150\nb,4,180\nb,8,200\n"  # so well known that its range stays narrow
    table.write_text(f"loader,gpus,images_per_s\n{large}{small}")
    made, findings = predicted(read_table(table), [128, 1024])
    ahead = {(row["loader"], row["world_size"]) for row in made if not row["backtest"]}
    assert ahead == {("a", 128), ("b", 128), ("a", 1024)}
    assert lacking(findings) == {("b", 1024, TOO_FAR)}


def plant(directory, device="cpu", cores=4, hosts=1, **fields):
    for ranks in (1, 2):
        shape = {"nodes": min(hosts, ranks), "gpus_per_node": ranks // min(hosts, ranks)}
        for profile in ("none", "torch"):
            one = run_of(profile=profile, **shape, **fields)
            made, host = write_run(directory, one, Truth(device=device)), {"cores": cores} if cores else {}
            change_manifest(made, lambda rank: {"hostname": f"h{rank.rank % hosts}"}, host=host)
    write_sweep_record(directory)
    return load(directory)


@pytest.mark.parametrize(
    ("given", "share"),
    [
        ({}, True),  # each has its share of the cores
        ({"cores": None}, True),
        ({"threads": 2}, True),  # four ranks of two threads would have four cores
        ({"threads": 1}, False),  # four ranks of one thread have one each
        ({"hosts": 2}, False),  # more ranks bring more hosts
        ({"device": "NVIDIA A100-SXM4-40GB"}, False),
    ],
)
def test_ranks_that_would_share_cores_are_told(tmp_path, given, share):
    assert shared_cores(plant(tmp_path, **given)) == share


def test_the_report_gives_no_forecast_for_ranks_that_would_share_cores(tmp_path):
    study = plant(tmp_path)
    assert "simulated" not in opening_of(study)
    findings = diagnosis(Context(study))
    codes = [one.code for one in findings]
    assert codes.index("cores_shared") < codes.index("loss")
    assert [one.data["advice"] for one in findings if one.code == "advice"] == [["same_cores"]]
    section = section_of(study, "prediction")
    assert section.unavailable == str(Finding("cores_shared")) and not section.charts
    assert "cores_shared" in found("analysis.predict", tmp_path)


def test_where_nothing_can_be_predicted_shared_cores_are_the_reason(tmp_path):
    """And not that more numbers of ranks should be measured: these would share the cores as well."""
    plant(tmp_path)
    for path in tmp_path.glob("run_*_1_2_*"):
        shutil.rmtree(path)
    assert str(Finding("cores_shared")) in one_line_error(run("analysis.predict", tmp_path))


@pytest.mark.parametrize(("threads_of", "differ"), [({1: 2, 2: 1}, True), ({1: 2, 2: 2}, False)])
def test_different_threads_per_rank_are_said_by_table_and_report(tmp_path, threads_of, differ):
    plant(tmp_path)
    for path in tmp_path.glob("run_*"):
        change_manifest(path, lambda rank: {"threads": threads_of[rank.world_size]})
    of_table = found("analysis.scaled", tmp_path)
    assert of_table.get("threads_differ") == ({"threads": [1], "base": [2]} if differ else None)
    assert ("threads per rank" in opening_of(load(tmp_path))) == differ
