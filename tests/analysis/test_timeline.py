"""The timeline of a run: everything in the tables is in it, on one clock, and Perfetto opens it."""

import gzip
import io
import shutil
from collections import Counter
from itertools import pairwise
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st
from perfetto.protos.perfetto.trace import perfetto_trace_pb2

from analysis.display.perfetto import FILE, TraceWriter
from analysis.frames.load import load
from analysis.measures import timeline
from analysis.measures.critical_path import paths_of
from analysis.measures.timeline import lanes
from profiling import tables
from profiling.findings import Finding
from tests.analysis.commands import one_line_error, run
from tests.analysis.perfetto_page import opened
from tests.analysis.synthetic import change, run_of, write_pyprof, write_sweep
from tests.analysis.test_report import EVIL, plant_kernel_name

RANKS = 4
AHEAD_NS = 12_345_678  # of rank 2's clock, planted


def shift(directory: Path, by_ns: int) -> None:
    """Let a rank's clock be ahead: all its times are later."""

    def later(times):
        return [time + by_ns for time in times]

    change(directory, "batches", start_ns=later, end_ns=later)
    change(directory, "kernels", start_ns=later)


@pytest.fixture(scope="module")
def sweep(tmp_path_factory) -> Path:
    """Two profiled runs, the larger with a clock ahead and a name that is markup; its twin."""
    directory = tmp_path_factory.mktemp("sweep")
    runs = [run_of(gpus_per_node=ranks, profile="torch") for ranks in (1, RANKS)]
    write_sweep(directory, [*runs, run_of(gpus_per_node=RANKS)])
    plant_kernel_name(directory, EVIL)
    shift(next(directory.glob("run_*_1_4_*_torch_*")) / "rank_0002", AHEAD_NS)
    return directory


def parsed(path: Path):
    """The trace by Perfetto's published schema."""
    return perfetto_trace_pb2.Trace.FromString(gzip.decompress(path.read_bytes()))


@pytest.fixture(scope="module")
def perfetto(sweep, tmp_path_factory):
    """The trace, opened without an error."""
    file = tmp_path_factory.mktemp("trace") / FILE
    written(sweep, file)
    with opened(file) as trace:
        assert trace.rows("select name, value from stats where severity != 'info' and value > 0") == []
        yield trace


def paths_in(sweep):
    study = load(sweep)
    return paths_of(study, timeline.choose(study))


def test_the_critical_path_is_as_long_as_the_steps_and_in_order(perfetto, sweep):
    rows = perfetto.rows(
        "select ts, dur, extract_arg(s.arg_set_id, 'debug.step') from slice s "
        "where category = 'critical path' order by ts"
    )
    for step in paths_in(sweep).steps.itertuples():
        mine = [(ts, dur) for ts, dur, batch in rows if batch == step.step]
        assert sum(dur for _, dur in mine) == step.step_ns
        assert all(ts + dur == after for (ts, dur), (after, _) in pairwise(mine))
    arguments = {"debug.step", "debug.kernel", "debug.operator", "debug.layer"}
    found = perfetto.rows(
        "select distinct key from args join slice using (arg_set_id) where category = 'critical path'"
    )
    assert {key for (key,) in found} <= arguments and ("debug.kernel",) in found


def test_every_row_of_the_tables_is_a_slice(perfetto, sweep):
    found = dict(
        perfetto.rows("select t.name, count(*) from slice s join track t on t.id = s.track_id group by 1")
    )
    batches, recorded = 40 * RANKS, 20 * RANKS
    assert found == {
        "steps": batches,
        "stages": 5 * batches,
        "GPU 0 · stream 7": 4 * recorded,
        "loader · stream 7": recorded,
        "communication · stream 20": recorded,
        "critical path": len(paths_in(sweep).pieces),
    }
    rows = [
        tables.read(path.parent, "kernels").num_rows
        for path in sweep.glob("run_*_1_4_*/rank_*/kernels.parquet")
    ]
    assert sum(rows) == 6 * recorded


