"""What launches do the attributed batches of a run hold, whoever recorded them?

Our runs have tables of kernels and batches, a rank each; PyProf's tables are read as such here, so that no
measure asks which of the two a source is.
"""

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing, contextmanager
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from analysis.results import borrowed
from analysis.results.borrowed import KEYS, kept_sums, sums_of
from analysis.results.counted_steps import attributed_that_count
from analysis.results.pyprof_tables import TableSums, batches_of, table_sums
from analysis.results.query import note_left_out, query, untimed_launches
from analysis.results.source import Source, Unusable
from analysis.results.study import Study
from profiling.errors import UserError
from profiling.readers import pyprof, pyprof_batches
from profiling.schemas import IS_MODEL
from profiling.tools import recognition
from profiling.workers import cores, in_threads

if TYPE_CHECKING:
    import pyarrow as pa


def has_kernels(source: Source) -> bool:
    """Whether a profiler left kernels of it."""
    return source.kind == "pyprof" or bool(source.tables("kernels"))


def kernels(source: Source) -> "pa.Table | list[Path]":
    """All its kernels as tables of them: in memory, or the ranks' files; empty: it has none.

    Raises:
        UserError: a table of PyProf's is damaged.
    """
    if source.kind == "pyprof":
        return recognition.read(source.path, "pyprof").tables["kernels"]
    return source.tables("kernels")


# --- sums ---------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Costs:
    """Of attributed batches, all of them or one in the mean (ns, FLOP, bytes).

    Attributes:
        batches: of a rank that have kernels, over all ranks; of a rank with several GPUs one counts for each.
        kernel_ns: time of the model's kernels, launch by launch.
        counted_ns: that of launches to which FLOPs are credited.
        flops, bytes: credited to them; 0: not known.
        loader_ns, communication_ns, copy_ns: the classes apart.
    """

    batches: int
    kernel_ns: float
    counted_ns: float
    flops: float
    bytes: float
    loader_ns: float
    communication_ns: float = 0.0
    copy_ns: float = 0.0

    @property
    def per_batch(self) -> "Costs":
        """Of one batch of one rank, the mean, where these are of all."""
        return replace(self, **{name: getattr(self, name) / self.batches for name in COSTS})


COSTS = tuple(one.name for one in fields(Costs) if one.name != "batches")

_COSTS = f"""
select sum(ns) filter ({IS_MODEL}), sum(counted_ns) filter ({IS_MODEL}),
    sum(flops) filter ({IS_MODEL}), sum(bytes) filter ({IS_MODEL}),
    sum(ns) filter (not {IS_MODEL} and class not in ('communication', 'memcpy', 'memset')),
    sum(ns) filter (class = 'communication'), sum(ns) filter (class in ('memcpy', 'memset'))
from {{sums}} semi join {{attributed}} using (rank, batch_index)
"""
# How many attributed batches have kernels, and how many there are of the ranks that have any: a profiler may
# watch some ranks alone, or its recording be cut.
_COUNTED = """
with attributed as {attributed}, recorded as (
    select distinct rank, batch_index from {sums} semi join attributed using (rank, batch_index)
)
select (select count(*) from recorded) as recorded,
    (select count(*) from attributed where rank in (select rank from recorded)) as attributed
"""


def sums_of_each(study: Study, sources: Sequence[Source]) -> Iterator[tuple[Source, Costs]]:
    """The sums of each source that has attributed kernels; of the others a note says so."""
    of_tables = table_sums(study, [source for source in sources if source.kind == "pyprof"])

    def sums(source: Source) -> Costs | None:
        if source.kind == "pyprof":
            return _sums_of_table(study, source, of_tables.get(source.id))
        return _sums_of_run(study, source)

    return study.each(sources, sums)


def _sums_of_table(study: Study, source: Source, sums: TableSums | None) -> Costs | None:
    # A table without rows has no sums.
    if sums is None or sums.batches.attributed_from is None:
        study.note("no step in it has an attributed backward pass, so no cost is counted", source)
        return None
    if not sums.kernel_ns:
        study.note("no launch of its profiled steps has a time, so no cost is counted", source)
        return None
    return Costs(
        sums.batches.backward,
        sums.kernel_ns,
        sums.counted_ns,
        sums.kernel_flops,
        sums.kernel_bytes,
        sums.loader_ns,
    )


def _sums_of_run(study: Study, source: Source) -> Costs | None:
    batches = source.tables("batches")
    if not batches or not source.tables("kernels"):
        return None
    table = kept_sums(study, source, borrowed.relation(study, source))
    of = {"sums": table, "attributed": attributed_that_count(study, source)}
    ((recorded, attributed),) = query(study, source, _COUNTED.format(**of), batches=batches)
    (sums,) = query(study, source, _COSTS.format(**of), batches=batches)
    untimed = untimed_launches(study, source)
    # Only batches that have kernels count: a profiler may watch some ranks alone, or its recording be cut.
    if not recorded or sums[0] is None:
        note_left_out(study, source, 0, attributed, untimed)
        study.note("its kernels belong to no profiled step, so no cost is counted", source)
        return None
    note_left_out(study, source, attributed - recorded, attributed, untimed)
    # One rank of DataParallel has the kernels of all its GPUs.
    return Costs(recorded * source.gpus_per_rank, *(float(value or 0) for value in sums))


