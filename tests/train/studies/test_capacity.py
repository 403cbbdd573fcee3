"""The study of what memory holds: searches, limits, ends of tries, and for real on this CPU."""

import argparse
import re
import sys

import pytest

from jobs.failures import Ended
from profiling.errors import UserError
from train.studies import attempt, capacity, common

pytestmark = pytest.mark.long

FITS = attempt.Attempt(fits=True, limit=9, base=1, peak=5)
FAILS = attempt.Attempt(fits=False, reason="DefaultCPUAllocator: can't allocate memory", limit=9, base=1)


# --- searches -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("start", [1, 2, 16, 100, 5000])
@pytest.mark.parametrize("largest", [0, 1, 2, 15, 16, 17, 123, 999, 1000])
def test_the_boundary_is_found_in_few_tries(largest, start):
    asked = []

    def fits(layers):
        asked.append(layers)
        return layers <= largest

    assert capacity.boundary(fits, start, most=1000) == (largest, largest + 1)
    few = 6 if abs(largest - start) <= 6 else 2 * 10
    assert len(asked) == len(set(asked)) <= few and all(1 <= layers <= 1000 for layers in asked)


@pytest.mark.parametrize("largest", [1, 15, 20, 1543, 1551, 1560])
def test_two_small_networks_tell_how_many_layers_fill_a_device(tmp_path, monkeypatch, largest):
    """Each try is a process, and of 80 GB one that trains for seconds: doubling and halving took 18."""
    flags = argparse.Namespace(convolutions=8, linears=8)
    recorder = common.Recorder("capacity", {}, tmp_path)
    recorder.arguments = flags
    study = capacity.Capacity(recorder, ["gpu"])
    asked, limit = [], 700 + (1551 if largest > 20 else largest) * 52

    def attempt(network, place=None):
        layers = sum(network)
        asked.append(layers)
        sizes = {"limit": limit, "base": 500, "peak": 700 + 50 * layers, "held": 2 * layers}
        return [FITS.model_copy(update=sizes) if layers <= largest else FAILS]

    monkeypatch.setattr(study, "_attempt", attempt)
    assert sum(study.grow()) == largest + 1
    assert asked[0] == 16 and len(asked) == len(set(asked)) <= 10


# --- a try --------------------------------------------------------------------------------------------


def test_sizes_are_read_with_their_units():
    sizes = [capacity.size(text) for text in ("2GiB", "512 MiB", "1.5gb", "4096", "1kb")]
    assert sizes == [2 << 30, 512 << 20, 1_500_000_000, 4096, 1000]
    for wrong in ("", "2 parsecs", "-1GiB", "0"):
        with pytest.raises(argparse.ArgumentTypeError, match="is not a size"):
            capacity.size(wrong)
    assert capacity.network_of("18+19") == (18, 19)
    for wrong in ("18", "0+0", "1+99999", "a+b"):
        with pytest.raises(argparse.ArgumentTypeError, match="is no network"):
            capacity.network_of(wrong)


@pytest.mark.parametrize(
    ("answers", "ended", "printed", "fit"),
    [
        ([FITS], Ended(0), "", [True]),
        ([FAILS], Ended(1), "", [False]),
        ([None], Ended(-9), "", [False]),  # the kernel's killer
        ([None], Ended(-6), "terminate called after throwing an instance of 'std::bad_alloc'\n", [False]),
        ([FAILS, None], Ended(1), "Connection closed by peer", [False, True]),
        ([None, FAILS], Ended(1), "Connection closed by peer", [True, False]),
        # Neither left an answer: one died, the other was ended since its peer had gone.
        ([None, None], Ended(-9, process=0), "", [False, True]),
        ([None, None], Ended(-6, process=1), "what(): std::bad_alloc", [True, False]),
    ],
)
def test_a_lack_of_memory_is_told_from_other_ends(answers, ended, printed, fit):
    assert [side.fits for side in capacity.judged(answers, ended, printed)] == fit


@pytest.mark.wide
@pytest.mark.skipif(sys.platform != "linux", reason="the kernel limits memory on Linux only")
def test_capacity_from_the_command_line(answer_of):
    flags = ["--device", "cpu", "--batch", "384", "--image-size", "28", "--warmup", "0", "--repetitions", "1",
             "--linears", "1", "--convolutions", "0"]  # fmt: skip
    with pytest.raises(UserError, match="too small for the interpreter and PyTorch alone") as caught:
        answer_of(capacity.main, *flags, "--memory-limit", "32MiB")
    base = int(re.search(r"which take (\d+) MiB", str(caught.value))[1])
    # Tensors are of 73.5 MiB. A step of one layer takes six of them and 9 MiB, and as a stage 24 MiB more, of
    # threads that send and receive; a step of two layers takes a tensor more. The limit is half-way.
    answer = answer_of(capacity.main, *flags, "--memory-limit", f"{base + 499}MiB")
    assert answer.code == 0, answer.err
    sides = {row["boundary"]: row for row in answer.csv if row["boundary"]}
    inside, outside = sides["largest that fits"], sides["smallest that does not"]
    assert int(outside["linears"]) == int(inside["linears"]) + 1
    assert "memory" in outside["reason"] and float(inside["step_ms"]) > 0
    assert base << 20 < float(inside["peak_memory_bytes"]) <= float(inside["limit_bytes"])
    halves = [row for row in answer.csv if row["chosen"] == "True"]
    assert [row["device"] for row in halves] == ["cpu, device 0", "cpu, device 1"]
    assert sum(int(row["linears"]) for row in halves) == int(outside["linears"])
    assert all(float(row["own_ms"]) > 0 and float(row["free_bytes"]) > 0 for row in halves)
