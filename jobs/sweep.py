"""Run a sweep: all runs that are not done yet, one after the other.

    python -m jobs.sweep configs/quick.yaml             run again to resume
    python -m jobs.sweep configs/quick.yaml --dry-run   print the exact commands without starting anything
    python -m jobs.sweep configs/quick.yaml --only loader=synthetic --only gpus_per_node=1,2
    python -m jobs.sweep configs/virtual.yaml --launcher slurm     in an allocation; slurm/sweep.sh does this

Exit code 0: all runs are done; 1: some failed or cannot start here (they are listed), or the job's time limit
is too short for one run; 2: wrong use, explained in one line; 75: the job reached its time limit or lost
nodes, and resumes when started again (slurm/sweep.sh does so); 130: interrupted, and the last line is the
command that resumes.
"""

import argparse
import os
import shlex
import socket
import sys
from dataclasses import replace
from pathlib import Path
from typing import get_args

from jobs import site as sites
from jobs.execute import Execution, print_plan, run_sweep
from jobs.launchers import LAUNCHERS
from jobs.launchers.base import Launcher
from jobs.machine import cluster_name, on_compute_node
from jobs.processes import TimeIsUp, stopped_in_order
from jobs.run import NO_HOROVOD, has_horovod
from jobs.run_fields import make_parser
from jobs.store import summary_of, this_owner
from jobs.sweep_file import Order, Sweep, check_models, choose, read_sweep
from profiling.arguments import Parser
from profiling.errors import EXIT_DONE, EXIT_FAILED, Interrupted, UserError, run_command

EXIT_AGAIN = 75  # EX_TEMPFAIL of sysexits.h: the same command will go on


def main() -> int:
    arguments = parser().parse_args()
    site = sites.find_site(arguments.site, os.environ)
    if arguments.print == "shell":
        print("\n".join(sites.shell_commands(site)))
        return EXIT_DONE
    execution, note = read_request(arguments, site)
    if arguments.print == "directory":
        print(execution.directory)
        return EXIT_DONE
    sites.refuse(sites.check_modules(site, os.environ))
    announce(site, note)
    launcher = LAUNCHERS[arguments.launcher].open(site, os.environ)
    if arguments.dry_run:
        return EXIT_FAILED if print_plan(replace(execution, launcher=launcher.planned())) else EXIT_DONE
    execution = replace(execution, launcher=launcher)
    me = this_owner(os.environ)
    if me.job and me.restarts:
        print(f"start {me.restarts + 1} of job {me.job}", file=sys.stderr)
    if arguments.launcher == "local" and not on_compute_node(os.environ) and cluster_name(os.environ):
        print("runs start on this login node; in jobs: slurm/submit.sh", file=sys.stderr)
    try:
        with stopped_in_order():
            check_node(execution, site)
            outcome = run_sweep(execution)
    except TimeIsUp:
        print("time limit of the job reached", file=sys.stderr)
        return EXIT_AGAIN
    except KeyboardInterrupt:
        command = shlex.join(["python", "-m", "jobs.sweep", *sys.argv[1:]])
        again = f"submit job {me.job} again" if me.job and not sys.stdin.isatty() else command
        raise Interrupted(f"interrupted; to resume: {again}") from None
    for line in [] if outcome.again else summary_of(execution.directory):
        print(line, file=sys.stderr)
    return EXIT_AGAIN if outcome.again else EXIT_FAILED if outcome.failed else EXIT_DONE


def read_request(arguments: argparse.Namespace, site: sites.Site) -> tuple[Execution, str]:
    """The sweep as it is at a site, and its runs that parsed flags choose; whatever is wrong is refused.

    Nothing starts them yet. And a line on what is not as the sweep file has it; "" if nothing.
    """
    asked = read_sweep(arguments.config)
    sweep, note = at_site(asked, site), NO_HOROVOD if lacks_horovod(asked, site) else ""
    overrides = {"order": arguments.order, "unavailable": arguments.unavailable}
    sweep = sweep.model_copy(update={key: value for key, value in overrides.items() if value})
    sweep_runs, excluded = choose(sweep, arguments.only, str(arguments.config))
    if not site.container:  # what that holds is not seen from outside
        check_models(sweep_runs, arguments.config)
    known = site.network.model_fields_set
    networks = [each.configuration.network for each in sweep_runs]
    if known and (others := [network for network in networks if network.lower() not in known]):
        has = ", ".join(sorted(known))
        raise UserError(f"network {others[0]} is not in the site file {site.where} (network: {has})")
    directory = arguments.out / sweep.name
    return Execution(sweep, directory, Launcher(), sweep_runs, excluded, arguments.keep_raw), note


def check_node(execution: Execution, site: sites.Site) -> None:
    """Refuse a compute node that lacks what the site file says it has: its runs would fail."""
    runs, nodes = [each.configuration for each in execution.sweep_runs], len(execution.launcher.nodes)
    if nodes and on_compute_node(os.environ):  # a login node needs none
        used = {run.network.lower() for run in runs if 1 < run.nodes <= nodes}  # a run on one node uses none
        checks = [*sites.check_paths(site, "scratch"), *sites.check_networks(site, used)]
        sites.refuse(checks, f"{socket.gethostname()}: ")


def announce(site: sites.Site, note: str) -> None:
    if note:
        print(note, file=sys.stderr)
    if site.file is not None or "SLURM_JOB_ID" in os.environ or cluster_name(os.environ):
        print(f"site file: {site.where if site.file else sites.NO_SITE}", file=sys.stderr)


def parser() -> Parser:
    flags = make_parser("python -m jobs.sweep", __doc__)
    add = flags.add_argument
    add("config", type=Path, help="the sweep file (configs/*.yaml)")
    add("--launcher", default="local", choices=sorted(LAUNCHERS), help="what starts the ranks [local]")
    sites.add_site_flag(flags)
    add("--out", type=Path, default=Path("results"), help="folder for the results [results]")
    only = "run only these, e.g. loader=synthetic or gpus_per_node=1,2; repeatable"
    add("--only", action="append", default=[], metavar="FIELD=VALUE[,VALUE]", help=only)
    add("--order", choices=get_args(Order), help="order in which runs start [as in the sweep file]")
    unavailable = "whether runs that cannot start here are failures or are skipped [as in the sweep file]"
    add("--unavailable", choices=("fail", "skip"), help=unavailable)
    add("--dry-run", action="store_true", help="print the commands without starting anything")
    printed = "for scripts: print the results' folder, or the site's modules and variables as shell commands"
    add("--print", choices=("directory", "shell"), help=printed)
    add("--keep-raw", action="store_true", help="also keep the profilers' own files")
    return flags


def at_site(sweep: Sweep, site: sites.Site) -> Sweep:
    """The sweep with its data where they are at this site, and DDP where Horovod is not installed."""
    here, backends = dict(sweep.run), sweep.values.get("backend", [])
    if site.data and (data := here.get("data")):
        moved = [site.data.get(path, path) for path in sweep.values["data"]]
        here["data"] = moved if isinstance(data, list) else moved[0]
    if lacks_horovod(sweep, site):
        here["backend"] = list(dict.fromkeys("ddp" if name == "horovod" else name for name in backends))
    return sweep.model_copy(update={"run": here})


def lacks_horovod(sweep: Sweep, site: sites.Site) -> bool:
    if "horovod" not in sweep.values.get("backend", []) or "program" in sweep.run:
        return False
    return not (site.container or has_horovod())  # what a container holds is not seen from outside


if __name__ == "__main__":
    run_command(main)
