"""profiling.convert --out: the traces of a job are one result, and its record says what they say."""

import os
import shutil

import pytest

from profiling.convert import main
from profiling.errors import UserError
from profiling.tables import read
from profiling.traced_job import read_job
from tests.analysis.commands import one_line_error, run
from tests.profiling.samples import SAMPLES
from tests.profiling.traced_jobs import DEVICE, START_US, Planted, trace_of, write_job

US = 1000


def converted(tmp_path, *paths, options=()):
    out = tmp_path / "out"
    return main([*map(str, paths), "--out", str(out), "--jobs", "1", *options]), out


def convert_one(tmp_path, trace, *options):
    """The result of a single trace."""
    trace.write(tmp_path / "one.json")
    _, out = converted(tmp_path, tmp_path / "one.json", options=options)
    return out / "one"


def of_code(job, code):
    """What the finding of a code says."""
    (found,) = [finding for finding in job.findings if finding.code == code]
    return dict(found.data)


def batches_of(directory, rank=0):
    return read(directory / f"rank_{rank:04d}", "batches").to_pylist()


def test_the_traces_of_all_ranks_become_one_job_with_what_they_say_of_it(tmp_path):
    planted = Planted(ranks=4, batches=3, late=((2, 70.0),))
    facts = {"cuda_runtime_version": 12040, "host_name": "node7"}
    write_job(tmp_path / "mine", planted, name="host1_{0}/rank{0}.json", **facts)
    code, out = converted(tmp_path, tmp_path / "mine")
    assert code == 0 and [path.name for path in out.iterdir()] == ["mine"]
    job = read_job(out / "mine")
    assert (job.tool, job.world_size, job.world_size_from, job.backend) == ("torch", 4, "", "nccl")
    assert [one.rank for one in job.ranks] == [0, 1, 2, 3] and job.devices == [DEVICE]
    assert [(group.size, group.ranks, group.backend) for group in job.groups] == [(4, [0, 1, 2, 3], "nccl")]
    assert job.versions == {"CUDA": "12040", "NCCL": "2.21.5"}
    assert (job.batches_from, job.batches_confidence) == ("ProfilerStep", 1.0)
    assert [one.batches for one in job.ranks] == [3] * 4
    assert (job.nodes, job.ranks[3].host) == (1, "node7")
    assert job.ranks[0].source == "host1_0/rank0.json"


def test_batches_and_their_stages_are_as_the_device_did_them(tmp_path):
    planted = Planted(ranks=1, batches=4)
    one = convert_one(tmp_path, trace_of(planted, 0))
    rows = batches_of(one)
    assert [row["batch_index"] for row in rows] == [0, 1, 2, 3]  # the trace numbers them from 3
    assert all(row["attributed"] and row["images"] is None for row in rows)
    starts = [round(START_US * US) + round(number * planted.batch) * US for number in range(4)]
    assert [row["start_ns"] for row in rows] == pytest.approx(starts, abs=2 * US)
    second = rows[1]
    assert second["end_ns"] - second["start_ns"] == pytest.approx(planted.batch * US, abs=2 * US)
    assert second["forward_ns"] == pytest.approx(planted.forward * US, abs=3 * US)
    assert second["backward_ns"] == pytest.approx(planted.backward * US, abs=US)
    assert second["update_ns"] == pytest.approx(planted.update * US, abs=US)
    assert sorted(set(read(one / "rank_0000", "kernels")["batch_index"].to_pylist())) == [0, 1, 2, 3]


@pytest.mark.parametrize(
    ("marker", "options", "told"),
    [
        ("ProfilerStep#{}", (), "ProfilerStep"),
        ("", (), "Optimizer.step"),
        ("train step {}", ("--batch-marker", r"^train step \d+$"), r"ranges like ^train step \d+$"),
    ],
)
def test_batches_are_told_by_what_marks_them(tmp_path, marker, options, told):
    one = convert_one(tmp_path, trace_of(Planted(ranks=1, batches=5), 0, marker=marker), *options)
    assert read_job(one).batches_from == told
    assert len(batches_of(one)) == 5


def test_ranges_that_overlap_are_no_batches(tmp_path):
    trace = trace_of(Planted(ranks=1, batches=5), 0, marker="train step {}")
    for event in trace.events:
        if event["name"] == "train step 4":
            event["dur"] += 500  # into step 5
    trace.write(tmp_path / "one.json")
    with pytest.raises(UserError, match="1 of 5 ranges overlap the one before"):
        main([str(tmp_path / "one.json"), "--out", str(tmp_path / "out"), "--batch-marker", "train step"])


