"""Which runs make a sweep, in what order, and which are left out?

A sweep file's ``run:`` holds Run's fields; a list is a factor, and the sweep is the product of its factors.
"""

import itertools
import random
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from jobs.run import ID_FIELDS, Profile, Run, format_id, make_run, parse_value
from jobs.validation import explain
from profiling import yaml_text
from profiling.errors import UserError, did_you_mean

Order = Literal["random", "given", "largest", "smallest"]
Repetitions = Annotated[int, Field(ge=1, le=1000)]

# What a profiler is asked for.
_OF_PROFILERS = ("profile_mode", "profile_kernels")


class Rule(BaseModel):
    """Runs to leave out: those whose fields have one of the values of ``when``."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    when: dict[str, Any] = Field(description="Run's fields, or world_size: a value or a list of values")
    because: Annotated[str, Field(min_length=1)] = Field(description="the reason, printed with the runs")

    def matches(self, run: Run) -> bool:
        return all(getattr(run, name) in _as_list(values) for name, values in self.when.items())


class Sweep(BaseModel):
    """A sweep file."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$")] = Field(
        description="the results' folder below --out; by default the file's name"
    )
    run: dict[str, Any] = Field(description="Run's fields; a list of values is a factor")
    repetitions: Repetitions | dict[Profile, Annotated[int, Field(ge=0, le=1000)]] = Field(
        3, description="how often each configuration runs; may be said by profile: {none: 2, torch: 1}"
    )
    exclude: list[Rule] = Field([], description="rules that leave runs out")
    unavailable: Literal["fail", "skip"] = Field(
        "fail", description="what becomes of runs that this machine cannot start"
    )
    order: Order = Field(
        "random", description="in which order runs start; largest and smallest: by nodes, else random"
    )
    order_seed: Annotated[int, Field(ge=0)] | None = Field(
        None, description="of the random order; by default drawn, and recorded in sweep.json"
    )
    time_limit_s: Annotated[float, Field(gt=0)] = Field(3600, description="time limit of a run, in seconds")
    hang_limit_s: Annotated[float, Field(ge=0)] = Field(
        300, description="without a new batch for so long, a run hangs: it is ended (0: never)"
    )
    retries: Annotated[int, Field(ge=0, le=10)] = Field(
        3, description="how often at most a run is tried again after a failure that may not come again"
    )

    def repetitions_of(self, profile: str) -> int:
        if isinstance(self.repetitions, int):
            return self.repetitions
        return self.repetitions.get(profile, 0)  # type: ignore[call-overload]


@dataclass(frozen=True)
class SweepRun:
    """A run that a sweep asks for: a configuration, and which repetition of it."""

    configuration: Run
    repetition: int
    outside: tuple[str, ...] = ()  # fields beyond the id's that the sweep varies

    @property
    def id(self) -> str:
        return format_id(self.configuration, self.repetition, outside=self.outside)


@dataclass(frozen=True)
class Failed:
    """A run that failed: why, in one line, and where its log is."""

    sweep_run: SweepRun
    reason: str
    log: Path


@dataclass
class Result:
    """What became of a sweep's runs.

    Attributes:
        done: how many.
        failed: those that failed, after all tries.
        elsewhere: those that another sweep is running.
        left: those for which this job has lost the nodes.
    """

    done: int = 0
    failed: list[Failed] = field(default_factory=list)
    elsewhere: list[SweepRun] = field(default_factory=list)
    left: list[SweepRun] = field(default_factory=list)


@dataclass(frozen=True)
class Excluded:
    """A run that is left out, and why."""

    sweep_run: SweepRun
    reason: str


def read_sweep(path: Path) -> Sweep:
    """A sweep from its YAML file (loaded safely).

    Raises:
        UserError: unreadable, not YAML, an unknown key or a bad value; one line with the file and place.
    """
    try:
        content = yaml_text.parse(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        files = sorted(str(file) for file in path.parent.glob("*.yaml"))
        raise UserError(f"no sweep file {path}" + (did_you_mean(str(path), files) if files else "")) from None
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"cannot read the sweep file {path}: {error}") from None
    except yaml.YAMLError as error:
        raise UserError(f"{path} is not YAML: {error}") from None
    if not isinstance(content, dict):
        raise UserError(f"{path} is no sweep: it should hold `run:` with fields and values")
    try:
        sweep = Sweep.model_validate({"name": path.stem, **content})
    except ValidationError as error:
        raise UserError(f"{path}: {explain(error, Sweep)}") from None
    _check_fields(sweep, path)
    return sweep


