"""python -m benchmarks.gpu: its processes, and what becomes of a part that fails, hangs or cannot begin."""

import json
import signal
import sys

import pytest
import torch

from benchmarks import gpu, gpu_checks, gpu_parts
from profiling.errors import UserError

# Instead of benchmarks.gpu_parts: what a part does is in its name.
WORKER = """
import json, pathlib, sys, time
words = sys.argv[1:]
work = pathlib.Path(words[words.index("--work") + 1])
out = work / "parts"
(out / "started").touch()
for name in words[8:]:
    if name == "correctness":
        (out / "correctness.sofar").write_text(json.dumps({"notes": ["half of it"]}))
        time.sleep(1000)
    if name == "speed":
        sys.exit("no such speed")
    (out / f"{name}.json").write_text(json.dumps({"status": "done", "wrong": ["too slow"]}))
"""


@pytest.fixture
def campaign(tmp_path, monkeypatch, capsys):
    """Runs the command with that worker in its process; the exit code and the parts of its report."""
    worker = tmp_path / "worker.py"
    worker.write_text(WORKER)
    monkeypatch.setattr(gpu, "WORKER", [str(worker)])
    monkeypatch.setattr(gpu, "GRACE_S", 0.0)
    monkeypatch.setattr(gpu, "PARTS", {name: (what, 0.2) for name, (what, _) in gpu.PARTS.items()})

    def run(*parts: str, minutes: float = 0.3) -> tuple[int, dict]:
        words = ["gpu", "--minutes", str(minutes), "--out", str(tmp_path), "--parts", ",".join(parts)]
        monkeypatch.setattr(sys, "argv", words)
        before = signal.getsignal(signal.SIGTERM)
        try:
            code = gpu.main()
        finally:
            signal.signal(signal.SIGTERM, before)
        return code, json.loads((tmp_path / "gpu.json").read_text())["parts"]

    return run


def test_a_part_that_hangs_or_dies_costs_itself_alone_and_keeps_what_it_had(tmp_path, campaign):
    parts = ["machine", "correctness", "speed", "batches"]
    code, found = campaign(*parts)
    assert code == 1
    assert [found[name]["status"] for name in parts] == ["done", "failed", "failed", "done"]
    assert found["correctness"]["notes"] == ["half of it"]
    assert "no such speed" in found["speed"]["why"]
    text = (tmp_path / "gpu.md").read_text()
    assert "too slow" in text and "2 of 4" in text and "--parts correctness\n" in text


def test_without_a_gpu_it_says_so_and_how_it_is_tried_without_one(tmp_path, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    words = ["gpu_parts", "--out", str(tmp_path), "--work", str(tmp_path), "--seconds", "9", "machine"]
    monkeypatch.setattr(sys, "argv", words)
    with pytest.raises(UserError, match="torch sees none here; use --device cpu"):
        gpu_parts.main()
    assert not list(tmp_path.iterdir())


# --- parts ---------------------------------------------------------------------------------------------


@pytest.fixture
def one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.mark.parametrize("name", ["clocks", "loaders"])
def test_the_checks_hold_on_a_cpu(one_thread, tmp_path, name):
    lab = gpu_checks.Lab(torch.device("cpu"), tmp_path, gpu_checks.make_data(tmp_path, 16))
    checks = gpu_checks.CHECKS[name](lab)
    assert checks and all(check.right for check in checks), checks
