"""The files of a result directory (docs/cluster.md lists them): records, the lock of a run, its state.

While a run is in progress, its directory is named after the id without the exit code, and ``owner.json`` in
it names the process that started it; at the end it is renamed to the full id. A run is done only if its
manifest, which is written last, says so. Every file is written under a temporary name and renamed. The owner
of a lock touches it regularly; a lock that is no longer touched may be taken over.
"""

import glob
import os
import re
import shutil
import socket
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Literal, NamedTuple

import psutil
import pyarrow as pa
import pyarrow.parquet as pq
from pydantic import BaseModel, SerializerFunctionWrapHandler, model_serializer

from jobs import ROOT
from jobs.machine import ask, job_id
from jobs.run import Run
from jobs.run_fields import FACTOR, exit_code_of
from profiling import tables
from profiling.errors import UserError
from profiling.findings import Finding
from profiling.tables import read_record, whole_file, write_record

MANIFEST, RANK_REPORT, SWEEP, CALIBRATION, LOG, OWNER, CHECK = (
    "manifest.json", "rank.json", "sweep.json", "calibration.json", "log.txt", "owner.json", "check.json",
)  # fmt: skip
STACKS = "stacks.txt"  # of a rank that hangs: in its own directory


# A newer release may write more fields than this one knows: they are kept out of the way.
class _Record(BaseModel, extra="ignore", defer_build=True):
    pass


class RankReport(_Record):
    """What one rank says of itself when it ends; written by ``train``, checked by ``jobs``."""

    rank: int
    world_size: int
    local_rank: int = 0
    hostname: str
    device: str  # "cpu", or the GPU's name
    bound_cpus: str = ""  # those near its GPU that it is bound to, e.g. "0-15"; "" if none is nearer
    bound_cards: list[str] = []  # likewise, of several InfiniBand devices
    backend: str  # single, ddp, ...; and the library it used, e.g. "ddp/gloo"
    threads: int = 0  # intra-op threads of the arithmetic on the CPU
    batches_done: int
    images_done: int
    losses_finite: bool
    parameter_digest: str  # of the parameters at the end (train.rank): equal on all ranks
    parameters: int = 0  # how many
    gradient_elements: dict[str, int] = {}  # rank 0: of each trained parameter, as the model registers them
    # Of a program that was watched (profiling.watch): the class of its outermost module, the precision of the
    # gradients that it exchanges, the processes of its data loader, the samples of a step; "", 0: not known.
    model: str = ""
    grad: str = ""
    workers: int = 0
    samples: int = 0
    program_exit_code: int = 0  # the process may then end by a signal
    forward_flops_per_image: float | None = None  # analytic, 1 multiply-add = 2
    training_flops_per_image: float | None = None
    startup_ns: int = 0  # process start to the first batch's start
    peak_memory_bytes: int = 0
    peak_device_memory_bytes: int | None = None  # of tensors
    peak_device_reserved_bytes: int | None = None  # that PyTorch took from the device: what must fit
    device_memory_bytes: int | None = None  # of its GPU; of several the largest
    compute_capability: str = ""  # of its GPU, e.g. "9.0"
    device_used_bytes: int | None = None  # of the device when the batches ended, all that uses it included
    metered_s: float = 0.0  # from before the first batch to after the last; 0: not metered
    device_energy_j: float | None = None  # of the GPUs that it drives, in that time
    processors_energy_j: float | None = None  # of its node's processors; local rank 0 says it for all
    unmetered: list[str] = []  # why an energy is not there
    versions: dict[str, str] = {}
    findings: list[Finding] = []


class Allreduce(_Record):
    """The bus bandwidth of an allreduce that all ranks of some nodes took part in."""

    nodes: int
    ranks_per_node: int
    network: str
    bus_bytes_per_s: float

    @property
    def exchange(self) -> tuple[int, int, str]:
        """As :attr:`jobs.run.Run.exchange`: what two allreduces must share to be compared."""
        return self.nodes, self.ranks_per_node, self.network.lower() if self.nodes > 1 else ""


