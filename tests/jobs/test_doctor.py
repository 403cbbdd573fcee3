"""The doctor says what is here, and how to get what is not: libraries, GPUs, profilers, TAU."""

import ctypes
from dataclasses import replace
from types import SimpleNamespace
from unittest.mock import Mock

import pytest

from jobs import doctor, machine
from jobs.doctor import examine, look_at_tau
from jobs.machine import Machine, check_built_for
from profiling.errors import UserError
from profiling.presence import Presence
from profiling.tools import cupti
from tests.analysis.commands import run
from tests.builders import put_programs
from tests.jobs.scripted import HERE


def found_of(machine: Machine, name: str) -> Presence:
    return next(found for found in examine(machine) if found.name == name)


def test_what_is_missing_comes_with_what_to_do():
    found = examine(replace(HERE, libraries=frozenset()))
    named = {each.name for each in found}
    assert named >= {"GPU", "torch", "nsys", "nvprof", "tau_exec", "cupti", "mpirun", "srun", "dali-cpu"}
    assert all(each.remedy for each in found if not each.present)
    of_command = {each["name"]: each for each in run("jobs.doctor", "--format", "json").json}
    assert of_command["torch"]["present"] and of_command["CPU"]["detail"]


def test_hidden_gpus_are_told_from_absent_ones():
    hidden = replace(HERE, driver="580.1")
    gpu = found_of(hidden, "GPU")
    assert not gpu.present and "CUDA_VISIBLE_DEVICES" in gpu.remedy
    node = replace(hidden, gpus=("NVIDIA H200",) * 4)
    assert found_of(node, "GPU").detail == "4 x NVIDIA H200 (driver 580.1)"


@pytest.mark.parametrize(("error", "present"), [(None, True), (UserError("needs an NVIDIA GPU"), False)])
def test_cupti_is_here_only_if_it_answers(monkeypatch, error, present):
    monkeypatch.setattr(cupti, "load_api", Mock(side_effect=error))
    finding = found_of(replace(HERE, gpus=("NVIDIA H200",)), "cupti")
    assert finding.present == present and bool(finding.remedy) != present


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
    found = found_of(replace(HERE, gpus=gpus, capability=capability), name)
    assert found.present != bool(says) and all(word in found.remedy for word in says)


CUDA_13 = ["sm_75", "sm_80", "sm_86", "sm_90", "sm_100", "sm_120", "compute_120"]


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


@pytest.mark.parametrize(
    ("capability", "built", "present"), [((7, 0), CUDA_13, False), ((9, 0), CUDA_13, True)]
)
def test_the_doctor_checks_pytorch_and_its_build(monkeypatch, capability, built, present):
    monkeypatch.setattr(doctor, "_built_for", lambda: built)
    monkeypatch.setattr(doctor, "versions", lambda: {"torch": "2.9.0"})
    node = replace(HERE, gpus=("Tesla V100-SXM2-16GB",), driver="580.1", capability=capability)
    findings = {finding.name: finding for finding in examine(node)}
    assert findings["torch for GPU"].present is present
    assert ("CUDA 12.6" in findings["torch for GPU"].remedy) != present
    assert not findings["torch's release"].present and "2.11" in findings["torch's release"].remedy


def driver_of(gpus: int, error: int = 0) -> SimpleNamespace:
    """libcuda of a machine with so many GPUs."""

    def says(value):
        return lambda number, *_: setattr(number._obj, "value", value) or 0

    return SimpleNamespace(
        cuInit=lambda _: error, cuDriverGetVersion=says(12060), cuDeviceGetCount=says(gpus),
        cuDeviceGetName=lambda name, _, device: setattr(name, "value", f"Orin {device}".encode()) or 0,
        cuDeviceGetAttribute=lambda number, which, _: says({75: 8, 76: 7}[which])(number),
    )  # fmt: skip


@pytest.mark.parametrize(
    ("driver", "seen"),
    [
        (driver_of(2), (("Orin 0", "Orin 1"), "for CUDA 12.6", (8, 7))),
        (driver_of(0), ((), "for CUDA 12.6", None)),
        (driver_of(2, error=100), ((), None, None)),
    ],
)
def test_the_driver_says_which_gpus_there_are(monkeypatch, tmp_path, driver, seen):
    """Ranks take them; a launcher that saw none would plan for a node of cores."""
    monkeypatch.setattr(ctypes, "CDLL", lambda name: driver)
    monkeypatch.setattr(machine, "_DRIVER", tmp_path / "version")
    assert machine._gpus() == seen
    (tmp_path / "version").write_text("580.95.05\n")  # known also where all GPUs are hidden
    assert machine._gpus() == (seen[0], "580.95.05", seen[2])


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
    assert look_at_tau(put()).present and not look_at_tau({"PATH": "/nowhere"}).present
    assert not look_at_tau(put(alone="true")).present  # it writes nothing
    found = look_at_tau(put(alone=f'printf "{NO_PYTHON}"; exit 1'))
    assert not found.present and "No matching binding" in found.detail
    assert "profile_mode python" not in found.detail and "+python" in found.remedy


def test_a_tau_of_another_python_serves_in_all_modes_but_one(put):
    found = look_at_tau(put(python=f'echo "{OTHER_PYTHON}"; exit 255'))
    assert found.present and found.detail.endswith(f"profile_mode python: {OTHER_PYTHON}")
