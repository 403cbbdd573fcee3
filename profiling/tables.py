"""The tables that everything is converted to: names, types and units, in one place.

A table is one Parquet file a rank (``rank_0003/kernels.parquet``). Times are integer nanoseconds since
the Unix epoch (``start_ns``, ``end_ns``) or durations (all other ``_ns``); sizes are bytes; 1 multiply-add
is 2 FLOPs. Readers produce these tables, the analysis reads the columns it needs of them.
"""

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from profiling.errors import UserError

# Kernel classes; profiling.cost.classify says which kernel belongs to which.
CLASSES = (
    "gemm", "convolution", "normalization", "pointwise", "pooling", "reduction", "attention", "embedding",
    "optimizer", "loss", "communication", "loader", "memcpy", "memset", "other",
)  # fmt: skip
# Not the model's arithmetic: their time is not in the denominators of kernel efficiencies.
APART = ("loader", "communication", "memcpy", "memset")
# Which rows of a kernels table are the model's own work, in SQL; what readies the next batch is the loader's,
# whatever its class. See :func:`is_model`.
IS_MODEL = f"""("class"::varchar not in {APART!r} and coalesce(direction::varchar, '') <> 'loader')"""
# A run's attributed batches, in SQL; an attributed launch is one in such a batch.
ATTRIBUTED = "(select distinct rank, batch_index from read_parquet($batches) where attributed)"
DIRECTIONS = ("fprop", "bprop", "update", "loader", "none")  # none: not attributed

# The stages of a batch as every tool sees them; "End of Batch" is a mark, the others are ranges.
FORWARD, BACKWARD, UPDATE, END_OF_BATCH = "Forward Pass", "Backward Pass", "Model Update", "End of Batch"
STAGES = (FORWARD, BACKWARD, UPDATE)
MARKS = (*STAGES, END_OF_BATCH)
# Of a benchmark study: the passes that compute; the step of a network that is split over two devices.
PASSES = ("forward", "backward")
SPLIT_STEP = ("receive", "forward", "exchange", "backward", "send")

# The columns of the batches' table that say when each was, and whether it was recorded.
TIMES_OF_BATCHES = [
    "batch_index", "start_ns", "load_ns", "forward_ns", "backward_ns", "update_ns", "end_ns", "attributed",
]  # fmt: skip

ROWS_OF_A_GROUP = 1 << 17  # of a table that is written in pieces

_text = pa.dictionary(pa.int32(), pa.string())

