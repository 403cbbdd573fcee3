"""Results of single-node studies as files, and the hand-over to the command that answers.

    results/studies/<study>-<cpu|gpu>-<time>/manifest.json        StudyManifest; written last
                                             durations.parquet    every timed repetition
                                             quantities.parquet   every other figure, or why there is none
                                             log.txt              what the processes it started printed

Nothing here needs torch: ``train.studies`` measures, ``analysis.studies`` answers.
"""

import sys
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from jobs import store
from jobs.failures import Ended
from jobs.launchers.base import Process
from jobs.machine import facts
from jobs.processes import Limits, become, run_processes
from jobs.store import StudyManifest
from profiling import schemas, tables
from profiling.errors import UserError
from profiling.findings import Finding

_ROOT = Path(__file__).resolve().parents[1]


class Recorder:
    """What a study has measured so far.

    Args:
        study: its name, e.g. ``layers``.
        settings: its flags, for the manifest.
        directory: of its result (:func:`new_directory`); made when something is written.
    """

    def __init__(self, study: str, settings: Mapping[str, Any], directory: Path) -> None:
        self.study, self.directory = study, directory
        self.findings: list[Finding] = []
        self._settings = {name: _plain(value) for name, value in settings.items()}
        self._started = datetime.now(UTC)
        self._rows: dict[str, list[tuple]] = {"durations": [], "quantities": []}

    def quantity(self, case: str, device: str, quantity: str, value: float | None, note: str = "") -> None:
        """A figure of a case; of one that could not be had, None and why."""
        self._rows["quantities"].append(
            (case, device, quantity, None if value is None else float(value), note)
        )

    def case(
        self, case: str, device: str, durations_ns: Mapping[str, Iterable[int]], **figures: float | None
    ) -> None:
        """The durations of a case's stages, in ns in the order of repetitions, and figures by their names."""
        for stage, durations in durations_ns.items():
            self._rows["durations"] += [(case, device, stage, n, int(ns)) for n, ns in enumerate(durations)]
        for name, value in figures.items():
            self.quantity(case, device, name, value)

    def find(self, code: str, **data: Any) -> None:
        """Add a finding, once."""
        if (finding := Finding(code, data=data)) not in self.findings:
            self.findings.append(finding)

    def write(self, warmup: int, repetitions: int) -> None:
        """Write the tables and, last, the manifest."""
        self.directory.mkdir(parents=True, exist_ok=True)
        for name, rows in self._rows.items():
            columns = {
                column: [row[n] for row in rows] for n, column in enumerate(schemas.SCHEMAS[name].names)
            }
            tables.write(tables.as_table(name, columns), self.directory, name)
        manifest = StudyManifest(
            study=self.study,
            settings=self._settings,
            devices=list(dict.fromkeys(row[1] for rows in self._rows.values() for row in rows)),
            warmup=warmup,
            repetitions=repetitions,
            command=[sys.executable, *sys.orig_argv[1:]],
            findings=self.findings,
            **facts({}, self._started, _ROOT),
        )
        store.write_record(self.directory / store.MANIFEST, manifest)


def _plain(value: Any) -> Any:
    if isinstance(value, list):
        return [str(item) for item in value]
    return value if value is None or isinstance(value, str | int | float | bool) else str(value)


def run_fresh(commands: Sequence[list[str]], directory: Path, time_s: float) -> tuple[Ended, str]:
    """Run processes with nothing but their arguments: how they ended, and what they printed.

    Args:
        commands: what follows ``python``; what they print goes into the study's log, too.
        time_s: after which they are ended.
    """
    # Threads that wait do so by sleeping: the stages of one network take turns. And glibc gives freed blocks
    # of a MiB and more back to the kernel, so that what counts against a limit is what is in use.
    environment = {"GOMP_SPINCOUNT": "10000", "MALLOC_MMAP_THRESHOLD_": str(1 << 20)}
    processes = [Process([sys.executable, *command], environment) for command in commands]
    log = directory / store.LOG
    before = log.stat().st_size if log.exists() else 0
    ended = run_processes(processes, log, Limits(time_s), _ROOT)
    return ended, log.read_bytes()[before:].decode("utf-8", "replace")


def new_directory(study: str, device: str, out: Path | None) -> Path:
    """The directory of a new result: ``out``, else one below results/studies named by the time."""
    now = datetime.now(UTC).strftime("%Y%m%dT%H%M%S.%f")[:-3]
    directory = out or Path("results") / "studies" / f"{study}-{device}-{now}"
    if (directory / store.MANIFEST).exists():
        raise UserError(f"{directory} already contains a result; choose another with --out")
    return directory


def answer(directory: Path, form: str, output: Path | None) -> None:
    """Become the command that answers from a study's result; it does not return."""
    written = ["--output", str(output)] if output else []
    print(directory, file=sys.stderr, flush=True)
    become([sys.executable, "-m", "analysis.studies", str(directory), "--format", form, *written])