@pytest.mark.parametrize(("marker", "direction"), [("ProfilerStep#{}", "loader"), ("", "none")])
def test_copies_to_the_gpu_are_the_loaders_only_where_there_are_batches(tmp_path, marker, direction):
    trace = trace_of(Planted(ranks=1, batches=1), 0, marker=marker)
    trace.events = [event for event in trace.events if not event["name"].startswith("Optimizer.step")]
    trace.kernel("Memcpy HtoD (Pageable -> Device)", START_US + 21, START_US + 810, START_US + 820, thread=9)
    rows = read(convert_one(tmp_path, trace) / "rank_0000", "kernels").to_pylist()
    assert [row["direction"] for row in rows if "HtoD" in row["name"]] == [direction]


def recorded_in_part():
    trace = trace_of(Planted(ranks=1, batches=6), 0, marker="")
    cut = START_US + 29  # its forward and backward passes came before
    trace.events = [event for event in trace.events if event["ts"] > cut]
    return trace


def slow_by_far():
    trace = trace_of(Planted(ranks=1, batches=6), 0)
    first = next(event for event in trace.events if event["name"].startswith("ProfilerStep"))
    first["ts"], first["dur"] = first["ts"] - 5000, first["dur"] + 5000
    return trace


@pytest.mark.parametrize("make", [recorded_in_part, slow_by_far])
def test_a_first_batch_that_is_not_as_the_others_is_left_out(tmp_path, make):
    one = convert_one(tmp_path, make())
    assert [row["attributed"] for row in batches_of(one)] == [False, True, True, True, True, True]


def test_a_first_step_begins_when_the_gpu_has_done_what_was_launched_before_the_recording(tmp_path):
    """The host is ahead of the GPU: it begins the first step while the GPU still works on earlier ones."""
    trace = slow_by_far()
    for begin in (START_US - 4990, START_US - 2000):
        trace.kernel("ampere_sgemm_64", begin - 20, begin, begin + 1990)
        trace.events.pop(-2)  # its launch
    rows = batches_of(convert_one(tmp_path, trace))
    assert all(row["attributed"] for row in rows)
    assert rows[0]["start_ns"] == int(START_US - 10) * 1000


def test_passes_that_take_turns_have_no_stages(tmp_path):
    trace = trace_of(Planted(ranks=1, batches=2), 0)
    for number in range(2):  # a second micro-batch behind the backward pass of the first
        at = START_US + number * Planted(ranks=1).batch
        trace.host("aten::mm", at + 21, at + 25, more={"Sequence number": 7, "Fwd thread id": 0})
        trace.kernel("ampere_sgemm_64", at + 22, at + 851, at + 889)
        trace.host("MmBackward0", at + 26, at + 29, thread=2, more={"Sequence number": 7, "Fwd thread id": 1})
    one = convert_one(tmp_path, trace)
    assert all(row["forward_ns"] is None and row["end_ns"] > row["start_ns"] for row in batches_of(one))


def test_a_recording_without_steps_begins_with_its_first_kernel(tmp_path):
    """What the first launch waits for is the start of CUDA, and so is a copy before it."""
    planted = Planted(ranks=1, batches=2)
    trace = trace_of(planted, 0, marker="")
    trace.events = [event for event in trace.events if not event["name"].startswith("Optimizer")]
    copy = "Memcpy HtoD (Pageable -> Device)"
    trace.kernel(copy, START_US - 30_000.0, START_US - 900, START_US - 890, category="gpu_memcpy")
    one = convert_one(tmp_path, trace)
    assert read_job(one).batches_from == "the whole recording"
    (row,) = batches_of(one)
    assert (row["end_ns"] - row["start_ns"]) / 1000 == 2 * planted.batch - planted.idle - 2  # starts at + 2
    assert read(one / "rank_0000", "kernels")["batch_index"].null_count == 0


def test_kernels_without_a_launch_are_of_the_batch_around_them(tmp_path):
    """A graph's kernels, to some tools: what ran before the first known launch stays without a batch."""
    trace = trace_of(Planted(ranks=1, batches=3), 0)
    at = START_US + Planted(ranks=1).batch
    graph = {"ph": "X", "cat": "kernel", "pid": 0, "tid": 7, "dur": 3}
    for when in (at + 855, START_US - 50):
        given = {"device": 0, "stream": 7, "correlation": 999_999}
        trace.events.append({**graph, "name": "of_a_graph", "ts": when, "args": given})
    rows = read(convert_one(tmp_path, trace) / "rank_0000", "kernels").to_pylist()
    assert [row["batch_index"] for row in rows if row["name"] == "of_a_graph"] == [None, 1]


# --- bad input ----------------------------------------------------------------------------------------


def of_two_sizes(folder):
    write_job(folder, Planted(ranks=2), name="a_rank{}.json")
    write_job(folder, Planted(ranks=4), name="b_rank{}.json")


def a_day_apart(folder):
    write_job(folder, Planted(ranks=2))
    late = trace_of(Planted(ranks=2), 1)
    for event in late.events:
        event["ts"] += 86400e6
    late.write(folder / "rank1.json")


