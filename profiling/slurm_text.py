"""What does Slurm mean by ``gpu[03-05,9]`` and ``2(x3),1``: which nodes, how many on each?"""

import re
from collections.abc import Iterator

from profiling.errors import UserError

_GROUP = re.compile(r"[^,\[]*(?:\[[^\]]*\][^,\[]*)*")
_COUNT = re.compile(r"(\d+)(?:\(x(\d+)\))?")


def expand_counts(text: str) -> list[int]:
    """A count for each node: ``2(x3),1`` -> 2, 2, 2, 1; none of what is no such text."""
    matches = [_COUNT.fullmatch(part) for part in text.split(",")]
    return [int(one[1]) for one in matches if one for _ in range(int(one[2] or 1))] if all(matches) else []


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
            raise UserError(f"invalid node list {text!r}; expected e.g. node[01-04,7]")
        yield match[0]
        position = match.end() + 1
        if match.end() < len(text) and text[match.end()] != ",":
            raise UserError(f"invalid node list {text!r}; expected e.g. node[01-04,7]")


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
            raise UserError(f"invalid node list {text!r}; expected e.g. node[01-04,7]")
        first, last = match[1], match[2] or match[1]
        numbers.extend(f"{number:0{len(first)}d}" for number in range(int(first), int(last) + 1))
    return numbers
