"""Run a sweep: every run that is not done yet, one after the other.

    python -m jobs.sweep configs/quick.yaml             a second call resumes
    python -m jobs.sweep configs/quick.yaml --dry-run   print the exact commands and start nothing
    python -m jobs.sweep configs/quick.yaml --only loader=synthetic --only gpus_per_node=1,2
    python -m jobs.sweep configs/virtual.yaml --launcher slurm     in an allocation; slurm/sweep.sh does it

Exit code 0: all runs are done; 1: some failed (they are named); 2: wrong use, one line says what; 75: this
job's time is up, or it has lost nodes: started again, it goes on (slurm/sweep.sh does that).
"""

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import get_args

from jobs.backends import NO_HOROVOD, has_horovod, in_place_of_horovod
from jobs.execute import print_plan, run_sweep
from jobs.execution import Execution
from jobs.flags import make_parser
from jobs.launchers import LAUNCHERS
from jobs.processes import TimeIsUp, stopped_in_order
from jobs.site import CHOOSE, Site, find_site
from jobs.sweep_file import Order, Sweep, SweepRun, expand, parse_only, read_sweep, select
from profiling.errors import EXIT_DONE, EXIT_FAILED, UserError, run_command

EXIT_AGAIN = 75  # EX_TEMPFAIL of sysexits.h: the same command will go on


def main() -> int:
    arguments = _parser().parse_args()
    site = find_site(arguments.site, os.environ)
    sweep = without_horovod(at_site(read_sweep(arguments.config), site), site)
    overrides = {"order": arguments.order, "unavailable": arguments.unavailable}
    sweep = sweep.model_copy(update={key: value for key, value in overrides.items() if value})
    sweep_runs, excluded = expand(sweep, str(arguments.config))
    sweep_runs = select(sweep_runs, parse_only(arguments.only))
    if not sweep_runs:
        raise UserError(f"{arguments.config}: no run is left; see its exclude rules and --only")
    directory = arguments.out / sweep.name
    if arguments.print:
        print_for_scripts(arguments.print, directory, sweep_runs)
        return EXIT_DONE
    launcher = LAUNCHERS[arguments.launcher].open(site, os.environ)
    execution = Execution(sweep, directory, launcher, arguments.keep_raw, arguments.pack)
    if arguments.dry_run:
        print_plan(execution, sweep_runs, excluded)
        return EXIT_DONE
    try:
        with stopped_in_order():
            outcome = run_sweep(execution, sweep_runs, excluded)
    except TimeIsUp:
        print("the job's time is up: what is not done is left for the next one", file=sys.stderr)
        return EXIT_AGAIN
    return EXIT_AGAIN if outcome.again else EXIT_FAILED if outcome.failed else EXIT_DONE


def _parser() -> argparse.ArgumentParser:
    parser = make_parser("python -m jobs.sweep", __doc__)
    add = parser.add_argument
    add("config", type=Path, help="the sweep file (configs/*.yaml)")
    add("--launcher", default="local", choices=sorted(LAUNCHERS), help="starts the ranks [local]")
    add("--site", metavar="NAME|FILE", help=f"of jobs/sites [${CHOOSE}, else this Slurm cluster's]")
    add("--out", type=Path, default=Path("results"), help="where results go [results]")
    add("--only", action="append", default=[], metavar="FIELD=VALUE,...", help="such runs only")
    add("--order", choices=get_args(Order), help="in which order runs start [the sweep's]")
    add("--unavailable", choices=("fail", "skip"), help="runs that cannot start here [the sweep's]")
    add("--pack", action="store_true", help="small runs side by side, which perturbs what is measured")
    add("--dry-run", action="store_true", help="print the commands and start nothing")
    add("--print", choices=("directory", "node-counts"), help="for scripts: print that and start nothing")
    add("--keep-raw", action="store_true", help="keep what the profilers wrote, too")
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


def without_horovod(sweep: Sweep, site: Site) -> Sweep:
    """The sweep with DDP in the place of Horovod where that is not installed; a line says so.

    Its runs are then DDP's by name too: what they measure is not taken for Horovod.
    """
    backend = sweep.run.get("backend")
    backends = backend if isinstance(backend, list) else [backend]
    # What a container holds is not seen from outside.
    if "horovod" not in backends or site.container or has_horovod():
        return sweep
    print(NO_HOROVOD, file=sys.stderr)
    return sweep.model_copy(update={"run": {**sweep.run, "backend": in_place_of_horovod(backends)}})


if __name__ == "__main__":
    run_command(main)
