"""What costs a point its scaling? The ranks that the others wait for, and the parts of the loss without them.

A late rank costs a data-parallel job its whole lateness in each batch. In the anatomy that shows in two
places: the others wait for it, and its own batch holds what makes it late. Both are taken off the parts, so
that each percentage point has one cause.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from analysis.divide import finest
from analysis.late_verdicts import STRAGGLER, TOO_FEW
from analysis.lateness import BY_COLLECTIVES
from analysis.terminal import Rows

# A rank that is named in no more than this share of the runs is not what slows the job.
LATE_RUNS_SHARE = 0.5
LATE_RANKS = "late ranks"  # the cause that is no part of a batch

# The cause of a rank's lateness -> the part of its own batch in which it shows.
_OWN_PART = {"GPU": "compute", "processor": "compute", "loader": "exposed_loader", "host": "idle_host_bound"}


@dataclass(frozen=True)
class Late:
    """The ranks for which the others wait again and again.

    Attributes:
        ranks: the one that is waited for longest comes first.
        node: of the first one; empty if that differs between runs.
        ms, share_pct: how long the others wait for the first, a batch; in percent of the batch.
        by_collectives: whether collectives told that; else stages did, and it is a lower bound.
        runs, of: in how many runs it is named, of those that tell.
        cause: as analysis.stragglers has it.
        world_size: of the runs.
    """

    ranks: tuple[int, ...]
    node: str
    ms: float
    share_pct: float
    by_collectives: bool
    runs: int
    of: int
    cause: str


def late_ranks(rows: Rows) -> Late | None:
    """The ranks that are named in most of the runs that tell; None if there are none.

    Where collectives were recorded they tell both who is late and by how much: stages do not show a slow
    backward pass. Stages tell where too few batches were recorded to say that a lateness repeats.

    Args:
        rows: of :mod:`analysis.stragglers`, of runs of one configuration and world size, with their ``id``.
    """
    telling = _telling(rows)
    runs = {row["id"] for row in telling}
    named: dict[int, Rows] = {}
    for row in telling:
        if row["verdict"] == STRAGGLER:
            named.setdefault(row["rank"], []).append(row)
    often = {rank: of for rank, of in named.items() if len(of) > LATE_RUNS_SHARE * len(runs)}
    if not often:
        return None
    measured = {rank: _measured(rows, rank) for rank in often}

    def share_pct(rank: int) -> float:
        return float(np.median([100 * row["mean_lateness_ms"] / row["batch_ms"] for row in measured[rank]]))

    ranks = sorted(often, key=lambda rank: -share_pct(rank))
    first = ranks[0]
    causes = [row["cause"] for row in often[first]]
    nodes = {row["node"] for row in often[first]}
    return Late(
        tuple(ranks),
        nodes.pop() if len(nodes) == 1 else "",
        float(np.median([row["mean_lateness_ms"] for row in measured[first]])),
        share_pct(first),
        all(row.get("told_by") == BY_COLLECTIVES for row in measured[first]),
        len(often[first]),
        len(runs),
        max(causes, key=causes.count),
    )


def _telling(rows: Rows) -> Rows:
    """The rows of runs by whose collectives one can tell; of all runs, if there is no such run."""
    recorded = [row for row in rows if row.get("told_by") == BY_COLLECTIVES]
    short = {row["id"] for row in recorded if row["verdict"] == TOO_FEW}
    return [row for row in recorded if row["id"] not in short] or rows


def _measured(rows: Rows, rank: int) -> Rows:
    """A rank's rows by collectives, else its rows in which it is named."""
    own = [row for row in rows if row["rank"] == rank]
    recorded = [row for row in own if row.get("told_by") == BY_COLLECTIVES]
    return recorded or [row for row in own if row["verdict"] == STRAGGLER]


@dataclass(frozen=True)
class Cause:
    """What costs scaling: :data:`LATE_RANKS` or a part of a batch, in percentage points of efficiency."""

    kind: str
    cost_pct: float


def of_loss(row: Mapping[str, Any], late: Late | None) -> list[Cause]:
    """The causes of a point's loss, the one that costs most first.

    Args:
        row: of :mod:`analysis.scaled`, whose parts of the loss are known.
        late: the ranks that are late there.
    """
    parts = finest({name.removeprefix("loss_").removesuffix("_pct"): _number(value)
                    for name, value in row.items() if name.startswith("loss_")})  # fmt: skip
    found = [Cause(LATE_RANKS, late.share_pct)] if late else []
    if late:
        parts = _without(parts, late, int(row["world_size"]))
    found += [Cause(name, cost) for name, cost in parts.items()]
    return sorted(found, key=lambda cause: -cause.cost_pct)


def _without(parts: Mapping[str, float], late: Late, ranks: int) -> dict[str, float]:
    """The parts without what the late ranks cost: the others wait for it, their own batch holds it."""
    own = len(late.ranks) / ranks
    waits = "exposed_wait" if "exposed_wait" in parts else "exposed_communication"
    # Of a node all ranks are late alike, by what is longest on them.
    longest = max((name for name in parts if name != waits), key=lambda name: parts[name])
    part = _OWN_PART.get(late.cause, longest)
    part = part if part in parts else "idle" if "idle" in parts else longest
    return {
        name: cost - late.share_pct * ((1 - own) * (name == waits) + own * (name == part))
        for name, cost in parts.items()
    }


def _number(value: Any) -> float | None:
    return float(value) if isinstance(value, int | float) else None


# --- what sending gradients is limited by ----------------------------------------------------------------

# What-if -> what it shows to limit the transfer of gradients, if it gains.
_LIMITS = {"fp16-gradients": "bandwidth", "network": "bandwidth", "bucket-mb": "latency"}


def gains(row: Mapping[str, Any], predicted: Rows, fields: Sequence[str]) -> dict[str, Any]:
    """What-if -> its row, of a point's configuration on the fewest ranks that were simulated.

    Args:
        fields: those that make a configuration.
    """
    own = [
        one
        for one in predicted
        if one.get("what_if") and one.get("gain_pct") is not None
        and all(str(one.get(name)) == str(row.get(name)) for name in fields)
    ]  # fmt: skip
    fewest = min((one["ranks"] for one in own), default=0)
    return {one["what_if"]: one for one in own if one["ranks"] == fewest}


def limit_of_transfer(gained: Mapping[str, Any], least_pct: float) -> str:
    """``bandwidth`` or ``latency``, by which change would gain most; empty: none gains ``least_pct``."""
    of = {name: row["gain_pct"] for name, row in gained.items() if name.partition("=")[0] in _LIMITS}
    best = max(of, key=lambda name: of[name], default="")
    return _LIMITS[best.partition("=")[0]] if best and of[best] >= least_pct else ""
