"""What costs a point its scaling? The ranks that the others wait for, and the parts of the loss without them.

A late rank costs a data-parallel job its whole lateness in each batch. In the anatomy that shows in two
places: the others wait for it, and its own batch holds what makes it late. Both are taken off the parts, so
that each percentage point has one cause.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from analysis.display.metrics import Rows
from analysis.measures.anatomy.divide import finest
from analysis.measures.lateness.lateness import BY_COLLECTIVES, CHANCE, STRAGGLER, TOO_FEW
from analysis.measures.lateness.stragglers import is_late
from analysis.measures.scaling.certainty import LEAST_PCT

# A rank that is named in no more than this share of the runs is not what slows the job.
LATE_RUNS_SHARE = 0.5
LATE_RANKS = "late ranks"  # the cause that is no part of a batch

# The cause of a rank's lateness -> the part of its own batch in which it shows.
_OWN_PART = {"GPU": "compute", "processor": "compute", "loader": "exposed_loader", "host": "idle_host_bound"}


@dataclass(frozen=True)
class Late:
    """The ranks for which the others wait repeatedly.

    Attributes:
        ranks: those of one cause; the one that is waited for longest comes first.
        node: of the first one; empty if that differs between runs.
        ms, share_pct: how long the others wait for the first, a batch; in percent of the batch.
        by_collectives: whether collectives told that; else stages did, and it is a lower bound.
        runs, of: in how many runs it is named, of those that tell.
        cause: as analysis.stragglers has it.
        others: ranks that are late for other causes, each with its own.
    """

    ranks: tuple[int, ...]
    node: str
    ms: float
    share_pct: float
    by_collectives: bool
    runs: int
    of: int
    cause: str
    others: tuple[tuple[int, str], ...] = ()


def late_ranks(rows: Rows) -> Late | None:
    """The ranks that are named in most of the runs that tell; None if there are none.

    Collectives tell by how much a rank is late, stages a lower bound of it, since they do not show a slow
    backward pass: a rank that stages do not name may be late, one that they name is. So either may name it,
    and where collectives were recorded they say by how much.

    Args:
        rows: of :mod:`analysis.stragglers`, of runs of one configuration and world size, with their ``run``.
    """
    recorded = [row for row in rows if row.get("told_by") == BY_COLLECTIVES]
    often = _often(recorded) or _often([row for row in rows if row.get("told_by") != BY_COLLECTIVES])
    measured = {
        rank: [row for row in recorded if row["rank"] == rank] or named for rank, named in often.items()
    }
    share_pct = {
        rank: float(np.median([100 * row["mean_lateness_ms"] / row["step_ms"] for row in of]))
        for rank, of in measured.items()
    }
    ranks = sorted(
        (rank for rank in often if share_pct[rank] >= LEAST_PCT), key=lambda rank: -share_pct[rank]
    )
    if not ranks:
        return None
    first = ranks[0]
    causes = {rank: _most_often([row["cause"] for row in often[rank]]) for rank in ranks}
    nodes = {row["node"] for row in often[first]}
    told_by = often[first][0].get("told_by")
    return Late(
        tuple(rank for rank in ranks if causes[rank] == causes[first]),
        (nodes.pop() or "") if len(nodes) == 1 else "",
        float(np.median([row["mean_lateness_ms"] for row in measured[first]])),
        share_pct[first],
        all(row.get("told_by") == BY_COLLECTIVES for row in measured[first]),
        len(often[first]),
        len({row["run"] for row in rows if row.get("told_by") == told_by}),
        causes[first],
        tuple((rank, causes[rank]) for rank in ranks if causes[rank] != causes[first]),
    )


def _most_often(causes: Sequence[str]) -> str:
    return max(causes, key=causes.count)


def suspected(rows: Rows) -> tuple[list[int], float]:
    """The ranks that came late by enough in a traced run, and may have done so by chance; the longest, ms.

    Args:
        rows: of :func:`late_ranks`.
    """
    unsure = [
        row for row in rows
        if row.get("told_by") == BY_COLLECTIVES and row["verdict"] in (CHANCE, TOO_FEW)
        and is_late(row)
    ]  # fmt: skip
    longest = max((row["mean_lateness_ms"] for row in unsure), default=0.0)
    return sorted({row["rank"] for row in unsure}), longest


def _often(rows: Rows) -> dict[int, Rows]:
    """The rows in which a rank is named, of ranks that are named in most of the rows' runs."""
    runs = {row["run"] for row in rows}
    named: dict[int, Rows] = {}
    for row in rows:
        if row["verdict"] == STRAGGLER:
            named.setdefault(row["rank"], []).append(row)
    return {rank: of for rank, of in named.items() if len(of) > LATE_RUNS_SHARE * len(runs)}


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
    causes = [Cause(LATE_RANKS, late.share_pct)] if late else []
    if late:
        parts = _without(parts, late, int(row["world_size"]))
    causes += [Cause(name, cost) for name, cost in parts.items()]
    return sorted(causes, key=lambda cause: -cause.cost_pct)


def lowest_of(row: Mapping[str, Any], cause: Cause) -> float:
    """The lower end of the interval of a cause's cost, percentage points; infinite where it has none.

    What late ranks take off a part moves its interval as it moves the part.
    """
    part, low = (row.get(f"loss_{cause.kind}_pct{end}") for end in ("", "_low"))
    if not isinstance(part, int | float) or not isinstance(low, int | float) or np.isnan(low):
        return np.inf
    return float(low + cause.cost_pct - part)


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


# --- what a simulation says of a part ---------------------------------------------------------------------

# Links of twice the bandwidth take off half of what bandwidth costs; where they take off less than this share
# of the transfer, it is latency that costs.
_SHARE_OF_BANDWIDTH = 0.25


def gains(row: Mapping[str, Any], predicted: Rows, fields: Sequence[str]) -> dict[str, dict[str, Any]]:
    """What-if -> its row, of a point's configuration on the fewest ranks that were simulated.

    Where the curve is the better founded prediction, the simulation advises nothing.

    Args:
        fields: those that make a configuration.
    """
    own = [
        one
        for one in predicted
        if one.get("what_if") and one.get("gain_pct") is not None and one.get("believed", True)
        and all(str(one.get(name)) == str(row.get(name)) for name in fields)
    ]  # fmt: skip
    fewest = min((one["world_size"] for one in own), default=0)
    return {one["what_if"]: one for one in own if one["world_size"] == fewest}


def limit_of_transfer(cost_pct: float, gained: Mapping[str, Mapping[str, Any]]) -> str:
    """``bandwidth`` or ``latency`` of the network; empty: no simulation tells them apart.

    Args:
        cost_pct: of the transfer, in percent of a batch.
        gained: of :func:`gains`.
    """
    faster = next((row for name, row in gained.items() if name.partition("=")[0] == "network"), None)
    if faster is None or faster.get("alpha_us") is None:
        return ""
    if faster["gain_pct"] >= _SHARE_OF_BANDWIDTH * cost_pct:
        return "bandwidth"
    return "latency" if faster["alpha_us"] > 0 else ""
