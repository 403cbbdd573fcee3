"""Traces are results: what was planted in them is what every command of analysis says of them."""

import math
import re
import time

import pytest

from analysis.diagnosis import diagnosis
from analysis.display.metrics import records
from analysis.display.perfetto import FILE
from analysis.frames.load import load
from analysis.measures import anatomy, communication
from analysis.measures.lateness import LATE_SHARE, STRAGGLER, TOO_FEW
from analysis.report.base import Context
from analysis.report.build import build
from analysis.report.render import render
from profiling.errors import UserError
from profiling.traced_job import JOB
from tests.analysis.commands import one_line_error
from tests.analysis.frames import kernels_frame, section_of, stragglers_rows
from tests.analysis.traced import MS, converted, job, run, study_of
from tests.profiling.traced_jobs import DEVICE, START_US, Planted, trace_of, write_job


@pytest.fixture(scope="module")
def late(tmp_path_factory):
    """Four ranks, of which rank 2 is late by 70 us in each of 12 batches."""
    planted = Planted(ranks=4, batches=12, late=((2, 70.0),))
    return planted, job(tmp_path_factory.mktemp("late"), planted)


def test_the_anatomy_of_traces_is_what_was_planted(late):
    planted, path = late
    rows = {row["rank"]: row for row in records(anatomy.anatomy(load(path), ["rank"]).rows)}
    assert rows[0]["wall_ms"] == pytest.approx(planted.batch / MS, abs=2e-3)
    model = planted.forward + planted.backward + planted.update
    for rank, wait in ((0, 70), (2, 0)):
        row = rows[rank]
        assert row["compute_ms"] == pytest.approx((model + 70 - wait) / MS, abs=3e-3)
        assert row["exposed_transfer_ms"] == pytest.approx(planted.transfer / MS, abs=2e-3)
        assert row["exposed_wait_ms"] == pytest.approx(wait / MS, abs=2e-3)
        assert row["attributed_steps"] == 12


def test_collectives_late_ranks_kernels_and_fields_of_traces_are_what_was_planted(late):
    planted, path = late
    study = load(path)
    (row,) = records(communication.communication(study).rows)
    assert (row["collective"], row["group_size"], row["calls_per_step"]) == ("allreduce", 4, 1)
    assert row["transfer_ms"] == pytest.approx(planted.transfer / MS, rel=1e-3)
    assert row["wait_ms"] == pytest.approx(0.75 * 70 / MS, rel=1e-2)
    moved = 4 * planted.elements / (planted.transfer / 1e6) / 1e9
    assert row["busbw_gb_per_s"] == pytest.approx(2 * 3 / 4 * moved, rel=1e-3)
    assert [row["rank"] for row in stragglers_rows(study) if row["verdict"] == STRAGGLER] == [2]
    of = dict(kernels_frame(study, by=["class"])[["class", "ms_per_step"]].itertuples(index=False))
    assert set(of) == {"gemm", "communication", "optimizer"}
    assert of["optimizer"] == pytest.approx(planted.update / MS, rel=1e-3)
    (source,) = study.sources
    assert source.kind == "trace" and set(source.fields) == {"profile", "job"}
    assert (source.world_size, source.ranks, source.devices) == (4, 4, [DEVICE])


def test_batches_of_traces_have_durations_and_no_images(late):
    planted, path = late
    answer = anatomy.batches(load(path))
    (row,) = answer.rows.to_dict("records")
    assert row["step_ms"] == pytest.approx(planted.batch / MS, rel=1e-3)
    assert row["images_per_s"] != row["images_per_s"]  # NaN: traces do not say how many samples
    assert row["steps"] == 12
    assert math.isnan(row["p95_ms"]) and math.isnan(row["p99_ms"])  # of 12 steps there is none
    headings = {column.header.replace("\n", " ") for column in answer.tables[0].columns}
    assert "update median" in headings and "rep" not in headings


@pytest.mark.parametrize("command", ["utilization", "activities", "efficiency", "scaled"])
def test_every_other_command_answers_traces(late, command):
    done = run(command, late[1], "--format", "json")
    assert done.code == 0 and done.json, done.err


@pytest.mark.parametrize("command", ["expense", "factors", "hotspots", "predict"])
def test_what_traces_cannot_say_is_one_line(late, command):
    one_line_error(run(command, late[1]))


