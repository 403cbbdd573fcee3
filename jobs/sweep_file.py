"""Read a sweep file as a :class:`Sweep`, report its mistakes, and list its runs.

``run:`` contains fields of Run; a list is a factor. A sweep contains all combinations of its factors, each
repeated as often as the file says.

``program: train.py --lr {lr} --batch-size {batch}`` below ``run:`` replaces scaleprof's own training loop. A
name in braces is a field of the run or one of the user's factors. No shell is involved: the command is first
split into words, as a shell would do it, and then filled, so that a value with spaces stays one argument.
"""

import itertools
import random
import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from string import Formatter
from typing import Annotated, Any, Literal

from pydantic import BaseModel, Field, ValidationError

from jobs.run import Place, Problem, Profile, Run, Value, make_run, model_names, problems_of, wrong_values
from jobs.run_fields import FILLING, STARTING, as_text, fields_of, format_id, id_fields, is_own, parse_only
from profiling import yaml_text
from profiling.errors import Mistakes, UserError, did_you_mean, did_you_mean_file, typo_of

Order = Literal["random", "given", "largest", "smallest"]
Repetitions = Annotated[int, Field(ge=1, le=1000)]
# What a factor of the user's cannot be called: it would be taken for something else.
RESERVED = ("factors", "world_size", "repetition", "exit_code")
# Flags of profiling.watch that may stand before the script; the sweep sets the others.
PER_STEP = "--steps-per-batch"
OF_WATCH = ("--samples", PER_STEP)

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]*")
# Without effect on a run without a profiler.
_PROFILER_OPTIONS = ("profile_mode", "profile_kernels", "profile_metrics")


class Rule(BaseModel, extra="forbid", frozen=True):
    """Runs to leave out: those whose fields have one of the values of ``when``."""

    when: dict[str, Any]  # Run's fields, or world_size: a value or a list of values
    because: Annotated[str, Field(min_length=1)]  # printed with the runs

    def matches(self, run: Run) -> bool:
        return all(run.value(name) in _as_list(values) for name, values in self.when.items())


class Sweep(BaseModel, extra="forbid", frozen=True):
    # The results' folder below --out; by default the file's name.
    name: str = Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$", description="should be the name of a folder")
    run: dict[str, Any]  # Run's fields, of a program also factors of its own; a list of values is a factor
    # How often each configuration runs, maybe by profile: {none: 2, torch: 1}.
    repetitions: Repetitions | dict[Profile, Annotated[int, Field(ge=0, le=1000)]] = 3
    exclude: list[Rule] = []
    unavailable: Literal["fail", "skip"] = (
        "fail"  # what runs are that cannot start here: failures or left out
    )
    order: Order = "random"  # in which runs start; largest and smallest: by nodes, else random
    order_seed: Annotated[int, Field(ge=0)] | None = None  # by default random, and recorded in sweep.json
    time_limit_s: Annotated[float, Field(gt=0)] = 3600  # of a run
    hang_limit_s: Annotated[float, Field(ge=0)] = 300  # without a new step until a run is ended; 0: never
    retries: Annotated[int, Field(ge=0, le=10)] = 3  # at most, after a failure that may be temporary

    @property
    def values(self) -> dict[str, list[Any]]:
        """The values of each field below ``run:``, of a factor several."""
        return {name: _as_list(values) for name, values in self.run.items()}


def read_sweep(path: Path) -> Sweep:
    if not path.exists():
        configs, siblings = (sorted(folder.glob("*.yaml")) for folder in (Path("configs"), path.parent))
        files = [file for file in configs if file.stem == path.stem] or siblings or configs
        raise UserError(f"no sweep file {path}{did_you_mean_file(path, files) if files else ''}")
    if path.is_dir():
        raise UserError(f"{path} is a folder; expected a sweep file (results: python -m analysis.report)")
    document = yaml_text.read(path, "sweep file")
    if not isinstance(document.content, dict):
        raise UserError(f"{path} is not a sweep file: it should contain `run:` with fields and values")
    values = {"name": path.stem, **document.content}
    if problems := list(_problems_of_sweep(values)):
        raise Mistakes([f"{document.where(place)}: {text}" for place, text in problems])
    return Sweep.model_validate(values)


