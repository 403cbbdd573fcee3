"""Databases as Nsight Systems and nvprof leave them of a training, of any size, made by arithmetic.

A batch is the stages of our loop, each a third of the kernels: launched from one thread, those of the
backward pass from autograd's; a collective in twelve kernels of the backward pass, on a stream of its own; a
copy to the GPU; and for three launches two other calls. Columns, types and sizes are those of real exports.
"""
# ruff: noqa: E501 (kernels' names and SQL)

import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

EPOCH_NS = 1_790_000_000_000_000_000
KERNELS = (
    "void cutlass::Kernel2<cutlass_80_tensorop_s1688fprop_optimized_tf32_128x128_16x4_nhwc_align4>(T1::Params)",
    "void at::native::batch_norm_collect_statistics_channels_last_kernel<at::native::Var, float, float, 4>(T1)",
    "void at::native::vectorized_elementwise_kernel<4, at::native::launch_clamp_scalar<float>(float*)>(int, T1)",
    "void at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add<float>>(int, T1, T2)",
    "void cudnn::ops::nchwToNhwcKernel<float, float, float, false, true>(cudnn::ops::nchw2nhwc_params_t<T3>)",
    "sm80_xmma_dgrad_implicit_gemm_tf32f32_tf32f32_f32_nhwckrsc_nhwc_tilesize128x64x32_stage3_warpsize2x2x1",
    "sm80_xmma_wgrad_implicit_gemm_indexed_tf32f32_tf32f32_f32_nhwckrsc_nhwc_tilesize64x128x32_stage3_cudnn",
    "void at::native::multi_tensor_apply_kernel<at::native::TensorListMetadata<2>, FusedSgdMathFunctor>(T1)",
    "void at::native::max_pool_forward_nhwc<float, int>(float const*, int, long, long, long, int, int)",
    "void (anonymous namespace)::softmax_warp_forward<float, float, float, 10, true, false>(float*, T1, int)",
)
COLLECTIVE = "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)"
STAGES = ("Forward Pass", "Backward Pass", "Model Update")
_DEVICE = (
    "deviceId integer, contextId integer, greenContextId integer, streamId integer, correlationId integer"
)
_KEY = "_id_ integer primary key autoincrement"  # nvprof's
_FIRST_TEXT = 300_000  # the number of Nsight Systems' first


@dataclass
class Batches:
    """What one rank did; arrays run over the kernels, times are nanoseconds from the start of the recording."""

    starts: np.ndarray  # of the batches, one more than there are
    stages: np.ndarray  # (batches, 4): edges of the three stages
    launched: np.ndarray
    start: np.ndarray
    duration: np.ndarray
    name: np.ndarray  # index of KERNELS; the one behind the last is COLLECTIVE
    backward: np.ndarray
    correlation: np.ndarray

    @property
    def collective(self) -> np.ndarray:
        return self.name == len(KERNELS)


def make_batches(batches: int, kernels: int, batch_ns: int, seed: int, collectives: bool = True) -> Batches:
    """A rank's work of ``batches`` batches with ``kernels`` kernels each."""
    generator = np.random.default_rng(seed)
    durations = batch_ns * (1 + 0.01 * generator.standard_normal(batches))
    starts = np.concatenate([[0], np.cumsum(durations)]).astype(np.int64) + 1_000_000_000
    edges = np.array([0.02, 0.32, 0.9, 0.98])
    stages = (starts[:-1, None] + edges * durations[:, None]).astype(np.int64)
    batch, place = np.divmod(np.arange(batches * kernels), kernels)
    stage = 3 * place // kernels
    within = (3 * place % kernels) / kernels
    low, high = stages[batch, stage], stages[batch, stage + 1]
    launched = (low + within * (high - low)).astype(np.int64)
    step = (high - low) * 3 / kernels
    duration = (step * generator.uniform(0.3, 0.95, len(step))).astype(np.int64)
    name = generator.integers(0, len(KERNELS), len(step))
    backward = stage == 1
    if collectives:
        name[backward & (place % 12 == 0)] = len(KERNELS)
    return Batches(
        starts, stages, launched, launched + 5_000, duration, name, backward, 3 * np.arange(len(step)) + 100
    )


