"""Run a sweep: all runs that are not done yet, one after the other.

    python -m jobs.sweep configs/quick.yaml             run again to resume
    python -m jobs.sweep configs/quick.yaml --dry-run   print the exact commands without starting anything
    python -m jobs.sweep configs/quick.yaml --only loader=synthetic --only gpus_per_node=1,2
    python -m jobs.sweep configs/virtual.yaml --launcher slurm     in an allocation; slurm/sweep.sh does it

Exit code 0: all runs are done; 1: some failed or cannot start here (they are listed); 2: wrong use, explained
in one line; 75: the job reached its time limit or lost nodes, and resumes when it is started again (as
slurm/sweep.sh does); 130: interrupted, the last line is the command that resumes.
"""

import argparse
import os
import shlex
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import get_args

from jobs.backends import NO_HOROVOD, has_horovod, in_place_of_horovod
from jobs.cluster import cluster_name
from jobs.execute import print_plan, run_sweep
from jobs.execution import Execution
from jobs.flags import make_parser
from jobs.launchers import LAUNCHERS
from jobs.processes import TimeIsUp, stopped_in_order
from jobs.site import CHOOSE, Site, check_network, find_site, why_no_modules
from jobs.sweep_file import Order, Sweep, SweepRun, expand, parse_only, read_sweep, select
from profiling.errors import EXIT_DONE, EXIT_FAILED, EXIT_INTERRUPTED, UserError, run_command

AS_SUBMITTED = "SCALEPROF_SUBMIT"  # how the batch job around this was submitted (slurm/sweep.sh)
EXIT_AGAIN = 75  # EX_TEMPFAIL of sysexits.h: the same command will go on


def main() -> int:
    arguments = _parser().parse_args()
    site = find_site(arguments.site, os.environ)
    sweep = at_site(read_sweep(arguments.config), site)
    sweep, without = without_horovod(sweep, site)
    overrides = {"order": arguments.order, "unavailable": arguments.unavailable}
    sweep = sweep.model_copy(update={key: value for key, value in overrides.items() if value})
    sweep_runs, excluded = expand(sweep, str(arguments.config))
    sweep_runs = select(sweep_runs, parse_only(arguments.only))
    if not sweep_runs:
        raise UserError(f"{arguments.config}: no runs are left; check its exclude rules and --only")
    # Here, too, for scripts that submit jobs: a job would find it after its time in the queue.
    check_network(site, {sweep_run.configuration.network: None for sweep_run in sweep_runs})
    directory = arguments.out / sweep.name
    if arguments.print:
        print_for_scripts(arguments.print, directory, sweep_runs)
        return EXIT_DONE
    if why := why_no_modules(site, os.environ):
        raise UserError(why)
    for line in (without, which_site(site, os.environ)):
        if line:
            print(line, file=sys.stderr)
    launcher = LAUNCHERS[arguments.launcher].open(site, os.environ)
    execution = Execution(sweep, directory, launcher, arguments.keep_raw, arguments.pack)
    if arguments.dry_run:
        return EXIT_FAILED if print_plan(execution, sweep_runs, excluded) else EXIT_DONE
    try:
        with stopped_in_order():
            outcome = run_sweep(execution, sweep_runs, excluded)
    except TimeIsUp:
        print(
            "the job's time limit is reached: the remaining runs are left for the next job", file=sys.stderr
        )
        return EXIT_AGAIN
    except KeyboardInterrupt:
        raise Interrupted(f"interrupted; to resume: {this_command(sys.argv[1:])}") from None
    return EXIT_AGAIN if outcome.again else EXIT_FAILED if outcome.failed else EXIT_DONE


class Interrupted(UserError):
    """The user has stopped the sweep."""

    exit_code = EXIT_INTERRUPTED


def this_command(words: Sequence[str]) -> str:
    """The command that was given, as one can paste it into a shell; a batch job says its own."""
    return os.environ.get(AS_SUBMITTED) or shlex.join(["python", "-m", "jobs.sweep", *words])


def which_site(site: Site, environment: Mapping[str, str]) -> str:
    """Which site file is in use, in one line; "" where there is none, and no batch system either."""
    if site.file is not None:
        here = Path.cwd()
        return f"site file: {site.file.relative_to(here) if site.file.is_relative_to(here) else site.file}"
    cluster = cluster_name(environment)
    return f"no site file for the cluster {cluster!r}: using Slurm's defaults" if cluster else ""


def _parser() -> argparse.ArgumentParser:
    parser = make_parser("python -m jobs.sweep", __doc__)
    add = parser.add_argument
    add("config", type=Path, help="the sweep file (configs/*.yaml)")
    add("--launcher", default="local", choices=sorted(LAUNCHERS), help="what starts the ranks [local]")
    add(
        "--site",
        metavar="NAME|FILE",
        help=f"site file: a name in jobs/sites, or a path [${CHOOSE}, or the one of this Slurm cluster]",
    )
    add("--out", type=Path, default=Path("results"), help="folder for the results [results]")
    add(
        "--only",
        action="append",
        default=[],
        metavar="FIELD=VALUE[,VALUE]",
        help="run only these, e.g. loader=synthetic or gpus_per_node=1,2; repeatable",
    )
    add("--order", choices=get_args(Order), help="order in which runs start [as in the sweep file]")
    add(
        "--unavailable",
        choices=("fail", "skip"),
        help="whether runs that cannot start here are failures or are skipped [as in the sweep file]",
    )
    add(
        "--pack", action="store_true", help="run small runs at the same time, which disturbs the measurements"
    )
    add("--dry-run", action="store_true", help="print the commands without starting anything")
    add("--print", choices=("directory", "node-counts"), help="for scripts: print this and exit")
    add("--keep-raw", action="store_true", help="also keep the profilers' own files")
    return parser


def print_for_scripts(what: str, directory: Path, sweep_runs: Sequence[SweepRun]) -> None:
    """What a batch script must know of a sweep: where its results go, and its numbers of nodes."""
    if what == "directory":
        print(directory)
    else:
        print(
            "\n".join(
                str(count) for count in sorted({sweep_run.configuration.nodes for sweep_run in sweep_runs})
            )
        )


def at_site(sweep: Sweep, site: Site) -> Sweep:
    """The sweep with its data where they are at this site."""
    data = sweep.run.get("data")
    if not site.data or data is None:
        return sweep
    here = [site.data.get(d, d) for d in data] if isinstance(data, list) else site.data.get(data, data)
    return sweep.model_copy(update={"run": {**sweep.run, "data": here}})


def without_horovod(sweep: Sweep, site: Site) -> tuple[Sweep, str]:
    """The sweep with DDP in the place of Horovod where that is not installed, and a line that says so, or "".

    Its runs are then DDP's by name too: what they measure is not taken for Horovod.
    """
    backend = sweep.run.get("backend")
    backends = backend if isinstance(backend, list) else [backend]
    # What a container holds is not seen from outside.
    if "horovod" not in backends or site.container or has_horovod():
        return sweep, ""
    instead = {**sweep.run, "backend": in_place_of_horovod(backends)}
    return sweep.model_copy(update={"run": instead}), NO_HOROVOD


if __name__ == "__main__":
    run_command(main)
