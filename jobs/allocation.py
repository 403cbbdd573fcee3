"""Which nodes has the batch system given us, and how are they named in its shorthand?"""

import re
import subprocess
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from profiling.errors import UserError

_TIMEOUT_S = 30.0
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
    asked: int = 0  # how many nodes there were before any was lost or left out

    def less(self, nodes: Iterable[str]) -> "Allocation":
        """The allocation without such nodes."""
        out = set(nodes)
        return replace(self, nodes=tuple(node for node in self.nodes if node not in out))

    def only(self, nodes: Sequence[str]) -> "Allocation":
        """The allocation with such of its nodes only."""
        return self.less(set(self.nodes) - set(nodes))

    def as_it_is(self) -> "Allocation":
        """The allocation less the nodes that Slurm has taken from the job since it began."""
        now = _ask_slurm(self.job)
        return self if now is None else self.only(now)


def read_allocation(environment: Mapping[str, str]) -> Allocation | None:
    """The allocation that ``environment`` describes; None outside one."""
    if "SLURM_JOB_ID" not in environment or "SLURM_JOB_NODELIST" not in environment:
        return None
    cpus = environment.get("SLURM_JOB_CPUS_PER_NODE", "1")
    nodes = tuple(expand_nodes(environment["SLURM_JOB_NODELIST"]))
    return Allocation(
        job=environment["SLURM_JOB_ID"],
        nodes=nodes,
        asked=len(nodes),
        cpus=int(re.split(r"[(,]", cpus)[0] or 1),
        restarts=int(environment.get("SLURM_RESTART_COUNT", "0")),
    )


def _ask_slurm(job: str) -> list[str] | None:
    """The nodes that a job has now; None if Slurm does not say."""
    command = ["squeue", "--noheader", f"--jobs={job}", "--format=%N"]
    try:
        answer = subprocess.run(command, capture_output=True, text=True, timeout=_TIMEOUT_S, check=True)
        return expand_nodes(answer.stdout.strip()) or None
    except (OSError, subprocess.SubprocessError, UserError):
        return None


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
