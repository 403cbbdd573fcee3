"""What can be chosen is said once: flags, checks of a run and the doctor follow from it."""

import re
from pathlib import Path

import pytest

from jobs.checks import Node, why_not_on
from jobs.launchers import LAUNCHERS
from jobs.loaders import LOADERS
from jobs.machine import Machine
from jobs.run import BACKENDS, make_run
from profiling.tools import STARTED, TOOLS, tool
from profiling.tools.base import Profiler

GPU = ("NVIDIA H200",)


def machine(gpus: tuple[str, ...] = (), libraries: frozenset[str] = frozenset()) -> Machine:
    return Machine("h", "os", "cpu", 2, 1, gpus, None, libraries)


def test_the_docs_have_a_line_for_each_choice(root: Path) -> None:
    shown = {"profilers.md": {*TOOLS, *LOADERS} - {"none"}, "cluster.md": {*LAUNCHERS, *BACKENDS}}
    for page, names in shown.items():
        text = (root / "docs" / page).read_text()
        assert names <= set(re.findall(r"^\| \(?`([\w-]+)`", text, re.MULTILINE))


def test_a_profiler_that_is_started_or_read_says_how() -> None:
    for name in TOOLS:
        profiler = tool(name)
        in_process = type(profiler).open_capture is not Profiler.open_capture
        assert (name in STARTED) == (profiler.wraps or in_process or name == "none"), name
        reads = bool(profiler.reader) or type(profiler).stream is not Profiler.stream
        assert bool(profiler.reads) == reads, name


CASES = [
    ("dali-gpu", machine(), "data", "needs a GPU, and this machine has none; on a CPU use dali-cpu"),
    ("dali-gpu", machine(GPU), "data", "needs NVIDIA DALI, not installed: pip install"),
    ("dali-cpu", machine(), "data", "needs NVIDIA DALI"),
    ("dali-cpu", machine((), frozenset({"nvidia.dali"})), None, "needs data: a folder"),
    ("pytorch", machine(), None, "needs data: a folder"),
    ("pytorch", machine(), "data", ""),
    ("synthetic", machine(), None, ""),
]


@pytest.mark.parametrize(("loader", "here", "data", "why"), CASES)
def test_a_loader_says_what_it_lacks_before_a_run_starts(loader, here, data, why) -> None:
    whys = list(why_not_on(Node(here, sees_data=False), make_run({"loader": loader, "data": data})))
    assert why in whys[0] if why else not whys
