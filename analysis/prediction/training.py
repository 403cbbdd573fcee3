"""Flags of a plan: the size of a training, and the hours that it may take."""

import argparse
import math
from typing import Any

from analysis.frames.measure import at_least


def size(text: str) -> float:
    """The number in ``1.28e6x90``: samples, times epochs."""
    return math.prod(at_least(1)(factor) for factor in text.split("x"))


def hours(text: str) -> float:
    """The number in ``24h`` or ``24``."""
    return float(at_least(0)(text.removesuffix("h")))


FLAGS: dict[str, dict[str, Any]] = {
    "--images": {"type": size, "metavar": "N[xEPOCHS]", "help": "images of the training"},
    "--tokens": {"type": size, "metavar": "N[xEPOCHS]", "help": "tokens of the training"},
    "--within": {"type": hours, "metavar": "HOURS", "help": "maximum duration [unlimited]"},
}


def given(arguments: argparse.Namespace) -> dict[str, float]:
    """The flags that were given, as arguments of :func:`analysis.prediction.plan.plan`."""
    flags = {name: getattr(arguments, name) for name in ("images", "tokens", "within")}
    return {name: value for name, value in flags.items() if value is not None}
