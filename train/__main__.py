"""Train a model as one rank of a job. The flags are the options of a run.

    python -m train --model resnet50 --loader synthetic --batch 32
    mpirun -np 4 python -m train --model resnet50 --loader dali-gpu --batch 64 --data DIR
    torchrun --nproc-per-node 2 -m train --model resnet18 --loader pytorch --data DIR

Each run gets its own folder, results/by-hand/<run id>. Analysis commands take this folder, or results/by-hand
for all of them. python -m jobs.sweep starts many such runs.

Exit code 0: done; 1: done, but the results do not count (one line says why); 2: wrong use.
"""

import argparse
import gc
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from signal import SIGTERM

from jobs import by_hand
from jobs.failures import Kind
from jobs.run import NO_HOROVOD, Run, has_horovod, make_run
from jobs.run_fields import add_run_flags, make_parser, run_from_flags
from jobs.store import STACKS
from profiling.errors import EXIT_DONE, EXIT_FAILED, Unsuccessful, UserError, reported_by_rank_0
from profiling.identity import read_identity
from profiling.process import interruptible, run_and_leave, write_stacks_at_signal
from profiling.tables import rank_directory
from profiling.wrap import is_watched
from train.world import World, read_world


def main() -> int:
    parser = make_parser("python -m train", __doc__)
    add_run_flags(parser)
    add = parser.add_argument
    add("--out", type=Path, metavar="DIR", help="the run's folder [a new one in results/by-hand]")
    add("--overwrite", action="store_true", help="replace the run that is in --out")
    add("--keep-raw", action="store_true", help="keep the profiler's own files, too")
    rank = read_identity(os.environ).rank
    with reported_by_rank_0(rank):
        arguments, mistakes = parser.parse_all()
        run = run_from_flags(arguments, mistakes)
    world = read_world(os.environ)
    with reported_by_rank_0(rank):
        run = in_world(run, arguments, world)
    if run.backend == "horovod" and not has_horovod():
        if world.rank == 0:
            print(NO_HOROVOD, file=sys.stderr)
        run = make_run({**run.model_dump(), "backend": "ddp"})
    standalone = by_hand.is_by_hand(arguments.out)
    if standalone and arguments.out is not None:
        with reported_by_rank_0(rank):
            by_hand.check_unused(arguments.out, arguments.overwrite, others=False)
    if standalone and rank == 0 and not is_watched(run.profile, os.environ):
        how = f"python -m profiling.wrap --tool {run.profile} --out DIR -- -m train ... --out DIR"
        print(f"scaleprof: profile {run.profile} records nothing here; started by: {how}", file=sys.stderr)
    write_stacks_at_signal(None if standalone else rank_directory(arguments.out, world.rank) / STACKS)
    place = by_hand.Folder(run, arguments.out) if standalone else arguments.out
    return train(run, world, place, arguments.keep_raw)


def train(run: Run, world: World, out: Path | by_hand.Folder, keep_raw: bool) -> int:
    """Train as one rank; the exit code. By hand, ``out`` makes the folder, and rank 0 its manifest."""
    started = datetime.now(UTC)
    # torch is imported only when the flags are right, and with the collector off: of the million objects that
    # this makes none is garbage, and looking for some takes an eighth of the time.
    gc.disable()
    from train.models import import_torchvision
    from train.rank import PeersLost, run_rank

    import_torchvision()
    gc.freeze()
    gc.enable()

    folder = out if isinstance(out, by_hand.Folder) else None
    mine = folder if world.rank == 0 else None

    def say(text: str) -> None:
        if mine:
            mine.begin()  # the first line is of the first step
        if world.rank == 0:
            print(text, flush=True)

    reason = ""
    try:
        with recorded(mine, started):
            finished = run_rank(run, world, out, keep_raw, say)
            if mine:
                reason = by_hand.write_manifest(run, finished.out, started).reason
    except PeersLost as lost:
        # Not as an error of ours: the line that counts is that of the rank that has gone.
        print(lost, file=sys.stderr)
        return EXIT_FAILED
    if wrong := reason or finished.wrong:
        raise Unsuccessful(wrong)
    say(f"done: {finished.images_per_s:.1f} images/s over all {run.batches} steps")
    if folder:
        say(f"results: {finished.out}")
    return EXIT_DONE


@contextmanager
def recorded(folder: by_hand.Folder | None, started: datetime) -> Iterator[None]:
    """Note in the folder of a run by hand why it ended early; None of ranks that write no manifest."""
    from train.rank import OutOfMemory, PeersLost

    if folder is None:
        yield
        return
    with interruptible() as stop:
        try:
            yield
        except (Exception, KeyboardInterrupt) as error:
            stop.hear_no_more()
            why = str(error) if isinstance(error, PeersLost) else f"{type(error).__name__}: {error}"
            kind: Kind | None = None
            if isinstance(error, UserError):
                why, kind = str(error), "out of memory" if isinstance(error, OutOfMemory) else "wrong use"
            elif isinstance(error, KeyboardInterrupt) or stop.asked:
                why, kind = f"stopped by {'SIGTERM' if stop.asked == SIGTERM else 'Ctrl-C'}", "interrupted"
            folder.end_early(why.splitlines()[0], kind, started)
            raise


def in_world(run: Run, arguments: argparse.Namespace, world: World) -> Run:
    """``run`` with the nodes and ranks that the launcher started, or UserError: flags say other numbers."""
    with_size = arguments.nodes is not None or arguments.gpus_per_node is not None
    if not with_size and run.backend != "dp":
        return make_run({**run.model_dump(), "nodes": world.nodes, "gpus_per_node": world.local_size})
    if run.ranks != world.size:
        raise UserError(
            f"{run.nodes} x {run.ranks_per_node} ranks requested, {world.size} started (launcher: "
            f"{world.launcher}); use torchrun, mpirun -np {run.ranks} or python -m jobs.sweep, "
            "or omit --nodes and --gpus-per-node"
        )
    return run


if __name__ == "__main__":
    run_and_leave(main)
