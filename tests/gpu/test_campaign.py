"""python -m benchmarks.gpu, sized down: every part on a CPU, and what becomes of one that fails or hangs."""

import json
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
import torch

from benchmarks import gpu, gpu_checks, gpu_parts, gpu_wheels

ROOT = Path(__file__).resolve().parents[2]
CPU = torch.device("cpu")


@pytest.fixture(autouse=True)
def one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.mark.wide
def test_the_command_on_a_cpu(tmp_path):
    parts = "machine,speed,batches,markers"
    # It takes 10 s of a processor. The time, of which each part has a share, is for one that has much to do.
    command = [sys.executable, "-m", "benchmarks.gpu", "--device", "cpu", "--minutes", "30", "--parts", parts]
    done = subprocess.run(
        [*command, "--out", str(tmp_path)],
        cwd=ROOT, capture_output=True, text=True, timeout=1900, check=False,
    )  # fmt: skip
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


def a_wheel(folder: Path, name: str, text: str) -> None:
    """The smallest wheel that pip takes."""
    about = f"{name}-1.0.dist-info"
    files = {
        f"{name}.py": text,
        f"{about}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n",
        f"{about}/WHEEL": "Wheel-Version: 1.0\nGenerator: a test\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    files[f"{about}/RECORD"] = "".join(f"{path},,\n" for path in [*files, f"{about}/RECORD"])
    with zipfile.ZipFile(folder / f"{name}-1.0-py3-none-any.whl", "w") as wheel:
        for path, content in files.items():
            wheel.writestr(path, content)


def test_wheels_are_unpacked_without_a_registry_and_beside_the_results(tmp_path):
    (tmp_path / "wheels").mkdir()
    for name in ("first_tiny", "second_tiny"):
        a_wheel(tmp_path / "wheels", name, f"HERE = {name!r}")
    site = gpu.install(tmp_path / "wheels", tmp_path / "out")
    assert site == (tmp_path / "out" / "site").resolve()
    assert {path.name for path in site.glob("*.py")} == {"first_tiny.py", "second_tiny.py"}
    (tmp_path / "wheels" / "first_tiny-1.0-py3-none-any.whl").unlink()
    assert gpu.install(tmp_path / "wheels", tmp_path / "out") == site, "it is done once"


def test_the_wheels_that_are_downloaded_are_what_the_project_pins_but_torch():
    with_needs, alone = gpu_wheels.requirements(dali=True)
    assert any(one.startswith("pydantic==") for one in with_needs)
    assert {one.partition("==")[0] for one in alone} >= {"cupti-python", "nvidia-dali-cuda130"}
    assert not any(one.startswith("torch") for one in with_needs + alone)
    assert not any("dali" in one for one in gpu_wheels.requirements(dali=False)[1])
    words = gpu_wheels.command(Path("wheels"), ["nvtx"], "3.13", alone=True)
    assert words[-2:] == ["--no-deps", "nvtx"] and words[words.index("--python-version") + 1] == "3.13"
    assert "--platform=manylinux_2_28_x86_64" in words and "--only-binary=:all:" in words
