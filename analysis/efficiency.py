"""FLOPS and bandwidth efficiency of kernels.

    python -m analysis.efficiency DIR --group-by batch,nodes
    python -m analysis.efficiency DIR --method published      as the reference computed it

The corrected method (default) uses the model's kernels in profiled steps, launch by launch. It first sums
time, FLOPs and bytes over a group, then divides. Runs whose FLOPs or bytes are unknown are left out of the
rates. The published method is for PyProf tables: it uses all launches, groups them by kernel name and
averages ratios.
"""

from analysis.frames.measure import Command, fields, flag

main = Command(
    __name__, "efficiency", __doc__,
    flag("--method", choices=("corrected", "published"), default="corrected"),
    fields("world_size", "run", default="batch,nodes; of traces: run"),
)  # fmt: skip