def test_ranks_are_on_one_clock_to_the_nanosecond(perfetto):
    rows = perfetto.rows(
        "select s.name, s.ts, count(distinct s.track_id) from slice s join track t on t.id = s.track_id "
        "where t.name = 'communication · stream 20' group by 1, 2"
    )
    assert len(rows) == 20 and {ranks for _, _, ranks in rows} == {RANKS}
    processes = dict(perfetto.rows("select pid, name from process where name is not null"))
    assert processes == {rank: f"rank {rank} · node0 · NVIDIA A100-SXM4-40GB" for rank in range(RANKS)}


def test_kernels_keep_their_times_and_arguments(perfetto, sweep):
    directory = next(sweep.glob("run_*_1_4_*_torch_*")) / "rank_0002"
    names = ("duration_ns", "short_name", "class", "direction")
    planted = Counter(
        (row["start_ns"] - AHEAD_NS, *(row[name] for name in names), round(row["flops"]))
        for row in tables.read(directory, "kernels").to_pylist()
    )
    rows = perfetto.rows(
        "select ts, dur, s.name, category, extract_arg(s.arg_set_id, 'debug.direction'), "
        "extract_arg(s.arg_set_id, 'debug.flops') from slice s join process_track t on t.id = s.track_id "
        "join process p using (upid) where p.pid = 2 "
        "and category not in ('step', 'recorded step', 'stage', 'critical path')"
    )
    assert Counter(rows) == planted
    assert any(name == EVIL for _, _, name, *_ in rows)  # as it is: no markup was made of it, none was lost


def test_arrows_join_a_collective_of_all_ranks(perfetto):
    rows = perfetto.rows(
        "select count(*), count(distinct trace_id), min(a.ts = b.ts) from flow f "
        "join slice a on a.id = f.slice_out join slice b on b.id = f.slice_in"
    )
    assert rows == [(20 * (RANKS - 1), 20, 1)]


def written(path: Path, file: Path) -> tuple[timeline.Written, list[Finding]]:
    study = load(path)
    return timeline.write(study, timeline.choose(study), file), study.findings


def test_the_largest_profiled_run_is_drawn_or_the_named_one(sweep, tmp_path):
    ran = run("analysis.timeline", sweep, "--output", tmp_path / "t.gz")
    assert ran.code == 0 and ran.out.strip() == str(tmp_path / "t.gz")
    assert "_1_4_eth_torch_" in ran.err and "480 kernels" in ran.err and "aligned to 0 us" in ran.err
    name = next(sweep.glob("run_*_1_1_*_torch_*")).name
    assert name in run("analysis.timeline", sweep, "--run", name, "--output", tmp_path / "t.gz").err
    assert f"did you mean '{name}'" in one_line_error(run("analysis.timeline", sweep, "--run", name + "x"))


def test_some_batches_are_drawn_alone(sweep, tmp_path):
    ran = run("analysis.timeline", sweep, "--batches", "30-31", "--output", tmp_path / "t.gz")
    assert "8 steps, 40 stages, 48 kernels" in ran.err
    trace = parsed(tmp_path / "t.gz")
    names = {word.name for packet in trace.packet for word in packet.interned_data.event_names}
    assert {"step 30", "step 31"} == {name for name in names if name.startswith("step ")}
    times = [p.timestamp for p in trace.packet if p.HasField("track_event") and p.track_event.type == 1]
    (clock,) = [p.timestamp for p in trace.packet if p.HasField("clock_snapshot")]
    table = tables.read(next(sweep.glob("run_*_1_4_*_torch_*")) / "rank_0000", "batches").to_pydict()
    behind = table["start_ns"][32] - table["start_ns"][30]
    assert min(times) == clock and clock + behind / 2 < max(times) < clock + behind * 1.05


def test_what_cannot_be_read_costs_no_more_than_itself(sweep, tmp_path):
    copy = tmp_path / next(sweep.glob("run_*_1_4_*_torch_*")).name
    shutil.copytree(next(sweep.glob("run_*_1_4_*_torch_*")), copy)
    absent = {"start_ns": lambda at: [None, *at[1:]], "duration_ns": lambda took: [took[0], None, *took[2:]]}
    change(copy / "rank_0000", "kernels", **absent)
    (copy / "rank_0001" / "kernels.parquet").write_bytes(b"PAR1 not really")
    (copy / "rank_0003" / "batches.parquet").unlink()
    made, findings = written(copy, tmp_path / "t.gz")
    assert made[0]["steps"] == 3 * 40 and made[0]["kernels"] == 2 * 120 - 2
    found = {(one.code, one.rank) for one in findings}
    assert found >= {("not_recorded", 3), ("run_left_out", 1), ("clocks_unmatched", None)}
    assert [one.data["n"] for one in findings if one.code == "rows_left_out"] == [2]
    assert made[1] is None


