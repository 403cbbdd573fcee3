"""Traces are results: what was planted in them is what every command of analysis says of them."""

import base64
import gzip
import json
import math
import re
import shutil
from types import SimpleNamespace

import numpy as np
import pytest

from analysis.measures.anatomy import communication
from analysis.measures.anatomy import rows as anatomy
from analysis.measures.anatomy.divide import PARTS
from analysis.measures.batches import rows as batches
from analysis.measures.critical_path.paths import PARTS as PATH
from analysis.measures.critical_path.paths import TOGETHER
from analysis.measures.kernels import rows as kernels
from analysis.measures.lateness import stragglers
from analysis.measures.scaling import traced, traced_difference
from analysis.report import compared, small
from analysis.report.base import Context
from analysis.report.build import build
from analysis.report.communication import bars_of
from analysis.report.render import render
from analysis.report.sentences import LOST, TRY, least_and_most
from analysis.report.summary import opening
from analysis.report.traced_advice import AGAINST, to_try
from analysis.results.load import load
from analysis.results.load_named import load_named
from analysis.results.study import Study
from profiling.attribution.batch_times import WHOLE
from profiling.convert import main as convert
from profiling.errors import UserError
from profiling.traced_job import JOB, read_job
from tests.analysis.commands import one_line_error
from tests.analysis.commands import run as run_module
from tests.analysis.synthetic import run_of, write_sweep
from tests.profiling.traced_jobs import DEVICE, Planted, trace_of, write_job

MS = 1000.0


def job(tmp_path, planted, name="mine", **options):
    """A converted job's folder."""
    write_job(tmp_path / name, planted, **options)
    assert convert([str(tmp_path / name), "--out", str(tmp_path / "out"), "--jobs", "1"]) == 0
    return tmp_path / "out" / name


@pytest.fixture(scope="module")
def late(tmp_path_factory):
    """Four ranks, of which rank 2 is late by 70 us in each of 12 batches."""
    planted = Planted(ranks=4, batches=12, late=((2, 70.0),))
    return planted, job(tmp_path_factory.mktemp("late"), planted)


def test_the_anatomy_of_traces_is_what_was_planted(late):
    planted, path = late
    rows = {row["rank"]: row for row in anatomy.rows(load(path), ["rank"])}
    assert rows[0]["wall_ms"] == pytest.approx(planted.batch / MS, abs=2e-3)
    model = planted.forward + planted.backward + planted.update
    for rank, wait in ((0, 70), (2, 0)):
        row = rows[rank]
        assert row["compute_ms"] == pytest.approx((model + 70 - wait) / MS, abs=3e-3)
        assert row["exposed_transfer_ms"] == pytest.approx(planted.transfer / MS, abs=2e-3)
        assert row["exposed_wait_ms"] == pytest.approx(wait / MS, abs=2e-3)
        assert row["attributed_steps"] == 12


def test_collectives_of_traces_have_transfer_wait_and_bandwidth(late):
    planted, path = late
    (row,) = communication.rows(load(path))
    assert (row["collective"], row["group_size"], row["calls_per_step"]) == ("allreduce", 4, 1)
    assert row["transfer_ms"] == pytest.approx(planted.transfer / MS, rel=1e-3)
    assert row["wait_ms"] == pytest.approx(0.75 * 70 / MS, rel=1e-2)
    moved = 4 * planted.elements / (planted.transfer / 1e6) / 1e9
    assert row["busbw_gb_per_s"] == pytest.approx(2 * 3 / 4 * moved, rel=1e-3)


def test_the_late_rank_of_traces_is_named(late):
    _, path = late
    rows = stragglers.rows(load(path))
    assert [row["rank"] for row in rows if row["verdict"] == stragglers.STRAGGLER] == [2]


def test_kernels_of_traces_have_classes_and_no_peak_of_another_device(late):
    planted, path = late
    rows, _ = kernels.rows(load(path), by=["class"])
    of = {row["class"]: row["ms_per_step"] for row in rows}
    assert set(of) == {"gemm", "communication", "optimizer"}
    assert of["optimizer"] == pytest.approx(planted.update / MS, rel=1e-3)


def test_batches_of_traces_have_durations_and_no_images(late):
    planted, path = late
    (row,) = batches.rows(load(path))
    assert row["step_ms"] == pytest.approx(planted.batch / MS, rel=1e-3)
    assert row["images_per_s"] != row["images_per_s"]  # NaN: traces do not say how many samples
    assert row["steps"] == 12
    assert math.isnan(row["p95_ms"]) and math.isnan(row["p99_ms"])  # of 12 steps there is none


def test_no_precision_is_missed_on_a_device_without_a_known_peak(tmp_path):
    """Of a CPU no peak is known, whatever its kernels compute in; of a GPU it is said what is missing."""
    write_job(tmp_path / "mine", Planted(ranks=1, batches=4))
    for path in (tmp_path / "mine").glob("*.json"):
        path.write_text(path.read_text().replace("ampere_bf16_s16816gemm_bf16", "its_gemm"))
    assert convert([str(tmp_path / "mine"), "--out", str(tmp_path / "out"), "--jobs", "1"]) == 0
    record = tmp_path / "out" / "mine" / JOB
    for device, notes in ((DEVICE, 1), ("cpu", 0)):
        record.write_text(record.read_text().replace(DEVICE, device))
        study = load(tmp_path / "out" / "mine")
        kernels.rows(study, by=["class"])
        assert len([note for note in study.notes() if "no peak to compare with" in note]) == notes


