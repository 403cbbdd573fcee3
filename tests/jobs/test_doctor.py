"""The doctor says what is here, and how to get what is not: libraries, GPUs, profilers, TAU."""

import ctypes
import json
import subprocess
import sys
from dataclasses import replace
from unittest.mock import Mock

import pytest

from jobs import doctor, machine
from jobs.doctor import examine, look_at_tau
from jobs.machine import Machine, check_built_for, gpus_by_driver, is_tested
from profiling.errors import UserError
from profiling.tools import cupti
from tests.builders import put_programs

WITH_DALI = frozenset({"nvidia.dali"})
HERE = Machine("h", "os", "cpu", 2, 1, (), None, WITH_DALI)


def test_what_is_missing_comes_with_what_to_do():
    bare = Machine("h", "os", "cpu", 2, 8_000_000_000, (), None, frozenset())
    findings = examine(bare)
    named = {f.name for f in findings}
    assert named >= {"GPU", "torch", "nsys", "nvprof", "tau_exec", "cupti", "mpirun", "srun", "dali-cpu"}
    assert all(f.remedy for f in findings if not f.present)


def test_hidden_gpus_are_told_from_absent_ones():
    hidden = Machine("h", "os", "cpu", 2, 1, (), "580.1", WITH_DALI)
    gpu = next(f for f in examine(hidden) if f.name == "GPU")
    assert not gpu.present and "CUDA_VISIBLE_DEVICES" in gpu.remedy
    node = replace(hidden, gpus=("NVIDIA H200",) * 4)
    assert next(f for f in examine(node) if f.name == "GPU").detail == "4 x NVIDIA H200 (driver 580.1)"


def test_the_command_prints_json_and_finds_torch(root):
    command = [sys.executable, "-m", "jobs.doctor", "--format", "json"]
    answer = subprocess.run(command, cwd=root, capture_output=True, text=True, check=True)
    findings = {f["name"]: f for f in json.loads(answer.stdout)}
    assert findings["torch"]["present"] and findings["CPU"]["detail"]


@pytest.mark.parametrize(("error", "present"), [(None, True), (UserError("needs an NVIDIA GPU"), False)])
def test_cupti_is_here_only_if_it_answers(monkeypatch, error, present):
    monkeypatch.setattr(cupti, "load_api", Mock(side_effect=error))
    node = replace(HERE, gpus=("NVIDIA H200",))
    finding = next(f for f in examine(node) if f.name == "cupti")
    assert finding.present == present and bool(finding.remedy) != present


def test_a_launcher_that_answers_with_an_error_is_not_here(tmp_path, monkeypatch):
    put_programs(tmp_path, srun="echo 'srun: error: no DNS' >&2; echo 'srun: fatal: no cluster' >&2; exit 1")
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    finding = next(f for f in examine(HERE) if f.name == "srun")
    assert not finding.present and finding.detail.endswith("fatal: no cluster")
    assert finding.remedy


@pytest.mark.parametrize(
    ("name", "capability", "says"),
    [
        ("nsys", None, []), ("nvprof", None, ["records GPUs only"]),
        ("nvprof", (7, 5), []), ("nsys", (9, 0), []), ("ncu", (7, 0), []),
        ("ncu", (6, 1), ["6.1", "7.0"]), ("nvprof", (10, 0), ["10.0", "7.5"]),
    ],
)  # fmt: skip
def test_a_profiler_is_ready_where_it_has_something_to_record(tmp_path, monkeypatch, name, capability, says):
    put_programs(tmp_path, **{name: "echo 2025.5"})
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    monkeypatch.setattr(doctor, "_built_for", lambda: [])
    gpus = ("NVIDIA",) if capability else ()
    found = next(f for f in examine(replace(HERE, gpus=gpus, capability=capability)) if f.name == name)
    assert found.present != bool(says) and all(word in found.remedy for word in says)


CUDA_13 = ["sm_75", "sm_80", "sm_86", "sm_90", "sm_100", "sm_120", "compute_120"]
NODE = Machine("h", "os", "cpu", 2, 1, ("Tesla V100-SXM2-16GB",), "580.1", frozenset(), (7, 0))


@pytest.mark.parametrize(
    ("capability", "built_for", "told"),
    [
        ((9, 0), CUDA_13, ""),
        ((8, 9), CUDA_13, ""),  # code for 8.6 runs on 8.9
        ((12, 1), CUDA_13, ""),
        ((13, 0), CUDA_13, ""),  # the driver compiles it
        ((7, 0), CUDA_13, "7.0.* sm_75, .*CUDA 12.6.*cuda120"),
        ((3, 5), CUDA_13, "--device cpu"),
        ((10, 0), ["sm_80", "sm_90"], "install a newer PyTorch"),
        ((9, 1), ["sm_90a"], "install a newer PyTorch"),
        ((9, 0), ["sm_90a"], ""),
        ((9, 0), [], ""),  # it does not say
    ],
)
def test_the_build_that_serves_a_gpu_is_named(capability, built_for, told):
    if told:
        with pytest.raises(UserError, match=told):
            check_built_for(capability, built_for, "Tesla")
    else:
        check_built_for(capability, built_for, "Tesla")