def _problems_of_sweep(values: Mapping[str, Any]) -> Iterator[Problem]:
    """What is wrong with the content of a sweep file: its keys, then the fields and values of `run:`."""
    try:
        Sweep.model_validate(values)
    except ValidationError as error:
        for place, text in problems_of(error, Sweep, "key"):
            misplaced = place and place[0] in Run.model_fields
            yield place, f"{place[0]}: a field of a run; it goes below `run:`" if misplaced else text
    run, rules, repetitions = (values.get(key) for key in ("run", "exclude", "repetitions"))
    fields: dict[str, Any] = {str(name): of for name, of in run.items()} if isinstance(run, dict) else {}
    for name, of in fields.items():
        yield from _problems_of_values(name, _as_list(of), "program" in fields and is_own(name))
    others = [name for name in fields if name != "program"]
    for template in _as_list(fields.get("program", [])):
        try:
            check_template(template, others)
        except UserError as error:
            for line in error.lines if isinstance(error, Mistakes) else [str(error)]:
                yield ("run", "program"), line
    known = dict.fromkeys((*Run.model_fields, "world_size", *fields))
    for index, rule in enumerate(rules if isinstance(rules, list) else []):
        when = rule.get("when") if isinstance(rule, dict) else None
        for name in when if isinstance(when, dict) else {}:
            if name not in known:
                place = ("exclude", index, "when", name)
                yield place, f"exclude: unknown field {name!r}{did_you_mean(name, known)}"
    if isinstance(repetitions, dict):
        for profile in _as_list(fields.get("profile", "none")):
            if profile not in repetitions:
                yield ("repetitions",), f"repetitions: {profile!r} missing"


def _problems_of_values(name: str, values: Sequence[Any], own: bool) -> Iterator[Problem]:
    """What is wrong with a field of `run:`, or with a factor of the program's ``own``, and its values."""
    place: Place = ("run", name)
    if own and name in RESERVED:
        yield place, f"{name}: this name is taken; choose another"
    elif own and not _NAME.fullmatch(name):
        yield place, f"invalid name {name!r}: should be letters, digits, _, - and ."
    elif not own and name not in Run.model_fields:
        yield place, f"unknown field {name!r}{did_you_mean(name, Run.model_fields)}"
        return
    if not values:
        yield place, f"{name} has no value"
    for index, value in enumerate(values):
        if value in values[:index]:
            yield (*place, index), f"{name}: {value} stands twice"
        wrong = [] if own else wrong_values({name: value})
        if own and not isinstance(value, Value):
            wrong = [f"invalid {name} {value!r}: expected text, number"]
        yield from (((*place, index), text) for text in wrong)


def _as_list(values: Any) -> list[Any]:
    return values if isinstance(values, list) else [values]


# --- the runs of a sweep --------------------------------------------------------------------------------


@dataclass(frozen=True)
class SweepRun:
    """A run that a sweep asks for: a configuration, and which repetition of it."""

    configuration: Run
    repetition: int
    outside: tuple[str, ...] = ()  # fields beyond the id's that the sweep varies
    reason: str = ""  # why it is left out

    @property
    def id(self) -> str:
        return format_id(self.configuration, self.repetition, outside=self.outside)

    @property
    def of_all_repetitions(self) -> str:
        return format_id(self.configuration, outside=self.outside)


