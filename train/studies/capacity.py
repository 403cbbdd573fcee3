"""Find the largest network that fits on one device, and split a larger one between two.

    python -m train.studies.capacity
    python -m train.studies.capacity --device cpu --memory-limit 1GiB --batch 2 --image-size 56

A network of 3 x 3 convolutions and linear layers with input (16, 64, 112, 112) grows, in the proportion of
--convolutions to --linears, until it no longer fits; each attempt is a separate process. The first network
that does not fit is then split between two devices, where memory or time is balanced best; then the largest
network that fits on two. With --network, only the given networks are tried, and those that do not fit are
split. On a CPU, a device is a process whose memory the kernel limits (--memory-limit, which includes the
interpreter).
"""

import argparse
import json
import math
import re
import resource
import sys
import tempfile
import threading
from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from statistics import median

import torch
from pydantic import BaseModel, ByteSize, TypeAdapter, ValidationError
from torch import distributed, nn

from jobs import store
from jobs.failures import Ended
from jobs.processes import Limits, Process, run_processes
from profiling.arguments import whole
from profiling.errors import EXIT_DONE, EXIT_FAILED, UserError, run_command
from profiling.schemas import PASSES, SPLIT_STEP
from train.device import device_name, is_out_of_memory, says_out_of_memory
from train.studies import common

BATCH, IMAGE_SIZE = 16, 112
BATCH_ON_CPU, IMAGE_SIZE_ON_CPU, LIMIT_ON_CPU = 4, 56, "1GiB"
CHANNELS = 64
LEARNING_RATE = 1e-3
TRY_S = 1800.0  # that a try may take
PEER_S = 600  # to wait for the other stage
SAMPLE_S = 0.002  # between two looks at a process's memory
MOST_LAYERS = 1 << 16
TRY = "--try"  # the first word of a try's own process, before its task
# Threads that wait do so by sleeping: the stages of one network take turns. And glibc gives freed blocks of a
# MiB and more back to the kernel, so that what counts against a limit is what is in use.
ENVIRONMENT = {"GOMP_SPINCOUNT": "10000", "MALLOC_MMAP_THRESHOLD_": str(1 << 20)}
Network = tuple[int, int]  # convolutions, linear layers
Task = argparse.Namespace  # a try's flags, its network, and which stage of how many it is


def main() -> int:
    if sys.argv[1:2] == [TRY]:
        return attempt(argparse.Namespace(**json.loads(sys.argv[2])))
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
    if given := dict.fromkeys(arguments.network or ()):
        above = [network for network in given if not capacity.fits(network)]
        for network in above if count > 1 else ():
            capacity.split(network)
    else:
        first = capacity.grow()
        if count > 1 and capacity.split(first):
            capacity.grow_on_two(sum(first))
    capacity.record()
    study.finish()


def size(text: str) -> int:
    """``2GiB``, ``512 MB`` as bytes."""
    with suppress(ValidationError):
        if limit := TypeAdapter(ByteSize).validate_python(text):
            return int(limit)
    raise argparse.ArgumentTypeError(f"{text!r} is not a size; use e.g. 2GiB or 512MiB")


def network_of(text: str) -> Network:
    """``18+19``: convolutions and linear layers."""
    match = re.fullmatch(r"(\d{1,5})\+(\d{1,5})", text)
    if not match or not 0 < int(match[1]) + int(match[2]) <= MOST_LAYERS:
        raise argparse.ArgumentTypeError(f"{text!r} is no network; use e.g. 18+19")
    return int(match[1]), int(match[2])


class Attempt(BaseModel):
    """Result of a try; sizes in bytes, durations in ns."""

    fits: bool
    reason: str = ""
    limit: int = 0
    base: int = 0  # before the network is built: interpreter and libraries, or the GPU's context
    peak: int = 0  # with base
    held: int = 0  # beyond peak, by a GPU's caching allocator
    durations_ns: dict[str, list[int]] = {}


