"""Planted traces as results, and the commands that answer them."""

from pathlib import Path
from typing import Any

from profiling.convert import main as convert
from tests.analysis.commands import Ran
from tests.analysis.commands import run as run_module
from tests.profiling.traced_jobs import Planted, write_job

MS = 1000.0


def job(folder: Path, planted: Planted, name: str = "mine", **options: Any) -> Path:
    """A converted job's folder."""
    write_job(folder / name, planted, **options)
    assert convert([str(folder / name), "--out", str(folder / "out"), "--jobs", "1"]) == 0
    return folder / "out" / name


def run(command: str, *arguments: object) -> Ran:
    """A command of analysis."""
    module = "analysis.report.__main__" if command == "report" else f"analysis.{command}"
    return run_module(module, *arguments)