def test_the_report_and_the_timeline_of_traces(late, tmp_path):
    for command, file in (("report", "r.html"), ("timeline", FILE)):
        done = run(command, late[1], "--output", tmp_path / file)
        assert done.code == 0, done.err
    page = (tmp_path / "r.html").read_text()
    assert "Traces of mine" in page and "Are there stragglers?" in page
    assert "rank 2" in page and "ResNet50" not in page and "Tesla K40" not in page
    assert (tmp_path / FILE).stat().st_size > 500


def test_names_in_traces_do_not_break_the_page(tmp_path):
    evil = "</script><script>alert('\"1\"')</script>"
    trace = trace_of(Planted(ranks=1, batches=4), 0, deviceProperties=[{"name": evil}])
    for event in trace.events:
        if event["name"].startswith("ampere"):
            event["name"] = evil + event["name"]
    path = tmp_path / "a 'quote\" & <b>.json"
    trace.write(path)
    page = render(build(load(converted(path, tmp_path / "out"))))
    assert "<script>alert" not in page
    assert "<b>.json" not in re.sub(r"<script.*?</script>", "", page, flags=re.S)


def test_ranks_that_are_missing_are_said_once_and_the_rest_is_answered(tmp_path):
    folder = write_job(tmp_path / "mine", Planted(ranks=4, batches=6))
    (folder / "rank1.json").unlink()
    study = load(converted(folder, tmp_path / "out"))
    (row,) = records(communication.communication(study).rows)
    assert row["collective"] == "allreduce" and row.get("transfer_ms") is None
    assert "transfer_unknown" in [one.code for one in study.findings]
    with pytest.raises(UserError, match="some ranks only"):
        stragglers_rows(study)
    assert [one.data["n"] for one in study.findings if one.code == "profiles_missing"] == [1]
    assert run("critical_path", tmp_path / "out").code == 0
    build(study)
    (step,) = [one for one in diagnosis(Context(study)) if one.code == "traced_step_takes"]
    assert (step.data["n"], step.data["of"], step.data["steps"]) == (3, 4, 18)


def test_real_traces_of_eight_ranks_are_answered(shared_data, tmp_path):
    study = load(converted(shared_data / "kineto" / "dlrm_8ranks", tmp_path / "out"))
    kinds = {row["collective"]: row for row in records(communication.communication(study).rows)}
    assert set(kinds) == {"alltoall", "allreduce"} and kinds["alltoall"]["transfer_ms"] > 0
    # The step's first all-to-all waits for ranks 2, 6 and 7, and 0 before them; one step repeats nothing.
    rows = stragglers_rows(study)
    late = [row["rank"] for row in rows if row["mean_lateness_ms"] >= LATE_SHARE * row["step_ms"]]
    assert sorted(late) == [0, 2, 6, 7] and {row["verdict"] for row in rows} == {TOO_FEW}
    assert len(section_of(study, "stragglers").tables[0].rows) == 8


def test_a_job_without_markers_is_not_taken_out_of_the_other_sections(tmp_path):
    folder = write_job(tmp_path / "mine", Planted(ranks=2, batches=1), marker="")
    for path in folder.glob("*.json"):
        path.write_text(path.read_text().replace("Optimizer.step#", "its "))
    study = load(converted(folder, tmp_path / "out"))
    build(study)
    assert [source.id for source in study.sources] == ["mine"] and study.failed == []


def test_of_one_rank_a_collective_is_of_its_group_and_a_device_without_properties_no_cpu(tmp_path):
    study = study_of(tmp_path, trace_of(Planted(ranks=8, batches=4), 0, deviceProperties=[]))
    (row,) = records(communication.communication(study).rows)
    assert (row["collective"], row["group_size"]) == ("allreduce", 8)
    assert study.sources[0].devices == []


@pytest.mark.parametrize("named", ["folder", "file"])
def test_raw_traces_are_not_results_and_the_line_says_what_to_do(tmp_path, named):
    folder = write_job(tmp_path / "raw", Planted(ranks=2, batches=4))
    path = folder if named == "folder" else folder / "rank0.json"
    done = run("anatomy", path)
    assert done.code == 2 and f"python -m profiling.convert {path} --out DIR" in " ".join(done.err.split())


def test_traces_in_folders_that_are_called_as_runs_are_traces(tmp_path):
    for number in (1, 2):
        traces = write_job(tmp_path / "raw" / f"run_{number}", Planted(ranks=2, batches=4))
        for rank in (0, 1):
            (traces / f"rank{rank}.json").rename(traces / f"rank_{rank}.json")
    for path in (tmp_path / "raw", tmp_path / "raw" / "run_1"):
        with pytest.raises(UserError, match="holds raw traces"):
            load(path)
    study = load(converted(tmp_path / "raw", tmp_path / "out"))
    assert ([source.id for source in study.sources], study.failed) == (["run_1", "run_2"], [])


