"""What differs between two sets of runs? Their values, what is compared of them, and what is to be noted."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from analysis.display.metrics import Rows
from analysis.measures.batches.series import STAGES, all_series
from analysis.measures.kernels import rows as kernels
from analysis.measures.scaling.compare_rows import CALLS, STEP, Key, Values, rows, telling
from analysis.measures.scaling.point import point_fields
from analysis.measures.scaling.watched_runs import in_the_same_words
from analysis.results.log import BOTH
from analysis.results.source import Source
from analysis.results.study import Study
from jobs.run_fields import FACTOR, fields_of
from profiling.errors import UserError
from profiling.wording import in_a_row

_SIZES = fields_of("size")
MOST_NAMED = 6  # configurations that a note names
_NONE = str(None)  # a value that is not known, or of a factor that is another program's


@dataclass(frozen=True)
class Compared:
    """Two sets of runs.

    Attributes:
        a, b: the figures of each.
        rows: what both have, tested: of :func:`compare_rows.rows`.
        alone: what configurations are called that only A has, and that only B has.
        across: fields in which the two may differ.
    """

    a: Values
    b: Values
    rows: Rows
    alone: tuple[list[str], list[str]]
    across: tuple[str, ...] = ()

    def by_configuration(self, kind: str) -> list[tuple[Key, dict]]:
        """The rows of a kind, each with its configuration."""
        keys = [key for key, of, figure in self.a if of == kind and (key, of, figure) in self.b]
        of_kind = [row for row in self.rows if row["kind"] == kind]
        return list(zip(keys, of_kind, strict=True))


def compared(a: Study, b: Study, across: Sequence[str] = ()) -> Compared:
    """Two sets of runs; notes of both say what was not compared, and what may explain a difference.

    Raises:
        UserError: they have nothing in common.
    """
    of_a, of_b, paths = values_of(a, across), values_of(b, across), (a.path, b.path)
    figures = rows(of_a, of_b)
    if not figures:
        raise UserError(_nothing_alike(of_a, of_b, paths) or _apart(a, b, across))
    if wrong := _no_batch(of_a, of_b, paths):
        raise UserError(wrong)
    alone = _alone(of_a, of_b)
    _note_alone(a, alone, paths)
    _note_pooled_sizes(a, b, across)
    _note_if_apart(a, b)
    _note_if_other_devices(a, b, paths)
    return Compared(of_a, of_b, figures, alone, tuple(across))


def values_of(study: Study, across: Sequence[str] = ()) -> Values:
    """Figures of every run, by configuration; fields ``across`` do not tell configurations apart."""
    values: Values = {}

    def add(key: Key, kind: str, figure: str, value: float) -> None:
        if np.isfinite(value) and value > 0:
            values.setdefault((key, kind, figure), []).append(value)

    series = all_series(study)
    for source in study.of_kind("run"):
        key = tuple(
            (name, str(value)) for name, value in point_fields(source.fields).items() if name not in across
        )
        if source.fields["profile"] == "none":
            one = series[source.id]
            add(key, *STEP, float(np.median(one.steady_ns)) / 1e6)
            for stage in STAGES:
                add(key, "stages", f"{stage}_ms", float(np.median(one.stages[stage][one.steady])) / 1e6)
        elif source.tables("kernels"):
            for row in _kernels_of(study, source):
                name = f"{row['kernel']} ({row['direction']})"
                add(key, "kernels", name, row["ms_per_step"])
                add(key, CALLS, name, row["calls_per_step"])
    return values


def _kernels_of(study: Study, source: Source) -> Rows:
    """The kernels of a profiled run; none, and a finding, where they cannot be told: batches still can."""
    try:
        return kernels.rows(study, source.id)[0]
    except UserError:
        reasons = [failure.reason for failure in study.failed if failure.point == source.id]
        why = reasons[0] if reasons else "it has none in profiled steps"
        study.note(f"its kernels are not compared: {why}", source)
        return []


def _configurations(values: Values) -> set[Key]:
    """The configurations that have durations of batches; all, where none has."""
    timed = {key for key, kind, _ in values if kind == "step"}
    return timed or {key for key, _, _ in values}


def _alone(a: Values, b: Values) -> tuple[list[str], list[str]]:
    """What configurations are called that only one of the two has."""
    of_a, of_b = _configurations(a), _configurations(b)
    fields = telling([*of_a, *of_b])
    only_a, only_b = (
        sorted(" ".join(_level(name, dict(key).get(name)) for name in fields) for key in alone)
        for alone in (of_a - of_b, of_b - of_a)
    )
    return only_a, only_b


def _level(name: str, value: str | None) -> str:
    """``loader=pytorch``; ``without lr`` of a program without that factor."""
    known = value not in (None, _NONE)
    if name.startswith(FACTOR):
        own = name.removeprefix(FACTOR)
        return f"{own}={value}" if known else f"without {own}"
    return f"{name}={value}" if known else f"{name} unknown"


def _note_alone(study: Study, alone: Sequence[Sequence[str]], paths: tuple[Path, Path]) -> None:
    """A note where configurations are on one side only: nothing is said of them."""
    for path, names in zip(paths, alone, strict=True):
        more = f" and {len(names) - MOST_NAMED} more" if len(names) > MOST_NAMED else ""
        if names:
            study.note(f"only in {path}, so not compared: {', '.join(names[:MOST_NAMED])}{more}", side=BOTH)


def _no_batch(a: Values, b: Values, paths: tuple[Path, Path]) -> str:
    """Why no duration of a batch can be compared; empty: it can, or no side has any and kernels are."""
    timed = [{key for key, kind, _ in values if kind == "step"} for values in (a, b)]
    if timed[0] & timed[1] or not (timed[0] or timed[1]):
        return ""
    for path, keys in zip(paths, timed, strict=True):
        if not keys:
            return f"nothing to compare: {path} holds no readable unprofiled run"
    return f"nothing to compare: no configuration has unprofiled runs both in {paths[0]} and {paths[1]}"


def _nothing_alike(a: Values, b: Values, paths: tuple[Path, Path]) -> str:
    if not a or not b:
        return f"{paths[0] if not a else paths[1]} holds no run to compare"
    if {key for key, _, _ in a} & {key for key, _, _ in b}:
        return _no_batch(a, b, paths) or f"nothing to compare: no kernel of {paths[0]} is in {paths[1]}"
    return ""


def _apart(a: Study, b: Study, across: Sequence[str]) -> str:
    """In what the nearest configurations of two studies differ, whose configurations are none of the other's.

    Of a program that was watched under another command, what only the other side knows is no difference: with
    ``--across program`` it is taken to be the same.
    """
    keys_a, keys_b = (
        _configurations(values_of(study, across)) for study in in_the_same_words(a, b, (*across, "program"))
    )
    differ = _fewest_apart(keys_a, keys_b)
    return (
        f"no configuration of {a.path} is in {b.path}: the nearest differ in {in_a_row(differ)}; "
        f"compare them anyway with --across {','.join(differ)}"
    )


def _fewest_apart(a: set[Key], b: set[Key]) -> list[str]:
    """The fewest fields without which a configuration of A is one of B; a size rather not among them."""
    fields = telling([*a, *b])
    pairs = [
        [name for name in fields if one.get(name) != other.get(name)]
        for one in map(dict, sorted(a))
        for other in map(dict, sorted(b))
    ]
    return min(pairs, key=lambda differ: (len(differ), len(set(_SIZES) & set(differ))))


def _note_pooled_sizes(a: Study, b: Study, across: Sequence[str]) -> None:
    """A note where fields ``across`` put runs of several sizes into one configuration of a side."""
    pooled = [name for name in across if name in _SIZES]
    if not pooled:
        return
    sizes: dict[tuple[int, Key], set[Key]] = {}
    for side, study in enumerate((a, b)):
        for run in study.of_kind("run"):
            fields = point_fields(run.fields)
            key = tuple((name, str(value)) for name, value in fields.items() if name not in across)
            sizes.setdefault((side, key), set()).add(tuple((name, str(fields[name])) for name in pooled))
    if any(len(of) > 1 for of in sizes.values()):
        b.note(
            f"--across {','.join(pooled)} pools runs of different sizes: their median is that of no job; "
            "leave it out to compare equal sizes",
            side=BOTH,
        )


def _note_if_apart(a: Study, b: Study) -> None:
    """A finding where all runs of one were before those of the other."""
    times = [
        [(source.manifest.started, source.manifest.ended) for source in study.sources if source.manifest]
        for study in (a, b)
    ]
    spans = [(min(of_a)[0], max(ended for _, ended in of_a)) for of_a in times if of_a]
    if len(spans) == 2 and (spans[0][1] < spans[1][0] or spans[1][1] < spans[0][0]):
        b.note(
            "all runs of one side came before those of the other, so drift of the machine looks like a "
            "difference; alternate the runs to rule this out",
            side=BOTH,
        )


def _note_if_other_devices(a: Study, b: Study, paths: tuple[Path, Path]) -> None:
    """A finding where the two ran on different devices: the effect is theirs, too."""
    names = [sorted({device for run in study.of_kind("run") for device in run.devices}) for study in (a, b)]
    if all(names) and names[0] != names[1]:
        ran = [f"{path} ran on {in_a_row(of)}" for path, of in zip(paths, names, strict=True)]
        b.note(f"{', '.join(ran)}: differences may come from the devices", side=BOTH)
