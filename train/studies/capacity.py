"""The largest network that fits in one device, and the division of a larger one between two.

    python -m train.studies.capacity
    python -m train.studies.capacity --device cpu --memory-limit 1GiB --batch 2 --image-size 56

A network of 3 x 3 convolutions and linear layers with input (16, 64, 112, 112) grows, in the proportion of
--convolutions to --linears, until it no longer fits; each attempt is a process of its own. The first network
that does not fit is then split over two devices, and the split that balances memory or time is searched. On a
CPU, a memory limit that the kernel enforces (--memory-limit, which includes the interpreter) represents a
device, and two processes with such a limit represent two.
"""

import argparse
import math
import re
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import torch

from jobs import by_hand
from jobs.by_hand import Recorder
from jobs.failures import Ended
from profiling.errors import UserError, run_command
from train.device import device_name, says_out_of_memory
from train.studies import common
from train.studies.attempt import Attempt, Task

BATCH, IMAGE_SIZE = 16, 112
BATCH_ON_CPU, IMAGE_SIZE_ON_CPU, LIMIT_ON_CPU = 4, 56, "1GiB"
_Tried = TypeVar("_Tried")
TRY_S = 1800.0  # that a try may take
MOST_LAYERS = 1 << 16
_UNITS = {"": 1, "B": 1, "KIB": 1 << 10, "MIB": 1 << 20, "GIB": 1 << 30, "KB": 1e3, "MB": 1e6, "GB": 1e9}


def main() -> None:
    parser = common.study_parser("capacity", __doc__)
    add, whole = parser.add_argument, common.whole
    add("--convolutions", type=whole, metavar="N", default=8, help="convolutions to start with [8]")
    add("--linears", type=whole, metavar="N", default=8, help="linear layers to start with [8]")
    add("--memory-limit", type=size, metavar="SIZE",
        help=f"memory of a device, e.g. 2GiB [a GPU's own memory; on a CPU {LIMIT_ON_CPU}]")  # fmt: skip
    add("--balance", choices=("memory", "time"), default="memory", help="what a split balances [memory]")
    add("--devices", type=int, choices=(1, 2), help="number of devices [2, if there are two]")
    arguments = parser.parse_args()
    if arguments.convolutions + arguments.linears == 0:
        raise UserError("--convolutions and --linears are both 0: there is no network")
    (device,) = common.devices(arguments.device)
    gpu = device.type == "cuda"
    names = _device_names(arguments, gpu)
    arguments.batch = arguments.batch or (BATCH if gpu else BATCH_ON_CPU)
    arguments.image_size = arguments.image_size or (IMAGE_SIZE if gpu else IMAGE_SIZE_ON_CPU)
    if not gpu and arguments.memory_limit is None:
        arguments.memory_limit = size(LIMIT_ON_CPU)
    recorder = common.start("capacity", arguments, [device])
    capacity = Capacity(recorder, arguments, names)
    above = capacity.grow()
    if len(names) > 1:
        capacity.split(above)
    common.finish(recorder, arguments)


