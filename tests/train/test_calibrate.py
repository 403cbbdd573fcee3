"""What the machine can do at best: positive rates, the time they may take, the same work on every rank."""

import sys

import pytest
import torch

from jobs.launchers.base import Local
from jobs.run import make_run
from jobs.store import Allreduce, Calibration, read_record, write_record
from tests.train.many_runs import fork
from train import calibrate
from train.world import World

pytestmark = pytest.mark.long

CPU = torch.device("cpu")
NONE = {"bus_bytes_per_s": 0.0}


@pytest.fixture
def small(monkeypatch):
    monkeypatch.setattr(calibrate, "GEMM_SIZE", {"cpu": 64})
    monkeypatch.setattr(calibrate, "COPY_BYTES", {"cpu": 1 << 16})


@pytest.mark.parametrize(("ranks", "counts"), [(1, [1]), (6, [1, 2, 4, 6]), (8, [1, 2, 4, 8])])
def test_no_more_than_three_seconds_are_spent(small, ranks, counts, monkeypatch):
    """The seconds that are given to each measurement, added up; what they take is not timed here."""
    seconds = []
    for rate in ("gemm_rate", "copy_rate", "allreduce_rate"):
        monkeypatch.setattr(calibrate, rate, lambda *given: seconds.append(given[-1]) or 1.0)
    before = torch.get_num_threads()
    found = calibrate.calibrate(World(0, ranks, 0, ranks), CPU, "fp32", Alone())
    torch.set_num_threads(before)
    assert sum(seconds) == pytest.approx(calibrate.TOTAL_S) and calibrate.TOTAL_S <= 2
    assert list(found.gemm_flops_per_s) == list(found.copy_bytes_per_s) == counts
    assert [one.exchange for one in found.allreduces] == ([(1, ranks, "")] if ranks > 1 else [])


class Alone:
    def barrier(self):
        pass


@pytest.mark.parametrize(("waited", "threads", "share"), [(4.0, 1, ["100%"]), (0.0, 1, []), (4.0, 64, [])])
def test_peaks_that_were_measured_while_others_used_the_cpu_are_said_to_be_doubtful(
    small, monkeypatch, waited, threads, share
):
    """Of more threads than there are cores nothing is said: they wait for each other."""
    readings = iter([1.0, 1.0 + waited])
    monkeypatch.setattr(calibrate, "waited_s", lambda: next(readings, None))
    monkeypatch.setattr(calibrate, "TOTAL_S", 0.02)
    before = torch.get_num_threads()
    found = calibrate.calibrate(World(0, 1, 0, 1), CPU, "fp32", Alone(), threads)
    torch.set_num_threads(before)
    assert [finding.data["why"].split()[-1] for finding in found.findings] == share


def test_two_ranks_as_a_sweep_starts_them(tmp_path, ready):
    run = make_run({"gpus_per_node": 2, "device": "cpu"})
    out, log = tmp_path / "calibration.json", tmp_path / "log.txt"
    command = [
        sys.executable,
        "-m",
        "tests.train.on_nodes",
        "calibrate",
        "--out",
        str(out),
        "--device",
        "cpu",
    ]
    assert fork(Local().processes(run, command, tmp_path), log, ready) == [0, 0], log.read_text()
    found = read_record(out, Calibration)
    assert set(found.gemm_flops_per_s) == set(found.copy_bytes_per_s) == {1, 2}
    assert [one.exchange for one in found.allreduces] == [(1, 2, "")]
    rates = [*found.gemm_flops_per_s.values(), *found.copy_bytes_per_s.values()]
    assert all(1e6 < value < 1e15 for value in (*rates, found.allreduces[0].bus_bytes_per_s))
    assert found.device == "cpu" and found.precision == "fp32" and found.seconds > 0
    # An allreduce alone keeps the peaks, and what other ranks have measured.
    other = Allreduce(nodes=2, ranks_per_node=4, network="ib", bus_bytes_per_s=7.0)
    known = found.model_copy(update={"allreduces": [other, found.allreduces[0].model_copy(update=NONE)]})
    write_record(out, known)
    assert fork(Local().processes(run, [*command, "--allreduce"], tmp_path), log, ready) == [0, 0]
    later = read_record(out, Calibration)
    assert later.gemm_flops_per_s == found.gemm_flops_per_s
    assert [one.exchange for one in later.allreduces] == [(2, 4, "ib"), (1, 2, "")]
    assert later.allreduces[0] == other and later.allreduces[1].bus_bytes_per_s > 1e6