class Calibration(_Record):
    """Peaks measured on this machine; keys are the number of ranks a node that measured together."""

    gemm_flops_per_s: dict[int, float]  # of one rank, fp32 unless said in `gemm_precision`
    copy_bytes_per_s: dict[int, float]  # of one rank: bytes read plus bytes written
    allreduces: list[Allreduce] = []
    device: str
    precision: str = "fp32"
    seconds: float
    findings: list[Finding] = []  # what makes the peaks doubtful

    def bus_bytes_per_s(self, run: Run) -> float | None:
        """Of an allreduce of as many ranks as a run's, on as many nodes; None: not measured."""
        return next((each.bus_bytes_per_s for each in self.allreduces if each.exchange == run.exchange), None)

    def beside(self, earlier: "Calibration | None") -> "Calibration":
        """This one with the allreduces of an earlier one; its peaks, too, where this has none."""
        if earlier is None:
            return self
        of = {each.exchange: each for each in (*earlier.allreduces, *self.allreduces)}
        peaks = self if self.gemm_flops_per_s else earlier
        return peaks.model_copy(update={"allreduces": list(of.values())})


class CheckedRank(_Record):
    """What a rank can do while all others do the same, in each round."""

    node: str
    gemm_flops_per_s: list[float]
    copy_bytes_per_s: list[float]  # bytes read plus bytes written
    steps_per_s: list[float]  # of training, without an exchange


class Link(_Record):
    """An allreduce of all ranks of such nodes, in each round."""

    nodes: list[str]
    size: int  # bytes
    bus_bytes_per_s: list[float]


class Check(_Record):
    """What the nodes of an allocation can do, each alone, in pairs and together (``jobs.check``)."""

    ranks: list[CheckedRank]
    pairs: list[Link] = []
    together: list[Link] = []
    device: str
    precision: str
    seconds: float


class Facts(_Record):
    """How, when and where something was measured."""

    command: list[str]
    environment: dict[str, str] = {}  # from an allow-list only
    started: str  # ISO 8601, UTC
    ended: str
    seconds: float
    git_revision: str | None = None
    git_dirty: bool | None = None
    host: dict[str, str | int | float | None] = {}  # hostname, cpu, cores, memory_bytes, os
    gpus: list[str] = []
    driver: str | None = None
    versions: dict[str, str] = {}
    findings: list[Finding] = []


