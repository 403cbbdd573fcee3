"""Failures are told apart by what real launchers print (each file of failures/ is one's own words)."""

import signal
from datetime import UTC, datetime
from pathlib import Path

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from jobs.failures import RETRIES, Ended, explain, make_manifest
from jobs.run import make_run
from jobs.store import LOG, RANK_REPORT, Manifest, RankReport, write_record
from profiling import tables

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
