"""Schemas of all tables: names, types and units of their columns, and the values of categories.

Times are integer nanoseconds since the Unix epoch (``start_ns``, ``end_ns``) or durations (all other
``_ns``); sizes are bytes; 1 multiply-add is 2 FLOPs. Readers produce these tables, analysis reads the columns
it needs. :mod:`profiling.tables` stores them as files.
"""

import numpy as np
import pyarrow as pa

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

TEXT = pa.dictionary(pa.int32(), pa.string())

SCHEMAS: dict[str, pa.Schema] = {
    # A batch of a rank. Batches follow each other without a gap, but for what a profiler takes to start; on a
    # GPU all times are the device's (CUDA events), else the host's. load_ns: waiting for the next batch
    # (our trainer's: all before Forward Pass); attributed: recorded, and its kernels carry FLOPs and bytes.
    "batches": pa.schema([
        ("rank", pa.int32()), ("batch_index", pa.int32()), ("start_ns", pa.int64()), ("load_ns", pa.int64()),
        ("forward_ns", pa.int64()), ("backward_ns", pa.int64()), ("update_ns", pa.int64()),
        ("end_ns", pa.int64()), ("images", pa.int32()), ("loss", pa.float64()), ("attributed", pa.bool_()),
    ]),
    # A marker (instant; end_ns = start_ns) or a range.
    "markers": pa.schema([
        ("rank", pa.int32()), ("name", TEXT), ("kind", TEXT), ("start_ns", pa.int64()),
        ("end_ns", pa.int64()), ("thread", pa.int64()),
    ]),
    # A device activity (kernel, copy, set) or, on a CPU, a leaf operator. Null: the tool does not know.
    "kernels": pa.schema([
        ("rank", pa.int32()),
        ("batch_index", pa.int32()),  # null: outside every batch
        ("start_ns", pa.int64()),
        ("duration_ns", pa.int64()),
        ("name", TEXT),  # as the tool prints it, demangled
        ("short_name", TEXT),  # without template arguments, return type and parameters
        ("class", TEXT),
        ("direction", TEXT),
        ("operator", TEXT),  # e.g. aten::convolution
        ("layer", TEXT),  # e.g. layer1.0.conv1, where known
        ("device", pa.int32()),  # -1: the host
        ("stream", pa.int64()),  # on the host: the thread
        ("flops", pa.float64()),
        ("bytes", pa.float64()),
        ("grid", TEXT),  # "x,y,z"
        ("block", TEXT),
        ("blocks_per_sm", pa.float32()),  # of the launch: blocks / multiprocessors
        ("occupancy_pct", pa.float32()),  # estimated by the tool: resident warps / those that fit
        ("correlation", pa.int64()),
        ("launch_ns", pa.int64()),  # when the host's call that launched it began; null on the host
        ("launch_end_ns", pa.int64()),  # and when it returned; null: the tool does not say
        ("launch_thread", pa.int64()),  # and on which thread
        ("collective", TEXT),  # of a collective its kind, e.g. allreduce
        ("process_group", TEXT),  # and the group of ranks that made it, by its name,
        ("group_ranks", TEXT),  # e.g. 0,1
        ("group_size", pa.int32()),
        ("dtype", TEXT),  # of a collective's elements, as the tool prints it: BFloat16
        ("registers", pa.float32()),  # of a thread of the launch
        ("shared_bytes", pa.float32()),  # of shared memory of a block of it, static and dynamic
        ("sequence", pa.int64()),  # of a collective: the same number on all ranks of its group
    ]),
    # A call of the host that waits for a device, e.g. cudaStreamSynchronize.
    "synchronizations": pa.schema([
        ("rank", pa.int32()), ("name", TEXT), ("start_ns", pa.int64()), ("end_ns", pa.int64()),
        ("thread", pa.int64()),
    ]),
    # A change of the memory that PyTorch has allocated.
    "memory": pa.schema([
        ("rank", pa.int32()),
        ("batch_index", pa.int32()),  # null: outside every batch
        ("time_ns", pa.int64()),
        ("device", pa.int32()),  # -1: the host
        ("bytes", pa.float64()),  # below 0: freed
        ("allocated_bytes", pa.float64()),  # in all, after it
        ("reserved_bytes", pa.float64()),  # from the system, by the caching allocator
    ]),
    # A TAU timer on a thread.
    "intervals": pa.schema([
        ("rank", pa.int32()), ("thread", pa.int32()), ("function", TEXT), ("calls", pa.float64()),
        ("subcalls", pa.float64()), ("exclusive_ns", pa.float64()), ("inclusive_ns", pa.float64()),
    ]),
    # A TAU event on a thread.
    "atomics": pa.schema([
        ("rank", pa.int32()), ("thread", pa.int32()), ("event", TEXT), ("count", pa.float64()),
        ("min", pa.float64()), ("max", pa.float64()), ("mean", pa.float64()), ("std", pa.float64()),
    ]),
    # A timed repetition of a single-node study; those of its warm-up are not kept.
    "durations": pa.schema([
        ("case", TEXT),  # what was timed
        ("device", TEXT),  # "cpu", or the GPU's name
        ("stage", TEXT),  # e.g. forward
        ("repetition", pa.int32()),
        ("duration_ns", pa.int64()),
    ]),
    # Any other figure of such a study. Null: it could not be had, for the reason that the note says.
    "quantities": pa.schema([
        ("case", TEXT),
        ("device", TEXT),
        ("quantity", TEXT),  # with its unit, e.g. peak_memory_bytes
        ("value", pa.float64()),
        ("note", TEXT),
    ]),
}  # fmt: skip

# Columns that older files lack: there they are null.
LATER = {
    "kernels": (
        "launch_ns", "launch_end_ns", "launch_thread", "collective", "process_group", "group_ranks",
        "group_size", "dtype", "registers", "shared_bytes", "sequence",
    )
}  # fmt: skip


def is_model(kinds: "np.ndarray", directions: "np.ndarray") -> "np.ndarray":
    """Which kernels are the model's own work, by their classes and directions, shape (rows,), as bools."""
    return ~np.isin(kinds, APART) & (directions != "loader")
