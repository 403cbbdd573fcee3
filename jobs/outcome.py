"""What became of a run: is it right, and if not, why? The manifest says it."""

import os
import re
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path

from jobs import machine, store
from jobs.processes import Ended
from jobs.run import Run
from jobs.store import Manifest, RankReport
from profiling import tables
from profiling.errors import EXIT_FAILED, UserError

_LOG_TAIL_BYTES = 200_000


def make_manifest(
    run: Run,
    repetition: int,
    directory: Path,
    ended: Ended,
    command: list[str],
    environment: Mapping[str, str],
    started: datetime,
    root: Path,
) -> Manifest:
    """The facts of a run that has ended; a run that is not right gets an exit code other than 0.

    Args:
        environment: what the launcher added to this process's environment.
        root: the project, whose git revision is recorded.
    """
    reports, wrong = read_reports(directory, run)
    exit_code, reason = ended.exit_code, ""
    if exit_code:
        reason = reason_from_log(directory / store.LOG) or ended.reason
    elif wrong or (wrong := why_not_right(run, reports, directory)):
        exit_code, reason = EXIT_FAILED, wrong
    here, now = machine.this_machine(), datetime.now(UTC)
    revision, dirty = machine.git_state(root)
    return Manifest(
        run=run,
        repetition=repetition,
        exit_code=exit_code,
        reason=reason,
        command=command,
        environment=machine.recorded_environment({**os.environ, **environment}),
        started=started.isoformat(),
        ended=now.isoformat(),
        seconds=(now - started).total_seconds(),
        git_revision=revision,
        git_dirty=dirty,
        host=here.as_host(),
        gpus=list(here.gpus),
        driver=here.driver,
        versions={**machine.versions(), **(reports[0].versions if reports else {})},
        peak_memory_bytes=max((report.peak_memory_bytes for report in reports), default=0),
        ranks=reports,
        findings=sorted({finding for report in reports for finding in report.findings}),
    )


def read_reports(directory: Path, run: Run) -> tuple[list[RankReport], str]:
    """What the ranks say of themselves, and what is wrong with that ("" if nothing)."""
    reports, wrong = [], ""
    for rank in range(run.world_size):
        try:
            path = tables.rank_directory(directory, rank) / store.RANK_REPORT
            reports.append(store.read_record(path, RankReport))
        except UserError as error:
            wrong = wrong or f"rank {rank} left no report: {error}"
    return reports, wrong


def why_not_right(run: Run, reports: Sequence[RankReport], directory: Path) -> str:
    """Why a run's figures may not count, in one line, by its reports and its tables; "" if they may."""
    wrong = store.why_not_right(run, reports)
    if wrong:
        return wrong
    for rank in range(run.world_size):
        try:
            rows = tables.read(tables.rank_directory(directory, rank), "batches", ["batch_index"]).num_rows
        except UserError as error:
            return str(error)
        if rows != run.batches:
            return f"rank {rank} recorded {rows} of {run.batches} batches"
    return ""


def reason_from_log(log: Path) -> str:
    """The line of a log that says best why a run failed: our own error line, else the last exception."""
    with log.open("rb") as file:
        file.seek(max(0, log.stat().st_size - _LOG_TAIL_BYTES))
        lines = file.read().decode("utf-8", "replace").splitlines()
    own = [line.partition("scaleprof: error: ")[2] for line in lines if "scaleprof: error: " in line]
    if own:
        return own[0].strip()
    raised = [line for line in lines if re.match(r"(\[rank\d+\]: ?)?[\w.]*(Error|Exception)\b.*:", line)]
    return raised[0].strip()[:500] if raised else ""
