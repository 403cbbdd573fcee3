"""Time, bytes and bandwidth of collectives.

    python -m analysis.communication DIR                 profiled runs, or TAU's tables
    python -m analysis.communication DIR --by rank

One row per run and kind of collective: mean per step and rank, over the profiled steps of all ranks.
Steps without any recorded kernel are left out; a finding counts them. If a job has several process groups,
groups with the same number of ranks and spacing share a row.

Collectives are matched across ranks by their order within a process group. Transfer and wait cannot be
separated if only some ranks of a group were recorded, or if there are several groups and the recording does
not say which group a collective belongs to; a finding says so.
"""

from analysis.frames.measure import Command, flag

main = Command(
    __name__, "communication", __doc__,
    flag("--by", choices=("run", "rank"), default="run", help="one row per run, or per rank of a run [run]"),
)  # fmt: skip
