"""Which PyTorch serves which GPU, and what GPUs are here where NVML does not say?"""

import ctypes
import re
from collections.abc import Sequence

# Releases of PyTorch that the tests run on: the oldest and the newest. The environment pins the newest.
TESTED_TORCH = ((2, 11), (2, 13))
NO_AMD = (
    "AMD GPUs are not supported: nothing was tried on one; DALI, cupti, nsys, ncu and energy are NVIDIA's. "
    "--device cpu trains on the CPU, and traces recorded elsewhere are analysed (python -m profiling.convert)"
)
_CUDA_13 = (7, 5)  # below, PyTorch's builds for CUDA 13 have no kernels
_CUDA_12 = (5, 0)  # below, those for CUDA 12.6 have none either
_MAJOR, _MINOR = 75, 76  # of cuDeviceGetAttribute: the compute capability


def why_not_tested(version: str) -> str:
    """What to do about a release of PyTorch that the tests do not run on; "" if they do."""
    match = re.match(r"(\d+)\.(\d+)", version)
    oldest, newest = TESTED_TORCH
    if match and oldest <= (int(match[1]), int(match[2])) <= newest:
        return ""
    first, last = (".".join(map(str, release)) for release in TESTED_TORCH)
    return f"tested with {first} to {last}: pip install -e . brings {last}"


def why_not_built_for(capability: tuple[int, int], built_for: Sequence[str], name: str) -> str:
    """Why this PyTorch has no kernels for a GPU, and which build has; "" if it has.

    Args:
        capability: of the GPU.
        built_for: as ``torch.cuda.get_arch_list()`` says, e.g. ``sm_90`` (code for 9.0 and later of its
            major version) and ``compute_90`` (which the driver compiles for whatever comes later).
    """
    if not built_for or any(_serves(arch, capability) for arch in built_for):
        return ""
    own = f"{name} has compute capability {capability[0]}.{capability[1]}"
    remedy = "install a newer PyTorch"
    if capability < _CUDA_12:
        oldest = ".".join(map(str, TESTED_TORCH[0]))
        remedy = f"PyTorch {oldest} and later serve no such GPU: use --device cpu"
    elif capability < _CUDA_13:
        remedy = "install PyTorch for CUDA 12.6 and, for DALI, nvidia-dali-cuda120 (environment-cuda12.yml)"
    return f"{own}, and this PyTorch is built for {', '.join(built_for)}; {remedy}"


def _serves(arch: str, capability: tuple[int, int]) -> bool:
    match = re.fullmatch(r"(sm|compute)_(\d+)(\d)([af]?)", arch)
    if not match:
        return False
    built = int(match[2]), int(match[3])
    if match[4]:
        return built == capability
    if match[1] == "compute":
        return built <= capability
    return built[0] == capability[0] and built[1] <= capability[1]


def gpus_by_driver() -> tuple[tuple[str, ...], str | None, tuple[int, int] | None]:
    """The GPUs that CUDA's driver shows to this process, where NVML is not there to ask.

    So it is in containers that have the driver's compute part alone, and on Jetson.

    Returns:
        Names, the driver's CUDA release in words (None: no driver), the first GPU's compute capability.
    """
    try:
        cuda = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return (), None, None
    if cuda.cuInit(0):
        return (), None, None  # the library is installed, and there is no device, or no driver below it
    release = _number(cuda.cuDriverGetVersion)
    driver = f"for CUDA {release // 1000}.{release % 1000 // 10}"
    devices = range(_number(cuda.cuDeviceGetCount))
    capability = (
        [_number(cuda.cuDeviceGetAttribute, which, 0) for which in (_MAJOR, _MINOR)] if devices else []
    )
    return (
        tuple(_name(cuda, one) for one in devices),
        driver,
        (capability[0], capability[1]) if devices else None,
    )


def _number(call: "ctypes._FuncPointer", *arguments: int) -> int:  # type: ignore[name-defined]
    number = ctypes.c_int()
    return number.value if call(ctypes.byref(number), *arguments) == 0 else 0


def _name(cuda: ctypes.CDLL, device: int) -> str:
    name = ctypes.create_string_buffer(128)
    return name.value.decode() if cuda.cuDeviceGetName(name, len(name), device) == 0 else "NVIDIA GPU"
