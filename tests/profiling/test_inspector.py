"""Records of NCCL Inspector: what they say of collectives, in a sweep and converted."""

import gzip
import json
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from profiling import tables
from profiling.convert import Counts, convert
from profiling.errors import UserError
from profiling.tools import Options, read, recognise
from profiling.traced_job import read_job
from profiling.wrap import collect_output
from tests.analysis.commands import found, run
from tests.analysis.synthetic import MS, START_NS, Truth, run_of, write_run, write_sweep_record
from tests.profiling.inspector_records import NOW_US, record, write

GROUP = "0x1"


def two_ranks(folder: Path, **fields) -> Path:
    """Ten rounds of an allreduce to which rank 1 comes 10 ms late, of an allgather, and of a send."""
    for rank in range(2):
        records = []
        for number in range(10):
            at, same = NOW_US + number * 100_000, {"number": number, **fields}
            records.append(record(rank, at + 10_000 * rank, 20_000 - 10_000 * rank, **same))
            records.append(record(rank, at + 50_000, 5_000, 4 << 20, "AllGather", **same))
            way = ("Send", "Recv")[rank]
            records.append(record(rank, at + 60_000, 5_000, 1 << 16, way, peer=1 - rank, **same))
        folder.mkdir(exist_ok=True)
        write(folder / f"host{rank}-pid{4711 + rank}.log", records)
    return folder


def test_records_of_all_ranks_are_a_job_and_its_collectives_are_told(tmp_path):
    two_ranks(tmp_path / "raw")
    assert convert([tmp_path / "raw"], out=tmp_path / "out") == Counts(2)
    answer = run("analysis.communication", tmp_path / "out/raw", "--format", "csv")
    rows = {row["collective"]: {name: float(of) for name, of in row.items() if of.replace(".", "").isdigit()}
            for row in answer.csv}  # fmt: skip
    assert list(rows) == ["allreduce", "allgather", "sendrecv"]
    # The whole recording is one step. Rank 0 waits for 10 ms, then both transfer for 10 ms.
    assert (rows["allreduce"]["ms_per_step"], rows["allreduce"]["wait_ms"]) == (150, 50)
    assert rows["allreduce"]["busbw_gb_per_s"] == pytest.approx((1 << 20) / 0.01 / 1e9)
    # An allgather of two ranks, as Inspector has it: 2 x size / time, times 1/2.
    assert rows["allgather"]["algbw_gb_per_s"] == pytest.approx(2 * (4 << 20) / 0.005 / 1e9)
    assert rows["allgather"]["busbw_gb_per_s"] == pytest.approx((4 << 20) / 0.005 / 1e9)
    assert rows["sendrecv"]["calls_per_step"] == 10 and rows["sendrecv"]["transfer_ms"] == 50
    assert (
        "kernels of the model"
        in found("analysis.communication", tmp_path / "out/raw")["not_recorded"]["what"]
    )


@pytest.mark.parametrize(("late_us", "verdicts"), [(0, {"no"}), (8_000, {"no", "straggler"})])
def test_records_without_steps_name_the_rank_that_comes_late(tmp_path, late_us, verdicts):
    """Clocks of hosts are 5 s apart, and each rank has lost every seventh record, but not the same."""
    (tmp_path / "raw").mkdir()
    for rank in range(4):
        records = []
        for number in range(400):
            come_us = [(number * 37 + one * 991) % 300 for one in range(4)]
            come_us[2] += late_us * (number % 4 == 0)
            wait_us = max(come_us) - come_us[rank]
            start_us = NOW_US + rank * 5_000_000 + number * 20_000 + come_us[rank]
            records.append(record(rank, start_us, wait_us + 2_000, ranks=4, number=number))
        kept = [one for number, one in enumerate(records) if number % 7 != rank]
        write(tmp_path / "raw" / f"host{rank}-pid1.log", kept)
    assert convert([tmp_path / "raw"], out=tmp_path / "out") == Counts(4)
    rows = run("analysis.stragglers", tmp_path / "out/raw", "--format", "csv").csv
    assert {row["verdict"] for row in rows} == verdicts
    assert [row["rank"] for row in rows if row["verdict"] == "straggler"] == (["2"] if late_us else [])
    common = [number for number in range(400) if number % 7 > 3]
    assert {int(row["steady_steps"]) for row in rows} == {len(common)}
    assert float(rows[0]["step_ms"]) == pytest.approx(20 * 400 / len(common), rel=0.02)
    mean_ms = late_us / 1000 * sum(number % 4 == 0 for number in common) / len(common)
    assert float(rows[2]["mean_lateness_ms"]) == pytest.approx(mean_ms, abs=0.1)
    (row,) = run("analysis.communication", tmp_path / "out/raw", "--format", "csv").csv
    assert int(float(row["calls_per_step"])) == len(common)
    assert float(row["transfer_ms"]) == pytest.approx(2 * len(common), rel=0.01)
    assert "exposed_ms" not in row or row["exposed_ms"] == ""
    # Kernels of the model may have run beside them, or none.
    (row,) = run("analysis.anatomy", tmp_path / "out/raw", "--format", "csv").csv
    unknown = ("compute_ms", "exposed_loader_ms", "exposed_copies_ms", "idle_ms", "idle_host_bound_ms")
    assert {row[name] for name in unknown} == {""} and float(row["exposed_transfer_ms"]) > 0
    assert run("analysis.critical_path", tmp_path / "out/raw").code == 2
    lost = found("analysis.stragglers", tmp_path / "out/raw")["rows_left_out"]
    assert lost["n"] == 4 * 400 - sum(
        number % 7 == rank for number in range(400) for rank in range(4)
    ) - 4 * len(common)