class Manifest(Facts):
    """The facts of one ended run, stored once."""

    run: Run
    repetition: int
    exit_code: int
    reason: str = ""  # why it failed, in one line; empty if it is right
    failure: str = ""  # of which kind (jobs.failures)
    failed_nodes: list[str] = []  # where it failed
    peak_memory_bytes: int = 0  # of the rank that took most
    ranks: list[RankReport] = []
    unknown: list[str] = []  # fields of the run that say nothing: those of a program that was watched

    @model_serializer(mode="wrap")
    def _without_unknown(self, written: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """Its record has only what is known of the run: the default of an unknown field is no value of it."""
        record: dict[str, Any] = written(self)
        if isinstance(record.get("run"), dict):
            record["run"] = {name: of for name, of in record["run"].items() if name not in self.unknown}
        return record

    @property
    def fields(self) -> dict[str, Any]:
        """The run's fields; None where nothing is known. A program's own factors are each one of them.

        ``batches`` of a program is how many steps all of its ranks did.
        """
        fields = {**self.run.model_dump(exclude={"factors"}), **dict.fromkeys(self.unknown)}
        if self.run.program:
            done = (report.batches_done for report in self.ranks)
            fields["batches"] = min(self.run.batches, *done) if self.ranks else self.run.batches
        return {**fields, **{FACTOR + name: value for name, value in self.run.factors.items()}}

    @property
    def done(self) -> bool:
        return self.exit_code == 0


class StudyManifest(Facts):
    """The facts of one single-node study (``train.studies``)."""

    study: str  # capacity, layers, ...
    settings: dict[str, Any]  # its flags
    devices: list[str]  # "cpu", or the GPU's name
    warmup: int  # repetitions before those that are timed
    repetitions: int


def check_reports(run: Run, reports: Sequence[RankReport]) -> None:
    """Refuse a run whose figures may not count, by what its ranks say."""
    if len(reports) != run.ranks:
        raise UserError(f"ranks with a report: {len(reports)} of {run.ranks}")
    for report in reports:
        if report.world_size != run.ranks:
            raise UserError(f"rank {report.rank} saw {report.world_size} ranks, not {run.ranks}")
        # A program may end before its limit, if there is something to count by then.
        least = 1 + run.first_attributed * (run.profile != "none")
        if report.batches_done < (least if run.program else run.batches):
            raise UserError(f"steps done: {report.batches_done} of {run.batches} (rank {report.rank})")
        if not report.losses_finite:
            raise UserError(f"rank {report.rank} had a loss that is not finite; lower learning_rate")
        if report.parameter_digest != reports[0].parameter_digest:
            raise UserError(f"ranks 0 and {report.rank} ended with different parameters")


def check_run(run: Run, reports: Sequence[RankReport], directory: Path) -> None:
    """Refuse a run whose figures may not count, by its reports and its tables."""
    check_reports(run, reports)
    for rank, report in enumerate(reports):
        rows = tables.read(tables.rank_directory(directory, rank), "batches").num_rows
        steps = min(report.batches_done, run.batches)
        if rows != steps:
            raise UserError(f"rank {rank} recorded {rows} of {steps} steps")


def write_text(path: Path, text: str) -> None:
    with whole_file(path, kept=True) as file:
        file.write(text.encode())


def read_calibration(path: Path) -> Calibration | None:
    """What was measured on a machine; None: nothing, or the record is damaged: it is measured again."""
    try:
        return read_record(path, Calibration)
    except UserError:
        return None


def finish(directory: Path, manifest: Manifest) -> Path:
    """Write the manifest and give the directory its whole id; returns where the result is.

    An earlier failure of the same exit code is replaced, a finished result never.
    """
    write_record(directory / MANIFEST, manifest)
    ended = directory.with_name(f"{directory.name}_ret_{manifest.exit_code}")
    if ended.exists():
        if manifest.done and is_complete(ended):
            remove(directory)
            return ended
        set_aside(ended) if manifest.done else remove(ended)
    return directory.rename(ended)


def set_aside(directory: Path) -> Path:
    """Keep a damaged result under another name, so that its run can be repeated."""
    name, number = f".damaged-{directory.name}", 0
    while (aside := directory.with_name(f"{name}-{number}" if number else name)).exists():
        number += 1
    return directory.rename(aside)


def remove(directory: Path) -> None:
    """Remove a run's directory so that no reader ever takes what is left of it for a whole one."""
    doomed = directory.with_name(f".removed-{os.getpid()}-{directory.name}"[:255])
    directory.rename(doomed)
    shutil.rmtree(doomed)


def is_run(directory: Path) -> bool:
    """Whether a directory holds a run that has ended: a manifest, and ranks (a study's manifest has none)."""
    named = directory.name.startswith("run_")
    return (directory / MANIFEST).is_file() and (named or any(directory.glob("rank_*")))


# --- the lock of a run -----------------------------------------------------------------------------------

BEAT_S = 5.0
STALE_S = 60.0  # without a beat; file systems of clusters show changes late
_TAKEN = ".taken"
_SWEEP = re.compile(r"^-m\njobs\.sweep$|^(.*/)?scaleprof\nsweep$", re.MULTILINE)


class Owner(BaseModel):
    """The process that has started a run: where it is, and in which job of the batch system."""

    host: str
    pid: int
    process: str = ""  # its boot and start, by which it is told from a later one of the same id
    job: str = ""
    restarts: int = 0  # of the job

    @property
    def where(self) -> str:
        return f"on {self.host}" + (f" (job {self.job})" if self.job else "")


class Claim(NamedTuple):
    """Whether a directory is ours now, and whose it was before."""

    ours: bool
    before: Owner | None = None


def this_owner(environment: Mapping[str, str]) -> Owner:
    host, pid, job = socket.gethostname(), os.getpid(), job_id(environment)
    restarts = int(environment.get("SCALEPROF_RESTARTS") or environment.get("SLURM_RESTART_COUNT", "0"))
    return Owner(host=host, pid=pid, process=_process(pid), job=job, restarts=restarts)


def _process(pid: int) -> str:
    """What tells a process from others of its id; "" if there is none.

    Its start in ticks since boot: a date would move with the machine's clock.
    """
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{boot}/{Path(f'/proc/{pid}/stat').read_text().rpartition(')')[2].split()[19]}"
    except OSError:
        return str(psutil.Process(pid).create_time()) if sys.platform != "linux" else ""


def owner_of(directory: Path) -> Owner | None:
    """Whose a running directory is; None if it was left in order."""
    try:
        return read_record(directory / OWNER, Owner)
    except UserError:
        return None


def lives(directory: Path, owner: Owner, me: Owner | None = None, now: float | None = None) -> bool:
    """Whether the owner of a directory is still at work.

    Args:
        me: who asks, maybe a later start of its job.
        now: by the clock of the file system; those of nodes differ.
    """
    if owner.host == socket.gethostname():
        return psutil.pid_exists(owner.pid) and _process(owner.pid) == owner.process
    if me is not None and owner.job and owner.job == me.job:
        return owner.restarts >= me.restarts
    try:
        return (now or time.time()) - (directory / OWNER).stat().st_mtime <= STALE_S
    except (FileNotFoundError, NotADirectoryError):
        return False


def other_sweeps() -> set[str]:
    """The sweeps that run on this host beside this one, in whichever results: ``process 812 (ada)``."""
    ours = {os.getpid(), *(parent.pid for parent in psutil.Process().parents())}
    return {
        f"process {process.pid} ({process.info['username']})"
        for process in psutil.process_iter(["cmdline", "username"])
        if process.pid not in ours and _SWEEP.search("\n".join(process.info["cmdline"] or []))
    }


def claim(directory: Path, me: Owner) -> Claim:
    """Make ``directory`` this process's own, empty but for the owner's file, unless a living one has it."""
    before = owner_of(directory)
    fresh = directory.with_name(f".claim-{me.host}-{me.pid}")
    shutil.rmtree(fresh, ignore_errors=True)
    fresh.mkdir(parents=True)
    try:
        write_record(fresh / OWNER, me)
        if before is not None and lives(directory, before, me, (fresh / OWNER).stat().st_mtime):
            return Claim(False, before)
        if not _remove_left(directory, before):
            return Claim(False, owner_of(directory))
        fresh.rename(directory)  # fails if another process was faster: its directory is not empty
    except OSError:
        if directory.exists():
            return Claim(False, owner_of(directory))
        raise
    finally:
        shutil.rmtree(fresh, ignore_errors=True)
    return Claim(True, before)


def _remove_left(directory: Path, owner: Owner | None) -> bool:
    """Remove what a dead owner has left; False: another process removes it, or has claimed it meanwhile."""
    mark = directory / _TAKEN
    try:
        mark.open("x").close()  # of several processes one can
    except FileNotFoundError:
        return True
    except FileExistsError:
        with suppress(FileNotFoundError):
            if time.time() - mark.stat().st_mtime > STALE_S:  # it was killed before it could
                mark.unlink()
        return False
    if owner_of(directory) != owner:
        mark.unlink(missing_ok=True)
        return False
    remove(directory)
    return True


class Beat:
    """Touches the owner's file of a directory, now and then."""

    def __init__(self, directory: Path) -> None:
        self._path, self._last = directory / OWNER, time.monotonic()

    def __call__(self) -> None:
        if time.monotonic() - self._last >= BEAT_S:
            self._last = time.monotonic()
            with suppress(FileNotFoundError):
                os.utime(self._path)


def release(directory: Path) -> None:
    """Leave a directory in order: anyone may take it over at once. One that has ended is nobody's."""
    (directory / OWNER).unlink(missing_ok=True)


# --- the state of a run ----------------------------------------------------------------------------------

State = Literal["done", "failed", "running", "interrupted", "not started", "unusable"]
NOT_ENDED: tuple[State, ...] = ("running", "interrupted", "not started")
CALIBRATING = ".calibration-"  # how a folder's name begins in which a sweep measures the machine's peaks
# Of combinations that a sweep does not run: how its lines on them begin, and those of every answer.
LEFT_OUT = "left out of the sweep"
RESUME = "start the sweep again to resume"
# Readers of results ask no batch system: a job that it has requeued may be waiting to do so.
QUEUED = "its jobs are queued or running (squeue --me, qstat, bjobs, flux jobs)"


def is_complete(directory: Path) -> bool:
    """Whether a run has ended well, and its manifest and tables can be read."""
    try:
        manifest = read_record(directory / MANIFEST, Manifest)
        check_run(manifest.run, manifest.ranks, directory)
        for path in directory.glob("rank_*/*.parquet"):
            pq.read_metadata(path)
    except (UserError, OSError, pa.ArrowException):
        return False
    return manifest.done


def state_of(directory: Path) -> State:
    """What has become of a sweep's run, by the directory it runs in; "unusable": its result is damaged."""
    done = directory.with_name(directory.name + "_ret_0")
    if (done / MANIFEST).exists():
        return "done" if is_complete(done) else "unusable"
    ended = directory.parent.glob(glob.escape(directory.name) + "_ret_*")
    latest = next((path for path in (directory, *ended) if path.is_dir()), None)
    if latest is None:
        return "not started"
    return "failed" if (latest / MANIFEST).is_file() else state_of_begun(latest)[0]


def state_of_begun(directory: Path) -> tuple[State, str]:
    """The state of a run that has begun and has no manifest, and how that is known. It only reads."""
    # A manifest is written before a folder gets such a name: this one was lost later.
    if (code := exit_code_of(directory.name)) is not None:
        return ("failed" if code else "unusable"), f"exit code {code}, manifest missing"
    if owner := owner_of(directory):
        return ("running" if lives(directory, owner) else "interrupted"), owner.where
    # A sweep that is stopped in order leaves no owner; a run that was started by hand never has one.
    of_sweep = (directory.parent / SWEEP).exists()
    return "interrupted", "sweep stopped" if of_sweep else "by hand, unfinished"


def where_calibrating(sweep: Path) -> str:
    """Where a sweep measures the machine's peaks just now: ``on n1 (job 5)``; "" if none does."""
    known = (state_of_begun(directory) for directory in sorted(sweep.glob(f"{CALIBRATING}*")))
    return next((where for state, where in known if state == "running"), "")


WITHOUT_SUMMARY = "SCALEPROF_WITHOUT_SUMMARY"  # set: watched programs and sweeps end without one


def summary_of(directory: Path) -> list[str]:
    """The first lines of ``analysis.summary``; none where it cannot tell, or lacks what it needs."""
    if os.environ.get(WITHOUT_SUMMARY):
        return []
    command = [sys.executable, "-m", "analysis.summary", "--short", str(directory.absolute())]
    return ask(command, timeout_s=120, cwd=ROOT).stdout.splitlines()  # one that takes longer is not awaited
