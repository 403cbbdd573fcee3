"""Which nodes has the batch system given us, and how are they named in its shorthand?"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from profiling.errors import UserError

_GROUP = re.compile(r"[^,\[]*(?:\[[^\]]*\][^,\[]*)*")


@dataclass(frozen=True)
class Allocation:
    """The nodes of a job of Slurm's.

    Attributes:
        job: its id.
        nodes: the nodes' names, in the order of the allocation.
        cpus: processors of the job on its first node.
        restarts: how often the job was requeued.
    """

    job: str
    nodes: tuple[str, ...]
    cpus: int = 1
    restarts: int = 0
    excluded: frozenset[str] = field(default=frozenset())  # nodes that failed too often

    @property
    def usable(self) -> tuple[str, ...]:
        return tuple(node for node in self.nodes if node not in self.excluded)


def read_allocation(environment: Mapping[str, str]) -> Allocation | None:
    """The allocation that ``environment`` describes; None outside one."""
    if "SLURM_JOB_ID" not in environment or "SLURM_JOB_NODELIST" not in environment:
        return None
    cpus = environment.get("SLURM_JOB_CPUS_PER_NODE", "1")
    return Allocation(
        job=environment["SLURM_JOB_ID"],
        nodes=tuple(expand_nodes(environment["SLURM_JOB_NODELIST"])),
        cpus=int(re.split(r"[(,]", cpus)[0] or 1),
        restarts=int(environment.get("SLURM_RESTART_COUNT", "0")),
    )


def expand_nodes(text: str) -> list[str]:
    """The names of a node list: ``gpu[03-05,9],x1`` -> gpu03, gpu04, gpu05, gpu9, x1.

    Raises:
        UserError: it is none.
    """
    nodes: list[str] = []
    for group in _groups(text):
        nodes.extend(_expand(group, text))
    return nodes


def _groups(text: str) -> Iterator[str]:
    position = 0
    while position < len(text):
        match = _GROUP.match(text, position)
        if match is None or not match[0]:
            raise UserError(f"{text!r} is no list of nodes, such as node[01-04,7]")
        yield match[0]
        position = match.end() + 1
        if match.end() < len(text) and text[match.end()] != ",":
            raise UserError(f"{text!r} is no list of nodes, such as node[01-04,7]")


def _expand(group: str, text: str) -> list[str]:
    head, bracket, rest = group.partition("[")
    if not bracket:
        return [group]
    inside, _, tail = rest.partition("]")
    tails = _expand(tail, text)
    return [head + number + end for number in _numbers(inside, text) for end in tails]


def _numbers(inside: str, text: str) -> list[str]:
    numbers: list[str] = []
    for part in inside.split(","):
        match = re.fullmatch(r"(\d+)(?:-(\d+))?", part)
        if not match:
            raise UserError(f"{text!r} is no list of nodes, such as node[01-04,7]")
        first, last = match[1], match[2] or match[1]
        numbers.extend(f"{number:0{len(first)}d}" for number in range(int(first), int(last) + 1))
    return numbers
