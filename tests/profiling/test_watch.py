"""Programs of users, run unchanged under profiling.watch: what do they leave?"""

import shutil
import subprocess
import sys
import time
from dataclasses import replace
from datetime import UTC, datetime
from types import SimpleNamespace

import pandas as pd
import pytest

from analysis.measures.points import bases_of
from jobs import by_hand, store
from jobs.failures import Ended
from jobs.run import Run
from jobs.store import MANIFEST
from profiling import schemas, tables
from profiling.errors import UserError
from profiling.identity import Identity
from profiling.watch import _live, _write_run, main, parse
from profiling.watching.facts import ModelFacts
from profiling.watching.program import Program
from tests.profiling.watching import PROGRAMS, batches_of, manifest_of, report_of, watch

pytestmark = pytest.mark.long


def test_runs_of_a_program_on_one_rank_and_on_two_are_one_configuration():
    me, reports = Identity(launcher="torchrun"), []
    model = ModelFacts(name="Net", backend="single", grad="fp32")
    reports.append(by_hand.report_of(me, model, 9, 4, 0, 1, [], 0))
    two = Identity(size=2, local_size=2, launcher="torchrun")
    reports.append(by_hand.report_of(two, replace(model, backend="ddp/gloo"), 9, 4, 0, 1, [], 0))
    fields = []
    for who, report in zip((me, two), reports, strict=True):
        run, unknown = by_hand.run_of(report, who, Program("train.py"), "none")
        fields.append({**run.model_dump(), **dict.fromkeys(unknown)})
    points = pd.DataFrame(fields).assign(world_size=[1, 2])
    assert bases_of(points, "weak").tolist() == [0, 0]
    assert fields[1]["program"] == "train.py" and fields[1]["compute"] is None


def test_it_ends_in_order_after_as_many_steps_as_are_asked_for(tmp_path, forks):
    out, done = tmp_path / "run", tmp_path / "done"
    program = (PROGRAMS / "ddp.py", "--done", done)
    printed = forks.watch("--out", out, "--batches", 5, "--samples", 7, *program, ranks=2)
    assert printed.count("cleaned up") == 2 and not done.exists()
    assert len(batches_of(out)) == len(batches_of(out, 1)) == 5 and "--batches" not in printed
    assert batches_of(out).images.tolist() == [7] * 5


def test_the_torch_profiler_records_the_later_half(tmp_path, forks):
    out = tmp_path / "run"
    forks.watch("--out", out, "--batches", 8, "--profile", "torch", PROGRAMS / "ddp.py")
    rows = batches_of(out)
    assert rows.attributed.tolist() == [False] * 4 + [True] * 4
    kernels = tables.read(tables.rank_directory(out, 0), "kernels").to_pandas()
    assert {4, 5, 6, 7} <= set(kernels.batch_index.dropna())
    # A kernel's stage is that in which it ran: the convolution's lie where forward and backward are.
    convolutions = kernels[kernels["class"] == "convolution"]
    assert set(convolutions.direction) == {"fprop", "bprop"}
    assert convolutions.layer.notna().any()


@pytest.mark.skipif(shutil.which("nsys") is None, reason="nsys is not installed")
def test_a_profiler_that_watches_from_outside(tmp_path):
    out = tmp_path / "run"
    watch("--out", out, "--batches", 6, "--profile", "nsys", PROGRAMS / "ddp.py")
    manifest = manifest_of(out)
    assert manifest.done and manifest.run.profile == "nsys" and len(batches_of(out)) == 6
    names = tables.read(tables.rank_directory(out, 0), "markers")["name"].to_pylist()
    # From the fourth step on.
    assert [names.count(one) for one in (*schemas.STAGES, schemas.END_OF_BATCH)] == [3] * 4


def test_a_program_that_fails_shows_its_own_traceback_and_does_not_count(tmp_path, forks):
    out = tmp_path / "run"
    printed = forks.watch("--out", out, PROGRAMS / "ddp.py", "--fail", code=1)
    assert "ValueError: no more" in printed and "profiling/watch" not in printed.split("ValueError")[0]
    manifest = manifest_of(out)
    assert manifest.exit_code == 1
    assert "ValueError" in manifest.reason
    assert report_of(out).program_exit_code == 1
    assert len(batches_of(out)) == 16


