"""Lateness of ranks, stragglers and their causes.

    python -m analysis.stragglers DIR                   one row per rank of each run of several ranks
    python -m analysis.stragglers DIR --by step         one row per rank and step

If collectives were recorded, lateness is measured from these; without them it comes from the stages of steps,
which do not show slow backward passes. Where no steps are known, each collective of a rank counts as one. A
rank is late in a step if the others (their median) waited for it for 2 % of the step or more. A slow rank is
not late if no other waited.
"""

from analysis.frames.measure import Command, flag

main = Command(
    __name__, "stragglers", __doc__,
    flag("--by", choices=("rank", "step"), default="rank", help="one row per rank, or rank and step [rank]"),
)  # fmt: skip
