"""A timeline of all ranks of a run, for Perfetto (ui.perfetto.dev).

    python -m analysis.timeline RUN                     writes RUN/trace.pftrace.gz
    python -m analysis.timeline SWEEP --run ID --output FILE
    python -m analysis.timeline RUN --batches 40-42     some steps; needed above a million kernels

For a sweep without --run, the largest profiled run is used: most ranks, then most kernels. Each rank is a
process of the timeline (rank 3 · node · device). Its tracks are steps, their stages, ranges and marks of the
program, and the kernels of each stream (on a CPU: operators of each thread). Collectives and the loader have
tracks of their own. The critical path (analysis.critical_path) is a track of the ranks it passes through.
Kernels have class, direction, layer, operator, FLOPs and bytes. Arrows connect a collective on all ranks,
from the first rank that entered it to the last.

All ranks are on rank 0's clock, aligned by the ends of collectives; the command prints the remaining error.
A run without a profiler has only steps and stages, on the clocks of its hosts.
"""

from pathlib import Path

from analysis.display.perfetto import FILE, MOST_KERNELS
from analysis.frames.load import load
from jobs.run_fields import OUTPUT, make_parser
from profiling.errors import run_command
from profiling.tables import file_to_write


def main() -> int:
    parser = make_parser("python -m analysis.timeline", __doc__)
    parser.add_argument("path", type=Path, metavar="DIR", help="a run, or a sweep's results")
    parser.add_argument(*OUTPUT, type=file_to_write, metavar="FILE", help=f"[DIR/{FILE}]")
    parser.add_argument("--run", metavar="ID", help="run of the timeline [the largest profiled run]")
    parser.add_argument(
        "--batches", metavar="N[-M]", help=f"steps to draw [all, for up to {MOST_KERNELS:,} kernels]"
    )
    arguments = parser.parse_args()
    from analysis.measures.timeline import write_of  # imports pandas: not for the help

    target = arguments.output or arguments.path / FILE
    return write_of(load(arguments.path), target, arguments.run, arguments.batches)


if __name__ == "__main__":
    run_command(main)
