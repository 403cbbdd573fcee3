"""The study of what memory holds: stages, limits, ends of tries, and for real on this CPU."""

import argparse
import re
import sys
import threading

import pytest
import torch

from jobs import studies
from jobs.processes import Ended
from profiling.errors import UserError
from tests.train.studies.conftest import GIB
from train.studies import attempt, capacity

pytestmark = pytest.mark.long


def test_the_network_grows_in_its_proportion():
    assert [capacity.proportion(layers, 1, 1) for layers in (1, 123, 124)] == [(0, 1), (61, 62), (62, 62)]
    assert capacity.proportion(12, 3, 1) == (9, 3) and capacity.proportion(5, 0, 8) == (0, 5)


def test_stages_are_the_networks_layers():
    facts = {"convolutions": 2, "linears": 3, "batch": 1, "image_size": 8, "device": "cpu", "limit_bytes": 0,
             "warmup": 0, "repetitions": 1, "threads": 1, "seed": 0, "answer": "answer"}  # fmt: skip
    kinds = [
        [type(layer).__name__ for layer in attempt.build(attempt.Task(first=first, last=last, **facts))]
        for first, last in [(0, 5), (0, 3), (3, 5)]
    ]
    assert kinds[0] == kinds[1] + kinds[2] == ["Conv2d"] * 2 + ["Linear"] * 3
    deep = attempt.build(attempt.Task(**{**facts, "linears": 60, "first": 2, "last": 62}))
    spread = float(deep(torch.randn(1, 64, 8, 8)).detach().std())
    assert 1e-3 < spread < 1e3  # and so no denormal numbers, at any depth


def test_sizes_are_read_with_their_units():
    read = [capacity.size(text) for text in ("2GiB", "512 MiB", "1.5gb", "4096", "1kb")]
    assert read == [2 << 30, 512 << 20, 1_500_000_000, 4096, 1000]
    for wrong in ("", "2 parsecs", "-1GiB", "0"):
        with pytest.raises(argparse.ArgumentTypeError, match="is not a size"):
            capacity.size(wrong)


FITS = attempt.Attempt(fits=True, limit=9, base=1, peak=5)
WANTS = attempt.Attempt(fits=False, reason="DefaultCPUAllocator: can't allocate memory", limit=9, base=1)


def taking(**sizes):
    return FITS.model_copy(update=sizes)


@pytest.mark.parametrize(
    ("answers", "code", "printed", "fit"),
    [
        ([FITS], 0, "", [True]),
        ([WANTS], 1, "", [False]),
        ([None], -9, "", [False]),  # the kernel's killer
        ([None], -6, "terminate called after throwing an instance of 'std::bad_alloc'\n", [False]),
        ([WANTS, None], 1, "Connection closed by peer", [False, True]),
        ([None, WANTS], 1, "Connection closed by peer", [True, False]),
    ],
)
def test_a_want_of_memory_is_told_from_other_ends(answers, code, printed, fit):
    assert [side.fits for side in capacity.judged(answers, Ended(code), printed)] == fit


@pytest.mark.parametrize("died", [0, 1])
@pytest.mark.parametrize(("code", "printed"), [(-9, ""), (-6, "what(): std::bad_alloc")])
def test_of_two_stages_the_one_that_died_does_not_fit(died, code, printed):
    """Neither left an answer: the other was ended since its peer had gone."""
    sides = capacity.judged([None, None], Ended(code, process=died), printed)
    assert [side.fits for side in sides] == [died == 1, died == 0]
    assert sides[died].reason and not sides[1 - died].reason


def test_a_reason_does_not_say_where_in_pytorchs_source():
    said = RuntimeError(
        "[enforce fail at alloc_cpu.cpp:127] err == 0. DefaultCPUAllocator: can't allocate memory: you tried "
        "to allocate 6422528 bytes."
    )
    assert attempt.reason_of(said).startswith("DefaultCPUAllocator: ")
    assert attempt.reason_of(MemoryError()) == "MemoryError"


@pytest.mark.parametrize("code", [1, -11])
def test_any_other_end_is_an_error(code):
    with pytest.raises(UserError, match="rank 0 ended: ValueError: wrong"):
        capacity.judged([None], Ended(code, "rank 0 ended"), "Traceback\nValueError: wrong\n")


def test_a_limit_is_set_and_lifted_within_the_hard_one(monkeypatch):
    hard, was_set = 5 << 40, []
    monkeypatch.setattr(attempt.resource, "getrlimit", lambda _: (1 << 40, hard))
    monkeypatch.setattr(attempt.resource, "setrlimit", lambda _, limits: was_set.append(limits))
    assert attempt._limited(torch.device("cpu"), 2 << 40)[1] == 2 << 40
    assert attempt._limited(torch.device("cpu"), 9 << 40)[1] == hard
    attempt._unlimited()
    assert was_set == [(2 << 40, hard), (hard, hard), (hard, hard)]


def test_looks_that_memory_was_wanting_for_are_counted(monkeypatch):
    looks, enough = iter([100, 300, MemoryError(), OSError(), 200]), threading.Event()

    def look():
        said = next(looks, None)
        if said is None:
            enough.set()
            return 0
        if isinstance(said, Exception):
            raise said
        return said

    monkeypatch.setattr(attempt, "data_bytes", look)
    assert attempt._peak(torch.device("cpu"), 0, lambda: enough.wait(30)) == (300, 0, 2)