def expand(sweep: Sweep, where: str = "") -> tuple[list[SweepRun], list[SweepRun]]:
    """The runs of a sweep, in the order of its factors, and those its rules leave out."""
    values_of = sweep.values
    varied = [name for name, values in values_of.items() if len(values) > 1]
    sweep_runs: list[SweepRun] = []
    excluded: list[SweepRun] = []
    wrong: list[str] = []
    seen: set[Run] = set()
    for values in itertools.product(*values_of.values()):
        fields = dict(zip(values_of, values, strict=True))
        # Unprofiled runs are the same whatever a profiler is asked for: each is made once.
        once = fields.get("profile") == "none" and "profile" in varied
        fields = {name: value for name, value in fields.items() if not (once and name in _PROFILER_OPTIONS)}
        try:
            own = [name for name in fields if "program" in fields and is_own(name)]
            factors = {"factors": {name: fields.pop(name) for name in own}} if own else {}
            run = make_run({**fields, **factors}, where)
        except UserError as error:
            wrong.append(str(error))
            continue
        if once and run in seen:
            continue
        seen.add(run)
        reason = next((rule.because for rule in sweep.exclude if rule.matches(run)), "")
        outside = tuple(name for name in varied if name not in id_fields(run))
        asked = sweep.repetitions
        count = asked if isinstance(asked, int) else asked.get(run.profile, 0)  # type: ignore[call-overload]
        repeated = [SweepRun(run, number, outside, reason) for number in range(count)]
        (excluded if reason else sweep_runs).extend(repeated)
    if wrong:
        raise Mistakes(wrong)
    return sweep_runs, excluded


def choose(sweep: Sweep, only: Sequence[str], where: str) -> tuple[list[SweepRun], list[SweepRun]]:
    """The runs of a sweep that all of ``only`` choose, and those its rules leave out."""
    sweep_runs, excluded = expand(sweep, where)
    if not sweep_runs:
        raise UserError(f"{where}: no runs are left by its exclude rules")
    factors = {name for each in sweep_runs for name in each.configuration.factors}
    for name, texts in parse_only(only, factors).items():
        text_of = {each: as_text(each.configuration.value(name)) for each in sweep_runs}
        sweep_runs = [each for each, text in text_of.items() if text in texts]
        if not sweep_runs:
            there = ", ".join(dict.fromkeys(text_of.values()))
            raise UserError(f"{where}: no runs: --only {name}={','.join(texts)}, but {name} has {there}")
    return sweep_runs, excluded


def check_models(sweep_runs: Sequence[SweepRun], path: Path) -> None:
    """Refuse models that torchvision does not have; where it is not installed, a run finds out."""
    known, see = model_names(), "torchvision's classification models"
    names = dict.fromkeys(each.configuration.model for each in sweep_runs)
    if wrong := {name: did_you_mean(name, known, see=see) for name in names if known and name not in known}:
        document = yaml_text.read(path, "sweep file")
        listed = _as_list(document.content["run"]["model"])
        where = {name: document.where(("run", "model", listed.index(name))) for name in wrong}
        raise Mistakes([f"{where[name]}: invalid model {name!r}{near}" for name, near in wrong.items()])


def ordered(sweep_runs: Sequence[SweepRun], sweep: Sweep, seed: int) -> list[SweepRun]:
    """The runs in their order; a random one keeps a drift of the machine from looking like an effect."""
    in_order = list(sweep_runs)
    if sweep.order != "given":
        random.Random(seed).shuffle(in_order)
    sign = {"smallest": 1, "largest": -1}.get(sweep.order, 0)  # runs of as many nodes keep their order
    return sorted(in_order, key=lambda sweep_run: sign * sweep_run.configuration.nodes)


# --- the command of a program ----------------------------------------------------------------------------


def check_template(template: Any, given: Sequence[str]) -> None:
    """Refuse a wrong command, or wrong names of what is given for it."""
    if not isinstance(template, str) or not template.strip():
        raise UserError(f"invalid program {template!r}: should be a command, e.g. train.py --lr {{lr}}")
    named = _names(template)
    _script(_split(template))
    known = dict.fromkeys((*given, *STARTING, *FILLING, "world_size"))
    missing = sorted(named - known.keys())
    if missing:
        near_of = {name: did_you_mean(name, known) for name in missing}
        raise Mistakes([f"program: {{{name}}} has no values below `run:`{near_of[name]}" for name in missing])
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
    named = _names(run.program) & set(FILLING)
    known = {*STARTING, *fields_of("observation"), "program", "factors", *named}
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


def _names(template: str) -> set[str]:
    return {name for word in _split(template) for _, name in _parts(word) if name is not None}


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