def test_fields_hold_only_what_traces_say(late):
    _, path = late
    (source,) = load(path).sources
    assert source.kind == "trace" and set(source.fields) == {"profile", "job"}
    assert (source.world_size, source.ranks, source.devices) == (4, 4, [DEVICE])


COMMANDS = (
    "anatomy", "kernels", "communication", "stragglers", "utilization", "batches", "activities", "efficiency",
    "scaled",
)  # fmt: skip


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_answers_traces_as_json(late, command):
    done = run(command, late[1], "--format", "json")
    assert done.code == 0, done.err
    assert json.loads(done.out)


@pytest.mark.parametrize("command", ["expense", "factors", "predict"])
def test_what_traces_cannot_say_is_one_line(late, command):
    done = run(command, late[1])
    assert done.code == 2 and "Traceback" not in done.err
    assert done.err.count("\n") == 1


def test_the_report_and_the_timeline_of_traces(late, tmp_path):
    done = run("report", late[1], "--output", tmp_path / "r.html", "--trace", tmp_path / "t.gz")
    assert done.code == 0, done.err
    page = (tmp_path / "r.html").read_text()
    assert "Traces of mine" in page and "Are there stragglers?" in page
    assert "rank 2" in page and "ResNet50" not in page and "Tesla K40" not in page
    assert (tmp_path / "t.gz").stat().st_size > 500


def run(command, *arguments):
    module = "analysis.report.__main__" if command == "report" else f"analysis.{command}"
    return run_module(module, *arguments)


# --- several jobs -------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def scaled(tmp_path_factory):
    """One, two and four ranks of one job, as results of their own."""
    folder = tmp_path_factory.mktemp("scaled")
    planted = {ranks: Planted(ranks=ranks, batches=8, transfer=50.0 * ranks) for ranks in (1, 2, 4)}
    return planted, {ranks: job(folder, of, f"job{ranks}") for ranks, of in planted.items()}


def test_scaling_of_traces_named_by_their_ranks(scaled):
    planted, paths = scaled
    study = load_named([f"{ranks}={path}" for ranks, path in paths.items()])
    found = traced.answer(study)
    assert [row["world_size"] for row in found.rows] == [1, 2, 4]
    for row in found.rows:
        ideal = 100 * planted[1].batch / planted[row["world_size"]].batch
        assert row["scaling_efficiency_pct"] == pytest.approx(ideal, rel=2e-3)
        assert row["speedup"] == pytest.approx(row["world_size"] * ideal / 100, rel=2e-3)
    assert found.rows[2]["grew_exposed_transfer_ms"] == pytest.approx(0.2, rel=2e-2)
    assert "fixed per-GPU batch size (weak scaling" in found.assumed
    assert "1.00 times as long" in found.assumed and "This fits the assumption" in found.assumed


def test_the_efficiencies_of_several_jobs_are_not_of_all_together(scaled):
    (folder,) = {path.parent for path in scaled[1].values()}
    rows = run_module("analysis.efficiency", folder, "--format", "json").json
    assert [row["job"] for row in rows] == ["job1", "job2", "job4"]


def test_scaling_of_traces_that_say_their_ranks_themselves(scaled):
    _, paths = scaled
    out = paths[4].parent
    done = run("scaled", out, "--format", "json")
    rows = json.loads(done.out)
    # The traces of one GPU say of no world size: alone of them that is said, and they are left out.
    assert [row["world_size"] for row in rows] == [2, 4]
    assert "analysis.scaled 4=DIR gives it" in done.err


def test_one_number_of_ranks_has_no_efficiency_and_equal_ends_are_one(scaled):
    _, paths = scaled
    alone = run("scaled", f"1={paths[1]}").out
    assert "Traces of one number of ranks only" in alone and "speedup" not in alone and "eff. %" not in alone
    assert "eff. %" in run("scaled", *(f"{ranks}={path}" for ranks, path in paths.items())).out
    assert least_and_most([(348.1, "x"), (348.3, "y")], ".0f", " %") == "348 %"
    assert least_and_most([(348.1, "x")], ".0f", " %") == "348 % (x)"
    assert run("kernels", paths[1]).out.startswith("Kernels\n")


def test_strong_scaling_is_told_by_what_the_kernels_take(tmp_path):
    one = Planted(ranks=2, batches=6, forward=600.0, backward=1000.0)
    paths = [job(tmp_path, one, "two"), job(tmp_path, Planted(ranks=4, batches=6), "four")]
    study = load_named([f"2={paths[0]}", f"4={paths[1]}"])
    found = traced.answer(study)
    assert "strong scaling" in found.assumed and "This fits the assumption" in found.assumed
    batch = Planted(ranks=4).batch
    assert found.rows[1]["scaling_efficiency_pct"] == pytest.approx(100 * one.batch / batch / 2, rel=2e-3)
    weak = traced.answer(study, "weak")
    assert "does not fit" in weak.assumed
    assert weak.rows[1]["scaling_efficiency_pct"] == pytest.approx(100 * one.batch / batch, rel=2e-3)


def test_folders_without_their_ranks_are_one_clear_line(scaled):
    _, paths = scaled
    with pytest.raises(UserError, match="give each with its number of ranks"):
        load_named([f"1={paths[1]}", str(paths[2])])
    with pytest.raises(UserError, match="holds the traces of 3 jobs"):
        load_named([f"1={paths[1].parent}", f"2={paths[2]}"])


