"""Record this process with PyTorch's profiler, from a given step on, with the names of layers.

On a CPU a collective's row is its execution in Gloo's own thread, not the call: it begins when the thread
starts it and ends when the last rank has arrived and sent. Several may run at the same time and share the
network, so the communication time is their union, not their sum.
"""

import os
import tempfile
import threading
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from profiling.attribution.attribute import attribute
from profiling.attribution.context import LAYER_PREFIX
from profiling.attribution.messages import Message
from profiling.findings import Finding
from profiling.identity import read_identity
from profiling.readers.kineto import read_trace
from profiling.tables import Converted, Writer
from profiling.tools import Capture, Presence, Profiler, is_importable

if TYPE_CHECKING:
    from torch.nn import Module


class TorchProfiler(Profiler):
    reader = "profiling.readers.kineto"
    modes: ClassVar = {
        "auto": "operators with their shapes, kernels, layers",
        "memory": "the same, plus every allocation: a timeline of memory",
    }

    def presence(self) -> Presence:
        here = is_importable("torch")
        return Presence("torch", here, "part of torch" if here else "not installed")

    def open_capture(
        self, directory: Path, rank: int, keep_raw: bool, mode: str, all_threads: bool
    ) -> "TorchCapture":
        return TorchCapture(directory, rank, keep_raw, mode == "memory", all_threads)


class TorchCapture(Capture):
    """Records a rank with ``torch.profiler``, input shapes included; see :class:`profiling.tools.Capture`."""

    def __init__(
        self,
        directory: Path,
        rank: int,
        keep_raw: bool = False,
        memory: bool = False,
        all_threads: bool = False,
    ) -> None:
        self.directory, self.rank, self.keep_raw, self.memory = directory, rank, keep_raw, memory
        self._config: Any = None
        self._findings: list[Finding] = []
        if all_threads:  # by itself it records the thread that switches it on, and those of autograd
            try:
                from torch._C._profiler import _ExperimentalConfig

                self._config = _ExperimentalConfig(profile_all_threads=True)
            except (ImportError, TypeError):
                self._findings = [Finding("not_recorded", data={"what": "operators of other threads"})]
        self._recorded: list[tuple[int, Any]] = []  # first batch, and what recorded from there on
        self._warm: Any = None  # on, but what it sees is not kept yet
        self._running = False
        self._groups: dict[int, Message] = {}
        self._hooks: list[Any] = []
        self._on_gpu = False  # whether the model is: then the GPU is recorded, too

    def prepare(self, model: "Module | None" = None) -> None:
        self._warm = self._prepared(model)

    def start(self, model: "Module | None" = None, first_batch: int = 0) -> None:
        """Begin to record at batch ``first_batch``; hooks name layers of ``model`` unless it is compiled."""
        profiler, self._warm = self._warm or self._prepared(model), None
        profiler.start_trace()
        self._groups = _groups_of_threads()
        self._recorded.append((first_batch, profiler))
        self._running = True

    def _prepared(self, model: "Module | None") -> Any:
        """A profiler that is on, with the layers' names, and keeps nothing yet."""
        from torch.profiler import ProfilerActivity, profile

        self._on_gpu = model is not None and any(parameter.is_cuda for parameter in model.parameters())
        profiler = profile(
            activities=[ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if self._on_gpu else [])],
            record_shapes=True,
            profile_memory=self.memory,
            experimental_config=self._config,
        )
        with warnings.catch_warnings():
            # Before 2.13 each says that it keeps one cycle alone, which is all that is asked of it.
            warnings.filterwarnings("ignore", "Warning: Profiler clears events", UserWarning)
            profiler.prepare_trace()
        if model is not None and not self._hooks and not _is_compiled(model):
            self._hooks = _name_layers(model)
        return profiler

    def stop(self) -> None:
        if self._running:
            self._running = False
            self._recorded[-1][1].stop_trace()
        for hook in self._hooks:
            hook.remove()
        self._hooks = []

    def write(self) -> list[Finding]:
        self.stop()
        if not self._recorded:
            return [Finding("recording_empty")]
        findings = list(self._findings)
        with Writer(self.directory) as writer:
            for number, (first_batch, profiler) in enumerate(self._recorded):
                converted = self._converted(number, first_batch, profiler)
                findings += [finding for finding in converted.findings if finding not in findings]
                for name, table in converted.tables.items():
                    writer.add(name, table)
        self._recorded = []
        return findings

    def _converted(self, number: int, first_batch: int, profiler: Any) -> Converted:
        # From the JSON: launches and messages stand in it alone.
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "trace.json"
            if self.keep_raw:
                path = self.directory / "raw" / f"trace{number or ''}.json.gz"
                path.parent.mkdir(parents=True, exist_ok=True)
            profiler.export_chrome_trace(str(path))  # a second call would be refused
            trace = read_trace(path)
        trace.world_size = max(trace.world_size, read_identity(os.environ).size)
        trace.groups = self._groups
        converted = attribute(trace, self.rank, first_batch)
        results = profiler.profiler.kineto_results.events()
        if self._on_gpu and all(str(one.device_type()) == "DeviceType.CPU" for one in results):
            # What is left are the host's operators, whose times are those of launching.
            del converted.tables["kernels"]
            converted.findings.append(Finding("not_recorded", data={"what": "GPU activity"}))
        return converted


def _groups_of_threads() -> dict[int, Message]:
    """The process group of each thread of Gloo's, of which its records say nothing; empty: not known.

    Groups start their threads one after the other, so that these are numbered in the order of the groups.
    """
    import torch
    from torch import distributed

    groups: list[Message] = []
    try:  # it may not be distributed, or of another backend or release
        for group, name in distributed.distributed_c10d._world.pg_names.items():
            ranks = distributed.get_process_group_ranks(group)
            known = Message(group=name, ranks=",".join(map(str, ranks)), size=len(ranks))
            backend: Any = group._get_backend(torch.device("cpu"))
            groups += [known] * backend.options._threads
        comms = Path("/proc/self/task").glob("*/comm")
        threads = sorted(int(one.parent.name) for one in comms if one.read_text() == "pt_gloo_runloop\n")
    except (AttributeError, LookupError, RuntimeError, ValueError, OSError):
        return {}
    return dict(zip(threads, groups, strict=True)) if len(threads) == len(groups) else {}


def _is_compiled(model: "Module") -> bool:
    modules = list(model.modules())
    # Of a watched program (profiling.watching.hooks) each class has one, which sees the calls.
    calls = [one.__dict__.get("_compiled_call_impl") for one in modules]
    return any(hasattr(one, "_orig_mod") for one in modules) or any(call is not None for call in calls)


def _name_layers(model: "Module") -> list[Any]:
    """Hooks on each leaf module that open and close the range ``Layer: NAME`` around its forward pass."""
    from torch.profiler import record_function

    hooks: list[Any] = []
    # Leaves do not nest, but a leaf may be called within another's hook; DataParallel's replicas run in
    # threads, and share the hooks.
    of_thread = threading.local()

    def leave(*_: Any) -> None:
        of_thread.open.pop().__exit__(None, None, None)

    def enter_as(label: str) -> Any:
        def enter(*_: Any) -> None:
            of_thread.open = getattr(of_thread, "open", [])
            of_thread.open.append(record_function(label))
            of_thread.open[-1].__enter__()

        return enter

    for name, module in model.named_modules():
        if not list(module.children()):
            label = LAYER_PREFIX + (name.removeprefix("module.") or type(module).__name__)
            hooks.append(module.register_forward_pre_hook(enter_as(label)))
            hooks.append(module.register_forward_hook(leave, always_call=True))
    return hooks
