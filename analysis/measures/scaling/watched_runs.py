"""Which configuration of a sweep is a run of a program that was watched?

A sweep declares what it starts, values in braces and all (``train.py --lr {lr}``, lr: 0.1, threads: 1). Of a
program that was watched its command is known, and what was found of it (its model, its samples per step).
Where the commands are the same and all agrees that both sides know, the two are one configuration: the
watched run then has the fields of the swept one, and a note names those that only one side knows. Where the
user lets the commands differ (``--across program``), all else is compared in the same way.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from analysis.measures.scaling.point import POINT_FIELDS, point_fields
from analysis.results.log import BOTH
from analysis.results.source import Source
from analysis.results.study import Study
from jobs.program import PER_STEP, command_of
from jobs.run import LONGEST_PROGRAM, Run
from jobs.run_fields import FACTOR, STARTING, own_names
from profiling.wording import in_a_row


@dataclass(frozen=True)
class _Swept:
    """A configuration of a program, as a sweep declares it.

    Attributes:
        fields: of its point.
        known: which of these say something, beside its command.
        command: filled, as one line.
    """

    fields: Mapping[str, Any]
    known: Mapping[str, Any]
    command: str


def in_the_same_words(a: Study, b: Study, across: Sequence[str] = ()) -> tuple[Study, Study]:
    """Two studies in which the watched runs of either have the fields of the swept ones of the other.

    Args:
        across: fields in which the two may differ.
    """
    return _in_words_of(a, b, across), _in_words_of(b, a, across)


def _in_words_of(study: Study, other: Study, across: Sequence[str]) -> Study:
    swept = _configurations(other, across)
    there = [point_fields(run.fields) for run in other.of_kind("run")]
    loaded, only_study, only_other = list[Source](), set[str](), set[str]()
    for run in study.loaded:
        asked = swept and _was_watched(run) and point_fields(run.fields) not in there
        nearest = _nearest(run, swept, across) if asked else []
        loaded.append(_in_words(run, nearest, across) if nearest else run)
        if len(nearest) == 1 and not _apart(_known(run, across), nearest[0].known):
            known = _known(run, across)
            only_study |= known.keys() - nearest[0].known.keys()
            only_other |= nearest[0].known.keys() - known.keys()
            if not _same_command(str(run.fields["program"]), nearest[0].command):
                only_other |= set(own_names(nearest[0].fields))  # else its command says them
    for path, by, names in ((study.path, other.path, only_study), (other.path, study.path, only_other)):
        if names:
            own = sorted(name.removeprefix(FACTOR) for name in names.difference(POINT_FIELDS))
            named = in_a_row([*(name for name in POINT_FIELDS if name in names), *own])
            study.note(f"only {path} records {named}: taken to be the same in {by}", side=BOTH)
    return replace(study, loaded=tuple(loaded))


def _was_watched(run: Source) -> bool:
    """Whether it is a program that no sweep started: a sweep declares all of :data:`STARTING`."""
    return _is_program(run) and not set(STARTING).isdisjoint(_unknown(run))


def _is_program(run: Source) -> bool:
    return run.manifest is not None and bool(run.manifest.run.program)


def _unknown(run: Source) -> Sequence[str]:
    return run.manifest.unknown if run.manifest else ()


def _configurations(study: Study, across: Sequence[str]) -> list[_Swept]:
    """The configurations of the programs that a sweep started."""
    found: dict[str, _Swept] = {}
    for run in study.of_kind("run"):
        if run.manifest is not None and _is_program(run) and not _was_watched(run):
            fields = {name: of for name, of in point_fields(run.fields).items() if name not in across}
            found.setdefault(repr(fields), _Swept(fields, _known(run, across), _command(run.manifest.run)))
    return list(found.values())


def _command(run: Run) -> str:
    """The command of a sweep's run, as that of a program that was watched is recorded."""
    words = command_of(run)
    first = next(place for place, word in enumerate(words) if not word.startswith("--"))
    of_watch = [word for word in words[:first] if word.startswith(f"{PER_STEP}=") and word != f"{PER_STEP}=1"]
    return " ".join([*of_watch, *words[first:]])[:LONGEST_PROGRAM]


def _known(run: Source, across: Sequence[str]) -> dict[str, Any]:
    """What is known of a run's configuration beside its command, which its own factors are in."""
    names = [name for name in POINT_FIELDS if name not in (*_unknown(run), *across, "program")]
    fields = {name: run.fields[name] for name in names}
    if fields.get("device") == "auto":
        fields["device"] = "cpu" if run.on_cpus else "gpu"
    return fields


def _nearest(run: Source, swept: Sequence[_Swept], across: Sequence[str]) -> list[_Swept]:
    """The configurations that differ from a run in the fewest fields that both know: of its command.

    Where none has its command, and commands may differ: of any.
    """
    program, known = str(run.fields["program"]), _known(run, across)
    alike = [one for one in swept if _same_command(program, one.command)]
    if not alike and "program" in across:
        alike = list(swept)
    apart = [(len(_apart(known, one.known)), one) for one in alike]
    fewest = min((count for count, _ in apart), default=0)
    return [one for count, one in apart if count == fewest]


def _apart(one: Mapping[str, Any], other: Mapping[str, Any]) -> set[str]:
    """The fields in which two differ, of those that both know."""
    return {name for name in one.keys() & other.keys() if one[name] != other[name]}


def _in_words(run: Source, nearest: Sequence[_Swept], across: Sequence[str]) -> Source:
    """A run with the fields of the nearest configurations in which these differ neither from it nor apart."""
    first, known = nearest[0], _known(run, across)
    differ = _apart(known, first.known).union(*(_apart(first.fields, one.fields) for one in nearest))
    return replace(
        run, fields={**run.fields, **{name: of for name, of in first.fields.items() if name not in differ}}
    )


def _same_command(watched: str, swept: str) -> bool:
    """Whether two commands are the same; one may name the script by a longer path."""
    (a_step, one), (other_step, other) = _step_and_program(watched), _step_and_program(swept)
    short, long = sorted((one, other), key=len)
    folder = long.removesuffix(short)
    named_longer = long.endswith(short) and folder.endswith("/") and " " not in folder
    return a_step == other_step and (short == long or named_longer)


def _step_and_program(command: str) -> tuple[str, str]:
    """The flag that says how many optimizer steps are one, where they are several, and the program."""
    flag, _, program = command.partition(" ")
    return (flag, program) if flag.startswith(f"{PER_STEP}=") else ("", command)