def test_releases_of_pytorch_that_are_tested():
    versions = ("2.11.0+cu130", "2.12.1", "2.13.0", "2.10.0", "2.14.0", "3.0", "unknown")
    assert [is_tested(version) for version in versions] == [True] * 3 + [False] * 4


@pytest.mark.parametrize(
    ("capability", "built", "present"), [((7, 0), CUDA_13, False), ((9, 0), CUDA_13, True)]
)
def test_the_doctor_checks_pytorch_and_its_build(monkeypatch, capability, built, present):
    monkeypatch.setattr(doctor, "_built_for", lambda: built)
    monkeypatch.setattr(doctor, "versions", lambda: {"torch": "2.9.0"})
    findings = {finding.name: finding for finding in examine(replace(NODE, capability=capability))}
    assert findings["torch for GPU"].present is present
    assert ("CUDA 12.6" in findings["torch for GPU"].remedy) != present
    assert not findings["torch's release"].present and "2.11" in findings["torch's release"].remedy


class _Driver:
    """libcuda, of two GPUs."""

    def __init__(self, count=2, error=0):
        self.count, self.error = count, error

    def cuInit(self, flags):
        return self.error

    def cuDriverGetVersion(self, number):
        number._obj.value = 12060
        return 0

    def cuDeviceGetCount(self, number):
        number._obj.value = self.count
        return 0

    def cuDeviceGetName(self, name, length, device):
        name.value = f"Orin {device}".encode()
        return 0

    def cuDeviceGetAttribute(self, number, which, device):
        number._obj.value = {75: 8, 76: 7}[which]
        return 0


@pytest.mark.parametrize(
    ("driver", "seen"),
    [
        (_Driver(), (("Orin 0", "Orin 1"), "for CUDA 12.6", (8, 7))),
        (_Driver(0), ((), "for CUDA 12.6", None)),
        (_Driver(error=100), ((), None, None)),
    ],
)
def test_without_nvml_the_driver_says_which_gpus_there_are(monkeypatch, driver, seen):
    """Ranks take them; a launcher that saw none would plan for a node of cores."""
    import pynvml

    def no_nvml(*_):
        raise pynvml.NVMLError(pynvml.NVML_ERROR_LIBRARY_NOT_FOUND)

    monkeypatch.setattr(ctypes, "CDLL", lambda name: driver)
    monkeypatch.setattr(pynvml, "nvmlInit", no_nvml)
    assert gpus_by_driver() == machine._gpus() == seen
    # Of a job's part of a node: NVML may count GPUs that it must not open.
    for name, answer in {"nvmlInit": None, "nvmlShutdown": None, "nvmlDeviceGetCount": 4}.items():
        monkeypatch.setattr(pynvml, name, lambda answer=answer: answer)
    monkeypatch.setattr(pynvml, "nvmlDeviceGetHandleByIndex", no_nvml)
    assert machine._gpus() == seen


# tau_exec: it watches as long as what it was asked for is among its parts.
EXEC = """
case "$*" in
    *-tau-python-interpreter*) {python} ;;
    *) {alone} ;;
esac
"""
PROFILE = 'touch "$PROFILEDIR/profile.0.0.0"'
OTHER_PYTHON = "TAU Error: TAU was compiled against Python 3.11.2, but version 3.12.1 was used at runtime."
NO_PYTHON = (
    "Error: No matching binding for 'python mpi' in directory /opt/tau/lib\\nBinding not found. Exiting..."
)


@pytest.fixture
def put(tmp_path):
    """Programs that stand in for TAU's; the environment in which they are found."""

    def make(alone=PROFILE, python=PROFILE):
        program = EXEC.format(alone=alone, python=python)
        put_programs(tmp_path, tau_exec=program, tau_python=program)
        return {"PATH": f"{tmp_path}:/usr/bin:/bin"}

    return make


def test_a_tau_without_python_is_none_that_can_be_used(put):
    assert look_at_tau(put()).present
    found = look_at_tau(put(alone=f'printf "{NO_PYTHON}"; exit 1'))
    assert not found.present and "No matching binding" in found.detail
    assert "profile_mode python" not in found.detail and "+python" in found.remedy


def test_a_tau_of_another_python_serves_in_all_modes_but_one(put):
    found = look_at_tau(put(python=f'echo "{OTHER_PYTHON}"; exit 255'))
    assert found.present and found.detail.endswith(f"profile_mode python: {OTHER_PYTHON}")


def test_where_there_are_gpus_it_is_tried_with_cupti(put, tmp_path):
    look_at_tau(put(alone=f'echo "$*" > {tmp_path}/said; {PROFILE}'), gpu=True)
    assert "python,cupti" in (tmp_path / "said").read_text().split()
    assert not look_at_tau({"PATH": "/nowhere"}).present
    assert not look_at_tau(put(alone="true")).present  # it writes nothing
