"""What does a sweep file say, and what is wrong with it?

Its ``run:`` holds Run's fields; a list is a factor. Which runs that makes: :mod:`jobs.sweep_runs`.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, Literal

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from jobs import program
from jobs.loaders import LOADERS
from jobs.run import Profile, Run, Value
from jobs.run_fields import is_own
from jobs.run_values import wrong_values
from jobs.validation import Problem, problems_of
from profiling import yaml_text
from profiling.errors import Mistakes, UserError, did_you_mean, did_you_mean_file
from profiling.wording import command

_FEW = 8  # values, which a message lists all of
Order = Literal["random", "given", "largest", "smallest"]
Repetitions = Annotated[int, Field(ge=1, le=1000)]


class Rule(BaseModel):
    """Runs to leave out: those whose fields have one of the values of ``when``."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    when: dict[str, Any] = Field(description="Run's fields, or world_size: a value or a list of values")
    because: Annotated[str, Field(min_length=1)] = Field(description="the reason, printed with the runs")

    def matches(self, run: Run) -> bool:
        return all(run.value(name) in _as_list(values) for name, values in self.when.items())


class Sweep(BaseModel):
    """A sweep file."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$")] = Field(
        description="the results' folder below --out; by default the file's name"
    )
    run: dict[str, Any] = Field(
        description="Run's fields, of a program also factors of its own; a list of values is a factor"
    )
    repetitions: Repetitions | dict[Profile, Annotated[int, Field(ge=0, le=1000)]] = Field(
        3, description="how often each configuration runs; may be said by profile: {none: 2, torch: 1}"
    )
    exclude: list[Rule] = Field([], description="rules that leave runs out")
    unavailable: Literal["fail", "skip"] = Field(
        "fail", description="whether runs that cannot start here are failures (fail) or left out (skip)"
    )
    order: Order = Field(
        "random", description="in which order runs start; largest and smallest: by nodes, else random"
    )
    order_seed: Annotated[int, Field(ge=0)] | None = Field(
        None, description="seed of the random order; by default random, and recorded in sweep.json"
    )
    time_limit_s: Annotated[float, Field(gt=0)] = Field(3600, description="time limit of a run, in seconds")
    hang_limit_s: Annotated[float, Field(ge=0)] = Field(
        300, description="seconds without a new step after which a run is ended as hanging (0: never)"
    )
    retries: Annotated[int, Field(ge=0, le=10)] = Field(
        3, description="maximum number of retries of a run after a failure that may be temporary"
    )

    @property
    def values(self) -> dict[str, list[Any]]:
        """The values of each field below ``run:``, of a factor several."""
        return {name: _as_list(values) for name, values in self.run.items()}

    def repetitions_of(self, profile: str) -> int:
        if isinstance(self.repetitions, int):
            return self.repetitions
        return self.repetitions.get(profile, 0)  # type: ignore[call-overload]


def read_sweep(path: Path) -> Sweep:
    """A sweep from its YAML file (loaded safely).

    Raises:
        UserError: unreadable or not YAML.
        Mistakes: unknown keys and bad values, all of them, with their lines.
    """
    if not path.exists():
        raise UserError(f"no sweep file {path}{_near(path)}")
    if path.is_dir():
        raise UserError(
            f"{path} is a folder; expected a sweep file (results: {command('analysis.report', path)}, or "
            f"{command('analysis.hotspots', path)})"
        )
    document = yaml_text.read(path, "sweep file")
    if not isinstance(document.content, dict):
        raise UserError(f"{path} is not a sweep file: it should contain `run:` with fields and values")
    values = {"name": path.stem, **document.content}
    problems = _problems_of_sweep(values)
    if problems:
        raise Mistakes([f"{document.where(problem.place)}: {problem.text}" for problem in problems])
    return Sweep.model_validate(values)


def where_in(path: Path, name: str, value: Any) -> str:
    """Where a sweep file says that a field of `run:` has a value: ``conf.yaml, line 3``."""
    document = yaml_text.read(path, "sweep file")
    values = document.content["run"].get(name)
    index = [values.index(value)] if isinstance(values, list) and value in values else []
    return document.where(("run", name, *index))


def _near(path: Path) -> str:
    """The sweep file that was meant by one that is not there: beside it, or one of ours of that name."""
    ours = sorted(Path("configs").glob("*.yaml"))
    beside = sorted(path.parent.glob("*.yaml"))
    same_name = [file for file in ours if file.stem == path.stem]
    files = same_name or beside or ours
    return did_you_mean_file(path, files) if files else ""


def _problems_of_sweep(values: Mapping[str, Any]) -> list[Problem]:
    """What is wrong with the content of a sweep file: its keys, then the fields and values of `run:`."""
    loose = [key for key in values if key in Run.model_fields]
    if "run" not in values and loose:
        text = f"no `run:` above {', '.join(loose)}: the fields of a run go below `run:`"
        return [Problem((loose[0],), text)]
    problems: list[Problem] = []
    try:
        Sweep.model_validate(values)
    except ValidationError as error:
        problems = problems_of(error, Sweep, "key")
    problems = [_in_words_of_sweeps(problem) for problem in problems]
    run, rules = values.get("run"), values.get("exclude")
    fields: dict[Any, Any] = run if isinstance(run, dict) else {}
    for name, value in fields.items():
        of_program = "program" in fields and is_own(str(name))
        problems += (
            _problems_of_own(str(name), value) if of_program else _problems_of_factor(str(name), value)
        )
    for template in _as_list(fields.get("program", [])):
        others = [str(name) for name in fields if name != "program"]
        problems += [Problem(("run", "program"), text) for text in program.problems_of(template, others)]
    problems += _unread_data(fields)
    for index, rule in enumerate(rules if isinstance(rules, list) else []):
        when = rule.get("when") if isinstance(rule, dict) else None
        known = dict.fromkeys((*Run.model_fields, "world_size", *fields))
        for name in when if isinstance(when, dict) else {}:
            if name not in known:
                text = f"exclude: unknown field {name!r}{did_you_mean(name, known)}"
                problems.append(Problem(("exclude", index, "when", name), text))
    repetitions = values.get("repetitions")
    if isinstance(repetitions, dict) and not any(problem.place[0] == "repetitions" for problem in problems):
        absent = [p for p in _as_list(fields.get("profile", "none")) if p not in repetitions]
        problems += [Problem(("repetitions",), f"repetitions: none given for profile {p!r}") for p in absent]
    return problems


def _unread_data(fields: Mapping[Any, Any]) -> list[Problem]:
    """That no loader of the sweep reads its data: those that were meant would not be measured."""
    loaders = _as_list(fields.get("loader", Run.model_fields["loader"].default))
    if "program" in fields or fields.get("data") is None or set(loaders) - LOADERS.keys():
        return []
    if any(LOADERS[loader].reads_data for loader in loaders):
        return []
    which = "synthetic" if "loader" in fields else "synthetic (the default)"
    reading = ", ".join(name for name, kind in LOADERS.items() if kind.reads_data)
    return [
        Problem(("run", "data"), f"data has no effect: loader {which} reads none; loader: one of {reading}")
    ]


def _in_words_of_sweeps(problem: Problem) -> Problem:
    """A problem of a sweep's keys; of an unknown one that is a run's field, where it belongs."""
    if problem.place[:1] == ("exclude",) and problem.place[2:] == ("because",) and "missing" in problem.text:
        text = "exclude: each rule needs `because: TEXT`, which is printed with its runs"
        return replace(problem, text=text)
    name = str(problem.place[0]) if problem.place else ""
    if len(problem.place) == 1 and name in Run.model_fields and problem.text.startswith("unknown"):
        return replace(problem, text=f"{name} is a field of a run: it goes below `run:`")
    if problem.place == ("run",):
        return replace(problem, text="`run:` should hold fields and values, e.g. `run: {model: resnet50}`")
    return problem


def _problems_of_factor(name: str, values: Any) -> list[Problem]:
    """What is wrong with a field of `run:` and its values, each taken by itself."""
    if name not in Run.model_fields:
        return [Problem(("run", name), f"unknown field {name!r}{did_you_mean(name, Run.model_fields)}")]
    return _problems_of_values(name, values, lambda value: wrong_values({name: value}))


def _problems_of_own(name: str, values: Any) -> list[Problem]:
    """What is wrong with a program's own factor and its values."""
    if why := program.why_no_name(name):
        return [Problem(("run", name), why)]
    wrong = "should be text, a number, or true or false"
    return _problems_of_values(
        name,
        values,
        lambda value: [] if isinstance(value, Value) else [f"invalid {name} {value!r}: {wrong}"],
    )