def test_a_program_that_goes_elsewhere_and_forks_leaves_one_result_where_it_began(tmp_path, forks):
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "goes.py").write_text(
        "import os, sys, torch\n"
        "os.chdir('elsewhere')\n"
        "model = torch.nn.Linear(2, 2)\n"
        "optimizer = torch.optim.SGD(model.parameters(), lr=0.1)\n"
        "for step in range(4):\n"
        "    model(torch.ones(1, 2)).sum().backward()\n"
        "    optimizer.step()\n"
        "    if step == 1 and not os.fork(): sys.exit(0)\n"
        "os.wait()\n"
    )
    printed = forks.watch("--out", "run", "goes.py", folder=tmp_path)
    assert printed.count("watched") == 1 and manifest_of(tmp_path / "run").done
    assert len(batches_of(tmp_path / "run")) == 4


def test_a_run_of_which_a_rank_left_nothing_does_not_count_and_is_no_success(tmp_path, monkeypatch, capsys):
    manifest = SimpleNamespace(run=Run(), findings=[], reason="rank 1 has left no report")
    recorded = []
    monkeypatch.setattr(by_hand, "write_program_manifest", lambda *facts: recorded.append(facts) or manifest)
    given, program = parse(["--steps-per-batch", "3", "train.py"])
    me = Identity(size=2, local_size=2)
    assert _write_run(tmp_path, me, program, given, Ended(0), datetime.now(UTC)) == 1
    assert recorded[0][-1] == 3  # what a step is, is recorded, too
    assert "rank 1" in capsys.readouterr().err


def test_a_program_on_a_terminal_says_how_it_goes(monkeypatch, capsys):
    now = iter([100.0, 104.0, 106.0, 110.0, 116.0])
    monkeypatch.setattr(time, "monotonic", lambda: next(now))
    live = _live()
    for steps, loading_s in ((1, 3.0), (5, 4.0), (13, 6.0), (17, 7.0), (113, 7.0)):
        live(steps, loading_s)
    said = capsys.readouterr().err.splitlines()  # after 6 s, of which 3 s loading; then after 10 s
    assert said == [
        "scaleprof: 13 steps, 500 ms per step, 50% waiting for data",
        "scaleprof: 113 steps, 100 ms per step, 10% waiting for data",
    ]


def test_results_are_not_overwritten_unasked(tmp_path):
    out = tmp_path / "run"
    (out / "rank_0000").mkdir(parents=True)
    (out / MANIFEST).write_text("{}")
    with pytest.raises(UserError, match="already holds a run"):
        main(["--out", str(out), str(PROGRAMS / "ddp.py")])


def test_an_environment_of_the_users_own_needs_only_what_pip_installs_there(tmp_path):
    # pandas is not there either, but pyarrow minds a None in its place.
    hidden = [
        "adbc_driver_manager", "argcomplete", "cxxfilt", "defusedxml", "duckdb", "google_crc32c", "jinja2",
        "mpi4py", "nvidia.dali", "perfetto", "PIL", "plotly", "scipy", "torchvision",
    ]  # fmt: skip
    hide = f"import sys; sys.modules.update(dict.fromkeys({hidden})); from jobs.commands import main; main()"

    def scaleprof(*words: object) -> subprocess.CompletedProcess:
        command = [sys.executable, "-c", hide, *map(str, words)]
        return subprocess.run(command, capture_output=True, text=True, check=False)

    ran = scaleprof(
        "watch", "--profile", "torch", "--batches", 6, "--out", tmp_path / "run", PROGRAMS / "bare.py"
    )
    assert ran.returncode == 0, ran.stderr
    assert len(batches_of(tmp_path / "run")) == 6 and (tmp_path / "run/rank_0000/kernels.parquet").exists()
    ran = scaleprof("report", tmp_path)
    assert (ran.returncode, ran.stderr.count("\n")) == (2, 1)


@pytest.mark.parametrize("done", [(3, 5), (5, 3)])
def test_steps_that_only_some_ranks_did_are_left_out(tmp_path, done):
    for rank, steps in enumerate(done):
        folder = tables.rank_directory(tmp_path, rank)
        tables.write(tables.as_table("batches", {"batch_index": range(steps)}), folder, "batches")
        store.write_record(folder / store.RANK_REPORT, store.RankReport(
            rank=rank, world_size=2, hostname="h", device="cpu", backend="ddp/gloo", batches_done=steps,
            images_done=steps, losses_finite=True, parameter_digest="",
        ))  # fmt: skip
    program, me = Program("train.py"), Identity(0, 2, 0, 2, "torchrun")
    manifest = by_hand.write_program_manifest(tmp_path, me, program, "none", Ended(0), datetime.now(UTC))
    assert (manifest.run.batches, manifest.reason) == (3, "")
    assert [(one.code, one.data) for one in manifest.findings] == [("steps_differ", {"least": 3, "most": 5})]
    store.check_run(manifest.run, manifest.ranks, tmp_path)