def test_traces_beside_runs_are_one_clear_line(scaled, tmp_path):
    _, paths = scaled
    write_sweep(tmp_path / "one", [run_of()], repetitions={"none": 1})
    with pytest.raises(UserError, match="holds traces, the folders before it runs"):
        load_named([f"1={tmp_path / 'one'}", f"2={paths[2]}"])


def test_other_ranks_than_the_traces_say_are_one_clear_line(scaled):
    _, paths = scaled
    with pytest.raises(UserError, match="its traces say that the job has 4 ranks"):
        load_named([f"1={paths[1]}", f"8={paths[4]}"])


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
    assert convert([str(folder / "four"), "--out", str(folder / "out"), "--jobs", "1"]) == 0
    return two, folder / "out" / "four"


def test_jobs_of_other_kernels_are_compared_only_when_asked(unlike):
    two, four = unlike
    found = traced.answer(load(two.parent))
    assert [row["world_size"] for row in found.rows] == [2, 4] and found.scales == []
    assert all(row["scaling_efficiency_pct"] != row["scaling_efficiency_pct"] for row in found.rows)  # NaN
    assert found.assumed.startswith("No scaling") and "1=DIR 8=DIR" in found.assumed
    page = render(build(load(two.parent)))
    assert "Scaling efficiency on" not in page and "in the kernels on more ranks" not in page
    assert "1=DIR 8=DIR" in page
    asked = traced.answer(load_named([f"2={two}", f"4={four}"]))
    assert asked.scales[1]["scaling_efficiency_pct"] < 100


def test_jobs_named_as_one_program_that_are_not_have_no_efficiency(unlike, tmp_path):
    """Other kernels, and twice the time in them, on more ranks: of neither kind of scaling."""
    two, _ = unlike
    write_job(tmp_path / "eight", Planted(ranks=8, batches=6, forward=1200.0))
    for path in (tmp_path / "eight").glob("*.json"):
        path.write_text(path.read_text().replace("ampere_bf16", "other_model"))
    assert convert([str(tmp_path / "eight"), "--out", str(tmp_path / "out"), "--jobs", "1"]) == 0
    named = [f"2={two}", f"8={tmp_path / 'out' / 'eight'}"]
    found = traced.answer(load_named(named))
    assert [math.isnan(row["scaling_efficiency_pct"]) for row in found.rows] == [False, True]
    assert math.isnan(found.rows[1]["speedup"]) and found.rows[1]["step_ms"] > 0 and found.scales == []
    assert traced.grown(found) is None
    (line,) = found.assumed.splitlines()
    assert line.startswith("No scaling efficiency: two and eight look like different jobs (")
    assert "take 2.06 times as long on 8 ranks as on 2" in line
    said = run("scaled", *named)
    assert said.code == 0 and "look like different jobs" in " ".join(said.out.split())
    asked = traced.answer(load_named(named), "weak")
    assert asked.scales[1]["scaling_efficiency_pct"] < 100 and "is it the same job?" in asked.assumed


def test_jobs_of_the_same_kernels_in_one_folder_are_compared(scaled):
    _, paths = scaled
    study = load(paths[4].parent)
    found = traced.answer(study)
    assert [row["world_size"] for row in found.scales] == [2, 4]
    assert "in the kernels on more ranks" in render(build(study))


def test_a_bar_of_collectives_is_of_one_job(unlike):
    two, _ = unlike
    rows = communication.rows(load(two.parent))
    bars = bars_of(rows, ["job"])
    exposed = dict(zip(bars["label"], bars["exposed_ms"], strict=True))
    assert exposed == pytest.approx({"two": 0.1, "four": 0.3}, rel=0.03)


def test_a_page_of_several_jobs_tells_them_apart(scaled):
    _, paths = scaled
    page = render(build(load(paths[4].parent)))
    assert all(f"job{ranks}" in page for ranks in (1, 2, 4))
    assert "Largest growth" in page
    first, *_ = opening(load(paths[4].parent))
    assert first.text.startswith("Scaling efficiency on 4 ranks (job2, job4): ")


def test_a_part_that_grew_by_next_to_nothing_is_not_what_grew_most(tmp_path):
    # Idle time of the last step is of another kind than that of the others: of fewer steps it weighs more.
    job(tmp_path, Planted(ranks=2, batches=6, late=((1, 100.0),)), "two")
    job(tmp_path, Planted(ranks=4, batches=12), "four")
    first, *_ = opening(load(tmp_path / "out"))
    assert first.text.startswith("Scaling efficiency on 4 ranks: 110 %, relative to 2 ranks. Traces hold")


def test_devices_are_a_list_with_commas(tmp_path):
    for name in "abc":
        devices = [{"name": f"GPU {name}"}]
        trace_of(Planted(ranks=1), 0, deviceProperties=devices).write(tmp_path / f"{name}.json")
    convert([str(tmp_path), "--out", str(tmp_path / "out")])
    (section,) = (one for one in build(load(tmp_path / "out")).sections if one.id == "traces")
    assert section.finding == "Traces of 3 ranks of 3 jobs; GPU a, GPU b and GPU c."
    several = [{"name": f"GPU {name}"} for name in "xyz"]
    trace_of(Planted(ranks=1), 0, deviceProperties=several).write(tmp_path / "one.json")
    convert([str(tmp_path / "one.json"), "--out", str(tmp_path / "alone")])
    assert read_job(tmp_path / "alone" / "one").devices == ["GPU x, GPU y and GPU z"]


