"""Measure what each node can do, alone, in pairs and with all; jobs.check starts it as ranks.

The peaks are those of :mod:`train.calibrate`; they and steps of training without an exchange are measured on
all ranks at the same time, in several rounds. Then each node exchanges with others, one after the other, in a
round robin of pairs: all pairs of different nodes exchange at the same time.
"""

import json
import os
import socket
import time
from collections.abc import Callable
from pathlib import Path

import torch
import torch.distributed as dist
from pydantic import TypeAdapter

from jobs.run import Run
from jobs.run_fields import add_run_flags, make_parser, run_from_flags
from jobs.store import Check, CheckedRank, Link, write_record
from profiling.process import run_and_leave
from train.backends import Backend, open_backend
from train.calibrate import Timed, allreduce_rates, copy_on, gemm_on
from train.device import choose_device, device_name, set_threads
from train.loop import Precision, Step
from train.models import CLASSES
from train.rank import bare_model, make_optimizer
from train.world import World, read_world

ROUNDS = 8  # of every measurement: chance alone seldom makes one node the slowest in all
PEAK_S = 0.5  # of a peak, and of steps, in each round
SIZES = [1 << power for power in (16, 20, 24, 28)]  # bytes of an allreduce; as many as there is time for
_GROWTH = 16  # from each to the next
TOGETHER_S, PAIRS_S = 0.1, 45.0  # of an allreduce of all nodes in each round; of all pairs in all rounds
MOST_PARTNERS = 15  # of a node: so many tell what its own link can do
_CALLS, _MOST_CALLS = 3, 10  # of an allreduce in each round, at least and at most
_LINKS = TypeAdapter(list[Link])


def pairings(nodes: int) -> list[list[tuple[int, int]]]:
    """A round robin: the pairs that meet at the same time; each pair meets once (circle method)."""
    places = list(range(nodes + nodes % 2))  # with an odd number, one has no partner each time
    found = []
    for _ in places[1:]:
        half = len(places) // 2
        pairs = zip(places[:half], reversed(places[half:]), strict=True)
        found.append([(min(pair), max(pair)) for pair in pairs if max(pair) < nodes])
        places = [places[0], places[-1], *places[1:-1]]
    return [pairs for pairs in found if pairs]


def check(run: Run, world: World, device: torch.device, backend: Backend) -> Check | None:
    """Measure together with the other ranks; the result is rank 0's (None on the others)."""
    start = time.perf_counter()
    hosts = backend.gather(socket.gethostname())
    set_threads(run, device, world)
    alone = gemm_on(device, run.compute), copy_on(device), Timed(1, training_step(run, device), device)
    rounds = []
    for _ in range(ROUNDS):
        backend.barrier()
        rounds.append([timed.rate(PEAK_S) for timed in alone])
    names = ("gemm_flops_per_s", "copy_bytes_per_s", "steps_per_s")
    figures = dict(zip(names, zip(*rounds, strict=True), strict=True))
    ranks = backend.gather(json.dumps({"node": hosts[world.rank], **figures}))
    together, pairs = _links(hosts, world, device, backend) if world.size > 1 else ([], [])
    every = backend.gather(_LINKS.dump_json(pairs).decode())
    if world.rank:
        return None
    return Check(
        ranks=[CheckedRank.model_validate_json(text) for text in ranks],
        pairs=[link for text in every for link in _LINKS.validate_json(text)],
        together=together,
        device=device_name(device),
        precision=run.compute,
        seconds=time.perf_counter() - start,
    )


def training_step(run: Run, device: torch.device) -> Callable[[], None]:
    """A step of the run's model on this rank alone, always of the same images."""
    model = bare_model(run, device)
    step = Step(run, model, make_optimizer(model, run, device), Precision(run, device))
    images = torch.randn(run.batch, 3, run.image_size, run.image_size, device=device)
    labels = torch.randint(CLASSES, (run.batch,), device=device)

    def one() -> None:
        step.backward(step.forward(*step.take(images, labels)))
        step.update()

    return one


def _links(
    hosts: list[str], world: World, device: torch.device, backend: Backend
) -> tuple[list[Link], list[Link]]:
    """Allreduces of all ranks, and those of pairs of nodes of which this rank is the first."""
    ranks_of = {host: [rank for rank, of in enumerate(hosts) if of == host] for host in dict.fromkeys(hosts)}
    nodes = list(ranks_of)
    meetings = pairings(len(nodes))[:MOST_PARTNERS]
    share_s = PAIRS_S / max(1, len(meetings)) / ROUNDS
    moved = 2 - 1 / world.local_size  # bytes of the bus per byte of a pair's allreduce

    def link(of: list[str], size: int, seconds: float, group: dist.ProcessGroup | None = None) -> Link:
        bus = allreduce_rates(device, seconds, size, group, ROUNDS, _MOST_CALLS)
        return Link(nodes=of, size=size, bus_bytes_per_s=bus)

    together: list[Link] = []
    for size in SIZES:
        together.append(link(nodes, size, TOGETHER_S))
        slowest_s = max(map(float, backend.gather(str(moved * size / min(together[-1].bus_bytes_per_s)))))
        if slowest_s * _GROWTH * _CALLS > share_s:
            break
    pairs: list[Link] = []
    for meeting in meetings:
        members = [[*ranks_of[nodes[a]], *ranks_of[nodes[b]]] for a, b in meeting]
        group, _ = dist.new_subgroups_by_enumeration(members)
        mine = next((pair for pair in members if world.rank in pair), [])
        names = list(dict.fromkeys(hosts[rank] for rank in mine))
        for of_all in together:
            backend.barrier()
            if mine:
                pairs.append(link(names, of_all.size, share_s / len(together), group))
        backend.barrier()
        if mine:
            dist.destroy_process_group(group)
    return together, [pair for pair in pairs if world.rank == hosts.index(pair.nodes[0])]


def main() -> None:
    parser = make_parser("python -m train.check", __doc__)
    parser.add_argument("--out", type=Path, required=True, help="the file to write")
    add_run_flags(parser)
    arguments = parser.parse_args()
    run, world = run_from_flags(arguments), read_world(os.environ)
    device = choose_device(run, world)
    with open_backend(run, world, device) as backend:
        found = check(run, world, device, backend)
        backend.barrier()
    if found is not None:
        write_record(arguments.out, found)


if __name__ == "__main__":
    run_and_leave(main)