def growing(tmp_path, monkeypatch, largest: int, limit: int, per_layer: int) -> tuple[int, list[int]]:
    """The first size that does not fit a device of so many bytes, and the sizes that were tried."""
    flags = argparse.Namespace(convolutions=8, linears=8)
    study = capacity.Capacity(studies.Recorder("capacity", {}, tmp_path), flags, ["gpu"], gpu=True)
    asked = []

    def attempt(layers, stages):
        asked.append(layers)
        answer = taking(limit=limit, base=500, peak=700 + per_layer * layers, held=2 * layers)
        return [answer if layers <= largest else WANTS]

    monkeypatch.setattr(study, "_attempt", attempt)
    return study.grow(), asked


@pytest.mark.parametrize("largest", [1543, 1551, 1560])
def test_two_small_networks_tell_how_many_layers_fill_a_large_device(tmp_path, monkeypatch, largest):
    """Each try is a process, and of 80 GB one that trains for seconds: doubling and halving took 18."""
    above, asked = growing(tmp_path, monkeypatch, largest, limit=700 + 1551 * 52, per_layer=50)
    assert above == largest + 1
    assert asked[:2] == [16, 32] and len(asked) == len(set(asked)) <= 10


@pytest.mark.parametrize("largest", [1, 15, 20])
def test_a_device_that_holds_few_layers(tmp_path, monkeypatch, largest):
    above, asked = growing(tmp_path, monkeypatch, largest, limit=700 + largest * 52, per_layer=50)
    assert above == largest + 1 and len(asked) == len(set(asked)) <= 10


def test_layers_that_take_nothing_are_doubled():
    full = taking(limit=900, peak=500)
    assert capacity.most_that_fit(16, full, 32, full) == 64
    assert capacity.most_that_fit(16, full, 32, taking(limit=900, peak=532)) == 32 + 368 // 2


def test_what_others_keep_beside_a_result_stays(monkeypatch, tmp_path):
    """The tries of a study write into a folder of their own, which goes with them."""
    (tmp_path / "try-1-notes.txt").write_text("mine")
    flags = argparse.Namespace(
        convolutions=0, linears=1, batch=1, image_size=8, memory_limit=None, warmup=0, repetitions=1,
        threads=1, seed=0,
    )  # fmt: skip
    there = []

    def run_fresh(commands, directory, _):
        there.extend(path.name for path in directory.rglob("*.json"))
        return Ended(-9, process=0), ""

    monkeypatch.setattr(studies, "run_fresh", run_fresh)
    tries = capacity.Capacity(studies.Recorder("capacity", {}, tmp_path), flags, ["cpu"], gpu=False)
    (told,) = tries._attempt(1, [(0, 1)])
    assert there == ["0.json"] and not told.fits
    assert [path.name for path in tmp_path.iterdir()] == ["try-1-notes.txt"]


def test_no_second_gpu_is_one_line(monkeypatch):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    flags = argparse.Namespace(devices=2)
    with pytest.raises(UserError, match="there is no second GPU here; use --devices 1"):
        capacity._device_names(flags, gpu=True)


@pytest.mark.wide
@pytest.mark.skipif(sys.platform != "linux", reason="the kernel limits memory on Linux only")
def test_capacity_from_the_command_line(answer_of):
    small = ["--device", "cpu", "--batch", "384", "--image-size", "28", "--warmup", "0", "--repetitions", "1"]
    one = ["--linears", "1", "--convolutions", "0"]
    with pytest.raises(UserError, match="too small for the interpreter and PyTorch alone") as caught:
        answer_of(capacity.main, *small, *one, "--memory-limit", "32MiB")
    base = int(re.search(r"which take (\d+) MiB", str(caught.value))[1])
    # Tensors are of 73.5 MiB. A step of one layer takes six of them and 9 MiB, and as a stage 24 MiB more, of
    # threads that send and receive; a step of two layers takes a tensor more. The limit is half-way.
    told = answer_of(capacity.main, *small, *one, "--memory-limit", f"{base + 499}MiB")
    assert told.code == 0, told.err
    sides = {row["boundary"]: row for row in told.csv if row["boundary"]}
    inside, outside = sides["largest that fits"], sides["smallest that does not"]
    assert int(outside["linears"]) == int(inside["linears"]) + 1
    assert "memory" in outside["reason"] and float(inside["step_ms"]) > 0
    assert base << 20 < float(inside["peak_memory_bytes"]) <= float(inside["limit_bytes"])
    halves = [row for row in told.csv if row["chosen"] == "True"]
    assert [row["device"] for row in halves] == ["cpu, device 0", "cpu, device 1"]
    assert sum(int(row["linears"]) for row in halves) == int(outside["linears"])
    assert all(float(row["own_ms"]) > 0 and float(row["free_bytes"]) > 0 for row in halves)


def test_a_gpus_own_memory_is_its_limit(gpu):
    device = torch.device("cuda", 0)
    # Of 10 GiB that are taken the allocator has 2, with which it must not exceed what the others leave.
    assert attempt._limited(device, 0) == (8 * GIB, 80 * GIB) and not gpu
    assert attempt._limited(device, 100 * GIB) == (8 * GIB, 80 * GIB) and not gpu
    assert attempt._limited(device, 40 * GIB) == (8 * GIB, 40 * GIB) and gpu == [32 / 80]
    assert attempt._limited(device, 4 * GIB) == (8 * GIB, 4 * GIB) and gpu == [32 / 80]  # too small
    assert attempt._peak(device, 8 * GIB, lambda: None) == (13 * GIB, 2 * GIB, 0)
