"""How a run ended: its manifest, and for a failure its kind, rank and node, and whether to retry.

Only this module interprets what launchers print when a rank dies; tests/jobs/failures holds the output of
real launchers.
"""

import re
import signal
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import Literal

from jobs import machine, store
from jobs.run import Run
from jobs.store import Manifest, RankReport
from profiling import flight_recorder, tables
from profiling.errors import EXIT_DONE, EXIT_FAILED, EXIT_WRONG_USE, UserError
from profiling.findings import Finding, listed
from profiling.wrap import wraps

Kind = Literal[
    "out of memory", "time limit", "node failure", "disk full", "rank crash", "hang", "launcher error",
    "profiler error", "library error", "wrong use", "wrong result", "interrupted",
]  # fmt: skip

# kind -> how often a run is tried again. What would only end in the same way is not.
RETRIES: dict[Kind, int] = {
    "node failure": 3, "disk full": 2, "hang": 1, "rank crash": 1, "launcher error": 1,
}  # fmt: skip
# A node is left out when so many failures of these kinds came from it.
BLAMES_NODE: frozenset[Kind] = frozenset({"node failure", "disk full"})
NODE_FAILURES = 2

# Of a log: where one of a thousand ranks has died, all others may say at length that they have lost it.
_LOG_TAIL_BYTES, _BYTES_OF_A_RANK = 200_000, 8_000
_MOST_NAMED = 8  # ranks that are named as being elsewhere than the others

