"""python -m benchmarks.ranks: what do answers cost by rank, up to a thousand of them?

A sweep of ResNet50's size: 8 ranks on one node, and 64, 256 or 1,024 ranks of 8 a node, which wait for each
other (benchmarks/planted_sweep.py; one of them is slow). Each has three unprofiled runs of 40 steps and a
profiled one, whose last 20 steps have 3,900 kernels each and rank: 80 million kernels on 1,024 ranks.

Each command runs in a process of its own, on two cores. Measured are its seconds, its CPU seconds (user and
system) and the peak of its memory; of the report also the page's size and the time until it is seen.

    python -m benchmarks.ranks [--ranks 64 256 1024] [--folder DIR]      # 2 GB in the folder; half an hour
"""

import argparse
import os
import shutil
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from benchmarks.child import facts, machine, write
from benchmarks.planted_sweep import ELEMENTS, Job, Times, as_ns, buckets, layer_name, write_sweep
from benchmarks.raw_to_table import CORES, timed
from benchmarks.report_speed import reported
from profiling.errors import EXIT_DONE, EXIT_FAILED, run_command

RANKS = (64, 256, 1024)
GPUS_A_NODE, STEPS, RUNS = 8, 40, 3
SLOW, SLOWER = 3, 0.05  # this rank's kernels take so much longer
COMMANDS = ("scaled", "anatomy", "communication", "stragglers", "report")
BAR_S, BAR_GB, BAR_PAGE_MB, BAR_VIEW_S = 180.0, 4.0, 5.0, 3.0
# ResNet50's step has about 3,900 kernels: so many of each of 12 layers and pass, and of the update.
OF_A_LAYER, OF_THE_UPDATE = 161, 30
_LEAST_AHEAD_NS, _CALL_NS, _GAP_NS = 10_000, 5_000, 1_000
_SPREAD = 0.05  # of the durations of a kernel, as a share
# What a pass launches, in turn: short name and class.
_FORWARD = (
    ("implicit_convolve_sgemm", "convolution"), ("bn_fw_tr_1C11_kernel_NCHW", "normalization"),
    ("vectorized_elementwise_kernel", "pointwise"), ("cutlass_tensorop_s1688fprop", "convolution"),
    ("elementwise_kernel", "pointwise"), ("nchwToNhwcKernel", "convolution"),
    ("max_pool_forward_nchw", "pooling"),
)  # fmt: skip
_BACKWARD = (
    ("dgrad_engine", "convolution"), ("wgrad_alg0_engine", "convolution"),
    ("bn_bw_1C11_kernel_new", "normalization"), ("vectorized_elementwise_kernel", "pointwise"),
    ("reduce_kernel", "reduction"), ("cutlass_tensorop_s1688dgrad", "convolution"),
    ("max_pool_backward_nchw", "pooling"),
)  # fmt: skip
_UPDATE = (("multi_tensor_apply_kernel", "optimizer"),)
_COPY = (("Memcpy HtoD", "memcpy"),)
_SUM = (("ncclDevKernel_AllReduce_Sum_f32_RING_LL", "communication"),)


