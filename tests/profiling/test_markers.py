"""Stages are marked for whoever listens, and nested whatever happens."""

import sys
import types

import pytest

from profiling import markers
from profiling.markers import Markers, TorchRanges, open_markers
from profiling.schemas import STAGES
from tests.profiling.fake_tau import FakeTau, PythonTimed


class Log:
    """An emitter that writes down what it hears."""

    def __init__(self, name: str, lines: list[str]) -> None:
        self.name, self.lines = name, lines

    def push(self, name):
        self.lines.append(f"{self.name} push {name}")

    def pop(self, name):
        self.lines.append(f"{self.name} pop {name}")

    def mark(self, name):
        self.lines.append(f"{self.name} mark {name}")


def test_torch_ranges_cost_nothing_while_no_profiler_is_on_and_survive_its_switching():
    made, on = [], [False]

    def enter(name):
        made.append(f"enter {name}")
        return name

    ranges = TorchRanges(enter, lambda name: made.append(f"leave {name}"), lambda: on[0])
    ranges.push("A")
    on[0] = True
    ranges.pop("A")  # pushed while off: there is nothing to close
    assert made == []
    ranges.push("B")
    on[0] = False
    ranges.pop("B")
    assert made == ["enter B", "leave B"]


def train_batches(marks, tau, batches):
    """What the training loop tells, while stages take 50, 100 and 20 us and the rest of a batch 30."""
    marks.begin()
    for _ in range(batches):
        tau.work(30)
        for stage, us in ((marks.forward, 50), (marks.backward, 100), (marks.update, 20)):
            with stage:
                tau.work(us)
        marks.end_of_batch()


@pytest.fixture
def under_tau(monkeypatch):
    """Open markers in a process under a stand-in for TAU."""

    def attach(tau, *modules):
        monkeypatch.setitem(sys.modules, "pytau", tau)
        for name in modules:
            monkeypatch.setitem(sys.modules, name, types.ModuleType(name))
        monkeypatch.setattr(markers.time, "perf_counter_ns", lambda: int(tau.now_us * 1000))
        monkeypatch.setattr(markers, "torch_emitter", lambda: None)
        return open_markers({})

    return attach


def test_tau_hears_stages_as_timers_and_each_batch_as_an_event_with_its_duration(under_tau):
    tau = FakeTau()
    marks = under_tau(tau)
    tau.work(5000)  # between the opening and the first batch
    train_batches(marks, tau, 3)
    assert tau.calls == dict.fromkeys(STAGES, 3) and len(tau.stack) == 2
    assert tau.took_us == {"Forward Pass": 150, "Backward Pass": 300, "Model Update": 60}
    assert tau.values == {"Batch Duration (ns)": [200_000] * 3}


def test_no_stage_ends_another_timer_where_tau_switches_short_ones_off(under_tau):
    tau = FakeTau(throttle_calls=100)
    train_batches(under_tau(tau), tau, 150)
    assert set(tau.calls.values()) == {150} and tau.stack == [".TAU application", "taupreload_main"]
    assert len(tau.values["Batch Duration (ns)"]) == 150
    mark = tau.profileTimer("End of Batch", "", "PYTORCH")
    for _ in range(103):  # a mark as a timer would have ended the program's own
        tau.start(mark)
        tau.stop(mark)
    assert tau.stack == []


@pytest.mark.parametrize("module", ["ctau_impl", "perfstubs"])
def test_no_timer_outlives_its_function_where_tau_times_every_one(under_tau, module):
    tau = FakeTau()
    marks = under_tau(tau, module)
    with PythonTimed(tau):
        train_batches(marks, tau, 3)
    durations = {"Forward Pass": 50_000, "Backward Pass": 100_000, "Model Update": 20_000}
    durations["Batch Duration"] = 200_000
    assert tau.values == {f"{name} (ns)": [took] * 3 for name, took in durations.items()}


def test_nvtx_without_cuda_is_used_only_where_a_collector_is_attached(monkeypatch):
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    heard = []

    class Library:
        def __init__(self, _name):
            self.nvtxRangePushA = lambda text: heard.append(("push", text))
            self.nvtxRangePop = lambda: heard.append(("pop", b""))
            self.nvtxMarkA = lambda text: heard.append(("mark", text))

    monkeypatch.setattr(markers.ctypes, "CDLL", Library)
    with open_markers({}).forward:
        pass
    assert heard == []
    attached = open_markers({"NVTX_INJECTION64_PATH": "/x"})
    with attached.forward:
        pass
    attached.end_of_batch()
    assert heard == [("push", b"Forward Pass"), ("pop", b""), ("mark", b"End of Batch")]


def test_a_programs_own_ranges_reach_the_collectors_and_a_step_ends_with_its_mark(monkeypatch):
    lines: list[str] = []
    monkeypatch.setattr(markers, "_LISTENER", [])
    monkeypatch.setattr(markers, "open_markers", lambda: Markers([Log("a", lines)]))
    with markers.step:
        with markers.load:
            pass
        with markers.forward:
            pass
    with pytest.raises(StopIteration), markers.step, markers.load:  # at the end of the data
        next(iter([]))
    assert lines == ["a push Forward Pass", "a pop Forward Pass", "a mark End of Batch"]
