"""A study's command in this process, and a GPU as torch.cuda tells of one."""

import sys

import pytest
import torch

from tests.analysis.commands import run
from train.studies import common


@pytest.fixture
def answer_of(monkeypatch, tmp_path):
    """Runs a study's command and the one that it becomes, in this process, and gives the latter's end."""

    def run_study(main, *arguments):
        became = []
        monkeypatch.setattr(common, "become", became.append)
        flags = [*arguments, "--out", str(tmp_path / "result"), "--format", "csv", "--threads", "1"]
        monkeypatch.setattr(sys, "argv", ["study", *flags])
        threads = torch.get_num_threads()
        try:
            main()
        finally:
            torch.set_num_threads(threads)
        ((python, _, module, *rest),) = became
        assert python == sys.executable and module == "analysis.studies"
        return run("analysis.studies", *rest)

    return run_study


GIB = 1 << 30


@pytest.fixture
def gpu(monkeypatch):
    """What torch.cuda says of a GPU of 80 GiB, 10 of them taken."""
    said = {
        "synchronize": None, "reset_peak_memory_stats": None, "mem_get_info": (70 * GIB, 80 * GIB),
        "memory_reserved": 2 * GIB, "max_memory_allocated": 5 * GIB, "max_memory_reserved": 7 * GIB,
    }  # fmt: skip
    for name, value in said.items():
        monkeypatch.setattr(torch.cuda, name, lambda *_, value=value: value)
    fractions = []
    monkeypatch.setattr(
        torch.cuda, "set_per_process_memory_fraction", lambda share, _: fractions.append(share)
    )
    return fractions
