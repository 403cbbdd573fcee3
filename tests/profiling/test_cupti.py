"""CUPTI's own records: what a process records of itself, without a device, and the file of them."""

import threading
import time

import orjson
import pytest

from profiling.errors import UserError
from profiling.markers import open_markers
from profiling.readers.cupti import GROUPS, Reading, RecordsWriter, read_records
from profiling.schemas import BACKWARD, END_OF_BATCH, FORWARD, UPDATE
from profiling.tables import read
from profiling.tools import Origin, cupti, tool
from profiling.tools import read as convert_file
from tests.builders import codes, data_of
from tests.profiling.fake_cupti import (
    ATTRIBUTES,
    CLASSES,
    GEMM,
    MANGLED,
    FakeCupti,
    records_file,
)  # fmt: skip

BATCHES, FIRST = 3, 10


def train(api, marks, batches=BATCHES):
    """A loop as ours: the forward pass launches from this thread, the backward pass from another."""
    for batch in range(batches):
        number = 100 * batch
        api.run("MEMCPY", correlation=number, bytes=4096, copy_kind=1, src_kind=2, dst_kind=3,
                thread=threading.get_native_id())  # fmt: skip
        with marks.forward:
            api.run("CONCURRENT_KERNEL", correlation=number + 1, name=MANGLED, grid_x=4, grid_y=2, grid_z=1,
                    block_x=128, block_y=1, block_z=1, thread=threading.get_native_id())  # fmt: skip
        with marks.backward:
            api.run("CONCURRENT_KERNEL", "DRIVER", correlation=number + 2, name=GEMM, thread=9)
            api.run("MEMSET", correlation=number + 3, bytes=64, memory_kind=3, thread=9)
            api.run("CONCURRENT_KERNEL", correlation=number + 4, name="ncclDevKernel_AllReduce", thread=9)
        with marks.update:
            api.run("CONCURRENT_KERNEL", correlation=number + 5, name=None,
                    thread=threading.get_native_id())  # fmt: skip
        marks.end_of_batch()


def record(api, directory, keep_raw=False):
    capture = cupti.CuptiCapture(directory, 3, keep_raw, api, lambda: None)
    marks = open_markers({})
    train(api, marks, 1)
    capture.start(None, first_batch=FIRST)
    train(api, marks)
    capture.stop()
    capture.stop()
    return capture.write()


@pytest.fixture
def recorded(tmp_path):
    api = FakeCupti()
    findings = record(api, tmp_path, keep_raw=True)
    return api, findings, tmp_path


def test_a_recording_has_the_kernels_of_its_batches_and_no_others(recorded):
    api, findings, directory = recorded
    kernels = read(directory, "kernels").to_pandas()
    assert codes(findings) == ["clock_aligned"]
    assert len(kernels) == 6 * BATCHES and set(kernels["rank"]) == {3}
    assert sorted(set(kernels["batch_index"])) == [FIRST, FIRST + 1, FIRST + 2]
    assert (kernels["duration_ns"] == 2000).all() and set(kernels["stream"]) == {7}
    assert (kernels["launch_ns"] < kernels["start_ns"]).all()
    assert not api.enabled and api.thread_ids == 1


def test_what_each_kernel_is_and_whose(recorded):
    kernels = read(recorded[2], "kernels").to_pandas()
    first = kernels[kernels["batch_index"] == FIRST].sort_values("correlation")
    assert list(first["direction"]) == ["loader", "fprop", "bprop", "bprop", "bprop", "update"]
    assert list(first["class"]) == ["memcpy", "other", "gemm", "memset", "communication", "other"]
    assert list(first["short_name"])[1:3] == ["kernel", GEMM]
    assert first["name"].iloc[0] == "Memcpy HtoD (Pinned -> Device)" and first["bytes"].iloc[0] == 4096
    assert first["name"].iloc[3] == "Memset (Device)" and first["bytes"].iloc[3] == 64
    assert (first["grid"].iloc[1], first["block"].iloc[1]) == ("4,2,1", "128,1,1")
    assert first["name"].iloc[5] == "(a kernel without a name)"


def test_stages_are_marked_on_the_epoch(recorded):
    markers = read(recorded[2], "markers").to_pandas()
    counts = markers.groupby("name", observed=True).size()
    assert {counts[name] for name in (FORWARD, BACKWARD, UPDATE, END_OF_BATCH)} == {BATCHES}
    assert abs(markers["start_ns"].max() - time.time_ns()) < 60e9
    assert set(markers["thread"]) == {threading.get_native_id()}
    assert set(markers.loc[markers["name"] == END_OF_BATCH, "kind"]) == {"mark"}


def test_the_file_gives_the_same_tables_as_the_recording(recorded):
    directory = recorded[2]
    converted = convert_file(directory / "raw" / "cupti.jsonl")
    for name in ("kernels", "markers"):
        assert converted.tables[name].to_pylist() == read(directory, name).to_pylist()


def test_the_device_is_waited_for_before_the_records_are_asked_for(tmp_path):
    api = FakeCupti()

    def wait():
        api.run("CONCURRENT_KERNEL", name="late", correlation=77)

    capture = cupti.CuptiCapture(tmp_path, 0, False, api, wait)
    capture.start()
    capture.stop()
    capture.write()
    assert read(tmp_path, "kernels").column("name").to_pylist() == ["late"]


# --- what goes wrong ----------------------------------------------------------------------------------


def test_records_without_room_and_records_not_handed_over_are_findings(tmp_path):
    findings = record(FakeCupti(dropped=12), tmp_path / "a")
    assert data_of(findings, "records_damaged") == [{"what": "records dropped by the profiler", "n": 12}]
    findings = record(FakeCupti(refuse=["activity_flush_all"]), tmp_path / "b")
    assert "recorded" in codes(findings)
    assert read(tmp_path / "b", "kernels").num_rows == 0


