"""Read PyProf's kernel tables (Parquet, one row per launch), as the reference study keeps them.

PyProf has no timestamps, only the order and duration of launches. It labels kernels that it cannot assign
"fprop"; here their direction is "none". Steps are found by the loss, which runs once in each: a step begins
with the first launch of its forward pass.
"""

import os
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from profiling.attribution.events import coded
from profiling.cost.classify import classify, short_name
from profiling.errors import UserError
from profiling.findings import Finding
from profiling.readers.files import UNKNOWN, Origin
from profiling.schemas import CLASSES, DIRECTIONS
from profiling.tables import Converted, as_table

_LOSSES = (
    "cross_entropy", "nll_loss", "mse_loss", "l1_loss", "smooth_l1_loss", "binary_cross_entropy",
    "binary_cross_entropy_with_logits", "kl_div", "ctc_loss", "hinge_embedding_loss", "multi_margin_loss",
)  # fmt: skip
# Some tables as one relation, whatever else they hold. A column may be integers in one and fractions in
# another (by name they are unified; else the first table's type would round), or empty, hence of no type, in
# a third.
TABLES = """(
    select filename, file_index, "Idx"::bigint as "Idx", "Direction"::varchar as "Direction",
        "Module"::varchar as "Module", "Op"::varchar as "Op", coalesce("Kernel"::varchar, '') as "Kernel",
        nullif("Sil(ns)"::double, 'nan'::double) as "Sil(ns)",
        nullif("FLOPs"::double, 'nan'::double) as "FLOPs", nullif("Bytes"::double, 'nan'::double) as "Bytes"
    from read_parquet($paths, filename = true, union_by_name = true)
)"""
IS_LOSS = f'coalesce("Op"::varchar in ({", ".join(repr(op) for op in _LOSSES)}), false)'

# Of the launches that PyProf assigned to an operator of the model: which are the loss's.
_OF_MODEL = f"""
select file_index::integer as file, "Idx" as idx, coalesce("Direction" = 'fprop', false) as forward,
    coalesce("Direction" = 'bprop', false) as backward, {IS_LOSS} as loss
from {TABLES} where "Module" = 'torch.nn.functional' and "Idx" is not null
"""


@dataclass(frozen=True)
class TableBatches:
    """The batches of one PyProf table, counted, not assumed."""

    forward: int  # forward passes (batches) in the table
    backward: int  # backward passes that PyProf attributed
    starts: tuple[int, ...]  # ``Idx`` of the first launch of each forward pass
    losses: tuple[int, ...]  # ``Idx`` of the launches of the loss's forward pass
    first_attributed: int  # index of the first batch whose backward pass is attributed

    @property
    def attributed_from(self) -> int | None:
        """``Idx`` where the attributed batches begin; None if there are none."""
        return self.starts[self.first_attributed] if self.backward else None


def find_batches(connection: Any, paths: Sequence[Path]) -> dict[Path, TableBatches]:
    """The batches of each table; ``connection``: of DuckDB."""
    by_path = {}
    for portion in in_portions(paths):
        rows = connection.sql(_OF_MODEL, params={"paths": [str(path) for path in portion]}).to_arrow_table()
        file, *columns = (rows[name].to_numpy() for name in ("file", "idx", "forward", "backward", "loss"))
        for number, path in enumerate(portion):
            by_path[path] = _batches(*(column[file == number] for column in columns))
    return by_path


def _batches(idx: np.ndarray, forward: np.ndarray, backward: np.ndarray, loss: np.ndarray) -> TableBatches:
    """The batches of one table, by the launches that PyProf assigned to an operator of the model.

    A run of loss launches ends a forward pass and begins a backward pass; the next launch of the model begins
    the next batch.
    """
    if (np.diff(idx) < 0).any():
        order = np.argsort(idx, kind="stable")
        idx, forward, backward, loss = (column[order] for column in (idx, forward, backward, loss))
    at, is_loss, of_backward = idx[forward], loss[forward], loss[backward]
    starts = at[np.diff(~is_loss, prepend=False) & ~is_loss].tolist()
    passes, attributed = (int((np.diff(one, prepend=False) & one).sum()) for one in (is_loss, of_backward))
    before = 1 if not backward.any() else int(np.searchsorted(starts, idx[backward][0], side="right"))
    if not starts or not before:
        attributed = 0
    return TableBatches(passes, attributed, tuple(starts), tuple(at[is_loss].tolist()), max(before - 1, 0))


