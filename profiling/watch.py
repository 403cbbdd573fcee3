"""Time each step of an unchanged training program, on each rank.

    torchrun --nproc-per-node 4 -m profiling.watch --batches 50 my_train.py --lr 0.1
    srun -n 4 python -m profiling.watch --out results/mine -m my_package.train
    mpirun -np 4 python -m profiling.watch --profile torch my_train.py

The program runs as under plain Python. A step ends with the optimizer's step; load is the wait for the data
loader, forward the call of the outermost module, backward the call of autograd. Each run gets its own folder,
results/by-hand/<program>-..., which every analysis command takes. Flags come before the program.

Exit code: that of the program; 1: it ended, but no step was seen, or the results do not count; 2: wrong use.
"""

import argparse
import importlib.util
import os
import sys
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

from jobs import by_hand
from jobs.failures import Ended
from jobs.store import RANK_REPORT, STACKS, summary_of, write_record
from profiling import tables
from profiling.arguments import Parser, count, whole
from profiling.clocks import set_clock
from profiling.errors import (
    EXIT_DONE,
    EXIT_FAILED,
    Unsuccessful,
    UserError,
    did_you_mean,
    reported_by_rank_0,
    run_command,
)
from profiling.findings import MOST_SHOWN, lines
from profiling.identity import Identity, is_restarted, read_identity
from profiling.process import leave_group, write_stacks_at_signal
from profiling.tools import STARTED, Options, check_can_record, check_mode, open_capture
from profiling.watching.program import Program, hidden, when_imported
from profiling.watching.watched import Request, Watch, batch_columns, findings_of, usual_samples
from profiling.wrap import has_gpu, run_wrapped, wraps

# Without --batches: what a profiler records.
FIRST_RECORDED, RECORDED = 10, 20
_SAY_EVERY_S = 0.2
_SAY_FIRST_S = 5.0


def parse(arguments: list[str] | None) -> tuple[argparse.Namespace, Program]:
    """The flags and the program; UserError: a flag has no such value, or there is no such program."""
    given = _parser().parse_args(arguments)
    words = given.module or given.program[given.program[:1] == ["--"] :]
    if not words:
        raise UserError("no program: give a script or -m MODULE, e.g. python -m profiling.watch my_train.py")
    if given.profile not in STARTED:
        raise UserError(f"invalid --profile {given.profile!r}{did_you_mean(given.profile, STARTED)}")
    check_mode(given.profile, given.profile_mode)
    if given.batches and given.attribute_from is not None and given.attribute_from >= given.batches:
        raise UserError(
            f"--attribute-from {given.attribute_from} must be less than --batches {given.batches}"
        )
    return given, Program(words[0], tuple(words[1:]), bool(given.module))


def _parser() -> Parser:
    parser = Parser(
        prog="python -m profiling.watch", description=__doc__, usage="%(prog)s [flags] SCRIPT|-m MODULE ...",
    )  # fmt: skip
    add = parser.add_argument
    add("--out", type=Path, metavar="DIR", help="the run's folder [a new one in results/by-hand]")
    add("--overwrite", action="store_true", help="replace the run that is in --out")
    add("--batches", type=count, metavar="N", help="end the program after N steps [let it finish]")
    add("--samples", type=count, metavar="N", help="samples per step and rank [from the data loader]")
    add("--steps-per-batch", type=count, default=1, metavar="K",
        help="optimizer steps that make one step of training [1]")  # fmt: skip
    add("--profile", default="none", metavar="NAME", help=f"the profiler: {', '.join(STARTED)} [none]")
    add("--profile-mode", default="auto", metavar="MODE", help="mode of the profiler [auto]")
    add("--attribute-from", type=whole, metavar="K",
        help=f"first step (from 0) that the profiler records [half of --batches; without --batches "
        f"{FIRST_RECORDED}, for {RECORDED} steps]")  # fmt: skip
    add("--keep-raw", action="store_true", help="keep the profiler's own files, too")
    # This process is the one that a profiler of ours has started.
    add("--inside", action="store_true", help=argparse.SUPPRESS)
    add("-m", dest="module", nargs=argparse.REMAINDER, metavar="MODULE", help="run a module, as python does")
    add("program", nargs=argparse.REMAINDER, help="your script and its arguments")
    return parser


def request_of(given: argparse.Namespace) -> Request:
    recordings: tuple[range, ...] = ()
    if given.profile != "none":
        first = given.attribute_from
        if first is None:
            first = given.batches // 2 if given.batches else FIRST_RECORDED
        recordings = (range(first, given.batches or first + RECORDED),)
    return Request(given.batches or 0, given.steps_per_batch, given.samples or 0, recordings)


def main(arguments: list[str] | None = None) -> int:
    me = read_identity(os.environ)
    words = sys.argv[1:] if arguments is None else arguments
    with reported_by_rank_0(me.rank):
        given, program = parse(arguments)
    with reported_by_rank_0(me.local_rank):  # each node has files and a Python of its own
        program.check()
        if importlib.util.find_spec("torch") is None:
            raise UserError("this Python has no PyTorch, and only PyTorch programs can be watched")
    with reported_by_rank_0(me.rank):
        out, standalone = prepare_folder(given, program, me)
    started = datetime.now(UTC)
    request = request_of(given)
    if standalone and wraps(given.profile):
        first = request.recordings[0].start
        options = Options(given.profile_mode, "", first, has_gpu(), me.size, me.rank)
        with reported_by_rank_0(me.local_rank):
            check_can_record(given.profile, options)
        inside = ["-m", "profiling.watch", "--inside", f"--out={out}", *words]
        ended = Ended(run_wrapped(given.profile, inside, out, options, given.keep_raw))
    else:
        ended = _watched(given, program, out, me, request)
    if standalone and me.rank == 0 and (tables.rank_directory(out, 0) / RANK_REPORT).exists():
        return _write_run(out, me, program, given, ended, started)
    return ended.exit_code