def test_traces_without_a_kernel_say_so_and_speak_of_no_profile(tmp_path):
    folder = job(tmp_path, Planted(ranks=1, batches=4))
    (folder / "rank_0000" / "kernels.parquet").unlink()
    section = section_of(load(folder), "kernels")
    assert section.unavailable and not section.charts


def test_nothing_calls_a_recording_without_steps_a_step(shared_data, tmp_path):
    (trace,) = (shared_data / "nsys").glob("saxpy*.sqlite")
    converted(trace, tmp_path)
    for command in ("anatomy", "critical_path"):
        done = run(command, tmp_path)
        table = done.out.partition("─")[0]
        assert done.code == 0 and "step" not in table, table
        assert "the whole recording" in done.out
    assert "the whole recording, as one step" in run("kernels", tmp_path).out
    found = {one.code: one for one in diagnosis(Context(load(tmp_path)))}
    assert found["traced_step_takes"].data["what"] == "recording"


@pytest.mark.parametrize("lasts_us", [800, 1200])
@pytest.mark.parametrize("name", ["Memcpy DtoH (Device -> Pinned)", "ncclDevKernel_AllGather_RING_LL(int)"])
def test_work_beside_the_model_that_outlasts_a_step_ends_none(tmp_path, name, lasts_us):
    """A checkpoint's copy, or a gather of parameters, launched at the end of the third of eight steps."""
    planted = Planted(ranks=1, batches=8)
    trace = trace_of(planted, 0)
    at = START_US + 3 * planted.batch - planted.idle
    category = "gpu_memcpy" if "Memcpy" in name else "kernel"
    trace.kernel(name, at, at + 10, at + lasts_us, category=category, stream=30)
    (row,) = anatomy.batches(study_of(tmp_path, trace)).rows.to_dict("records")
    assert row["steps"] == 8 and row["max_ms"] == pytest.approx(planted.batch / 1e3, rel=0.05)


@pytest.mark.parametrize("launches", [True, False])
def test_kernels_without_any_link_are_of_the_step_around_them(tmp_path, launches):
    planted = Planted(ranks=1, batches=6)
    trace = trace_of(planted, 0)
    for event in trace.events:
        for link in ("correlation", "External id"):
            event["args"].pop(link, None)
    trace.events = [event for event in trace.events if launches or event["cat"] != "cuda_runtime"]
    study = study_of(tmp_path, trace)
    (row,) = anatomy.batches(study).rows.to_dict("records")
    (parts,) = anatomy.anatomy(study).rows.to_dict("records")
    assert row["steps"] == 6 and row["step_ms"] == pytest.approx(planted.batch / MS, rel=0.05)
    computed = planted.forward + planted.backward + planted.update
    assert parts["compute_ms"] == pytest.approx(computed / MS, rel=0.05)


def test_a_step_without_time_costs_no_other(tmp_path):
    """The third of six steps launches nothing, and the device is busy with the second until its end."""
    planted = Planted(ranks=1, batches=6)
    trace = trace_of(planted, 0)
    begins, ends = (START_US + number * planted.batch for number in (2, 3))
    within = [event for event in trace.events if begins <= event["ts"] < ends]
    trace.events = [event for event in trace.events if event not in within or "Step#" in event["name"]]
    trace.kernel("gemm_late", begins - planted.batch + 20, begins - 1, ends + 1)
    study = study_of(tmp_path, trace)
    (row,) = anatomy.batches(study).rows.to_dict("records")
    assert row["steps"] == 6 and row["step_ms"] == pytest.approx(planted.batch / MS, rel=0.05)
    without_time = [one.data for one in study.findings if one.code == "not_recorded" and "n" in one.data]
    assert [(one["n"], one["of"]) for one in without_time] == [(1, 6)]
    assert run("report", tmp_path / "out").code == 0


@pytest.mark.parametrize("says", [None, *({"rank": 3, "world_size": size} for size in (1 << 19, 10**7))])
def test_a_timeline_is_of_the_ranks_that_are_there(tmp_path, says):
    path = tmp_path / "rank3.json"
    trace_of(Planted(ranks=1), 3, distributedInfo=says).write(path)
    (directory,) = converted(path, tmp_path / "out").iterdir()
    begun = time.process_time()
    assert run("timeline", directory).code == 0 and time.process_time() - begun < 5
    assert (directory / JOB).stat().st_size < 100_000