def in_portions(paths: Sequence[Path]) -> Iterable[Sequence[Path]]:
    """``paths`` a few at a time: enough to keep the cores busy, few enough that memory does not grow."""
    size = 2 * (os.cpu_count() or 1)
    return (paths[start : start + size] for start in range(0, len(paths), size))


# The columns that a PyProf table must have; _OPTIONAL ones may be absent.
NEEDED = frozenset({"Idx", "Direction", "Module", "Op", "Kernel", "Sil(ns)", "FLOPs", "Bytes"})

_OPTIONAL = ("Layer", "Device", "Stream", "Grid", "Block")
_NUMBERS = {"Device": "integer", "Stream": "bigint"}  # as wide as in our tables

IS_LOADER = "(starts_with(\"Kernel\", 'dali::') or starts_with(\"Kernel\", 'nvjpeg::'))"
_CONFIG = re.compile(r"_config_(\d{1,5})_(\d{1,3})_")


def recognise(path: Path, head: bytes) -> bool:
    """Whether a file is a PyProf kernel table (Parquet); UserError: its columns cannot be read."""
    if not head.startswith(b"PAR1"):
        return False
    try:
        return is_pyprof(pq.read_schema(path).names)
    except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
        why = str(error).splitlines()[0]
        raise UserError(f"{path} is a truncated or damaged Parquet file ({why}); fetch it again") from None


def stream(path: Path, findings: list[Finding], origin: Origin = UNKNOWN) -> Iterator[tuple[str, pa.Table]]:
    """A kernel table in one piece; see :func:`read_table`."""
    converted = read_table(path, origin.rank)
    findings += converted.findings
    yield from converted.tables.items()


def is_pyprof(columns: Iterable[str]) -> bool:
    return set(columns) >= NEEDED


def read_table(
    path: Path,
    rank: int | None = None,
    batches: TableBatches | None = None,
    optional: Sequence[str] = _OPTIONAL,
    connection: Any = None,
) -> Converted:
    """A PyProf kernel table as table ``kernels`` (``start_ns`` is null: PyProf does not know it).

    ``direction``: ``fprop`` and ``bprop`` as PyProf attributed them, ``update`` for tensor operations between
    a batch's loss and the next forward pass (gradient compression, averaging, optimizer), ``loader`` for the
    loader's kernels, ``none`` for what PyProf could not assign.

    Args:
        rank: by default the one that ends the reference's file names.
        batches: of this table, if they have been counted.
        optional: which columns to read of those that PyProf need not have written.

    Raises:
        UserError: not a readable Parquet file, of another kind, or empty.
    """
    connection = duckdb.connect() if connection is None else connection
    arguments = {"path": str(path)}
    try:
        have = connection.execute(
            "select name from parquet_schema($path) where num_children is null", arguments
        ).fetchall()
        lacks = sorted(NEEDED - {name for (name,) in have})
        if lacks:
            raise UserError(f"{path} is not a PyProf kernel table: it lacks {', '.join(lacks)}")
        batches = batches or find_batches(connection, [path])[path]
        present = [name for name in optional if (name,) in have]
        rows = connection.sql(_launches(present), params=arguments).to_arrow_table()
    except (duckdb.Error, OSError) as error:
        why = str(error).splitlines()[0]
        raise UserError(f"{path} is not a readable PyProf kernel table ({why}); fetch it again") from None
    launches = rows.filter(rows["is_sound"])
    launches = launches.filter(launches["name"].is_valid())  # a damaged file may claim to hold no null
    if not len(launches):
        raise UserError(f"{path} holds no kernel launches; is it the right file?")
    idx = launches["idx"].to_numpy()
    if not (np.diff(idx) >= 0).all():  # PyProf writes them in order
        launches = launches.take(np.argsort(idx, kind="stable"))
    if rank is None:  # the reference's file names end in it: ..._ret_0_3.gzip
        head, _, last = path.name.partition(".")[0].rpartition("_")
        rank = int(last) if "_ret_" in head and last.isdigit() else 0
    columns = _as_kernels(launches, batches, rank)
    findings = []
    if damaged := len(rows) - len(launches):
        findings.append(Finding("records_damaged", data={"n": damaged, "what": "rows"}))
    if not batches.forward:
        findings.append(Finding("steps_unmarked", data={"by": "nothing"}))
    elif batches.backward < batches.forward:
        data = {"stage": "backward", "n": batches.backward, "of": batches.forward}
        findings.append(Finding("marks_missing", data=data))
    # The reference's file names tell the ranks: ..._config_NODES_GPUS_...
    config = _CONFIG.search(path.name)
    ranks = int(config[1]) * int(config[2]) if config else 1
    if ranks > 1 and "communication" not in columns["class"].dictionary.to_pylist():
        findings.append(Finding("no_collectives", data={"ranks": ranks}))
    return Converted({"kernels": as_table("kernels", columns)}, findings)


