"""Sweeps that are killed, interrupted, out of disk, or not alone: nothing is lost, and each run runs once."""

import os
import signal
import subprocess
import sys
import time
from contextlib import suppress

import pytest

from benchmarks.scripted_ranks import leave_out_calibration
from jobs.execute import Execution
from jobs.failures import make_manifest
from jobs.launchers import LAUNCHERS
from jobs.processes import TimeIsUp
from jobs.store import claim, this_owner
from jobs.sweep_file import expand
from tests.analysis.commands import run
from tests.builders import ended_runs
from tests.jobs.scripted import Scripted, execution, make_sweep, manifests, run_all
from tests.jobs.scripted import batches_of_ranks as batches_of_ranks  # a fixture

pytestmark = pytest.mark.long

DRIVER = """
import sys
from pathlib import Path
from tests.jobs.scripted import execution, run_all
run_all(execution(Path(sys.argv[1]), "hang", order="given"))
"""


def until(condition) -> None:
    deadline = time.monotonic() + 600
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_a_killed_sweep_resumes_at_its_first_unfinished_run(tmp_path, root):
    driver = subprocess.Popen([sys.executable, "-c", DRIVER, str(tmp_path)], cwd=root,
                              stderr=subprocess.DEVNULL)  # fmt: skip
    work = execution(tmp_path)
    until(lambda: [path for path in (tmp_path / "s").glob("run_*pytorch*") if "_ret_" not in path.name])
    driver.send_signal(signal.SIGKILL)
    driver.wait()
    done = {n: m.ended for n, m in manifests(work).items()}
    assert 1 <= len(done) < 4
    assert run_all(work) == 0
    after = manifests(work)
    assert len(after) == 4 and {n: after[n].ended for n in done} == done
    assert all("_ret_" in path.name for path in work.directory.glob("run_*"))


INTERRUPTED = """
import sys
from jobs import sweep
from profiling.errors import run_command
from tests.jobs.scripted import Scripted
Scripted.open = classmethod(lambda cls, site, environment: cls(misbehave="hang"))
sweep.LAUNCHERS["local"] = Scripted
run_command(sweep.main)
"""


def heed_ctrl_c():
    """A shell's background processes, and all that they start, ignore it."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def test_ctrl_c_says_that_runs_are_ended_and_with_which_command_to_resume(tmp_path, root):
    (tmp_path / "my sweep.yaml").write_text("run: {batches: 3, batch: 2, loader: pytorch, data: .}\nname: s")
    words = [str(tmp_path / "my sweep.yaml"), "--out", str(tmp_path)]
    sweep = subprocess.Popen([sys.executable, "-c", INTERRUPTED, *words], cwd=root, stderr=subprocess.PIPE,
                             text=True, preexec_fn=heed_ctrl_c)  # fmt: skip
    until(lambda: any((tmp_path / "s").glob("run_*/log.txt")))
    sweep.send_signal(signal.SIGINT)
    said = [line for line in sweep.communicate(timeout=600)[1].splitlines() if "interrupted" in line]
    assert sweep.returncode == 130
    resume = f"python -m jobs.sweep '{tmp_path}/my sweep.yaml' --out {tmp_path}"
    assert len(said) == 2 and said[1].endswith(f"to resume: {resume}")


def test_a_signal_is_not_lost_while_a_run_is_being_finished(tmp_path, monkeypatch):
    def loses_exceptions(*arguments):
        with suppress(BaseException):  # as an import does that a library begins in C
            os.kill(os.getpid(), signal.SIGUSR1)
        return make_manifest(*arguments)

    monkeypatch.setattr("jobs.execute.make_manifest", loses_exceptions)
    work = execution(tmp_path)
    with pytest.raises(TimeIsUp):
        run_all(work)
    (only,) = manifests(work).values()
    assert only.done


class Stopped(Scripted):
    """Asked to stop when the first run is claimed, and none of its ranks is started."""

    def processes(self, run, command, directory):
        os.kill(os.getpid(), signal.SIGTERM)
        return super().processes(run, command, directory)


def test_a_stop_between_claim_and_start_leaves_no_run_claimed(tmp_path):
    work = Execution(make_sweep(), tmp_path / "s", Stopped(misbehave="hang"))
    work.directory.mkdir()
    leave_out_calibration(work.directory)
    with pytest.raises(KeyboardInterrupt):
        run_all(work)
    assert not list(work.directory.glob("run_*/owner.json"))


class Cut(Scripted):
    """Its job's time is up when a process with such a word in its command starts."""

    at: str = "train"

    @classmethod
    def open(cls, site, environment):
        return cls()

    def processes(self, run, command, directory):
        if self.at in command:
            os.kill(os.getpid(), signal.SIGUSR1)
        return super().processes(run, command, directory)


