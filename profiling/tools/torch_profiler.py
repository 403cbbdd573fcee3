"""What did PyTorch's profiler record? Kineto JSON files, and recordings of this process, as tables.

A file is read without torch. Inside a training process, :class:`TorchCapture` records from one batch on,
names the layers, and writes ``kernels.parquet`` and ``markers.parquet`` when it ends.

On a CPU a collective's row is its run in gloo's own thread, not the call that asked for it: it begins when
the thread takes it up and ends when the last rank has come and sent. Several may run at a time and share the
wire, so their union is the time of communication, not their sum.
"""

import os
import tempfile
import threading
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import orjson

from profiling.attribution.attribute import attribute
from profiling.attribution.context import LAYER_PREFIX
from profiling.attribution.events import OPERATOR, RANGE, Builder, Trace, is_range
from profiling.converted import Converted
from profiling.cost.shapes import parse_inputs
from profiling.findings import Finding
from profiling.identity import read_identity
from profiling.presence import Presence, is_importable
from profiling.readers.kineto import read_trace
from profiling.tables import Writer
from profiling.tools.base import Profiler

if TYPE_CHECKING:
    import torch


class TorchProfiler(Profiler):
    """PyTorch's own profiler, in the rank's process."""

    started = "inside the process, from `attribute_from` on, with shapes"
    reader = "profiling.readers.kineto"
    reads = (
        "Kineto JSON, plain or gzip, of PyTorch 1.8 and later; kernels with blocks per multiprocessor and "
        "estimated occupancy; allocations"
    )
    modes: ClassVar = {
        "auto": "operators with their shapes, kernels, layers",
        "memory": "the same, plus every allocation: a timeline of memory",
    }

    def presence(self) -> Presence:
        """It is part of torch."""
        here = is_importable("torch")
        return Presence("torch", here, "part of torch" if here else "not installed")

    def open_capture(
        self, directory: Path, rank: int, keep_raw: bool, mode: str, all_threads: bool
    ) -> "TorchCapture":
        """See :func:`profiling.tools.open_capture`."""
        return TorchCapture(directory, rank, keep_raw, mode == "memory", all_threads)


class TorchCapture:
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
        if all_threads:
            self._config, self._findings = _every_thread()
        self._recorded: list[tuple[int, Any]] = []  # first batch, and what recorded from there on
        self._warm: Any = None  # on, but what it sees is not kept yet
        self._running = False
        self._hooks: list[Any] = []
        self._on_gpu = False  # whether the model is: then CUPTI is asked, too

    def prepare(self, model: "torch.nn.Module | None" = None) -> None:
        """Switch the profiler on; it keeps nothing before :meth:`start`."""
        self._on_gpu = _on_gpu(model)
        self._warm = self._profiler()
        _prepare(self._warm)
        self._name_layers(model)

    def start(self, model: "torch.nn.Module | None" = None, first_batch: int = 0) -> None:
        """Begin to record, at the start of batch ``first_batch``.

        Args:
            model: its leaf modules get hooks that open a range with the layer's name; not if it is compiled,
                for a hook would break the graph.
        """
        self._on_gpu = _on_gpu(model)
        self._name_layers(model)
        profiler, self._warm = self._warm, None
        if profiler is None:
            profiler = self._profiler()
            _prepare(profiler)
        profiler.start_trace()
        self._recorded.append((first_batch, profiler))
        self._running = True

    def _profiler(self) -> Any:
        from torch.profiler import ProfilerActivity, profile

        activities = [ProfilerActivity.CPU]
        if self._on_gpu:
            activities.append(ProfilerActivity.CUDA)
        return profile(
            activities=activities,
            record_shapes=True,
            profile_memory=self.memory,
            experimental_config=self._config,
        )

    def _name_layers(self, model: "torch.nn.Module | None") -> None:
        if model is not None and not self._hooks and not _is_compiled(model):
            self._hooks = _name_layers(model)

    def stop(self) -> None:
        """Cease to record and take the hooks off the model; a second call does nothing."""
        if self._running:
            self._running = False
            self._recorded[-1][1].stop_trace()
        for hook in self._hooks:
            hook.remove()
        self._hooks = []

    def write(self) -> list[Finding]:
        """Write the tables to the rank's directory; what was found on the way is returned."""
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
        trace = self._trace(profiler, f"trace{number or ''}.json.gz")
        trace.world_size = max(trace.world_size, read_identity(os.environ).size)
        converted = attribute(trace, self.rank, first_batch)
        if self._on_gpu and not _has_device(_events(profiler)):
            # What is left are the host's operators, whose times are those of launching.
            del converted.tables["kernels"]
            converted.findings.append(Finding("gpu_activity_missing"))
        return converted

    def _trace(self, profiler: Any, name: str) -> Trace:
        """What was recorded: of a CPU from memory; with a GPU, or with allocations, from the JSON.

        What a kernel's launch and a collective's message were like stands in the JSON only, and so does how
        much memory was allocated in all.
        """
        results = _events(profiler)
        in_json_only = self.memory or _has_device(results) or not _readable(results)
        if not in_json_only and not self.keep_raw:
            return _trace_of(results)
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "trace.json"
            if self.keep_raw:
                path = self.directory / "raw" / name
                path.parent.mkdir(parents=True, exist_ok=True)
            profiler.export_chrome_trace(str(path))  # a second call would be refused
            return read_trace(path) if in_json_only else _trace_of(results)


