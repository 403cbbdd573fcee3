"""The command of a user's program in a sweep: a template, and the values that fill it.

``program: train.py --lr {lr} --batch-size {batch}`` below ``run:`` of a sweep file replaces scaleprof's own
training loop. A name in braces is a field of the run or one of the user's factors. No shell is involved: the
command is first split into words, as a shell would do it, and then filled, so that a value with spaces stays
one argument.
"""

import re
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from string import Formatter
from typing import Any

from jobs.run import Run
from jobs.run_fields import FILLING, STARTING, as_text, fields_of, is_own
from profiling.errors import Mistakes, UserError, did_you_mean, typo_of

# What a factor of the user's cannot be called: it would be taken for something else.
RESERVED = ("factors", "world_size", "repetition", "exit_code")
# Flags of profiling.watch that may stand before the script; the sweep sets the others.
PER_STEP = "--steps-per-batch"
OF_WATCH = ("--samples", PER_STEP)

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]*")


def check_name(name: str) -> None:
    """Refuse what a factor of the user's own cannot be called."""
    if name in RESERVED:
        raise UserError(f"{name}: this name is taken; choose another")
    if not _NAME.fullmatch(name):
        raise UserError(f"invalid name {name!r}: should be letters, digits, _, - and .")


def as_fields(values: Mapping[str, Any]) -> dict[str, Any]:
    """One configuration below ``run:`` as fields of a run: a program's own factors go to ``factors``."""
    if "program" not in values:
        return dict(values)
    own = {name: value for name, value in values.items() if is_own(name)}
    return {**{name: value for name, value in values.items() if name not in own}, "factors": own}


def check_template(template: Any, given: Sequence[str]) -> None:
    """Refuse a wrong command, or wrong names of what is given for it."""
    if not isinstance(template, str) or not template.strip():
        raise UserError(f"invalid program {template!r}: should be a command, e.g. train.py --lr {{lr}}")
    words = _split(template)
    named = _names(words)
    _script(words)
    known = dict.fromkeys((*given, *STARTING, *FILLING, "world_size"))
    missing = sorted(named - known.keys())
    if missing:
        raise Mistakes(
            [f"program: {{{name}}} has no values below `run:`{did_you_mean(name, known)}" for name in missing]
        )
    if "data" in named and "data" not in given:
        raise UserError("program: {data} has no value: add `data:` below `run:`")
    for name in given:
        if name not in (*STARTING, *named):  # it may be another one, misspelled
            near = typo_of(name, (*STARTING, *FILLING))
            meant = f"did you mean {near!r}? Else " if near and near not in given else ""
            raise UserError(f"{name} has no effect: {meant}write {{{name}}} where the program takes it")


def command_of(run: Run) -> list[str]:
    """The program's command: an argument for each word, but for those that values leave empty."""
    command = []
    for word in _split(run.program):
        values = [text + ("" if name is None else as_text(run.value(name))) for text, name in _parts(word)]
        if any(values) or not word:
            command.append("".join(values))
    return command


def unknown_fields(run: Run) -> list[str]:
    """The fields that say nothing of a run of a program: those of our own training loop, and those that its
    command does not name. Empty for a run of our own."""
    if not run.program:
        return []
    named = _names(_split(run.program))
    known = {*STARTING, *fields_of("observation"), "program", "factors", *(named & set(FILLING))}
    return [name for name in Run.model_fields if name not in known]


def check_can_start(run: Run, folder: Path) -> None:
    """Refuse a program that cannot be started, as far as is known before."""
    path = folder / (_script(command_of(run)) or "")
    if not path.is_file() and not (path / "__main__.py").is_file() and path != folder:
        raise UserError(f"program {path} does not exist, or is a folder without __main__.py")


def name_of(run: Run) -> str:
    """What to call the program in a few words: its script or module."""
    words = _split(run.program)
    return Path(_script(words) or words[words.index("-m") + 1]).name


def _names(words: Sequence[str]) -> set[str]:
    """The names in braces."""
    return {name for word in words for _, name in _parts(word) if name is not None}


def _split(template: str) -> list[str]:
    try:
        return shlex.split(template)
    except ValueError as error:
        raise UserError(f"program: {str(error).lower()} in {template!r}") from None


def _script(words: Sequence[str]) -> str | None:
    """The script that a command starts; None: a module."""
    for index, word in enumerate(words):
        if word == "-m":
            if index + 1 == len(words):
                raise UserError("program: -m needs the name of a module")
            return None
        if not word.startswith("-"):
            if index == 0 and Path(word).name in ("python", "python3", "torchrun", "mpirun", "srun"):
                raise UserError(f"program: begin with the script or -m MODULE, without {word}")
            return word
        flag, equals, _ = word.partition("=")
        if flag not in OF_WATCH or not equals:
            flags = " or ".join(f"{name}=N" for name in OF_WATCH)
            raise UserError(f"program: {word} before the script: only {flags} may stand there")
    raise UserError("program: no script: begin with it, or with -m MODULE, e.g. train.py --lr {lr}")


def _parts(word: str) -> list[tuple[str, str | None]]:
    """A word as texts, each with the name in braces that follows it."""
    try:
        parts = list(Formatter().parse(word))
    except ValueError as error:
        raise UserError(f"program: {error} in {word!r}; for a brace write {{{{ or }}}}") from None
    for _, name, form, conversion in parts:
        if name is not None and (form or conversion or not _NAME.fullmatch(name)):
            raise UserError(f"program: {{{name}}} is no name in braces; for a brace write {{{{ or }}}}")
    return [(text, name) for text, name, *_ in parts]
