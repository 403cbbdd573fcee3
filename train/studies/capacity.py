"""The largest network that fits in one device, and the division of a larger one between two.

    python -m train.studies.capacity
    python -m train.studies.capacity --device cpu --memory-limit 1GiB --batch 2 --image-size 56

A network of 3 x 3 convolutions and linear layers with input (16, 64, 112, 112) grows, in the proportion of
--convolutions to --linears, until it no longer fits; each attempt is a separate process. The first network
that does not fit is then split over two devices, where memory or time is balanced best. With --network only
the given networks are tried, and those that do not fit are split. On a CPU, a device is a process whose
memory the kernel limits (--memory-limit, which includes the interpreter).
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
from pydantic import ByteSize, TypeAdapter, ValidationError

from jobs import store
from jobs.failures import Ended
from jobs.processes import Limits, Process, run_processes
from profiling.arguments import whole
from profiling.errors import UserError, run_command
from train.device import device_name, says_out_of_memory
from train.studies import common
from train.studies.attempt import Attempt, Task

BATCH, IMAGE_SIZE = 16, 112
BATCH_ON_CPU, IMAGE_SIZE_ON_CPU, LIMIT_ON_CPU = 4, 56, "1GiB"
TRY_S = 1800.0  # that a try may take
MOST_LAYERS = 1 << 16
# Threads that wait do so by sleeping: the stages of one network take turns. And glibc gives freed blocks of a
# MiB and more back to the kernel, so that what counts against a limit is what is in use.
ENVIRONMENT = {"GOMP_SPINCOUNT": "10000", "MALLOC_MMAP_THRESHOLD_": str(1 << 20)}
_SIZES = TypeAdapter(ByteSize)
Network = tuple[int, int]  # convolutions, linear layers
_Tried = TypeVar("_Tried")


def main() -> None:
    parser = common.study_parser("capacity", __doc__)
    add = parser.add_argument
    add("--convolutions", type=whole, metavar="N", default=8, help="convolutions to start with [8]")
    add("--linears", type=whole, metavar="N", default=8, help="linear layers to start with [8]")
    add("--network", type=network_of, action="append", metavar="C+L",
        help="try C convolutions and L linear layers instead of searching; repeatable")  # fmt: skip
    add("--memory-limit", type=size, metavar="SIZE",
        help=f"memory of a device, e.g. 2GiB [a GPU's own memory; on a CPU {LIMIT_ON_CPU}]")  # fmt: skip
    add("--balance", choices=("memory", "time"), default="memory", help="what the split balances [memory]")
    add("--devices", type=int, choices=(1, 2), help="number of devices [2, if there are two]")
    arguments = parser.parse_args()
    if arguments.convolutions + arguments.linears == 0:
        raise UserError("--convolutions and --linears are both 0: there is no network")
    study = common.Study("capacity", arguments)
    (device,) = study.devices
    gpu = device.type == "cuda"
    if not gpu and not sys.platform.startswith("linux"):
        raise UserError("on a CPU this study needs Linux, whose kernel enforces the limit of memory")
    here = torch.cuda.device_count() if gpu else 2
    count = arguments.devices or min(here, 2)
    if count > here:
        raise UserError(f"--devices {count}: there is no second GPU here; use --devices 1")
    names = [device_name(torch.device("cuda", number)) if gpu else "cpu" for number in range(count)]
    arguments.batch = study.batch(device, BATCH, BATCH_ON_CPU)
    arguments.image_size = arguments.image_size or (IMAGE_SIZE if gpu else IMAGE_SIZE_ON_CPU)
    if not gpu and arguments.memory_limit is None:
        arguments.memory_limit = size(LIMIT_ON_CPU)
    capacity = Capacity(study, names)
    given = dict.fromkeys(arguments.network or ())
    above = [network for network in given if not capacity.fits(network)] if given else [capacity.grow()]
    for network in above if count > 1 else ():
        capacity.split(network)
    study.finish()


def size(text: str) -> int:
    """``2GiB``, ``512 MB`` as bytes."""
    try:
        if limit := _SIZES.validate_python(text):
            return int(limit)
    except ValidationError:
        pass
    raise argparse.ArgumentTypeError(f"{text!r} is not a size; use e.g. 2GiB or 512MiB")


def network_of(text: str) -> Network:
    """``18+19``: convolutions and linear layers."""
    match = re.fullmatch(r"(\d{1,5})\+(\d{1,5})", text)
    if not match or not 0 < int(match[1]) + int(match[2]) <= MOST_LAYERS:
        raise argparse.ArgumentTypeError(f"{text!r} is no network; use e.g. 18+19")
    return int(match[1]), int(match[2])


class Capacity:
    """The tries of a study, on one or two devices of these names."""

    def __init__(self, study: common.Study, names: list[str]) -> None:
        self.study, self.flags, self.names = study, study.arguments, names
        self.tried: dict[Network, Attempt] = {}

    def fits(self, network: Network) -> bool:
        """Whether it fits in one device."""
        if network not in self.tried:
            (self.tried[network],) = sides = self._attempt(network)
            self._record(network, None, sides)
        return self.tried[network].fits

    def grow(self) -> Network:
        """The smallest network of the flags' proportion that does not fit in one device."""

        def of(layers: int) -> Network:
            return proportion(layers, self.flags.convolutions, self.flags.linears)

        start = min(self.flags.convolutions + self.flags.linears, MOST_LAYERS // 2)
        if self.fits(of(start)) and self.fits(of(2 * start)):
            # Memory grows with the layers: extrapolate from two networks.
            few, more = self.tried[of(start)], self.tried[of(2 * start)]
            taken = more.peak + more.held
            a_layer = (taken - few.peak - few.held) / start
            start = 2 * start + int((more.limit - taken) / a_layer) if a_layer > 0 else 4 * start
        below, above = boundary(lambda layers: self.fits(of(layers)), start)
        if below == 0:
            raise UserError(
                "not even one layer fits in the device; give a larger --memory-limit, or a smaller --batch "
                "or --image-size"
            )
        if above > MOST_LAYERS:
            raise UserError(f"{below} layers still fit; give a larger --batch or a smaller --memory-limit")
        return of(above)

    def split(self, network: Network) -> None:
        """The split of a network that balances memory or time."""

        def attempt(place: int) -> tuple[list[Attempt], float]:
            sides = self._attempt(network, place)
            fit = [side.fits for side in sides]
            if not all(fit):
                return sides, math.nan if not any(fit) else math.inf if fit[1] else -math.inf
            by_time = self.flags.balance == "time"
            first, second = (side.own_ns if by_time else side.peak - side.base for side in sides)
            return sides, first - second

        best, tried = balance(attempt, sum(network) // 2, sum(network) - 1)
        for place, sides in tried.items():
            self._record(network, place, sides, place == best)

    def _attempt(self, network: Network, place: int | None = None) -> list[Attempt]:
        """Try a network in fresh processes, one a device.

        Args:
            place: number of layers on the first of two devices; None: one device has all.

        Raises:
            UserError: a process failed for another reason than memory, or the limit is too small for any.
        """
        flags, stages, directory = self.flags, stages_of(network, place), self.study.directory
        # In a folder of its own: --out may hold other files.
        directory.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix="try-", dir=directory.absolute()) as name:
            folder, commands = Path(name), []
            for rank, (first, last) in enumerate(stages):
                task = Task(
                    convolutions=network[0], first=first, last=last, batch=flags.batch,
                    image_size=flags.image_size, device="cpu" if self.names[0] == "cpu" else f"cuda:{rank}",
                    limit_bytes=flags.memory_limit or 0, warmup=flags.warmup, repetitions=flags.repetitions,
                    threads=flags.threads or 0, seed=flags.seed, answer=folder / f"{rank}.answer", rank=rank,
                    stages=len(stages), meeting=str(folder / "meeting"),
                )  # fmt: skip
                (folder / f"{rank}.json").write_text(task.model_dump_json())
                commands.append(["-m", "train.studies.attempt", str(folder / f"{rank}.json")])
            log = directory / store.LOG
            before = log.stat().st_size if log.exists() else 0
            processes = [Process([sys.executable, *command], ENVIRONMENT) for command in commands]
            ended = run_processes(processes, log, Limits(TRY_S))
            printed = log.read_bytes()[before:].decode("utf-8", "replace")
            paths = [folder / f"{rank}.answer" for rank in range(len(stages))]
            answers = [
                Attempt.model_validate_json(path.read_bytes()) if path.exists() else None for path in paths
            ]
        base = max((answer.base for answer in answers if answer and answer.base >= answer.limit), default=0)
        if base:
            limit = flags.memory_limit / (1 << 20)
            raise UserError(
                f"--memory-limit {limit:.0f} MiB is too small for the interpreter and PyTorch alone, which "
                f"take {base / (1 << 20):.0f} MiB"
            )
        return judged(answers, ended, printed)

    def _record(
        self, network: Network, place: int | None, sides: list[Attempt], chosen: bool | None = None
    ) -> None:
        for rank, (side, (first, last)) in enumerate(zip(sides, stages_of(network, place), strict=True)):
            case, device = "{}+{}".format(*network), self.names[rank]
            if place is not None:
                case, device = f"{case} split after {place}", f"{device}, device {rank}"
                self.study.quantity(case, device, "chosen", chosen)
            self.study.quantity(case, device, "fits", side.fits, side.reason)
            self.study.case(
                case, device, side.durations_ns, convolutions=max(0, min(last, network[0]) - first),
                linears=max(0, last - max(first, network[0])), limit_bytes=side.limit or None,
                base_bytes=side.base or None, peak_bytes=side.peak or None,
                held_bytes=side.held if side.fits else side.held or None,
            )  # fmt: skip


# --- searches, of which each try costs a process -------------------------------------------------------


def stages_of(network: Network, place: int | None) -> list[tuple[int, int]]:
    """(first layer, next stage's first layer) of each stage."""
    return [(0, sum(network))] if place is None else [(0, place), (place, sum(network))]


def proportion(layers: int, convolutions: int, linears: int) -> Network:
    """``layers`` divided into convolutions and linear layers, the latter rounded up."""
    share = layers * convolutions // (convolutions + linears)
    return share, layers - share


def boundary(fits: Callable[[int], bool], start: int, most: int = MOST_LAYERS) -> tuple[int, int]:
    """(largest size that fits, the next); (0, 1) if not even 1 fits, (``most``, ...) if all do.

    Strides from ``start`` double until the boundary is passed; then the interval is halved: about
    2 log2(distance) calls of ``fits``.
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
    """The place from 1 to ``last`` where two sides differ least, by bisection, and what was tried.

    ``attempt`` gives a result, and the excess of the first side over the second (which grows with the place):
    inf where the first does not fit, -inf where the second does not, NaN where neither.
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
    """The answers of a try's processes; of one that left none, by how it ended.

    Of two, the one that died first lacked memory; the other ended because its peer had gone.

    Raises:
        UserError: it ended for another reason.
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


if __name__ == "__main__":
    run_command(main)
