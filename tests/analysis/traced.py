"""Planted traces as results, and the commands that answer them."""

from pathlib import Path
from typing import Any

from analysis.frames.load import load
from analysis.frames.study import Study
from profiling.convert import main as convert
from tests.analysis.commands import Ran
from tests.analysis.commands import run as run_module
from tests.profiling.traced_jobs import Planted, write_job
from tests.profiling.traces import Trace

MS = 1000.0


def converted(path: Path, out: Path) -> Path:
    """The results of traces."""
    assert convert([str(path), "--out", str(out), "--jobs", "1"]) == 0
    return out


def job(folder: Path, planted: Planted, name: str = "mine", **options: Any) -> Path:
    """A converted job's folder."""
    return converted(write_job(folder / name, planted, **options), folder / "out") / name


def study_of(folder: Path, *traces: Trace) -> Study:
    """The results of the traces of ranks, as loaded."""
    (folder / "mine").mkdir()
    for rank, trace in enumerate(traces):
        trace.write(folder / "mine" / f"rank{rank}.json")
    return load(converted(folder / "mine", folder / "out"))


def run(command: str, *arguments: object) -> Ran:
    """A command of analysis."""
    module = "analysis.report.__main__" if command == "report" else f"analysis.{command}"
    return run_module(module, *arguments)
