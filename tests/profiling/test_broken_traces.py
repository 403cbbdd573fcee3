"""Broken, foreign and absurd files: one clear line that names the file, never another error, never a hang."""

import copy
import gzip
import json
import time

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from profiling.errors import UserError
from profiling.readers import chunks, tau_formats
from profiling.readers.kineto import read_trace
from profiling.tools import read as read_any
from profiling.tools import tool
from tests.profiling.traces import Trace, training_step

read = tool("torch").read

FUZZ = settings(max_examples=150, deadline=2000, suppress_health_check=[HealthCheck.function_scoped_fixture])


def sample() -> Trace:
    trace = Trace(distributedInfo={"rank": 0, "world_size": 1}, baseTimeNanoseconds=10**18)
    end = training_step(trace, 0)
    training_step(trace, end)
    return trace


GOOD = sample().text()


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", "not a JSON"),
        (b"hello", "not a JSON"),
        (b"\x00" * 100, "not a JSON"),
        (b"{}", "traceEvents"),
        (b'{"a": 1}', "traceEvents"),
        (b'{"traceEvents": []}', "no events"),
        (b'{"traceEvents": [}', "truncated or damaged"),
        (b'{"traceEvents": [1, 2, "x", null, [], {}]}', "no events"),
        (b'{"traceEvents": 5}', "traceEvents"),
        (b"[]", "no events"),
        (b'[{"ph": "X", "name": "NEGOTIATE", "ts": 1, "dur": 2}]', "no events"),
        (b'{"traceEvents": ' + b"[" * 100_000, "nested too deeply"),
        (b"\x1f\x8b" + b"junk" * 20, "damaged"),
        (gzip.compress(GOOD)[:-30], "truncated"),
        (gzip.compress(b"", mtime=0), "not a JSON"),
    ],
)
def test_a_broken_file_is_one_clear_error(tmp_path, content, said):
    path = tmp_path / "trace.json"
    path.write_bytes(content)
    with pytest.raises(UserError, match=said) as error:
        read(path)
    assert "trace.json" in str(error.value)


OPEN = b'{"traceEvents": [{"ph": "X", "cat": "cpu_op", "name": "'
LONG = b"a" * (1 << 20)


@pytest.mark.parametrize(
    "text",
    [OPEN + LONG, OPEN + b'"}], "x": "' + LONG + b'"}', b"==1== NVPROF\n" + LONG,
     b"<profile_xml><definitions thread='*'>" + LONG],
)  # fmt: skip
def test_what_decompresses_without_an_end_is_refused(tmp_path, monkeypatch, text):
    for module, name in ((chunks, "MOST_BYTES"), (chunks, "CHUNK_BYTES"), (tau_formats, "_LONGEST_SECTION")):
        monkeypatch.setattr(module, name, 1 << 16)
    path = tmp_path / "trace.json.gz"
    path.write_bytes(gzip.compress(text))
    with pytest.raises(UserError, match=path.name):
        read_any(path, "tau" if text[:1] == b"<" else "nvprof" if text[:1] == b"=" else "torch")


@pytest.mark.parametrize("unit", ["_GLOBAL__N_", "_GLOBAL__N__1_tmpxft", "a<", "Cijk_", "const "])
def test_a_name_of_any_length_takes_its_length(tmp_path, unit):
    trace = sample()
    trace.kernel(unit * 40_000, 50, 150, 151)
    begun = time.process_time()
    assert read(trace.write(tmp_path / "trace.json")).tables["kernels"].num_rows == 17
    assert time.process_time() - begun < 5


@FUZZ
@given(st.randoms(use_true_random=False), st.integers(1, 30))
def test_a_trace_with_absurd_parts_anywhere_is_read_or_refused(tmp_path, random, changes):
    trace = sample()
    whole = {**trace.facts, "traceEvents": trace.events}
    for _ in range(changes):
        spoil(whole, random)
    path = tmp_path / "trace.json"
    path.write_text(json.dumps(whole))
    try:
        converted = read(path)
    except UserError as error:
        assert "\n" not in str(error)
    else:
        for table in converted.tables.values():
            table.validate(full=True)


ABSURD = [
    None, True, -1, 1 << 31, 1 << 64, 10**30, 1e308, float("nan"), float("-inf"), "", "x", "5", [], [[[1]]],
    {}, {"a": 1}, "[1, 1]", "\x00",
]  # fmt: skip


def spoil(part, random):
    """Put something absurd somewhere inside a list or dict, or take something away."""
    keys = list(part) if isinstance(part, dict) else list(range(len(part)))
    if not keys:
        return
    key = random.choice(keys)
    if isinstance(part[key], dict | list) and random.random() < 0.8:
        spoil(part[key], random)
    elif random.random() < 0.2:
        del part[key]
    else:
        part[key] = copy.deepcopy(random.choice(ABSURD))


@pytest.mark.parametrize("size", [64, 700, 5000])
@pytest.mark.parametrize("indent", [None, 2])
def test_where_the_text_is_cut_makes_no_difference(tmp_path, monkeypatch, size, indent):
    trace = sample()
    # Texts and lists that look like the border between two events.
    trace.host('a name with "},{" in it }, { and more', 1, 2)
    trace.events[-1]["args"]["list"] = [{"a": 1}, {"b": 2}]
    whole = {**trace.facts, "traceEvents": trace.events, "after": [{"x": 1}, {"y": '"traceEvents": ['}]}
    path = tmp_path / "trace.json"
    path.write_bytes(json.dumps({"before": 'no "traceEvents": [ here', **whole}, indent=indent).encode())
    expected = read_trace(path).whole()
    monkeypatch.setattr(chunks, "CHUNK_BYTES", size)
    again = read_trace(path).whole()
    assert sorted(expected.names) == sorted(again.names)
    assert (expected.host["start_ns"] == again.host["start_ns"]).all()
    assert (expected.device["correlation"] == again.device["correlation"]).all()
