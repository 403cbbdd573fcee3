"""Which collectives are of process groups of one shape? Those of different shapes are not mixed."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from analysis.results.matching import Calls
from profiling.attribution.messages import ONE_OF_SEVERAL

_SHOWN, _SHOWN_RANKS = 3, 8  # groups, and ranks of a group, that are named

# A process group's ranks, and those of all groups of one shape.
Members = tuple[int, ...]
Shape = tuple[Members, ...]


def families(ranks: Sequence[Calls]) -> list[tuple[str, Shape, list[np.ndarray]]]:
    """Kinds of collectives by the shape of their groups, and of each rank which of its calls are of it.

    A group that is not recorded is of all ranks; of several that are not recorded nothing is known: no shape.
    """
    members = _members(ranks)
    shapes: dict[tuple[int, ...], list[Members]] = {}
    for group in sorted(set(members.values()), key=lambda one: (len(one), one)):
        shapes.setdefault(tuple(rank - group[0] for rank in group), []).append(group)
    shape_of = {
        name: tuple(shapes[tuple(rank - group[0] for rank in group)]) if group else ()
        for name, group in members.items()
    }
    families: dict[tuple[str, Shape], None] = {}
    for one in ranks:
        pairs = dict.fromkeys(zip(one.kind.tolist(), one.group.tolist(), strict=True))
        families |= {(kind, shape_of[name]): None for kind, name in pairs}
    found = []
    for kind, shape in families:
        names = [name for name in members if shape_of[name] == shape]
        found.append((kind, shape, [_of_shape(one, kind, names) for one in ranks]))
    return found


def _of_shape(calls: Calls, kind: str, groups: Sequence[str]) -> np.ndarray:
    """Which of a rank's calls are of this kind, and of one of these groups."""
    mine = set(calls.group.tolist()).intersection(groups)
    return (calls.kind == kind) & np.logical_or.reduce(
        [calls.group == name for name in mine] or [np.zeros(len(calls.kind), dtype=bool)]
    )


def _members(ranks: Sequence[Calls]) -> dict[str, Members]:
    """The ranks that made collectives in each process group, by its name."""
    found: dict[str, list[int]] = {}
    for one in ranks:
        for name in dict.fromkeys(one.group.tolist()):
            found.setdefault(name, []).append(one.rank)
    sizes = {name: int(size) for one in ranks for name, size in zip(one.group, one.group_size, strict=True)}
    known: dict[str, Members] = {"": tuple(one.rank for one in ranks), ONE_OF_SEVERAL: ()}
    # More ranks than it has: several groups of one size, whose names are not recorded.
    known |= {name: () for name, members in found.items() if 0 < sizes[name] < len(members)}
    return {name: known.get(name, tuple(members)) for name, members in found.items()}


def recorded_size(ranks: Sequence[Calls], masks: Sequence[np.ndarray]) -> int:
    """How many ranks the groups of a family have, as was recorded; 0: it was not."""
    return int(max(one.group_size[mask].max(initial=0) for one, mask in zip(ranks, masks, strict=True)))


def groups_of(shape: Shape) -> dict[int, Shape]:
    """The groups that each rank is in."""
    found: dict[int, list[Members]] = {}
    for group in shape:
        for rank in group:
            found.setdefault(rank, []).append(group)
    return {rank: tuple(groups) for rank, groups in found.items()}


def described(shape: Shape) -> dict[str, Any]:
    """Columns of a row: how many ranks a group has, how many groups there are, and which."""
    if not shape:
        return {"group_size": None, "groups": None, "group_ranks": None}
    shown = [_text(group) for group in shape[:_SHOWN]] + ["..."] * (len(shape) > _SHOWN)
    return {"group_size": len(shape[0]), "groups": len(shape), "group_ranks": " | ".join(shown)}


def _text(group: Members) -> str:
    """Ranks in words: ``0-7``, ``0,2,4``."""
    if len(group) > 2 and group == tuple(range(group[0], group[-1] + 1)):
        return f"{group[0]}-{group[-1]}"
    return ",".join(map(str, group[:_SHOWN_RANKS])) + ",..." * (len(group) > _SHOWN_RANKS)
