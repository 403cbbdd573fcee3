"""Plan a training: time, node-hours and energy on each number of nodes.

    python -m analysis.plan DIR --images 1.28e6x90                    90 epochs of ImageNet
    python -m analysis.plan DIR --images 1.28e6x90 --within 24h       also which choices end in 24 hours
    python -m analysis.plan DIR --tokens 3e11 --ranks 16,32,64        tokens; more numbers of ranks

One row per configuration and number of ranks: the measured ones, then predictions (analysis.predict). For
your own program, images (or tokens) are samples. The cheapest choice has the fewest node-hours of those whose
whole range ends in time. analysis.report --images draws a plan.
"""

from analysis.frames.measure import PLAN, RANKS, Command, flag

main = Command(
    __name__, "plan", __doc__,
    *(flag(name, **settings) for name, settings in PLAN.items()),
    RANKS,
    module="analysis.prediction.plan",
)  # fmt: skip
