"""A program under profiling.watch finds what it finds under Python itself."""

import json
import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

from profiling.errors import UserError
from profiling.identity import Identity, is_restarted
from profiling.watch import parse, prepare_folder
from profiling.watching.program import Program, hidden

ROOT = Path(__file__).resolve().parents[2]
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


def run(folder: Path, *words: str, safe_path: str = "") -> list[str]:
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
    ("words", "safe_path"),
    [
        (("script.py",), ""),
        (("-m", "package"), ""),
        (("-m", "package.module"), "1"),
    ],
)
def test_a_program_finds_what_it_finds_under_python(folder, words, safe_path):
    by_python = run(folder, *words, "--lr", "1", safe_path=safe_path)
    program = Program(words[-1], ("--lr", "1"), words[0] == "-m")
    code = f"from profiling.watching.program import Program; it = {program!r}; it.check(); it.run()"
    assert run(folder, "-c", code, safe_path=safe_path) == by_python
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
