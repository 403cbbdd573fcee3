"""Match watched runs of a program with the configurations that a sweep declares for it."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from analysis.frames.study import BOTH, Source, Study
from analysis.measures.points import POINT_FIELDS, point_fields
from jobs.program import PER_STEP, command_of
from jobs.run import LONGEST_PROGRAM, Run
from jobs.run_fields import FACTOR, STARTING, own_names


class _Swept(NamedTuple):
    """A configuration of a program in a sweep."""

    fields: Mapping[str, Any]  # of its point
    known: Mapping[str, Any]  # of these, the known ones beside its command
    command: str  # filled


def align_watched(a: Study, b: Study, across: Sequence[str] = ()) -> tuple[Study, Study]:
    """Two studies in which watched runs of either have the fields of the other's swept configurations.

    A sweep declares what it starts; of a watched program its command is known, and what was found of it.
    Where the commands are the same, fields that only one side knows are taken to be equal.

    Args:
        across: fields in which the two may differ.
    """
    return _aligned(a, b, across), _aligned(b, a, across)


def _aligned(study: Study, other: Study, across: Sequence[str]) -> Study:
    swept: dict[str, _Swept] = {}
    for run in other.of_kind("run"):
        if run.manifest is not None and run.manifest.run.program and not _was_watched(run):
            fields = {name: of for name, of in point_fields(run.fields).items() if name not in across}
            swept.setdefault(repr(fields), _Swept(fields, _known(run, across), _command(run.manifest.run)))
    there = [point_fields(run.fields) for run in other.of_kind("run")]
    loaded, assumed = list[Source](), set[str]()
    for run in study.loaded:
        asked = swept and _was_watched(run) and point_fields(run.fields) not in there
        nearest = _nearest(run, list(swept.values()), across) if asked else []
        if not nearest:
            loaded.append(run)
            continue
        first, known = nearest[0], _known(run, across)
        differ = _differ(known, first.known).union(*(_differ(first.fields, one.fields) for one in nearest))
        fields = {name: of for name, of in first.fields.items() if name not in differ}
        loaded.append(replace(run, fields={**run.fields, **fields}))
        if len(nearest) == 1 and not _differ(known, first.known):
            assumed |= known.keys() ^ first.known.keys()
            if not _same_command(str(run.fields["program"]), first.command):
                assumed |= set(own_names(first.fields))  # else its command has them
    if assumed:
        study.note("not_recorded", side=BOTH, what=sorted(name.removeprefix(FACTOR) for name in assumed))
    return replace(study, loaded=loaded)


def _was_watched(run: Source) -> bool:
    """Whether it is a program that no sweep started: a sweep declares all of :data:`STARTING`."""
    manifest = run.manifest
    return manifest is not None and bool(manifest.run.program) and bool({*STARTING} & {*manifest.unknown})


def _command(run: Run) -> str:
    """The command of a sweep's run, as that of a program that was watched is recorded."""
    words = command_of(run)
    first = next(place for place, word in enumerate(words) if not word.startswith("--"))
    of_watch = [word for word in words[:first] if word.startswith(f"{PER_STEP}=") and word != f"{PER_STEP}=1"]
    return " ".join([*of_watch, *words[first:]])[:LONGEST_PROGRAM]


def _known(run: Source, across: Sequence[str]) -> dict[str, Any]:
    """The known fields of a run's configuration beside its command, which holds its own factors."""
    unknown = run.manifest.unknown if run.manifest else ()
    names = [name for name in POINT_FIELDS if name not in (*unknown, *across, "program")]
    fields = {name: run.fields[name] for name in names}
    if fields.get("device") == "auto":
        fields["device"] = "cpu" if run.on_cpus else "gpu"
    return fields


def _nearest(run: Source, swept: Sequence[_Swept], across: Sequence[str]) -> list[_Swept]:
    """The configurations of its command that differ from a run in the fewest fields that both know.

    Where none has its command, and commands may differ: of any.
    """
    program, known = str(run.fields["program"]), _known(run, across)
    candidates = [one for one in swept if _same_command(program, one.command)]
    if not candidates and "program" in across:
        candidates = list(swept)
    distances = [(len(_differ(known, one.known)), one) for one in candidates]
    fewest = min((count for count, _ in distances), default=0)
    return [one for count, one in distances if count == fewest]


def _differ(one: Mapping[str, Any], other: Mapping[str, Any]) -> set[str]:
    """The fields in which two differ, of those that both know."""
    return {name for name in one.keys() & other.keys() if one[name] != other[name]}


def _same_command(watched: str, swept: str) -> bool:
    """Whether two commands are the same; one may name the script by a longer path."""
    (a_step, one), (other_step, other) = _step_and_program(watched), _step_and_program(swept)
    short, long = sorted((one, other), key=len)
    folder = long.removesuffix(short)
    named_longer = long.endswith(short) and folder.endswith("/") and " " not in folder
    return a_step == other_step and (short == long or named_longer)


def _step_and_program(command: str) -> tuple[str, str]:
    """The flag of how many optimizer steps are one, where they are several, and the program."""
    flag, _, program = command.partition(" ")
    return (flag, program) if flag.startswith(f"{PER_STEP}=") else ("", command)
