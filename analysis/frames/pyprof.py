"""Tables of PyProf: their steps, and their launches by name, as the reference counted them.

They are read some at a time, and each for itself where one of them is damaged, so that a bad table
costs no other one.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import duckdb
import pandas as pd

from analysis.frames.study import Source, Study, Unusable
from profiling.readers import pyprof

_Value = TypeVar("_Value")
DIRECTIONS = ("fprop", "bprop")  # of a kernel, as PyProf calls them; it has no others


def batches_of(study: Study, sources: Sequence[Source]) -> dict[Path, pyprof.TableBatches]:
    """The batches of each table that can be read."""

    def ask(some: Sequence[Source]) -> dict[Path, pyprof.TableBatches]:
        return pyprof.find_batches(study.connection, [source.path for source in some])

    return _once(study, sources, "batches", ask)


def _once(
    study: Study, sources: Sequence[Source], what: str, ask: Callable[[Sequence[Source]], dict[Path, _Value]]
) -> dict[Path, _Value]:
    """What ``ask`` reads of each table that can be read; a study reads each once."""
    kept: dict[Path, _Value] = study.kept(f"of PyProf tables: {what}")
    kept |= _in_portions(study, [one for one in sources if one.path not in kept], ask)
    return {source.path: kept[source.path] for source in sources if source.path in kept}


def _in_portions(
    study: Study, sources: Sequence[Source], ask: Callable[[Sequence[Source]], dict[Path, _Value]]
) -> dict[Path, _Value]:
    def alone(source: Source) -> dict[Path, _Value]:
        try:
            return ask([source])
        except (duckdb.Error, OSError) as error:
            raise Unusable(source, damaged(error)) from None

    by_path: dict[Path, _Value] = {}
    source_of = {source.path: source for source in sources}
    for paths in pyprof.in_portions(list(source_of)):
        some = [source_of[path] for path in paths]
        try:
            by_path |= ask(some)
        except (duckdb.Error, OSError):
            for _, value in study.each(some, alone):
                by_path |= value
    return by_path


# --- sums of tables, as the reference made them -------------------------------------------------------

_NAMES = f"""
select $paths[file] as path, "Kernel" as kernel, "Direction" as direction, {pyprof.IS_LOADER} as loader,
    sum("Sil(ns)") as ns, sum("FLOPs") as flops, sum("Bytes") as bytes,
    sum("Sil(ns)") filter ("FLOPs" <> 0) as launched_ns,
    sum("FLOPs") filter ("Direction" = 'fprop' and first) as first_flops,
    sum("Sil(ns)") filter ("Direction" = 'fprop' and coalesce("Op", '') in ('', 'na', '-')) as lost_ns
from (select *, file_index::bigint + 1 as file, "Idx" < $seconds[file] as first from {pyprof.TABLES})
group by all
"""


_NO_NAMES = pd.DataFrame(columns=[
    "run", "kernel", "direction", "loader", "ns", "flops", "bytes", "launched_ns", "first_flops", "lost_ns",
])  # fmt: skip


def names_of(study: Study, sources: Sequence[Source]) -> pd.DataFrame:
    """The launches of PyProf tables, all of them, by their names: what the reference counted.

    Returns:
        A row a table, kernel and direction. Columns: ``run, kernel, direction`` (as PyProf has it),
        ``loader`` (whether it is a kernel of DALI); ``ns, flops, bytes``; ``launched_ns`` of launches with
        FLOPs;
        ``first_flops`` of the first step's forward pass, trials of autotuning included; ``lost_ns`` of the
        forward pass that PyProf could not assign.
    """
    batches = batches_of(study, sources)

    def ask(some: Sequence[Source]) -> dict[Path, pd.DataFrame]:
        second = [next(iter(batches[source.path].starts[1:]), None) for source in some]
        arguments = {"paths": [str(source.path) for source in some], "seconds": second}
        names = study.connection.execute(_NAMES, arguments).df().fillna({"ns": 0, "flops": 0, "bytes": 0})
        names["run"] = names.pop("path").map({str(source.path): source.id for source in some})
        return {source.path: names[names["run"] == source.id] for source in some}

    by_path = _once(study, [source for source in sources if source.path in batches], "names", ask)
    return pd.concat(by_path.values(), ignore_index=True) if by_path else _NO_NAMES


@dataclass(frozen=True, kw_only=True)
class TableSums:
    """Sums over one PyProf table (ns, FLOP, bytes), and its batches.

    Attributes:
        ns, flops, bytes: of all launches.
        named_ns: of kernel names any launch of which is credited FLOPs; launched_ns: of those launches.
        fprop_ns: of what PyProf calls fprop; lost_ns: of that, what it could not assign.
        fprop_flops, bprop_flops: by PyProf's direction.
        first_flops: of the forward pass of the first batch, trials of autotuning included.
    """

    batches: pyprof.TableBatches
    ns: float
    flops: float
    bytes: float
    named_ns: float
    launched_ns: float
    fprop_ns: float
    lost_ns: float
    fprop_flops: float
    bprop_flops: float
    first_flops: float

    @property
    def fprop_per_batch(self) -> float:
        return self.fprop_flops / self.batches.forward if self.batches.forward else float("nan")

    @property
    def bprop_per_batch(self) -> float:
        return self.bprop_flops / self.batches.backward if self.batches.backward else float("nan")


def table_sums(study: Study, sources: Sequence[Source]) -> dict[str, TableSums]:
    """Sums of each PyProf table that can be read and has rows, by the source's id."""
    names, batches = names_of(study, sources), batches_of(study, sources)
    forward, backward = (names["direction"] == direction for direction in DIRECTIONS)
    flops_of_name = names.groupby(["run", "kernel"])["flops"].transform("sum")
    sums = pd.DataFrame({
        **{name: names[name] for name in ("ns", "flops", "bytes", "launched_ns", "first_flops")},
        "named_ns": names["ns"].where(flops_of_name != 0),
        "fprop_ns": names["ns"].where(forward),
        "lost_ns": names["lost_ns"].where(~names["loader"].astype(bool)),
        "fprop_flops": names["flops"].where(forward),
        "bprop_flops": names["flops"].where(backward),
    }).astype(float).groupby(names["run"]).sum()  # fmt: skip
    return {
        source.id: TableSums(batches=batches[source.path], **sums.loc[source.id])
        for source in sources
        if source.id in sums.index
    }


def damaged(error: Exception) -> str:
    """That a file is damaged, or has columns of other types, in one line."""
    other = isinstance(error, duckdb.BinderException | duckdb.ConversionException)
    what = "holds a column of another type" if other else "is damaged or truncated"
    return f"{what} ({str(error).splitlines()[0]})"
