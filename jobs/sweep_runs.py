"""The runs of a sweep, in their order, and those that are left out.

A sweep is the product of its factors, each combination as often as the sweep file says.
"""

import itertools
import random
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from jobs.program import as_fields
from jobs.run import Run, make_run
from jobs.run_fields import as_text, parse_value
from jobs.run_id import format_id, id_fields
from jobs.sweep_file import Sweep
from profiling.errors import Mistakes, UserError, did_you_mean

# What a profiler is asked for.
_OF_PROFILERS = ("profile_mode", "profile_kernels")


@dataclass(frozen=True)
class SweepRun:
    """A run that a sweep asks for: a configuration, and which repetition of it."""

    configuration: Run
    repetition: int
    outside: tuple[str, ...] = ()  # fields beyond the id's that the sweep varies

    @property
    def id(self) -> str:
        return format_id(self.configuration, self.repetition, outside=self.outside)

    @property
    def of_all_repetitions(self) -> str:
        """A name of what all repetitions of it share."""
        return format_id(self.configuration, outside=self.outside)


@dataclass(frozen=True)
class Failed:
    """A run that failed: of which kind it was (jobs.failures), why, in one line, and where its log is."""

    sweep_run: SweepRun
    kind: str
    reason: str
    log: Path


@dataclass
class Result:
    """What became of a sweep's runs."""

    done: int = 0
    failed: list[Failed] = field(default_factory=list)  # after all tries
    elsewhere: list[SweepRun] = field(default_factory=list)  # another sweep is running them
    left: list[SweepRun] = field(default_factory=list)  # this job has lost the nodes for them


@dataclass(frozen=True)
class Excluded:
    """A run that is left out, and why."""

    sweep_run: SweepRun
    reason: str


def expand(sweep: Sweep, where: str = "") -> tuple[list[SweepRun], list[Excluded]]:
    """The runs of a sweep, in the order of its factors, and those its rules leave out."""
    values_of = sweep.values
    varied = [name for name, values in values_of.items() if len(values) > 1]
    sweep_runs, excluded = [], []
    wrong: list[str] = []
    done: set[Run] = set()
    for values in itertools.product(*values_of.values()):
        fields = dict(zip(values_of, values, strict=True))
        # What a profiler is asked for says nothing of the runs without one: these are made once.
        once = fields.get("profile") == "none" and "profile" in varied
        fields = {name: value for name, value in fields.items() if not (once and name in _OF_PROFILERS)}
        try:
            run = make_run(as_fields(fields), where)
        except UserError as error:
            wrong.append(str(error))
            continue
        if once and run in done:
            continue
        done.add(run)
        reason = next((rule.because for rule in sweep.exclude if rule.matches(run)), None)
        outside = tuple(name for name in varied if name not in id_fields(run))
        for repetition in range(sweep.repetitions_of(run.profile)):
            sweep_run = SweepRun(run, repetition, outside)
            if reason is None:
                sweep_runs.append(sweep_run)
            else:
                excluded.append(Excluded(sweep_run, reason))
    if wrong:
        raise Mistakes(wrong)
    if len({sweep_run.id for sweep_run in sweep_runs}) < len(sweep_runs):
        raise UserError(f"{where}: a field of `run:` has the same value twice")
    return sweep_runs, excluded


def choose(sweep: Sweep, only: Sequence[str], where: str) -> tuple[list[SweepRun], list[Excluded]]:
    """The runs of a sweep that all of ``only`` choose, and those its rules leave out."""
    sweep_runs, excluded = expand(sweep, where)
    factors = {name for sweep_run in sweep_runs for name in sweep_run.configuration.factors}
    wanted = parse_only(only, factors)
    chosen = select(sweep_runs, wanted)
    if chosen:
        return chosen, excluded
    for name, values in wanted.items() if sweep_runs else ():
        if not select(sweep_runs, {name: values}):
            there = dict.fromkeys(as_text(one.configuration.value(name)) for one in sweep_runs)
            given = ",".join(map(as_text, values))
            raise UserError(f"{where}: no runs: --only {name}={given}, but {name} has {', '.join(there)}")
    raise UserError(f"{where}: no runs are left by {f'--only {only}' if sweep_runs else 'its exclude rules'}")


def ordered(sweep_runs: Sequence[SweepRun], sweep: Sweep, seed: int) -> list[SweepRun]:
    """The runs in their order; a random one keeps a drift of the machine from looking like an effect."""
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
        if all(_has(sweep_run.configuration, name, values) for name, values in only.items())
    ]


def _has(run: Run, name: str, values: Sequence[Any]) -> bool:
    value = run.value(name)
    return (as_text(value) if name in run.factors else value) in values


def parse_only(pairs: Sequence[str], factors: Collection[str] = ()) -> dict[str, list[Any]]:
    """``["loader=synthetic", "batch=32,64"]`` as field -> values; a program's own factors as text."""
    only: dict[str, list[Any]] = {}
    wrong = []
    known = (*factors, *Run.model_fields)
    for pair in pairs:
        name, equals, values = pair.partition("=")
        if not equals:
            wrong.append(f"--only {pair}: use FIELD=VALUE")
        elif name not in known:
            wrong.append(f"--only {pair}: unknown field {name!r}{did_you_mean(name, known)}")
        for value in values.split(",") if equals and name in known else ():
            try:
                only.setdefault(name, []).append(value if name in factors else parse_value(name, value))
            except UserError as error:
                wrong.append(f"--only {pair}: {error}")
    if wrong:
        raise Mistakes(wrong)
    return only
