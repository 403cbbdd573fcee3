"""CUPTI's own records: what a process records of itself, and what its file says; without a device."""

import sys
import threading
import time
from types import ModuleType, SimpleNamespace

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from profiling.convert import read as convert_file
from profiling.cupti_records import GROUPS, Reading, RecordsWriter, read_records
from profiling.errors import UserError
from profiling.markers import open_markers
from profiling.tables import BACKWARD, END_OF_BATCH, FORWARD, UPDATE, read
from profiling.tools import cupti, open_capture
from tests.profiling.fake_cupti import (
    ATTRIBUTES,
    CLASSES,
    GEMM,
    MANGLED,
    ActivityKind,
    CuptiError,
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
    assert findings[0].startswith("CUPTI: its clock was set to the host's, to within ") and findings[1:] == [
        "CUPTI: no input shapes: FLOPs and bytes of operators are not known; profile with record_shapes"
    ]
    assert len(kernels) == 6 * BATCHES and set(kernels["rank"]) == {3}
    assert sorted(set(kernels["batch_index"])) == [FIRST, FIRST + 1, FIRST + 2]
    assert (kernels["duration_ns"] == 2000).all() and set(kernels["stream"]) == {7}
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


def test_nothing_raw_stays_unasked_and_markers_are_left_alone_afterwards(tmp_path):
    api = FakeCupti()
    record(api, tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["kernels.parquet", "markers.parquet"]
    from profiling import markers

    assert markers._LISTENERS == []


def test_a_capture_that_never_began_says_so(tmp_path):
    capture = cupti.CuptiCapture(tmp_path, 0, False, FakeCupti(), lambda: None)
    capture.stop()
    assert capture.write() == ["the profiler never ran: no batch was to be attributed"]
    assert list(tmp_path.iterdir()) == []


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


def test_a_refusal_is_one_line(tmp_path):
    capture = cupti.CuptiCapture(tmp_path, 0, False, FakeCupti(refuse=["activity_enable"]), lambda: None)
    with pytest.raises(
        UserError, match=r"CUPTI does not record this process .CUPTI_ERROR of activity_enable"
    ):
        capture.start()
    capture.write()


def test_records_without_room_and_records_not_handed_over_are_findings(tmp_path):
    findings = record(FakeCupti(dropped=12), tmp_path / "a")
    assert any("no room for 12 records" in finding for finding in findings)
    findings = record(FakeCupti(refuse=["activity_flush_all"]), tmp_path / "b")
    assert any("did not hand over all its records" in finding for finding in findings)
    assert read(tmp_path / "b", "kernels").num_rows == 0


def test_an_error_in_cuptis_thread_is_a_finding_and_the_rest_is_kept(tmp_path):
    api = FakeCupti()
    capture = cupti.CuptiCapture(tmp_path, 0, False, api, lambda: None)
    capture.start()
    api.run("CONCURRENT_KERNEL", name="good", correlation=1)
    api.activity_flush_all(0)
    api.pending = [SimpleNamespace(kind=10, start=1)]  # of a release that names its fields anew
    capture.stop()
    findings = capture.write()
    assert any("1 records could not be written" in finding for finding in findings)
    assert read(tmp_path, "kernels").column("name").to_pylist() == ["good"]


def package(api):
    module = ModuleType("cupti")
    module.cupti = api
    return module


def test_without_the_package_one_line_says_how_to_get_it(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "cupti", None)
    with pytest.raises(UserError, match=r"profile cupti needs the package cupti-python .pip install"):
        open_capture("cupti", tmp_path, 0)
    assert "pip install" in cupti.why_not()


@pytest.mark.parametrize(
    "error", [RuntimeError("only CUDA 13.0 or later driver is supported"), CuptiError("x")]
)
def test_without_a_driver_one_line_says_so(tmp_path, monkeypatch, error):
    api = FakeCupti()

    def refuse():
        raise error

    api.get_timestamp = refuse
    monkeypatch.setitem(sys.modules, "cupti", package(api))
    with pytest.raises(UserError, match=f"needs an NVIDIA GPU and its driver: {error}"):
        open_capture("cupti", tmp_path, 0)


def test_with_both_the_packages_functions_record(tmp_path, monkeypatch):
    torch = pytest.importorskip("torch")
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    api = FakeCupti()
    monkeypatch.setitem(sys.modules, "cupti", package(api))
    assert cupti.why_not() == ""
    capture = open_capture("cupti", tmp_path, 0)
    capture.start()
    api.run("MEMCPY2", correlation=5, bytes=10, copy_kind=10, src_kind=3, dst_kind=3)
    capture.stop()
    capture.write()
    (row,) = read(tmp_path, "kernels").to_pylist()
    assert row["name"] == "Memcpy PtoP (Device -> Device)" and row["bytes"] == 20  # read and written


def real_class(kind):
    """The newest class of the real package's records of a kind."""
    module = pytest.importorskip("cupti.cupti", reason=f"cupti-python is not installed ({cupti.INSTALL})")
    assert kind in module.ActivityKind.__members__
    names = [name for name in dir(module) if name.removeprefix(CLASSES[kind]).isdecimal()] or [CLASSES[kind]]
    return getattr(module, max(names, key=lambda name: int(name.removeprefix(CLASSES[kind]) or 0)))


@pytest.mark.parametrize("kind", ATTRIBUTES)
def test_the_fakes_have_what_the_real_packages_records_have(kind):
    assert set(ATTRIBUTES[kind]) <= set(dir(real_class(kind)))
    assert set(cupti.fields_of(cupti.KINDS[kind])) <= set(ATTRIBUTES[kind])


# Release 13.0 looks for the buffer that a record came from when the record goes; these came from none.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_the_real_packages_records_are_taken(tmp_path):
    """Records of the real package, made here, go the way that those of a device would."""
    api = FakeCupti()
    capture = cupti.CuptiCapture(tmp_path, 0, False, api, lambda: None)
    capture.start()
    now = api.get_timestamp()
    for kind in ATTRIBUTES:
        one = real_class(kind)()
        for name in cupti.fields_of(cupti.KINDS[kind]):
            setattr(one, name, "" if name == "name" else 0)
        one.kind, one.correlation_id = int(ActivityKind[kind]), 5
        one.start, one.end = now, now + 700
        if kind == "CONCURRENT_KERNEL":
            one.name, one.grid_x, one.grid_y, one.grid_z, one.stream_id = MANGLED, 3, 1, 1, 7
        api.pending.append(one)
    capture.stop()
    findings = capture.write()
    assert not any("could not be written" in finding for finding in findings)
    kernels = read(tmp_path, "kernels").to_pandas()
    assert len(kernels) == 4 and (kernels["duration_ns"] == 700).all()
    (kernel,) = kernels[kernels["short_name"] == "kernel"].to_dict("records")
    assert (kernel["grid"], kernel["stream"]) == ("3,1,1", 7)


# --- the file -----------------------------------------------------------------------------------------


def lines_of(path):
    return [orjson.loads(line) for line in path.read_bytes().splitlines()]


def put(path, lines):
    path.write_bytes(b"".join(orjson.dumps(line) + b"\n" for line in lines))
    return path


def test_a_file_is_read_as_it_was_written(tmp_path):
    recording = read_records(records_file(tmp_path / "rank0.jsonl"))
    assert recording.first_batch == 5
    assert recording.findings == ["its clock was set to the host's, to within 1 us"]
    assert recording.trace.whole().device["start_ns"].min() == 1_700_000_000_000_000_020
    assert len(recording.trace.whole().device["name"]) == len(recording.trace.whole().launches["thread"]) == 9
    converted = cupti.read(tmp_path / "rank0.jsonl", rank=4)
    kernels = converted.tables["kernels"].to_pandas()
    assert sorted(set(kernels["batch_index"])) == [5, 6, 7] and set(kernels["rank"]) == {4}


def test_no_word_of_the_environment_is_in_it(tmp_path, monkeypatch):
    monkeypatch.setenv("SCALEPROF_TEST_TOKEN", "s3cr3t-of-the-user")
    record(FakeCupti(), tmp_path, keep_raw=True)
    assert b"s3cr3t" not in (tmp_path / "raw" / "cupti.jsonl").read_bytes()


@pytest.mark.parametrize(("change", "message"), [
    (lambda lines: lines[0].update(version=2), "of another release"),
    (lambda lines: lines[0].update(what="x"), "holds no CUPTI records"),
    (lambda lines: lines[0].update(rank=-1), "line 1"),
    (lambda lines: lines[0].update(clock=[1, 2]), "line 1"),
    (lambda lines: lines[2]["kernel"]["start"].append(1), "line 3 .columns of kernel"),
    (lambda lines: lines[2]["kernel"].update(end=[1.5] * 9), "line 3 .columns of kernel"),
    (lambda lines: lines[2]["kernel"].update(end=[True] * 9), "line 3 .columns of kernel"),
    (lambda lines: lines[2]["kernel"].update(end=[2**63] * 9), "line 3 .columns of kernel"),
    (lambda lines: lines[2]["kernel"].update(name=[9] * 9), "line 3 .a name"),
    (lambda lines: lines[2].update(more={}), "line 3 .no group"),
    (lambda lines: lines.insert(2, {"dream": {}}), "line 3 .no known group"),
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
    recording = read_records(path)
    assert len(recording.trace.whole().device["name"]) == 9
    assert recording.findings[0] == (
        "it has no end: the process was killed while it recorded; the last records are missing"
    )
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
    trace = read_records(put(path, lines)).trace
    assert trace.tables["device"].rows == 6 and trace.malformed == 3


def test_clocks_that_move_apart_are_a_finding_and_an_empty_recording_is_one(tmp_path):
    path = tmp_path / "r.jsonl"
    with path.open("wb") as file:
        writer = RecordsWriter(file, 0, 0, Reading(1000, 5000, 10))
        writer.end(Reading(2000, 2_006_000, 10), 0, [])
    findings = read_records(path).findings
    assert "its clock was set to the host's, to within 2 ms" in findings  # they moved 2 ms apart
    assert "the recording is empty: nothing ran on a GPU while it was on" in findings


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
    events = read_records(path).trace.whole()
    assert len(events.device["name"]) == 200
    assert len({events.names[name] for name in events.device["name"]}) == 200


launched = st.lists(
    st.tuples(
        st.integers(1, 10**15),  # when it was called, ns
        st.integers(0, 10**6), st.integers(0, 10**9),  # until it began, and how long it took
        st.integers(0, 15), st.integers(0, 2**32 - 1),  # device, stream
        st.sampled_from([MANGLED, GEMM, "", "über"]), st.integers(1, 2**31 - 1),
    ),
    min_size=1, max_size=20,
)  # fmt: skip


@settings(max_examples=40, deadline=None)
@given(made=launched, shift=st.integers(-(10**15), 10**18))
def test_whatever_is_written_is_read_back(made, shift, tmp_path_factory):
    path = tmp_path_factory.mktemp("records") / "r.jsonl"
    with path.open("wb") as file:
        writer = RecordsWriter(file, 2, 0, Reading(0, shift, 0))
        for number, (called, until, took, device, stream, name, grid) in enumerate(made):
            start = called + until
            call = (called, called + 1, 9, number, 211)
            kernel = (start, start + took, device, stream, number, name, grid, 1, 1, 32, 1, 1)
            for group, row in (("runtime", call), ("kernel", kernel)):
                writer.add(group, {column: [value] for column, value in zip(GROUPS[group], row, strict=True)})
        writer.end(Reading(0, shift, 0), 0, [])
    names = {MANGLED: "void kernel<float>(float)", "": "(a kernel without a name)"}
    rows = sorted(cupti.read(path).tables["kernels"].to_pylist(), key=lambda row: row["correlation"])
    assert [
        (
            row["start_ns"],
            row["duration_ns"],
            row["device"],
            row["stream"],
            row["name"],
            row["grid"],
            row["rank"],
        )
        for row in rows
    ] == [
        (called + until + shift, took, device, stream, names.get(name, name), f"{grid},1,1", 2)
        for called, until, took, device, stream, name, grid in made
    ]
