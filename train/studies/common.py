"""The frame of single-node studies: flags, devices, the result (:class:`Study`), timing and memory."""

import argparse
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import torch
from torch.utils._pytree import tree_leaves

from jobs import machine, store
from jobs.run_fields import add_format_flags, make_parser, print_answer
from jobs.store import StudyManifest
from profiling import schemas, tables
from profiling.arguments import count, whole
from profiling.clocks import open_clock
from profiling.errors import UserError
from profiling.findings import Finding
from train.device import is_out_of_memory

# Of a repetition: the first takes nothing, each other what the one before it returned.
Stages = Sequence[Callable[..., Any]]


def study_parser(study: str, description: str | None) -> argparse.ArgumentParser:
    """A parser with the flags that all studies share; ``batch`` and ``image_size`` are None by default."""
    parser = make_parser(f"python -m train.studies.{study}", description)
    add = parser.add_argument
    add("--device", choices=("auto", "cpu", "gpu"), default="auto", help="where to compute [auto]")
    add("--batch", type=count, metavar="N", help="batch size [the study's default; smaller on a CPU]")
    add("--image-size", type=count, metavar="N", help="height and width of the input, in pixels")
    add("--warmup", type=whole, default=5, metavar="N", help="untimed repetitions at the start [5]")
    add("--repetitions", type=count, default=20, metavar="N", help="timed repetitions [20]")
    add("--threads", type=count, metavar="N", help="CPU threads for computation [all cores]")
    add("--seed", type=whole, default=0, help="seed of weights and inputs [0]")
    add("--out", type=Path, metavar="DIR",
        help="folder for the results [results/studies/STUDY-DEVICE-TIME]")  # fmt: skip
    add_format_flags(parser, ["--output"])
    return parser


def devices(requested: str, both: bool = False) -> list[torch.device]:
    """The devices that ``--device`` asks for; ``both``: "auto" means the CPU and, if there is one, a GPU."""
    has_gpu = requested != "cpu" and torch.cuda.is_available()
    if requested == "gpu" and not has_gpu:
        raise UserError("--device gpu: torch sees no GPU here; use --device cpu")
    gpus = [torch.device("cuda", 0)] if has_gpu else []
    return [torch.device("cpu"), *gpus] if not gpus or (both and requested == "auto") else gpus


def prepare(threads: int | None, seed: int) -> None:
    if threads:
        torch.set_num_threads(threads)
    torch.manual_seed(seed)


class Study:
    """A study: its flags and devices (:func:`devices`), and what it has measured so far."""

    def __init__(self, name: str, flags: argparse.Namespace, both: bool = False) -> None:
        prepare(flags.threads, flags.seed)
        self.name, self.flags, self.devices = name, flags, devices(flags.device, both)
        self.findings: list[Finding] = []
        self._rows: dict[str, list[tuple]] = {"durations": [], "quantities": []}
        self._started = datetime.now(UTC)
        kind = "gpu" if self.devices[-1].type == "cuda" else "cpu"
        new = f"{name}-{kind}-{self._started.strftime('%Y%m%dT%H%M%S.%f')[:-3]}"
        self.directory: Path = flags.out or Path("results", "studies", new)
        if (self.directory / store.MANIFEST).exists():
            raise UserError(f"{self.directory} already contains a result; choose another with --out")

    def batch(self, device: torch.device, on_gpu: int, on_cpu: int) -> int:
        """The batch size that the flags say, else the study's own on such a device."""
        return int(self.flags.batch or (on_cpu if device.type == "cpu" else on_gpu))

    def quantity(self, case: str, device: str, quantity: str, value: float | None, note: str = "") -> None:
        """A figure of a case; of one that could not be had, None and why."""
        figure = None if value is None else float(value)
        self._rows["quantities"].append((case, device, quantity, figure, note))

    def case(self, case: str, device: str, ns: Mapping[str, Iterable[int]], **figures: float | None) -> None:
        """Durations of a case's stages, ns in the order of repetitions, and figures by their names."""
        for stage, spent in ns.items():
            self._rows["durations"] += [(case, device, stage, n, int(one)) for n, one in enumerate(spent)]
        for name, value in figures.items():
            self.quantity(case, device, name, value)

    def find(self, code: str, **data: Any) -> None:
        """Add a finding, once."""
        if (finding := Finding(code, data=data)) not in self.findings:
            self.findings.append(finding)

    @contextmanager
    def within_memory(self, case: str) -> Iterator[None]:
        """Make a lack of memory a finding, and leave no half a result."""
        before = {name: list(rows) for name, rows in self._rows.items()}
        try:
            yield
        except (RuntimeError, MemoryError) as error:
            if not is_out_of_memory(error):
                raise
            self._rows = before
            self.find("case_out_of_memory", case=case)

    def write(self) -> None:
        """Write the tables and, last, the manifest."""
        self.directory.mkdir(parents=True, exist_ok=True)
        for name, rows in self._rows.items():
            columns = dict(zip(schemas.SCHEMAS[name].names, zip(*rows, strict=True), strict=False))
            tables.write(tables.as_table(name, columns), self.directory, name)
        manifest = StudyManifest(
            study=self.name, settings=vars(self.flags), findings=self.findings,
            devices=list(dict.fromkeys(row[1] for rows in self._rows.values() for row in rows)),
            warmup=self.flags.warmup, repetitions=self.flags.repetitions,
            command=[sys.executable, *sys.orig_argv[1:]], **machine.facts({}, self._started),
        )  # fmt: skip
        store.write_record(self.directory / store.MANIFEST, manifest)

    def finish(self) -> NoReturn:
        """Write the result and become the command that prints it."""
        self.write()
        print(self.directory, file=sys.stderr, flush=True)
        print_answer("analysis.studies", self.directory, self.flags)


