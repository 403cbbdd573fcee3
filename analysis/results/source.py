"""One source of results: a run, the traces of a job, or a table of the reference's."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import duckdb

from jobs.run import Run
from jobs.run_fields import fields_of, own_names
from jobs.store import Manifest
from profiling.attribution.batch_times import WHOLE
from profiling.errors import UserError
from profiling.traced_job import TracedJob

Kind = Literal["run", "trace", "pyprof", "tau_intervals", "tau_atomics"]

# In these the runs of one point may differ: how they were watched, and for how long.
NOT_OF_POINT = fields_of("observation", "length")

UNKNOWN_HOST = "unknown"
TAU = "tau"  # the name of the tool


@dataclass(frozen=True)
class Source:
    """A run, the traces of a job, or a table of the reference's (PyProf's kernels, TAU's timers or events).

    Attributes:
        id: the run's id (the file's name, if that is no run id).
        fields: Run's fields that are known; of a PyProf table those its name says, of TAU's none, of traces
            the profile, the job's name and, where these are known, nodes and gpus_per_node.
        path: the run's directory, or the file.
        manifest: of a run of our own.
        job: of traces, what they say of their job.
    """

    id: str
    kind: Kind
    fields: dict[str, Any]
    repetition: int
    exit_code: int | None
    path: Path
    manifest: Manifest | None = None
    job: TracedJob | None = None

    @property
    def world_size(self) -> int | None:
        if self.job is not None:
            return self.job.world_size
        nodes, gpus = self.fields.get("nodes"), self.fields.get("gpus_per_node")
        return nodes * gpus if nodes and gpus else None

    def value(self, name: str) -> Any:
        """A field of the run, its ``world_size``, or the ``run`` itself: its id."""
        if name == "run":
            return self.id
        return self.world_size if name == "world_size" else self.fields.get(name)

    @property
    def point(self) -> tuple[Any, ...]:
        """What it is a run of, in the order of Run's fields; a profiled run and its twin are of one."""
        own = tuple((name, self.fields[name]) for name in own_names(self.fields))
        return (*(self.fields.get(name) for name in Run.model_fields if name not in NOT_OF_POINT), *own)

    @property
    def without_steps(self) -> bool:
        """Whether nothing separates the steps of its traces: the whole recording counts as one."""
        return self.job is not None and self.job.batches_from == WHOLE

    @property
    def without_times(self) -> bool:
        """Whether its traces hold no times of steps at all (Horovod's timeline, launches of ncu, TAU)."""
        return self.job is not None and not self.tables("batches")

    @property
    def of_sums(self) -> bool:
        """Whether it is a profile of TAU: sums of a run, from which the mean step can be estimated."""
        return self.job is not None and self.job.tool == TAU

    @property
    def gpus_per_rank(self) -> int:
        """GPUs that one process drove: one, but for DataParallel."""
        return self.manifest.run.gpus_per_rank if self.manifest else 1

    @property
    def ranks(self) -> int:
        """How many processes it had; of traces that do not say it how many are there."""
        if self.job is not None:
            return self.job.world_size or len(self.job.ranks)
        return (self.world_size or 1) // self.gpus_per_rank

    @property
    def device_by_rank(self) -> dict[int, str]:
        """Rank -> what it ran on (``cpu``, or the GPU's name; "": not known), of ranks that left a record."""
        reports = self.job.ranks if self.job else self.manifest.ranks if self.manifest else []
        return {one.rank: one.device for one in reports}

    @property
    def devices(self) -> list[str]:
        """What its ranks ran on, each once; empty: nobody recorded it."""
        return list(dict.fromkeys(device for device in self.device_by_rank.values() if device))

    @property
    def on_cpus(self) -> bool:
        """Whether all its ranks ran without a GPU."""
        return self.devices == ["cpu"]

    @property
    def hosts(self) -> list[str]:
        """The node of each rank: its host's name, or where nodes share one, their number."""
        if self.job is not None:
            known = {one.rank: one.host for one in self.job.ranks}
            return [known.get(rank) or UNKNOWN_HOST for rank in range(self.ranks)]
        ranks = self.manifest.ranks if self.manifest else []
        names = [report.hostname for report in sorted(ranks, key=lambda report: report.rank)]
        if len(names) == self.ranks and len(set(names)) == self.fields["nodes"]:
            return names
        ranks_per_node = max(1, self.ranks // self.fields["nodes"])
        return [f"node {rank // ranks_per_node}" for rank in range(self.ranks)]

    def tables(self, name: str) -> list[Path]:
        """The paths of table ``name`` of all ranks, in their order; those that exist."""
        return sorted(self.path.glob(f"rank_*/{name}.parquet"))


class Unusable(UserError):
    """A run or table whose content cannot be used; only ``Study.use`` catches it."""

    def __init__(self, source: Source, reason: str) -> None:
        super().__init__(f"{source.id}: {reason}")
        self.source = source
        self.reason = " ".join(reason.split())


@contextmanager
def reading(source: Source) -> Iterator[None]:
    """Within it an error of reading a table is one of this run: :class:`Unusable`."""
    try:
        yield
    except Unusable:
        raise
    except UserError as error:
        raise Unusable(source, str(error)) from None
    except (duckdb.Error, OSError) as error:
        raise Unusable(source, f"a table is damaged or truncated ({str(error).splitlines()[0]})") from None
