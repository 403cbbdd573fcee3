"""A rank's process: facts about it and its model, its stacks when it hangs, and its end."""

import atexit
import faulthandler
import gc
import os
import resource
import signal
import socket
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any, NoReturn

import psutil

from profiling.errors import EXIT_FAILED, run_command

if TYPE_CHECKING:
    import torch
    from torch.nn import Module


def facts_of_process(devices: Iterable["torch.device"]) -> dict[str, Any]:
    """Facts of a rank's process at its end (:class:`jobs.store.RankReport`); of GPUs the largest."""
    import torch

    gpus = [device for device in devices if device.type == "cuda"]
    memory = [torch.cuda.get_device_properties(device).total_memory for device in gpus]
    versions: dict[str, str] = {"torch": str(torch.__version__)}
    if gpus:
        versions |= {"cuda": torch.version.cuda or "?", "cudnn": str(torch.backends.cudnn.version())}
        if torch.distributed.is_nccl_available():
            versions["nccl"] = ".".join(str(part) for part in torch.cuda.nccl.version())
    return {
        "hostname": socket.gethostname(),
        "threads": torch.get_num_threads(),
        "peak_memory_bytes": peak_memory_bytes(),
        "peak_device_memory_bytes": max(map(torch.cuda.max_memory_allocated, gpus), default=None),
        "peak_device_reserved_bytes": max(map(torch.cuda.max_memory_reserved, gpus), default=None),
        "device_memory_bytes": max(memory, default=None),
        "compute_capability": "{}.{}".format(*torch.cuda.get_device_capability(gpus[0])) if gpus else "",
        "device_used_bytes": max(map(device_used_bytes, gpus), default=None),
        "versions": versions,
    }


def cores() -> int:
    """How many cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def peak_memory_bytes() -> int:
    """The most memory this process has held (resident set)."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024  # macOS counts bytes, Linux KiB


def device_used_bytes(device: "torch.device") -> int:
    """The memory in use on a GPU, also that of DALI, NCCL and the context, which PyTorch does not count."""
    import torch

    free, total = torch.cuda.mem_get_info(device)
    return total - free


def has_group() -> bool:
    distributed = sys.modules.get("torch.distributed")
    return bool(distributed and distributed.is_available() and distributed.is_initialized())


