"""What happened when, on all ranks of a run? A timeline that Perfetto (ui.perfetto.dev) opens.

    python -m analysis.timeline RUN                     writes RUN/trace.pftrace.gz
    python -m analysis.timeline SWEEP --run ID --output FILE
    python -m analysis.timeline RUN --batches 40-42     some batches; of runs of more than a million kernels
    python -m analysis.report SWEEP --trace             the report, and the timeline of one run

Of a sweep without ``--run`` it is the largest run that was profiled: most ranks, then most kernels. A process
is a rank (rank 3 · node · device); its tracks are batches, their stages, ranges and marks of the program, and
the kernels of each stream (or a CPU's operators of each thread), collectives and the loader's work apart.
A kernel bears class, direction, layer, operator, FLOPs and bytes; arrows join a collective's slices of all
ranks, from the first that came to the last.

All ranks are on rank 0's clock, aligned by the ends of collectives (results/matching.py); what that leaves is
on the track "about". A run without a profiler has batches and stages alone, on its hosts' own clocks.
"""

from pathlib import Path

from analysis.measures.anatomy.timeline import FILE, add_flags, write_of
from analysis.results.load import load
from jobs.flags import make_parser
from profiling.errors import run_command


def main() -> int:
    parser = make_parser("python -m analysis.timeline", __doc__)
    parser.add_argument("path", type=Path, metavar="DIR", help="a run, or a sweep's results")
    parser.add_argument("--output", type=Path, metavar="FILE", help=f"[DIR/{FILE}]")
    add_flags(parser)
    arguments = parser.parse_args()
    target = arguments.output or arguments.path / FILE
    return write_of(load(arguments.path), target, arguments.run, arguments.batches)


if __name__ == "__main__":
    run_command(main)
