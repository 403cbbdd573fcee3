"""Processes of a run: started together, watched, none outlives it; where ranks hung, and why it failed."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path

import psutil
import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from jobs.failures import RETRIES, Ended, explain, gather_stacks, make_manifest
from jobs.processes import EXIT_TIME_LIMIT, Limits, Process, run_processes
from jobs.run import make_run
from jobs.store import LOG, RANK_REPORT, Manifest, RankReport, write_record
from profiling import tables
from tests.builders import put_programs

pytestmark = pytest.mark.long

WAIT_S = 100  # for a machine that has much else to do
# Longer than any wait below, so that nobody ends by himself.
SLEEP = "import time; time.sleep(600)"


def python(code: str, **environment: str) -> Process:
    return Process([sys.executable, "-c", code], environment)


@pytest.fixture
def still_running() -> Callable[[str], list[int]]:
    """Live processes that began after the test, whose arguments hold a text."""
    before = set(psutil.pids())  # the many others of a machine need not be looked at again and again

    def look(marker: str) -> list[int]:
        return [pid for pid in set(psutil.pids()) - before if _runs(pid, marker)]

    return look


@pytest.fixture
def marker(tmp_path) -> str:
    """A text in the arguments of this test's processes alone."""
    return f"marker-{tmp_path.name}-{os.getpid()}"


@pytest.fixture
def soon(monkeypatch) -> None:
    """Ranks have less time to end by themselves."""
    monkeypatch.setattr("jobs.processes.GRACE_S", 0.3)


def _runs(pid: int, marker: str) -> bool:
    with suppress(psutil.NoSuchProcess):
        process = psutil.Process(pid)
        return marker in " ".join(process.cmdline()) and process.status() != psutil.STATUS_ZOMBIE
    return False


def test_when_a_rank_dies_the_others_are_ended_and_it_is_named(tmp_path, marker, soon, still_running):
    ranks = [python(f"{SLEEP} # {marker}"), python("import os; os.kill(os.getpid(), 9)")]
    ended = run_processes(ranks, tmp_path / "log", Limits(600), tmp_path)
    assert ended.exit_code == -signal.SIGKILL
    assert ended.reason == "rank 1 was killed by signal 9 (SIGKILL)"
    _until(lambda: not still_running(marker), "all have ended")


def test_a_time_limit_ends_the_ranks_and_what_they_started(tmp_path, marker, soon, still_running):
    child = f"import subprocess, sys; subprocess.run([sys.executable, '-c', '{SLEEP} # {marker}'])"
    ended = run_processes([python(child)], tmp_path / "log", Limits(1.5), tmp_path)
    assert (ended.exit_code, ended.kind) == (EXIT_TIME_LIMIT, "time limit")
    assert "1.5 s (time_limit_s)" in ended.reason
    _until(lambda: not still_running(marker), "all have ended")


IMPORTS = """
import sys
from pathlib import Path
from jobs.processes import Process
from jobs.processes import Limits, run_processes
"""
DRIVER = f"""{IMPORTS}
ranks = [Process([sys.executable, "-c", "{SLEEP} # " + sys.argv[1]])] * 2
run_processes(ranks, Path(sys.argv[2]), Limits(600), Path("."))
"""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_no_orphan_is_left_when_the_sweep_is_ended(tmp_path, root: Path, number, marker, still_running):
    if number == signal.SIGKILL and sys.platform != "linux":
        pytest.skip("only Linux ends children with their parent")
    driver = subprocess.Popen(
        [sys.executable, "-c", DRIVER, marker, str(tmp_path / "log")], cwd=root, stderr=subprocess.DEVNULL
    )
    _until(lambda: len(still_running("# " + marker)) == 2, "two ranks run")
    driver.send_signal(number)
    driver.wait(WAIT_S)
    _until(lambda: not still_running(marker), "they have ended")


