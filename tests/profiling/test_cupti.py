"""CUPTI's own records: what a process records of itself, on a stand-in for the package."""

import threading

import pytest

from profiling.markers import open_markers
from profiling.tables import read
from profiling.tools import cupti
from tests.builders import codes, data_of
from tests.profiling.fake_cupti import ATTRIBUTES, CLASSES, GEMM, MANGLED, FakeCupti
from tests.profiling.fake_cupti import record as record_of

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


def record(api, directory):
    capture = cupti.CuptiCapture(directory, 3, api, lambda: None)
    marks = open_markers({})
    train(api, marks, 1)
    capture.start(None, first_batch=FIRST)
    train(api, marks)
    capture.stop()
    capture.stop()
    return capture.write()


# of a batch: direction, class, name, bytes
KERNELS = [
    ("loader", "memcpy", "Memcpy HtoD (Pinned -> Device)", 4096),
    ("fprop", "other", "void kernel<float>(float)", None),
    ("bprop", "gemm", GEMM, None),
    ("bprop", "memset", "Memset (Device)", 64),
    ("bprop", "communication", "ncclDevKernel_AllReduce", None),
    ("update", "other", "(a kernel without a name)", None),
]


def test_a_recording_has_the_kernels_of_its_batches_and_no_others(tmp_path):
    api = FakeCupti()
    assert codes(record(api, tmp_path)) == ["clock_aligned"]
    assert not api.enabled and api.thread_ids == 1
    kernels = read(tmp_path, "kernels").to_pandas().sort_values("correlation").astype(object)
    kernels = kernels.where(kernels.notna(), None)
    columns = ["batch_index", "direction", "class", "name", "bytes"]
    batches = range(FIRST, FIRST + BATCHES)
    assert list(kernels[columns].itertuples(index=False, name=None)) == [
        (batch, *one) for batch in batches for one in KERNELS
    ]
    assert set(zip(kernels["rank"], kernels["stream"], kernels["duration_ns"], strict=True)) == {(3, 7, 2000)}
    assert (kernels["launch_ns"] < kernels["start_ns"]).all()
    assert (kernels["grid"].iloc[1], kernels["block"].iloc[1]) == ("4,2,1", "128,1,1")
    assert kernels["short_name"].iloc[1] == "kernel"


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
    assert set(cupti.fields_of(kind)) <= set(ATTRIBUTES[kind])


def test_what_cupti_could_not_tell_is_left_out_and_counted_and_no_thread_is_in_anothers_way(tmp_path):
    capture = cupti.CuptiCapture(tmp_path, 0, FakeCupti(), lambda: None)
    capture.start()

    def add(thread):
        for number in range(50):
            times = {"start": 0, "end": 0} if not number else {"start": 10 + number, "end": 12 + number}
            kernel = {"name": f"kernel{thread}_{number}", "correlation_id": number, **times}
            capture._take([record_of("CONCURRENT_KERNEL", **kernel), record_of("RUNTIME", **times)])

    threads = [threading.Thread(target=add, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert {"n": 8, "what": "events"} in data_of(capture.write(), "records_damaged")
    kernels = read(tmp_path, "kernels")
    assert kernels.num_rows == len(set(kernels["name"].to_pylist())) == 4 * 49


@pytest.mark.parametrize(("name", "silent"), [(GEMM, [{"ranks": 2}]), ("ncclDevKernel_AllReduce", [])])
def test_one_of_several_ranks_has_collectives(tmp_path, monkeypatch, name, silent):
    for key, value in {"RANK": "1", "WORLD_SIZE": "2", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "2"}.items():
        monkeypatch.setenv(key, value)
    api = FakeCupti()
    capture = cupti.CuptiCapture(tmp_path, 1, api, lambda: None)
    capture.start()
    api.run("CONCURRENT_KERNEL", name=name)
    assert data_of(capture.write(), "no_collectives") == silent
