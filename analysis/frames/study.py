"""A set of results: its runs, traces and tables, which of them count, and what was found.

What was loaded never changes. Damaged tables are found only when they are read, so frames are built through
:meth:`Study.use` or :meth:`Study.each`: the function that reads a run raises :class:`Unusable`, which is
caught in this one place, and the run is removed from :attr:`Study.sources`.
"""

from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import cache, cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeVar

import duckdb

from jobs.run import Run
from jobs.run_fields import as_text, fields_of, own_names, parse_id
from jobs.store import Calibration, Manifest, State
from profiling.attribution.batch_times import WHOLE
from profiling.errors import UserError
from profiling.findings import Finding, Side, lines
from profiling.process import cores
from profiling.traced_job import TracedJob

if TYPE_CHECKING:
    import pandas as pd

Kind = Literal["run", "trace", "pyprof", "tau_intervals", "tau_atomics", "marks"]

# In these the runs of one point may differ: how they were watched, and for how long.
NOT_OF_POINT = fields_of("observation", "length")

UNKNOWN_HOST = "unknown"
TAU = "tau"  # the name of the tool


@dataclass(frozen=True)
class Source:
    """A run, the traces of a job, or a table of the reference's (PyProf's, TAU's, marks of a run)."""

    id: str  # the run's (the file's name, if that is no run id)
    kind: Kind
    # Run's fields that are known; of PyProf's and of marks those the name says, of TAU's none, of traces the
    # profile, the job's name and, where these are known, nodes and gpus_per_node.
    fields: dict[str, Any]
    path: Path  # the run's directory, or the file
    repetition: int = 0
    manifest: Manifest | None = None  # of a run of our own
    job: TracedJob | None = None  # of traces, what they say of their job

    @property
    def world_size(self) -> int | None:
        if self.job is not None:
            return self.job.world_size
        nodes, gpus = self.fields.get("nodes"), self.fields.get("gpus_per_node")
        return nodes * gpus if nodes and gpus else None

    def value(self, name: str) -> Any:
        """A field of the run, its ``world_size``, or the ``run`` itself: its id."""
        return {"run": self.id, "world_size": self.world_size, **self.fields}.get(name)

    @property
    def point(self) -> tuple[Any, ...]:
        """What it is a run of, in the order of Run's fields; a profiled run and its twin are of one."""
        own = tuple((name, self.fields[name]) for name in own_names(self.fields))
        return (*(self.fields.get(name) for name in Run.model_fields if name not in NOT_OF_POINT), *own)

    @property
    def without_steps(self) -> bool:
        """Whether nothing separates the steps of its traces: the recording counts as one."""
        return self.job is not None and self.job.batches_from == WHOLE

    @property
    def without_times(self) -> bool:
        """Whether its traces hold no times of steps at all (Horovod's timeline, launches of ncu, TAU)."""
        return self.job is not None and not self.tables("batches")

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


_Item = TypeVar("_Item")
_Answer = TypeVar("_Answer")


def in_threads(function: Callable[[_Item], _Answer], items: Iterable[_Item]) -> Iterator[_Answer]:
    """``function`` of each item, in order, some at a time in threads: for work that Python's lock lets go."""
    waiting: deque[Future[_Answer]] = deque()
    with ThreadPoolExecutor(cores()) as pool:
        for item in items:
            waiting.append(pool.submit(function, item))
            if len(waiting) > cores():  # so that no more results than that are in memory
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()


@cache
def _database() -> duckdb.DuckDBPyConnection:
    return duckdb.connect()


def connect() -> duckdb.DuckDBPyConnection:
    """A connection to the one database, whose temporary tables and views are its own; create no others."""
    # A database of its own for each would take 17 ms each time, longer than many a question.
    connection = _database().cursor()
    try:
        connection.execute("select 1").fetchall()
    except duckdb.FatalException:  # an error within DuckDB has closed the database for all
        _database.cache_clear()
        connection = _database().cursor()
    return connection


FailureKind = State | Literal["excluded"]
BOTH: Side = "both"


@dataclass(frozen=True)
class Failure:
    """A run that does not count: its id, why in one line, and the state it is in."""

    point: str
    reason: str
    kind: FailureKind

    @property
    def finding(self) -> Finding:
        code = "run_excluded" if self.kind == "excluded" else "run_left_out"
        return Finding(code, run=self.point, data={"what": self.kind, "reason": self.reason})


