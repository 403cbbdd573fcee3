"""Plan a training: time, node-hours and energy on each number of nodes.

    python -m analysis.plan DIR --images 1.28e6x90                    90 epochs of ImageNet
    python -m analysis.plan DIR --images 1.28e6x90 --within 24h       and which choice ends in 24 hours
    python -m analysis.plan DIR --images 1.28e6x90 --ranks 16,32,64   further numbers of ranks

One row per configuration and number of ranks: the measured ones, then predictions (analysis.predict). For
your own program, images are samples. The cheapest choice has the fewest node-hours of those that end in time
over their whole range.
"""

import math

from analysis.frames.measure import Command, at_least, flag
from profiling.errors import run_command


def images(text: str) -> float:
    """The number in ``1.28e6x90``: images, times epochs."""
    return math.prod(at_least(1)(factor) for factor in text.split("x"))


def hours(text: str) -> float:
    """The number in ``24h`` or ``24``."""
    return float(at_least(0)(text.removesuffix("h")))


main = Command(
    "plan", __doc__,
    flag("--images", type=images, required=True, metavar="N[xEPOCHS]", help="images of the training"),
    flag("--within", type=hours, metavar="HOURS", help="maximum duration [unlimited]"),
    flag(
        "--ranks", default="", metavar="P,...",
        help="world sizes to predict [twice and four times the largest of each configuration]",
    ),
    module="analysis.prediction.plan",
)  # fmt: skip

if __name__ == "__main__":
    run_command(main)