def test_all_jobs_of_one_program_need_no_names(tmp_path):
    folder = job(tmp_path, Planted(ranks=2, batches=6), "two").parent
    job(tmp_path, Planted(ranks=4, batches=6), "four")
    first, *_ = opening(load(folder))
    assert first.text.startswith("Scaling efficiency on 4 ranks: ")
    assert first.text.count("Traces hold no batch size") == 1


def test_the_first_screen_says_when_the_kernels_do_not_fit_what_was_assumed(tmp_path):
    folder = job(tmp_path, Planted(ranks=2, batches=6), "two").parent
    job(tmp_path, Planted(ranks=4, batches=6, forward=3000.0, backward=5000.0), "four")
    first, *_ = opening(load(folder))
    assert first.text.startswith("Scaling efficiency on 4 ranks: ") and "fixed per-GPU" in first.text
    assert first.text.endswith("This does not fit the assumption: is it the same job?")


# --- bad input ----------------------------------------------------------------------------------------


def test_names_in_traces_do_not_break_the_page(tmp_path):
    evil = "</script><script>alert('\"1\"')</script>"
    trace = trace_of(Planted(ranks=1, batches=4), 0, deviceProperties=[{"name": evil}])
    for event in trace.events:
        if event["name"].startswith("ampere"):
            event["name"] = evil + event["name"]
    trace.write(tmp_path / "a 'quote\" & <b>.json")
    convert([str(tmp_path / "a 'quote\" & <b>.json"), "--out", str(tmp_path / "out")])
    page = render(build(load(tmp_path / "out")))
    assert "<script>alert" not in page
    assert "<b>.json" not in re.sub(r"<script.*?</script>", "", page, flags=re.S)


def test_ranks_that_are_missing_are_said_once_and_the_rest_is_answered(tmp_path):
    folder = write_job(tmp_path / "mine", Planted(ranks=4, batches=6))
    (folder / "rank1.json").unlink()
    convert([str(folder), "--out", str(tmp_path / "out")])
    study = load(tmp_path / "out")
    (row,) = communication.rows(study)
    assert row["collective"] == "allreduce" and row.get("transfer_ms") is None
    why = "transfer and wait cannot be separated: only ranks 0, 2-3 of 4 were recorded"
    said = run("communication", tmp_path / "out").out.replace("\n", " ")
    assert f"No busbw (-): {why}." in said and f"note: mine: {why}" in said
    only = "it needs the traces of all ranks, and only ranks 0, 2-3 of 4 were recorded"
    with pytest.raises(UserError, match=only):
        stragglers.rows(study)
    assert len([note for note in study.notes() if "traces of 3 of 4 ranks (missing: 1)" in note]) == 1
    assert run("report", tmp_path / "out").code == 0


def test_of_one_rank_of_several_it_is_said_that_the_others_are_missing(tmp_path, shared_data):
    convert([str(shared_data / "kineto/nccl_data.json.gz"), "--out", str(tmp_path / "out")])
    only = "only rank 0 of 2 was recorded"
    said = " ".join(run("communication", tmp_path / "out").out.split())
    assert f"No busbw (-): transfer and wait cannot be separated: {only}." in said
    assert f"note: nccl_data: transfer and wait cannot be separated: {only}" in said
    (page,) = (one for one in build(load(tmp_path / "out")).sections if one.id == "communication")
    assert f"transfer and wait cannot be separated: {only}" in page.tables[0].note
    refused = run("stragglers", tmp_path / "out")
    assert refused.code == 2 and f"it needs the traces of all ranks, and {only}" in refused.err
    page = build(load(tmp_path / "out"))
    assert page.subtitle.startswith("traces of 1 of 2 ranks of 1 job; ")
    (section,) = (one for one in page.sections if one.id == "stragglers")
    assert f"it needs the traces of all ranks, and {only}" in f"{section.text} {section.notes}"
    scaled = run("scaled", tmp_path / "out").out
    assert "2 further notes on the results: list them with --notes" in scaled
    assert (
        "no input shapes" not in scaled
        and "no input shapes" in run("scaled", tmp_path / "out", "--notes").out
    )


def test_a_damaged_record_is_one_line(tmp_path, late):
    broken = tmp_path / "broken"
    broken.mkdir()
    (broken / "job.json").write_text('{"name": 3')
    study = load(tmp_path) if (tmp_path / "job.json").exists() else None
    with pytest.raises(UserError, match=r"job\.json is damaged"):
        load(broken)
    assert study is None


def test_real_traces_of_eight_ranks_are_answered(shared_data, tmp_path):
    convert([str(shared_data / "kineto" / "dlrm_8ranks"), "--out", str(tmp_path / "out")])
    study = load(tmp_path / "out")
    kinds = {row["collective"]: row for row in communication.rows(study)}
    assert set(kinds) == {"alltoall", "allreduce"} and kinds["alltoall"]["transfer_ms"] > 0
    assert len(stragglers.rows(study)) == 8
    assert "Are there stragglers?" in render(build(study))


def test_a_job_without_markers_is_not_taken_out_of_the_other_sections(tmp_path):
    planted = Planted(ranks=2, batches=1)
    write_job(tmp_path / "mine", planted, marker="")
    for path in (tmp_path / "mine").glob("*.json"):
        path.write_text(path.read_text().replace("Optimizer.step#", "its "))
    assert convert([str(tmp_path / "mine"), "--out", str(tmp_path / "out"), "--jobs", "1"]) == 0
    done = run("report", tmp_path / "out")
    assert done.code == 0, done.err
    study = load(tmp_path / "out")
    build(study)
    assert [source.id for source in study.sources] == ["mine"] and study.failed == []