# --- groups -------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Question:
    """A query over the launches of a run's attributed batches.

    Attributes:
        sql: ``{sums}`` in it are the launches, summed by ``keys`` at least, with the columns of
            :func:`summed.sums_of`.
        keys: columns of kernels that it groups them by, or chooses them by.
        optional: columns of PyProf's tables that it needs beside those that are always read.
    """

    sql: str
    keys: tuple[str, ...] = KEYS
    optional: tuple[str, ...] = ()


@dataclass(frozen=True)
class Groups:
    """The rows of a question, and how many batches (of a rank; see :class:`Costs`) they are of."""

    batches: int
    rows: list[tuple]


def groups_of_each(
    study: Study, sources: Sequence[Source], question: Question
) -> Iterator[tuple[Source, Groups]]:
    """What each source answers, in order; tables of PyProf are read by several threads."""
    tables = [source for source in sources if source.kind == "pyprof"]
    batches = batches_of(study, tables)
    tables = study.usable(tables)
    begun = _begun(study)
    asked = [source for source in tables if (source.path, question) not in begun]
    asking = [_asking(study, one.path, batches, question) for one in asked]
    in_turn = zip((one.path for one in asked), in_threads(lambda ask: ask(), asking), strict=True)

    def groups(source: Source) -> Groups | None:
        if source.kind != "pyprof":
            return groups_of_run(study, source, question)
        future = begun.get((source.path, question))
        # One that was found unusable meanwhile is not asked about: its rows are passed over.
        rows = (
            next(rows for path, rows in in_turn if path == source.path) if future is None else future.result()
        )
        return _groups_of_table(study, source, batches[source.path], rows)

    return study.each(sources, groups)


def _begun(study: Study) -> dict[tuple[Path, Question], Future[Any]]:
    """What threads read meanwhile."""
    return study.kept("kernels read ahead")


@contextmanager
def reading_ahead(study: Study, question: Question) -> Iterator[None]:
    """Within it the tables of PyProf are read by threads, for this question to :func:`groups_of_each`.

    Many tables take seconds; what a report says beside them is read meanwhile.
    """
    pool, begun = ThreadPoolExecutor(cores()), _begun(study)
    try:
        batches = batches_of(study, study.of_kind("pyprof"))
        for path in batches:
            begun[path, question] = pool.submit(_asking(study, path, batches, question))
        yield
    finally:
        pool.shutdown(wait=False, cancel_futures=True)
        for key in [key for key, future in begun.items() if future.cancelled()]:
            del begun[key]  # who asks later has it read then


_Rows = list[tuple] | UserError | None


def _asking(
    study: Study, path: Path, batches: dict[Path, pyprof_batches.TableBatches], question: Question
) -> Callable[[], _Rows]:
    """The rows of a table of PyProf, or what is wrong with it; None without an attributed batch."""
    counted, connection = batches[path], study.connection

    def ask() -> _Rows:
        if not counted.backward:
            return None
        # A thread may not use another's connection; a cursor is one of its own.
        with closing(connection.cursor()) as own:
            try:
                read = pyprof.read_table(
                    path, batches=counted, optional=list(question.optional), connection=own
                )
            except UserError as error:
                return error
            own.register("launches_of_pyprof", read.tables["kernels"])
            launches = f"(select * from launches_of_pyprof where batch_index >= {counted.first_attributed})"
            sums = f"({sums_of(launches, question.keys)})"
            return own.execute(question.sql.format(sums=sums)).fetchall()

    return ask


def _groups_of_table(
    study: Study, source: Source, batches: pyprof_batches.TableBatches, rows: _Rows
) -> Groups | None:
    if isinstance(rows, UserError):
        raise Unusable(source, str(rows))
    if rows is None:
        study.note("no step in it has an attributed backward pass", source)
        return None
    return Groups(batches.backward, rows)


def groups_of_run(study: Study, source: Source, question: Question) -> Groups | None:
    """What a run of our own answers; None without kernels in an attributed batch.

    Raises:
        Unusable: a table is damaged.
    """
    batches = source.tables("batches")
    if not batches or not source.tables("kernels"):
        return None
    table = kept_sums(study, source, borrowed.relation(study, source), question.keys)
    of = {"sums": table, "attributed": attributed_that_count(study, source)}
    ((recorded, attributed),) = query(study, source, _COUNTED.format(**of), batches=batches)
    if not recorded:
        return None
    sums = "(select * from {sums} semi join {attributed} using (rank, batch_index))".format(**of)
    rows = query(study, source, question.sql.format(sums=sums), batches=batches)
    untimed = untimed_launches(study, source)
    note_left_out(study, source, attributed - recorded, attributed, untimed)
    return Groups(recorded * source.gpus_per_rank, rows)
