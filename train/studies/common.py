"""What single-node studies share: flags, timing in turns, and the end.

A study makes a :class:`jobs.studies.Recorder`, times its cases with :func:`time_cases`, and ends with
:func:`finish`, which writes the result and becomes the command that prints it.
"""

import argparse
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from jobs import studies
from jobs.flags import add_format_flags, make_parser
from jobs.studies import Recorder
from profiling.errors import UserError
from profiling.step_clock import Clock

if TYPE_CHECKING:
    import torch

# A study calls it when a stage of a repetition has ended.
Tick = Callable[[], object]
Action = Callable[[Tick], None]


def study_parser(
    study: str, description: str | None, warmup: int = 5, repetitions: int = 20
) -> argparse.ArgumentParser:
    """A parser with the flags that all studies share; ``batch`` and ``image_size`` are None by default."""
    parser = make_parser(f"python -m train.studies.{study}", description)
    add = parser.add_argument
    add("--device", choices=("auto", "cpu", "gpu"), default="auto", help="where to compute [auto]")
    add("--batch", type=count, metavar="N", help="batch size [the study's default; smaller on a CPU]")
    add("--image-size", type=count, metavar="N", help="height and width, in pixels")
    add("--warmup", type=whole, default=warmup, metavar="N", help=f"untimed repetitions first [{warmup}]")
    add("--repetitions", type=count, default=repetitions, metavar="N",
        help=f"timed repetitions [{repetitions}]")  # fmt: skip
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


def start(study: str, arguments: argparse.Namespace, gpu: bool) -> Recorder:
    """The recorder of a study whose flags are right, on a GPU (perhaps among others) or not."""
    directory = studies.make_directory(study, "gpu" if gpu else "cpu", arguments.out)
    return Recorder(study, vars(arguments), directory)


def prepare(arguments: Any) -> None:
    """Set the threads of the arithmetic and the seed, as the flags say."""
    import torch

    if arguments.threads:
        torch.set_num_threads(arguments.threads)
    torch.manual_seed(arguments.seed)


def devices(wanted: str, both: bool = False) -> "list[torch.device]":
    """The devices that ``--device`` asks for.

    Args:
        both: "auto" means the CPU and, where there is one, a GPU; else a GPU, or without one the CPU.
    """
    import torch

    has_gpu = wanted != "cpu" and torch.cuda.is_available()
    if wanted == "gpu" and not has_gpu:
        raise UserError("--device gpu: torch sees no GPU here; use --device cpu")
    gpus = [torch.device("cuda", 0)] if has_gpu else []
    return [torch.device("cpu"), *gpus] if not gpus or (both and wanted == "auto") else gpus


def time_cases(
    cases: Mapping[str, Action], stages: Sequence[str], warmup: int, repetitions: int, clock: Clock
) -> dict[str, dict[str, np.ndarray]]:
    """Durations in ns, by case and stage, shape (repetitions,).

    Cases that are compared take turns, in an order that is turned round at every repetition, so that a drift
    of the machine or what another case left in a cache meets all alike.

    Args:
        cases: what to do, by its name; each calls the tick it is given once at the end of every stage.
        clock: of the device (:func:`profiling.step_clock.open_clock`).
    """
    for _ in range(warmup):
        for action in cases.values():
            action(lambda: None)
    clock.start()
    order = []
    for repetition in range(repetitions):
        for case in list(cases)[:: 1 if repetition % 2 == 0 else -1]:
            clock.tick()
            cases[case](clock.tick)
            order.append(case)
    instants = np.asarray(clock.instants_ns()).reshape(len(order), len(stages) + 1)
    spent = np.diff(instants, axis=1)
    turns = {case: [number for number, name in enumerate(order) if name == case] for case in cases}
    return {
        case: {stage: spent[turns[case], column] for column, stage in enumerate(stages)} for case in cases
    }


def two_passes(forward: Callable[[], Any], backward: Callable[[Any], object]) -> Action:
    """What is timed of a forward pass and the backward pass from its output."""

    def action(tick: Tick) -> None:
        output = forward()
        tick()
        backward(output)
        tick()

    return action


def finish(recorder: Recorder, arguments: argparse.Namespace) -> None:
    """Write the result and become the command that prints it; does not return."""
    recorder.write(arguments.warmup, arguments.repetitions)
    studies.answer(recorder.directory, arguments.format, arguments.output)
