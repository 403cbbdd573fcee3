"""Make the manifest of a run that has ended: whether it is right, and if not, why."""

import os
import re
import signal
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from statistics import median
from typing import Any

from jobs import machine, store
from jobs.failures import Failure, explain, lost_node
from jobs.processes import Ended
from jobs.run import Run
from jobs.store import Manifest, RankReport
from profiling import tables
from profiling.errors import EXIT_DONE, EXIT_FAILED, UserError
from profiling.findings import Finding, listed
from profiling.wrap import wraps

# Of a log: where one of a thousand ranks has died, all others may say at length that they have lost it.
_LOG_TAIL_BYTES, _BYTES_OF_A_RANK = 200_000, 8_000
_THREAD = re.compile(r"0x[0-9a-f]+")
_NOTHING, _ENDED, _NOT_STARTED = "(no stacks were written)\n", "(ended)\n", "(not started)\n"
_OF_HOST = ("hostname", "os", "cpu", "cores", "memory_bytes")
_MOST_NAMED = 8  # ranks that are named as being elsewhere than the others


def make_manifest(
    run: Run,
    repetition: int,
    directory: Path,
    ended: Ended,
    command: list[str],
    environment: Mapping[str, str],
    started: datetime,
    root: Path,
    unknown: Sequence[str] = (),
) -> Manifest:
    """The facts of a run that has ended; a run that is not right gets an exit code other than 0."""
    reports, wrong = read_reports(directory, run)
    failure, findings = judge(run, directory, ended, reports, wrong)
    ranks = [finding.of(rank=report.rank) for report in reports for finding in report.findings]
    versions = {**machine.versions(), **(reports[0].versions if reports else {})}
    return Manifest(
        run=run,
        repetition=repetition,
        exit_code=failure.exit_code if failure else EXIT_DONE,
        reason=failure.reason if failure else "",
        failure=failure.kind if failure else "",
        failed_nodes=list(failure.nodes) if failure else [],
        command=command,
        **{**facts(environment, started, root), "versions": versions},
        peak_memory_bytes=max((report.peak_memory_bytes for report in reports), default=0),
        ranks=reports,
        findings=list(dict.fromkeys([*findings, *ranks])),
        unknown=list(unknown),
    )


def judge(
    run: Run, directory: Path, ended: Ended, reports: Sequence[RankReport], wrong: str
) -> tuple[Failure | None, list[Finding]]:
    """Why a run failed (None: it counts), and what is to be said of how it ended."""
    if not wrong:
        try:
            check_run(run, reports, directory)
        except UserError as error:
            wrong = str(error)
    if not ended.exit_code and not wrong:
        return None, []
    log = log_tail(directory / store.LOG, run.ranks)
    if not ended.exit_code:
        return lost_node(log) or Failure("wrong result", wrong, EXIT_FAILED), []
    failure = explain(ended.exit_code, ended.reason, log, ended.kind)
    if wrong or not aborted_at_exit(run, reports, failure):
        return failure, []
    return None, [Finding("aborted_at_exit", data={"text": failure.text})]


def aborted_at_exit(run: Run, reports: Sequence[RankReport], failure: Failure) -> bool:
    """Whether a user's program had ended well, and then Python aborted as it exited.

    PyTorch does this to programs that use Gloo (pytorch/pytorch#190489), the more often the more ranks, so
    another try is no remedy. A profiler that wraps the ranks leaves no tables then.
    """
    aborted = failure.kind == "rank crash" and failure.exit_code == -signal.SIGABRT
    ended_well = all(report.program_exit_code == EXIT_DONE for report in reports)
    return bool(run.program) and not wraps(run.profile) and aborted and ended_well


def facts(environment: Mapping[str, str], started: datetime, root: Path) -> dict[str, Any]:
    """How, when and where something was measured that ends now: :class:`jobs.store.Facts` but its command."""
    here, now = machine.this_machine(), datetime.now(UTC)
    revision, dirty = machine.git_state(root)
    return {
        "environment": machine.recorded_environment({**os.environ, **environment}),
        "started": started.isoformat(),
        "ended": now.isoformat(),
        "seconds": (now - started).total_seconds(),
        "git_revision": revision,
        "git_dirty": dirty,
        "host": {name: getattr(here, name) for name in _OF_HOST},
        "gpus": list(here.gpus),
        "driver": here.driver,
        "versions": machine.versions(),
    }


