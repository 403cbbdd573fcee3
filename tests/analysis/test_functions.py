"""Functions and counters that tools summed over a run, of ranks and threads together or apart."""

import cProfile
from pathlib import Path

import pytest

from profiling import tables
from tests.analysis.commands import one_line_error, run
from tests.profiling.samples import APS, ONEDNN, VTUNE_MEMORY


def table(folder: Path, rank: int, name: str, **columns: list) -> None:
    of_rank = tables.rank_directory(folder, rank)
    of_rank.mkdir(parents=True, exist_ok=True)
    count = len(next(iter(columns.values())))
    tables.write(
        tables.as_table(name, {"rank": [rank] * count, "thread": [0, 1][:count], **columns}), of_rank, name
    )


@pytest.fixture
def recorded(tmp_path: Path) -> Path:
    """Two ranks: main calls step; a counter of one value on the first rank, of three on the second."""
    for rank in (0, 1):
        names, calls = ["main", "step"], [1.0, 10.0 + rank]
        times = {
            "exclusive_ns": [1e9, 3e9 + rank * 1e9],
            "inclusive_ns": [4e9 + rank * 1e9, 3e9 + rank * 1e9],
        }
        table(tmp_path / "job", rank, "intervals", function=names, calls=calls, **times)
    for rank, count, mean in ((0, 1.0, 8.0), (1, 3.0, 4.0)):
        spread = {"count": [count], "mean": [mean], "min": [mean - rank], "max": [mean + rank]}
        table(tmp_path / "job", rank, "atomics", event=["loss"], **spread)
    return tmp_path


def test_ranks_are_summed(recorded: Path) -> None:
    step, main, loss = run("analysis.functions", recorded, "--format", "json").json
    assert [row["run"] for row in (step, main, loss)] == ["job"] * 3
    assert (step["name"], step["calls"], step["exclusive_s"], step["inclusive_s"]) == ("step", 21, 7.0, 7.0)
    assert (main["name"], main["calls"], main["exclusive_s"], main["inclusive_s"]) == ("main", 2, 2.0, 9.0)
    assert [loss[name] for name in ("kind", "count", "mean", "min", "max")] == ["counter", 4, 5.0, 3.0, 8.0]


def test_counts_that_cannot_be_cost_no_other(recorded: Path) -> None:
    spread = {"count": [2.0**63], "mean": [1.0], "min": [1.0], "max": [1.0]}
    table(recorded / "job", 1, "atomics", event=["loss"], **spread)
    loss = run("analysis.functions", recorded, "--format", "json").json[2]
    assert (loss["name"], loss["count"], loss["max"]) == ("loss", None, 8.0)


def test_a_row_for_each_rank_and_the_first_of_each(recorded: Path) -> None:
    rows = run("analysis.functions", recorded / "job", "--by", "rank", "--top", "1", "--format", "json").json
    assert [(row["rank"], row["name"]) for row in rows] == [
        (1, "step"),
        (0, "step"),
        (0, "loss"),
        (1, "loss"),
    ]


@pytest.mark.parametrize(
    ("content", "expected"),
    [(ONEDNN, {"convolution, forward_inference, jit:avx512_common": (1, 0.00998193),
               "convolution, backward_weights, brgconv:avx512_core": (1, 0.0005),
               "matmul, jit:gemm:any": (1, 0.000732178), "reorder, jit:uni": (2, 0.00375)}),
     (VTUNE_MEMORY, {"Allocation Size (B) : posix_memalign": (1, 2e6), "Allocations : main": (1, 21),
                     "Deallocation Size (B) : free": (1, 1.2e6)}),
     (APS, {"Elapsed Time (s)": (1, 171.25), "MPI Time (% of Elapsed Time)": (1, 38.53),
            "Top 5 MPI functions (avg time): MPI_Waitall (s)": (1, 58.48),
            "Average Physical Core Utilization (out of 16 Physical Cores)": (1, 10.22),
            "DRAM Bandwidth: Bound (%)": (1, 100), "Per rank: Peak resident set size (MB)": (1, 156)})],
)  # fmt: skip
def test_files_of_intels_tools(tmp_path: Path, content: str, expected: dict[str, tuple[int, float]]) -> None:
    (tmp_path / "log").write_text(content)
    rows = run("analysis.functions", tmp_path / "log", "--format", "json").json
    found = {row["name"]: (row["calls"] or row["count"], row["exclusive_s"] or row["mean"]) for row in rows}
    assert {name: found[name] for name in expected} == {
        name: (count, pytest.approx(value)) for name, (count, value) in expected.items()
    }


def test_a_file_of_cprofile(tmp_path: Path) -> None:
    profile = cProfile.Profile()
    for _ in range(3):
        profile.runcall(sorted, [2, 1])
    profile.dump_stats(tmp_path / "x.prof")
    rows = run("analysis.functions", tmp_path / "x.prof", "--format", "json").json
    (found,) = [row for row in rows if row["name"] == "<built-in method builtins.sorted>"]
    assert found["calls"] == 3 and 0 < found["exclusive_s"] <= found["inclusive_s"] < 1


@pytest.mark.parametrize("content", [b"", b"none of ours", b"[1, 2]", b"[\xff\xff\xff\x7f"])
def test_what_holds_none_is_one_line(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "x.prof").write_bytes(content)
    for path in (tmp_path / "x.prof", tmp_path):
        assert one_line_error(run("analysis.functions", path))
    assert "does not exist" in one_line_error(run("analysis.functions", tmp_path / "none"))