def _prepare(profiler: Any) -> None:
    with warnings.catch_warnings():
        # Before 2.13 each says that it keeps one cycle alone, which is all that is asked of it.
        warnings.filterwarnings("ignore", "Warning: Profiler clears events", UserWarning)
        profiler.prepare_trace()


def _events(profiler: Any) -> Sequence[Any]:
    events: Sequence[Any] = profiler.profiler.kineto_results.events()
    return events


def _on_gpu(model: "torch.nn.Module | None") -> bool:
    return model is not None and any(parameter.is_cuda for parameter in model.parameters())


def _readable(results: Sequence[Any]) -> bool:
    """Whether this PyTorch's events say all that is needed; those before 2.13 do not."""
    return all(hasattr(event, "activity_type") for event in results[:1])


def _has_device(results: Sequence[Any]) -> bool:
    return any(str(event.device_type()) != "DeviceType.CPU" for event in results)


def _every_thread() -> tuple[Any, list[Finding]]:
    """What makes PyTorch's profiler record every thread, and what is to be said where it cannot.

    By itself it records the thread that switches it on, and those of autograd.
    """
    try:
        from torch._C._profiler import _ExperimentalConfig

        return _ExperimentalConfig(profile_all_threads=True), []
    except (ImportError, TypeError):
        return None, [Finding("one_thread_recorded")]


def _is_compiled(model: "torch.nn.Module") -> bool:
    modules = list(model.modules())
    # Of a watched program (profiling.watching.hooks) each class has one, which sees the calls.
    calls = [one.__dict__.get("_compiled_call_impl") for one in modules]
    return any(hasattr(one, "_orig_mod") for one in modules) or any(call is not None for call in calls)


def _name_layers(model: "torch.nn.Module") -> list[Any]:
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


def _trace_of(results: Sequence[Any]) -> Trace:
    """The events of a recording without a device, straight from the profiler's memory."""
    builder = Builder(lambda key: parse_inputs(*orjson.loads(key)))
    kinds = {"cpu_op": OPERATOR, "user_annotation": RANGE}
    host = [event for event in results if event.activity_type() in kinds and not event.is_hidden_event()]
    names = [event.name() for event in host]
    start = [event.start_ns() for event in host]

    def inputs_of(event: Any) -> int:
        shapes = event.structured_input_shapes()
        if not shapes:
            return -1
        parts = (shapes, event.dtypes(), event.structured_input_strides(), event.concrete_inputs())
        return builder.inputs.of((orjson.dumps(parts, default=str),))[0]

    columns = {
        "name": builder.names.of(names),
        "start_ns": start,
        "end_ns": [begin + event.duration_ns() for begin, event in zip(start, host, strict=True)],
        "thread": builder.threads.of([(e.device_index(), e.device_resource_id()) for e in host]),
        "sequence": [event.sequence_nr() for event in host],
        "forward_thread": [event.fwd_thread_id() for event in host],
        "external": [event.correlation_id() for event in host],
        "inputs": [inputs_of(event) for event in host],
        "kind": [
            RANGE if is_range(name, False) else kinds[event.activity_type()]
            for name, event in zip(names, host, strict=True)
        ],
        "message": -1,
    }
    builder.host.add(columns)
    return builder.finish()
