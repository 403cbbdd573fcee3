"""The critical path: exact on graphs and programs made by hand, and the sum of a step on recorded ones."""

from collections.abc import Generator, Sequence

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from analysis.frames.load import load
from analysis.frames.matching import Clock
from analysis.measures import critical_path
from analysis.measures.critical_path import PARTS, WHAT_IF, Group, RunPaths, paths_of
from analysis.measures.waits import TEXTS, Recorded
from benchmarks.planted_sweep import Job, Times, layer_kernels, write_sweep
from profiling.schemas import CLASSES
from tests.analysis.commands import run as run_module
from tests.analysis.frames import critical_path_rows
from tests.analysis.traced import converted, job, study_of
from tests.profiling.traced_jobs import Planted
from tests.profiling.traces import Trace

LATENCY = 5
COMMUNICATION = CLASSES.index("communication")
small, call = st.integers(0, 40), st.integers(1, 12)
# (what, the host's code before it, its call, its kernel): kernels may take long or be short.
launch = st.tuples(st.sampled_from(["gemm", "pointwise"]), small, call, st.integers(1, 80))
wait = st.tuples(st.just("wait"), small, call, st.just(0))
some = st.lists(st.one_of(launch, launch, wait), max_size=6)
# Ranks make as many collectives; between them each does something else.
stretches = st.lists(st.tuples(some, some, small, small, st.integers(1, 50)), min_size=1, max_size=4)


def programs(stretched) -> list[list[tuple[str, int, int, int]]]:
    """Of two ranks; each begins with a kernel on an idle device, by which its latency is known."""
    of_ranks: list[list[tuple[str, int, int, int]]] = [[("gemm", 3, 1, 2)], [("gemm", 1, 2, 3)]]
    for first, second, gap_1, gap_2, transfer in stretched:
        of_ranks[0] += [*first, ("collectives", gap_1, 2, transfer)]
        of_ranks[1] += [*second, ("collectives", gap_2, 2, transfer)]
    return of_ranks


Row = tuple[str, int, int, int, int]  # what, when its call began and returned, when it ran


def rank(program, free: Sequence[str]) -> Generator[int, int, list[Row]]:
    """What a rank does; it yields when it enters a collective and is told when the last one did."""
    host = device = 0
    rows = []
    for what, gap, called, lasts in program:
        host += 0 if "host" in free else gap
        begin = host
        if what == "wait":
            host = max(host, device) + (0 if "synchronization" in free else called)
            rows.append((what, begin, host, 0, 0))
            continue
        host += 0 if "launches" in free else called
        start = max(device, begin + (0 if "launches" in free else LATENCY))
        entered = start if what != "collectives" or what in free else (yield start)
        device = max(start, entered) + (0 if what in free else lasts)
        rows.append((what, begin, host, start, device))
    return rows


def run(of_ranks, free: Sequence[str] = ()) -> list[list[Row]]:
    """All ranks together."""
    running = [rank(program, free) for program in of_ranks]
    found: list[list[Row]] = [[] for _ in running]
    tell: list[int | None] = [None] * len(running)
    while True:
        entered = []
        for place, one in enumerate(running):
            try:
                entered.append(one.send(tell[place]))
            except StopIteration as done:
                found[place] = done.value
        if not entered:
            return found
        last = max(entered)
        tell = [came if "waiting for other ranks" in free else last for came in entered]


def end_of(rows: Sequence[Row]) -> int:
    return max(max(returned, end) for _, _, returned, _, end in rows)


def recorded(number: int, rows: Sequence[Row], shift: int) -> Recorded:
    """What a profiler would say of it, on a clock that is ahead."""
    ran = [row for row in rows if row[0] != "wait"]
    waits = np.array([row[1:3] for row in rows if row[0] == "wait"], np.int64).reshape(-1, 2) + shift
    called, returned, start, end = (np.array([row[1:] for row in ran], np.int64).reshape(-1, 4) + shift).T
    kind = [CLASSES.index("communication" if row[0] == "collectives" else row[0]) for row in ran]
    return recording(
        number, np.array(kind), start, end, (shift, end_of(rows) + shift), waits, 2,
        device=0, stream=7, launch_ns=called, launch_end_ns=returned, launch_thread=1,
    )  # fmt: skip


def recording(
    number: int,
    kind: np.ndarray,
    start: np.ndarray,
    end: np.ndarray,
    step: tuple[int, int],
    waits: np.ndarray,
    members: int,
    **columns: np.ndarray | int,
) -> Recorded:
    """What a profiler recorded of a rank's step.

    Args:
        waits: when calls began and returned that waited.
        members: how many ranks made each collective.
    """
    talks = kind == COMMUNICATION
    kernels = {
        "batch_index": 0, "start_ns": start, "duration_ns": end - start, "class": kind, **columns,
        "collective": "allreduce", "call": np.where(talks, talks.cumsum(), 0), "members": members,
    }  # fmt: skip
    return Recorded(
        number,
        pd.DataFrame({"batch_index": [0], "start_ns": step[0], "load_end_ns": step[0], "end_ns": step[1]}),
        pd.DataFrame(kernels | dict.fromkeys(TEXTS)),
        pd.DataFrame(waits, columns=["start_ns", "end_ns"]).assign(thread=1, name="cudaStreamSynchronize"),
    )


