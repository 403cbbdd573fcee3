"""The frame of the single-node studies: flags, timing in turns, memory, and the end.

A study takes its flags from :func:`study_parser`, and what it does to its devices through :class:`Study`,
which records what is measured, and at the end becomes the command that prints the answer.
"""

import argparse
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch

from jobs import by_hand
from jobs.by_hand import Recorder
from jobs.flags import add_format_flags, make_parser
from profiling.errors import UserError
from profiling.step_clock import Clock, open_clock
from train.device import is_out_of_memory

# The stages of a repetition, in order: the first takes nothing, each other what the one before it returned.
Stages = Sequence[Callable[..., Any]]


# --- flags --------------------------------------------------------------------------------------------


def study_parser(study: str, description: str | None) -> argparse.ArgumentParser:
    """A parser with the flags that all studies share; ``batch`` and ``image_size`` are None by default."""
    parser = make_parser(f"python -m train.studies.{study}", description)
    add = parser.add_argument
    add("--device", choices=("auto", "cpu", "gpu"), default="auto", help="where to compute [auto]")
    add("--batch", type=count, metavar="N", help="batch size [the study's default; smaller on a CPU]")
    add("--image-size", type=count, metavar="N", help="height and width, in pixels")
    add("--warmup", type=whole, default=5, metavar="N", help="untimed repetitions first [5]")
    add("--repetitions", type=count, default=20, metavar="N", help="timed repetitions [20]")
    add("--threads", type=count, metavar="N", help="CPU threads for computation [all cores]")
    add("--seed", type=whole, default=0, help="seed of weights and inputs [0]")
    add("--out", type=Path, metavar="DIR",
        help="folder for what is measured [results/studies/STUDY-DEVICE-TIME]")  # fmt: skip
    add_format_flags(parser, ["--output"])
    return parser


def whole(text: str) -> int:
    """A whole number from 0 on, as a flag's value."""
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number")
    return int(text)


def count(text: str) -> int:
    """A whole number from 1 on, as a flag's value."""
    if whole(text) == 0:
        raise argparse.ArgumentTypeError("it must be at least 1")
    return int(text)


def devices(requested: str, both: bool = False) -> list[torch.device]:
    """The devices that ``--device`` asks for.

    Args:
        both: "auto" means the CPU and, where there is one, a GPU; else a GPU, or without one the CPU.
    """
    has_gpu = requested != "cpu" and torch.cuda.is_available()
    if requested == "gpu" and not has_gpu:
        raise UserError("--device gpu: torch sees no GPU here; use --device cpu")
    gpus = [torch.device("cuda", 0)] if has_gpu else []
    return [torch.device("cpu"), *gpus] if not gpus or (both and requested == "auto") else gpus


# --- beginning and end --------------------------------------------------------------------------------


def prepare(arguments: Any) -> None:
    """Set the threads of the arithmetic and the seed, as the flags say."""
    if arguments.threads:
        torch.set_num_threads(arguments.threads)
    torch.manual_seed(arguments.seed)


class Study:
    """A study at work on these devices, with threads and seed set."""

    def __init__(self, name: str, arguments: argparse.Namespace, used: Sequence[torch.device]) -> None:
        prepare(arguments)
        kind = "gpu" if any(device.type == "cuda" for device in used) else "cpu"
        self.arguments = arguments
        self.recorder = Recorder(name, vars(arguments), by_hand.new_study(name, kind, arguments.out))

    def time(
        self, device: torch.device, cases: Mapping[str, Stages], stages: Sequence[str]
    ) -> dict[str, dict[str, np.ndarray]]:
        """:func:`time_cases`, as often as the flags say."""
        flags = self.arguments
        return time_cases(cases, stages, flags.warmup, flags.repetitions, open_clock(device.type))

    @contextmanager
    def within_memory(self, case: str) -> Iterator[None]:
        """What needs more memory than there is becomes a finding."""
        try:
            yield
        except (RuntimeError, MemoryError) as error:
            if not is_out_of_memory(error):
                raise
            self.recorder.find("case_out_of_memory", case=case)

    def finish(self) -> None:
        """Write the result and become the command that prints it; does not return."""
        flags = self.arguments
        self.recorder.write(flags.warmup, flags.repetitions)
        by_hand.answer_study(self.recorder.directory, flags.format, flags.output)