SCHEMAS: dict[str, pa.Schema] = {
    # A batch of a rank. Batches follow each other without a gap, but for what a profiler takes to start; on a
    # GPU all times are the device's (CUDA events), else the host's.
    "batches": pa.schema(
        [
            ("rank", pa.int32()),
            ("batch_index", pa.int32()),
            ("start_ns", pa.int64()),
            ("load_ns", pa.int64()),  # start to Forward Pass: waiting for, and moving, the next batch
            ("forward_ns", pa.int64()),
            ("backward_ns", pa.int64()),
            ("update_ns", pa.int64()),
            ("end_ns", pa.int64()),
            ("images", pa.int32()),
            ("loss", pa.float64()),
            ("attributed", pa.bool_()),  # its kernels carry FLOPs and bytes (a profiler was on)
        ]
    ),
    # A marker (instant; end_ns = start_ns) or a range.
    "markers": pa.schema(
        [
            ("rank", pa.int32()),
            ("name", _text),
            ("kind", _text),
            ("start_ns", pa.int64()),
            ("end_ns", pa.int64()),
            ("thread", pa.int64()),
        ]
    ),
    # A device activity (kernel, copy, set) or, on a CPU, a leaf operator. Null: the tool does not know.
    "kernels": pa.schema(
        [
            ("rank", pa.int32()),
            ("batch_index", pa.int32()),  # null: outside every batch
            ("start_ns", pa.int64()),
            ("duration_ns", pa.int64()),
            ("name", _text),  # as the tool prints it, demangled
            ("short_name", _text),  # without template arguments, return type and parameters
            ("class", _text),
            ("direction", _text),
            ("operator", _text),  # e.g. aten::convolution
            ("layer", _text),  # e.g. layer1.0.conv1, where known
            ("device", pa.int32()),  # -1: the host
            ("stream", pa.int64()),  # on the host: the thread
            ("flops", pa.float64()),
            ("bytes", pa.float64()),
            ("grid", _text),  # "x,y,z"
            ("block", _text),
            ("blocks_per_sm", pa.float32()),  # of the launch: blocks / multiprocessors
            ("occupancy_pct", pa.float32()),  # estimated by the tool: resident warps / those that fit
            ("correlation", pa.int64()),
            ("launch_ns", pa.int64()),  # when the host's call that launched it began; null on the host
            ("launch_end_ns", pa.int64()),  # and when it returned; null: the tool does not say
            ("launch_thread", pa.int64()),  # and on which thread
            ("collective", _text),  # of a collective its kind, e.g. allreduce
            ("process_group", _text),  # and the group of ranks that made it, by its name,
            ("group_ranks", _text),  # e.g. 0,1
            ("group_size", pa.int32()),
        ]
    ),
    # A call of the host that waits for a device, e.g. cudaStreamSynchronize.
    "synchronizations": pa.schema(
        [
            ("rank", pa.int32()),
            ("name", _text),
            ("start_ns", pa.int64()),
            ("end_ns", pa.int64()),
            ("thread", pa.int64()),
        ]
    ),
    # A change of the memory that PyTorch has allocated.
    "memory": pa.schema(
        [
            ("rank", pa.int32()),
            ("batch_index", pa.int32()),  # null: outside every batch
            ("time_ns", pa.int64()),
            ("device", pa.int32()),  # -1: the host
            ("bytes", pa.float64()),  # below 0: freed
            ("allocated_bytes", pa.float64()),  # in all, after it
            ("reserved_bytes", pa.float64()),  # from the system, by the caching allocator
        ]
    ),
    # A TAU timer on a thread.
    "intervals": pa.schema(
        [
            ("rank", pa.int32()),
            ("thread", pa.int32()),
            ("function", _text),
            ("calls", pa.float64()),
            ("subcalls", pa.float64()),
            ("exclusive_ns", pa.float64()),
            ("inclusive_ns", pa.float64()),
        ]
    ),
    # A TAU event on a thread.
    "atomics": pa.schema(
        [
            ("rank", pa.int32()),
            ("thread", pa.int32()),
            ("event", _text),
            ("count", pa.float64()),
            ("min", pa.float64()),
            ("max", pa.float64()),
            ("mean", pa.float64()),
            ("std", pa.float64()),
        ]
    ),
    # A timed repetition of a single-node study; those of its warm-up are not kept.
    "durations": pa.schema(
        [
            ("case", _text),  # what was timed
            ("device", _text),  # "cpu", or the GPU's name
            ("stage", _text),  # e.g. forward
            ("repetition", pa.int32()),
            ("duration_ns", pa.int64()),
        ]
    ),
    # Any other figure of such a study. Null: it could not be had, for the reason that the note says.
    "quantities": pa.schema(
        [
            ("case", _text),
            ("device", _text),
            ("quantity", _text),  # with its unit, e.g. peak_memory_bytes
            ("value", pa.float64()),
            ("note", _text),
        ]
    ),
}

# Columns that older files lack: there they are null.
LATER = {
    "kernels": (
        "launch_ns", "launch_end_ns", "launch_thread", "collective", "process_group", "group_ranks",
        "group_size",
    )
}  # fmt: skip


def is_model(kinds: "np.ndarray", directions: "np.ndarray") -> "np.ndarray":
    """Which kernels are the model's own work, as :data:`IS_MODEL` has it.

    Args:
        kinds, directions: columns ``class`` and ``direction`` of a kernels table, shape (rows,).

    Returns:
        Booleans, shape (rows,).
    """
    return ~np.isin(kinds, APART) & (directions != "loader")


def rank_directory(result: Path, rank: int) -> Path:
    """Where one rank of a run keeps its tables: ``rank_0003``."""
    return result / f"rank_{rank:04d}"


def rank_of(directory: Path) -> int:
    """The rank whose tables are in a directory of :func:`rank_directory`."""
    return int(directory.name.removeprefix("rank_"))


def table_path(directory: Path, name: str) -> Path:
    """Where table ``name`` of a rank's directory is; the name must be one of :data:`SCHEMAS`."""
    if name not in SCHEMAS:
        raise KeyError(f"no table {name!r}; one of {', '.join(SCHEMAS)}")
    return directory / f"{name}.parquet"


def as_table(name: str, columns: dict) -> pa.Table:
    """``columns`` (sequences or arrow arrays by name) as table ``name``; absent columns are null."""
    schema = SCHEMAS[name]
    unknown = set(columns) - set(schema.names)
    if unknown:
        raise KeyError(f"table {name} has no column {', '.join(sorted(unknown))}")
    length = len(next(iter(columns.values()))) if columns else 0
    arrays = [_as_array(columns.get(field.name), field, length) for field in schema]
    return pa.Table.from_arrays(arrays, schema=schema)


