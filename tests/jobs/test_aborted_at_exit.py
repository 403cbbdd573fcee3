"""A user's program has ended well on all ranks, and then one aborts as Python exits: the run counts."""

import signal
import subprocess
import sys
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import pytest

from analysis.frames.load import load
from benchmarks.scripted_ranks import leave_out_calibration
from jobs.failures import Ended, make_manifest
from jobs.store import LOG, MANIFEST, RANK_REPORT, Manifest, RankReport, read_record, write_record
from profiling import tables
from profiling.findings import Finding
from tests.ended_runs import ended_runs

ROOT = Path(__file__).resolve().parents[2]
# The watcher has written when the functions run that a program has registered for its exit. A rank that
# aborted before the other one has written would end it.
PROGRAM = """
import atexit, os, resource, sys, time, torch
from pathlib import Path
met = Path(sys.argv[1])
def abort():
    while not met.exists():
        time.sleep(0.05)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    os.abort()
atexit.register(abort if os.environ["RANK"] == "1" else met.touch)
layer = torch.nn.Linear(2, 2)
optimizer = torch.optim.SGD(layer.parameters(), lr=0.1)
for _ in range(3):
    layer(torch.ones(4, 2)).sum().backward()
    optimizer.step()
"""
ABORTED = Ended(-signal.SIGABRT, "rank 1 was killed by signal 6 (SIGABRT)")
FINDING = Finding("aborted_at_exit", data={"text": "rank 1 was killed by signal 6 (SIGABRT)"})
# A rare end, which takes two ranks with PyTorch and a sweep around them.
pytestmark = [pytest.mark.long, pytest.mark.wide]


@dataclass(frozen=True)
class Swept:
    """A sweep whose one run aborted, and what it printed."""

    results: Path
    said: str

    @property
    def run(self) -> Path:
        (directory,) = ended_runs(self.results)
        return directory

    def manifest(self, ended: Ended = ABORTED, **fields: object) -> Manifest:
        """What becomes of the run if it has ended so."""
        run = read_record(self.run / MANIFEST, Manifest).run.model_copy(update=fields)
        return make_manifest(run, 0, self.run, ended, [], {}, datetime.now(UTC), ROOT)


@pytest.fixture(scope="module")
def swept(tmp_path_factory) -> Swept:
    tmp_path = tmp_path_factory.mktemp("aborted")
    (tmp_path / "aborts.py").write_text(PROGRAM)
    (tmp_path / "mine.yaml").write_text(
        f"repetitions: 1\nretries: 0\nrun:\n  program: {tmp_path}/aborts.py {tmp_path}/met\n"
        "  gpus_per_node: 2\n  batches: 3\n  device: cpu\n"
    )
    (tmp_path / "mine").mkdir()
    leave_out_calibration(tmp_path / "mine")
    command = [sys.executable, "-m", "jobs.sweep", str(tmp_path / "mine.yaml"), "--out", str(tmp_path)]
    ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300)
    return Swept(tmp_path / "mine", f"{ended.returncode}: {ended.stderr}")


def test_a_run_counts_whose_program_had_ended_when_a_rank_aborted(swept):
    assert swept.said.startswith("0: "), swept.said
    manifest = read_record(swept.run / MANIFEST, Manifest)
    assert manifest.done and manifest.reason == manifest.failure == ""
    assert FINDING in manifest.findings
    assert "Fatal Python error: Aborted" in (swept.run / LOG).read_text()
    contents = load(swept.results)
    assert len(contents.sources) == 1 and any("aborted" in note for note in contents.notes())


def test_it_fails_if_anything_else_was_wrong(swept):
    assert swept.manifest().done
    failed = [
        swept.manifest(Ended(-signal.SIGSEGV, "rank 1 was killed by signal 11 (SIGSEGV)")),
        swept.manifest(batches=4),  # it aborted before the last step
        swept.manifest(profile="nsys"),
        swept.manifest(program=""),
    ]
    report = tables.rank_directory(swept.run, 0) / RANK_REPORT
    before = read_record(report, RankReport)
    write_record(report, before.model_copy(update={"program_exit_code": 1}))
    failed.append(swept.manifest())
    report.unlink()
    failed.append(swept.manifest())
    write_record(report, before)
    for manifest in failed:
        assert manifest.failure == "rank crash" and manifest.exit_code < 0
        assert FINDING not in manifest.findings


def test_it_counts_where_a_launcher_says_who_aborted(swept):
    with (swept.run / LOG).open("a") as log:
        log.write("srun: error: n2: task 1: Aborted (core dumped)\n")
    counted = swept.manifest(Ended(134, "srun ended with exit code 134"))
    (finding,) = (one for one in counted.findings if one.code == FINDING.code)
    assert counted.done and "rank 1 on n2" in finding.data["text"]
