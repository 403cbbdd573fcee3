"""Programs of users, run unchanged under profiling.watch: what do they leave?"""

import json
import os
import shutil
import subprocess
import sys
import time
from datetime import UTC, datetime
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pandas as pd
import pytest

from analysis.measures.points import bases_of
from jobs import by_hand, store
from jobs.failures import Ended
from jobs.run import Run
from jobs.store import MANIFEST
from profiling import schemas, tables
from profiling.errors import UserError
from profiling.identity import Identity, is_restarted
from profiling.process import ModelFacts
from profiling.watch import _live, _write_run, main, parse, prepare_folder
from profiling.watching.program import Program, hidden
from tests.profiling.watching import PROGRAMS, ROOT, batches_of, manifest_of, report_of, watch

pytestmark = pytest.mark.long


def test_runs_of_a_program_on_one_rank_and_on_two_are_one_configuration():
    fields = []
    for size, backend in ((1, "single"), (2, "ddp/gloo")):
        me = Identity(size=size, local_size=size, launcher="torchrun")
        model = ModelFacts(name="Net", backend=backend, grad="fp32")
        report = by_hand.report_of(me, model, 9, 4, 0, 1, [], 0)
        run, unknown = by_hand.run_of(report, me, Program("train.py"), "none")
        fields.append({**run.model_dump(), **dict.fromkeys(unknown)})
    assert bases_of(pd.DataFrame(fields).assign(world_size=[1, 2]), "weak").tolist() == [0, 0]
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
    assert batches_of(out).attributed.tolist() == [False] * 4 + [True] * 4
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
    assert manifest.exit_code == report_of(out).program_exit_code == 1 and "ValueError" in manifest.reason
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
        "watch", "--profile=torch", "--batches=6", "--out", tmp_path / "run", PROGRAMS / "bare.py"
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


# --- a program finds what it finds under Python itself --------------------------------------------------

# It goes to another folder, spawns a process that imports it again, and pickles one of its classes at exit.
SCRIPT = """
import atexit, json, multiprocessing, os, pickle, sys

class Mine:
    pass

def age(number):
    return number + 1

def spawned():
    os.chdir("elsewhere")
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        return pool.apply(age, (1,))

if __name__ == "__main__":
    main = sys.modules["__main__"]
    spec = main.__spec__
    found = {
        "file": __file__, "argv": sys.argv, "path": sys.path[0], "package": __package__,
        "spec": spec and spec.name, "builtins": __builtins__.len is len, "loader": type(__loader__).__name__,
        "is_main": main.__dict__ is globals(),
        "spawned": spawned() if "__main__" not in __file__ else 2,  # spawn does not import a __main__.py
    }
    atexit.register(lambda: print(json.dumps(found), len(pickle.dumps(Mine())), sep="\\n"))
"""


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "package").mkdir()
    for name in ("script.py", "package/__main__.py", "package/module.py", "package/__init__.py"):
        (tmp_path / name).write_text(SCRIPT if "__init__" not in name else "")
    return tmp_path


def python(folder: Path, *words: str, safe_path: str = "") -> list[str]:
    """The lines that Python printed, started in a folder with these words.

    Args:
        safe_path: the value of PYTHONSAFEPATH; "": not set.
    """
    environment = {**os.environ, "PYTHONPATH": f"{ROOT}{os.pathsep}{folder}", "PYTHONSAFEPATH": safe_path}
    ended = subprocess.run(
        [sys.executable, *words], cwd=folder, env=environment, capture_output=True, text=True, check=False
    )
    assert ended.returncode == 0, ended.stderr
    return ended.stdout.splitlines()


@pytest.mark.parametrize(
    ("words", "safe_path"), [(("script.py",), ""), (("-m", "package"), ""), (("-m", "package.module"), "1")]
)
def test_a_program_finds_what_it_finds_under_python(folder, words, safe_path):
    by_python = python(folder, *words, "--lr", "1", safe_path=safe_path)
    program = Program(words[-1], ("--lr", "1"), words[0] == "-m")
    code = f"from profiling.watching.program import Program; it = {program!r}; it.check(); it.run()"
    assert python(folder, "-c", code, safe_path=safe_path) == by_python
    found = json.loads(by_python[0])
    assert found["spawned"] == 2 and (found["path"] == str(ROOT)) == bool(safe_path)


def test_a_program_may_have_packages_of_the_names_of_ours(monkeypatch):
    ours, theirs = ModuleType("ours"), ModuleType("theirs")
    monkeypatch.setitem(sys.modules, "ours.inner", ours)
    with hidden(("ours",)):
        assert "ours.inner" not in sys.modules
        sys.modules.update({"ours": theirs, "ours.inner": theirs})
    assert sys.modules["ours.inner"] is ours and "ours" not in sys.modules


@pytest.mark.parametrize("name", ["TORCHELASTIC_RESTART_COUNT", "SLURM_RESTART_COUNT"])
def test_ranks_that_are_started_again_may_write_where_they_did(tmp_path, monkeypatch, name):
    """torchrun --max-restarts; a job that Slurm has put back into the queue."""
    rank = tmp_path / "run" / "rank_0000"
    rank.mkdir(parents=True)
    (rank / "rank.json").write_text("{}")
    given, program = parse(["--out", str(tmp_path / "run"), "train.py"])
    monkeypatch.setenv(name, "0")
    with pytest.raises(UserError, match="already holds a run"):
        prepare_folder(given, program, Identity())
    monkeypatch.setenv(name, "1")
    assert prepare_folder(given, program, Identity()) == (tmp_path / "run", True)
    assert not any(rank.iterdir()) and not is_restarted({name: "x"})
