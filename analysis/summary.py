"""Summarize results in about ten lines: how long a step is, how it scales, what is lost and why, what to try.

    python -m analysis.summary DIR
    python -m analysis.summary DIR --short          without advice
    python -m analysis.summary DIR --format json    the findings, in the same order

The report begins with the same findings. A bar shows what a part costs, in percent of a step.
"""

from analysis.frames.measure import Command, flag

main = Command(
    __name__, "summary", __doc__,
    flag("--short", action="store_true", help="only the first findings, without advice"),
    module="analysis.diagnosis", newest=True,
)  # fmt: skip
