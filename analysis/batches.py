"""Step durations of each run, by stage.

    python -m analysis.batches DIR

One row per run. A step of a job ends when its slowest rank does, so the duration of a step is the maximum
over ranks.
"""

from analysis.frames.measure import Command

main = Command(__name__, "batches", __doc__, module="analysis.measures.anatomy")