class Capacity:
    """The tries of a study, on one or two devices of these names."""

    def __init__(self, study: common.Study, names: list[str]) -> None:
        self.study, self.flags, self.names = study, study.flags, names
        self.tried: dict[tuple[Network, int | None], list[Attempt]] = {}
        self.best: dict[Network, int | None] = {}  # of networks split; None: none holds it, or not sought

    def sides(self, network: Network, place: int | None = None) -> list[Attempt]:
        """What :meth:`attempt` gives, tried once."""
        if (network, place) not in self.tried:
            self.tried[network, place] = self.attempt(network, place)
        return self.tried[network, place]

    def fits(self, network: Network) -> bool:
        """Whether it fits in one device."""
        return self.sides(network)[0].fits

    def network(self, layers: int) -> Network:
        """The network of so many layers in the flags' proportion."""
        return proportion(layers, self.flags.convolutions, self.flags.linears)

    def grow(self) -> Network:
        """The smallest network of the flags' proportion that does not fit in one device."""
        of = self.network
        start = min(self.flags.convolutions + self.flags.linears, MOST_LAYERS // 2)
        if self.fits(of(start)) and self.fits(of(2 * start)):
            # Memory grows with the layers: extrapolate from two networks.
            (few,), (more,) = self.sides(of(start)), self.sides(of(2 * start))
            taken = more.peak + more.held
            a_layer = (taken - few.peak - few.held) / start
            start = 2 * start + int((more.limit - taken) / a_layer) if a_layer > 0 else 4 * start
        below, above = boundary(lambda layers: self.fits(of(layers)), start)
        if below == 0:
            raise UserError(
                "not one layer fits; give a larger --memory-limit or smaller --batch, --image-size"
            )
        if above > MOST_LAYERS:
            raise UserError(f"{below} layers still fit; give a larger --batch or a smaller --memory-limit")
        return of(above)

    def grow_on_two(self, layers: int) -> None:
        """Find the largest network that two devices hold, of more than so many layers, and balance it."""

        def fits(more: int) -> bool:
            return more <= layers or self.split(self.network(more), balanced=False)

        try:
            largest, _ = boundary(fits, 2 * (layers - 1))
            if largest > layers:
                self.split(self.network(largest))
        except UserError as error:  # what was measured before stays
            self.study.find("not_recorded", what=f"larger networks on two devices: {error}")

    def split(self, network: Network, balanced: bool = True) -> bool:
        """Whether two devices hold a network, split where memory or time is balanced best, or anywhere."""

        def excess(place: int) -> float:
            sides = self.sides(network, place)
            fit = [side.fits for side in sides]
            if not all(fit):
                return math.nan if not any(fit) else math.inf if fit[1] else -math.inf
            sizes = [float(side.peak - side.base) for side in sides]
            if self.flags.balance == "time":  # of computation, without waiting for the other
                passes = ([side.durations_ns[stage] for stage in PASSES] for side in sides)
                sizes = [median(map(sum, zip(*both, strict=True))) for both in passes]
            return sizes[0] - sizes[1]

        best = balance(excess, sum(network) - 1, first=not balanced)
        self.best[network] = best if balanced else None
        return best is not None

    def attempt(self, network: Network, place: int | None = None) -> list[Attempt]:
        """Try a network in fresh processes: one, or two with ``place`` layers on the first device.

        UserError: one failed for another reason than memory, or the limit is too small for any network.
        """
        flags, stages, directory = self.flags, stages_of(network, place), self.study.directory
        # In a folder of its own: --out may hold other files.
        directory.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix="try-", dir=directory.absolute()) as folder:
            tasks = [
                {
                    **vars(flags), "convolutions": part[0], "linears": part[1], "stages": len(stages),
                    "rank": rank, "device": "cpu" if self.names[0] == "cpu" else f"cuda:{rank}",
                    "answer": f"{folder}/{rank}.json", "meeting": f"{folder}/meeting",
                }
                for rank, part in enumerate(stages)
            ]  # fmt: skip
            command = [sys.executable, "-m", "train.studies.capacity", TRY]
            processes = [Process([*command, json.dumps(task, default=str)], ENVIRONMENT) for task in tasks]
            log = directory / store.LOG
            before = log.stat().st_size if log.exists() else 0
            ended = run_processes(processes, log, Limits(TRY_S))
            printed = log.read_bytes()[before:].decode("utf-8", "replace")
            paths = [Path(task["answer"]) for task in tasks]
            texts = [path.read_bytes() if path.exists() else None for path in paths]
        answers = [Attempt.model_validate_json(text) if text else None for text in texts]
        if full := [answer for answer in answers if answer and answer.base >= answer.limit]:
            raise UserError(
                f"--memory-limit {full[0].limit / (1 << 20):.0f} MiB is too small for the interpreter and "
                f"PyTorch alone, which take {full[0].base / (1 << 20):.0f} MiB"
            )
        return judged(answers, ended, printed)

    def record(self) -> None:
        """Give the study all tries, but of a split whose search an error ended."""
        for (network, place), sides in self.tried.items():
            if place is None or network in self.best:
                self._record(network, place, sides)

    def _record(self, network: Network, place: int | None, sides: list[Attempt]) -> None:
        for rank, (side, part) in enumerate(zip(sides, stages_of(network, place), strict=True)):
            case, device = "{}+{}".format(*network), self.names[rank]
            if place is not None:
                case, device = f"{case} split after {place}", f"{device}, device {rank}"
                self.study.quantity(case, device, "chosen", place == self.best[network])
            self.study.quantity(case, device, "fits", side.fits, side.reason)
            self.study.case(
                case, device, side.durations_ns, convolutions=part[0], linears=part[1],
                limit_bytes=side.limit or None, base_bytes=side.base or None,
                peak_memory_bytes=side.peak or None,
                held_bytes=side.held if side.fits else side.held or None,
            )  # fmt: skip


