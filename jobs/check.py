"""Find the slow nodes of an allocation: in computing, copying, training or communication.

    sbatch --nodes=8 slurm/check.sh          on all nodes of an allocation
    python -m jobs.check                     on this machine
    python -m analysis.check results/check   print the result again

It takes two minutes: a matrix product, a memory copy and a short training step per GPU (without GPUs: per
node) on all nodes at once, then allreduces between pairs of nodes and over all (NCCL; Gloo without GPUs). At
least three nodes are needed to find a slow one.

Exit code 0: no node is slow; 1: some are, or the ranks failed; 2: wrong use.
"""

import os
import sys
from pathlib import Path

from jobs import store
from jobs.failures import explain, log_tail
from jobs.launchers import LAUNCHERS
from jobs.machine import this_machine
from jobs.processes import Limits, run_processes, stopped_in_order
from jobs.run import Run, make_run
from jobs.run_fields import add_format_flags, make_parser, parse_value, print_answer, to_flags
from jobs.site import add_site_flag, check_modules, find_site, refuse
from profiling.arguments import count
from profiling.errors import Unsuccessful, UserError, run_command

# A training step of half a second at most.
_SHORT = {
    "gpu": {"model": "resnet50", "batch": 64},
    "cpu": {"model": "resnet18", "batch": 8, "image_size": 64},
}


def main() -> int:
    parser = make_parser("python -m jobs.check", __doc__)
    add = parser.add_argument
    add("--launcher", default="local", choices=sorted(LAUNCHERS), help="what starts the ranks [local]")
    add_site_flag(parser)
    add("--out", type=Path, default=Path("results/check"), help="folder for the result [results/check]")
    add("--gpus-per-node", type=count, help="[that of the site file, or of this machine; without GPUs 1]")
    for name in ("device", "network", "compute"):
        info = Run.model_fields[name]
        add(f"--{name}", metavar=name.upper(), default=info.default, help=f"{info.description} [%(default)s]")
    add_format_flags(parser, ["--output"])
    arguments = parser.parse_args()
    site = find_site(arguments.site, os.environ)
    refuse(check_modules(site, os.environ))
    launcher = LAUNCHERS[arguments.launcher].open(site, os.environ)
    gpus = 0 if arguments.device == "cpu" else site.gpus_per_node or len(this_machine().gpus)
    given = {name: parse_value(name, getattr(arguments, name)) for name in ("device", "network", "compute")}
    size = {"nodes": max(1, len(launcher.nodes)), "gpus_per_node": arguments.gpus_per_node or gpus or 1}
    run = make_run({**given, **size, **_SHORT["gpu" if gpus else "cpu"]})
    if why := launcher.why_not(run):
        raise UserError(why)
    arguments.out.mkdir(parents=True, exist_ok=True)
    record, log = arguments.out / store.CHECK, arguments.out / store.LOG
    for path in (record, log, arguments.out / "rendezvous"):
        path.unlink(missing_ok=True)
    print(f"measuring on {run.nodes} nodes, {run.ranks} ranks ... (log: {log})", file=sys.stderr)
    command = [sys.executable, "-m", "train.check", f"--out={record.absolute()}", *to_flags(run)]
    with stopped_in_order():
        processes = launcher.processes(run, command, arguments.out)
        ended = run_processes(processes, log, Limits(900.0))  # s: more than twice what it takes
    if ended.exit_code or not record.exists():
        failure = explain(ended.exit_code, ended.reason, log_tail(log, run.ranks), ended.kind)
        raise Unsuccessful(f"the ranks failed: {failure.text} (log: {log})")
    print_answer("analysis.check", arguments.out, arguments)


if __name__ == "__main__":
    run_command(main)
