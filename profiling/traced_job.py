"""What traces say about their job: one record, next to the tables of its ranks.

    DIR/<job>/job.json                    the record
              rank_0000/kernels.parquet, markers.parquet, batches.parquet ...

It contains only what the files say; unknown values are empty, 0 or None.
"""

from pathlib import Path

from pydantic import BaseModel, ConfigDict

from profiling.findings import Finding
from profiling.tables import read_record, write_record

JOB = "job.json"


class _Record(BaseModel):
    # A newer release may write more fields than this one knows.
    model_config = ConfigDict(extra="ignore", defer_build=True)


class ProcessGroup(_Record):
    """Ranks that make collectives together."""

    name: str = ""
    backend: str = ""
    ranks: list[int] = []
    size: int = 0
    description: str = ""  # e.g. default_pg, mesh_tp


class TraceFacts(_Record):
    """What one file says of the process that it records, before its events are read."""

    rank: int | None = None
    world_size: int | None = None
    host: str = ""
    device: str = ""  # the GPU's name; "cpu": the tool says that it has none
    backend: str = ""  # e.g. nccl
    groups: list[ProcessGroup] = []
    versions: dict[str, str] = {}


class TracedRank(_Record):
    rank: int
    source: str  # the file, as it was named or lies below the folder that was
    host: str = ""
    device: str = ""
    batches: int = 0
    started_ns: int | None = None
    written_ns: int | None = None  # when the file was changed last


class TracedJob(_Record):
    """What the traces of a job say of it."""

    name: str
    tool: str
    # the folder, from the top, in which ``source`` of its ranks is; "": of an earlier release
    root: str = ""
    world_size: int | None = None  # as they say, or as their ranks suggest; None: nothing does
    world_size_from: str = ""  # "" where they say it; else from what it was taken
    nodes: int | None = None  # how many hosts; None: not known
    backend: str = ""
    groups: list[ProcessGroup] = []
    versions: dict[str, str] = {}
    batches_from: str = ""  # what marks batches; "": nothing does
    batches_confidence: float = 1.0  # 1 where they are marked; see :mod:`profiling.attribution.batch_times`
    ranks: list[TracedRank] = []
    findings: list[Finding] = []  # what its traces lack
    unused: list[str] = []  # files of ranks of which another is used, below ``root``

    @property
    def files(self) -> list[str]:
        """From the top: its traces, used or not."""
        return [
            str(Path(self.root) / source) for source in (*(one.source for one in self.ranks), *self.unused)
        ]

    @property
    def devices(self) -> list[str]:
        return list(dict.fromkeys(one.device for one in self.ranks if one.device))


def write_job(directory: Path, job: TracedJob) -> None:
    write_record(directory / JOB, job)


def read_job(directory: Path) -> TracedJob:
    """The record of a job; UserError: absent, truncated or of another form; the message names the file."""
    return read_record(directory / JOB, TracedJob)
