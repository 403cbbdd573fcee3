"""python -m benchmarks.gpu, sized down: every part on a CPU, and what becomes of one that fails or hangs."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from benchmarks import gpu, gpu_checks, gpu_parts

ROOT = Path(__file__).resolve().parents[2]
CPU = torch.device("cpu")


@pytest.fixture(autouse=True)
def one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def test_the_command_on_a_cpu(tmp_path):
    parts = "machine,speed,batches,markers"
    command = [sys.executable, "-m", "benchmarks.gpu", "--device", "cpu", "--minutes", "3", "--parts", parts]
    done = subprocess.run(
        [*command, "--out", str(tmp_path)], cwd=ROOT, capture_output=True, text=True, timeout=170, check=False
    )
    assert done.returncode == 0, done.stdout + (tmp_path / "log.txt").read_text()
    report = json.loads((tmp_path / "gpu.json").read_text())
    assert {name: part["status"] for name, part in report["parts"].items()} == dict.fromkeys(
        parts.split(","), "done"
    )
    ours, bare = report["parts"]["speed"]["tables"][0]["rows"]
    assert ours[:1] + bare[:1] == ["scaleprof", "bare PyTorch"] and ours[1] > 0 and bare[1] > 0
    text = (tmp_path / "gpu.md").read_text()
    assert text in done.stdout and f"| torch | {torch.__version__} |" in text


def test_it_needs_nothing_but_the_standard_library_before_the_wheels_are_there():
    code = "import sys; sys.modules.update(dict.fromkeys(['torch', 'numpy', 'pydantic', 'jobs', 'train'])); "
    subprocess.run([sys.executable, "-c", code + "import benchmarks.gpu"], cwd=ROOT, check=True)


WORKER = """
import json, pathlib, sys, time
words = sys.argv[1:]
out = pathlib.Path(words[words.index("--out") + 1]) / "parts"
for name in words[6:]:
    if name == "correctness":
        (out / "correctness.sofar").write_text(json.dumps({"notes": ["half of it"]}))
        time.sleep(1000)
    if name == "speed":
        sys.exit("no such speed")
    (out / f"{name}.json").write_text(json.dumps({"status": "done", "wrong": ["too slow"]}))
"""


def test_a_part_that_hangs_or_dies_costs_itself_alone_and_keeps_what_it_had(tmp_path, monkeypatch, capsys):
    worker = tmp_path / "worker.py"
    worker.write_text(WORKER)
    monkeypatch.setattr(gpu, "WORKER", [str(worker)])
    monkeypatch.setattr(gpu, "_GRACE_S", 0.0)
    monkeypatch.setattr(gpu, "PARTS", {name: (what, 0.2) for name, (what, _) in gpu.PARTS.items()})
    parts = ["machine", "correctness", "speed", "batches"]
    words = ["gpu", "--minutes", "0.2", "--out", str(tmp_path), "--parts", ",".join(parts)]
    monkeypatch.setattr(sys, "argv", words)
    assert gpu.main() == 1
    found = json.loads((tmp_path / "gpu.json").read_text())["parts"]
    assert [found[name]["status"] for name in parts] == ["done", "failed", "failed", "done"]
    assert found["correctness"]["why"].startswith("it took more than")
    assert found["correctness"]["notes"] == ["half of it"]
    assert found["speed"]["why"] == "its process ended with exit code 1: no such speed"
    assert "- **not right**: too slow" in (tmp_path / "gpu.md").read_text()


def test_what_the_time_does_not_suffice_for_is_named(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["gpu", "--minutes", "0", "--out", str(tmp_path), "--parts", "speed"])
    assert gpu.main() == 0
    assert "left out: the time was up" in (tmp_path / "gpu.md").read_text()


@pytest.mark.parametrize("name", ["precisions", "clocks", "backends", "loaders"])
def test_the_checks_hold_on_a_cpu(tmp_path, name):
    lab = gpu_checks.Lab(CPU, tmp_path, gpu_checks.make_data(tmp_path / "data", 16))
    checks = gpu_checks.CHECKS[name](lab)
    assert checks and all(check.right for check in checks), checks


def test_a_check_can_fail():
    assert not gpu_checks.Check("off", 0.2, 0.1).right and not gpu_checks.failed(ValueError("x"), "y").right


def test_every_part_is_there():
    assert list(gpu_parts.DO) == list(gpu.PARTS)