_NODE_FAILURE = re.compile(
    r"srun: error: Node failure on (?P<slurm>\S+)|DUE TO NODE FAILURE"
    r"|node failure on (?P<flux>\S+) \((?:shell )?rank "
    r"|lost communication with a remote daemon(?:.*?Remote daemon:.*?on node (?P<mpi>[\w.-]+))?",
    re.DOTALL,
)
_OUT_OF_MEMORY = re.compile(
    r"^.*(?:Out Of Memory|oom[-_ ]?kill|OutOfMemoryError|CUDA out of memory|memory does not hold"
    r"|not enough memory for"
    r"|can't allocate memory|MemoryError|CUDA error: out of memory|(?:CUDNN|CUBLAS)_STATUS_ALLOC_FAILED"
    r"|Cuda failure (?:2 )?'out of memory').*$",
    re.MULTILINE | re.IGNORECASE,
)
_DISK_FULL = re.compile(r"^.*(?:No space left on device|Disk quota exceeded).*$", re.MULTILINE)
# Keys of the site file -> what a launcher says where they are wrong: no other try changes that.
_WRONG_SITE = {
    "`gpus_per_node`": r"^srun: error: .*Invalid generic resource.*$",
    "`srun`": r"^srun: (?:unrecognized|invalid) option.*$",
    "`mpi.flags`": r"^An unrecognized option was included on the mpirun command line:\s+Option: \S+",
    "`container` or `modules`": r"^\S*: error: execve\(\): (?:apptainer|singularity): .*$",
}
_NO_MPI = re.compile(r"^srun: error: (Invalid MPI type .*)$", re.MULTILINE)
# Before that line, of a type that Slurm lists: what cannot be loaded, behind the place in Slurm's source.
_WHY_NO_MPI = re.compile(
    r"^srun: error: (?:.*\.c:\d+: |\s*)(\S*pmix?\S*: .*\b(?:can ?not|could ?n[o']t|unable to) .*)$",
    re.MULTILINE | re.IGNORECASE,
)
_LAUNCHER = re.compile(
    r"^(?P<line>srun: error: (?:Task launch|Only allocated|Invalid|Unable to|.*[Pp]lugin).*"
    r"|\S*: error: execve\(\): .*"
    r"|flux-run: ERROR: .*|.*job\.exception \S+ type=alloc .*|.*flux-shell\[\d+\]: FATAL: .*start failed: .*"
    r"|.*(?:requested hosts is not included|not enough slots available|Could not resolve hostname"
    r"|requested more processes than the ppr|unable to (?:find|launch)|could not (?:find|access|execute)"
    r"|ssh: .*|daemon failed to report back|unable to reliably start|Permission denied \(publickey).*)$",
    re.MULTILINE,
)
# TAU's own last words: no binding for what was asked, another Python than it was built for, an abort.
_PROFILER = re.compile(
    r"^.*(?:No matching binding for|TAU Error: |TAU: Runtime overlap|TAU: pytau_stop: Stack error"
    r"|module 'tau' not found).*$",
    re.MULTILINE,
)
# tau_exec looks for a binding with MPI first, and says this also where it then finds one without and goes on.
_LOOKED_FOR = re.compile(r"^Error: No matching binding for .*$", re.MULTILINE)
_NOT_FOUND = "Binding not found. Exiting"
# The dynamic loader's, where a library was built for another MPI or CUDA than is found.
_LIBRARY = re.compile(r"^.*(?:symbol lookup error: |error while loading shared libraries: ).*$", re.MULTILINE)
_MISSING_HOST = re.compile(r"(?:Missing requested host|Remote host): +(\S+)")
# srun's own way to end a step: what dies after this line was ended, and is not why.
_ENDING = re.compile(r"^.*(?:Terminating StepId|CANCELLED AT|Force Terminated).*$", re.MULTILINE)
_SRUN_DEATH = re.compile(
    r"^srun: error: (?P<node>[\w.-]+): tasks? (?P<rank>\d+)[\d,-]*: "
    r"(?:Exited with exit code (?P<code>\d+)|(?P<signal>[A-Z][\w ]+?))(?: \(core dumped\))?$",
    re.MULTILINE,
)
_OPEN_MPI_DEATH = re.compile(
    r"noticed that process rank (?P<rank>\d+) with PID \d+ on node (?P<node>[\w.-]+) exited on\s+"
    r"signal (?P<number>\d+)"
)
_OPEN_MPI_EXIT = re.compile(r"Process name: \[.*,(?P<rank>\d+)\]\s+Exit code:\s+(?P<code>\d+)")
_HYDRA_DEATH = re.compile(
    r"BAD TERMINATION OF.*?(?:RANK (?P<rank>\d+) )?PID \d+ RUNNING AT (?P<node>[\w.-]+)\s*"
    r"=\s+(?:EXIT CODE: (?P<code>\d+)|KILLED BY SIGNAL: (?P<number>\d+))",
    re.DOTALL,
)
# One line of PALS's mpiexec for each rank (pmodels/mpich#7605), which ends the others by signal 15; one of
# flux-shell's task-exit for the first.
_PALS_DEATH = re.compile(
    r"^(?P<node>[\w.-]+): rank (?P<rank>\d+) "
    r"(?:died from signal (?!15\b)(?P<number>\d+)|exited with code (?P<code>\d+))",
    re.MULTILINE,
)
_FLUX_DEATH = re.compile(
    r"task rank (?P<rank>\d+) on host (?P<node>[\w.-]+) (?:failed|exited) "
    r"\((?:Exit (?P<code>\d+)|(?P<signal>[\w ]+))\)"
)
_DEATHS = (_OPEN_MPI_DEATH, _OPEN_MPI_EXIT, _HYDRA_DEATH, _PALS_DEATH, _FLUX_DEATH, _SRUN_DEATH)
_LAST_WORDS: dict[Kind, re.Pattern[str]] = {"profiler error": _PROFILER, "library error": _LIBRARY}
_SIGNALS = {signal.strsignal(number): number for number in signal.Signals}
# argparse's, of a program of the user's: its arguments are not as it wants them.
_USAGE = re.compile(r"^(?!srun|slurmstepd|mpirun|prterun)\S+: error: .*$", re.MULTILINE)
_OWN = "scaleprof: error: "
_SAID: tuple[Kind, ...] = ("wrong use", "wrong result", "interrupted")  # the reason says it itself
_RAISED = re.compile(r"(\[rank\d+\]: ?)?[\w.]*(Error|Exception)\b.*:")


def death_of(who: str, code: int) -> str:
    """How a process ended: by a signal, or with an exit code."""
    if code < 0:
        return f"{who} was killed by signal {-code} ({signal.Signals(-code).name})"
    return f"{who} ended with exit code {code}"


@dataclass(frozen=True)
class Ended:
    """How a run's processes ended: the first bad exit code (negative: a signal), and why, in one line."""

    exit_code: int
    reason: str = ""
    kind: Kind | None = None  # of the failure, where it was we who ended them
    process: int | None = None  # whose exit code it is


