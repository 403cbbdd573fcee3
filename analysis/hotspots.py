"""The kernels that take the most time, and what limits each, from a timed run and one that read counters.

    python -m jobs.hotspots CONFIG --top 5      starts both runs, and prints this
    python -m analysis.hotspots DIR --top 5     prints it again

DIR holds a run under the torch profiler and, if counters could be read, one of the same configuration under
ncu, nvprof or vtune. With several configurations, --run selects one. VTune measures functions, not operators:
functions have rows of their own (counters: vtune).
"""

from analysis.frames.measure import Command, flag, top

main = Command(
    __name__, "hotspots", __doc__,
    top("kernels [5]", default=5),
    flag("--run", metavar="ID", help="the timed run to use, if there are several configurations"),
)  # fmt: skip