def test_a_collective_is_of_its_group_though_one_rank_was_recorded(tmp_path):
    trace_of(Planted(ranks=8, batches=4), 0).write(tmp_path / "rank0.json")
    convert([str(tmp_path / "rank0.json"), "--out", str(tmp_path / "out")])
    (row,) = communication.rows(load(tmp_path / "out"))
    assert (row["collective"], row["group_size"]) == ("allreduce", 8)


@pytest.mark.parametrize("named", ["folder", "file"])
def test_raw_traces_are_not_results_and_the_line_says_what_to_do(tmp_path, named):
    folder = write_job(tmp_path / "raw", Planted(ranks=2, batches=4))
    path = folder if named == "folder" else folder / "rank0.json"
    done = run("anatomy", path)
    assert done.code == 2 and f"python -m profiling.convert {path} --out DIR" in " ".join(done.err.split())


def test_jobs_that_cannot_be_scaled_say_what_each_of_them_lacks(tmp_path):
    write_job(tmp_path / "mine", Planted(ranks=2, batches=1), marker="")
    for path in (tmp_path / "mine").glob("*.json"):
        path.write_text(path.read_text().replace("Optimizer.step#", "its "))
    assert convert([str(tmp_path / "mine"), "--out", str(tmp_path / "out"), "--jobs", "1"]) == 0
    said = one_line_error(run("scaled", tmp_path / "out"))
    assert "no job of" in said and "(mine: no steps)" in said


def test_traces_without_a_kernel_say_so_and_speak_of_no_profile(tmp_path):
    folder = job(tmp_path, Planted(ranks=1, batches=4))
    (folder / "rank_0000" / "kernels.parquet").unlink()
    (kernels_section,) = [one for one in build(load(folder)).sections if one.id == "kernels"]
    assert kernels_section.finding == "No kernel data: the traces hold no kernels."


# --- two jobs, and raw traces ---------------------------------------------------------------------------


@pytest.fixture(scope="module")
def pair(tmp_path_factory):
    """The same job before and after: its collective takes 60 us more, its batches scatter by some."""
    folder = tmp_path_factory.mktemp("pair")
    before, after = Planted(ranks=2, batches=40), Planted(ranks=2, batches=40, transfer=160.0)
    return before, after, job(folder, before, "before"), job(folder, after, "after")


def test_the_difference_of_two_jobs_is_what_was_planted(pair):
    before, after, a, b = pair
    rows = {(row["kind"], row["quantity"]): row for row in traced_difference.rows(load(a), load(b))}
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
    assert slower.code == 1 and "slower in B; largest change: exposed" in " ".join(slower.out.split())
    assert run("compare", b, a).code == 0
    assert run("compare", a, b, "--threshold", "50").code == 0
    same = run("compare", a, a)
    assert same.code == 0 and "are the same traces" in same.out and "allreduce" not in same.out


def _compared(kind: str, figure: str, a_ms: float, b_ms: float) -> dict:
    return {
        "job": "one", "kind": kind, "quantity": figure, "a_ms": a_ms, "b_ms": b_ms,
        "difference_ms": b_ms - a_ms, "difference_pct": 100 * (b_ms / a_ms - 1), "verdict": "slower",
    }  # fmt: skip


def test_the_largest_change_is_the_largest_of_either_sign_and_a_mean_that_says_otherwise_is_named():
    """One step of a waited long for its data: the mean shrinks by far more than the median grows."""
    step = _compared("step", "step", 171.2, 177.4)
    parts = {
        "compute": (180, 140), "exposed communication": (2, 2), "exposed loader": (140, 5),
        "exposed copies": (1, 1), "idle": (10, 27),
    }  # fmt: skip
    rows = [step, *(_compared("parts", name, *ms) for name, ms in parts.items())]
    said = traced_difference.sentence(rows)
    assert "largest change: exposed loader (-135 ms)" in said
    assert "the sum of the parts, is 333 and 175 ms (-47.4 %)" in said
    assert "mean" not in traced_difference.sentence([step, *rows[2:]])  # not all of its parts are known
    usual = [_compared("parts", name, 171.2 / 5, 177.4 / 5) for name in parts]
    assert "mean" not in traced_difference.sentence([step, *usual])
    none = traced_difference.sentence([_compared("step", "step", 171.2, math.nan), *usual])
    assert none == "Durations of steps cannot be compared: one of the two has none."


def test_two_jobs_without_kernels_are_compared_by_their_steps_alone(pair, tmp_path):
    _, _, a, b = pair
    for path in (a, b):
        shutil.copytree(path, tmp_path / path.name, ignore=shutil.ignore_patterns("kernels.parquet"))
    before, after = tmp_path / "before", tmp_path / "after"
    assert traced_difference.unlike(load(before), load(after)) == {}
    page = compared.build(load(before), load(after))
    assert page.summary[0].text.startswith("Worse: ") and page.sections[0].charts == []


def test_two_jobs_that_have_no_figure_in_common_are_not_the_same_traces(pair, tmp_path):
    _, _, a, b = pair
    for path in (a, b):
        shutil.copytree(path, tmp_path / path.name, ignore=shutil.ignore_patterns("kernels.parquet"))
    record = tmp_path / "after" / JOB
    changed = read_job(record.parent).model_copy(update={"batches_from": WHOLE})
    record.write_text(changed.model_dump_json())
    said = one_line_error(run("compare", tmp_path / "before", tmp_path / "after"))
    assert said.endswith("have no figure in common")


