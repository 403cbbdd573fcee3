"""Divide the time of a step by what runs in it.

    python -m analysis.anatomy DIR                       one row per run: mean of its profiled steps, ms
    python -m analysis.anatomy DIR --by rank,stage       one row per rank and stage; also: step

The wall time of each profiled step of each rank is split into parts that add up to it exactly.

The two parts of idle time are empty on a CPU, which launches no kernels, and if the profiler did not record
when kernels ran. Transfer and wait are empty if not all ranks of a process group were recorded, or if they
recorded different collectives; a finding says so.
"""

from analysis.frames.measure import Command, levels

main = Command(__name__, "anatomy", __doc__, levels("rank", "step", "stage"))
