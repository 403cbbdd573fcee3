"""Which PyTorch serves which GPU, and GPUs without NVML."""

import ctypes
from dataclasses import replace

import pytest

from jobs import doctor, machine
from jobs.doctor import examine
from jobs.machine import Machine, check_built_for, gpus_by_driver, is_tested
from profiling.errors import UserError

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


@pytest.mark.parametrize(
    ("version", "fine"),
    [("2.11.0+cu130", True), ("2.12.1", True), ("2.13.0", True), ("2.10.0", False), ("2.14.0", False),
     ("3.0", False), ("unknown", False)],
)  # fmt: skip
def test_releases_of_pytorch_that_are_tested(version, fine):
    assert is_tested(version) == fine


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


def test_the_doctor_says_what_works_on_an_amd_gpu(monkeypatch, tmp_path):
    monkeypatch.setattr(doctor, "AMD_DRIVER", tmp_path)
    gpu = next(f for f in examine(replace(NODE, gpus=(), driver=None, capability=None)) if f.name == "GPU")
    assert not gpu.present and gpu.remedy == machine.NO_AMD


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

    def no_nvml():
        raise pynvml.NVMLError(pynvml.NVML_ERROR_LIBRARY_NOT_FOUND)

    monkeypatch.setattr(pynvml, "nvmlInit", no_nvml)
    monkeypatch.setattr(ctypes, "CDLL", lambda name: driver)
    assert gpus_by_driver() == machine._gpus() == seen


def test_where_nvml_counts_gpus_that_a_job_must_not_open_the_driver_says_which_it_has(monkeypatch):
    import pynvml

    def refused(index):
        raise pynvml.NVMLError(pynvml.NVML_ERROR_NO_PERMISSION)

    for name, answer in {"nvmlInit": None, "nvmlShutdown": None, "nvmlDeviceGetCount": 4}.items():
        monkeypatch.setattr(pynvml, name, lambda answer=answer: answer)
    monkeypatch.setattr(pynvml, "nvmlDeviceGetHandleByIndex", refused)
    monkeypatch.setattr(ctypes, "CDLL", lambda name: _Driver())
    assert machine._gpus() == (("Orin 0", "Orin 1"), "for CUDA 12.6", (8, 7))