def test_the_report_of_two_jobs_says_what_grew(pair, tmp_path):
    _, _, a, b = pair
    page = compared.build(load(a), load(b))
    first, *_ = page.summary
    assert first.text.startswith("Worse: before, after: a step takes ") and "slower in B" in first.text
    (chart,) = page.sections[0].charts
    grown = {name: ms for bars in chart.figure["data"] for name, ms in zip(bars["y"], bars["x"], strict=True)}
    assert grown["exposed transfer"] == pytest.approx(0.06, rel=2e-2)
    assert [name for name, _ in page.sections[-1].beside] == ["A: before", "B: after"]
    assert run("report", a, b, "--output", tmp_path / "r.html").code == 0
    assert "the same traces" in one_line_error(run("report", a, a))


def test_of_several_pairs_of_jobs_filters_leave_what_is_said_of_each(tmp_path):
    for side, transfer in (("before", 300.0), ("after", 900.0)):
        for name, ranks in (("one", 2), ("two", 4)):
            job(tmp_path / side, Planted(ranks=ranks, batches=30, transfer=transfer * ranks), name)
    page = compared.build(load(tmp_path / "before/out"), load(tmp_path / "after/out"))
    (filter,) = [one for one in page.filters if one.name == "job"]
    assert list(filter.choices) == ["one", "two"] and page.filtered is not None
    assert len({row.facts["job"] for row in page.sections[0].tables[0].rows}) == 2
    texts = [one.text for one in page.summary]
    assert (
        "one: a step takes" in texts[0] and "two: a step takes" in texts[1] and " kernels: two: " in texts[2]
    )
    choice = tuple(1 if one is filter else 0 for one in page.filters)
    said = page.filtered.said[page.filtered.of[choice]][1]
    assert said.summary[0].text == texts[0] == said.findings["change"]
    assert len(said.summary) == 2 and not [one.text for one in said.summary if "two" in one.text]
    (chart,) = page.sections[0].charts
    bars = [(name, of["job"]) for one in chart.figure["data"]
            for name, of in zip(one["y"], one["customdata"], strict=True)]  # fmt: skip
    assert len({name for name, _ in bars}) == len(bars) and {of for _, of in bars} == {"one", "two"}
    assert all(name.startswith(f"{of}: ") for name, of in bars)


def test_what_is_said_of_all_jobs_is_marked_while_one_is_chosen(tmp_path):
    for side in ("before", "after"):
        for name, ranks in (("one", 2), ("two", 4)):
            job(tmp_path / side, Planted(ranks=ranks, batches=30, transfer=100.0 + len(side)), name)
    page = compared.build(load(tmp_path / "before/out"), load(tmp_path / "after/out"))
    assert page.filtered is not None
    for _, said in page.filtered.said:
        marked = [one.text[:30] for one in said.lists["answers-a"] if one.of_all]
        assert marked == ["Scaling efficiency on 4 ranks:"]
    html, mark = render(page), '<span class="of-all"> (for all configurations)</span></li>'
    (packed,) = re.findall(r'id="said-gz"[^>]*>([^<]*)<', html)
    pieces = json.loads(gzip.decompress(base64.b64decode(packed)))["pieces"]
    items = [one for one in pieces if one.startswith("<li>Scaling efficiency on 4 ranks:")]
    assert items and all(one.endswith(mark) for one in items)
    # More filters at once than texts are known of: the lists stay as they are without any.
    (everything,) = re.findall(r'data-list="answers-a">(.*?)</ul>', html)
    assert everything.count("<li>") == everything.count(mark) > 1


@pytest.mark.parametrize(
    ("steps", "said"),
    [((6, 6), "6 steps are"), ((6, 29), "6 steps of A are"), ((3, 1), "3 steps of A and 1 step of B are"),
     ((29, 1), "1 step of B is"), ((1, 1), "1 step is")],
)  # fmt: skip
def test_the_side_that_has_too_few_steps_is_named(steps, said):
    drawn = np.random.default_rng(1)
    of_a, of_b = (traced_difference._of_median(drawn.normal(100, 1, count)) for count in steps)
    assert traced_difference._verdict(of_a, of_b) == f"not tested: {said} too few"


def test_jobs_that_are_none_of_each_other_are_one_line(pair, scaled):
    _, _, a, _ = pair
    _, paths = scaled
    done = run("compare", a, paths[4].parent)
    assert (done.code == 2 and "give two folders of one job each" in done.err) or done.code < 2


def test_the_report_takes_raw_traces_and_converts_them_beside(tmp_path):
    folder = write_job(tmp_path / "raw", Planted(ranks=2, batches=6))
    done = run("report", folder)
    assert done.code == 0, done.err
    assert done.out.strip() == str(tmp_path / "raw-converted" / "report.html")
    assert "next:" not in done.err  # the report is what would come next
    assert f"scaleprof: converting the traces into {tmp_path / 'raw-converted'}" in done.err
    within = run("report", folder, "--out", folder / "r.html")  # among the traces they would be searched
    assert within.code == 0 and (folder / "r.html").is_file() and not list(folder.glob("*-converted"))