def size(text: str) -> int:
    """``2GiB``, ``512 MB`` as bytes."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?) *([KMG]?I?B?)", text.strip().upper())
    if not match or match[2] not in _UNITS or float(match[1]) == 0:
        raise argparse.ArgumentTypeError(f"{text!r} is not a size; use e.g. 2GiB or 512MiB")
    return int(float(match[1]) * _UNITS[match[2]])


def _device_names(arguments: argparse.Namespace, gpu: bool) -> list[str]:
    """The devices to lay a network over, as tables call them."""
    if not gpu:
        if not sys.platform.startswith("linux"):
            raise UserError("on a CPU this study needs Linux, whose kernel enforces the limit of memory")
        return ["cpu"] * (arguments.devices or 2)
    count = torch.cuda.device_count()
    if arguments.devices and arguments.devices > count:
        raise UserError(f"--devices {arguments.devices}: there is no second GPU here; use --devices 1")
    return [device_name(torch.device("cuda", number)) for number in range(min(count, arguments.devices or 2))]


class Capacity:
    """The tries of one study: networks of so many layers, each laid over one device or two.

    Args:
        names: of the devices.
    """

    def __init__(self, recorder: Recorder, arguments: argparse.Namespace, names: list[str]) -> None:
        self.recorder, self.arguments, self.names = recorder, arguments, names

    def grow(self) -> int:
        """The layers of the smallest network that does not fit in one device."""
        tried: dict[int, Attempt] = {}

        def fits(layers: int) -> bool:
            if layers not in tried:
                (tried[layers],) = sides = self._attempt(layers)
                self._record(layers, None, sides)
            return tried[layers].fits

        start = min(self.arguments.convolutions + self.arguments.linears, MOST_LAYERS // 2)
        if fits(start) and fits(2 * start):
            # Memory grows with the layers: those of two networks tell how many fill the device.
            few, more = tried[start], tried[2 * start]
            taken = more.peak + more.held
            a_layer = (taken - few.peak - few.held) / start
            start = 2 * start + int((more.limit - taken) / a_layer) if a_layer > 0 else 4 * start
        below, above = boundary(fits, start)
        if below == 0:
            raise UserError(
                "not even one layer fits in the device; give a larger --memory-limit, or a smaller --batch "
                "or --image-size"
            )
        if above > MOST_LAYERS:
            raise UserError(f"{below} layers still fit; give a larger --batch or a smaller --memory-limit")
        return above

    def split(self, layers: int) -> None:
        """The split of a network that balances memory or time."""

        def attempt(place: int) -> tuple[list[Attempt], float]:
            sides = self._attempt(layers, place)
            fit = [side.fits for side in sides]
            if not all(fit):
                return sides, math.nan if not any(fit) else math.inf if fit[1] else -math.inf
            by_time = self.arguments.balance == "time"
            first, second = (side.own_ns if by_time else side.peak - side.base for side in sides)
            return sides, first - second

        best, tried = balance(attempt, layers // 2, layers - 1)
        for place, sides in tried.items():
            self._record(layers, place, sides, place == best)

    def _attempt(self, layers: int, place: int | None = None) -> list[Attempt]:
        """Try a network in fresh processes, one a device; their answers.

        Args:
            place: the number of layers on the first of two devices; None: one device has all.

        Raises:
            UserError: a process failed for want of something else than memory, or its limit holds nothing.
        """
        flags, stages = self.arguments, stages_of(layers, place)
        # In a folder of its own: --out may hold what is not ours.
        self.recorder.directory.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix="try-", dir=self.recorder.directory.absolute()) as name:
            folder, commands = Path(name), []
            for rank, (first, last) in enumerate(stages):
                task = Task(
                    convolutions=self._network(layers)[0], first=first, last=last, batch=flags.batch,
                    image_size=flags.image_size, device="cpu" if self.names[0] == "cpu" else f"cuda:{rank}",
                    limit_bytes=flags.memory_limit or 0, warmup=flags.warmup, repetitions=flags.repetitions,
                    threads=flags.threads or 0, seed=flags.seed, answer=folder / f"{rank}.answer", rank=rank,
                    stages=len(stages), meeting=str(folder / "meeting"),
                )  # fmt: skip
                (folder / f"{rank}.json").write_text(task.model_dump_json())
                commands.append(["-m", "train.studies.attempt", str(folder / f"{rank}.json")])
            ended, printed = by_hand.run_fresh(commands, self.recorder.directory, TRY_S)
            paths = [folder / f"{rank}.answer" for rank in range(len(stages))]
            answers = [
                Attempt.model_validate_json(path.read_bytes()) if path.exists() else None for path in paths
            ]
        base = max((answer.base for answer in answers if answer and answer.base >= answer.limit), default=0)
        if base:
            raise UserError(
                f"--memory-limit {_mib(flags.memory_limit)} is too small for the interpreter and PyTorch "
                f"alone, which take {_mib(base)}"
            )
        return judged(answers, ended, printed)

    def _network(self, layers: int) -> tuple[int, int]:
        return proportion(layers, self.arguments.convolutions, self.arguments.linears)

    def _record(
        self, layers: int, place: int | None, sides: list[Attempt], chosen: bool | None = None
    ) -> None:
        network = self._network(layers)
        for rank, (side, (first, last)) in enumerate(zip(sides, stages_of(layers, place), strict=True)):
            case, device = "{}+{}".format(*network), self.names[rank]
            if place is not None:
                case, device = f"{case} split after {place}", f"{device}, device {rank}"
                self.recorder.quantity(case, device, "chosen", chosen)
            self.recorder.quantity(case, device, "fits", side.fits, side.reason)
            self.recorder.case(
                case, device, side.durations_ns, convolutions=max(0, min(last, network[0]) - first),
                linears=max(0, last - max(first, network[0])), limit_bytes=side.limit or None,
                base_bytes=side.base or None, peak_bytes=side.peak or None,
                held_bytes=side.held if side.fits else side.held or None,
            )  # fmt: skip
            if side.missed:
                self.recorder.find("uncertain", figure="peak memory", why=f"{side.missed} readings failed")


# --- searches, of which each try costs a process -------------------------------------------------------


def stages_of(layers: int, place: int | None) -> list[tuple[int, int]]:
    """(the first layer, the next stage's first) of each stage of a network that is split, or not."""
    return [(0, layers)] if place is None else [(0, place), (place, layers)]


def proportion(layers: int, convolutions: int, linears: int) -> tuple[int, int]:
    """``layers`` divided into convolutions and linear layers, the latter rounded up."""
    share = layers * convolutions // (convolutions + linears)
    return share, layers - share


def boundary(fits: Callable[[int], bool], start: int, most: int = MOST_LAYERS) -> tuple[int, int]:
    """(the largest size that fits, the next, which does not); 0 if not even 1 fits, ``most`` if all do.

    Strides from ``start`` double until the boundary is passed; then the interval is halved.

    Args:
        fits: whether a size from 1 on fits; asked once for each of at most about 2 log2(distance) sizes.
        start: the size to begin with; the nearer to the boundary, the fewer tries.
    """
    below, above = 0, most + 1
    size, stride = min(max(1, start), most), 1
    while above - below > 1:
        if fits(size):
            below, size = size, size + stride
        else:
            above, size = size, size - stride
        stride *= 2
        if not below < size < above:
            size = (below + above) // 2
    return below, above


def balance(
    attempt: Callable[[int], tuple[_Tried, float]], start: int, last: int
) -> tuple[int | None, dict[int, _Tried]]:
    """The place from 1 to ``last`` where two sides are nearest to each other, and what was tried.

    Args:
        attempt: of a place: what was seen, and how much the first side exceeds the second (which grows with
            the place); infinite where the first does not fit, minus infinite where the second does not, not a
            number where neither does.
        start: the place to begin with.
    """
    low, high, place = 1, last, min(max(1, start), last)
    tried: dict[int, _Tried] = {}
    excess: dict[int, float] = {}
    while low <= high:
        tried[place], excess[place] = attempt(place)
        if excess[place] != excess[place]:
            break
        low, high = (low, place - 1) if excess[place] > 0 else (place + 1, high)
        place = (low + high) // 2
    finite = {place: abs(value) for place, value in excess.items() if abs(value) < float("inf")}
    return (min(finite, key=lambda place: finite[place]) if finite else None), tried


def judged(answers: list[Attempt | None], ended: Ended, printed: str) -> list[Attempt]:
    """The answers of a try's processes; of one that left none, what its end says.

    Of two, the one that died first wanted for memory; the other was ended since its peer had gone.

    Raises:
        UserError: it ended, but not for want of memory.
    """
    wanting = any(answer and not answer.fits for answer in answers)
    line = ([""] + [line.strip() for line in printed.splitlines() if line.strip()])[-1]
    killed = ended.exit_code == -9
    if None in answers and not wanting and not killed and not says_out_of_memory(printed):
        raise UserError(f"a try {ended.reason or f'ended with exit code {ended.exit_code}'}: {line[:200]}")
    died = Attempt(fits=False, reason="killed (SIGKILL)" if killed else line[:160])
    left = Attempt(fits=True)
    return [
        answer or (left if wanting or ended.process not in (None, rank) else died)
        for rank, answer in enumerate(answers)
    ]


def _mib(size_bytes: int) -> str:
    return f"{size_bytes / (1 << 20):.0f} MiB"


if __name__ == "__main__":
    run_command(main)
