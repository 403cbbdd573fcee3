"""python -m benchmarks.foreign_traces: how long from somebody's traces to the report?

Traces of a job that trains a model of 7 billion parameters by FSDP are made (32 layers; each gathers its
parameters before its forward and its backward pass and scatters its gradients; one optimizer step a batch),
a JSON file a rank as PyTorch's profiler writes it, and ``profiling.convert`` and
``analysis.report`` answer them. Bars: 64 ranks of 200,000 events in 3 minutes and 3 GB on 2 cores.

    python -m benchmarks.foreign_traces                          # 64 ranks; 4 GB of temporary files
    python -m benchmarks.foreign_traces --ranks 4 --events 20000
"""

import argparse
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import orjson

from benchmarks.child import facts, machine, write
from benchmarks.raw_to_table import timed
from profiling.errors import run_command
from profiling.traced_job import read_job

RANKS, EVENTS = 64, 200_000
BAR_S, BAR_GB = 180.0, 3.0
CORES = 2
LAYERS, START_US = 32, 1_750_000_000_000_000.0
_FORWARD = (
    "void flash_fwd_kernel<Flash_fwd_kernel_traits<128, 128, 64, 4>>(Flash_fwd_params)",
    *[f"ampere_bf16_s16816gemm_bf16_128x128_ldg8_f2f_stages_64x{number}_tn" for number in range(7)],
    "void at::native::vectorized_elementwise_kernel<4, at::native::silu_kernel>(int)",
    "void layer_norm_kernel<c10::BFloat16, float>(int)",
)
_BACKWARD = tuple(name.replace("fwd", "bwd") for name in _FORWARD) + tuple(
    f"ampere_bf16_s16816gemm_bf16_256x64_ldg8_f2f_stages_32x{number}_nt" for number in range(8)
)
_UPDATE = "void at::native::(anonymous namespace)::multi_tensor_apply_kernel<at::native::FusedAdam>(int)"
_ELEMENTS = 7_000_000_000 // LAYERS


class _Events:
    """Collects the events of one rank; times in microseconds."""

    def __init__(self, rank: int, ranks: int) -> None:
        self.rank, self.ranks = rank, ranks
        self.events: list[dict[str, Any]] = []
        self.host, self.device, self.talk = START_US, START_US, START_US
        self.number = 0
        self.jitter = np.random.default_rng(rank).normal(1.0, 0.02, 4096).tolist()

    def kernel(self, name: str, lasts: float, sequence: int, thread: int) -> None:
        """An operator within another, its launch, its kernel and the arrow between."""
        self.number += 1
        lasts *= self.jitter[self.number % 4096]
        args = {"External id": self.number, "Sequence number": sequence, "Fwd thread id": thread - 1}
        host = {"ph": "X", "pid": 9, "tid": thread}
        node = {"cat": "cpu_op", "name": "aten::linear" if thread == 1 else "MmBackward0"}
        self.events += [
            {**host, **node, "ts": self.host, "dur": 9.0, "args": args},
            {**host, "cat": "cpu_op", "name": "aten::mm", "ts": self.host + 1, "dur": 7.0,
             "args": {"External id": self.number}},
            {**host, "cat": "cuda_runtime", "name": "cudaLaunchKernel", "ts": self.host + 3, "dur": 3.0,
             "args": {"correlation": self.number}},
        ]  # fmt: skip
        start = max(self.device, self.host + 6)
        self._device(name, 7, start, lasts, {})
        self.device = start + lasts
        self.host += 10

    def collective(self, kind: str, name: str, lasts: float, waits_for_model: bool) -> None:
        """A collective on a stream of its own."""
        self.number += 1
        args = {
            "Collective name": kind, "dtype": "BFloat16", "In msg nelems": _ELEMENTS // self.ranks,
            "Out msg nelems": _ELEMENTS, "Group size": self.ranks, "Process Group Name": "0",
            "Process Group Description": "fsdp", "Process Group Ranks": str(list(range(self.ranks))),
        }  # fmt: skip
        host = {"ph": "X", "pid": 9, "tid": 1}
        self.events += [
            {**host, "cat": "cpu_op", "name": "record_param_comms", "ts": self.host, "dur": 9.0,
             "args": args},
            {**host, "cat": "cuda_runtime", "name": "cudaLaunchKernelExC", "ts": self.host + 3, "dur": 3.0,
             "args": {"correlation": self.number}},
        ]  # fmt: skip
        start = max(self.talk, self.host + 6, self.device if waits_for_model else 0)
        self._device(name, 20, start, lasts, args)
        self.talk = start + lasts
        if not waits_for_model:  # a layer's kernels need its parameters
            self.device = max(self.device, self.talk)
        self.host += 10

    def _device(self, name: str, stream: int, start: float, lasts: float, more: dict[str, Any]) -> None:
        args = {
            "device": 0,
            "stream": stream,
            "correlation": self.number,
            "grid": [64, 4, 1],
            "block": [128, 1, 1],
            **more,
        }
        arrow = {"cat": "ac2g", "name": "ac2g", "id": self.number}
        self.events += [
            {"ph": "X", "cat": "kernel", "name": name, "pid": 0, "tid": stream, "ts": start, "dur": lasts,
             "args": args},
            {"ph": "s", **arrow, "pid": 9, "tid": 1, "ts": self.host + 3},
            {"ph": "f", **arrow, "pid": 0, "tid": stream, "ts": start, "bp": "e"},
        ]  # fmt: skip

    def batch(self, number: int) -> None:
        """Forward, backward and update of a batch; the device runs behind the host."""
        first = self.host = max(self.host, self.device - 20_000)
        for layer in range(LAYERS):
            self.collective(
                "all_gather_into_tensor_coalesced",
                "ncclDevKernel_AllGather_RING_LL(ncclDevKernelArgs)",
                180,
                False,
            )
            for kernel, name in enumerate(_FORWARD):
                self.kernel(name, 110, (number * LAYERS + layer) * 64 + kernel, 1)
        for layer in reversed(range(LAYERS)):
            self.collective(
                "all_gather_into_tensor_coalesced",
                "ncclDevKernel_AllGather_RING_LL(ncclDevKernelArgs)",
                180,
                False,
            )
            for kernel, name in enumerate(_BACKWARD):
                self.kernel(name, 120, (number * LAYERS + layer) * 64 + kernel % len(_FORWARD), 2)
            self.collective(
                "reduce_scatter_tensor_coalesced",
                "ncclDevKernel_ReduceScatter_Sum_bf16_RING_LL(int)",
                260,
                True,
            )
        self.device = max(self.device, self.talk)
        begun = self.host
        self.kernel(_UPDATE, 900, -1, 1)
        for name, at, until in (
            ("Optimizer.step#AdamW.step", begun, self.host),
            (f"ProfilerStep#{number}", first, self.host),
        ):
            span = {"ph": "X", "cat": "user_annotation", "name": name, "pid": 9, "tid": 1}
            self.events.append({**span, "ts": at, "dur": until - at - 0.5, "args": {"External id": 0}})