@dataclass(frozen=True)
class Failure:
    kind: Kind
    text: str
    exit_code: int
    nodes: tuple[str, ...] = ()

    @property
    def reason(self) -> str:
        """The line with its kind, where the line does not say it."""
        return self.text if self.kind in _SAID else f"{self.kind}: {self.text}"


def explain(exit_code: int, ending: str, log: str, kind: Kind | None = None) -> Failure:
    if kind is not None:
        return Failure(kind, ending, exit_code)
    if _NOT_FOUND not in log:
        log = _LOOKED_FOR.sub("", log)
    crash = first_death(log) or Failure("rank crash", ending, exit_code)
    code = crash.exit_code
    if lost := lost_node(log):
        return lost
    if match := _OUT_OF_MEMORY.search(log):
        return replace(crash, kind="out of memory", text=_line(match[0]))
    if match := _DISK_FULL.search(log):
        return replace(crash, kind="disk full", text=_line(match[0]))
    if why := why_no_mpi(log):
        return Failure("wrong use", f"{why}: correct `mpi.srun` in the site file", code)
    for keys, pattern in _WRONG_SITE.items():
        if match := re.search(pattern, log, re.MULTILINE):
            line = " ".join(match[0].split())
            return Failure("wrong use", f"{line}: correct {keys} in the site file", code)
    if match := _LAUNCHER.search(log):
        missing = _MISSING_HOST.search(log)
        return Failure("launcher error", _line(match[0]) + (f": {missing[1]}" if missing else ""), code)
    for last_kind, words in _LAST_WORDS.items():
        if match := words.search(log):
            return replace(crash, kind=last_kind, text=_line(match[0]))
    if code < 0:
        return crash
    if own := [line.partition(_OWN)[2] for line in log.splitlines() if _OWN in line]:
        return Failure("wrong use", own[0].strip(), code)
    if code == EXIT_WRONG_USE and (usage := _USAGE.search(log)):
        return replace(crash, kind="wrong use", text=usage[0].strip()[:500])
    raised = (line for line in log.splitlines() if _RAISED.match(line))
    return replace(crash, text=next(raised, crash.text).strip()[:500])


def why_no_mpi(stderr: str) -> str:
    """Why srun does not take its ``--mpi``: of the lines that it prints, the one that says it; else ""."""
    if not (refused := _NO_MPI.search(stderr)):
        return ""
    why = _WHY_NO_MPI.search(stderr)
    return f"{why[1].strip()} ({refused[1].partition(',')[0]})" if why else refused[1]


def lost_node(log: str) -> Failure | None:
    """The failure of a node that a launcher reports, also where the ranks that are left have ended well."""
    if not (failed := _NODE_FAILURE.search(log)):
        return None
    node, death = failed["slurm"] or failed["flux"] or failed["mpi"], first_death(log)
    text = f"{node or 'node'} has stopped responding"
    return Failure("node failure", text, (death and death.exit_code) or 1, (node,) if node else ())


def _line(text: str) -> str:
    """One line of a log as a reason: without who says it."""
    return text.strip().partition(_OWN)[2].strip() or text.strip()[:300]


def first_death(log: str) -> Failure | None:
    """The rank that died first, as the launcher tells it; None if it says nothing."""
    # srun's lines come last: the MPIs start their daemons with srun, which then speaks of those.
    ending = _ENDING.search(log)
    logs = {_SRUN_DEATH: log[: ending.start()] if ending else log}
    for pattern in _DEATHS:
        # A rank that was killed is why others gave up at the same time.
        deaths = [_death(match) for match in pattern.finditer(logs.get(pattern, log))]
        if first := min(deaths, key=lambda death: death.exit_code >= 0, default=None):
            return first
    return None


def _death(match: re.Match[str]) -> Failure:
    said = match.groupdict()
    code, rank, node = int(said.get("code") or 0), said.get("rank"), said.get("node")
    if name := said.get("signal"):
        code = -_SIGNALS.get(name, signal.SIGKILL)
    elif said.get("number"):
        code = -int(said["number"])
    elif match.re is _HYDRA_DEATH and 2 < code < 16:
        code = -code  # MPICH gives a signal so; no program of ours ends with these codes
    who = (f"rank {rank}" if rank else "a rank") + (f" on {node}" if node else "")
    return Failure("rank crash", death_of(who, code), code, (node,) if node else ())


