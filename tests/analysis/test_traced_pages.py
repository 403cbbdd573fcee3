"""What the report of traces says of several jobs, and which of them it names."""

import re
from pathlib import Path

import pytest

from analysis.measures.batches import rows as batches
from analysis.measures.critical_path.paths import PARTS as PATH
from analysis.measures.critical_path.paths import TOGETHER
from analysis.report.base import Context
from analysis.report.build import build
from analysis.report.sentences import TRY
from analysis.report.summary import opening
from analysis.report.traced_advice import AGAINST, to_try
from analysis.results.load import load
from profiling.convert import main as convert
from profiling.traced_job import read_job
from tests.analysis.traced import job
from tests.profiling.samples import NCU_RAW
from tests.profiling.traced_jobs import Planted, trace_of
from tests.profiling.traces import Trace


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


def test_what_is_the_longest_on_a_page_of_unlike_jobs_is_of_all_of_them_and_named(tmp_path):
    """The job of fewer ranks has the longer kernels, the larger saving and the longer collective."""
    slow = Planted(ranks=2, batches=6, forward=3000.0, backward=5000.0, transfer=900.0)
    two = job(tmp_path, slow, "two")
    job(tmp_path, Planted(ranks=4, batches=6), "four")
    page = build(load(two.parent))
    findings = {section.id: section.finding for section in page.sections}
    texts = {section.id: section.text for section in page.sections}
    assert texts["batches"].endswith(" than p95. Intervals here are within a run.")  # there are no others
    assert texts["left-out"] == "Failed runs and notes on the data." and "unprofiled" not in page.methods
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
    assert answer.sentences[0].text.startswith("Largest saving of a single part, in stepped: a"), (
        answer.sentences[0].text
    )
    findings = {section.id: section.finding for section in page.sections}
    for id in ("anatomy", "critical-path", "kernels"):
        assert "stepped)." in findings[id] and "ms per step" in findings[id], findings[id]
    said = [one.text for one in opening(load(stepped.parent))]
    assert said[0].startswith("stepped: a step takes") and said[1].startswith("whole: the recording takes")


def test_the_opening_of_unlike_jobs_describes_one_after_the_other_and_names_each(tmp_path):
    slow = Planted(ranks=2, batches=6, forward=3000.0, backward=5000.0, transfer=900.0)
    two = job(tmp_path, slow, "two", deviceProperties=[{"name": "another GPU"}])
    job(tmp_path, Planted(ranks=4, batches=6, late=((1, 5000.0),)), "four")
    page = build(load(two.parent))
    said = [one.text for one in opening(load(two.parent))]
    assert said[0].startswith("Scaling is not computed: these jobs differ in device or kernels.")
    for text, name in zip(said[1:3], ("four", "two"), strict=True):
        start = (
            rf"{name}: a step takes .* Collective with the most exposed time: .* Largest class of the model"
        )
        assert re.match(start, text)
    # What is left of it is no measure of the network.
    assert "% of its duration is waiting for the last rank). Largest" in said[1], said[1]
    assert ", 0.900 ms per step" in said[2] and "gemm, 7.998 ms per step" in said[2]
    others = [text for text in said[3:] if not text.startswith("Traces do not tell ")]
    assert len(others) == 2 and all("four" in text or "two" in text for text in others), others
    findings = {section.id: section.finding for section in page.sections}
    assert "four" in findings["stragglers"]


def test_the_path_of_unlike_jobs_is_that_of_the_largest_share_and_not_of_the_longest_step(tmp_path):
    """Idle are about 0.8 of 1 ms in one job, and 8.5 of 17 ms in the other."""
    long = job(tmp_path, Planted(ranks=1, batches=6, forward=4000.0, backward=4000.0, idle=8500.0), "long")
    job(tmp_path, Planted(ranks=1, batches=6, forward=50.0, backward=50.0, idle=800.0), "idle")
    page = build(load(long.parent))
    (section,) = (one for one in page.sections if one.id == "critical-path")
    assert "of idle (the job whose step one part would shorten most, in percent; " in section.text
    assert section.finding.endswith("gaps, 84 % (0.799 ms per step, idle).")
    (answer,) = (one for one in page.opening if one.question == TRY)
    assert answer.sentences[0].text.startswith("Largest saving of a single part, in idle: a step")
    assert answer.drawing.caption.startswith("Percent by which a step of idle would be")


