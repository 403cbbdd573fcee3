"""Which factors changed alone only at some levels of the others, because combinations were not measured?"""

import itertools
import math
from collections.abc import Mapping, Sequence
from typing import Any

from jobs.run_fields import FACTOR
from profiling.wording import how_many, in_a_row, noun, verb

_MOST_NAMED = 3  # levels of a factor, and factors


def unbalanced(
    configurations: Sequence[Mapping[str, Any]], varying: Sequence[str], unknown: Sequence[str] = ()
) -> str:
    """What a table of effects cannot show of an unbalanced design, in a line; empty: it is balanced.

    Args:
        configurations: the fields of each.
        varying: those that are not the same in all.
        unknown: what factors are called of which there is no effect.
    """
    measured = {tuple(str(one.get(name)) for name in varying) for one in configurations}
    whole = math.prod(len({levels[place] for levels in measured}) for place in range(len(varying)))
    if len(measured) == whole:
        return ""
    told = [place for place, name in enumerate(varying) if name.removeprefix(FACTOR) not in unknown]
    said = [text for place in told if (text := _compared_at(measured, varying, place))]
    more = [f"And {len(said) - _MOST_NAMED} more."] if len(said) > _MOST_NAMED else []
    return " ".join([
        f"Unbalanced design: {len(measured)} of {how_many(whole, 'combination')} of levels "
        f"{verb(len(measured), 'were')} measured.",
        *said[:_MOST_NAMED],
        *more,
    ])  # fmt: skip


def not_measured(configurations: Sequence[Mapping[str, Any]], varying: Sequence[str]) -> str:
    """The combinations of two factors' levels that no configuration has, in words."""
    missing = []
    for pair in itertools.combinations(varying, 2):
        measured = {tuple(str(one.get(name)) for name in pair) for one in configurations}
        one, other = (name.removeprefix(FACTOR) for name in pair)
        levels = (sorted(set(level), key=_by_length) for level in zip(*measured, strict=True))
        lacking = [both for both in itertools.product(*levels) if both not in measured]
        missing += [f"{one} {a} with {other} {b}" for a, b in lacking]
    more = len(missing) - _MOST_NAMED
    named = missing[:_MOST_NAMED] + ([f"{how_many(more, 'more combination')}"] if more > 0 else [])
    return f"{in_a_row(named)} {verb(len(missing), 'were')} not measured"


def overlap(shares: Sequence[float]) -> str:
    """That shares add up to more than all of the variance, in words; empty: they do not."""
    total = sum(share for share in shares if math.isfinite(share))
    if total <= 1:
        return ""
    return f"shares overlap in an unbalanced design, and add up to {100 * total:.0f} % here"


def _by_length(level: str) -> tuple[int, str]:
    return len(level), level  # 2 before 16


def _compared_at(measured: set[tuple[str, ...]], varying: Sequence[str], place: int) -> str:
    """At which levels of the others a factor changed while all others stayed; empty: at all of them."""
    levels_at: dict[tuple[str, ...], set[str]] = {}
    for levels in measured:
        levels_at.setdefault((*levels[:place], *levels[place + 1 :]), set()).add(levels[place])
    name = varying[place].removeprefix(FACTOR)
    compared = [others for others, of in levels_at.items() if len(of) > 1]
    if not compared:
        return f"{name} never changed alone: its effect rests on those of the others being additive."
    others = [*varying[:place], *varying[place + 1 :]]
    where, also = [], []
    for number, other in enumerate(others):
        at, there_are = ({one[number] for one in of} for of in (compared, levels_at))
        if at == there_are:
            continue
        called = other.removeprefix(FACTOR)
        where.append(f"{called} {_levels(at)}")
        own = {level for one, of in levels_at.items() if one[number] not in at for level in of}
        also.append(f"{called} {_levels(there_are - at)} was measured only with {name} {_levels(own)}")
    if not where:
        return ""
    return (
        f"The effect of {name} is known only at {in_a_row(where)} ({'; '.join(also)}), in % of the mean of "
        "all configurations."
    )


def _levels(levels: set[str]) -> str:
    named = sorted(levels, key=_by_length)
    more = len(named) - _MOST_NAMED
    shown = named[:_MOST_NAMED] + ([f"{more} more {noun(more, 'level')}"] if more > 0 else [])
    return in_a_row(shown)