def _as_array(values: Any, field: pa.Field, length: int) -> pa.Array | pa.ChunkedArray:
    if values is None:
        return pa.nulls(length, field.type)
    if isinstance(values, pa.Array | pa.ChunkedArray):
        return values if values.type == field.type else values.cast(field.type)
    if field.type == _text:
        return pa.array(values, pa.string(), from_pandas=True).dictionary_encode()
    if isinstance(values, np.ndarray) and values.dtype.kind in "biuf":
        return _from_numbers(values).cast(field.type)
    return pa.array(values, field.type, from_pandas=True)


def _from_numbers(values: np.ndarray) -> pa.Array:
    """The array, NaN as null. ``pa.array`` does the same, but imports pandas: half a second of every rank."""
    values = np.ascontiguousarray(values.view(np.uint8) if values.dtype == bool else values)
    numbers = pa.Array.from_buffers(
        pa.from_numpy_dtype(values.dtype), len(values), [None, pa.py_buffer(values)]
    )
    if values.dtype.kind == "f" and np.isnan(values).any():
        return pc.if_else(pc.is_nan(numbers), pa.nulls(len(numbers), numbers.type), numbers)
    return numbers


def write(table: pa.Table, directory: Path, name: str) -> Path:
    """Write ``table`` as table ``name`` of a rank's directory, whole or not at all."""
    path = table_path(directory, name)
    directory.mkdir(parents=True, exist_ok=True)
    partial = path.with_suffix(".partial")
    try:
        pq.write_table(table.cast(SCHEMAS[name]), partial, compression="zstd")
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)
    return path


class Writer:
    """Writes tables in pieces, so that none need be in memory whole; files appear when all is written.

    Leave it as a context: with an error nothing is left behind.
    """

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self._pieces: dict[str, list[pa.Table]] = {}
        self._writers: dict[str, pq.ParquetWriter] = {}

    def __enter__(self) -> "Writer":
        return self

    @property
    def names(self) -> set[str]:
        """Of the tables that have been written."""
        return set(self._writers)

    def add(self, name: str, piece: pa.Table) -> None:
        """Append rows to table ``name``."""
        pieces = self._pieces.setdefault(name, [])
        pieces.append(piece)
        if sum(len(one) for one in pieces) >= ROWS_OF_A_GROUP:
            self._flush(name)

    def _flush(self, name: str) -> None:
        rows = pa.concat_tables(self._pieces[name]).cast(SCHEMAS[name]).unify_dictionaries()
        self._pieces[name] = []
        if name not in self._writers:
            path = table_path(self.directory, name).with_suffix(".partial")
            self.directory.mkdir(parents=True, exist_ok=True)
            self._writers[name] = pq.ParquetWriter(path, SCHEMAS[name], compression="zstd")
        self._writers[name].write_table(rows)

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        try:
            if kind is None:
                for name, pieces in self._pieces.items():
                    if pieces or name not in self._writers:
                        self._flush(name)
        finally:
            for writer in self._writers.values():
                writer.close()
            for name in self._writers:
                path = table_path(self.directory, name)
                if kind is None:
                    path.with_suffix(".partial").replace(path)
                else:
                    path.with_suffix(".partial").unlink(missing_ok=True)


def read(directory: Path, name: str, columns: list[str] | None = None) -> pa.Table:
    """Table ``name`` of a rank's directory, or ``columns`` of it; those of :data:`LATER` may be all null.

    Raises:
        UserError: the file is absent, truncated, not of this schema, or does not number its batches from 0
            on; the message names it.
    """
    path = table_path(directory, name)
    wanted = columns or SCHEMAS[name].names
    try:
        table = pq.ParquetFile(path).read(columns=wanted)
        for column in set(wanted).intersection(LATER.get(name, ())).difference(table.column_names):
            table = table.append_column(column, pa.nulls(len(table), SCHEMAS[name].field(column).type))
        if name == "batches" and "batch_index" in wanted:
            _check_numbers(table["batch_index"], path)
        return table.select(wanted)
    except FileNotFoundError:
        raise UserError(f"no {name} table: {path} does not exist") from None
    except (pa.ArrowException, UnicodeDecodeError, KeyError) as error:
        raise UserError(f"{path} is not a readable {name} table ({error}); repeat the run") from None


def _check_numbers(index: pa.ChunkedArray, path: Path) -> None:
    """A rank's batches are numbered from 0, each once: analyses find them by their number."""
    numbers = np.sort(index.drop_null().to_numpy())
    if len(numbers) < len(index) or not np.array_equal(numbers, np.arange(len(numbers))):
        span = f"{numbers[0]} to {numbers[-1]}" if len(numbers) else "without a number"
        if len(np.unique(numbers)) < len(numbers):
            span += ", with duplicates"
        raise UserError(
            f"{path} is damaged: its {len(index)} batches are numbered {span}, not 0 to {len(index) - 1}; "
            "repeat the run"
        )