@settings(max_examples=20)
@given(stretches)
def test_what_would_be_saved_is_what_the_program_takes_without_it(stretched):
    of_ranks = programs(stretched)
    found = run(of_ranks)
    ranks = [recorded(number, rows, 7000 * number) for number, rows in enumerate(found)]
    (path,) = Group(ranks, [Clock(), Clock(7000.0)]).paths()
    begin, ns = path.pieces["start_ns"] - 7000 * path.pieces["rank"], path.pieces["duration_ns"]
    assert path.step["step_ns"] == max(map(end_of, found)) == ns.sum()
    assert (begin[1:].to_numpy() == (begin + ns)[:-1].to_numpy()).all()
    kinds = "gemm", "pointwise", "host", "launches", "synchronization", "collectives"
    for name in (*kinds, "waiting for other ranks"):
        assert path.step[name] == max(map(end_of, run(of_ranks, [name]))), name


def test_a_kernel_that_starts_when_another_streams_ends_waited_for_it():
    rows = [("gemm", 10, 12, 15, 100), ("gemm", 12, 14, 100, 150), ("pointwise", 14, 16, 151, 160)]
    of = recorded(0, rows, 0)
    of.kernels.loc[2, "stream"] = 20
    (path,) = Group([of]).paths()
    kernels = path.pieces[path.pieces["part"].isin(CLASSES)]
    assert kernels["part"].tolist() == ["gemm", "gemm", "pointwise"]
    assert kernels["duration_ns"].tolist() == [85, 50, 9]
    assert path.step["gemm"] == 14 + 5 + 9  # its launch, the latency, the kernel


def test_a_collective_that_nobody_waits_for_leaves_the_others_as_they_are():
    """The first ends when its last rank enters it: rank 0 waits for rank 1 in the second alone."""
    of_ranks = [
        [("collectives", 0, 2, 5, 20), ("collectives", 2, 4, 20, 60)],
        [("collectives", 0, 2, 20, 20), ("gemm", 2, 4, 20, 50), ("collectives", 4, 6, 50, 60)],
    ]
    (path,) = Group([recorded(number, rows, 0) for number, rows in enumerate(of_ranks)]).paths()
    assert path.pieces["duration_ns"].sum() == path.step["step_ns"] == 60
    gemm = path.pieces[path.pieces["part"] == "gemm"]
    assert (gemm["rank"].tolist(), gemm["duration_ns"].tolist()) == ([1], [30])


def parts_of(tmp_path, trace: Trace) -> dict[str, dict]:
    """The parts of the critical path of a recording of one rank."""
    return {row["part"]: row for row in critical_path_rows(study_of(tmp_path, trace))}


def test_the_late_rank_of_a_job_is_on_the_path_and_pieces_sum_to_the_parts(tmp_path):
    planted = Planted(ranks=4, batches=6, late=((2, 70.0),))
    study = load(job(tmp_path, planted))
    of = {row["part"]: row for row in critical_path_rows(study)}
    assert of["collectives"]["step_ms"] == pytest.approx(planted.batch / 1e3, abs=2e-3)
    parts = {name: of[name]["path_ms"] for name in PARTS if name in of}
    assert sum(parts.values()) == pytest.approx(of["gemm"]["step_ms"])
    assert of["collectives"]["path_ms"] == pytest.approx(planted.transfer / 1e3, abs=2e-3)
    assert "waiting for other ranks" not in of  # the late rank itself would be no faster
    pieces = critical_path_rows(study, ["rank", "operator", "kernel"])
    for part, ms in parts.items():
        assert sum(row["path_ms"] for row in pieces if row["part"] == part) == pytest.approx(ms)
    assert next(row["rank"] for row in pieces if row["part"] == "gemm") == 2
    assert all(row.get("saved_ms") is None for row in pieces)


def test_a_wait_for_the_device_is_followed_to_its_kernel(tmp_path):
    trace = Trace()
    for step in range(2):
        at = 1000.0 * step
        trace.range(f"ProfilerStep#{step}", at, at + 1000)
        trace.kernel("gemm_kernel", at + 10, at + 20, at + 900)
        wait = {"ph": "X", "cat": "cuda_runtime", "name": "cudaStreamSynchronize", "pid": 9, "tid": 1}
        trace.events.append({**wait, "ts": at + 12, "dur": 890, "args": {"correlation": 900 + step}})
    of = parts_of(tmp_path, trace)
    assert of["gemm"]["path_ms"] == pytest.approx(0.880)
    assert of["synchronization"]["path_ms"] == pytest.approx(0.002)
    assert of["host"]["saved_ms"] == pytest.approx(of["host"]["path_ms"])


