"""What is found in several traces, each thing in one line: counts that differ as a range, ranks as a list.

rank0.json: 12 of 90 kernels have no recorded launch   ->   each of ranks 0-1: 12 to 13 of 90 kernels have ...
rank1.json: 13 of 90 kernels have no recorded launch
"""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from profiling.wording import first_of, how_many, which_ranks

_MOST_JOBS = 2  # named in a line
_NUMBER = re.compile(r"(?<![^\s(])\d+(?:[.,]\d+)*(?=$|[\s,;:)])")  # not one in a name: step_10, Step#3
_OF_RANK = re.compile(r"rank (\d+): ")
_OF_A_FILE = re.compile(r"(.+), rank (\d+)")  # one of several ranks in a file
# What a count changes in the words beside it: has, have; event, events; matches, match.
_VERBS = {"has": "have", "is": "are", "was": "were", "does": "do"}
_ENDING = re.compile(r"e?s?$")


@dataclass(frozen=True)
class _Said:
    """A finding: of which file and rank it is said (where that is known), and the text."""

    whole: str
    file: str
    rank: int | None
    text: str


def together(findings: Iterable[tuple[str, int | None]]) -> list[str]:
    """Findings ``file: sentence``, each with the rank of its file (None: unknown); alike ones in one line."""
    alike: dict[tuple[str, ...], list[_Said]] = {}
    for finding, rank in findings:
        said = _parsed(finding, rank)
        alike.setdefault(_template(said.text), []).append(said)
    return [_line(list(dict.fromkeys(group))) for group in alike.values()]


def said_once(findings: Iterable[tuple[str, str]]) -> list[str]:
    """Findings of jobs, ``(job, finding)`` each; those of several jobs once, with some of their names."""
    alike: dict[tuple[str, ...], list[tuple[str, str]]] = {}
    for job, finding in findings:
        text = _without_own_file(job, finding)
        alike.setdefault(_template(text), []).append((job, text))
    return [_line_of_jobs(group) for group in alike.values()]


def _without_own_file(job: str, finding: str) -> str:
    """What is said of the one file that a job has its name of names the job alone."""
    file, _, text = finding.partition(": ")
    return text if text and file.partition(".")[0] == job else finding


def _line_of_jobs(group: Sequence[tuple[str, str]]) -> str:
    jobs, texts = (list(dict.fromkeys(column)) for column in zip(*group, strict=True))
    each = "each of " if len(texts) > 1 else ""
    return f"{each}{_of_jobs(jobs)}: {_joined(texts)}"


def _of_jobs(names: Sequence[str]) -> str:
    """``a``; ``2 jobs (a, b)``; ``3 jobs (a, b, ...)``."""
    more = ", ..." if len(names) > _MOST_JOBS else ""
    some = ", ".join(names[:_MOST_JOBS])
    return some if len(names) == 1 else f"{how_many(len(names), 'job')} ({some}{more})"


def _parsed(finding: str, rank: int | None) -> _Said:
    file, _, text = finding.partition(": ")
    if not text:
        file, text = "", finding
    elif named := _OF_A_FILE.fullmatch(file):
        file, rank = named[1], int(named[2])
    elif own := _OF_RANK.match(text):
        text, rank = text[own.end() :], int(own[1])
    return _Said(finding, file, rank, text)


def _template(text: str) -> tuple[str, ...]:
    """The words of a text without its numbers, and as they are beside any number."""
    words = _NUMBER.sub("#", text).split()
    return tuple(_ENDING.sub("", _VERBS.get(word, word)) for word in words)


def _line(group: Sequence[_Said]) -> str:
    if len(group) == 1:
        return group[0].whole
    text, files = _joined([one.text for one in group]), {one.file for one in group}
    ranks = {one.rank for one in group if one.rank is not None}
    # What an answer counts is of all ranks together; a count here is of one.
    each = "each of " if _NUMBER.search(text) else ""
    if len(ranks) == len(group):
        beside = f"{files.pop()}: " if len(files) == 1 else ""
        return f"{beside}{each}{which_ranks(ranks)}: {text}"
    if files == {""}:
        return text
    named = first_of(list(dict.fromkeys(one.file for one in group)))
    return f"{each}{how_many(len(group), 'trace')} ({named}): {text}"


def _joined(texts: Sequence[str]) -> str:
    """Texts of one template as one, with the range of each number."""
    numbers = [[match[0] for match in _NUMBER.finditer(text)] for text in texts]
    spans = iter([_span(column) for column in zip(*numbers, strict=True)])
    # The words are those of the largest count: 1 event has, 5 events have.
    most = max(range(len(texts)), key=lambda place: [_value(number) for number in numbers[place]])
    return _NUMBER.sub(lambda _: next(spans), texts[most])


def _span(numbers: Sequence[str]) -> str:
    low, high = min(numbers, key=_value), max(numbers, key=_value)
    return low if _value(low) == _value(high) else f"{low} to {high}"


def _value(number: str) -> float:
    return float(number.replace(",", ""))
