"""Functions and counters that a tool recorded: TAU, VTune, nvprof, ncu, Python's cProfile.

    python -m analysis.functions PATH                a profiler's file, or a folder of results or tables
    python -m analysis.functions PATH --by rank      one row per rank; also: thread

Functions have calls, exclusive and inclusive time. Counters and events have the number, mean, minimum and
maximum of their values. PATH may be a file of cProfile (python -m cProfile -o FILE).
"""

from analysis.frames.measure import Command, levels, top
from analysis.frames.study import Study

main = Command(
    __name__, "functions", __doc__,
    levels("rank", "thread"),
    top("functions and of counters of each run [all; table: 25]"),
    load=lambda given: Study(given.path), module="analysis.measures.activities",
)  # fmt: skip