# --- searches, of which each try costs a process -------------------------------------------------------


def stages_of(network: Network, place: int | None) -> list[Network]:
    """What each stage has of a network, the first ``place`` layers; None: one has all."""
    if place is None:
        return [network]
    first = min(place, network[0])
    return [(first, place - first), (network[0] - first, network[1] - place + first)]


def proportion(layers: int, convolutions: int, linears: int) -> Network:
    """``layers`` divided into convolutions and linear layers, the latter rounded up."""
    share = layers * convolutions // (convolutions + linears)
    return share, layers - share


def boundary(fits: Callable[[int], bool], start: int) -> tuple[int, int]:
    """(largest size that fits, the next), from (0, 1) to :data:`MOST_LAYERS` and the next.

    Strides from ``start`` double until the boundary is passed; then the interval is halved: about
    2 log2(distance) calls of ``fits``.
    """
    below, above = 0, MOST_LAYERS + 1
    size, stride = min(max(1, start), MOST_LAYERS), 1
    while above - below > 1:
        if fits(size):
            below, size = size, size + stride
        else:
            above, size = size, size - stride
        stride *= 2
        if not below < size < above:
            size = (below + above) // 2
    return below, above


def balance(excess: Callable[[int], float], last: int, first: bool = False) -> int | None:
    """The place from 1 to ``last`` where two sides differ least, by bisection; ``first``: where both fit.

    ``excess`` of the first side over the second (which grows with the place): inf where the first does not
    fit, -inf where the second does not, NaN where neither.
    """
    low, high = 1, last
    finite: dict[int, float] = {}
    while low <= high:
        place = (low + high) // 2
        more = excess(place)
        if math.isfinite(more):
            finite[place] = abs(more)
        if math.isnan(more) or (first and finite):
            break
        low, high = (low, place - 1) if more > 0 else (place + 1, high)
    return min(finite, key=lambda place: finite[place], default=None)


def judged(answers: list[Attempt | None], ended: Ended, printed: str) -> list[Attempt]:
    """The answers of a try's processes; of one that left none, by how it ended.

    Of two, the one that died first lacked memory; the other ended because its peer had gone. UserError: it
    ended for another reason.
    """
    wanting = any(answer and not answer.fits for answer in answers)
    line = (printed.strip() or "\n").splitlines()[-1].strip()
    killed = ended.exit_code == -9
    if None in answers and not wanting and not killed and not says_out_of_memory(printed):
        raise UserError(f"a try {ended.reason or f'ended with exit code {ended.exit_code}'}: {line[:200]}")
    died = Attempt(fits=False, reason="killed (SIGKILL)" if killed else line[:160])
    return [
        answer or (Attempt(fits=True) if wanting or ended.process not in (None, rank) else died)
        for rank, answer in enumerate(answers)
    ]


# --- a try, in its own process -------------------------------------------------------------------------


def attempt(task: Task) -> int:
    """Whether a network fits, as exit code; the rest is written as the task's answer.

    The limit is enforced by the kernel on a CPU (RLIMIT_DATA: private writable memory), by PyTorch's
    allocator on a GPU. Two stages meet by a file.
    """
    common.prepare(task.threads, task.seed)
    device = torch.device(task.device)
    if device.type == "cuda":
        torch.cuda.set_device(device)
    # Start threads, load libraries and make cuBLAS's handle, which do not count as the network's.
    layers = nn.Sequential(nn.Conv2d(2, 2, 3), nn.Linear(6, 6), nn.Linear(6, 6)).to(device)
    layers(torch.ones(1, 2, 8, 8, device=device)).sum().backward()
    if task.stages > 1:
        distributed.init_process_group(
            "nccl" if device.type == "cuda" else "gloo", init_method=f"file://{task.meeting}",
            rank=task.rank, world_size=task.stages, timeout=timedelta(seconds=PEER_S),
        )  # fmt: skip
        # A message each way makes the connection and its buffers.
        both = [distributed.send, distributed.recv]
        for move in both if task.rank == 0 else reversed(both):
            move(torch.zeros(1, device=device), 1 - task.rank)
    answer = Attempt(fits=False)
    answer.base, answer.limit = _limited(device, task.memory_limit or 0)
    if answer.base < answer.limit:
        try:
            with torch.device(device):
                network = build(task)
                data = torch.randn(task.batch, CHANNELS, task.image_size, task.image_size)
            step = _step(task, network, data)
            answer.peak, answer.held = _peak(device, answer.base, lambda: common.repeat_once(step))
            timed = common.time_cases(device, {"": step}, SPLIT_STEP, task)[""]
            answer.durations_ns = {stage: durations.tolist() for stage, durations in timed.items()}
            answer.fits = True
        except (RuntimeError, MemoryError, OSError) as error:
            if not is_out_of_memory(error):
                raise
            # In a line, without PyTorch's source file.
            reason = " ".join(str(error).split()) or type(error).__name__
            answer.reason = re.sub(r"^\[enforce fail at [^]]*\] .*?\. (?=\w)", "", reason)[:160]
    if device.type == "cpu":  # memory for writing the answer
        _, hard = resource.getrlimit(resource.RLIMIT_DATA)
        resource.setrlimit(resource.RLIMIT_DATA, (hard, hard))
    store.write_record(Path(task.answer), answer)
    return EXIT_DONE if answer.fits else EXIT_FAILED


