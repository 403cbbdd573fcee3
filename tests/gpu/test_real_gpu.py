"""What only a real GPU shows: arithmetic, graphs, the tools' own records, memory, and the studies."""

import subprocess
import sys
from pathlib import Path

import pytest
import torch

from benchmarks import gpu_checks

ROOT = Path(__file__).resolve().parents[2]
pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU on this machine")


@pytest.fixture(scope="module")
def lab(tmp_path_factory) -> gpu_checks.Lab:
    folder = tmp_path_factory.mktemp("lab")
    return gpu_checks.Lab(torch.device("cuda", 0), folder, gpu_checks.make_data(folder / "data", 64))


@pytest.mark.parametrize("name", gpu_checks.CHECKS)
def test_a_check(lab, name):
    try:
        checks = gpu_checks.CHECKS[name](lab)
    except gpu_checks.Absent as error:
        pytest.skip(f"with a GPU: {error}")
    assert checks and all(check.right for check in checks), checks


@pytest.mark.parametrize("study", ["layers", "gemm", "order", "capacity"])
def test_a_study(tmp_path, study):
    command = [sys.executable, "-m", f"train.studies.{study}", "--device", "gpu", "--repetitions", "3"]
    done = subprocess.run(
        [*command, "--warmup", "1", "--out", str(tmp_path / "out")], cwd=ROOT, capture_output=True, text=True,
        check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "out" / "durations.parquet").exists()
