"""Ranks that train nothing (tests/cluster/scripted), many of them, on the virtual cluster."""

import resource
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from jobs import store
from profiling import tables

ROOT = Path(__file__).resolve().parents[1]
BATCHES, BATCH_NS = 10, 50_000_000
# A virtual node has more processors than the machine: what mpirun would bind a rank to is not there.
_UNBOUND = """#!/bin/bash
shopt -s extglob
words=("${@/:PE=+([0-9])/}")
exec "%s" "${words[@]/#core/none}"
"""


def make_templates(folder: Path, ranks: int = 16) -> None:
    """What scripted ranks leave as their batches."""
    for rank in range(ranks):
        starts = [1_800_000_000_000_000_000 + index * BATCH_NS for index in range(BATCHES)]
        stages = ("load_ns", "forward_ns", "backward_ns", "update_ns")
        rows = {
            "rank": [rank] * BATCHES, "batch_index": list(range(BATCHES)), "start_ns": starts,
            "end_ns": [start + BATCH_NS for start in starts], "images": [2] * BATCHES,
            "loss": [1.0] * BATCHES, "attributed": [False] * BATCHES,
            **dict.fromkeys(stages, [BATCH_NS // 4] * BATCHES),
        }  # fmt: skip
        tables.write(tables.as_table("batches", rows), folder, "batches").rename(folder / f"{rank}.parquet")


def leave_out_calibration(results: Path) -> None:
    """Have a sweep not measure the machine's peaks: it is about something else."""
    nothing = store.Calibration(gemm_flops_per_s={}, copy_bytes_per_s={}, device="cpu", seconds=0)
    store.write_record(results / store.CALIBRATION, nothing)


def write_sweep(folder: Path, name: str, run: str, more: str, ranks_per_node: int, ranks: int) -> Path:
    """A sweep's file in ``folder``, its folder of results, and templates for so many ranks."""
    file, results = folder / f"{name}.yaml", folder / "results" / name
    tiny = f"gpus_per_node: {ranks_per_node}, threads: 1, batches: {BATCHES}, batch: 2"
    file.write_text(f"{more}\nrun: {{{run}, {tiny}}}\n")
    results.mkdir(parents=True)
    leave_out_calibration(results)
    templates = folder / "templates"
    templates.mkdir()
    make_templates(templates, ranks)
    return file


def scripted(folder: Path) -> dict[str, str]:
    """The environment in which ranks train nothing."""
    return {
        "PYTHONSAFEPATH": "1", "PYTHONPATH": f"{ROOT}/tests/cluster/scripted:{ROOT}", "REPORT": "no",
        "TEMPLATES": str(folder / "templates"),
    }  # fmt: skip


def many(folder: Path, launcher: str, path: str) -> Mapping[str, str]:
    """The environment in which many of them meet, on nodes with more processors than the machine has."""
    programs = folder / "bin"
    programs.mkdir()
    (programs / "mpirun").write_text(_UNBOUND % Path(sys.executable).with_name("mpirun"))
    (programs / "mpirun").chmod(0o755)
    return {
        "MEET": "yes", "LAUNCHER": launcher, "PATH": f"{programs}:{Path(sys.executable).parent}:{path}",
        "TMPDIR": "/dev/shm",  # that of mpirun's daemons: /tmp, unlike on a cluster, is the same on all nodes
    }  # fmt: skip


@contextmanager
def few_open_files() -> Iterator[None]:
    """As on many systems: a process may have 1024 files open until it asks for more. Slurm hands it on."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (1024, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