def without_ranks(folder):
    folder.mkdir()
    for name in ("a", "b"):
        trace_of(Planted(ranks=1), 0, distributedInfo=None).write(folder / f"{name}.json")


@pytest.mark.parametrize(
    ("write", "ranks"),
    [(of_two_sizes, [[0, 1], [0, 1, 2, 3]]), (a_day_apart, [[0], [1]]), (without_ranks, [[0], [0]])],
)
def test_traces_of_different_jobs_in_one_folder_are_jobs_of_their_own(tmp_path, capsys, write, ranks):
    write(tmp_path / "mixed")
    _, out = converted(tmp_path, tmp_path / "mixed")
    jobs = [read_job(path) for path in sorted(out.iterdir())]
    assert sorted([one.rank for one in job.ranks] for job in jobs) == ranks
    assert ("names such as rank0.json, rank1.json" in capsys.readouterr().err) is (write is without_ranks)


def test_ranks_missing_or_twice_are_said_and_the_rest_is_answered(tmp_path, capsys):
    folder = write_job(tmp_path / "job", Planted(ranks=4))
    (folder / "rank3.json").unlink()
    (folder / "again_rank1.json").write_bytes((folder / "rank1.json").read_bytes())
    _, out = converted(tmp_path, folder)
    (directory,) = out.iterdir()
    job = read_job(directory)
    assert [one.rank for one in job.ranks] == [0, 1, 2]
    assert of_code(job, "profiles_missing") == {"n": 1, "of": 4, "ranks": [3]}
    assert of_code(job, "recorded_twice") == {"what": "rank1.json", "unused": ["again_rank1.json"]}
    assert job.unused == ["again_rank1.json"] and job.ranks[1].source == "rank1.json"
    assert capsys.readouterr().err.splitlines()[-1].startswith("scaleprof: 3 converted, 0 not, 1 ")


@pytest.mark.parametrize(
    ("late", "changed", "used"),
    [
        (("a", 60), "a", "b"),  # recorded with those of other ranks
        (("a", 1e-3), "b", "a"),  # recorded last, also if the other file was copied later
        (("a", 0), "b", "b"),  # written last
        (("a", 0), "a", "a"),
    ],
)
def test_of_two_traces_of_a_rank_that_of_the_others_recording_is_used(tmp_path, late, changed, used):
    folder = write_job(tmp_path / "job", Planted(ranks=3), name="host1_{}.json")
    shutil.move(folder / "host1_2.json", folder / "a.json")
    shutil.copy(folder / "a.json", folder / "b.json")
    for name in "ab":
        recorded = trace_of(Planted(ranks=3), 2)
        for event in recorded.events:
            event["ts"] += late[1] * 1e6 * (name == late[0])
        recorded.write(folder / f"{name}.json")
        os.utime(folder / f"{name}.json", (1e9 + (name == changed),) * 2)
    _, out = converted(tmp_path, folder)
    job = read_job(out / "job")
    unused = "b" if used == "a" else "a"
    assert job.ranks[2].source == f"{used}.json" and job.unused == [f"{unused}.json"]


def test_jobs_of_one_name_are_told_apart_by_as_few_folders_as_that_takes(tmp_path):
    for name in ("n4/traces/run", "n8/traces/run", "n8/again/run", "n8/again/other"):
        write_job(tmp_path / "exp" / name, Planted(ranks=2, batches=1))
    for file in (tmp_path / "exp/n8/again/other").glob("*.json"):
        file.with_name(f"b_{file.name}").write_bytes(file.read_bytes())
        file.rename(file.with_name(f"a_{file.name}"))
    _, out = converted(tmp_path, tmp_path / "exp")
    names = {"n4_traces_run", "n8_traces_run", "n8_again_run", "other_a", "other_b"}
    assert {path.name for path in out.iterdir()} == names
    (tmp_path / "exp/n8/again/run").rename(tmp_path / "exp/n8/again/other/once")
    _, out = converted(tmp_path / "second", tmp_path / "exp")
    names = {"n4_traces_run", "n8_traces_run", "once", "other_a", "other_b"}
    assert {path.name for path in out.iterdir()} == names


def test_a_timeline_without_steps_is_no_failure_where_other_jobs_answer(tmp_path):
    write_job(tmp_path / "raw" / "job", Planted(ranks=2))
    SAMPLES["horovod"][1](tmp_path / "raw" / "timeline.json")
    out = tmp_path / "my out"
    assert main([str(tmp_path / "raw"), "--out", str(out), "--jobs", "1"]) == 0
    for command in ("anatomy", "utilization", "critical_path"):
        done = run(f"analysis.{command}", out, "--notes")
        assert done.code == 0 and "timeline" in done.out and "unusable" not in done.out
    one_line_error(run("analysis.anatomy", out / "timeline"))
    done = run("analysis.report.__main__", out)
    assert (done.code, done.err) == (0, "")