def _watched(given: argparse.Namespace, program: Program, out: Path, me: Identity, request: Request) -> Ended:
    """Run the program in this process, and write what was seen of this rank."""
    directory = tables.rank_directory(out, me.rank)
    directory.mkdir(parents=True, exist_ok=True)
    with reported_by_rank_0(me.local_rank):
        capture = open_capture(given.profile, directory, me.rank, given.keep_raw, given.profile_mode)
    in_sweep = not by_hand.is_by_hand(given.out)
    if in_sweep:  # which looks at how far its runs are, and asks one that hangs where it is
        write_stacks_at_signal(directory / STACKS)
    progress = None
    if me.rank == 0:
        progress = _progress(request.batches) if in_sweep else _live() if sys.stderr.isatty() else None
    watch = Watch(request, capture, progress)
    process = os.getpid()
    with hidden(("jobs",)):
        when_imported("torch", watch.hooks.attach)
        code, reason = program.run_to_end()
        if os.getpid() != process:  # one that the program has forked ends here, too
            sys.exit(code)
        try:
            steps = watch.stop()
        except RuntimeError:  # a GPU on which something has failed answers nothing any more
            if not code:
                raise
            steps = None
    if steps is None:
        if not in_sweep and not given.inside:
            by_hand.remove_empty(directory, out)
        if not code:
            with reported_by_rank_0(me.rank):
                if "torch" not in sys.modules:
                    raise Unsuccessful("no results: the program did not import torch")
                raise Unsuccessful(
                    "no results: the program loaded, computed and optimised nothing in this process; ranks "
                    "are started by torchrun, srun or mpirun; loops that PyTorch does not see: "
                    "profiling.markers"
                )
        if me.rank == 0:
            _say(f"no results: {reason}")
        return Ended(code, reason)
    findings = [*capture.write(), *findings_of(watch, steps)]
    tables.write(tables.as_table("batches", batch_columns(steps, me.rank, request)), directory, "batches")
    findings += set_clock(directory, given.profile)
    report = by_hand.report_of(
        me, watch.model_facts, len(steps), usual_samples(steps, request), watch.hooks.seen.workers,
        watch.startup_ns, findings, code,
    )  # fmt: skip
    write_record(directory / RANK_REPORT, report)
    if not code:  # after a failure others may be in an exchange, and NCCL would wait for them
        leave_group()
    return Ended(code, reason)


def _progress(batches: int) -> Callable[[int, float], None]:
    """Says how many steps are done, a few times a second, on a line that the program did not begin."""
    last = 0.0

    def progress(steps: int, _: float) -> None:
        nonlocal last
        now = time.monotonic()
        if now - last >= _SAY_EVERY_S or steps == batches:
            last = now
            print(f"\rstep {min(steps, batches)}/{batches}", flush=True)

    return progress


def _live() -> Callable[[int, float], None]:
    """Says how the program goes, after some seconds and then ever more rarely."""
    since: tuple[float, int, float] | None = None  # when it was last said: time, steps, seconds of loading
    wait_s = _SAY_FIRST_S

    def live(steps: int, loading_s: float) -> None:
        nonlocal since, wait_s
        now = time.monotonic()
        if since is None:  # the first step warms up
            since = now, steps, loading_s
        elif (seconds := now - since[0]) >= wait_s and (done := steps - since[1]):
            data = (loading_s - since[2]) / seconds
            _say(f"{steps} steps, {1e3 * seconds / done:.4g} ms per step, {data:.0%} waiting for data")
            since, wait_s = (now, steps, loading_s), 2 * wait_s

    return live


def prepare_folder(given: argparse.Namespace, program: Program, me: Identity) -> tuple[Path, bool]:
    """The run's folder, and whether we write its manifest (a sweep writes that of its own runs)."""
    if given.inside:
        return given.out.absolute(), False
    out = given.out or by_hand.PARENT / by_hand.new_name(program.name, me, os.environ)
    standalone = by_hand.is_by_hand(given.out)
    if standalone:
        # What a launch leaves that failed and is started again, as a program resumes, is no other run.
        by_hand.check_unused(out, given.overwrite or is_restarted(os.environ))
        if me.rank == 0:
            by_hand.clear(out)
            out.mkdir(parents=True, exist_ok=True)
    return out.absolute(), standalone


def _write_run(
    out: Path, me: Identity, program: Program, given: argparse.Namespace, ended: Ended, started: datetime
) -> int:
    """Write the manifest, and print the findings; the exit code."""
    manifest = by_hand.write_program_manifest(
        out, me, program, given.profile, ended, started, given.steps_per_batch
    )
    _say(f"watched {manifest.run.batches} steps on {me.size} ranks", *lines(manifest.findings, MOST_SHOWN))
    if manifest.reason:
        _say(f"the results do not count: {manifest.reason}")
        return ended.exit_code or EXIT_FAILED
    _say(*summary_of(out), f"results: {out}")
    return EXIT_DONE


def _say(*messages: str) -> None:
    for message in messages:  # not into what the program prints to standard output
        print(f"scaleprof: {message}", file=sys.stderr)


if __name__ == "__main__":
    run_command(main)