@pytest.mark.parametrize(("returns", "saved"), [(880, 0.800), (920, 0.800), (130, 0.0)])
def test_a_copy_that_blocks_its_call_is_waited_for_though_it_ends_a_little_later(tmp_path, returns, saved):
    """From pageable memory it returns when the last piece is in a buffer; from pinned memory at once."""
    trace = Trace()
    for step in range(2):
        at = 1000.0 * step
        trace.range(f"ProfilerStep#{step}", at, at + 1000)
        trace.kernel("Memcpy HtoD (Pageable -> Device)", at + 90, at + 100, at + 900, category="gpu_memcpy")
        trace.events[-2]["dur"] = returns - 90
        trace.kernel("gemm_kernel", at + 930, at + 940, at + 990, stream=9)
    of = parts_of(tmp_path, trace)
    assert (of["copies"]["saved_ms"] if "copies" in of else 0) == pytest.approx(saved, abs=0.03)


@pytest.mark.parametrize(("queued", "saved", "launches"), [(600, 4.302, 0.02), (300, 0.0, 4.613)])
def test_a_long_launch_behind_a_full_queue_waits_for_the_device(tmp_path, queued, saved, launches):
    """Of as long a launch behind fewer kernels nobody knows why it took long: it stays as long as it was."""
    trace = Trace()
    for step in range(2):
        at = 10_000.0 * step
        trace.range(f"ProfilerStep#{step}", at, at + 6000)
        trace.kernel("gemm_kernel", at + 10, at + 20, at + 5000)
        for number in range(queued):
            trace.kernel("relu_kernel", at + 50 + number, at + 5000 + number, at + 5001 + number)
        trace.kernel("relu_kernel", at + 700, at + 5002 + queued, at + 5003 + queued)
        trace.events[-2]["dur"] = 4302
        trace.kernel("relu_kernel", at + 5900, at + 5910, at + 5990)
    of = parts_of(tmp_path, trace)
    assert (of["gemm"]["saved_ms"] if "gemm" in of else 0) == pytest.approx(saved, abs=0.02)
    assert of["launches"]["path_ms"] == pytest.approx(launches, abs=0.01)
    assert "synchronization" not in of


REAL = ("nccl_data", "resnet50_v100_dims_old_schema", "resnet18_ddp_mi300_rank0of8", "dlrm_8ranks")


@pytest.mark.parametrize("name", REAL)
def test_on_real_traces_the_pieces_sum_to_the_step(name, shared_data, tmp_path):
    trace = shared_data / "kineto" / name
    trace = trace if trace.is_dir() else trace.with_name(f"{name}.json.gz")
    study = load(converted(trace, tmp_path))
    paths = paths_of(study, study.recorded[0])
    assert len(paths.steps)
    assert paths.pieces.groupby("path")["duration_ns"].sum().tolist() == paths.steps["step_ns"].tolist()
    free = paths.steps[list(WHAT_IF)]
    assert (free >= 0).all(axis=None) and free.le(paths.steps["step_ns"], axis=0).all(axis=None)


def test_of_a_long_recording_the_steps_in_the_middle_are_read(tmp_path, monkeypatch):
    folder = job(tmp_path, Planted(ranks=2, batches=9, late=((1, 70.0),)))
    (source,) = (study := load(folder)).recorded
    whole = paths_of(study, source)
    monkeypatch.setattr(critical_path, "MOST_KERNELS", 2 * 9 * 4 // 3)
    found = paths_of(study := load(folder), source)
    in_part = [one.data for one in study.findings if one.code == "path_in_part"]
    assert in_part == [{"n": 3, "of": 9, "what": "steps"}]
    for name, column in (("steps", "step_ns"), ("pieces", "start_ns")):
        every, few = getattr(whole, name), getattr(found, name)
        assert few[column].tolist() == every[every["step"].isin((3, 4, 5))][column].tolist()
    ran = run_module("analysis.critical_path", folder, "--by", "operator,layer", "--top=2", "--format=csv")
    assert len(ran.csv) == 2 and "layer of kernels" in ran.err


def test_of_many_ranks_those_are_read_that_the_path_leads_through(tmp_path, monkeypatch):
    def without_launches(rank: int, times: Times, traced: int) -> dict:
        return {**layer_kernels(rank, times, traced), "launch_ns": None}

    jobs = [Job(ranks=12, nodes=3)]
    write_sweep(tmp_path, jobs, repetitions={"torch": 1}, batches=4, recorded=without_launches)

    def found() -> tuple[RunPaths, list[int]]:
        study = load(tmp_path)
        paths = paths_of(study, study.recorded[0])
        return paths, [one.data["n"] for one in study.findings if one.code == "path_in_part"]

    whole, _ = found()
    assert len(whole.steps) == 2
    assert len(set(whole.pieces["rank"])) > 1
    for most in (3, 8):
        monkeypatch.setattr(critical_path, "MOST_RANKS", most)
        few, ranks_read = found()
        assert ranks_read == [most]
        assert len(few.steps) == len(whole.steps)
    names = ["rank", "part", "start_ns", "duration_ns", "kernel", "layer"]
    assert few.pieces[names].equals(whole.pieces[names])
    assert few.steps["step_ns"].equals(whole.steps["step_ns"])
    # A rank that is left out may be the last when another takes no time.
    assert (few.steps[list(WHAT_IF)] <= whole.steps[list(WHAT_IF)]).all(axis=None)