def test_without_times_there_are_sums_and_a_finding_that_says_how_to_have_them(tmp_path):
    two_ranks(tmp_path / "raw", verbose=False)
    assert convert([tmp_path / "raw"], out=tmp_path / "out") == Counts(2)
    rows = run("analysis.functions", tmp_path / "out/raw", "--format", "csv").csv
    (allreduce,) = [row for row in rows if row["name"].startswith("AllReduce, 1048576")]
    assert float(allreduce["calls"]) == 20 and float(allreduce["inclusive_s"]) == pytest.approx(0.3)
    findings = read_job(tmp_path / "out/raw").findings
    assert any("NCCL_INSPECTOR_DUMP_VERBOSE" in one.data["what"] for one in findings)
    assert run("analysis.communication", tmp_path / "out/raw").code == 2


@pytest.mark.parametrize("late", [0, 12])
def test_a_sweep_names_the_rank_that_comes_late(tmp_path, late):
    """A run's own steps, and in each an allreduce of 20 ms after rank 0 has come."""
    swept, step_ms = run_of(gpus_per_node=2, profile="inspector", attribute_from=5), 100
    truth = Truth(step_ms={2: step_ms}, noise_ms=0, warmup=0, perturbation=1, slowest_extra_ms=0)
    directory = write_run(tmp_path, swept, truth)
    write_sweep_record(tmp_path)
    for rank in range(2):
        own = tables.rank_directory(directory, rank)
        tables.table_path(own, "kernels").unlink()
        raw, records = own / "raw", []
        raw.mkdir()
        for number in range(swept.batches):
            end_us = (START_NS + (number * step_ms + 80) * MS) // 1000
            took_us = 20_000 + rank * -late * 1000
            records.append(record(rank, end_us - took_us, took_us, number=number))
        write(raw / "n1-pid7.log", records)
        collect_output("inspector", raw, Options(world_size=2, rank=rank))
    (row,) = run("analysis.communication", tmp_path, "--format", "csv").csv
    assert (float(row["calls_per_step"]), float(row["mbyte_per_call"])) == (1, pytest.approx(1.048576))
    assert float(row["wait_ms"]) == pytest.approx(late / 2, abs=0.01)
    rows = run("analysis.stragglers", tmp_path, "--format", "csv").csv
    assert [float(row["lateness_ms"]) for row in rows] == pytest.approx([-late, late], abs=0.01)
    assert (rows[1]["verdict"] == "straggler") == (late > 0)


def test_a_rank_in_several_communicators_is_that_of_the_largest(tmp_path):
    records = [
        record(0, NOW_US, 50, communicator=GROUP), record(3, NOW_US + 100, 50, ranks=4),
        record(0, NOW_US + 200, 50, 1 << 10, "ReduceScatter", communicator=GROUP),
    ]  # fmt: skip
    kernels = read(write(tmp_path / "a.log", records)).tables["kernels"]
    assert kernels["rank"].to_pylist() == [3] * 3
    assert kernels["group_size"].to_pylist() == [2, 4, 2]
    assert kernels["process_group"].to_pylist()[::2] == [GROUP] * 2
    assert kernels["bytes"].to_pylist() == [1 << 20, 1 << 20, 2 << 10]
    assert kernels["collective"].to_pylist() == ["allreduce", "allreduce", "reducescatter"]
    # The host's call began 20 us before the kernel.
    assert kernels["launch_ns"].to_pylist() == [one - 20_000 for one in kernels["start_ns"].to_pylist()]


calls = st.lists(
    st.tuples(
        st.integers(0, 10**9), st.integers(1, 10**6), st.integers(0, 1 << 40),
        st.sampled_from(["AllReduce", "Broadcast", "AllGather"]), st.booleans(),
    ),
    min_size=1, max_size=20,
)  # fmt: skip


@settings(max_examples=40, deadline=None)
@given(made=calls, zipped=st.booleans(), damage=st.lists(st.integers(0, 2000), max_size=4))
def test_what_is_written_is_read_back_and_damaged_lines_are_counted(made, zipped, damage, tmp_path_factory):
    path = tmp_path_factory.mktemp("inspector") / "host-pid1.log"
    lines = [
        json.dumps(record(1, NOW_US + at, took, size, coll, verbose=verbose))
        for at, took, size, coll, verbose in made
    ]
    cut = [lines[place % len(lines)][: 1 + place // 10] for place in damage]
    text = "\n".join([lines[0], *cut, *lines[1:]]).encode()
    path.write_bytes(gzip.compress(text) if zipped else text)
    assert recognise(path) == "inspector"
    converted = read(path)
    assert sum(one.data["n"] for one in converted.findings if one.code == "records_damaged") == len(cut)
    timed = sorted((NOW_US + at, took, size * (2 if coll == "AllGather" else 1))
                   for at, took, size, coll, verbose in made if verbose)  # fmt: skip
    kernels = converted.tables.get("kernels")
    columns = ("start_ns", "duration_ns", "bytes")
    rows = zip(*(kernels[name].to_pylist() for name in columns), strict=True) if kernels else []
    assert sorted((start // 1000, took // 1000, size) for start, took, size in rows) == timed
    sums = converted.tables.get("intervals")
    spent = sum(took * 1000 for _, took, _, _, verbose in made if not verbose)
    assert (sum(sums["inclusive_ns"].to_pylist()) if sums else 0) == spent


def test_an_empty_file_and_one_without_a_record(tmp_path):
    (tmp_path / "a.log").touch()
    assert [one.code for one in read(tmp_path / "a.log", "inspector").findings] == ["recording_empty"]
    (tmp_path / "b.log").write_text('{"header": {}}\n')
    with pytest.raises(UserError, match=r"b\.log"):
        read(tmp_path / "b.log", "inspector")