class ManyKernels:
    """What a profiler records of a rank: the planted times, each pass of a layer as many kernels.

    A call gives one rank's columns (:data:`benchmarks.planted_sweep.Recorder`). All ranks launch the same
    kernels; each has its own durations.

    Args:
        ranks: of the job.
    """

    def __init__(self, ranks: int) -> None:
        self._ranks = ranks

    def __call__(self, rank: int, times: Times, traced: int) -> dict[str, Any]:
        generator = np.random.default_rng(rank)
        parts = [self._part(generator, *one) for one in self._parts(rank, times, traced)]
        columns = {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
        order = np.argsort(columns["start_ns"], kind="stable")
        columns = {name: values[order] for name, values in columns.items()}
        texts = {name: _as_text(columns.pop(name), words) for name, words in _WORDS.items()}
        rows = len(order)
        sums = columns.pop("sum")
        of_group = {
            name: _as_text(np.where(sums, 0, -1), [word])
            for name, word in (
                ("collective", "allreduce"), ("process_group", "0"),
                ("group_ranks", ",".join(map(str, range(self._ranks)))),
            )
        }  # fmt: skip
        # The host launches a step's kernels one after the other, ahead of the device.
        of_step = rows // (columns["batch_index"][-1] + 1)
        first = np.repeat(columns["start_ns"][::of_step], of_step)
        earliest = first + np.arange(rows) % of_step * (_CALL_NS + _GAP_NS)
        launch = np.minimum(columns["start_ns"] - _LEAST_AHEAD_NS, earliest)
        return {
            **columns, **texts, **of_group,
            "rank": np.full(rows, rank), "device": np.zeros(rows, np.int32),
            "batch_index": columns["batch_index"] + traced, "group_size": np.where(sums, self._ranks, np.nan),
            "launch_ns": launch, "launch_end_ns": launch + _CALL_NS, "correlation": np.arange(rows),
        }  # fmt: skip

    def _parts(self, rank: int, times: Times, traced: int) -> list[tuple[Any, ...]]:
        """The arguments of :meth:`_part` for each kind of kernels, but the generator."""
        layers = times.forward[0].shape[0]
        found: list[tuple[Any, ...]] = [(_COPY, "fprop", -1, 1, 7, 1e6, times.copy, 0, 1)]
        for n in range(layers):
            found.append((_FORWARD, "fprop", n, 1, 7, 1e9, times.forward, n, OF_A_LAYER))
            found.append((_BACKWARD, "bprop", layers - 1 - n, 2, 7, 1e9, times.backward, n, OF_A_LAYER))
        update = times.exchanged[None], times.end[None]
        found.append((_UPDATE, "update", -1, 1, 7, 3e8, update, 0, OF_THE_UPDATE))
        sizes = [size for _, size in buckets()][: len(times.exchange[0])]
        found += [(_SUM, "bprop", -1, 2, 20, size, times.exchange, n, 1) for n, size in enumerate(sizes)]
        return [
            (*one[:6], begin[place, rank, traced:], end[place, rank, traced:], count)
            for *one, (begin, end), place, count in found
        ]

    @staticmethod
    def _part(
        generator: np.random.Generator, kinds: tuple[tuple[str, str], ...], direction: str, layer: int,
        thread: int, stream: int, moved: float, begin: np.ndarray, end: np.ndarray, count: int,
    ) -> dict[str, np.ndarray]:  # fmt: skip
        """Columns of ``count`` kernels of each step, one after the other from its begin to its end."""
        steps = len(begin)
        weight = 1 + _SPREAD * generator.normal(size=(steps, count))
        share = np.cumsum(weight, axis=1) / weight.sum(axis=1)[:, None]
        first, last = as_ns(begin)[:, None], as_ns(end)[:, None]
        ends = first + np.rint(share * (last - first)).astype(np.int64)
        starts = np.concatenate([first, ends[:, :-1]], axis=1)
        which = np.tile([_NAMES.index(kinds[n % len(kinds)]) for n in range(count)], steps)
        rows = steps * count

        def each(value: float) -> np.ndarray:
            return np.full(rows, value)

        sums = kinds is _SUM
        return {
            "batch_index": np.repeat(np.arange(steps), count), "start_ns": starts.ravel(),
            "duration_ns": np.maximum(ends - starts - (0 if sums else _GAP_NS), 1).ravel(),
            "name": which, "short_name": which, "class": which, "operator": which,
            "direction": each(_DIRECTIONS.index(direction)).astype(int), "layer": each(layer).astype(int),
            "stream": each(stream).astype(int), "launch_thread": each(thread).astype(int),
            "flops": each(2e10 / OF_A_LAYER if layer >= 0 else 0.0), "bytes": each(moved / count),
            "sum": each(sums).astype(bool),
        }  # fmt: skip


_NAMES = list(dict.fromkeys((*_FORWARD, *_BACKWARD, *_UPDATE, *_COPY, *_SUM)))
_DIRECTIONS = ["fprop", "bprop", "update"]
_WORDS = {
    "name": [f"void at::native::{name}<float, 512, 1, 3>(float const*, float*)" for name, _ in _NAMES],
    "short_name": [name for name, _ in _NAMES], "class": [kind for _, kind in _NAMES],
    "operator": [f"aten::{kind}" for _, kind in _NAMES], "direction": _DIRECTIONS,
    "layer": [layer_name(n) for n in range(len(ELEMENTS))],
}  # fmt: skip


def _as_text(codes: np.ndarray, words: list[str]) -> pa.Array:
    """A column of texts from the places of its words; below 0: null."""
    places = pa.array(codes.astype(np.int32), mask=codes < 0)
    return pa.DictionaryArray.from_arrays(places, pa.array(words))


def kernels_of_a_step() -> int:
    """How many kernels a rank has in a step: of layers and passes, of the update, a copy, and sums."""
    return 2 * len(_WORDS["layer"]) * OF_A_LAYER + OF_THE_UPDATE + 1 + len(buckets())


# --- measuring ----------------------------------------------------------------------------------------


def of_sweep(ranks: int, folder: Path) -> dict[str, Any]:
    """What each command takes on a sweep of so many ranks."""
    sweep = folder / f"sweep_{ranks}"
    for job in (Job(ranks=size, nodes=size // GPUS_A_NODE, slow=(SLOW,), gpu=SLOWER) for size in (8, ranks)):
        write_sweep(
            sweep, [job], repetitions={"none": RUNS, "torch": 1}, batches=STEPS,
            recorded=ManyKernels(job.ranks),
        )  # fmt: skip
    kernels = ranks * (STEPS - STEPS // 2) * kernels_of_a_step()
    try:
        return {"ranks": ranks, "kernels": kernels, **{name: _measured(name, sweep) for name in COMMANDS}}
    finally:
        shutil.rmtree(sweep)


def _measured(command: str, sweep: Path) -> dict[str, float]:
    if command == "report":
        figures = reported(sweep, sweep / "report.html")
    else:
        figures = timed([f"analysis.{command}", str(sweep)])
    print(f"{sweep.name}: {command}: {figures}", file=sys.stderr)
    return figures


def missed(largest: dict[str, Any]) -> list[str]:
    """Which bars the sweep of most ranks misses."""
    bars = [
        (f"{name}, {what}", largest[name][what], bar)
        for name in COMMANDS
        for what, bar in (("seconds", BAR_S), ("peak_gb", BAR_GB))
    ]
    report = largest["report"]
    bars += [("page_mb", report["page_mb"], BAR_PAGE_MB), ("view_s", report["view_s"], BAR_VIEW_S)]
    return [f"{name}: {value} (at most {bar:g})" for name, value, bar in bars if value > bar]


def power(sweeps: list[dict[str, Any]], command: str) -> float | None:
    """The p of CPU seconds ~ ranks^p between the two sweeps of most ranks: 1 is linear."""
    if len(sweeps) < 2:
        return None
    one, two = sweeps[-2:]
    more = two[command]["cpu_s"] / one[command]["cpu_s"]
    return round(float(np.log(more) / np.log(two["ranks"] / one["ranks"])), 2)


def as_markdown(report: dict[str, Any]) -> str:
    """The report as a page."""
    largest = report["sweeps"][-1]
    lines = [
        "# What answers cost by rank", "",
        f"{facts(report['machine'])}; {CORES} cores, shared with other work: seconds are those of the clock. "
        f"Bars for {RANKS[-1]:,} ranks: {BAR_S:g} s and {BAR_GB:g} GB each, a page of {BAR_PAGE_MB:g} MB "
        f"that is seen after {BAR_VIEW_S:g} s.", "",
        f"    {report['command']}", "",
        "| ranks | kernels | command | CPU, s | seconds | peak, GB | CPU by rank, ms |",
        "| ---: | ---: | --- | ---: | ---: | ---: | ---: |",
    ]  # fmt: skip
    for sweep in report["sweeps"]:
        for name in COMMANDS:
            one = sweep[name]
            lines.append(
                f"| {sweep['ranks']:,} | {sweep['kernels']:,} | {name} | {one['cpu_s']} | {one['seconds']} "
                f"| {one['peak_gb']} | {1000 * one['cpu_s'] / sweep['ranks']:.0f} |"
            )
    lines += [
        "",
        "The p of CPU seconds ~ ranks^p between the last two sizes (1: linear): "
        + ", ".join(f"{name} {power}" for name, power in report["powers"].items()) + ".", "",
        "| ranks | page, MB | first view, s | all charts, s |", "| ---: | ---: | ---: | ---: |",
        *(
            f"| {sweep['ranks']:,} | {sweep['report']['page_mb']} | {sweep['report']['view_s']} "
            f"| {sweep['report']['drawn_s']} |"
            for sweep in report["sweeps"]
        ),
        "",
        *(f"Missed on {largest['ranks']:,} ranks: {one}." for one in report["missed"]),
    ]  # fmt: skip
    return "\n".join(lines) + "\n"


def main() -> int:
    """The command; exit code 1 if a bar is missed."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.ranks", description=__doc__)
    parser.add_argument("--ranks", type=int, nargs="+", default=RANKS, help="numbers of ranks, 16 or more")
    parser.add_argument("--folder", type=Path, help="where the sweeps are written, one at a time")
    given = parser.parse_args()
    where = machine(("duckdb", "numpy", "pandas", "plotly", "pyarrow"))
    if hasattr(os, "sched_setaffinity"):  # the commands inherit it
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:CORES])
    with tempfile.TemporaryDirectory(dir=given.folder) as name:
        sweeps = [of_sweep(ranks, Path(name)) for ranks in sorted(given.ranks)]
    report = {
        "command": "python -m benchmarks.ranks", "machine": where, "sweeps": sweeps,
        "powers": {name: power(sweeps, name) for name in COMMANDS}, "missed": missed(sweeps[-1]),
    }  # fmt: skip
    write("ranks", report, as_markdown(report))
    return EXIT_FAILED if report["missed"] else EXIT_DONE


if __name__ == "__main__":
    run_command(main)
