"""``scaleprof`` lists every command and is each of them, from any folder."""

import os
import re
import subprocess
import sys
from importlib import metadata
from pathlib import Path

import pytest

from jobs import commands
from jobs.run_fields import FORMATS
from tests.analysis.commands import one_line_error, run

PACKAGES = ("jobs", "train", "profiling", "analysis")
# What other commands start, and no user does.
STARTED_BY_OTHERS = {
    "analysis.check", "analysis.hotspots", "jobs.submit", "profiling.wrap", "train.check", "train.torchrun",
}  # fmt: skip


@pytest.fixture(scope="module")
def installed() -> None:
    """An environment that `make setup` made."""
    if "scaleprof" not in {entry.name for entry in metadata.entry_points(group="console_scripts")}:
        pytest.skip("this environment has no command scaleprof; make setup installs it")


def test_every_command_of_the_project_is_listed(root):
    there = set()
    for package in PACKAGES:
        for path in (root / package).rglob("*.py"):
            if re.search(r'^(if __name__ == "__main__":|main = Command\()', path.read_text("utf-8"), re.M):
                module = ".".join(path.relative_to(root).with_suffix("").parts)
                there.add(module.removesuffix(".__main__"))
    ours = {module for modules in commands.GROUPS.values() for module in modules}
    assert there - STARTED_BY_OTHERS - {"jobs.commands"} == ours
    assert len(commands.COMMANDS) == len(ours)


@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # runpy's: this process has imported them
def test_a_command_is_its_module():
    assert run("jobs.commands", "site", "--help").out == run("jobs.site", "--help").out != ""
    wrong = run("jobs.commands", "scaled", "nowhere")
    assert wrong.code == 2 and "nowhere" in wrong.err


def test_its_version_is_that_of_the_package_and_a_wrong_flag_is_one_line(installed):
    answer = run("jobs.commands", "--version")
    assert (answer.code, answer.out) == (0, f"scaleprof {metadata.version('scaleprof')}\n")
    assert "--verson; did you mean '--version'?" in one_line_error(run("jobs.commands", "--verson"))


@pytest.mark.parametrize(
    ("typed", "offered"),
    [
        ("scaleprof anat", {"anatomy"}),
        ("scaleprof scaled {here}/res --format ", set(FORMATS)),
        ("scaleprof sweep {here}/result.yaml --si", {"--site"}),
    ],
)
def test_the_shell_completes_commands_and_their_flags(tmp_path, root, typed, offered):
    pytest.importorskip("argcomplete")
    (tmp_path / "results").mkdir()
    (tmp_path / "result.yaml").touch()
    typed, answers = typed.replace("{here}", str(tmp_path)), tmp_path / "answers"
    asked = {
        "_ARGCOMPLETE": "1", "COMP_LINE": typed, "COMP_POINT": str(len(typed)), "IFS": "\n",
        "_ARGCOMPLETE_STDOUT_FILENAME": str(answers),
    }  # fmt: skip
    command = [sys.executable, "-m", "jobs.commands"]
    subprocess.run(command, cwd=root, env={**os.environ, **asked}, capture_output=True, check=False)
    assert {word.strip() for word in answers.read_text().split("\v")} - {""} == offered


def test_the_environment_finds_scaleprof_from_any_folder(installed, tmp_path):
    scaleprof = Path(sys.executable).with_name("scaleprof")
    listed = subprocess.run([scaleprof], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert listed.stdout == commands.listing() + "\n"
