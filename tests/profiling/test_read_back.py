"""What is written in a tool's format is read back: every launch, and its kernel by one name."""

import csv
import io
import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from profiling.tools import read, recognise
from tests.profiling.gpu_databases import EPOCH_NS
from tests.profiling.writers import DEMANGLED, DYNAMIC, LAUNCHES, REGISTERS, SHORT, STATIC, SUMMARIES, Kernel

sizes = st.tuples(*[st.integers(1, 60_000)] * 3)
launches = st.lists(
    st.builds(
        Kernel,
        start=st.integers(1, 10**12),
        duration=st.integers(0, 10**9),
        device=st.integers(0, 15),
        stream=st.integers(1, 1000),
        grid=sizes,
        block=sizes,
    ),
    min_size=1,
    max_size=12,
    # Their order is one, and none is cut where the next of its stream begins.
    unique_by=(lambda one: one.start, lambda one: (one.device, one.stream)),
)


@pytest.mark.parametrize("form", LAUNCHES)
@settings(max_examples=15)
@given(made=launches)
def test_every_launch_is_read_back_and_its_kernel_by_one_name(form, made, tmp_path_factory):
    tool, write, timed = LAUNCHES[form]
    path = write(tmp_path_factory.mktemp("file"), made)
    assert recognise(path) == tool
    table = read(path, tool).tables["kernels"]
    expected = sorted(made, key=lambda one: one.start) if timed and "trace" not in form else made
    columns = {name: table[name].to_pylist() for name in ("duration_ns", "device", "stream", "grid", "block")}
    assert columns == {
        "duration_ns": [one.duration for one in expected],
        "device": [one.device for one in expected],
        "stream": [one.stream for one in expected],
        "grid": [",".join(map(str, one.grid)) for one in expected],
        "block": [",".join(map(str, one.block)) for one in expected],
    }
    # PyProf's own tables hold no more than the short name.
    assert set(table["name"].to_pylist()) == {SHORT if tool == "pyprof" else DEMANGLED}
    assert set(zip(table["short_name"].to_pylist(), table["class"].to_pylist(), strict=True)) == {
        (SHORT, "pointwise")
    }
    if tool != "pyprof":  # whose records do not say it
        assert table["registers"].to_pylist() == [REGISTERS] * len(made)
        assert table["shared_bytes"].to_pylist() == [STATIC + DYNAMIC] * len(made)
    begun = table["start_ns"].to_pylist()
    shift = EPOCH_NS if form == "nsys export of 2024" else 0
    assert begun == ([one.start + shift for one in expected] if timed else [None] * len(made))


@pytest.mark.parametrize("form", SUMMARIES)
@settings(max_examples=15)
@given(made=launches)
def test_a_summarys_row_is_read_back_under_that_name(form, made, tmp_path_factory):
    tool, write = SUMMARIES[form]
    path = write(tmp_path_factory.mktemp("file"), made)
    assert recognise(path) == tool
    tables = read(path, tool).tables
    (row,) = tables["intervals"].to_pylist()
    took = [one.duration for one in made]
    assert (row["function"], row["calls"], row["inclusive_ns"]) == (DEMANGLED, len(made), sum(took))
    (spread,) = tables["atomics"].to_pylist()
    assert (spread["min"], spread["max"]) == (min(took), max(took))
    assert spread["mean"] == pytest.approx(sum(took) / len(took))


# --- VTune, which knows functions only -----------------------------------------------------------------

functions = st.dictionaries(
    st.text(st.characters(codec="ascii", categories=("L", "N")), min_size=1, max_size=12),
    st.integers(0, 10**7),
    min_size=1,
    max_size=8,
)


@settings(max_examples=20)
@given(made=functions, delimiter=st.sampled_from([",", "\t", ";", "|"]))
def test_vtunes_functions_are_read_back(made, delimiter, tmp_path_factory):
    text = io.StringIO()
    rows = [["Function", "CPU Time", "Module"], *([name, took / 1000, "a.so"] for name, took in made.items())]
    csv.writer(text, delimiter=delimiter, lineterminator="\n").writerows(rows)
    path = tmp_path_factory.mktemp("file") / "vtune.csv"
    path.write_text(text.getvalue())
    assert recognise(path) == "vtune"
    table = read(path, "vtune").tables["intervals"]
    assert table["function"].to_pylist() == list(made)
    assert table["exclusive_ns"].to_pylist() == pytest.approx([took * 1e6 for took in made.values()])


# --- Horovod, in lines or in one ---------------------------------------------------------------------

reductions = st.lists(
    st.tuples(st.integers(1, 5), st.integers(0, 10**9), st.integers(0, 10**6), st.integers(1, 100)),
    min_size=1,
    max_size=20,
)


@settings(max_examples=30)
@given(made=reductions, lines=st.booleans())
def test_horovods_reductions_are_read_back(made, lines, tmp_path_factory):
    events = []
    for tensor, start, took, size in made:
        events.append({"ph": "B", "name": "NEGOTIATE_ALLREDUCE", "ts": start, "pid": tensor})
        events.append({"ph": "E", "ts": start, "pid": tensor})
        events.append({"ph": "B", "name": "ALLREDUCE", "ts": start, "pid": tensor})
        args = {"dtype": "float32", "shape": f"[{size}, 3]"}
        events.append({"ph": "E", "ts": start + took, "pid": tensor, "args": args})
    path = tmp_path_factory.mktemp("timeline") / "timeline.json"
    text = ",\n".join(map(json.dumps, events))
    path.write_text(f"[\n{text},\n" if lines else json.dumps(events))
    kernels = read(path, "horovod").tables["kernels"]
    columns = ("stream", "start_ns", "duration_ns", "bytes")
    read_back = zip(*(kernels[name].to_pylist() for name in columns), strict=True)
    assert list(read_back) == [
        (tensor, start * 1000, took * 1000, size * 12) for tensor, start, took, size in made
    ]