def _launches(optional: Sequence[str]) -> str:
    """A query for one table's launches; an index, duration or amount that cannot be is null."""
    more = "".join(
        f', try_cast(nullif("{name}"::varchar, \'-\') as {_NUMBERS.get(name, "varchar")}) as "{name}"'
        for name in optional
    )
    flops, moved = (f'"{name}"::double' for name in ("FLOPs", "Bytes"))
    return f"""
        with launches as (
            select try_cast("Idx" as bigint) as idx, coalesce("Kernel"::varchar, '') as "Kernel",
                "Direction"::varchar as direction, "Module"::varchar as module, "Op"::varchar as "Op",
                try_cast("Sil(ns)" as bigint) as duration_ns,
                if(isfinite({flops}) and {flops} >= 0, {flops}, null) as flops,
                if(isfinite({moved}) and {moved} >= 0, {moved}, null) as bytes{more}
            from read_parquet($path)
        )
        select * exclude ("Kernel", "Op", direction, module), "Kernel" as name, "Op" as operator,
            coalesce(direction = 'fprop' and module <> 'na', false) as is_assigned,
            coalesce(direction = 'bprop', false) as is_bprop,
            coalesce("Op" = 'backward', false) as fills_gradient,
            {IS_LOADER} as is_loader, {IS_LOSS} as is_loss,
            idx is not null and coalesce(duration_ns >= 0, false) as is_sound
        from launches
    """


_FLAGS = ("is_assigned", "is_bprop", "fills_gradient", "is_loader", "is_loss")


def _as_kernels(launches: pa.Table, batches: TableBatches, rank: int) -> dict[str, Any]:
    flags = {column: launches[column].to_numpy() for column in _FLAGS}
    idx = launches["idx"].to_numpy()
    batch = np.searchsorted(np.asarray(batches.starts, dtype=np.int64), idx, side="right") - 1
    direction = _directions(flags, idx, batch, batches)
    name = launches["name"].combine_chunks().dictionary_encode()
    which, names = name.indices.to_numpy(), name.dictionary.to_pylist()
    kinds = np.array([CLASSES.index(classify(text)) for text in names], dtype=np.int64)[which]
    # An elementwise kernel's name does not say for whom it works; its place does.
    updates = direction == DIRECTIONS.index("update")
    kinds[updates & (kinds == CLASSES.index("pointwise"))] = CLASSES.index("optimizer")
    kinds[flags["is_loss"]] = CLASSES.index("loss")
    kinds[flags["is_loader"]] = CLASSES.index("loader")
    optional = {column.lower(): launches[column] for column in _OPTIONAL if column in launches.column_names}
    return {
        **optional,
        "rank": np.full(len(idx), rank, dtype=np.int32),
        "batch_index": pa.array(batch, pa.int32(), mask=batch < 0),  # null: before the first
        "duration_ns": launches["duration_ns"],
        "name": name,
        "short_name": coded(which, [short_name(text) for text in names]),
        "class": coded(kinds, CLASSES),
        "direction": coded(direction, DIRECTIONS),
        "operator": launches["operator"],
        "flops": launches["flops"],
        "bytes": launches["bytes"],
        "correlation": idx,
    }


def _directions(
    flags: dict[str, np.ndarray], idx: np.ndarray, batch: np.ndarray, batches: TableBatches
) -> np.ndarray:
    # Where each batch's loss ends; before the first batch nothing is after a loss.
    losses = np.asarray(batches.losses, dtype=np.int64)
    of_batch = np.searchsorted(np.asarray(batches.starts, dtype=np.int64), losses, side="right") - 1
    loss_end = np.full(max(len(batches.starts), 1), np.iinfo(np.int64).max)
    loss_end[of_batch[of_batch >= 0]] = losses[of_batch >= 0]
    after_loss = (batch >= 0) & (idx > loss_end[np.maximum(batch, 0)])
    assigned = flags["is_assigned"]
    # What fills the gradient of the loss belongs to the backward pass.
    backward = (assigned & flags["fills_gradient"]) | flags["is_bprop"]
    conditions = [flags["is_loader"], backward, assigned & after_loss, assigned]
    directions = [DIRECTIONS.index(name) for name in ("loader", "bprop", "update", "fprop")]
    return np.select(conditions, directions, DIRECTIONS.index("none"))