# --- timing -------------------------------------------------------------------------------------------


def time_cases(
    cases: Mapping[str, Stages], stages: Sequence[str], warmup: int, repetitions: int, clock: Clock
) -> dict[str, dict[str, np.ndarray]]:
    """Durations in ns, by case and stage, shape (repetitions,).

    Cases that are compared take turns, in an order that is reversed at every repetition, so that a drift of
    the machine, or what another case left in a cache, meets all of them.

    Args:
        cases: what each stage does, by the case's name.
        stages: their names.
        clock: of the device (:func:`profiling.step_clock.open_clock`).
    """
    for _ in range(warmup):
        for case in cases.values():
            repeat_once(case)
    clock.start()
    order = []
    for repetition in range(repetitions):
        for name in list(cases)[:: 1 if repetition % 2 == 0 else -1]:
            clock.tick()
            repeat_once(cases[name], clock.tick)
            order.append(name)
    instants = np.asarray(clock.instants_ns()).reshape(len(order), len(stages) + 1)
    spent, case_of = np.diff(instants, axis=1), np.array(order)
    return {name: dict(zip(stages, spent[case_of == name].T, strict=True)) for name in cases}


def repeat_once(stages: Stages, tick: Callable[[], object] = lambda: None) -> None:
    """Do the stages of one repetition, with a tick after each."""
    result = stages[0]()
    tick()
    for stage in stages[1:]:
        following = stage(result)
        tick()
        result = following  # only now, so that what is freed here is in no stage


# --- memory -------------------------------------------------------------------------------------------


def peak_and_retained(
    device: torch.device, forward: Callable[[], torch.Tensor], backward: Callable[[torch.Tensor], object]
) -> tuple[int, int]:
    """Bytes beyond those of input and weights of a forward and a backward pass, which free what they made.

    Returns:
        the peak of both passes, gradients included; and what the forward pass leaves for the backward pass,
        its output included. On a GPU the caching allocator tells them, on a CPU PyTorch's profiler.
    """
    if device.type == "cpu":
        outputs: list[torch.Tensor] = []
        retained = allocated(lambda: outputs.append(forward()))
        outputs.clear()
        both = allocated(lambda: backward(forward()))
        return int(both.max(initial=0)), int(retained[-1]) if len(retained) else 0
    torch.cuda.synchronize(device)
    torch.cuda.reset_peak_memory_stats(device)
    before = torch.cuda.memory_allocated(device)
    output = forward()
    retained_bytes = torch.cuda.memory_allocated(device) - before
    backward(output)
    torch.cuda.synchronize(device)
    return torch.cuda.max_memory_allocated(device) - before, retained_bytes


def allocated(action: Callable[[], object]) -> np.ndarray:
    """Bytes that ``action`` had allocated on the CPU after each allocation and release."""
    # Else it writes two lines to the terminal each time.
    os.environ.setdefault("KINETO_LOG_LEVEL", "6")
    from torch.profiler import ProfilerActivity, profile

    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
        action()
    results: Any = profiler.profiler
    events = [event for event in results.kineto_results.events() if event.name() == "[memory]"]
    events.sort(key=lambda event: event.start_ns())
    return np.cumsum([event.nbytes() for event in events], dtype=np.int64)


def saved_bytes(forward: Callable[[], object], known: set[int]) -> int:
    """Bytes that autograd keeps of a forward pass, each storage once.

    Args:
        known: addresses of storages that are there anyway (parameters).
    """
    storages: dict[int, torch.UntypedStorage] = {}  # they stay alive, so that no address is used again

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        storages.setdefault(storage.data_ptr(), storage)
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        result = forward()
    del result
    return sum(storage.nbytes() for address, storage in storages.items() if address not in known)