def test_the_report_converts_beside_the_file_that_output_names(tmp_path):
    folder = write_job(tmp_path / "archive" / "raw", Planted(ranks=2, batches=6))
    (tmp_path / "mine").mkdir()
    done = run(
        "report", folder / "rank0.json", folder / "rank1.json", "--output", tmp_path / "mine" / "r.html"
    )
    assert done.code == 0, done.err
    assert sorted(path.name for path in (tmp_path / "mine").iterdir()) == ["r.html", "rank0-converted"]
    assert list((tmp_path / "archive").iterdir()) == [folder]
    nowhere = one_line_error(run("report", folder, "--output", tmp_path / "absent" / "r.html"))
    assert f"{tmp_path / 'absent'} is not a folder; name a file in another folder with --output" in nowhere


def test_traces_in_a_folder_that_cannot_be_written_are_one_line(tmp_path, monkeypatch):
    folder = write_job(tmp_path / "raw", Planted(ranks=1, batches=6))
    # Root may write everywhere.
    monkeypatch.setattr("analysis.results.raw.os.access", lambda place, _: place != tmp_path)
    said = one_line_error(run("report", folder))
    assert f"{tmp_path} cannot be written; name a file in another folder with --output" in said
    assert list(tmp_path.iterdir()) == [folder]


def test_a_folder_that_holds_neither_results_nor_traces_is_one_line(tmp_path):
    (tmp_path / "notes.txt").write_text("hello")
    done = run("report", tmp_path)
    assert done.code == 2 and done.err.count("\n") == 1 and "holds no results" in done.err


def test_of_a_recording_without_steps_nothing_is_said_per_step(shared_data, tmp_path):
    (trace,) = (shared_data / "nsys").glob("saxpy*.sqlite")
    convert([str(trace), "--out", str(tmp_path)])
    said = " ".join(one.text for one in opening(load(tmp_path)))
    assert "The recording takes" in said and "ms in the recording (" in said
    assert "per step" not in said and "kernels: memcpy" not in said
    refused = run("batches", tmp_path)
    assert refused.code == 2 and "No markers separate the steps of its traces" in refused.err


def test_nothing_calls_a_recording_without_steps_a_step(shared_data, tmp_path):
    (trace,) = (shared_data / "nsys").glob("saxpy*.sqlite")
    convert([str(trace), "--out", str(tmp_path)])
    for command in ("anatomy", "critical_path", "kernels"):
        done = run(command, tmp_path)
        table = done.out.partition("─")[0]
        assert done.code == 0 and "step" not in table, table
    assert "Anatomy of the whole recording" in run("anatomy", tmp_path).out
    assert "Critical path of the whole recording" in run("critical_path", tmp_path).out
    page = build(load(tmp_path))
    for section in (one for one in page.sections if one.id in ("anatomy", "critical-path", "kernels")):
        assert "per step" not in section.finding and "in the recording" in section.finding


def test_where_only_some_traces_have_steps_the_title_says_which_have_none():
    study = SimpleNamespace(recorded=[
        SimpleNamespace(id="stepped", without_steps=False), SimpleNamespace(id="whole", without_steps=True)
    ])  # fmt: skip
    assert Study.a_step(study, ["stepped"]) == "a step"
    assert Study.a_step(study, ["whole"]) == "the whole recording"
    assert Study.a_step(study, ["stepped", "whole"]) == "a step (of whole: the whole recording)"


def test_what_is_the_longest_on_a_page_of_unlike_jobs_is_of_all_of_them_and_named(tmp_path):
    """The job of fewer ranks has the longer kernels, the larger saving and the longer collective."""
    slow = Planted(ranks=2, batches=6, forward=3000.0, backward=5000.0, transfer=900.0)
    two = job(tmp_path, slow, "two")
    job(tmp_path, Planted(ranks=4, batches=6), "four")
    page = build(load(two.parent))
    findings = {section.id: section.finding for section in page.sections}
    for id in ("anatomy", "critical-path", "kernels"):
        assert "two)." in findings[id], findings[id]
        assert "most ranks" not in findings[id]
    assert (
        findings["kernels"].startswith("Longest: ampere_bf16") and "5.00 ms per step" in findings["kernels"]
    )


def test_a_recording_without_steps_makes_no_headline_beside_jobs_with_steps(tmp_path):
    whole = trace_of(Planted(ranks=1, batches=1, forward=9000.0, backward=9e5), 0, marker="")
    whole.events = [event for event in whole.events if not event["name"].startswith("Optimizer")]
    whole.write(tmp_path / "whole.json")
    # A program that ends with a wait of the device on the host: more is to be saved than in a step.
    gap = 3e6
    for event in whole.events[-2:]:
        event["ts"] += gap
    whole.write(tmp_path / "whole.json")
    stepped = job(tmp_path, Planted(ranks=1, batches=6, idle=400.0), "stepped")
    assert convert([str(tmp_path / "whole.json"), "--out", str(stepped.parent), "--jobs", "1"]) == 0
    page = build(load(stepped.parent))
    (answer,) = (one for one in page.opening if one.question == TRY)
    assert answer.sentences[0].text.startswith("stepped: a step would be"), answer.sentences[0].text
    findings = {section.id: section.finding for section in page.sections}
    for id in ("anatomy", "critical-path", "kernels"):
        assert "stepped)." in findings[id] and "ms per step" in findings[id], findings[id]
    said = [one.text for one in opening(load(stepped.parent))]
    assert said[0].startswith("stepped: a step takes") and said[1].startswith("whole: the recording takes")