def process_age_ns() -> int:
    """How long this process has lived, to a hundredth of a second."""
    try:
        # Field 22, in ticks since the machine started; psutil adds that start's date, in whole seconds.
        ticks = int(Path("/proc/self/stat").read_text().rpartition(")")[2].split()[19])
        return time.clock_gettime_ns(time.CLOCK_BOOTTIME) - ticks * (10**9 // os.sysconf("SC_CLK_TCK"))
    except (OSError, AttributeError):  # not Linux
        return int((time.time() - psutil.Process().create_time()) * 1e9)


def _dump_flight_recorder(stacks: Path) -> None:
    """Once the stacks are written, write PyTorch's last collectives (profiling/flight_recorder.py), too."""
    with suppress(FileNotFoundError):  # the rank has ended
        while not stacks.stat().st_size:
            time.sleep(0.5)
        c10d = sys.modules.get("torch._C._distributed_c10d")
        for name in ("fr", "nccl"):  # of Gloo, and of NCCL
            if dump := getattr(c10d, f"_dump_{name}_trace", None):
                (stacks.parent / f"{name}_trace.pickle").write_bytes(dump())


def write_stacks_at_signal(path: Path | None) -> None:
    """From now on SIGUSR1 (of jobs.processes, at a hang) writes all threads' stacks to ``path``."""
    faulthandler.enable()
    if sys.platform == "win32" or path is None:
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    # Open for as long as the process lives: in a process that hangs nothing can be opened any more.
    file = path.open("w")
    faulthandler.register(signal.SIGUSR1, file=file, all_threads=True)
    if int(os.environ.get("TORCH_FR_BUFFER_SIZE") or 0):
        threading.Thread(target=_dump_flight_recorder, args=[path], daemon=True).start()

    def leave() -> None:
        faulthandler.unregister(signal.SIGUSR1)
        file.close()
        if path.exists() and not path.stat().st_size:
            path.unlink()

    atexit.register(leave)


# How gradients are exchanged, by the class of the outermost module.
_WRAPPERS = {
    "DistributedDataParallel": "ddp",
    "DataParallel": "dp",
    "FullyShardedDataParallel": "fsdp",
    "FSDPModule": "fsdp2",
    "DeepSpeedEngine": "deepspeed",
}
# Classes that do not say which model it is: containers, and wrappers whose model is not found in them.
GENERIC = frozenset({"Module", "Sequential", "ModuleList", "ModuleDict", *_WRAPPERS})


@dataclass(frozen=True)
class ModelFacts:
    """What the outermost module says of itself."""

    name: str = ""  # its class; "": none was seen
    backend: str = ""  # how the ranks exchange gradients, and by which library: ``ddp/gloo``
    parameters: int = 0
    elements: dict[str, int] = field(default_factory=dict)  # of each trained parameter how many
    grad: str = ""  # the precision in which DDP exchanges gradients; "": not known
    device: "torch.device | None" = None  # of its parameters
    group_size: int = 1  # ranks in the program's process group

    @property
    def is_unwrapped(self) -> bool:
        """Whether there are other ranks, and nothing was seen by which they exchange gradients."""
        return self.group_size > 1 and "/" not in self.backend and self.backend != "horovod"

    @property
    def on_gpu(self) -> bool:
        return self.device is not None and self.device.type == "cuda"


def facts_of(model: "Module | None") -> ModelFacts:
    import torch

    if model is None:
        return ModelFacts(backend=_backend(None))
    parameters = list(model.named_parameters())
    return ModelFacts(
        name=_class_of(model),
        backend=_backend(model),
        parameters=sum(elements_of(one) for _, one in parameters),
        elements={name: elements_of(one) for name, one in parameters if one.requires_grad},
        grad=_precision_of_gradients(model),
        device=parameters[0][1].device if parameters else None,
        group_size=torch.distributed.get_world_size() if has_group() else 1,
    )


def elements_of(parameter: "torch.nn.Parameter") -> int:
    """How many elements a parameter has; 0 of a lazy module's, which has no shape before the first call."""
    import torch

    return 0 if torch.nn.parameter.is_lazy(parameter) else parameter.numel()


def _class_of(model: "Module") -> str:
    for wrapper in ("module", "_orig_mod"):
        inner = model._modules.get(wrapper)
        if inner is not None and len(model._modules) == 1:
            return _class_of(inner)
    of = type(model)
    names = [base.__name__ for base in of.__bases__]
    return names[-1] if "FSDPModule" in names else of.__name__


def _backend(model: "Module | None") -> str:
    import torch

    classes = [one.__name__ for one in type(model).__mro__]
    wrapper = next((backend for name, backend in _WRAPPERS.items() if name in classes), "")
    if not wrapper and "horovod.torch" in sys.modules:
        return "horovod"
    library = str(torch.distributed.get_backend()) if has_group() else ""
    return "/".join(filter(None, [wrapper, library])) or "single"


def _precision_of_gradients(model: "Module") -> str:
    """That of the parameters, if they have one and no hook of DDP changes it."""
    import torch

    if getattr(model, "_comm_hooks", None):
        return ""
    types = {one.dtype for one in model.parameters() if one.requires_grad}
    names = {torch.float32: "fp32", torch.float16: "fp16", torch.bfloat16: "bf16"}
    return names.get(types.pop(), "") if len(types) == 1 else ""


def leave_group() -> None:
    """Leave the program's process group, unless a CUDA graph holds work of it: NCCL 2.26 waits for those."""
    import torch

    if has_group() and not any(issubclass(type(one), torch.cuda.CUDAGraph) for one in gc.get_objects()):
        torch.distributed.destroy_process_group()


def leave_at_once(code: int) -> NoReturn:
    """End this process and leave it to the kernel to free what it holds.

    A rank that has failed would wait for the others to take NCCL apart with it. Others end as Python does,
    for the sake of profilers (python -m cProfile -m train).
    """
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def run_and_leave(main: Callable[[], int | None]) -> None:
    """Run a rank's command as :func:`run_command` does; a rank that fails says why and waits for no other.

    One that is still in a group has failed: :meth:`train.backends.Backend.close` leaves it.
    """
    try:
        run_command(main)
    except SystemExit as ended:
        if not has_group():
            raise
        leave_at_once(ended.code if isinstance(ended.code, int) else EXIT_FAILED)
    except BaseException:
        if not has_group():
            raise
        traceback.print_exc()
        leave_at_once(EXIT_FAILED)


_STOPPING = (signal.SIGINT, signal.SIGTERM)


@dataclass
class Stop:
    """The signal by which someone has asked this process to end; None: nobody has."""

    asked: signal.Signals | None = None

    def hear_no_more(self) -> None:
        """What is now written of the end is not to be interrupted: launchers ask more than once."""
        for number in _STOPPING:
            signal.signal(number, signal.SIG_IGN)


@contextmanager
def interruptible() -> Iterator[Stop]:
    """SIGTERM ends this process as Ctrl-C does, by a KeyboardInterrupt; which of both it was is known."""
    stop, me = Stop(), os.getpid()

    def interrupt(number: int, _: FrameType | None) -> None:
        # A forked process that loads data ends as ever.
        if os.getpid() != me and number == signal.SIGTERM:
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)
        stop.asked = signal.Signals(number)
        raise KeyboardInterrupt

    before = {number: signal.getsignal(number) for number in _STOPPING}
    try:
        for number, handler in before.items():
            if handler != signal.SIG_IGN:  # SIGINT, of a shell's background jobs
                signal.signal(number, interrupt)
        yield stop
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