def test_that_no_rank_is_late_is_said_of_the_job_that_it_is_of(tmp_path):
    two = job(tmp_path, Planted(ranks=2, batches=30), "two")
    alone = [one.text for one in opening(load(two.parent))]
    assert "No stragglers: no rank repeatedly delayed the others." in alone
    job(tmp_path, Planted(ranks=4, batches=30), "four")
    job(tmp_path, Planted(ranks=1, batches=30, forward=9000.0, backward=9000.0), "one")
    job(tmp_path, Planted(ranks=1, batches=30, forward=90_000.0, backward=9000.0), "first")
    said = [one.text for one in opening(load(two.parent))]
    assert "four: no stragglers: no rank repeatedly delayed the others." in said
    assert "1 further job is in the sections below: one." in said


def test_a_folded_section_of_unlike_jobs_says_whose_its_figures_are(tmp_path):
    two = job(tmp_path, Planted(ranks=2, batches=30, transfer=900.0), "two")
    job(tmp_path, Planted(ranks=4, batches=30), "four")
    findings = {section.id: section.finding for section in build(load(two.parent)).sections}
    assert re.fullmatch(
        r"Exposed communication: \S+ \(four\) to \S+ ms per step \(two\)\.", findings["communication"]
    )
    said = findings["batches"]
    whose = r"(two|four), the least steady job: the 95th percentile of its 30 steps"
    assert re.fullmatch(whose + r" is 0 % above their median\.", said), said


def test_what_to_try_is_against_what_a_step_could_be_without(tmp_path):
    study = load(job(tmp_path, Planted(ranks=2, batches=6, transfer=3000.0)))
    page = build(study)
    (answer,) = (one for one in page.opening if one.question == TRY)
    text, drawing = answer.sentences[0].text, answer.drawing
    saved = re.match(r"A step would be at most (\d+) % shorter if collectives took no time \(", text)
    assert saved and 20 < int(saved[1]) < 90, text
    assert "To try: overlap them with computation, send less (gradients in 16 bits), or larger" in text
    assert ", mean of 6 steps from the last rank's start to the last rank's end). To try" in text
    step = r"A step takes \S+ ms, mean of 2 ranks \(slowest rank: median \S+ ms; 6 steps\)\. Of the mean: \d"
    assert re.match(step, page.opening[0].sentences[0].text), page.opening[0].sentences[0].text
    said = next(one.text for one in page.opening[0].sentences if one.text.startswith("Collective with"))
    assert "3.00 ms per step (0 % of its duration is waiting for the last rank; transfer at " in said, said
    assert "collectives" in drawing.svg and " %</text>" in drawing.svg
    assert drawing.caption.endswith(
        " a step would be shorter without this part, at most (not shown: the model's kernels)"
    )
    (table,) = next(section.tables for section in page.sections if section.id == "batches")
    assert table.note.startswith(
        "No interval: 6 steps are too few, or too alike; record 50 to 100.\nAll values"
    )
    # Of traces, no columns of options that no trace knows.
    assert [*batches.table(study).columns][:4] == ["run", "profile", "repetition", "steps"]


def test_that_launches_have_no_durations_is_said_first(tmp_path):
    (tmp_path / "raw.csv").write_text(NCU_RAW.replace('"gpu__time_duration.sum"', '"another.sum"'))
    convert([str(tmp_path / "raw.csv"), "--out", str(tmp_path / "out")])
    first, *_ = opening(load(tmp_path / "out"))
    assert first.text == "Durations of its kernels are not known: 2 launches have none."


@pytest.mark.parametrize("dtype, element", [("BFloat16", 2), ("", 2), ("Float", 4), ("", 0)])
def test_of_one_rank_of_two_that_sums_in_16_bits_other_things_are_advised(tmp_path, dtype, element):
    """The element's size is the tool's, or in the name of the kernel: {2: f16, 4: f32, 0: nothing}."""
    trace = trace_of(Planted(ranks=2, batches=6, transfer=3000.0), 0)
    name = {2: "ncclDevKernel_AllReduce_Sum_f16_RING_LL", 0: "ncclDevKernel_Generic(int)"}.get(element)
    for event in [one for one in trace.events if one["name"].startswith("nccl")]:
        event["name"] = name or event["name"]
        event["args"]["dtype"] = dtype
    trace.write(tmp_path / "rank0.json")
    assert convert([str(tmp_path / "rank0.json"), "--out", str(tmp_path / "out"), "--jobs", "1"]) == 0
    said = [one.text for one in opening(load(tmp_path / "out"))]
    untold = "with 1 of 2 ranks recorded, transfer cannot be told from waiting for other ranks)"
    assert "exposed communication (transfer or wait)" in said[0] and said[1].endswith(f"({untold}.")
    assert f"{untold}. To try: record all ranks" in said[-1]
    advised = {2: "(their sums are in 16 bits already)", 4: "in 16 bits)", 0: "16 bits, if they are not yet)"}
    assert advised[element] in said[-1] and ("send less" in said[-1]) == (element != 2), said[-1]