def _problems_of_values(name: str, values: Any, wrong: Callable[[Any], list[str]]) -> list[Problem]:
    if values == []:
        return [Problem(("run", name), f"{name} has no value; give at least one")]
    problems = []
    for index, value in enumerate(_as_list(values)):
        if value in _as_list(values)[:index]:
            problems.append(Problem(("run", name, index), f"{name} has the same value twice: {value}"))
        said = wrong(value)
        several = _list_that_was_meant(value, wrong) if said else ""
        for text in said:
            joined = f"{text}{' O' if text.endswith('?') else '; o'}r a list: {several}" if several else text
            problems.append(Problem(("run", name, index), joined))
    return problems


def _list_that_was_meant(value: Any, wrong: Callable[[Any], list[str]]) -> str:
    """``[4, 8]`` for ``4,8``, ``[1, 2, 3]`` for ``1-3``, where each of these alone is right; else ""."""
    if not isinstance(value, str):
        return ""
    parts = re.split(r"[\s,]+", value.strip(" ()[],"))
    if span := re.fullmatch(r"(\d+)-(\d+)", value.strip()):
        first, last = map(int, span.groups())
        parts = [str(one) for one in (range(first, last + 1) if last - first < _FEW else (first, last))]
    try:
        meant = [yaml_text.parse(part) for part in parts]
    except yaml.YAMLError:
        return ""
    right = len(meant) > 1 and not any(wrong(one) for one in meant)
    return f"[{', '.join(parts)}]" if right else ""


def _as_list(values: Any) -> list[Any]:
    return values if isinstance(values, list) else [values]