def read_reports(directory: Path, run: Run) -> tuple[list[RankReport], str]:
    """What the ranks say of themselves, and what is wrong with that ("" if nothing)."""
    reports, wrong = [], ""
    for rank in range(run.ranks):
        try:
            path = tables.rank_directory(directory, rank) / store.RANK_REPORT
            reports.append(store.read_record(path, RankReport))
        except UserError as error:
            wrong = wrong or f"rank {rank} left no report: {error}"
    return reports, wrong


def check_run(run: Run, reports: Sequence[RankReport], directory: Path) -> None:
    """Refuse a run whose figures may not count, by its reports and its tables."""
    store.check_reports(run, reports)
    for rank in range(run.ranks):
        rows = tables.read(tables.rank_directory(directory, rank), "batches", ["batch_index"]).num_rows
        if rows != run.batches:
            raise UserError(f"rank {rank} recorded {rows} of {run.batches} steps")


def speed_of(directory: Path, run: Run) -> str:
    """``421 ms/step, 76.1 images/s (median of 12 steps)``, for the user who watches a sweep.

    Of the later half of rank 0's steps, unprofiled ones where there are any; "" if the table has no times.
    """
    table = tables.read(tables.rank_directory(directory, 0), "batches", ["start_ns", "end_ns", "attributed"])
    rows = [row for row in table.to_pylist() if None not in (row["start_ns"], row["end_ns"])]
    if not rows:
        return ""
    counted = [row for row in rows if not row["attributed"]] or rows
    later = counted[len(counted) // 2 :]
    step_ns = median(row["end_ns"] - row["start_ns"] for row in later)
    # How many samples a step of a program has is in its table, where it is known.
    rate = "" if run.program else f", {_digits(run.batch * run.world_size * 1e9 / step_ns)} images/s"
    return f"{_digits(step_ns / 1e6)} ms/step{rate} (median of {len(later)})"


def _digits(value: float) -> str:
    """Three digits, and all before the decimal point: ``0.0345``, ``76.1``, ``1214``."""
    return f"{value:#.3g}" if value < 99.95 else f"{value:.0f}"


def log_tail(log: Path, ranks: int = 1) -> str:
    """The end of a log of so many ranks, where the reason of a failure stands; "" if there is none."""
    if not log.exists():
        return ""
    with log.open("rb") as file:
        file.seek(max(0, log.stat().st_size - _LOG_TAIL_BYTES - ranks * _BYTES_OF_A_RANK))
        return file.read().decode("utf-8", "replace")


def gather_stacks(directory: Path, ranks: int) -> str:
    """Put what hanging ranks wrote of where they were (profiling/process_facts.py) into the log, each once.

    Returned are the few ranks that were not where the others waited, to be added to a reason.
    """
    places: dict[str, list[int]] = {}
    for rank in range(ranks):
        folder = tables.rank_directory(directory, rank)
        try:
            stacks = (folder / store.STACKS).read_text(errors="replace")
            place = _THREAD.sub("0x...", stacks) or _NOTHING
        except FileNotFoundError:  # a rank that ends takes it away
            place = _ENDED if (folder / store.RANK_REPORT).exists() else _NOT_STARTED
        places.setdefault(place, []).append(rank)
    with (directory / store.LOG).open("a", encoding="utf-8") as log:
        for place, there in sorted(places.items(), key=lambda item: len(item[1])):
            log.write(f"\nranks {listed(there)}:\n{place}")
    most = max(map(len, places.values()))
    others = {place: there for place, there in places.items() if len(there) < most}
    if 2 * most <= ranks or sum(map(len, others.values())) > _MOST_NAMED:
        return ""
    absent = others.pop(_NOT_STARTED, [])
    lost = sorted(rank for there in others.values() for rank in there)
    return (f"; not started: ranks {listed(absent)}" if absent else "") + (
        f"; elsewhere: ranks {listed(lost)}" if lost else ""
    )