def test_a_signal_in_the_middle_of_a_start_ends_the_run_and_what_was_started(
    tmp_path, root, marker, still_running
):
    at_fork = (
        "import os, signal; os.register_at_fork(after_in_parent=lambda: os.kill(os.getpid(), signal.SIGINT))"
    )
    driver = subprocess.run(
        [sys.executable, "-c", at_fork + DRIVER, marker, str(tmp_path / "log")],
        cwd=root, capture_output=True, text=True, timeout=WAIT_S, check=False,
    )  # fmt: skip
    assert driver.returncode and "KeyboardInterrupt" in driver.stderr
    assert "interrupted: ending runs" in driver.stderr and not still_running("# " + marker)


# A tool that is a shell, as tau_exec is, which waits for the rank and does not become it.
SHELL = f'while [ "$1" != "{sys.executable}" ]; do shift; done; "$@"; echo ended'
RANK = """
import subprocess, sys, time
subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600) # {marker}"])
time.sleep(600) # {marker}
"""
WRAPPED_DRIVER = IMPORTS + 'run_processes([Process(sys.argv[2:])], Path(sys.argv[1]), Limits(600), Path("."))'


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux ends children with their parent")
@pytest.mark.parametrize(
    ("of_a_sweep", "number"), [(False, signal.SIGTERM), (True, signal.SIGINT), (True, signal.SIGKILL)]
)
def test_nothing_under_a_profiler_that_is_a_shell_outlives_who_is_ended(
    tmp_path, root: Path, of_a_sweep, number, monkeypatch, marker, still_running
):
    put_programs(tmp_path, tau_exec=SHELL)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    command = [sys.executable, "-m", "profiling.wrap", "--tool", "tau", "--out", str(tmp_path)]
    command += ["--device", "cpu", "--", "-c", RANK.format(marker=marker)]
    if of_a_sweep:
        command = [sys.executable, "-c", WRAPPED_DRIVER, str(tmp_path / "log"), *command]
    first = subprocess.Popen(command, cwd=root, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    # The command itself, the wrapper, the shell, the rank and its child hold the marker.
    _until(lambda: len(still_running(marker)) == 4 + of_a_sweep, "the rank and its child run")
    first.send_signal(number)
    first.wait(WAIT_S)
    _until(lambda: not still_running(marker), "they have ended")


def _until(condition, what: str) -> None:
    deadline = time.monotonic() + WAIT_S
    while not condition():
        assert time.monotonic() < deadline, f"not within {WAIT_S} s: {what}"
        time.sleep(0.05)


BARRIER = 'Current thread 0x00007f{:010x} (most recent call first):\n  File "a.py", line 3 in barrier\n'
LOADER = 'Current thread 0x00007f0000000001 (most recent call first):\n  File "a.py", line 9 in load\n'


def leave(run: Path, rank: int, stacks: str | None, report: bool = False) -> None:
    folder = run / f"rank_{rank:04d}"
    folder.mkdir()
    if stacks is not None:
        (folder / "stacks.txt").write_text(stacks)
    if report:
        (folder / "rank.json").touch()


def test_ranks_in_one_place_share_a_line_of_the_log_and_the_odd_ones_are_named(tmp_path):
    for rank in set(range(1000)) - {7, 700}:
        leave(tmp_path, rank, BARRIER.format(rank))
    leave(tmp_path, 700, LOADER)
    assert gather_stacks(tmp_path, 1000) == "; not started: ranks 7; elsewhere: ranks 700"
    log = (tmp_path / "log.txt").read_text()
    assert log.count("in barrier") == 1 and "ranks 0-6, 8-699, 701-999:\nCurrent thread" in log
    assert "ranks 7:\n(not started)" in log and "in load" in log.partition("ranks 700:")[2]


@pytest.mark.parametrize(
    ("stacks", "says"),
    [
        ([BARRIER.format(0), LOADER], ""),  # of two ranks neither is the odd one
        ([LOADER.replace("9", str(line)) for line in (1, 1, 1, 2, 2, 3)], ""),  # nor where most of them are
        ([BARRIER.format(1)] * 3 + [""], "; elsewhere: ranks 3"),
        ([None, None, BARRIER.format(0)] + [BARRIER.format(1)] * 4, "; not started: ranks 0-1"),
        ([BARRIER.format(0)] * 20 + [LOADER] * 9, ""),  # too many to be the cause
    ],
)
def test_only_few_of_many_are_named(tmp_path, stacks, says):
    for rank, text in enumerate(stacks):
        leave(tmp_path, rank, text)
    assert gather_stacks(tmp_path, len(stacks)) == says


LATE = """
import os, signal
from jobs.processes import stopped_in_order
class Late:
    def __del__(self, kill=os.kill, me=os.getpid(), number=signal.SIGUSR1):
        kill(me, number)
late = Late()
with stopped_in_order():
    pass
"""


def test_time_that_is_up_as_python_ends_ends_nothing_else(root):
    assert subprocess.run([sys.executable, "-c", LATE], cwd=root, check=False).returncode == 0


# --- failures are told apart by what real launchers print (each file of failures/ is one's own words) ---

FAILURES = Path(__file__).parent / "failures"

CASES = yaml.safe_load((FAILURES / "failures.yaml").read_text())


@pytest.mark.parametrize("name", CASES)
def test_what_launchers_profilers_and_ranks_print_is_understood(name):
    case = CASES[name]
    log = case["log"] if "log" in case else (FAILURES / f"{name}.txt").read_text()
    failure = explain(case["ended"], f"srun ended with exit code {case['ended']}", log)
    found = (failure.kind, failure.exit_code, list(failure.nodes), failure.kind in RETRIES)
    assert found == (case["kind"], case["code"], case.get("nodes", []), case["retried"])
    assert case.get("says", "") in failure.reason and "\n" not in failure.reason.strip()


@given(st.text(max_size=300), st.integers(-15, 255).filter(bool))
def test_any_log_gives_one_line(log, code):
    failure = explain(code, "rank 0 ended", log)
    assert failure.kind and "\n" not in failure.reason.strip()


ABORTED = Ended(-signal.SIGABRT, "rank 1 was killed by signal 6 (SIGABRT)")


def manifest(directory: Path, ended: Ended = ABORTED, program_exit_code: int = 0, **fields) -> Manifest:
    """What becomes of a run of two ranks and three steps if it has ended so."""
    for rank in range(2):
        rows = {"rank": [rank] * 3, "batch_index": range(3)}
        folder = tables.rank_directory(directory, rank)
        tables.write(tables.as_table("batches", rows), folder, "batches")
        report = RankReport(
            rank=rank, world_size=2, hostname="h", device="cpu", backend="ddp/gloo", batches_done=3,
            images_done=3, losses_finite=True, parameter_digest="", program_exit_code=program_exit_code,
        )  # fmt: skip
        write_record(folder / RANK_REPORT, report)
    run = make_run({"program": "train.py", "gpus_per_node": 2, "batches": 3, "device": "cpu", **fields})
    return make_manifest(run, 0, directory, ended, [], {}, datetime.now(UTC))


@pytest.mark.parametrize(
    ("ended", "line"),
    [
        (ABORTED, "Fatal Python error: Aborted"),
        (Ended(134, "srun ended with exit code 134"), "srun: error: n2: task 1: Aborted (core dumped)"),
    ],
)
def test_a_run_counts_whose_program_had_ended_when_a_rank_aborted(tmp_path, ended, line):
    (tmp_path / LOG).write_text(line + "\n")
    counted = manifest(tmp_path, ended)
    assert counted.done and counted.reason == counted.failure == ""
    (finding,) = counted.findings
    assert finding.code == "aborted_at_exit" and "rank 1" in finding.data["text"]


@pytest.mark.parametrize(
    "otherwise",
    [
        {"ended": Ended(-signal.SIGSEGV, "rank 1 was killed by signal 11 (SIGSEGV)")},
        {"profile": "nsys"},
        {"program": ""},
        {"program_exit_code": 1},
    ],
)
def test_it_fails_if_anything_else_was_wrong(tmp_path, otherwise):
    failed = manifest(tmp_path, **otherwise)
    assert failed.failure == "rank crash" and failed.exit_code < 0 and not failed.findings
