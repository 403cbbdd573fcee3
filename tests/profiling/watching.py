"""Programs of users under profiling.watch: how tests start them, and what these left."""

import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Any

from jobs.store import MANIFEST, RANK_REPORT, Manifest, RankReport, read_record
from profiling import tables
from tests.forked import Parent
from train.torchrun import meet
from train.torchrun import variables as torchruns
from train.world import World

PROGRAMS = Path(__file__).parent / "programs"
ROOT = Path(__file__).resolve().parents[2]

# PyPI's torchvision beside a PyTorch for CPUs, as these tests' own environment has them.
PATH = os.pathsep.join([str(PROGRAMS / "site"), str(ROOT)])
LIMIT_S = 600


def variables() -> dict[str, str]:
    """The environment of a program that is watched."""
    return {**os.environ, "PYTHONPATH": PATH, "HF_HUB_OFFLINE": "1"}


def watch(*words: object, code: int = 0, launcher: Sequence[str] = (sys.executable,)) -> str:
    """Run ``profiling.watch`` as a user does, or of several ranks as a launcher does; what it printed."""
    ended = subprocess.run(
        [*launcher, "-m", "profiling.watch", *map(str, words)],
        cwd=ROOT, env=variables(), capture_output=True, text=True, timeout=LIMIT_S, check=False,
    )  # fmt: skip
    text = ended.stdout + ended.stderr
    assert ended.returncode == code, text
    return text


@dataclass(frozen=True)
class Forks:
    """Runs ``profiling.watch`` in processes forked from one that has imported PyTorch."""

    parent: Parent
    outputs: Path
    numbers: Iterator[int] = field(default_factory=count)

    def watch(self, *words: object, code: int = 0, folder: Path = ROOT, ranks: int = 0) -> str:
        """What one process printed, or the ranks of a job with torchrun's variables."""
        port = meet(World(size=1))
        worlds = [World(rank, ranks, rank, ranks) for rank in range(ranks)]
        children = [
            self.parent.start(
                self.outputs / f"{next(self.numbers)}.txt", "profiling.watch", *words, folder=folder,
                environment={**variables(), **more},
            )
            for more in [torchruns(world, port) for world in worlds] or [{}]
        ]  # fmt: skip
        ended = [child.wait(LIMIT_S) for child in children]
        text = "".join(printed for _, printed in ended)
        assert {code for code, _ in ended} == {code}, text
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
