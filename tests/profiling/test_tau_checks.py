"""What is said of a profile of TAU; whatever its stages, timers and clocks are called, it is understood."""

import pytest

from profiling.findings import Finding
from profiling.schemas import SCHEMAS
from profiling.tools import tool
from tests.builders import data_of
from tests.profiling.tau_files import Thread, write_merged, write_text

read = tool("tau").read


def timers_of(*names, calls=4.0):
    return dict.fromkeys(names, (calls, 0.0, 1.0, 40.0))


def test_stages_that_are_events_are_counted(tmp_path):
    """As under tau_python, where a timer may not outlive the function that started it."""
    events = {f"{name} (ns)": (4.0, 9.0, 1.0, 5.0, 100.0) for name in ("Forward Pass", "Batch Duration")}
    events["Backward Pass (ns)"] = (3.0, 9.0, 1.0, 5.0, 75.0)
    write_text(tmp_path, [Thread(0, 0, timers_of("main"), events)])
    missing = {"stage": "Backward Pass", "n": 3, "of": 4}
    assert read(tmp_path).findings == [Finding("marks_missing", rank=0, data=missing)]


def test_a_timer_counts_before_an_event_of_the_same_stage(tmp_path):
    events = {"Batch Duration (us)": (4.0, 9.0, 1.0, 5.0, 100.0)}
    write_text(
        tmp_path,
        [Thread(0, 0, {**timers_of("Forward Pass"), **timers_of("End of Batch", calls=3.0)}, events)],
    )
    missing = {"stage": "End of Batch", "n": 3, "of": 4}
    assert read(tmp_path).findings == [Finding("marks_missing", rank=0, data=missing)]


@pytest.mark.parametrize(
    "write", [write_text, lambda folder, some: write_merged(folder / "merged.xml", some)]
)
def test_a_timer_that_tau_switched_off_keeps_its_name_and_is_told(write, tmp_path):
    write(tmp_path, [Thread(0, 0, timers_of("Forward Pass", "End of Batch [THROTTLED]", "get [THROTTLED]"))])
    converted = read(tmp_path)
    assert set(converted.tables["intervals"]["function"].to_pylist()) == {
        "Forward Pass",
        "End of Batch",
        "get",
    }
    assert converted.tables["intervals"].schema == SCHEMAS["intervals"]
    assert data_of(converted.findings, "timers_throttled") == [{"timers": ["End of Batch", "get"]}]


@pytest.mark.parametrize("clock", ["time", "CLOCK_GET_TIME", "linux_timers", "GET_TIME_OF_DAY"])
def test_every_clock_of_taus_is_wall_time_in_any_case(clock, tmp_path):
    write_text(tmp_path, [Thread(0, 0, timers_of("Forward Pass"))], metric=clock)
    converted = read(tmp_path)
    assert converted.tables["intervals"]["inclusive_ns"].to_pylist() == [40_000] and not converted.findings
