"""Is a rank's lateness its own, worth a name, and more than chance?

A rank is named (``straggler``) if the others waited for it, in the mean over the batches, for 2 % of a batch
or more, and if it was late more often than chance lets any of equal ranks be (5 % for all ranks of a run
together). Where there are several nodes of several ranks, a node whose ranks are all late is tested as one,
beside them (2.5 % for the ranks, 2.5 % for the nodes). Any other rank is not named, and its verdict says
why:

    may be chance      equal ranks are late as often
    too few steps      they hold less than four stretches that do not hang together: nothing can repeat,
                       so that a rank which is not late in them may still be a straggler
    clock              its clock says that it comes late, but the others did not wait for most of that; or the
                       ends of its collectives agree with the others' less well than it is late
    short wait         it was behind by 2 % of a batch or more, but the others waited for less than that
    no                 it was not behind
"""

from collections.abc import Sequence

import numpy as np

from analysis.measures.lateness.lateness import BY_COLLECTIVES, LATE_SHARE, Lateness
from analysis.statistics import estimates

STRAGGLER, CHANCE, TOO_FEW, SHORT_WAIT, CLOCK, NO = (
    "straggler", "may be chance", "too few steps", "short wait", "clock", "no",
)  # fmt: skip

SIGNIFICANCE = 0.05  # for all ranks of a run together
FEWEST_STRETCHES = 4  # of batches that do not hang together: less is no repetition
DRAWS = 2000
_CORRELATION_TIMES = 3.0  # a stretch lasts
_MOST_DRAWN = 4_000_000  # elements of one portion of draws: bounds memory


def judge(lateness: Lateness, nodes: Sequence[str] = ()) -> list[tuple[str, float | None]]:
    """Each rank's verdict, and the chance behind it where it was needed.

    Args:
        nodes: the node of each rank.
    """
    groups = [[rank for rank, node in enumerate(nodes) if node == name] for name in dict.fromkeys(nodes)]
    by_node = len(groups) > 1 and min(len(group) for group in groups) > 1
    level = SIGNIFICANCE / (2 if by_node else 1)
    worth = LATE_SHARE * lateness.batch_ns
    verdicts = _verdicts(lateness.late_ns, worth, level)
    ranks, steps = lateness.late_ns.shape
    not_late = NO if enough(ranks, steps, round(_shortest(steps)), level) else TOO_FEW
    for rank, mean in enumerate(lateness.late_ns.mean(axis=1)):
        if mean < worth:
            verdicts[rank] = (_behind_but_not_late(lateness, rank, worth) or not_late, None)
        elif lateness.residual_ns[rank] >= mean:
            verdicts[rank] = (CLOCK, None)
    if by_node:
        of_nodes = np.stack([lateness.late_ns[group].min(axis=0) for group in groups])
        for group, of_node in zip(groups, _verdicts(of_nodes, worth, level), strict=True):
            if of_node[0] == STRAGGLER and not any(verdicts[rank][0] == CLOCK for rank in group):
                verdicts = [of_node if rank in group else verdict for rank, verdict in enumerate(verdicts)]
    return verdicts


def _verdicts(late_ns: np.ndarray, worth: float, level: float) -> list[tuple[str, float | None]]:
    """The verdicts on any units (units, batches), ranks or nodes, by their lateness alone."""
    units, batches = late_ns.shape
    late = late_ns.mean(axis=1) >= worth
    if not late.any():
        return [(NO, None)] * units
    # One length for all that are tested: with its own, a unit that is late more often than another could be
    # the one that may be chance. Those that are not late have no say: the longest of 64 noisy estimates
    # leaves too few stretches to find anything.
    length = int(stretches(late_ns)[late].max())
    if not enough(units, batches, length, level):
        return [(TOO_FEW if one else NO, None) for one in late]
    chances = chance(late_ns >= worth, length).tolist()
    return [
        (STRAGGLER if probability <= level else CHANCE, probability) if one else (NO, None)
        for one, probability in zip(late, chances, strict=True)
    ]


def _behind_but_not_late(lateness: Lateness, rank: int, worth: float) -> str:
    """The verdict on a rank for which the others waited for less; empty: it was not behind them either."""
    behind, waited = lateness.behind_ns[rank].mean(), lateness.late_ns[rank].mean()
    if behind < worth:
        # A rank that waited for the others is not late, however badly its clock agrees with theirs.
        return "" if waited < 0 or lateness.residual_ns[rank] < worth else CLOCK
    # The ends of collectives show both: what only the clock shows is the clock's.
    by_clock = lateness.told_by == BY_COLLECTIVES and waited < behind / 2
    return CLOCK if by_clock else SHORT_WAIT


def stretches(late_ns: np.ndarray) -> np.ndarray:
    """Over how many batches each rank's lateness (ranks, batches) hangs together, in batches.

    Some correlation times of the ranks' mean, or of the rank's own if that is longer; single estimates from
    short series are too low. n^(1/3) at least, as for other block bootstraps.
    """
    own = np.array([estimates.correlation_time(values) for values in late_ns])
    wanted = np.maximum(_CORRELATION_TIMES * np.maximum(own, own.mean()), _shortest(late_ns.shape[1]))
    return np.rint(wanted).astype(int)


def _shortest(batches: int) -> float:
    """The least length of a stretch."""
    return float(batches ** (1 / 3))


def enough(units: int, batches: int, length: int, level: float = SIGNIFICANCE) -> bool:
    """Whether so many batches can show that something repeats, in stretches of ``length``."""
    count = -(-batches // length)
    return count >= FEWEST_STRETCHES and units ** (1.0 - count) <= level


def chance(late: np.ndarray, length: int, seed: int = estimates.SEED) -> np.ndarray:
    """How probable it is that *some* rank is late as often as each one is, if all ranks are alike.

    Ranks that are alike may exchange their names from one stretch of batches to the next. The names are drawn
    anew in each of many draws, and the largest count of all ranks is compared (Westfall and Young,
    *Resampling-Based Multiple Testing*, 1993: the family of ranks errs at the level, however they depend on
    each other).

    Args:
        late: which rank was late in which batch (ranks, batches).
        length: of a stretch, in batches (:func:`stretches`).

    Returns:
        Of each rank, corrected for there being several; at least 1 / (:data:`DRAWS` + 1).
    """
    count = late.sum(axis=1)
    blocks = np.add.reduceat(late, np.arange(0, late.shape[1], length), axis=1, dtype=np.int32).T
    blocks = blocks[blocks.any(axis=1)]
    if not len(blocks):
        return np.ones(len(late))
    generator = np.random.default_rng(seed)
    largest = []
    portion = max(1, _MOST_DRAWN // blocks.size)
    for first in range(0, DRAWS, portion):
        drawn = np.broadcast_to(blocks, (min(portion, DRAWS - first), *blocks.shape))
        largest.append(generator.permuted(drawn, axis=2).sum(axis=1).max(axis=1))
    as_often = (np.concatenate(largest)[None, :] >= count[:, None]).sum(axis=1)
    return (1 + as_often) / (1 + DRAWS)
