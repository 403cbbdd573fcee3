"""A study's command in this process, and a GPU as torch.cuda tells of one."""

import sys

import pytest
import torch

from tests.analysis.commands import run


@pytest.fixture
def answer_of(monkeypatch, tmp_path):
    """Runs a study's command and the one that it becomes, in this process, and gives the latter's end."""

    def run_study(main, *arguments):
        became = []
        monkeypatch.setattr("os.execv", lambda _, words: became.append(words))
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
