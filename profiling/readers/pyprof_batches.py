"""Which batches has a PyProf table? They are told from what runs once in each: the loss.

A batch begins with the first launch of its forward pass.
"""

import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

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
    """The batches of one PyProf table, counted, not assumed.

    Attributes:
        forward: forward passes (batches) in the table.
        backward: backward passes that PyProf attributed.
        starts: ``Idx`` of the first launch of each forward pass.
        losses: ``Idx`` of the launches of the loss's forward pass.
        first_attributed: index of the first batch whose backward pass is attributed.
    """

    forward: int
    backward: int
    starts: tuple[int, ...]
    losses: tuple[int, ...]
    first_attributed: int

    @property
    def attributed_from(self) -> int | None:
        """``Idx`` where the attributed batches begin; None if there are none."""
        return self.starts[self.first_attributed] if self.backward else None


def find_batches(connection: Any, paths: Sequence[Path]) -> dict[Path, TableBatches]:
    """The batches of each table.

    Args:
        connection: of DuckDB.
    """
    by_path = {}
    for some in in_portions(paths):
        rows = connection.sql(_OF_MODEL, params={"paths": [str(path) for path in some]}).to_arrow_table()
        file, *columns = (rows[name].to_numpy() for name in ("file", "idx", "forward", "backward", "loss"))
        for number, path in enumerate(some):
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
