"""nvprof's databases and printed tables, against what is known of real ones."""

import csv

import pytest

from profiling.convert import recognise
from profiling.tools.nvprof import read


@pytest.fixture(scope="module")
def lstm(shared_data):
    return shared_data / "nvprof" / "lstm_pyprof"


def test_a_database_gives_pyprofs_own_table_row_for_row(lstm):
    assert recognise(lstm / "net.sql") == "nvprof"
    kernels = read(lstm / "net.sql").tables["kernels"].to_pandas()
    kernels = kernels[~kernels["class"].isin(["memcpy", "memset"])].reset_index(drop=True)
    with (lstm / "lm.csv").open() as file:
        oracle = list(csv.DictReader(file))
    assert len(kernels) == len(oracle) == 160
    for row, said in zip(kernels.itertuples(), oracle, strict=True):
        assert row.short_name.rpartition("::")[2] == said["Kernel"]
        assert (row.duration_ns, row.stream, row.device) == (int(said["Sil(ns)"]), int(said["Stream"]), 0)
        assert (row.grid, row.block, row.operator) == (said["Grid"], said["Block"], said["Op"])
        if said["Direction"] == "bprop":
            assert row.direction == "bprop"
        elif said["Module"] == "na":
            # What PyProf cannot assign it calls fprop; it ran on autograd's own thread.
            assert row.direction == "bprop"
        elif said["Op"] == "backward":
            assert row.direction == "bprop"  # fills the gradient of the loss
    before = [said["Op"] == "backward" for said in oracle].index(True)
    assert set(kernels["direction"][:before]) == {"fprop"}
    # After the backward pass gradients are clipped and parameters updated.
    assert list(kernels["direction"][112:]) == ["update"] * 48
    assert set(kernels["operator"][112:]) == {"norm", "mul_", "add_"}


def test_times_are_of_the_epoch_and_copies_are_named_as_pytorch_names_them(lstm):
    kernels = read(lstm / "net.sql").tables["kernels"].to_pandas()
    assert kernels["start_ns"].min() // 10**9 == 1583978810  # March 2020
    copies = kernels[kernels["class"] == "memcpy"]
    assert len(copies) == 21
    assert {name.partition(" (")[0] for name in copies["name"]} <= {
        "Memcpy HtoD",
        "Memcpy DtoH",
        "Memcpy DtoD",
    }
    assert (kernels["class"] == "memset").sum() == 8
    assert copies["bytes"].min() > 0


def test_an_empty_capture_is_an_empty_result_with_a_finding(lstm):
    converted = read(lstm / "empty_capture.sql")
    assert [table.num_rows for table in converted.tables.values()] == [0, 0]
    (finding,) = converted.findings
    assert "empty_capture.sql: the capture is empty" in finding
