"""FLOPS and bandwidth efficiency of kernels.

    python -m analysis.efficiency DIR --group-by batch,nodes
    python -m analysis.efficiency DIR --method published      as the reference computed it

The corrected method (default) uses the model's kernels in profiled steps, launch by launch. It sums costs
over a group before it forms ratios. Rates use the runs whose FLOPs or bytes are known; they are empty if
there are none. The published method is for PyProf tables: it uses all launches, groups them by kernel name
and takes plain means of ratios.
"""

from analysis.frames.measure import Command, fields, flag
from profiling.errors import run_command

main = Command(
    "efficiency",
    __doc__,
    flag("--method", choices=("corrected", "published"), default="corrected"),
    fields("world_size", "run", default="batch,nodes; of traces: run"),
)

if __name__ == "__main__":
    run_command(main)
