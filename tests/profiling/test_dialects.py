"""One recording in every way that PyTorch's versions and builds have written it: the tables are the same."""

import gzip
import json

import pytest

from profiling.tools import recognise, tool
from tests.profiling.traces import Trace, tensors, training_step

read = tool("torch").read

OLD_CATEGORIES = {"cpu_op": "Operator", "user_annotation": "Operator", "cuda_runtime": "Runtime",
                  "kernel": "Kernel", "gpu_memcpy": "Memcpy"}  # fmt: skip
OLD_ARGUMENTS = {"Input Dims": "Input dims", "External id": "external id"}


def recording() -> Trace:
    trace = Trace(baseTimeNanoseconds=0)
    training_step(trace, training_step(trace, 1000))
    return trace


def rows_of(path):
    converted = read(path)
    return converted.tables["kernels"].to_pylist(), converted


@pytest.fixture(scope="module")
def expected(tmp_path_factory):
    rows, converted = rows_of(recording().write(tmp_path_factory.mktemp("plain") / "trace.json"))
    assert len(rows) == 16
    assert converted.findings == []
    return rows


def old_event(event):
    """An event as PyTorch 1.8 to 1.10 wrote it: quoted threads, whole microseconds, other words."""
    old = {**event, "cat": OLD_CATEGORIES[event["cat"]], "ts": int(event["ts"]), "dur": int(event["dur"])}
    old["args"] = {OLD_ARGUMENTS.get(key, key): value for key, value in event["args"].items()}
    return {**old, "tid": "stream 7" if old["cat"] in ("Kernel", "Memcpy") else str(event["tid"])}


def old_schema(trace):
    # The one mark of half a microsecond would be rounded to the length of none.
    trace.events = [old_event(event) for event in trace.events]
    trace.facts = {"schemaVersion": 1, "computeProperties": [], "traceName": "trace.json"}
    return trace.text().decode()


def numbers_in_quotes(trace):
    for event in trace.events:
        event |= {"ts": str(event["ts"]), "dur": f"{event['dur']}"}
    return trace.text().decode()


def paths_of_windows(trace):
    trace.facts["traceName"] = "PATH"
    trace.host(r"PATH(219): \"lazy\" init", 1, 2, "python_function")
    return trace.text().decode().replace("PATH", r"C:\Users\new\_x.py")


def no_number(word):
    """What is no number in a field that is not read."""

    def written(trace):
        for event in trace.events:
            event["args"]["blocks per SM"] = 0.0125
        return trace.text().decode().replace("0.0125", word)

    return written


OTHER_EVENTS = [
    {"ph": "M", "name": "process_name", "pid": 9, "tid": 0, "ts": 1, "args": {"name": "python"}},
    {"ph": "s", "id": 3, "pid": 9, "tid": 1, "ts": 1, "cat": "ac2g", "name": "ac2g"},
    {"ph": "f", "id": 3, "pid": 0, "tid": 7, "ts": 1, "cat": "ac2g", "name": "ac2g", "bp": "e"},
    {"ph": "i", "cat": "cpu_instant_event", "s": "t", "name": "[memory]", "pid": 9, "tid": 1, "ts": 1,
     "args": {"Total Allocated": 5, "Bytes": 512, "Addr": 140}},
    {"ph": "X", "cat": "cuda_sync", "name": "Stream Wait Event", "pid": 0, "tid": 7, "ts": 1, "dur": 1,
     "args": {"stream": 7, "correlation": 3}},
    {"ph": "X", "cat": "gpu_user_annotation", "name": "Forward Pass", "pid": 0, "tid": 7, "ts": 1,
     "dur": 9},
    {"ph": "X", "cat": "overhead", "name": "Buffer Flush", "pid": -1, "tid": 0, "ts": 1, "dur": 1},
    {"ph": "X", "cat": "Trace", "name": "PyTorch Profiler (0)", "pid": "Spans", "tid": "x", "ts": 1,
     "dur": 1},
    {"ph": "C", "cat": "counter", "name": "GPU 0 Utilization", "pid": 0, "ts": 1, "args": {"SM": 5}},
]  # fmt: skip


def everything_else(trace):
    trace.events += OTHER_EVENTS
    trace.facts |= {"with_stack": 1, "cupti_version": 28, "displayTimeUnit": "ms", "trace_id": "A0"}
    return trace.text().decode()


def laid_out(indent, events_first):
    def written(trace):
        parts = [trace.facts, {"traceEvents": trace.events}]
        first, second = reversed(parts) if events_first else parts
        return json.dumps({**first, **second}, indent=indent)

    return written


WAYS = {
    "the schema before 1.11": old_schema,
    "numbers in quotes": numbers_in_quotes,
    "only the events": lambda trace: json.dumps({"traceEvents": trace.events}),
    "a bare list of events": lambda trace: json.dumps(trace.events),
    "a comma after the last event": lambda trace: trace.text().decode().replace("}\n  ]\n}", "},\n  ]\n}"),
    "paths of Windows with single backslashes": paths_of_windows,
    "everything else that a trace may hold": everything_else,
    **{f"{word} in a field": no_number(word) for word in ("NaN", "-Infinity", "inf", "-nan(ind)")},
    **{
        f"indented by {indent}" + ", events first" * first: laid_out(indent, first)
        for indent in (None, 1, 4)
        for first in (False, True)
    },
}


@pytest.mark.parametrize("way", WAYS)
def test_a_trace_written_in_another_way_gives_the_same_rows(way, tmp_path, expected):
    path = tmp_path / "trace.json.gz"
    path.write_bytes(gzip.compress(WAYS[way](recording()).encode()))
    assert recognise(path) == "torch"
    rows, converted = rows_of(path)
    assert (rows, converted.findings) == (expected, [])


@pytest.mark.parametrize("field", ["pid", "tid"])
def test_processes_or_threads_left_out(tmp_path, field, expected):
    trace = recording()
    for event in trace.events:
        if event["tid"] == 2:  # without threads the backward pass's nodes stand among the main thread's
            event["tid"] = 1
        del event[field]
    rows, converted = rows_of(trace.write(tmp_path / "trace.json"))
    assert [row["direction"] for row in rows] == [row["direction"] for row in expected]
    assert [row["flops"] for row in rows] == [row["flops"] for row in expected]
    assert converted.findings == []


def test_python_frames_and_modules(tmp_path, expected):
    trace = Trace(baseTimeNanoseconds=0)
    for start in (1000, 1100):
        trace.host("train.py(10): step", start, start + 95, "python_function")
        trace.host("nn.Module: Conv2d_0", start + 11, start + 20, "python_function")
        training_step(trace, start)
    trace.events = [event for event in trace.events if event["name"] != "Layer: conv1"]
    rows, converted = rows_of(trace.write(tmp_path / "trace.json"))
    assert rows == [{**row, "layer": row["layer"] and "Conv2d_0", "correlation": ours["correlation"]}
                    for row, ours in zip(expected, rows, strict=True)]  # fmt: skip
    assert converted.findings == []


def test_links_by_external_id_where_launches_have_no_correlation(tmp_path):
    trace = Trace()
    operator = trace.host("aten::mm", 10, 20, more=tensors([2, 3], [3, 4]))
    trace.kernel("gemm", 12, 30, 40)
    for event in trace.events[1:]:
        del event["args"]["correlation"]
        event["args"]["External id"] = operator
    rows, _ = rows_of(trace.write(tmp_path / "trace.json"))
    assert (rows[0]["operator"], rows[0]["flops"]) == ("aten::mm", 2 * 2 * 3 * 4)