@contextmanager
def _database(path: Path) -> Iterator[sqlite3.Connection]:
    """A new database, written without a journal: nobody reads it before it is whole."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("pragma journal_mode = off")
        yield connection
        connection.commit()


def write_nsys(path: Path, work: Batches, process: int = 4711, device: int = 0) -> Path:
    """An export of Nsight Systems (schema 3.25) of one rank."""
    with _database(path) as connection:
        make, fill = connection.execute, connection.executemany
        make("create table StringIds (id integer primary key, value text)")
        make("create table META_DATA_EXPORT (name text, value text)")
        make("create table TARGET_INFO_SESSION_START_TIME (utcEpochNs integer, utcTime text)")
        make("insert into TARGET_INFO_SESSION_START_TIME values (?, '2026-09-21')", (EPOCH_NS,))
        texts = [*KERNELS, COLLECTIVE, *STAGES, "End of Batch", "cudaLaunchKernel", "cudaEventRecord"]
        fill("insert into StringIds values (?, ?)", enumerate(texts, _FIRST_TEXT))
        _nsys_ranges(connection, work, process << 24 | process)
        _nsys_calls(connection, work, process, _FIRST_TEXT + len(texts) - 2)
        _nsys_kernels(connection, work, process, device)
        _nsys_copies(connection, work, process, device)
    return path


def _nsys_ranges(connection: sqlite3.Connection, work: Batches, thread: int) -> None:
    connection.execute(
        "create table NVTX_EVENTS (start integer, end integer, eventType integer, rangeId integer, category integer, "
        "color integer, text text, globalTid integer, endGlobalTid integer, textId integer, domainId integer)"
    )
    first = _FIRST_TEXT + len(KERNELS) + 1
    for batch, edges in enumerate(work.stages.tolist()):
        rows: list[tuple[Any, ...]] = [(*edges[i : i + 2], 59, thread, first + i) for i in range(3)]
        rows.append((int(work.starts[batch + 1]) - 1, None, 34, thread, first + 3))
        connection.executemany(
            "insert into NVTX_EVENTS values (?, ?, ?, null, null, null, null, ?, null, ?, 0)", rows
        )


def _nsys_calls(connection: sqlite3.Connection, work: Batches, process: int, first: int) -> None:
    main, autograd = process << 24 | process, process << 24 | process + 40
    connection.execute(
        "create table CUPTI_ACTIVITY_KIND_RUNTIME (start integer, end integer, eventClass integer, globalTid integer, "
        "correlationId integer, nameId integer, returnValue integer, callchainId integer)"
    )
    thread = np.where(work.backward, autograd, main)
    connection.executemany(
        "insert into CUPTI_ACTIVITY_KIND_RUNTIME values (?, ?, 0, ?, ?, ?, 0, null)",
        _rows(*_calls(work, thread, first)),
    )


def _nsys_kernels(connection: sqlite3.Connection, work: Batches, process: int, device: int) -> None:
    connection.execute(
        f"create table CUPTI_ACTIVITY_KIND_KERNEL (start integer, end integer, {_DEVICE}, globalPid integer, "
        "demangledName integer, shortName integer, mangledName integer, launchType integer, cacheConfig integer, "
        "registersPerThread integer, gridX integer, gridY integer, gridZ integer, blockX integer, blockY integer, "
        "blockZ integer, staticSharedMemory integer, dynamicSharedMemory integer, localMemoryPerThread integer, "
        "localMemoryTotal integer, gridId integer, sharedMemoryExecuted integer, graphNodeId integer, "
        "sharedMemoryLimitConfig integer, qmdBulkReleaseDone integer, clusterX integer, clusterY integer)"
    )
    name = work.name + _FIRST_TEXT
    connection.executemany(
        f"insert into CUPTI_ACTIVITY_KIND_KERNEL values (?, ?, {device}, 1, 0, ?, ?, {process << 24}, ?, ?, ?, 1, 1, "
        "?, ?, ?, 1, ?, 1, 1, 0, 33280, 0, 250871808, ?, 135168, null, 0, null, 0, 0)",
        _rows(
            work.start, work.start + work.duration, np.where(work.collective, 20, 7), work.correlation, name, name,
            name, 32 + 8 * work.name, 1 + 37 * work.name, 1 + work.name % 3, 64 << work.name % 3,
            np.arange(len(name)),
        ),
    )  # fmt: skip


def _nsys_copies(connection: sqlite3.Connection, work: Batches, process: int, device: int) -> None:
    connection.execute(
        f"create table CUPTI_ACTIVITY_KIND_MEMCPY (start integer, end integer, {_DEVICE}, globalPid integer, "
        "bytes integer, copyKind integer, srcKind integer, dstKind integer)"
    )
    connection.executemany(
        f"insert into CUPTI_ACTIVITY_KIND_MEMCPY values (?, ?, {device}, 1, 0, 7, ?, {process << 24}, 38535168, 1, 1, 2)",
        _rows(work.starts[:-1] + 10_000, work.starts[:-1] + 900_000, np.full(len(work.starts) - 1, -1)),
    )


def _calls(work: Batches, thread: np.ndarray, first: int) -> tuple[np.ndarray, ...]:
    """(start, end, thread, correlation, name) of the calls: a launch for each kernel, and others between."""
    others = np.flatnonzero(np.arange(len(work.start)) % 3 < 2)
    start = np.concatenate([work.launched, work.launched[others] + 2_500])
    order = np.argsort(start, kind="stable")
    name = np.concatenate([np.full(len(work.start), first), np.full(len(others), first + 1)])
    correlation = np.concatenate([work.correlation, work.correlation[others] + 1])
    thread = np.concatenate([thread, thread[others]])
    return tuple(column[order] for column in (start, start + 2_000, thread, correlation, name))


def _rows(*columns: np.ndarray) -> Any:
    return zip(*(column.tolist() for column in columns), strict=True)


def write_nvprof(path: Path, work: Batches, process: int = 4711) -> Path:
    """An ``nvprof -o`` database of one rank."""
    with _database(path) as connection:
        connection.execute(f"create table StringTable ({_KEY}, value text not null unique)")
        texts = [*KERNELS, COLLECTIVE, *STAGES, "End of Batch"]
        connection.executemany("insert into StringTable values (?, ?)", enumerate(texts, 1))
        _nvprof_calls(connection, work, process)
        _nvprof_kernels(connection, work)
        _nvprof_ranges(connection, work, process)
    return path


def _nvprof_calls(connection: sqlite3.Connection, work: Batches, process: int) -> None:
    connection.execute(
        f"create table CUPTI_ACTIVITY_KIND_RUNTIME ({_KEY}, cbid int not null, start int not null, end int not null, "
        "processId int not null, threadId int not null, correlationId int not null, returnValue int not null)"
    )
    start, end, thread, correlation, name = _calls(work, np.where(work.backward, -354666688, -354000000), 13)
    connection.executemany(
        f"insert into CUPTI_ACTIVITY_KIND_RUNTIME values (null, ?, ?, ?, {process}, ?, ?, 0)",
        _rows(name, EPOCH_NS + start, EPOCH_NS + end, thread, correlation),
    )


def _nvprof_kernels(connection: sqlite3.Connection, work: Batches) -> None:
    connection.execute(
        f"create table CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL ({_KEY}, cacheConfig blob not null, "
        "sharedMemoryConfig int not null, registersPerThread int not null, "
        "partitionedGlobalCacheRequested int not null, partitionedGlobalCacheExecuted int not null, "
        "start int not null, end int not null, completed int not null, deviceId int not null, "
        "contextId int not null, streamId int not null, gridX int not null, gridY int not null, gridZ int not null, "
        "blockX int not null, blockY int not null, blockZ int not null, staticSharedMemory int not null, "
        "dynamicSharedMemory int not null, localMemoryPerThread int not null, localMemoryTotal int not null, "
        "correlationId int not null, gridId int not null, name int not null, queued int not null, "
        "submitted int not null, launchType int not null)"
    )
    at = EPOCH_NS + work.start
    connection.executemany(
        "insert into CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL values (null, x'00', 0, ?, 1, 1, ?, ?, ?, 0, 1, ?, ?, 1, 1, "
        "?, 1, 1, 0, 0, 0, 193986560, ?, ?, ?, 0, 0, 0)",
        _rows(
            32 + 8 * work.name, at, at + work.duration, at + work.duration, np.where(work.collective, 20, 7),
            1 + 37 * work.name, 64 << work.name % 3, work.correlation, np.arange(len(at)), work.name + 1,
        ),
    )  # fmt: skip


def _nvprof_ranges(connection: sqlite3.Connection, work: Batches, process: int) -> None:
    connection.execute(
        f"create table CUPTI_ACTIVITY_KIND_MARKER ({_KEY}, flags int not null, "
        "timestamp int not null, id int not null, objectKind int not null, objectId blob not null, "
        "name int not null, domain int not null)"
    )
    owner = process.to_bytes(4, "little") + (-354000000 & 0xFFFFFFFF).to_bytes(4, "little") + bytes(4)
    first, rows = len(KERNELS) + 2, []
    for batch, edges in enumerate((EPOCH_NS + work.stages).tolist()):
        for stage in range(3):
            number = 4 * batch + stage
            rows += [(2, edges[stage], number, owner, first + stage), (4, edges[stage + 1], number, owner, 0)]
        rows.append((1, EPOCH_NS + int(work.starts[batch + 1]) - 1, 4 * batch + 3, owner, first + 3))
    connection.executemany("insert into CUPTI_ACTIVITY_KIND_MARKER values (null, ?, ?, ?, 2, ?, ?, 0)", rows)
