"""Convert a file: the tables of its ranks as a rank of ours leaves them, or tables for themselves."""

import re
import shutil
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc

from profiling.attribution.batch_rows import CONFIDENCE, SOURCE
from profiling.errors import UserError
from profiling.findings import Finding
from profiling.readers.origin import Origin, rank_in
from profiling.schemas import SCHEMAS
from profiling.tables import Writer, rank_directory, table_path
from profiling.tools import Profiler
from profiling.tools.recognition import Unrecognised, reader_of, recognise
from profiling.traced_job import TraceFacts
from profiling.traces import units
from profiling.traces.units import ENDINGS, Unit

_RANK = re.compile(r"[_.-]?(?:rank|worker)[_.-]?\d+|^\d+$", re.IGNORECASE)
_EPOCH_NS = 10**18  # times before it count from another moment, and say nothing of other hosts'
_LATEST = (1 << 63) - 1


@dataclass(frozen=True)
class Recorded:
    """The recording of one rank, as it was converted."""

    source: Path  # its file, below ``root``
    root: Path
    tool: str  # that wrote it
    facts: TraceFacts  # what the file says of its job
    rank: int  # as its rows say it
    rank_known: bool  # whether the file says its rank, or its name
    alone: bool  # whether its file holds no other rank
    directory: Path  # where its tables are
    started_ns: int  # of its first and last activity
    ended_ns: int
    written_ns: int  # when its file was changed last
    batches: int  # how many; ``batches_from``, ``confidence``: see :class:`profiling.traced_job.TracedJob`
    batches_from: str = ""
    confidence: float = 1.0
    rank_folders: tuple[int, ...] = ()  # which parts of ``source`` are bare numbers that name ranks

    @property
    def dated_ns(self) -> int:
        """When it began, since the epoch; 0: not known."""
        return self.started_ns if self.started_ns > _EPOCH_NS else 0

    @property
    def folder(self) -> Path:
        """Its folder below the root, without the parts that name a rank."""
        return Path(
            *(
                part
                for place, part in enumerate(self.source.parent.parts)
                if not (place in self.rank_folders if part.isdecimal() else _RANK.fullmatch(part))
            )
        )

    @cached_property
    def stem(self) -> str:
        """Its file's name without the rank and the ending."""
        return _RANK.sub("", ENDINGS.sub("", self.source.name) or self.source.name).strip("_.-")


@dataclass(frozen=True)
class Outcome:
    """What became of a unit: where its tables are, or why there are none."""

    target: Path
    findings: tuple[Finding, ...] = ()
    error: str = ""
    # that a trace of a job holds, whose tables are not yet where they belong
    ranks: tuple[Recorded, ...] = ()
    unrecognised: bool = False  # no tool known here has written the file, or it is empty
    as_it_is: bool = False  # analysis reads the file itself


def convert_unit(unit: Unit) -> Outcome:
    """Write the tables of one file, a piece at a time where its tool can."""
    shutil.rmtree(unit.scratch, ignore_errors=True)  # of a call that was killed
    outcome = _convert(unit)
    if outcome.error:
        shutil.rmtree(unit.scratch, ignore_errors=True)
    return outcome


def _convert(unit: Unit) -> Outcome:
    findings: list[Finding] = []
    try:
        name = unit.name or recognise(unit.path)
        reader = reader_of(unit.path, name)
        if reader.analysed_as_it_is:
            if unit.name:  # not recognised by what is in it: whether it is one is to be seen
                reader.read(unit.path)
            return Outcome(unit.target, as_it_is=True)
        facts = None if unit.batch_marker is None else reader.facts(unit.path)
        if facts is not None and (ranks := _ranks(unit, reader, name or "", facts, findings)):
            return Outcome(unit.target, tuple(findings), ranks=ranks)
        with Writer(unit.target) as writer:
            for table, piece in reader.stream(unit.path, findings):
                writer.add(table, piece)
        if units.source_of(unit.target):  # by an earlier call, of another file or as it was
            for table in SCHEMAS.keys() - writer.names:
                table_path(unit.target, table).unlink(missing_ok=True)
        if unit.target.is_dir():
            (unit.target / units.SOURCE).write_text(str(unit.path.resolve()))
    except UserError as error:
        return Outcome(unit.target, error=str(error), unrecognised=isinstance(error, Unrecognised))
    except OSError as error:
        do = "name another place (profiling.convert --out DIR, analysis.report --output FILE)"
        return Outcome(unit.target, error=f"cannot write to {unit.target}: {error.strerror or error}; {do}")
    of_file = (finding.of(run=unit.path.name) for finding in findings)
    return Outcome(unit.target, tuple(of_file))


@dataclass
class _Rank:
    """What is known of a rank while its tables are written; times in ns."""

    writer: Writer
    started_ns: int = _LATEST
    ended_ns: int = 0
    batches: int = 0
    batches_from: str = ""
    confidence: float = 1.0

    def add(self, table: str, piece: pa.Table) -> None:
        if not len(piece):
            return
        self.writer.add(table, piece)
        if table == "kernels":
            begun = pc.min(piece["start_ns"]).as_py()
            ended = pc.max(pc.add(piece["start_ns"], piece["duration_ns"])).as_py()
            self.started_ns = min(self.started_ns, begun if begun is not None else _LATEST)
            self.ended_ns = max(self.ended_ns, ended or 0)
        elif table == "batches":
            metadata = piece.schema.metadata or {}
            self.batches = len(piece)
            self.batches_from = metadata.get(SOURCE, b"").decode()
            self.confidence = float(metadata.get(CONFIDENCE, b"1"))


def _ranks(
    unit: Unit, reader: Profiler, name: str, facts: TraceFacts, findings: list[Finding]
) -> tuple[Recorded, ...]:
    """Write the tables of a trace's ranks, each into a folder of its own.

    Args:
        findings: takes what was found on the way.
    """
    path, directory = unit.path, unit.scratch
    root = unit.root.parent if path == unit.root else unit.root
    known = facts.rank if facts.rank is not None else rank_in(path.relative_to(root))
    origin = Origin(
        known, world_size=facts.world_size or 1, batches=True, batch_marker=unit.batch_marker or ""
    )
    ranks: dict[int, _Rank] = {}
    with ExitStack() as writers:
        for table, piece in reader.stream(path, findings, origin):
            for number, rows in _by_rank(piece):
                if number not in ranks:
                    writer = Writer(rank_directory(directory, number))
                    ranks[number] = _Rank(writers.enter_context(writer))
                ranks[number].add(table, rows)
    return tuple(
        Recorded(
            source=path.relative_to(root), root=root, tool=name, facts=facts, rank=number,
            rank_known=known is not None, alone=len(ranks) == 1, directory=one.writer.directory,
            started_ns=one.started_ns if one.ended_ns else 0, ended_ns=one.ended_ns,
            written_ns=path.stat().st_mtime_ns, batches=one.batches,
            batches_from=one.batches_from, confidence=one.confidence,
        )
        for number, one in sorted(ranks.items())
    )  # fmt: skip


def _by_rank(piece: pa.Table) -> Iterator[tuple[int, pa.Table]]:
    """The rows of each rank."""
    numbers = pc.unique(piece["rank"]).to_pylist()
    if len(numbers) == 1:
        yield numbers[0] or 0, piece
        return
    for number in numbers:
        yield number or 0, piece.filter(pc.equal(piece["rank"], number))
