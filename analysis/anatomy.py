"""Divide the time of a step by what runs in it.

    python -m analysis.anatomy DIR                       one row per run: mean of its profiled steps, ms
    python -m analysis.anatomy DIR --by rank,stage       one row per rank and stage; also step

The wall time of each profiled step of each rank is split into parts that sum to it exactly.

Some components can be empty. Those of idle time: on a CPU, which has no launches, and if a profiler does not
record times of kernels. Those of communication: if not all ranks of a group were recorded, or they recorded
different collectives (a note says so).
"""

from analysis.frames.measure import Command, levels
from profiling.errors import run_command

main = Command("anatomy", __doc__, levels("rank", "step", "stage"))

if __name__ == "__main__":
    run_command(main)