def test_what_cannot_be_drawn_or_written_is_one_line_and_leaves_nothing(sweep, tmp_path):
    write_pyprof(tmp_path / "tables")
    assert "no run with" in one_line_error(run("analysis.timeline", tmp_path / "tables"))
    place = tmp_path / "t.gz"
    error = one_line_error(run("analysis.timeline", sweep, "--batches", "90", "--output", place))
    assert "has steps 0 to 39" in error and not place.exists()
    (tmp_path / "file").touch()
    error = one_line_error(run("analysis.timeline", sweep, "--output", tmp_path / "file" / "t.gz"))
    assert "cannot write" in error
    for batches in ("x", "3-", "5-4", "-1"):
        assert "40 or 40-42" in one_line_error(run("analysis.timeline", sweep, f"--batches={batches}"))


@given(st.lists(st.tuples(st.integers(0, 2), st.integers(0, 50), st.integers(0, 20)), max_size=60))
def test_slices_of_a_lane_never_overlap(rows):
    rows = sorted(rows, key=lambda row: (row[0], row[1], -row[2]))
    track, start, length = np.array(rows, np.int64).reshape(-1, 3).T
    lane = lanes(track, start, start + length)
    assert len(lane) == len(rows)
    for key in set(zip(track.tolist(), lane.tolist(), strict=True)):
        mine = (track == key[0]) & (lane == key[1])
        assert (start[mine][1:] >= (start + length)[mine][:-1]).all()
    if len(rows) and (start[1:] >= (start + length)[:-1])[np.diff(track) == 0].all():
        assert not lane.any()  # what is in order stays on one track


def test_what_is_written_is_read_back():
    """Names, times and numbers, absent ones too, by the published schema."""
    file = io.BytesIO()
    writer = TraceWriter(file)
    words = ["<\0 \u00e9", None, "", "<\0 \u00e9"]
    start, sizes = np.array([5, 7, 2**62, 2**62 + 1]), np.array([0, -1, 2**62, 1])
    loss = np.array([0.5, np.nan, -np.inf, 1e300])
    times = {"track": writer.track(None, "here"), "start_ns": start, "end_ns": start + 1}
    coded = dict.fromkeys(("name", "category", "word"), pd.Categorical(words))
    writer.slices(pd.DataFrame({**times, **coded, "bytes": sizes, "loss": loss}))
    writer.finish()
    trace = perfetto_trace_pb2.Trace.FromString(file.getvalue())
    numbered = {(of.name, value.iid): value.str.decode() if hasattr(value, "str") else value.name
                for packet in trace.packet
                for of, values in packet.interned_data.ListFields() for value in values}  # fmt: skip
    events = [packet for packet in trace.packet if packet.HasField("track_event")]
    assert [packet.timestamp for packet in events[::2]] == start.tolist()
    assert [packet.timestamp for packet in events[1::2]] == (start + 1).tolist()
    for row, word in enumerate(words):
        event = events[2 * row].track_event
        assert numbered.get(("event_names", event.name_iid)) == word
        categories = [numbered["event_categories", iid] for iid in event.category_iids]
        assert categories == ([] if word is None else [word])
        found = {numbered["debug_annotation_names", one.name_iid]: one for one in event.debug_annotations}
        text = found["word"].string_value_iid if "word" in found else 0
        assert numbered.get(("debug_annotation_string_values", text)) == word
        assert ("bytes" in found) == (sizes[row] >= 0) and ("loss" in found) == (not np.isnan(loss[row]))
        assert "bytes" not in found or found["bytes"].int_value == sizes[row]
        assert "loss" not in found or found["loss"].double_value == loss[row]
