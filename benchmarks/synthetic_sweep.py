"""A sweep's folder with raw profiles of Nsight Systems, as large as it is asked for, made by arithmetic.

    python -m benchmarks.synthetic_sweep DIR [--ranks 64] [--batches 50] [--kernels 4062] [--seed N]

For each world size there is an unprofiled run (what its ranks themselves wrote) and, for the sizes in
``--profiled``, one under nsys, ``DIR/run_..._ret_0/rank_0003.sqlite`` beside the folder of its rank. So

    python -m profiling.convert DIR/run_*_nsys_*/*.sqlite
    python -m analysis.scaled DIR

go from raw profiles to the table. Every rank's times are its own; the seed makes them.
"""

import argparse
import tempfile
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from benchmarks.gpu_databases import EPOCH_NS, Batches, make_batches, write_nsys
from jobs import store
from jobs.run import Run
from jobs.run_fields import format_id
from jobs.store import Manifest, RankReport
from profiling import tables
from profiling.errors import UserError, run_command

BATCH_NS = 350_000_000
GPUS_A_NODE = 4
DEVICE = "NVIDIA A100-SXM4-40GB"
# ResNet50 at 224 x 224, FLOPs of an image: forward, and training.
FORWARD_FLOPS, TRAINING_FLOPS = 8.18e9, 24.3e9


def write_sweep(
    directory: Path, sizes: Sequence[int], profiled: Sequence[int], batches: int, kernels: int, seed: int = 0
) -> int:
    """Write a sweep over world sizes; how many kernels its raw profiles hold."""
    count = 0
    for size in sizes:
        for profile in ("none", *(["nsys"] if size in profiled else [])):
            fields = {
                "nodes": max(1, size // GPUS_A_NODE), "gpus_per_node": min(size, GPUS_A_NODE),
                "profile": profile, "batches": batches, "attribute_from": 0, "batch": 64,
            }  # fmt: skip
            run = Run.model_validate(fields)
            count += _write_run(directory, run, kernels, seed)
    record = '{"sweep": {}, "order_seed": 1, "launcher": "local", "order": [], "excluded": []}\n'
    store.write_text(directory / store.SWEEP, record)
    return count


def _write_run(directory: Path, run: Run, kernels: int, seed: int) -> int:
    target = directory / format_id(run, 0, 0)
    target.mkdir(parents=True)
    reports = [_report(rank, run) for rank in range(run.world_size)]
    # What all ranks wait for grows with their number.
    batch_ns = round(BATCH_NS * (1 + 0.02 * np.log2(run.world_size)))
    for report in reports:
        profiled = run.profile != "none"
        work = make_batches(
            run.batches, kernels if profiled else 3, batch_ns, seed + 1000 * run.world_size + report.rank
        )
        own = tables.rank_directory(target, report.rank)
        tables.write(tables.as_table("batches", _batches(work, run, report.rank)), own, "batches")
        store.write_record(own / store.RANK_REPORT, report)
        if profiled:
            write_nsys(target / f"{own.name}.sqlite", work, 4711 + report.rank, report.local_rank)
    manifest = Manifest(
        run=run, repetition=0, exit_code=0, command=["python", "-m", "train"], ranks=reports,
        started="2026-01-01T00:00:00+00:00", ended="2026-01-01T00:01:00+00:00", seconds=60.0,
    )  # fmt: skip
    store.write_record(target / store.MANIFEST, manifest)
    return run.batches * kernels * run.world_size if run.profile != "none" else 0


def _report(rank: int, run: Run) -> RankReport:
    return RankReport(
        rank=rank, world_size=run.world_size, local_rank=rank % run.gpus_per_node,
        hostname=f"node{rank // run.gpus_per_node}", device=DEVICE, backend="ddp/nccl",
        batches_done=run.batches, images_done=run.batches * run.batch, losses_finite=True,
        parameter_digest="0" * 64, forward_flops_per_image=FORWARD_FLOPS,
        training_flops_per_image=TRAINING_FLOPS, startup_ns=5_000_000_000,
    )  # fmt: skip


def _batches(work: Batches, run: Run, rank: int) -> dict[str, np.ndarray]:
    starts, ends = EPOCH_NS + work.starts[:-1], EPOCH_NS + work.starts[1:]
    edges = EPOCH_NS + work.stages
    return {
        "rank": np.full(run.batches, rank),
        "batch_index": np.arange(run.batches),
        "start_ns": starts,
        "load_ns": edges[:, 0] - starts,
        "forward_ns": edges[:, 1] - edges[:, 0],
        "backward_ns": edges[:, 2] - edges[:, 1],
        "update_ns": ends - edges[:, 2],
        "end_ns": ends,
        "images": np.full(run.batches, run.batch),
        "loss": np.linspace(7, 1, run.batches),
        "attributed": np.full(run.batches, run.profile != "none"),
    }


def main() -> int:
    """The command."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.synthetic_sweep", description=__doc__)
    parser.add_argument("directory", type=Path, metavar="DIR")
    parser.add_argument("--ranks", type=int, nargs="+", default=[1, 64], help="world sizes")
    parser.add_argument("--profiled", type=int, nargs="+", default=[64], help="of these, the profiled ones")
    parser.add_argument("--batches", type=int, default=50)
    parser.add_argument("--kernels", type=int, default=4062, help="of a batch")
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    if given.directory.exists():
        raise UserError(f"{given.directory} exists; name a new folder, or remove it")
    # Whole or not at all: written beside it, and renamed.
    given.directory.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=given.directory.parent) as scratch:
        sweep = Path(scratch) / given.directory.name
        count = write_sweep(sweep, given.ranks, given.profiled, given.batches, given.kernels, given.seed)
        sweep.rename(given.directory)
    print(f"{count:,} kernels in {given.directory}")
    return 0


if __name__ == "__main__":
    run_command(main)
