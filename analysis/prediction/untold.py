"""What cannot be predicted, and why? What holds of several configurations is one line that names them."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from analysis.display.metrics import telling
from analysis.display.naming import in_words, together
from analysis.display.numbers import digits
from profiling.wording import in_a_row

# A range whose ends are further apart than this factor tells nothing.
WIDEST = 3.0

NEITHER, NO_CURVE, NOT_SIMULATED = "no prediction", "no curve", "not simulated"


@dataclass(frozen=True)
class Possible:
    """The images/s that are possible on so many ranks; ``high`` None: no upper limit."""

    ranks: int
    low: float
    high: float | None

    @property
    def factor(self) -> float:
        """How far its ends are apart."""
        return np.inf if self.high is None else self.high / self.low

    def __str__(self) -> str:
        low = digits(self.low, 3)
        return f"{low} images/s or more" if self.high is None else f"{low} to {digits(self.high, 3)} images/s"


@dataclass(frozen=True)
class Reason:
    """Why something of a configuration is not predicted.

    Attributes:
        of: what the configuration is called; empty: it is the only one.
        why: in words; of a range that is too wide: what it is made from.
        possible: that range.
        remedy: what would narrow it.
    """

    of: str
    why: str
    possible: Possible | None = None
    remedy: str = ""


def too_wide(of: str, row: Mapping[str, Any], made_from: str, remedy: str) -> Reason | None:
    """The reason that a row is not shown; None: its range tells something."""
    possible = Possible(row["world_size"], row["images_per_s_low"], row["images_per_s_high"])
    return None if possible.factor <= WIDEST else Reason(of, made_from, possible, remedy)


class Named(Protocol):
    """A configuration that is called by fields."""

    @property
    def named(self) -> Mapping[str, Any]: ...


def names_of(configurations: Sequence[Named]) -> list[str]:
    """What each configuration is called, by the fields that tell it from the others."""
    rows = [one.named for one in configurations]
    differing = telling(rows, dict.fromkeys(name for row in rows for name in row))
    return [in_words(row, differing) for row in rows]


def lines(reasons: Iterable[Reason], names: Collection[str]) -> list[str]:
    """The reasons, each once, with the configurations that it is of where it is not of all.

    Args:
        names: what all configurations are called.
    """
    alike: dict[tuple[str, str, tuple[int, ...]], dict[str, Possible | None]] = {}
    for (of, why, remedy), possible in _by_configuration(reasons).items():
        ranks = tuple(one.ranks for one in possible)
        alike.setdefault((why, remedy, ranks), {})[of] = possible[0] if possible else None
    answer = []
    for (why, remedy, ranks), of_them in alike.items():
        text = _text(why, remedy, ranks, of_them) if ranks else why
        answer.append(text if set(of_them) >= set(names) else f"{together(list(of_them))}: {text}")
    return answer


def _by_configuration(reasons: Iterable[Reason]) -> dict[tuple[str, str, str], list[Possible]]:
    """Of each configuration, and reason: the ranges that are too wide; none where it is another reason."""
    answer: dict[tuple[str, str, str], list[Possible]] = {}
    for one in reasons:
        ranges = answer.setdefault((one.of, one.why, one.remedy), [])
        ranges += [one.possible] if one.possible else []
    return answer


def _text(why: str, remedy: str, ranks: Sequence[int], of: Mapping[str, Possible | None]) -> str:
    """Ranges that are too wide in words; of several the widest stands for all."""
    widest = max(((one, name) for name, one in of.items() if one), key=lambda pair: pair[0].factor)
    one, name = widest
    on = f" on {one.ranks}" if len(ranks) > 1 else ""
    whose = f"{name}: " if len(of) > 1 else ""
    return (
        f"throughput on {in_a_row(ranks)} ranks cannot be predicted from {why} "
        f"({whose}{one} is possible{on}): {remedy}"
    )


def of_both(
    curves: Sequence[Reason],
    simulations: Sequence[Reason],
    simulated: Collection[str],
    names: Collection[str],
) -> list[str]:
    """Why configurations have no prediction, no curve or no simulation, in lines.

    Args:
        simulated: the configurations of which a simulation predicts more ranks; of the others, what has no
            curve has no prediction.
        names: what all configurations are called.
    """
    without_curve, not_simulated = ({_what(one) for one in some} for some in (curves, simulations))
    kinds: dict[str, list[Reason]] = {NEITHER: [], NO_CURVE: [], NOT_SIMULATED: []}
    for one in curves:
        kinds[NEITHER if _what(one) in not_simulated or one.of not in simulated else NO_CURVE].append(one)
    kinds[NOT_SIMULATED] = [one for one in simulations if _what(one) not in without_curve]
    return [f"{kind}: {line}" for kind, of_kind in kinds.items() for line in lines(of_kind, names)]


def _what(reason: Reason) -> tuple[str, int | str]:
    """What is not predicted: a number of ranks of a configuration; or the reason, where it is of several."""
    return reason.of, reason.possible.ranks if reason.possible else reason.why