def time_cases(
    device: torch.device, cases: Mapping[str, Stages], stages: Sequence[str], flags: Any
) -> dict[str, dict[str, np.ndarray]]:
    """Durations in ns, by case and stage, shape (repetitions,), as often as ``flags`` say.

    Cases alternate, in an order that is reversed at every repetition, so that a drift of the machine and the
    contents of caches affect all alike.
    """
    clock = open_clock(device.type)
    for _ in range(flags.warmup):
        for case in cases.values():
            repeat_once(case)
    clock.start()
    order = []
    for repetition in range(flags.repetitions):
        for name in list(cases)[:: 1 if repetition % 2 == 0 else -1]:
            clock.tick()
            repeat_once(cases[name], clock.tick)
            order.append(name)
    instants = np.asarray(clock.instants_ns()).reshape(len(order), len(stages) + 1)
    spent, case_of = np.diff(instants, axis=1), np.array(order)
    return {name: dict(zip(stages, spent[case_of == name].T, strict=True)) for name in cases}


def repeat_once(stages: Stages, tick: Callable[[], object] = lambda: None) -> None:
    """One repetition, with a tick after each stage."""
    result = stages[0]()
    tick()
    for stage in stages[1:]:
        following = stage(result)
        tick()
        result = following  # only now: freeing the old one is in no stage


class Passes:
    """A module's forward pass, and the backward pass from the ``loss`` of its output, or else from itself."""

    def __init__(
        self, module: torch.nn.Module, data: torch.Tensor, loss: Callable[[Any], torch.Tensor] | None = None
    ) -> None:
        # Of several values, as recurrent layers give them, the first.
        self.module, self.data, self._loss = module, data, loss or (lambda result: tree_leaves(result)[0])
        self.gradient = None if loss else torch.randn_like(self.forward())

    def forward(self) -> torch.Tensor:
        return self._loss(self.module(self.data))

    def backward(self, output: torch.Tensor) -> None:
        """Compute the gradients anew: of weights, and of the input if it has one."""
        self.drop_gradients()
        output.backward(self.gradient)

    def drop_gradients(self) -> None:
        self.data.grad = None
        self.module.zero_grad(set_to_none=True)

    def both(self) -> None:
        """Both passes, until the device has done them."""
        self.backward(self.forward())
        if self.data.is_cuda:
            torch.cuda.synchronize()


def peak_and_retained(passes: Passes) -> tuple[int, int]:
    """(peak of both passes with gradients, bytes that the forward pass retains with its output).

    Beyond input and weights; by the caching allocator of a GPU, by PyTorch's profiler on a CPU.
    """
    measure = allocated_on_gpu if passes.data.is_cuda else allocated
    passes.drop_gradients()  # what is freed must have been allocated while it was counted
    outputs: list[torch.Tensor] = []
    _, retained = measure(lambda: outputs.append(passes.forward()))
    outputs.clear()
    peak, _ = measure(passes.both)
    return peak, retained


def allocated_on_gpu(action: Callable[[], object]) -> tuple[int, int]:
    """(most, at the end) of the bytes that ``action`` allocates on the GPU."""
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    action()
    return torch.cuda.max_memory_allocated() - before, torch.cuda.memory_allocated() - before


def allocated(action: Callable[[], object]) -> tuple[int, int]:
    """(most, at the end) of the bytes that ``action`` allocates on the CPU."""
    os.environ.setdefault("KINETO_LOG_LEVEL", "6")  # or it prints two lines each time
    from torch.profiler import ProfilerActivity, profile

    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
        action()
    results: Any = profiler.profiler
    events = [event for event in results.kineto_results.events() if event.name() == "[memory]"]
    events.sort(key=lambda event: event.start_ns())
    held = np.cumsum([0, *(event.nbytes() for event in events)])
    return int(held.max()), int(held[-1])


def saved_bytes(forward: Callable[[], object], known: set[int]) -> int:
    """Bytes that autograd keeps of a forward pass, each storage once; not those at ``known`` addresses."""
    storages: dict[int, torch.UntypedStorage] = {}  # kept alive, so that no address is used again

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        storages.setdefault(storage.data_ptr(), storage)
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        forward()
    return sum(storage.nbytes() for address, storage in storages.items() if address not in known)
