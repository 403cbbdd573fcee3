"""Real files of every tool (../shared/data): as recorded in reference.json, and true where truth is known.

After a change on purpose, ``python -m tests.profiling.test_reference`` records anew.
"""

import csv
import json
import zlib
from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from profiling.tools import bundle_of, read, recognise

RECORDED = Path(__file__).with_name("reference.json")
KNOWN: dict[str, Any] = json.loads(RECORDED.read_text()) if RECORDED.exists() else {}
PATTERNS = (
    "kineto/*.gz", "kineto/dlrm_8ranks/*.gz", "nsys/*.sqlite", "nvprof/lstm_pyprof/net.sql",
    "nvprof/deepspeech_p100/*.txt", "nvprof/*metrics.csv", "ncu/*.csv", "horovod/*.gz", "tau/*.xml",
    "tau/surfboard_xml/*", "tau/**/tauprofile.xml", "tau/**/profile.0.0.0", "tau/**/snapshot.0.0.0",
)  # fmt: skip


def figures(path: Path) -> dict[str, Any]:
    """What is read of a file: codes of findings, and of each column how many values and their sum."""
    converted = read(path, recognise(path))
    tables = {name: dict(columns_of(table), rows=len(table)) for name, table in converted.tables.items()}
    return {"findings": sorted(one.code for one in converted.findings), **tables}


def columns_of(table: pa.Table):
    for name in table.column_names:
        column = table[name].drop_null()
        if not len(column):
            continue
        if not pa.types.is_dictionary(column.type):
            low = pc.min(column).as_py() if name.endswith("_ns") else 0  # nine digits say little of dates
            total = pc.sum(pc.subtract(column.cast("float64", safe=False), float(low))).as_py()
            yield name, [len(column), float(f"{total:.9g}")]
            continue
        counts = Counter(column.to_pylist())
        few = dict(sorted(counts.items())) if len(counts) < 9 else len(counts)
        yield name, [len(column), few, zlib.crc32(repr(sorted(counts.items())).encode())]


@pytest.mark.parametrize("name", KNOWN)
def test_a_real_file_gives_the_recorded_tables(shared_data, name):
    assert figures(shared_data / name) == KNOWN[name]


# Analytic, 1 multiply-add = 2: PyTorch's FlopCounterMode of ResNet50 at 224 x 224, batch 32.
FORWARD, BACKWARD = 261.707792384e9, 515.86269184e9


def test_collectives_and_flops_of_resnet50_are_its_own(shared_data):
    kernels = read(shared_data / "kineto/nccl_data.json.gz").tables["kernels"].to_pandas()
    reduced = kernels[kernels["name"].str.contains("AllReduce").astype(bool)]
    assert (reduced.groupby("batch_index")["bytes"].sum() / 4 == 25_557_032).all()  # its parameters
    assert set(reduced["direction"]) == {"bprop"}
    kernels = read(shared_data / "kineto/resnet50_v100_dims_old_schema.json.gz").tables["kernels"].to_pandas()
    flops = kernels.groupby(["batch_index", "direction"], observed=True)["flops"].sum().unstack()
    assert flops["fprop"].to_list() == pytest.approx([FORWARD] * 6, rel=0.01)
    assert flops["bprop"].to_list() == pytest.approx([BACKWARD] * 6, rel=0.01)


def test_nvprofs_database_gives_pyprofs_own_table_row_for_row(shared_data):
    folder = shared_data / "nvprof" / "lstm_pyprof"
    kernels = read(folder / "net.sql").tables["kernels"].to_pandas()
    kernels = kernels[~kernels["class"].isin(["memcpy", "memset"])].reset_index(drop=True)
    with (folder / "lm.csv").open() as file:
        oracle = list(csv.DictReader(file))
    assert len(kernels) == len(oracle) == 160
    for row, said in zip(kernels.itertuples(), oracle, strict=True):
        assert row.short_name.rpartition("::")[2] == said["Kernel"]
        assert (row.duration_ns, row.stream, row.device) == (int(said["Sil(ns)"]), int(said["Stream"]), 0)
        assert (row.grid, row.block, row.operator) == (said["Grid"], said["Block"], said["Op"])
        # What PyProf cannot assign it calls fprop; it ran on autograd's own thread. The operator backward
        # fills the gradient of the loss.
        if said["Direction"] == "bprop" or said["Module"] == "na" or said["Op"] == "backward":
            assert row.direction == "bprop"
    before = [said["Op"] == "backward" for said in oracle].index(True)
    assert set(kernels["direction"][:before]) == {"fprop"}
    # After the backward pass gradients are clipped and parameters updated.
    assert list(kernels["direction"][112:]) == ["update"] * 48


TRUTHS = (
    "hvd_r2_merged/n24", "hvd_r2_profile/n24", "hvd_r2_snapshot/n24", "x_mpi4py_r2_merged_two_metrics",
    "x_mpi4py_r2_profile_two_metrics", "x_mpi4py_r2_profile_callpath", "x_mpi4py_r2_profile_ebs",
    "x_mpi4py_r2_snapshot_perbatch",
)  # fmt: skip
STAGES = {"Load Data", "Forward Pass", "Backward Pass", "Allreduce Gradients", "Optimizer Step"}


@pytest.mark.parametrize("run", TRUTHS)
def test_tau_agrees_with_the_programs_own_clock(shared_data, run):
    folder = shared_data / "tau" / run
    merged = folder / "tauprofile.xml"
    tables = read(merged if merged.exists() else folder, "tau").tables
    intervals, atomics = tables["intervals"].to_pandas(), tables["atomics"].to_pandas()
    for rank in (0, 1):
        truth = json.loads((folder / f"ground_truth.{rank}.json").read_text())
        durations_us = [seconds * 1e6 for seconds in truth["batch_durations"]]
        mine = intervals[intervals["rank"] == rank]
        loop = mine[(mine["function"] == "Train Loop") & (mine["thread"] == 0)]
        assert loop["inclusive_ns"].item() / 1e9 == pytest.approx(truth["train_loop"], rel=0.005)
        stages = mine[mine["function"].isin(STAGES)]
        assert set(stages["calls"]) == {truth["batches"]}
        # What the loop does itself is the sleep between two batches and the one in the loading.
        assert stages["inclusive_ns"].sum() + loop["exclusive_ns"].item() == pytest.approx(
            loop["inclusive_ns"].item(), rel=0.005
        )
        event = atomics[(atomics["rank"] == rank) & (atomics["event"] == "Batch Duration (us)")].iloc[0]
        seen = durations_us[: int(event["count"])]
        spread = [sum(seen) / len(seen), max(seen), min(seen)]
        assert event[["mean", "max", "min"]].to_list() == pytest.approx(spread, rel=0.005)
        if "markers" in tables and "perbatch" in run:
            marks = tables["markers"].to_pandas().query("rank == @rank")["start_ns"] / 1e9
            begun = zip(truth["batch_start_unix"], truth["batch_durations"], strict=True)
            assert marks.to_list() == pytest.approx([at + took for at, took in begun], abs=0.02)


def record() -> None:
    root = Path(__file__).resolve().parents[3] / "shared" / "data"
    files = {bundle_of(path)[0] for pattern in PATTERNS for path in root.glob(pattern)}
    names = sorted(path.relative_to(root).as_posix() for path in files)
    lines = (f"{json.dumps(name)}: {json.dumps(figures(root / name))}" for name in names)
    RECORDED.write_text("{\n" + ",\n".join(lines) + "\n}\n")


if __name__ == "__main__":
    record()