def _check_fields(sweep: Sweep, path: Path) -> None:
    # A misspelled field is found before the product is made, and an impossible rule before it hides nothing.
    for name, values in sweep.run.items():
        if name not in Run.model_fields:
            raise UserError(f"{path}: unknown field {name!r}{did_you_mean(name, Run.model_fields)}")
        if not _as_list(values):
            raise UserError(f"{path}: {name} has no value; a factor needs one at least")
    for rule in sweep.exclude:
        for name in rule.when:
            if name not in (*Run.model_fields, "world_size"):
                raise UserError(
                    f"{path}: exclude: unknown field {name!r}{did_you_mean(name, Run.model_fields)}"
                )
    if isinstance(sweep.repetitions, dict):
        absent = [p for p in _as_list(sweep.run.get("profile", "none")) if p not in sweep.repetitions]
        if absent:
            raise UserError(f"{path}: repetitions says nothing of profile {absent[0]!r}")


def expand(sweep: Sweep, where: str = "") -> tuple[list[SweepRun], list[Excluded]]:
    """The runs of a sweep, in the order of its factors, and those its rules leave out."""
    names = list(sweep.run)
    outside = tuple(n for n in names if n not in ID_FIELDS and len(_as_list(sweep.run[n])) > 1)
    sweep_runs, excluded = [], []
    twins: set[Run] = set()
    for values in itertools.product(*(_as_list(sweep.run[name]) for name in names)):
        fields = dict(zip(names, values, strict=True))
        if fields.get("profile", "none") == "none" and len(_as_list(sweep.run.get("profile"))) > 1:
            # What a profiler is asked for says nothing of the runs without one: these are made once.
            fields = {name: value for name, value in fields.items() if name not in _OF_PROFILERS}
            run = make_run(fields, where)
            if run in twins:
                continue
            twins.add(run)
        run = make_run(fields, where)
        reason = next((rule.because for rule in sweep.exclude if rule.matches(run)), None)
        for repetition in range(sweep.repetitions_of(run.profile)):
            sweep_run = SweepRun(run, repetition, outside)
            if reason is None:
                sweep_runs.append(sweep_run)
            else:
                excluded.append(Excluded(sweep_run, reason))
    if len({sweep_run.id for sweep_run in sweep_runs}) < len(sweep_runs):
        raise UserError(f"{where}: a factor names the same value twice")
    return sweep_runs, excluded


def ordered(sweep_runs: Sequence[SweepRun], sweep: Sweep, seed: int) -> list[SweepRun]:
    """The runs in the order in which they run.

    Random order keeps a drift of the machine (heat, neighbours) from looking like an effect of a factor.
    """
    sweep_runs = list(sweep_runs)
    if sweep.order != "given":
        random.Random(seed).shuffle(sweep_runs)
    if sweep.order in ("largest", "smallest"):
        # The sort is stable: runs of as many nodes keep their random order.
        sweep_runs.sort(key=lambda sweep_run: sweep_run.configuration.nodes, reverse=sweep.order == "largest")
    return sweep_runs


def select(sweep_runs: Iterable[SweepRun], only: Mapping[str, Sequence[Any]]) -> list[SweepRun]:
    """The runs whose fields have one of the values of ``only``."""
    return [
        sweep_run
        for sweep_run in sweep_runs
        if all(getattr(sweep_run.configuration, name) in values for name, values in only.items())
    ]


def parse_only(pairs: Sequence[str]) -> dict[str, list[Any]]:
    """``["loader=synthetic", "batch=32,64"]`` as field -> values."""
    only: dict[str, list[Any]] = {}
    for pair in pairs:
        name, equals, values = pair.partition("=")
        if not equals:
            raise UserError(f"--only {pair}: say FIELD=VALUE, e.g. --only loader=synthetic")
        only.setdefault(name, []).extend(parse_value(name, value) for value in values.split(","))
    return only


def _as_list(values: Any) -> list[Any]:
    return values if isinstance(values, list) else [values]
