"""Stages are marked for whoever listens, and nested whatever happens."""

import sys
import types

import pytest

from profiling import markers
from profiling.markers import STAGES, Markers, TorchRanges, open_markers


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


def test_a_batch_is_heard_by_all_in_order_and_nested():
    lines = []
    marks = Markers([Log("a", lines), Log("b", lines)])
    with marks.forward:
        pass
    marks.end_of_batch()
    assert lines == [
        "a push Forward Pass", "b push Forward Pass", "b pop Forward Pass", "a pop Forward Pass",
        "a mark End of Batch", "b mark End of Batch",
    ]  # fmt: skip


def test_a_stage_that_fails_is_closed():
    lines = []
    marks = Markers([Log("a", lines)])
    with pytest.raises(ValueError, match="x"), marks.backward:
        raise ValueError("x")
    assert lines == ["a push Backward Pass", "a pop Backward Pass"]


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


def test_tau_hears_timers_that_are_made_once_and_strictly_nested(monkeypatch):
    stack, made, calls = [], [], []
    tau = types.ModuleType("pytau")

    def make(name, kind, group):
        made.append((name, group))
        return len(made) - 1

    def stop(number):
        assert stack.pop() == number, "TAU stops the top of its stack, whatever the id"
        calls.append(number)

    tau.profileTimer, tau.start, tau.stop = make, stack.append, stop
    monkeypatch.setitem(sys.modules, "pytau", tau)
    marks = open_markers({})
    for _ in range(3):
        for stage in (marks.forward, marks.backward, marks.update):
            with stage:
                pass
        marks.end_of_batch()
    assert made == [(name, "PYTORCH") for name in STAGES]
    assert [calls.count(number) for number in range(4)] == [3, 3, 3, 3] and not stack


def test_nvtx_without_cuda_is_used_only_where_a_collector_is_attached(monkeypatch):
    monkeypatch.setattr(markers, "_nvtx_of_torch", lambda: None)
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


def test_the_torch_profiler_sees_the_stages_of_each_batch():
    torch = pytest.importorskip("torch")
    marks = open_markers({})
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        for _ in range(2):
            with marks.forward:
                torch.ones(2) + 1
            marks.end_of_batch()
    names = [event.name for event in profile.events()]
    assert names.count("Forward Pass") == names.count("End of Batch") == 2
    # As ranges of a user's, which viewers of traces show as such.
    kinds = {event.name(): event.activity_type() for event in profile.profiler.kineto_results.events()}
    assert kinds["Forward Pass"] == kinds["End of Batch"] == "user_annotation"
