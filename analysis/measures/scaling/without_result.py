"""On which numbers of ranks did all runs fail, or most of those of one configuration? It is said first.

What is said of the most ranks is else taken for what the sweep's most ranks give, and of the configurations
that have results for what the sweep compares.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from analysis.display.left_out import counted, in_counts, missing
from analysis.display.metrics import telling
from analysis.display.naming import in_words, together
from analysis.results.log import Failure
from analysis.results.study import Study
from jobs import store
from jobs.run_fields import FACTOR, fields_of
from jobs.run_id import RunId, parse_id
from profiling.errors import UserError
from profiling.wording import how_many, in_a_row, noun

_FAILED = ("failed", "unusable")
_NOT_OF_CONFIGURATION = fields_of("size", "length", "observation")


@dataclass(frozen=True)
class NoResult:
    """What has no result, in a sentence; why the first of its runs failed; and the log of that, or ""."""

    what: str
    reason: str
    log: str

    @property
    def text(self) -> str:
        return f"{self.what} {self.reason}"

    @property
    def with_log(self) -> str:
        return f"{self.text} Log: {self.log}" if self.log else self.text


@dataclass
class _Configuration:
    """The runs of a configuration, on any number of ranks.

    Attributes:
        sizes: numbers of ranks of which it has a result.
        missing: runs that do not count, with their numbers of ranks.
        runs: how many it has in all.
    """

    fields: Mapping[str, Any]
    sizes: set[int] = field(default_factory=set)
    missing: list[tuple[int, Failure]] = field(default_factory=list)
    runs: int = 0

    @property
    def failed_on(self) -> set[int]:
        """Numbers of ranks without a result of which runs failed."""
        return {size for size, one in self.missing if one.kind in _FAILED} - self.sizes

    def fails_mostly(self, sizes: set[int]) -> bool:
        """Whether it has no result on several and most of its numbers of ranks, of such ``sizes``."""
        tried = (self.sizes | {size for size, _ in self.missing}) & sizes
        failed = len(self.failed_on & tried)
        return failed > 1 and 2 * failed > len(tried)


def no_result(study: Study) -> list[NoResult]:
    """What has no result, though runs of it were started; nothing if all has.

    ``No result on 8 ranks: 4 runs failed.`` and, of configurations that fail mostly where others do not,
    ``No result with dali-gpu on 2 and 4 ranks: of its 6 runs, 4 failed.``
    """
    if not any(one.kind in _FAILED for one in study.failed):
        return []
    configurations = _configurations(study)
    there = {source.world_size for source in study.of_kind("run")}
    sized = [run for one in configurations for run in one.missing]
    failed = {size for size, one in sized if one.kind in _FAILED} - there
    answer = []
    if failed:
        of = [one for size, one in sized if size in failed]
        answer.append(_of(study, f"No result on {_ranks(failed)}: {in_counts(of)}.", of))
    others = {size for one in configurations for size in one.sizes}
    if some := [one for one in configurations if one.fails_mostly(others)]:
        runs = [run for one in some for size, run in one.missing if size in one.failed_on & others]
        answer.append(_of(study, _said(some, others, _called(configurations)), runs))
    return answer


def _said(some: Sequence[_Configuration], others: set[int], called: Callable[[_Configuration], str]) -> str:
    """That configurations have no result on numbers of ranks on which others have one."""
    runs = how_many(sum(one.runs for one in some), "run")
    counts = counted([run for one in some for _, run in one.missing])
    sizes = {frozenset(one.failed_on & others) for one in some}
    where = _ranks(next(iter(sizes))) if len(sizes) == 1 else "most numbers of ranks"
    if len(some) == 1:
        return f"No result with {called(some[0])} on {where}: of its {runs}, {counts}."
    names = together([called(one) for one in some])
    return f"No result with {len(some)} configurations ({names}) on {where}: of their {runs}, {counts}."


def _called(every: Sequence[_Configuration]) -> Callable[[_Configuration], str]:
    """What calls a configuration by the fields that tell it from others."""
    fields = dict.fromkeys(name for one in every for name in one.fields)
    names = telling([one.fields for one in every], fields)
    return lambda one: in_words(one.fields, names) or f"default {in_a_row(names)}"


def _of(study: Study, what: str, runs: Sequence[Failure]) -> NoResult:
    failed = [one for one in runs if one.kind in _FAILED]
    of_first = " of the first failure" if len({one.reason for one in failed}) > 1 else ""
    reason = failed[0].reason.partition("\n")[0].rstrip(".")
    log: Path = study.path / failed[0].point / store.LOG
    return NoResult(what, f"Reason{of_first}: {reason}.", str(log) if log.is_file() else "")


def _ranks(sizes: Iterable[int]) -> str:
    """``8 ranks``, ``2 and 4 ranks``."""
    ordered = sorted(sizes)
    return f"{in_a_row(ordered)} {noun(ordered[0] if len(ordered) == 1 else len(ordered), 'rank')}"


def _configurations(study: Study) -> list[_Configuration]:
    """The configurations of all runs, as their ids say them; the name of a run by hand may be none."""
    found: dict[tuple, _Configuration] = {}

    def of(id: RunId) -> _Configuration:
        own = {f"{FACTOR}{name}": value for name, value in (id.factors or {}).items()}
        fields = {name: id.fields[name] for name in id.fields if name not in _NOT_OF_CONFIGURATION} | own
        return found.setdefault(tuple(sorted(map(str, fields.items()))), _Configuration(fields))

    for source in study.of_kind("run"):
        if id := _id_of(source.id):
            of(id).sizes.add(id.run.world_size)
            of(id).runs += 1
    for failure in missing(study.failed):
        if id := _id_of(failure.point):
            of(id).missing.append((id.run.world_size, failure))
            of(id).runs += 1
    return list(found.values())


def _id_of(name: str) -> RunId | None:
    try:
        return parse_id(name)
    except UserError:
        return None
