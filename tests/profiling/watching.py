"""Programs of users under profiling.watch: how tests start them, and what these left."""

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from jobs.store import MANIFEST, RANK_REPORT, Manifest, RankReport, read_record
from profiling import tables

PROGRAMS = Path(__file__).parent / "programs"
ROOT = Path(__file__).resolve().parents[2]
TORCHRUN = (sys.executable, "-m", "torch.distributed.run", "--standalone", "--local-addr", "127.0.0.1")


def watch(
    *words: object, ranks: int = 0, code: int = 0, launcher: Sequence[str] = (), folder: Path = ROOT
) -> str:
    """Run ``profiling.watch``, of several ranks under torchrun or another launcher; what it printed."""
    if ranks and not launcher:
        launcher = [*TORCHRUN, "--nproc-per-node", str(ranks)]
    started = [*launcher, *(() if ranks and launcher[0] == sys.executable else (sys.executable,))]
    # PyPI's torchvision beside a PyTorch for CPUs, as these tests' own environment has them.
    path = os.pathsep.join([str(PROGRAMS / "site"), str(ROOT)])
    ended = subprocess.run(
        [*started, "-m", "profiling.watch", *map(str, words)],
        cwd=folder, capture_output=True, text=True, timeout=600, check=False,
        env={**os.environ, "PYTHONPATH": path, "HF_HUB_OFFLINE": "1"},
    )  # fmt: skip
    text = ended.stdout + ended.stderr
    assert ended.returncode == code, text
    return text


def manifest_of(out: Path) -> Manifest:
    return read_record(out / MANIFEST, Manifest)


def report_of(out: Path, rank: int = 0) -> RankReport:
    return read_record(tables.rank_directory(out, rank) / RANK_REPORT, RankReport)


def batches_of(out: Path, rank: int = 0) -> Any:
    return tables.read(tables.rank_directory(out, rank), "batches").to_pandas()


def gaps(out: Path) -> list[int]:
    """After which steps of rank 0 the next did not begin at once."""
    rows = batches_of(out)
    return [int(one) for one in (rows.start_ns[1:].to_numpy() > rows.end_ns[:-1].to_numpy()).nonzero()[0]]