def _limited(device: torch.device, limit: int) -> tuple[int, int]:
    """(bytes in use, of a GPU outside PyTorch's allocator; the limit, which is set)."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
        free, total = torch.cuda.mem_get_info(device)
        base = total - free - torch.cuda.memory_reserved(device)
        limit = min(limit or total, total)
        if base < limit < total:
            torch.cuda.set_per_process_memory_fraction((limit - base) / total, device)
        return base, limit
    base = data_bytes()
    _, hard = resource.getrlimit(resource.RLIMIT_DATA)
    limit = limit if hard == resource.RLIM_INFINITY else min(limit, hard)
    if base < limit:
        resource.setrlimit(resource.RLIMIT_DATA, (limit, hard))
    return base, limit


def data_bytes() -> int:
    """Private writable memory of this process, as RLIMIT_DATA counts it."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmData:"))


def build(task: Task) -> nn.Sequential:
    """3 x 3 convolutions, then linear layers over the width.

    Each keeps the shape of its input, and the variance: denormal numbers would slow down CPUs.
    """
    layers: list[nn.Conv2d | nn.Linear] = []
    layers += [nn.Conv2d(CHANNELS, CHANNELS, 3, padding=1) for _ in range(task.convolutions)]
    layers += [nn.Linear(task.image_size, task.image_size) for _ in range(task.linears)]
    for layer in layers:
        nn.init.normal_(layer.weight, std=1 / math.sqrt(layer.weight[0].numel()))
    return nn.Sequential(*layers)


def _step(task: Task, network: nn.Sequential, data: torch.Tensor) -> common.Stages:
    """The stages of a training step; the input is the batch, or what the other device sends."""
    first, last = task.rank == 0, task.rank == task.stages - 1

    def receive() -> torch.Tensor:
        network.zero_grad(set_to_none=True)
        data.requires_grad_(not first)
        if not first:
            distributed.recv(data.detach(), task.rank - 1)
            data.grad = None
        return data

    def forward(images: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        output = network(images)
        return output, output.square().mean() if last else output

    def exchange(outputs: tuple[torch.Tensor, torch.Tensor]) -> tuple[torch.Tensor | None, ...]:
        gradient = None
        if not last:
            distributed.send(outputs[0].detach(), task.rank + 1)
            gradient = torch.empty_like(outputs[0])
            distributed.recv(gradient, task.rank + 1)
        return *outputs, gradient

    def backward(exchanged: tuple[torch.Tensor, torch.Tensor, torch.Tensor | None]) -> None:
        _, loss, gradient = exchanged
        loss.backward(gradient)
        # Plain SGD: torch.optim imports torch's compiler, 70 MB.
        with torch.no_grad():
            for parameter in network.parameters():
                assert parameter.grad is not None
                parameter.add_(parameter.grad, alpha=-LEARNING_RATE)

    def send(_: None) -> None:
        if not first:
            assert data.grad is not None
            distributed.send(data.grad, task.rank - 1)

    return receive, forward, exchange, backward, send


def _peak(device: torch.device, base: int, action: Callable[[], object]) -> tuple[int, int]:
    """(peak, held beyond it) of ``action``: sampled on a CPU, by the allocator on a GPU."""
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
        action()
        torch.cuda.synchronize(device)
        peak = torch.cuda.max_memory_allocated(device)
        return base + peak, torch.cuda.max_memory_reserved(device) - peak
    peak, done = data_bytes(), threading.Event()

    def look() -> None:
        nonlocal peak
        while not done.wait(SAMPLE_S):
            with suppress(MemoryError, OSError):  # there may be no memory for it
                peak = max(peak, data_bytes())

    looker = threading.Thread(target=look, daemon=True)
    looker.start()
    try:
        action()
    finally:
        done.set()
        looker.join()
    return peak, 0


if __name__ == "__main__":
    run_command(main)