def real_class(kind):
    """The newest class of the real package's records of a kind."""
    module = pytest.importorskip(
        "cupti.cupti", reason=f"cupti-python is not installed ({cupti.Cupti.install})"
    )
    assert kind in module.ActivityKind.__members__
    names = [name for name in dir(module) if name.removeprefix(CLASSES[kind]).isdecimal()] or [CLASSES[kind]]
    return getattr(module, max(names, key=lambda name: int(name.removeprefix(CLASSES[kind]) or 0)))


@pytest.mark.parametrize("kind", ATTRIBUTES)
def test_the_fakes_have_what_the_real_packages_records_have(kind):
    assert set(ATTRIBUTES[kind]) <= set(dir(real_class(kind)))
    assert set(cupti.fields_of(cupti.KINDS[kind])) <= set(ATTRIBUTES[kind])


def lines_of(path):
    return [orjson.loads(line) for line in path.read_bytes().splitlines()]


def put(path, lines):
    path.write_bytes(b"".join(orjson.dumps(line) + b"\n" for line in lines))
    return path


def test_a_file_is_read_as_it_was_written(tmp_path):
    trace, first_batch = read_records(records_file(tmp_path / "rank0.jsonl"))
    assert first_batch == 5
    (aligned,) = trace.findings
    assert aligned.code == "clock_aligned" and aligned.data["residual_ns"] <= 1_000
    assert trace.whole().device["start_ns"].min() == 1_700_000_000_000_000_020
    assert len(trace.whole().device["name"]) == len(trace.whole().launches["thread"]) == 9
    converted = tool("cupti").read(tmp_path / "rank0.jsonl", Origin(4))
    kernels = converted.tables["kernels"].to_pandas()
    assert sorted(set(kernels["batch_index"])) == [5, 6, 7] and set(kernels["rank"]) == {4}


@pytest.mark.parametrize(("change", "message"), [
    (lambda lines: lines[0].update(version=2), "by another release"),
    (lambda lines: lines[0].update(what="x"), "holds no CUPTI records"),
    (lambda lines: lines[0].update(rank=-1), "line 1"),
    (lambda lines: lines[0].update(clock=[1, 2]), "line 1"),
    (lambda lines: lines[2]["kernel"]["start"].append(1), "line 3"),
    (lambda lines: lines[2]["kernel"].update(end=[1.5] * 9), "line 3"),
    (lambda lines: lines[2]["kernel"].update(end=[True] * 9), "line 3"),
    (lambda lines: lines[2]["kernel"].update(end=[2**63] * 9), "line 3"),
    (lambda lines: lines[2]["kernel"].update(name=[9] * 9), "line 3"),
    (lambda lines: lines[2].update(more={}), "line 3"),
    (lambda lines: lines.insert(2, {"dream": {}}), "line 3"),
    (lambda lines: lines.append({"names": []}), "more follows"),
])  # fmt: skip
def test_what_cannot_be_is_one_line_with_its_place(tmp_path, change, message):
    path = records_file(tmp_path / "r.jsonl")
    lines = lines_of(path)
    change(lines)
    with pytest.raises(UserError, match=f"r.jsonl.*{message}"):
        read_records(put(path, lines))


def test_a_file_without_its_end_keeps_its_records(tmp_path):
    path = records_file(tmp_path / "r.jsonl")
    path.write_bytes(path.read_bytes()[:-30])
    trace, _ = read_records(path)
    assert len(trace.whole().device["name"]) == 9
    assert trace.findings[0].code == "recording_cut_short"
    content = path.read_bytes().splitlines()
    path.write_bytes(b"\n".join([*content[:2], content[2][:-9], *content[3:]]))
    with pytest.raises(UserError, match=r"r\.jsonl is damaged at line 3"):
        read_records(path)


def test_times_that_cupti_could_not_tell_are_left_out_and_counted(tmp_path):
    path = records_file(tmp_path / "r.jsonl")
    lines = lines_of(path)
    lines[2]["kernel"]["start"][0] = lines[2]["kernel"]["end"][0] = 0
    lines[2]["kernel"]["end"][1] = 1  # ends before it begins
    lines[2]["kernel"]["device"][2] = 2**40
    trace, _ = read_records(put(path, lines))
    assert trace.tables["device"].rows == 6 and trace.malformed == 3


def test_clocks_that_move_apart_are_a_finding_and_an_empty_recording_is_one(tmp_path):
    path = tmp_path / "r.jsonl"
    with path.open("wb") as file:
        writer = RecordsWriter(file, 0, 0, Reading(1000, 5000, 10))
        writer.end(Reading(2000, 2_006_000, 10), 0, [])
    aligned, empty = read_records(path)[0].findings
    assert aligned.data["residual_ns"] == pytest.approx(1e6, rel=0.01)  # they moved 2 ms apart
    assert empty.code == "recording_empty"


def test_threads_of_cupti_may_hand_over_at_once(tmp_path):
    path = tmp_path / "r.jsonl"
    with path.open("wb") as file:
        writer = RecordsWriter(file, 0, 0, Reading(0, 0, 0))

        def add(thread):
            for number in range(50):
                row = (1, 2, 0, 7, number, f"kernel{thread}_{number}", 1, 1, 1, 1, 1, 1)
                writer.add(
                    "kernel", {name: [value] for name, value in zip(GROUPS["kernel"], row, strict=True)}
                )

        threads = [threading.Thread(target=add, args=(number,)) for number in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        writer.end(Reading(0, 0, 0), 0, [])
    events = read_records(path)[0].whole()
    assert len(events.device["name"]) == 200
    assert len({events.names[name] for name in events.device["name"]}) == 200