def in_counts(failures: Sequence[Failure], what: str = "runs") -> str:
    """How many are in which state: ``runs: 1 failed, 3 not started``."""
    counts = Counter(failure.kind for failure in failures)
    return f"{what}: " + ", ".join(f"{count} {kind}" for kind, count in counts.items())


# What the figures of a source are of.
A_STEP, RECORDING = "a step", "the whole recording"


@dataclass(eq=False)
class Study:
    """What :func:`analysis.frames.load.load` found, and what was found wrong with it since."""

    path: Path
    loaded: list[Source] = field(default_factory=list)  # as they were when it was loaded
    calibration: Calibration | None = None  # peaks measured on the machine of the sweep
    own_peaks: Path | None = None  # a peaks file of the user's
    named: bool = False  # the user gave each folder of traces its number of ranks, to compare them
    failed: list[Failure] = field(default_factory=list)  # runs that do not count
    noted: dict[Finding, None] = field(default_factory=dict)  # findings on the others, each once
    _unusable: set[Path] = field(default_factory=set, repr=False)  # of sources that were loaded
    _kept: dict[str, dict[Any, Any]] = field(default_factory=dict, repr=False)

    def of_kind(self, *kinds: Kind) -> tuple[Source, ...]:
        """What counts of these kinds, in the order in which it was loaded."""
        return tuple(self.usable(source for source in self.loaded if source.kind in kinds))

    def usable(self, sources: Iterable[Source]) -> list[Source]:
        """Those of the sources that nothing was found wrong with so far."""
        return [source for source in sources if source.path not in self._unusable]

    def choose(self, only: Mapping[str, Sequence[str]]) -> None:
        """Leave out what has other values of these fields, as text; UserError: nothing is left."""
        for name, texts in only.items():
            there = dict.fromkeys(as_text(one.fields.get(name)) for one in self.loaded)
            self.loaded = [one for one in self.loaded if as_text(one.fields.get(name)) in texts]
            if not self.loaded:
                has = f"{name} has {', '.join(there)}" if there else "these results have no runs"
                raise UserError(f"no runs: --only {name}={','.join(texts)}, but {has}")

        def differs(failure: Failure) -> bool:
            with suppress(UserError):  # the user has named it
                run = parse_id(failure.point).run
                fields = run.model_dump() | run.factors
                return any(as_text(fields.get(name)) not in texts for name, texts in only.items())
            return False

        self.failed = [one for one in self.failed if not differs(one)]

    @property
    def sources(self) -> tuple[Source, ...]:
        """The runs, traces and PyProf tables that count."""
        return self.of_kind("run", "trace", "pyprof")

    @property
    def recorded(self) -> tuple[Source, ...]:
        """The runs and traces that a profiler recorded, whose ranks have tables."""
        return tuple(one for one in self.of_kind("run", "trace") if one.fields.get("profile") != "none")

    @property
    def only_traces(self) -> bool:
        """Whether it holds traces of jobs, and no run that was started or watched here."""
        return bool(self.of_kind("trace")) and not self.of_kind("run")

    @property
    def on_cpus(self) -> bool:
        """Whether all runs ran without GPUs; False where there are none."""
        runs = self.of_kind("run")
        return bool(runs) and all(run.on_cpus for run in runs)

    @property
    def missing(self) -> list[Failure]:
        """What does not count, without what its sweep leaves out on purpose."""
        return [failure for failure in self.failed if failure.kind != "excluded"]

    def use(self, source: Source, function: Callable[[Source], _Answer]) -> _Answer | None:
        """``function(source)``, which reads no other; None, with a finding, if it is :class:`Unusable`."""
        if not self.usable([source]):
            return None
        try:
            return function(source)
        except Unusable as error:
            if error.source.without_times:  # nothing is wrong with it
                self.note("not_recorded", error.source, what="times of steps")
                return None
            self._unusable.add(error.source.path)
            self.failed.append(Failure(error.source.id, error.reason, "unusable"))
            return None

    def each(
        self, sources: Iterable[Source], function: Callable[[Source], _Answer | None]
    ) -> Iterator[tuple[Source, _Answer]]:
        """Each run with what ``function`` says of it, but those that cannot be used and those with None."""
        for source in sources:
            if (answer := self.use(source, function)) is not None:
                yield source, answer

    def a_step(self, ids: Iterable[str]) -> str:
        """What figures of these sources are of: ``a step``, or the whole recording where none is known."""
        of = set(ids)
        if not (without := sorted(self.without_steps() & of)):
            return A_STEP
        return RECORDING if len(without) == len(of) else f"{A_STEP} (of {', '.join(without)}: {RECORDING})"

    def without_steps(self) -> set[str]:
        """The jobs of which a whole recording counts as one step: headlines are of others, if any."""
        return {source.id for source in self.recorded if source.without_steps}

    def kept(self, what: str) -> dict[Any, Any]:
        """What a measure keeps under a name of its own for the next question, by its keys."""
        return self._kept.setdefault(what, {})

    def once(self, what: str, key: Any, compute: Callable[[], _Answer]) -> _Answer:
        """What ``compute`` gives for a key of :meth:`kept`, computed when it is first asked for."""
        if key not in (kept := self.kept(what)):
            kept[key] = compute()
        return kept[key]  # type: ignore[no-any-return]

    @cached_property
    def connection(self) -> duckdb.DuckDBPyConnection:
        """A DuckDB connection of this study's own."""
        return connect()

    def note(self, code: str, source: Source | str | None = None, side: Side = "", **data: object) -> None:
        """Add a finding, once; on a run, if one is given.

        ``data``: what the template of the code names; ``rank`` and ``configuration`` say what else it is of.
        """
        run = source.id if isinstance(source, Source) else source
        rank, configuration = data.pop("rank", None), data.pop("configuration", None)
        self.add(Finding(code, run, rank, configuration, side, data))  # type: ignore[arg-type]

    def add(self, finding: Finding) -> None:
        self.noted.setdefault(finding)

    def join(self, other: "Study") -> None:
        """Add the findings of results B to these, of results A; what is found in both names neither side."""
        both = set(self.noted) & set(other.noted)
        self.noted = dict.fromkeys(
            finding if finding.side or finding in both else finding.of(side=side)
            for side, study in (("A", self), ("B", other))
            for finding in study.noted
        )
        # Of the same runs what failed is in both; else runs of equal names are two.
        same = self.path.resolve() == other.path.resolve()
        in_both = [one for one in self.failed if same and one in other.failed]
        self.failed = in_both + [
            one if one.kind == "excluded" else replace(one, point=f"{side}: {one.point}")
            for side, failed in (("A", self.failed), ("B", other.failed))
            for one in failed
            if one not in in_both
        ]

    @property
    def findings(self) -> list[Finding]:
        """Of the runs that do not count, then of the others."""
        return [*(failure.finding for failure in self.failed), *self.noted]

    def notes(self) -> list[str]:
        """The findings on what counts, as lines."""
        return lines(self.noted)

    def nothing(self, why: str) -> UserError:
        """The error of an analysis that has nothing to show, with what was wrong with a run it took out."""
        bad = [failure for failure in self.failed if failure.kind == "unusable"]
        without = [source for source in self.sources if source.without_times]
        if without and not bad:
            return UserError(f"{why}; {without[0].id} holds no times of steps")
        return UserError(f"{why}; {bad[0].point} is not used: {bad[0].reason}" if bad else why)

    @property
    def own_factors(self) -> list[str]:
        """The factors of programs' own that its runs have, as answers name them."""
        return own_names(*(source.fields for source in self.sources))

    @property
    def runs(self) -> "pd.DataFrame":
        """A row a run, trace or PyProf table that counts: ``run``, the fields, and ``repetition``.

        Fields keep their types; None: the run has none.
        """
        import pandas as pd

        return pd.DataFrame([
            {"run": source.id, **source.fields, "repetition": source.repetition} for source in self.sources
        ] or {"run": []}, dtype=object)  # fmt: skip

    def with_fields(self, frame: "pd.DataFrame") -> "pd.DataFrame":
        """A frame with a column ``run``, and before its columns those of :attr:`runs`."""
        return self.runs.merge(frame, on="run", how="inner")
