"""A set of results: the runs that count, those that do not, and findings.

What was loaded never changes. Whether a run's tables can be used shows only when a measure reads them, so a
measure asks for its runs' answers through :meth:`Study.use` or :meth:`Study.each`: the function of a run
raises :class:`Unusable`, that one place catches it and writes the run into the log, and from then on the run
is not among :attr:`Study.sources`, whoever asks. Everything in tables is not read at loading because it may
be gigabytes of which a question needs two columns; and an answer is not begun again without the run because
what was said of the other runs still holds.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import duckdb

from analysis.results.log import Failure, FailureKind, Log
from analysis.results.source import Kind, Source, Unusable
from jobs.run import Run
from jobs.run_fields import own_names
from jobs.store import Calibration
from profiling import database
from profiling.errors import UserError
from profiling.findings import Finding, Side, lines

if TYPE_CHECKING:
    import pandas as pd

# What the figures of a source are of.
A_STEP, RECORDING = "a step", "the whole recording"

_Answer = TypeVar("_Answer")


@dataclass
class Contents:
    """What is found in a folder while it is loaded; :class:`Study` is made of the whole."""

    path: Path
    sources: list[Source] = field(default_factory=list)
    log: Log = field(default_factory=Log)
    calibration: Calibration | None = None

    def note(self, code: str, source: Source | None = None, **data: object) -> None:
        self.log.note(code, source.id if source else None, "", **data)

    def fail(self, point: str, reason: str, kind: FailureKind) -> None:
        self.log.failed.append(Failure(point, reason, kind))


@dataclass(frozen=True)
class Study:
    """What :func:`analysis.results.load.load` found, and the log of what is asked of it.

    Attributes:
        path: what was loaded.
        loaded: runs, PyProf tables and TAU tables, as they were when it was loaded.
        log: what was left out, then or since, and notes.
        calibration: peaks measured on the machine of the sweep.
        own_peaks: a peaks file of the user's.
        named: the user gave each folder of traces its number of ranks, to compare them.
    """

    path: Path
    loaded: tuple[Source, ...] = ()
    log: Log = field(default_factory=Log)
    calibration: Calibration | None = None
    own_peaks: Path | None = None
    named: bool = False
    _kept: dict[str, dict[Any, Any]] = field(default_factory=dict, repr=False)

    def of_kind(self, *kinds: Kind) -> tuple[Source, ...]:
        """What counts of these kinds, in the order in which it was loaded."""
        return tuple(self.usable(source for source in self.loaded if source.kind in kinds))

    def usable(self, sources: Iterable[Source]) -> list[Source]:
        """Those of the sources that nothing was found wrong with so far."""
        return [source for source in sources if source.path not in self.log.unusable]

    @property
    def sources(self) -> tuple[Source, ...]:
        """The runs, traces and PyProf tables that count."""
        return self.of_kind("run", "trace", "pyprof")

    @property
    def recorded(self) -> tuple[Source, ...]:
        """The runs and traces that a profiler recorded, whose ranks have tables."""
        return tuple(
            source for source in self.of_kind("run", "trace") if source.fields.get("profile") != "none"
        )

    @property
    def only_traces(self) -> bool:
        """Whether it holds traces of jobs, and no run that was started or watched here."""
        return bool(self.of_kind("trace")) and not self.of_kind("run")

    @property
    def on_cpus(self) -> bool:
        """Whether all runs ran without GPUs; False where there are none."""
        runs = self.of_kind("run")
        return bool(runs) and all(run.on_cpus for run in runs)

    @property
    def unit(self) -> str:
        """What a batch size is of: ``GPU``; ``rank`` without GPUs."""
        return "rank" if self.on_cpus else "GPU"

    @property
    def tau_intervals(self) -> tuple[Source, ...]:
        """The reference's TAU tables of timers that count; ``tau_atomics``: those of events."""
        return self.of_kind("tau_intervals")

    @property
    def tau_atomics(self) -> tuple[Source, ...]:
        return self.of_kind("tau_atomics")

    @property
    def failed(self) -> list[Failure]:
        """What does not count, with reasons."""
        return self.log.failed

    # --- asking it ------------------------------------------------------------------------------------

    def use(self, source: Source, function: Callable[[Source], _Answer]) -> _Answer | None:
        """``function(source)``; None, and the log says why, if the run cannot be used or was found so before.

        Args:
            function: reads no other run, and raises :class:`Unusable` where this one cannot be used.
        """
        if not self.usable([source]):
            return None
        try:
            return function(source)
        except Unusable as error:
            if error.source.without_times:  # nothing is wrong with it
                self.note("not_recorded", error.source, what="times of steps")
                return None
            self.log.leave_out(error.source.id, error.source.path, error.reason)
            return None

    def each(
        self, sources: Iterable[Source], function: Callable[[Source], _Answer | None]
    ) -> Iterator[tuple[Source, _Answer]]:
        """Each run with what ``function`` says of it, but those that cannot be used and those with None."""
        for source in sources:
            answer = self.use(source, function)
            if answer is not None:
                yield source, answer

    def a_step(self, ids: Iterable[str]) -> str:
        """What figures of these sources are of: ``a step``, or the whole recording where none is known."""
        of = dict.fromkeys(ids)
        without = [source.id for source in self.recorded if source.without_steps and source.id in of]
        if not without:
            return A_STEP
        return RECORDING if len(without) == len(of) else f"{A_STEP} (of {', '.join(without)}: {RECORDING})"

    def without_steps(self) -> set[str]:
        """The jobs of which a whole recording counts as one step: headlines are of others, if any."""
        return {source.id for source in self.recorded if source.without_steps}

    def kept(self, what: str) -> dict[Any, Any]:
        """What a measure keeps for the next question, by keys of its own.

        Args:
            what: names what is kept; of two measures that keep different things never the same.
        """
        return self._kept.setdefault(what, {})

    @cached_property
    def connection(self) -> "duckdb.DuckDBPyConnection":
        """A DuckDB connection of this study's own."""
        return database.connect()

    # --- what is said of it ---------------------------------------------------------------------------

    def note(self, code: str, source: Source | None = None, side: Side = "", **data: object) -> None:
        """Add a finding, once; on a run, if one is given.

        Args:
            code: of a catalogue (:mod:`profiling.findings`).
            data: what its template names; ``rank`` and ``configuration`` say what else it is of.
        """
        self.log.note(code, source.id if source else None, side, **data)

    @property
    def findings(self) -> list[Finding]:
        """Of the runs that do not count, then of the others."""
        return self.log.findings

    def notes(self) -> list[str]:
        """The findings on what counts, as lines."""
        return lines(self.log.noted)

    def nothing(self, why: str) -> UserError:
        """The error of an analysis that has nothing to show, with what was wrong with a run it took out."""
        bad = [failure for failure in self.failed if failure.kind == "unusable"]
        without = [source for source in self.sources if source.without_times]
        if without and not bad:
            return UserError(f"{why}; {without[0].id} holds no times of steps")
        return UserError(f"{why}; {bad[0].point} is not used: {bad[0].reason}" if bad else why)

    @property
    def own_factors(self) -> list[str]:
        """The factors of programs' own that its runs have, as answers name them."""
        return own_names(*(source.fields for source in self.sources))

    @property
    def runs(self) -> "pd.DataFrame":
        """One row a run or PyProf table that counts.

        Columns: ``run``, ``kind`` (run, pyprof), all fields of Run (null where a reference file does not say
        them), :attr:`own_factors`, ``repetition``, ``exit_code``, ``world_size``, ``directory`` (or the
        file), ``device_name``, ``seconds`` (whole wall time), ``started``.
        """
        import pandas as pd

        of_runs = [name for name in Run.model_fields if name != "factors"]
        columns = [
            "run", "kind", *of_runs, *self.own_factors, "repetition", "exit_code", "world_size", "directory",
            "device_name", "seconds", "started",
        ]  # fmt: skip
        return pd.DataFrame([_row(source) for source in self.sources], columns=columns)


def _row(source: Source) -> dict[str, Any]:
    manifest = source.manifest
    return {
        "run": source.id,
        "kind": source.kind,
        **source.fields,
        "repetition": source.repetition,
        "exit_code": source.exit_code,
        "world_size": source.world_size,
        "directory": str(source.path),
        "device_name": next(iter(source.devices), None),
        "seconds": manifest.seconds if manifest else None,
        "started": manifest.started if manifest else None,
    }