def write_trace(path: Path, rank: int, ranks: int, events: int) -> int:
    """The trace of one rank, with so many events or some more; how many."""
    made = _Events(rank, ranks)
    number = 10
    while len(made.events) < events:
        made.batch(number)
        number += 1
    group = {"pg_name": "0", "pg_desc": "default_pg", "backend_config": "cuda:nccl", "pg_size": ranks,
             "ranks": list(range(ranks))}  # fmt: skip
    head = {
        "schemaVersion": 1,
        "deviceProperties": [{"id": 0, "name": "NVIDIA H100 80GB HBM3"}],
        "distributedInfo": {"backend": "nccl", "rank": rank, "world_size": ranks, "pg_config": [group]},
    }
    path.write_bytes(orjson.dumps({**head, "traceEvents": made.events}))
    return len(made.events)


def _all(folder: Path, ranks: int, events: int) -> Iterator[int]:
    folder.mkdir()
    for rank in range(ranks):
        yield write_trace(folder / f"rank{rank}.json", rank, ranks, events)


def as_markdown(report: dict[str, Any]) -> str:
    """The report as a page."""
    return (
        "# From somebody's traces to the report\n\n"
        f"{facts(report['machine'])}; {CORES} cores. Bars: {RANKS} ranks of {EVENTS:,} events in "
        f"{BAR_S:g} s and {BAR_GB:g} GB.\n\n    {report['command']}\n\n"
        "| ranks | events a rank | text, MB | seconds | CPU, s | peak, GB | page, MB |\n"
        "| ---: | ---: | ---: | ---: | ---: | ---: | ---: |\n"
        f"| {report['ranks']} | {report['events']:,} | {report['text_mb']} | {report['seconds']} "
        f"| {report['cpu_s']} | {report['peak_gb']} | {report['page_mb']} |\n\n"
        + "".join(f"Missed: {one}.\n" for one in report["missed"])
    )


def main() -> int:
    """The command; exit code 1 if a bar is missed."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.foreign_traces", description=__doc__)
    parser.add_argument("--ranks", type=int, default=RANKS)
    parser.add_argument("--events", type=int, default=EVENTS, help="of a rank")
    given = parser.parse_args()
    where = machine(("numpy", "orjson", "pyarrow", "duckdb"))
    with tempfile.TemporaryDirectory() as folder:
        traces, page = Path(folder) / "fsdp", Path(folder) / "report.html"
        events = max(_all(traces, given.ranks, given.events))
        size = sum(path.stat().st_size for path in traces.iterdir())
        out = Path(folder) / "converted"
        commands = (["profiling.convert", str(traces), "--out", str(out)],
                    ["analysis.report", str(out), "--output", str(page)])  # fmt: skip
        first, second = map(timed, commands)
        took = {name: round(first[name] + second[name], 1) for name in ("seconds", "cpu_s")}
        took["peak_gb"] = max(first["peak_gb"], second["peak_gb"])
        job = read_job(out / "fsdp")
        assert len(job.ranks) == job.world_size == given.ranks
        page_mb = round(page.stat().st_size / 1e6, 2)
    missed = [
        f"{took[name]} {unit}, over {bar:g}"
        for name, unit, bar in (("seconds", "s", BAR_S), ("peak_gb", "GB", BAR_GB))
        if took[name] > bar
    ]
    report = {
        "command": f"python -m benchmarks.foreign_traces --ranks {given.ranks} --events {given.events}",
        "machine": where, "ranks": given.ranks, "events": events, "text_mb": round(size / 1e6),
        **took, "page_mb": page_mb, "missed": missed,
    }  # fmt: skip
    if (given.ranks, given.events) == (RANKS, EVENTS):
        write("foreign_traces", report, as_markdown(report))
    else:
        print(as_markdown(report))
    return 1 if missed else 0


if __name__ == "__main__":
    run_command(main)
