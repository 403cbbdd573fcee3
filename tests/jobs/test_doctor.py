"""The doctor says what is here, and how to get what is not."""

import json
import subprocess
import sys

import pytest

from jobs import doctor
from jobs.doctor import examine
from jobs.machine import Machine


def test_what_is_missing_comes_with_what_to_do():
    bare = Machine("h", "os", "cpu", 2, 8_000_000_000, (), None, False)
    findings = examine(bare)
    named = {f.name for f in findings}
    assert named >= {"GPU", "torch", "nsys", "nvprof", "tau_exec", "cupti", "mpirun", "srun", "dali-cpu"}
    assert all(f.remedy for f in findings if not f.present)


def test_hidden_gpus_are_told_from_absent_ones():
    hidden = Machine("h", "os", "cpu", 2, 1, (), "580.1", True)
    gpu = next(f for f in examine(hidden) if f.name == "GPU")
    assert not gpu.present and "CUDA_VISIBLE_DEVICES" in gpu.remedy


def test_gpus_are_counted_by_kind():
    node = Machine("h", "os", "cpu", 2, 1, ("NVIDIA H200",) * 4, "580.1", True)
    gpu = next(f for f in examine(node) if f.name == "GPU")
    assert gpu.detail == "4 x NVIDIA H200 (driver 580.1)"


def test_the_command_prints_json_and_finds_torch(root):
    command = [sys.executable, "-m", "jobs.doctor", "--format", "json"]
    answer = subprocess.run(command, cwd=root, capture_output=True, text=True, check=True)
    findings = {f["name"]: f for f in json.loads(answer.stdout)}
    assert findings["torch"]["present"] and findings["CPU"]["detail"]


@pytest.mark.parametrize(("why", "present"), [("", True), ("profile cupti needs an NVIDIA GPU", False)])
def test_cupti_is_here_only_if_it_answers(monkeypatch, why, present):
    monkeypatch.setattr(doctor.cupti, "why_not", lambda: why)
    finding = next(f for f in examine(Machine("h", "os", "cpu", 2, 1, (), None, True)) if f.name == "cupti")
    assert finding.present == present and bool(finding.remedy) != present
    assert present or finding.detail == "needs an NVIDIA GPU"