@pytest.mark.parametrize("at", ["train", "train.calibrate"])
def test_a_job_that_is_cut_again_with_no_run_done_says_that_it_is_too_short(tmp_path, monkeypatch, at):
    monkeypatch.setitem(LAUNCHERS, "local", Cut)
    monkeypatch.setattr(Cut, "at", at)
    (tmp_path / "s.yaml").write_text("run: {batches: 3, batch: 2, loader: pytorch, data: .}\nrepetitions: 2")
    if at == "train":
        (tmp_path / "s").mkdir()
        leave_out_calibration(tmp_path / "s")
    monkeypatch.setenv("SLURM_JOB_ID", "42")
    words = ["jobs.sweep", tmp_path / "s.yaml", "--out", tmp_path]
    assert run(*words).code == 75
    monkeypatch.setenv("SLURM_RESTART_COUNT", "1")
    second = run(*words)
    assert second.code == 1 and "job 42" in second.err
    assert not ended_runs(tmp_path / "s") and not list(tmp_path.glob("s/*/owner.json"))


@pytest.mark.parametrize(
    "other", [{}, {"host": "n3", "job": "812"}], ids=["of this machine", "of another job"]
)
def test_a_second_sweep_skips_claimed_runs_and_does_the_others(tmp_path, capsys, other):
    work = execution(tmp_path)
    claimed = [work.running(sweep_run) for sweep_run in expand(work.sweep)[0][:2]]
    for directory in claimed:
        assert claim(directory, this_owner({}).model_copy(update=other)).ours
    assert run_all(work) == 0
    assert len(manifests(work)) == 2 and all(directory.is_dir() for directory in claimed)
    assert "running elsewhere: 2" in capsys.readouterr().err


@pytest.mark.parametrize("words, disturbs", [("-m jobs.sweep other.yaml", True), ("-m jobs.doctor", False)])
def test_a_run_says_that_another_sweep_ran_on_the_host(tmp_path, words, disturbs):
    with subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)", *words.split()]) as other:
        work = execution(tmp_path, run={"batches": 2})
        assert run_all(work) == 0
        other.kill()
    findings = [one for manifest in manifests(work).values() for one in manifest.findings]
    beside = [one.data["sweeps"] for one in findings if one.code == "disturbed"]
    assert any(f"process {other.pid} " in each for sweeps in beside for each in sweeps) is disturbs


def test_a_full_disk_ends_in_one_line_and_what_is_finished_stays(tmp_path, root):
    disk = tmp_path / "disk"
    disk.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=512k", "scaleprof-test", str(disk)],
                             capture_output=True, check=False)  # fmt: skip
    if mounted.returncode:
        pytest.skip("a small disk cannot be made here (mounting needs root)")
    try:
        assert run_all(execution(disk)) == 0
        before = manifests(execution(disk))
        filler = disk / "filler"
        with pytest.raises(OSError), filler.open("wb") as file:
            while True:
                file.write(os.urandom(4096))
                file.flush()
        code = "import sys; from pathlib import Path; from tests.jobs.scripted import *;"
        code += "from profiling.errors import run_command;"
        code += f"run_command(lambda: run_all(execution(Path({str(disk)!r}), repetitions=2)))"
        ended = subprocess.run([sys.executable, "-c", code], cwd=root, capture_output=True, text=True,
                               check=False)  # fmt: skip
        assert ended.returncode in (1, 2)
        assert f"No space left on device: {disk}/" in ended.stderr and "Traceback" not in ended.stderr
        filler.unlink()
        assert {n: m for n, m in manifests(execution(disk)).items() if n in before} == before
    finally:
        subprocess.run(["umount", str(disk)], check=True)