def test_the_opening_of_unlike_jobs_describes_one_after_the_other_and_names_each(tmp_path):
    slow = Planted(ranks=2, batches=6, forward=3000.0, backward=5000.0, transfer=900.0)
    two = job(tmp_path, slow, "two", deviceProperties=[{"name": "another GPU"}])
    job(tmp_path, Planted(ranks=4, batches=6, late=((1, 90.0),)), "four")
    page = build(load(two.parent))
    said = [one.text for one in opening(load(two.parent))]
    assert said[0].startswith("No scaling: these jobs differ in device or kernels.")
    for text, name in zip(said[1:3], ("four", "two"), strict=True):
        start = (
            rf"{name}: a step takes .* Collective with the most exposed time: .* Largest class of the model"
        )
        assert re.match(start, text)
    assert ", 0.9 ms per step" in said[2] and "gemm, 7.998 ms per step" in said[2]
    others = [text for text in said[3:] if not text.startswith("Not in traces: ")]
    assert len(others) == 2 and all("four" in text or "two" in text for text in others), others
    (stragglers,) = (one for one in page.sections if one.id == "stragglers")
    assert "four" in stragglers.finding


def test_that_no_rank_is_late_is_said_of_the_job_that_it_is_of(tmp_path):
    two = job(tmp_path, Planted(ranks=2, batches=30), "two")
    alone = [one.text for one in opening(load(two.parent))]
    assert "No stragglers: no rank repeatedly delayed the others." in alone
    job(tmp_path, Planted(ranks=4, batches=30), "four")
    job(tmp_path, Planted(ranks=1, batches=30, forward=9000.0, backward=9000.0), "one")
    job(tmp_path, Planted(ranks=1, batches=30, forward=90_000.0, backward=9000.0), "first")
    said = [one.text for one in opening(load(two.parent))]
    assert "four: no stragglers: no rank repeatedly delayed the others." in said
    assert "1 further job is in the sections below." in said


def test_a_folded_section_of_unlike_jobs_says_whose_its_figures_are(tmp_path):
    two = job(tmp_path, Planted(ranks=2, batches=30, transfer=900.0), "two")
    job(tmp_path, Planted(ranks=4, batches=30), "four")
    findings = {section.id: section.finding for section in build(load(two.parent)).sections}
    assert re.fullmatch(r"Exposed: \S+ \(four\) to \S+ ms per step \(two\)\.", findings["communication"])
    said = findings["batches"]
    assert said.endswith(" is 0 % above their median."), said  # of both


def test_the_first_screen_of_traces_draws_where_a_step_goes(late):
    planted, path = late
    (lost,) = (answer for answer in build(load(path)).opening if answer.question == LOST)
    names = re.findall(r'text-anchor="end">([^<]+)</text>', lost.drawing.svg)
    values = [float(value) for value in re.findall(r">([\d.]+) ms</text>", lost.drawing.svg)]
    assert names[0] == "compute" and len(names) == len(values) <= small.MOST_BARS
    assert values == sorted(values, reverse=True)
    assert sum(values) == pytest.approx(planted.batch / MS, rel=0.05)


def test_the_parts_of_a_step_beside_its_median_are_all_shown_and_sum_to_its_mean(late, scaled):
    planted, path = late
    found = traced.answer(load(path))
    (row,) = found.rows
    assert row["mean_ms"] == pytest.approx(planted.batch / MS, rel=1e-3)
    assert row["mean_ms"] == pytest.approx(sum(row[f"{part}_ms"] for part in PARTS))
    shown = {column.header.replace("\n", " ") for column in traced.part(found).columns}
    assert {"step mean", "compute", "exposed comm.", "exposed loader", "other copies", "idle"} <= shown
    assert "where steps or ranks differ" in traced.part(found).caption
    alone = traced.answer(load_named([f"1={scaled[1][1]}"]))
    assert "where steps differ" in traced.part(alone).caption


def test_a_comparison_of_different_jobs_says_so_and_tests_nothing_of_a_few_steps(unlike, pair):
    two, four = unlike
    done = run("compare", two, four)
    said = " ".join(done.out.split())
    assert "not tested: 6 steps are too few; largest change" in said
    assert "difference shown" not in said
    untested, *_ = compared.build(load(two), load(four)).summary
    assert untested.text.startswith("two, four: a step takes") and "not tested: 6 steps" in untested.text
    assert (
        "A (two) and B (four) are different jobs: they differ in number of ranks (2, 4) and kernels (" in said
    )
    page = compared.build(load(two), load(four))
    assert page.summary[1].text.startswith("A (two) and B (four) are different jobs: they differ in ")
    _, _, before, after = pair
    assert "different jobs" not in run("compare", before, after).out


def test_what_to_try_is_against_what_a_step_could_be_without(tmp_path):
    page = build(load(job(tmp_path, Planted(ranks=2, batches=6, transfer=3000.0))))
    (answer,) = (one for one in page.opening if one.question == TRY)
    text, drawing = answer.sentences[0].text, answer.drawing
    saved = re.match(r"A step would be at most (\d+) % shorter if collectives took no time \(", text)
    assert saved and 20 < int(saved[1]) < 90, text
    assert "To try: overlap them with computation" in text
    assert "collectives" in drawing.svg and " %</text>" in drawing.svg


def test_where_kernels_are_all_of_a_step_only_these_can_be_faster(tmp_path):
    folder = job(tmp_path, Planted(ranks=1, batches=6, forward=90_000.0, backward=90_000.0))
    text = to_try(Context(load(folder)))[0].text
    assert "so only fewer or faster kernels help" in text, text
    assert int(re.search(r"kernels are (\d+) % of the critical path", text)[1]) > 90


def test_each_part_that_something_is_advised_against_is_one_of_the_path():
    assert set(AGAINST) <= {*PATH, *TOGETHER}
