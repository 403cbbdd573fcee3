"""Read a sweep file, and say what is wrong with it.

Its ``run:`` holds Run's fields; a list is a factor. Which runs that makes: :mod:`jobs.sweep_runs`.
"""

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from jobs import program
from jobs.loaders import LOADERS
from jobs.run import Profile, Run, Value
from jobs.run_fields import is_own, wrong_values
from jobs.validation import Place, Problem, problems_of
from profiling import yaml_text
from profiling.errors import Mistakes, UserError, did_you_mean, did_you_mean_file

_BELOW_RUN = "{}: a field of a run; it goes below `run:`"
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
    """A sweep from its YAML file (loaded safely)."""
    if not path.exists():
        ours, beside = (sorted(folder.glob("*.yaml")) for folder in (Path("configs"), path.parent))
        files = [file for file in ours if file.stem == path.stem] or beside or ours
        raise UserError(f"no sweep file {path}{did_you_mean_file(path, files) if files else ''}")
    if path.is_dir():
        raise UserError(f"{path} is a folder; expected a sweep file (results: python -m analysis.report)")
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


def _problems_of_sweep(values: Mapping[str, Any]) -> list[Problem]:
    """What is wrong with the content of a sweep file: its keys, then the fields and values of `run:`."""
    loose = [key for key in values if key in Run.model_fields]
    if "run" not in values and loose:
        return [Problem((loose[0],), _BELOW_RUN.format(", ".join(loose)))]
    problems: list[Problem] = []
    try:
        Sweep.model_validate(values)
    except ValidationError as error:
        problems = problems_of(error, Sweep, "key")
    run, rules = values.get("run"), values.get("exclude")
    fields: dict[Any, Any] = run if isinstance(run, dict) else {}
    problems = [
        replace(one, text=_BELOW_RUN.format(one.place[0]))
        if one.place in [(name,) for name in Run.model_fields] and one.text.startswith("unknown")
        else one
        for one in problems
    ]
    for name, value in fields.items():
        problems += _problems_of_values(str(name), value, "program" in fields and is_own(str(name)))
    others = [str(name) for name in fields if name != "program"]
    for template in _as_list(fields.get("program", [])):
        problems += _raised(("run", "program"), program.check_template, template, others)
    problems += _raised(("run", "data"), _check_data_are_read, fields)
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
        problems += [Problem(("repetitions",), f"repetitions: {p!r} missing") for p in absent]
    return problems


def _raised(place: Place, check: Callable[..., None], *given: Any) -> list[Problem]:
    """What a check refuses, as problems of a place."""
    try:
        check(*given)
    except UserError as error:
        lines = error.lines if isinstance(error, Mistakes) else [str(error)]
        return [Problem(place, line) for line in lines]
    return []


def _check_data_are_read(fields: Mapping[Any, Any]) -> None:
    """Refuse data that no loader of the sweep reads: those that were meant would not be measured."""
    loaders = _as_list(fields.get("loader", Run.model_fields["loader"].default))
    if "program" in fields or fields.get("data") is None or set(loaders) - LOADERS.keys():
        return
    if not any(LOADERS[loader].reads_data for loader in loaders):
        reading = ", ".join(name for name, kind in LOADERS.items() if kind.reads_data)
        raise UserError(f"data has no effect: loader synthetic reads none; loader: one of {reading}")


def _problems_of_values(name: str, values: Any, own: bool) -> list[Problem]:
    """What is wrong with a field of `run:`, or a program's ``own`` factor, and its values."""
    place = ("run", name)
    if own and (problems := _raised(place, program.check_name, name)):
        return problems
    if not own and name not in Run.model_fields:
        return [Problem(place, f"unknown field {name!r}{did_you_mean(name, Run.model_fields)}")]
    if values == []:
        return [Problem(place, f"{name} has no value")]

    def wrong(value: Any) -> list[str]:
        if own:
            return [] if isinstance(value, Value) else [f"invalid {name} {value!r}: expected text, number"]
        return wrong_values({name: value})

    problems = []
    for index, value in enumerate(_as_list(values)):
        if value in _as_list(values)[:index]:
            problems.append(Problem((*place, index), f"{name}: {value} stands twice"))
        problems += [Problem((*place, index), text) for text in wrong(value)]
    return problems


def _as_list(values: Any) -> list[Any]:
    return values if isinstance(values, list) else [values]
