"""What is known of the recording of one rank, once its file has been converted?"""

import re
from collections.abc import Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

from profiling.traced_job import TraceFacts

_RANK = re.compile(r"[_.-]?(?:rank|worker)[_.-]?\d+|^\d+$", re.IGNORECASE)
_NUMBER = re.compile(r"\d+")
_ENDINGS = re.compile(r"(\.(json|gz|gzip|csv|sqlite|sql|db|nsys-rep|xml|pt|trace|txt))+$", re.IGNORECASE)
_EPOCH_NS = 10**18  # times before it count from another moment, and say nothing of other hosts'


def without_ending(name: str) -> str:
    """The name of a file without what says its format."""
    return _ENDINGS.sub("", name) or name


@dataclass(frozen=True)
class Recorded:
    """The recording of one rank, as it was converted.

    Attributes:
        source: its file, below ``root``.
        tool: that wrote it.
        facts: what the file says of its job.
        rank: as its rows say it.
        rank_known: whether the file says its rank, or its name.
        alone: whether its file holds no other rank.
        directory: where its tables are.
        started_ns, ended_ns: of its first and last activity.
        written_ns: when its file was changed last.
        rank_folders: which parts of ``source`` are bare numbers that name ranks (:func:`with_rank_folders`).
        batches: how many; ``batches_from``, ``confidence``: see :class:`profiling.traced_job.TracedJob`.
    """

    source: Path
    root: Path
    tool: str
    facts: TraceFacts
    rank: int
    rank_known: bool
    alone: bool
    directory: Path
    started_ns: int
    ended_ns: int
    written_ns: int
    batches: int
    batches_from: str = ""
    confidence: float = 1.0
    rank_folders: tuple[int, ...] = ()

    @property
    def dated_ns(self) -> int:
        """When it began, since the epoch; 0: not known."""
        return self.started_ns if self.started_ns > _EPOCH_NS else 0

    @property
    def folder(self) -> Path:
        """Its folder below the root, without the parts that name a rank."""
        parts = enumerate(self.source.parent.parts)
        return Path(*(part for place, part in parts if not self._names_rank(place, part)))

    def _names_rank(self, place: int, part: str) -> bool:
        bare = _NUMBER.fullmatch(part) is not None
        return place in self.rank_folders if bare else _RANK.fullmatch(part) is not None

    @cached_property
    def stem(self) -> str:
        """Its file's name without the rank and the ending."""
        return _RANK.sub("", without_ending(self.source.name)).strip("_.-")


def with_rank_folders(recorded: Sequence[Recorded]) -> list[Recorded]:
    """The same, where it is told which folders with a bare number for a name are single ranks'.

    ``1``, ``2`` and ``4`` may be ranks, but also numbers of ranks or repetitions: of a rank each are those
    beside each other that hold one rank each, and no two of them the same.
    """
    inside: dict[tuple[Path, Path], dict[str, set[int]]] = {}
    for one in recorded:
        for _, above, name in _numbers_in(one):
            inside.setdefault((one.root, above), {}).setdefault(name, set()).add(one.rank)
    of_ranks = {above for above, ranks in inside.items() if _are_of_ranks(ranks)}
    return [
        replace(
            one, rank_folders=tuple(p for p, above, _ in _numbers_in(one) if (one.root, above) in of_ranks)
        )
        for one in recorded
    ]


def _numbers_in(one: Recorded) -> Iterator[tuple[int, Path, str]]:
    """Of the folders with a bare number for a name: the place in the path, the folder above, and the name."""
    parts = one.source.parent.parts
    return (
        (place, Path(*parts[:place]), part) for place, part in enumerate(parts) if _NUMBER.fullmatch(part)
    )


def _are_of_ranks(ranks: Mapping[str, AbstractSet[int]]) -> bool:
    """Whether folders with these names, and these ranks inside, are a rank's each."""
    if len(ranks) == 1:
        return all({int(name)} == there for name, there in ranks.items())
    return len(set().union(*ranks.values())) == sum(map(len, ranks.values())) == len(ranks)