def _stepped(folder: Path) -> Path:
    """A job of one rank and 3 steps of 1, 1 and 1.5 ms: a kernel, and much later on the host another."""
    trace = Trace()
    for step, at in enumerate((0.0, 1000.0, 2000.0)):
        late = 500.0 if step == 2 else 0.0
        trace.range(f"ProfilerStep#{step}", at, at + 1000 + late)
        trace.kernel("gemm_kernel", at + 10, at + 20, at + 30)
        trace.kernel("gemm_kernel", at + 900 + late, at + 910 + late, at + 990 + late)
    trace.write(folder / "trace.json")
    assert convert([str(folder / "trace.json"), "--out", str(folder / "out"), "--jobs", "1"]) == 0
    return folder / "out"


@pytest.mark.parametrize("loads", ["_SingleProcess", "_MultiProcessing"])
def test_workers_are_advised_where_the_data_loader_has_none(tmp_path, loads):
    trace = trace_of(Planted(ranks=1, batches=6, idle=5000.0), 0)
    for event in [one for one in trace.events if one["name"].startswith("ProfilerStep")]:
        event["ts"] -= 4500
        trace.range(f"enumerate(DataLoader)#{loads}DataLoaderIter.__next__", event["ts"], event["ts"] + 4400)
    trace.write(tmp_path / "trace.json")
    assert convert([str(tmp_path / "trace.json"), "--out", str(tmp_path / "out"), "--jobs", "1"]) == 0
    text = to_try(Context(load(tmp_path / "out")))[0].text
    assert "if data loading took no time" in text, text
    tried = {
        "_SingleProcess": "num_workers of the DataLoader: it is 0 here",
        "_MultiProcessing": "more workers than the DataLoader has",
    }
    assert f"To try: {tried[loads]}, " in text, text


def test_that_the_profiler_slows_the_host_is_said_where_the_host_is_named(tmp_path):
    said = [one.text for one in opening(load(_stepped(tmp_path)))]
    assert said[0].startswith("A step takes 1.167 ms, mean (median 1.000 ms; 3 steps). Of the mean: ")
    assert "if the host's code between launches took no time (" in said[-1], said[-1]
    doubt = "of 1.17 ms, mean of 3 steps; recorded under the profiler, which slows the host). "
    assert f"{doubt}To try: time steps without the profiler first; " in said[-1], said[-1]


def test_where_kernels_are_all_of_a_step_only_these_can_be_faster(tmp_path):
    folder = job(tmp_path, Planted(ranks=1, batches=6, forward=90_000.0, backward=90_000.0))
    text = to_try(Context(load(folder)))[0].text
    assert "so only fewer or faster kernels help" in text, text
    assert int(re.search(r"kernels are (\d+) % of the critical path", text)[1]) > 90


def test_each_part_that_something_is_advised_against_is_one_of_the_path():
    assert set(AGAINST) <= {*PATH, *TOGETHER}


def _copying(folder: Path, name: str) -> str:
    """What is to be tried in a job whose forward pass is a copy of 4 MB in 4 ms."""
    trace = trace_of(Planted(ranks=1, batches=6, forward=4001.0), 0)
    for event in trace.events:
        if event["name"] == "ampere_bf16_s16816gemm_bf16_128x128":
            event |= {"name": name, "cat": "gpu_memcpy", "args": {**event["args"], "bytes": 4_000_000}}
    folder.mkdir()
    trace.write(folder / "trace.json")
    assert convert([str(folder), "--out", str(folder / "out"), "--jobs", "1"]) == 0
    return to_try(Context(load(folder / "out")))[0].text


def test_pinned_memory_is_advised_only_where_the_copies_do_not_use_it(tmp_path):
    pageable = _copying(tmp_path / "a", "Memcpy HtoD (Pageable -> Device)")
    assert "if copies took no time" in pageable
    assert (
        "To try: pinned memory with non_blocking=True, one batch ahead: the copies use pageable" in pageable
    )
    pinned = _copying(tmp_path / "b", "Memcpy HtoD (Pinned -> Device)")
    assert "non_blocking" not in pinned and pinned.endswith(
        "the copies already use pinned memory, at 1.00 GB/s."
    )
    unsaid = _copying(tmp_path / "c", "[CUDA memcpy HtoD]")
    assert unsaid.endswith("(the trace does not say whether they use it already).")
    back = _copying(tmp_path / "d", "Memcpy DtoH (Device -> Pageable)")
    assert "To try: copy less to the host (.item(), .cpu(), printed tensors), or pinned memory" in back
    inside = _copying(tmp_path / "e", "Memcpy DtoD (Device -> Device)")
    assert "pinned" not in inside and ".contiguous()" in inside
