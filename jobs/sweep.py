"""Run a sweep: every point that is not done yet, one after the other.

    python -m jobs.sweep configs/quick.yaml             a second call resumes
    python -m jobs.sweep configs/quick.yaml --dry-run   print the exact commands and start nothing
    python -m jobs.sweep configs/quick.yaml --only loader=synthetic --only gpus_per_node=1,2
    python -m jobs.sweep configs/virtual.yaml --launcher slurm     in an allocation; slurm/sweep.sh does it

Exit code 0: all points are done; 1: some failed (they are named); 2: wrong use, one line says what.
"""

import os
from pathlib import Path

from jobs.execute import Execution, print_plan, run_points
from jobs.launchers import LAUNCHERS
from jobs.points import Sweep, expand, parse_only, read_sweep, select
from jobs.run import make_parser
from jobs.site import CHOOSE, Site, find_site
from profiling.errors import EXIT_DONE, EXIT_FAILED, UserError, run_command


def main() -> int:
    parser = make_parser("python -m jobs.sweep", __doc__)
    parser.add_argument("config", type=Path, help="the sweep file (configs/*.yaml)")
    parser.add_argument(
        "--launcher", default="local", choices=sorted(LAUNCHERS), help="starts the ranks [local]"
    )
    parser.add_argument(
        "--site", metavar="NAME|FILE", help=f"the cluster (jobs/sites) [${CHOOSE}, else this Slurm cluster's]"
    )
    parser.add_argument("--out", type=Path, default=Path("results"), help="where results go [results]")
    parser.add_argument(
        "--only", action="append", default=[], metavar="FIELD=VALUE,...", help="such points only"
    )
    parser.add_argument("--dry-run", action="store_true", help="print the commands and start nothing")
    parser.add_argument("--keep-raw", action="store_true", help="keep what the profilers wrote, too")
    arguments = parser.parse_args()

    site = find_site(arguments.site, os.environ)
    sweep = at_site(read_sweep(arguments.config), site)
    points, excluded = expand(sweep, str(arguments.config))
    points = select(points, parse_only(arguments.only))
    if not points:
        raise UserError(f"{arguments.config}: no point is left to run; see its exclude rules and --only")
    launcher = LAUNCHERS[arguments.launcher](site, os.environ)
    execution = Execution(sweep, arguments.out / sweep.name, launcher, arguments.keep_raw)
    if arguments.dry_run:
        print_plan(execution, points, excluded)
        return EXIT_DONE
    return EXIT_FAILED if run_points(execution, points, excluded) else EXIT_DONE


def at_site(sweep: Sweep, site: Site) -> Sweep:
    """The sweep with its data where they are at this site."""
    said = sweep.run.get("data")
    if not site.data or said is None:
        return sweep
    there = [site.data.get(d, d) for d in said] if isinstance(said, list) else site.data.get(said, said)
    return sweep.model_copy(update={"run": {**sweep.run, "data": there}})


if __name__ == "__main__":
    run_command(main)
