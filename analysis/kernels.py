"""Time of each kernel, and how well it uses the device.

    python -m analysis.kernels DIR                               one run, a sweep, or a PyProf table
    python -m analysis.kernels DIR --by operator                 also: class, layer, direction
    python -m analysis.kernels A B --direction bprop             comparison of two runs
    python -m analysis.kernels A B --summary --format csv        the difference by kind of change
    python -m analysis.kernels A B --direction fprop --method published
    python -m analysis.kernels A --metric flops-efficiency --method published

The corrected method (default) gives times per step and rank, in profiled steps only. In a comparison each
kernel is slower, faster, called more or less often, new, gone or the same. The differences of these kinds add
up to the difference of all kernels; with the time in which kernels overlap and the time without any kernel,
they add up to the difference of the step. The published method reads PyProf tables, by kernel name, largest
first.
"""

from pathlib import Path

from analysis.frames.load import load
from analysis.frames.measure import Command, flag, levels, top
from profiling.schemas import DIRECTIONS

main = Command(
    __name__, "kernels", __doc__,
    flag(
        "other", lambda path, study: path and load(path, study.own_peaks), type=Path, metavar="B", nargs="?",
        help="a second run or table, to compare with the first",
    ),
    levels("kernel", "class", "operator", "layer", "direction"),
    flag("--direction", choices=DIRECTIONS, help="only kernels of this direction [all]"),
    flag(
        "--method", choices=("corrected", "published"), default="corrected",
        help="corrected, or as the reference study computed it [corrected]",
    ),
    flag("--metric", choices=("duration", "flops-efficiency"), default="duration", help="sort by [duration]"),
    flag("--summary", action="store_true", help="of two runs: only the sums by kind of change"),
    top("kernels of each run [all; table: 25 of one run, 5 of each of several]"),
)  # fmt: skip
