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
    assert set(table["short_name"].to_pylist()) == {SHORT}
    assert set(table["class"].to_pylist()) == {"pointwise"}
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


# --- VTune and aps, which know no launches -----------------------------------------------------------------

names = st.text(st.characters(codec="ascii", categories=("L", "N")), min_size=1, max_size=12)
functions = st.dictionaries(names, st.integers(0, 10**7), min_size=1, max_size=8)


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


allocating = st.sampled_from(["main", "free", "at::empty_cpu"])
stacks = st.tuples(allocating, st.integers(0, 2**40), st.integers(0, 10**6))


@settings(max_examples=20)
@given(made=st.lists(stacks, min_size=1, max_size=9), units=st.booleans())
def test_memory_by_vtune_is_summed_over_the_stacks_of_a_function(made, units, tmp_path_factory):
    unit = " B" if units else ""
    lines = [f"{' ' * depth}{name},{size}{unit},{size}{unit},{calls},a.so"
             for depth, (name, size, calls) in enumerate(made)]  # fmt: skip
    header = "Function Stack,Allocation Size:Self,Allocation Size:Total,Allocations:Self,Module"
    path = tmp_path_factory.mktemp("file") / "memory.csv"
    path.write_text("\n".join([header, *lines, ""]))
    assert recognise(path) == "vtune"
    tables = read(path, "vtune").tables
    assert len(tables["intervals"]) == 0
    expected: dict[str, float] = {}
    for name, size, calls in made:
        for event, value in ((f"Allocation Size (B) : {name}", size), (f"Allocations : {name}", calls)):
            expected[event] = expected.get(event, 0) + value
    found = zip(tables["atomics"]["event"].to_pylist(), tables["atomics"]["mean"].to_pylist(), strict=True)
    assert dict(found) == expected


def test_memory_by_vtune_takes_no_other_metrics_place(tmp_path):
    path = tmp_path / "both.csv"
    path.write_text("Function,CPU Time,Allocations,Allocation Size,Wait Count\nmain,1.5,2,40 KB,7\n")
    tables = read(path).tables
    assert tables["intervals"]["exclusive_ns"].to_pylist() == [1.5e9]
    assert dict(zip(*(tables["atomics"][name].to_pylist() for name in ("event", "mean")), strict=True)) == {
        "Allocations : main": 2, "Allocation Size (B) : main": 40_000, "Wait Count : main": 7,
    }  # fmt: skip


headings = st.text(st.characters(codec="ascii", categories=("L",)), min_size=1, max_size=9)
metrics = st.recursive(
    st.tuples(headings, st.floats(0, 1e6).map(lambda value: round(value, 2)), st.just([])),
    lambda below: st.tuples(headings, st.none() | st.integers(0, 10**9), st.lists(below, max_size=3)),
    max_leaves=8,
)


@settings(max_examples=40)
@given(made=st.lists(metrics, max_size=4), unit=st.sampled_from(["", " s", " GB/s", "% of Cycles"]))
def test_metrics_of_aps_are_read_back_below_their_headings(made, unit, tmp_path_factory):
    lines, expected = ["| Summary information", "  Elapsed Time:   1.00 s"], [("Elapsed Time (s)", 1.0)]

    def add(name, value, below, indent, heading):
        text = "" if value is None else f":{'':9}{value:,}{unit}            9.50% of Elapsed Time"
        lines.append(" " * indent + name + text)
        for of, part in ((unit.strip(), value), ("% of Elapsed Time", 9.5)):
            if value is not None:
                expected.append((f"{heading}{name}" + (f" ({of})" if of else ""), part))
        lines.append("| advice: 7 %")
        for each in below:
            add(*each, indent + 3, f"{name}: ")

    for each in made:
        add(*each, 2, "")
    path = tmp_path_factory.mktemp("file") / "aps.txt"
    path.write_text("\n".join([*lines, "", "Report: /home/7"]))
    assert recognise(path) == "vtune"
    table = read(path, "vtune").tables["atomics"]
    assert list(zip(table["event"].to_pylist(), table["mean"].to_pylist(), strict=True)) == expected