def make_manifest(
    run: Run, repetition: int, directory: Path, ended: Ended, command: list[str],
    environment: Mapping[str, str], started: datetime, unknown: Sequence[str] = (),
) -> Manifest:  # fmt: skip
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
        **{**machine.facts(environment, started), "versions": versions},
        peak_memory_bytes=max((report.peak_memory_bytes for report in reports), default=0),
        ranks=reports,
        findings=list(dict.fromkeys([*findings, *ranks])),
        unknown=list(unknown),
    )


def judge(
    run: Run, directory: Path, ended: Ended, reports: Sequence[RankReport], wrong: str
) -> tuple[Failure | None, list[Finding]]:
    """Why a run failed (None: it counts), and what is to be said of how it ended."""
    wrong = wrong or next(machine.refused_by(store.check_run, run, reports, directory), "")
    if not ended.exit_code and not wrong:
        return None, []
    log = log_tail(directory / store.LOG, run.ranks)
    if not ended.exit_code:
        return lost_node(log) or Failure("wrong result", wrong, EXIT_FAILED), []
    failure = explain(ended.exit_code, ended.reason, log, ended.kind)
    # A user's program may have ended well, and Python then aborted as it exited. PyTorch does this to
    # programs that use Gloo (pytorch/pytorch#190489), the more often the more ranks, so another try is no
    # remedy. A profiler that wraps the ranks leaves no tables then.
    aborted = failure.kind == "rank crash" and failure.exit_code == -signal.SIGABRT
    ended_well = all(report.program_exit_code == EXIT_DONE for report in reports)
    if not wrong and run.program and not wraps(run.profile) and aborted and ended_well:
        return None, [Finding("aborted_at_exit", data={"text": failure.text})]
    return failure, []


def read_reports(directory: Path, run: Run) -> tuple[list[RankReport], str]:
    """What the ranks say of themselves, and what is wrong with that ("" if nothing)."""
    reports, wrong = [], ""
    for rank in range(run.ranks):
        path = tables.rank_directory(directory, rank) / store.RANK_REPORT
        try:
            reports.append(store.read_record(path, RankReport))
        except UserError as error:
            wrong = wrong or f"rank {rank} left no report: {error}"
    return reports, wrong


def log_tail(log: Path, ranks: int = 1) -> str:
    """The end of a log of so many ranks, where the reason of a failure stands; "" if there is none."""
    if not log.exists():
        return ""
    with log.open("rb") as file:
        file.seek(max(0, log.stat().st_size - _LOG_TAIL_BYTES - ranks * _BYTES_OF_A_RANK))
        return file.read().decode("utf-8", "replace")


def gather_stacks(directory: Path, ranks: int) -> str:
    """Put what hanging ranks wrote of where they were (profiling/process.py) into the log, each once.

    Returned are the few ranks that were not where the others waited, to be added to a reason.
    """
    places: dict[str, list[int]] = {}
    not_started = "(not started)\n"
    for rank in range(ranks):
        folder = tables.rank_directory(directory, rank)
        try:
            stacks = (folder / store.STACKS).read_text(errors="replace")
            place = re.sub(r"0x[0-9a-f]+", "0x...", stacks) or "(no stacks were written)\n"
        except FileNotFoundError:  # a rank that ends takes it away
            place = "(ended)\n" if (folder / store.RANK_REPORT).exists() else not_started
        places.setdefault(place, []).append(rank)
    with (directory / store.LOG).open("a", encoding="utf-8") as log:
        for place, there in sorted(places.items(), key=lambda item: len(item[1])):
            log.write(f"\nranks {listed(there)}:\n{place}")
        waits: list[flight_recorder.Wait] = []
        dumps = directory.glob(f"rank_*/*{flight_recorder.SUFFIX}")
        try:
            waits = flight_recorder.waits(flight_recorder.read_all(dumps))
        except UserError as error:
            log.write(f"{error}\n")
        log.writelines(f"{wait}\n" for wait in waits)
    if waits:
        return f"; {waits[0]}"
    most = max(map(len, places.values()))
    others = {place: there for place, there in places.items() if len(there) < most}
    if 2 * most <= ranks or sum(map(len, others.values())) > _MOST_NAMED:
        return ""
    absent = others.pop(not_started, [])
    named = {"not started": absent, "elsewhere": sorted(rank for there in others.values() for rank in there)}
    return "".join(f"; {what}: ranks {listed(there)}" for what, there in named.items() if there)
