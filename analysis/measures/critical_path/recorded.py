"""What did one rank do, as activities of its host and its devices that wait for each other?"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from analysis.results.source import Source, reading
from analysis.results.traces import in_time, timed
from profiling import schemas, tables

COLUMNS = (
    "batch_index", "start_ns", "duration_ns", "short_name", "class", "direction", "operator", "layer",
    "device", "stream", "launch_ns", "launch_end_ns", "launch_thread",
)  # fmt: skip
TEXTS = ("short_name", "operator", "layer", "direction")
UNKNOWN = -1


@dataclass(frozen=True)
class Texts:
    """A column of texts: a number for each row (-1: none), and what the numbers stand for."""

    codes: np.ndarray
    words: Sequence[str]

    def of(self, rows: np.ndarray) -> np.ndarray:
        """The texts of rows as objects, None where there is none; below 0: no row."""
        words = np.array([*self.words, None], dtype=object)
        return words[np.append(self.codes, UNKNOWN)[rows]]

    def equal(self, word: str) -> np.ndarray:
        """Which rows are this word."""
        return np.isin(self.codes, [code for code, known in enumerate(self.words) if known == word])


@dataclass(frozen=True)
class Recorded:
    """What a rank did in some consecutive steps, and in the one before these; times in ns on its own clock.

    Attributes:
        batches: ``batch_index, start_ns, end_ns, load_ns`` of these steps, in order.
        kernels: numbers of :data:`COLUMNS` by name, -1 where they are not recorded.
        kind: the kernel's class, a number of ``schemas.CLASSES``.
        texts: :data:`TEXTS` by name.
        waits: calls that waited for a device: ``start_ns, end_ns, thread``.
        wait_names: of these.
        calls: rows of the kernels that are collectives of attributed batches, in order of their start.
        first_call: how many such calls the rank had made before.
        calls_timed: whether the tool says when calls returned; without that none of them is known to wait.
    """

    rank: int
    batches: dict[str, np.ndarray]
    kernels: dict[str, np.ndarray]
    kind: np.ndarray
    texts: dict[str, Texts]
    waits: dict[str, np.ndarray]
    wait_names: Texts
    calls: np.ndarray
    first_call: int
    calls_timed: bool


def steps_of(source: Source, directory: Path) -> pa.Table:
    """The attributed batches of a rank that have times, in order (``schemas.TIMES_OF_BATCHES``).

    Raises:
        Unusable: the table is missing, damaged or wrong.
    """
    with reading(source):
        batches = tables.read(directory, "batches", schemas.TIMES_OF_BATCHES)
    batches = batches.filter(batches["attributed"])
    return batches.filter(timed(batches)).sort_by("start_ns")


def read_rank(source: Source, directory: Path, batches: pa.Table, steps: Sequence[int]) -> Recorded:
    """What a rank did in some steps.

    Args:
        batches: its :func:`steps_of`.
        steps: their numbers, one after the other.

    Raises:
        Unusable: a table is missing, damaged or wrong.
    """
    with reading(source):
        kernels, _ = in_time(tables.read(directory, "kernels", list(COLUMNS)))
        waits = tables.as_table("synchronizations", {})
        if tables.table_path(directory, "synchronizations").is_file():
            waits = tables.read(directory, "synchronizations")
    talks = _classes(kernels) == schemas.CLASSES.index("communication")
    talks &= np.isin(_numbers(kernels, "batch_index"), batches["batch_index"].to_numpy())
    rows = np.flatnonzero(np.isin(batches["batch_index"].to_numpy(), steps))
    first, last = (int(rows[0]), int(rows[-1])) if len(rows) else (0, 0)
    first_ns = batches["start_ns"][max(first - 1, 0)].as_py()
    last_ns = batches["end_ns"][last].as_py()
    start = kernels["start_ns"].to_numpy()
    inside = (start >= first_ns) & (start <= last_ns)
    first_call = int((talks & (start < first_ns)).sum())
    kernels, talks = kernels.filter(pa.array(inside)), talks[inside]
    waited = _numbers(waits, "start_ns")
    waits = waits.filter(pa.array((waited >= first_ns) & (waited <= last_ns)))
    batches = batches.take(rows)
    numbers = [name for name in COLUMNS if name not in (*TEXTS, "class")]
    calls = np.flatnonzero(talks)
    return Recorded(
        tables.rank_of(directory),
        {name: _numbers(batches, name) for name in ("batch_index", "start_ns", "end_ns", "load_ns")},
        {name: _numbers(kernels, name) for name in numbers},
        _classes(kernels),
        {name: _texts(kernels[name]) for name in TEXTS},
        {name: _numbers(waits, name) for name in ("start_ns", "end_ns", "thread")},
        _texts(waits["name"]),
        calls[np.argsort(kernels["start_ns"].to_numpy()[calls], kind="stable")],
        first_call,
        calls_timed=kernels["launch_end_ns"].null_count < len(kernels),
    )


def _numbers(table: pa.Table, name: str) -> np.ndarray:
    return pc.fill_null(table[name], UNKNOWN).to_numpy().astype(np.int64)


def _classes(kernels: pa.Table) -> np.ndarray:
    texts = _texts(kernels["class"])
    number = [schemas.CLASSES.index(word) if word in schemas.CLASSES else UNKNOWN for word in texts.words]
    other = schemas.CLASSES.index("other")
    return np.array([*(one if one >= 0 else other for one in number), other])[texts.codes]


def _texts(column: pa.ChunkedArray) -> Texts:
    whole = column.unify_dictionaries().combine_chunks()
    if isinstance(whole, pa.ChunkedArray):  # of no rows
        return Texts(np.array([], np.int64), [])
    codes = whole.indices.fill_null(UNKNOWN).to_numpy(zero_copy_only=False).astype(np.int64)
    return Texts(codes, whole.dictionary.to_pylist())