# --- oneDNN, in the words of its releases -----------------------------------------------------------------

FORMS = {
    "0.18": ("mkldnn_verbose,exec,{0},{1},{2},fsrc:nChw16c fdst:nChw16c,num:1,2x16x7x7,{3}", False),
    "1.3": ("dnnl_verbose,exec,cpu,{0},{1},{2},src_f32::blocked:a:f0,,,2x16x7x7,{3}", False),
    "3.1": ("onednn_verbose,1681823859527.5,exec,cpu,{0},{1},{2},src_f32::blocked:a:f0,,,16,{3}", True),
    "3.2": ("onednn_verbose,v0,1681823859527.5,primitive,exec,cpu,{0},{1},{2},src:a,,,16,{3}", True),
    "3.8": ("3: onednn_verbose,v1,primitive,exec,cpu,{0},{1},{2},src:f32::a,,num:2,2x7,{3}", False),
}
TEMPLATE = (
    "onednn_verbose,v1,primitive,info,template:operation,engine,primitive,implementation,prop_kind,"
    "memory_descriptors,attributes,auxiliary,problem_desc,exec_time\n"
    "onednn_verbose,v1,graph,info,template:operation,engine,partition_id,partition_kind,op_names,exec_time"
)
executions = st.tuples(
    st.sampled_from(["convolution", "matmul", "reorder"]),
    st.sampled_from(["jit:avx512_core", "brgconv:avx2", "ref:any"]),
    st.sampled_from(["forward_training", "backward_data", "undef"]),
    st.integers(0, 10**7).map(lambda us: us / 1000),
)


@pytest.mark.parametrize("form", FORMS)
@settings(max_examples=15)
@given(made=st.lists(executions, min_size=1, max_size=12))
def test_executions_of_onednns_primitives_are_read_back_and_summed(form, made, tmp_path_factory):
    line, dated = FORMS[form]
    lines = [line.format(*one) for one in made]
    start = lines[0].partition("exec,")[0]
    damaged = [lines[0].rpartition(",")[0], f"{start}exec,cpu,rnn", f"{start}exec,cpu", lines[0] + "\x1e,"]
    path = tmp_path_factory.mktemp("file") / "log.txt"
    # Threads may begin in a line of another.
    head = TEMPLATE if form.startswith("3") else "epoch 0"
    last = lines[-1] + lines[0].removeprefix("3: ")
    path.write_text("\n".join([head, *lines[:-1], last, *damaged, "done"]))
    made = [*made, made[0]]
    assert recognise(path) == "onednn"
    converted = read(path)
    table = converted.tables["kernels"]
    names = [", ".join(word for word in (one[0], one[2], one[1]) if word != "undef") for one in made]
    ways = [{"f": "fprop", "b": "bprop", "u": "none"}[one[2][0]] for one in made]
    took = [round(one[3] * 1e6) for one in made]
    assert table["name"].to_pylist() == names and table["direction"].to_pylist() == ways
    assert table["duration_ns"].to_pylist() == took and set(table["device"].to_pylist()) == {-1}
    (begun,) = set(table["start_ns"].to_pylist())
    assert abs(begun - 1681823859527500000) <= 128 if dated else begun is None
    sums = converted.tables["intervals"]
    assert sums["calls"].to_pylist() == [names.count(name) for name in dict.fromkeys(names)]
    total = [
        sum(ns for ns, of in zip(took, names, strict=True) if of == name) for name in dict.fromkeys(names)
    ]
    assert sums["exclusive_ns"].to_pylist() == pytest.approx(total)
    (finding,) = converted.findings
    assert (finding.code, finding.data["n"]) == ("records_damaged", 4)


# --- Horovod, in lines or in one ---------------------------------------------------------------------

reductions = st.tuples(st.integers(1, 5), st.integers(0, 10**9), st.integers(0, 10**6), st.integers(1, 100))


@settings(max_examples=30)
@given(made=st.lists(reductions, min_size=1, max_size=20), lines=st.booleans())
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
    expected = [(tensor, start * 1000, took * 1000, size * 12) for tensor, start, took, size in made]
    assert list(read_back) == expected
