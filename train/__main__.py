"""Train as one rank; its flags are the fields of a run.

    python -m train --model resnet50 --loader synthetic --batch 32
    mpirun -np 4 python -m train --model resnet50 --loader dali-gpu --batch 64 --data DIR
    torchrun --nproc-per-node 2 -m train --model resnet18 --loader pytorch --data DIR

Each rank writes batches.parquet and rank.json below --out; python -m jobs.sweep runs many such runs.
Exit code 0: done; 1: done, but the figures do not count (one line says why); 2: wrong use.
"""

import argparse
import atexit
import faulthandler
import gc
import os
import signal
import sys
import traceback
from collections.abc import Container, Mapping
from pathlib import Path
from typing import NoReturn

from jobs.backends import NO_HOROVOD, has_horovod, in_place_of_horovod
from jobs.flags import add_run_flags, make_parser, run_from_flags
from jobs.run import Run, format_id, make_run
from jobs.store import STACKS
from profiling.errors import EXIT_DONE, EXIT_FAILED, UserError, run_command
from profiling.tables import rank_directory
from train.world import World, read_world


def main() -> int:
    parser = make_parser("python -m train", __doc__)
    add_run_flags(parser)
    parser.add_argument("--out", type=Path, help="the run's directory [results/by-hand/ID]")
    parser.add_argument("--keep-raw", action="store_true", help="keep what the profiler wrote, too")
    arguments = parser.parse_args()
    world = read_world(os.environ)
    run = in_world(run_from_flags(arguments), arguments, world)
    if run.backend == "horovod" and not has_horovod():
        if world.rank == 0:
            print(NO_HOROVOD, file=sys.stderr)
        run = make_run({**run.model_dump(), "backend": in_place_of_horovod([run.backend])[0]})
    out = arguments.out or Path("results") / "by-hand" / format_id(run)
    write_stacks_at_signal(rank_directory(out, world.rank))

    # torch is imported only when the flags are right, and with the collector off: of the million objects that
    # this makes none is garbage, and looking for some takes an eighth of the time.
    gc.disable()
    from train.models import import_torchvision
    from train.rank import PeersLost, run_rank

    import_torchvision()
    gc.freeze()
    gc.enable()

    def say(text: str) -> None:
        if world.rank == 0:
            print(text, flush=True)

    try:
        finished = run_rank(run, world, out, arguments.keep_raw, say)
    except PeersLost as lost:
        # Not as an error of ours: the line that counts is that of the rank that has gone.
        print(lost, file=sys.stderr)
        return EXIT_FAILED
    if finished.wrong:
        raise NotRight(finished.wrong)
    say(f"done: {finished.images_per_s:.1f} images/s over all {run.batches} batches, the first too; in {out}")
    if may_leave_at_once(run, os.environ, sys.modules):
        leave_at_once()
    return EXIT_DONE


def write_stacks_at_signal(directory: Path) -> None:
    """From now on, SIGUSR1 writes the stacks of all threads to ``directory``; a crash writes them to stderr.

    jobs.processes sends the signal to the ranks of a run that hangs; jobs.queue puts the stacks into its log.
    """
    faulthandler.enable()
    if sys.platform == "win32":
        return
    directory.mkdir(parents=True, exist_ok=True)
    path = directory / STACKS
    # Open for as long as the process lives: in a process that hangs nothing can be opened any more.
    file = path.open("w")
    faulthandler.register(signal.SIGUSR1, file=file, all_threads=True)

    def leave() -> None:
        faulthandler.unregister(signal.SIGUSR1)
        file.close()
        if path.exists() and not path.stat().st_size:
            path.unlink()

    atexit.register(leave)


# What profilers around this process set; they write when it ends in order. TAU takes its LD_PRELOAD away,
# but its module is found, and imported by the markers, only where it watches.
_WATCHERS = ("LD_PRELOAD", "CUDA_INJECTION64_PATH", "NVTX_INJECTION64_PATH")


def may_leave_at_once(run: Run, environment: Mapping[str, str], modules: Container[str]) -> bool:
    """Whether nobody waits for this process to end in order: no profiler, and no MPI."""
    watched = run.profile != "none" or any(environment.get(name) for name in _WATCHERS)
    return not watched and not any(name in modules for name in ("pytau", "mpi4py.MPI", "horovod"))


def leave_at_once(code: int = EXIT_DONE) -> NoReturn:
    """End this process and leave it to the kernel to free what it holds.

    Python and PyTorch would take themselves apart piece by piece, for 0.2 s of a processor that ranks of the
    next point could use; and a rank that has failed would wait for the others to take NCCL apart with it.
    """
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def run_and_leave() -> None:
    """The command, as a process of its own: what went wrong is said before anything waits for other ranks."""
    try:
        run_command(main)
    except SystemExit as ended:
        if not _holds_a_group():
            raise
        leave_at_once(ended.code if isinstance(ended.code, int) else EXIT_FAILED)
    except BaseException:
        if not _holds_a_group():
            raise
        traceback.print_exc()
        leave_at_once(EXIT_FAILED)


def _holds_a_group() -> bool:
    """Whether this rank is still joined to others: it has failed (train.backends.Backend.abandon)."""
    distributed = sys.modules.get("torch.distributed")
    return bool(distributed and distributed.is_available() and distributed.is_initialized())


class NotRight(UserError):
    """The run ended, but its figures do not count."""

    exit_code = EXIT_FAILED


def in_world(run: Run, arguments: argparse.Namespace, world: World) -> Run:
    """``run`` with the nodes and ranks that the launcher started, where the flags do not say them.

    Raises:
        UserError: the flags say another number of ranks than were started.
    """
    with_size = arguments.nodes is not None or arguments.gpus_per_node is not None
    if not with_size and run.backend != "dp":
        return make_run({**run.model_dump(), "nodes": world.nodes, "gpus_per_node": world.local_size})
    if run.ranks != world.size:
        raise UserError(
            f"{run.nodes} x {run.ranks_per_node} ranks asked, {world.size} started ({world.launcher}); use "
            f"torchrun, mpirun -np {run.ranks} or python -m jobs.sweep, or leave both flags out"
        )
    return run


if __name__ == "__main__":
    run_and_leave()
