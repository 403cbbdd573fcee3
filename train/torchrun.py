"""Start a rank's Python with torchrun's environment, under any launcher.

    srun -n 4 python -m train.torchrun --folder DIR -- -m profiling.watch --out results/x train.py

The ranks of a job agree on a free port of rank 0's node, and each becomes ``python ARGUMENTS`` with
torchrun's variables: RANK, WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE, GROUP_RANK, GROUP_WORLD_SIZE,
MASTER_ADDR and MASTER_PORT.
"""

import argparse
import os
import socket
import sys
from dataclasses import replace
from pathlib import Path

from profiling.arguments import Parser
from profiling.errors import UserError, reported_by_rank_0, run_command
from profiling.identity import read_identity
from train.world import World, check_interface, find_port, gloo_interface, read_world, tell_port_to_all

ROOT = Path(__file__).resolve().parents[1]


def variables(world: World, port: int | str) -> dict[str, str]:
    """torchrun's variables for a rank, where its ranks meet at ``port`` of rank 0's node."""
    return {
        "RANK": str(world.rank),
        "WORLD_SIZE": str(world.size),
        "LOCAL_RANK": str(world.local_rank),
        "LOCAL_WORLD_SIZE": str(world.local_size),
        "GROUP_RANK": str(world.rank // world.local_size),
        "GROUP_WORLD_SIZE": str(world.nodes),
        "MASTER_ADDR": world.host or "127.0.0.1",
        "MASTER_PORT": str(port),
    }


def meet(world: World) -> int:
    """A port of rank 0's node that was free when rank 0 asked for it, the same on all ranks."""
    if world.rank:
        return find_port(world)
    with socket.socket() as free:
        free.bind(("", 0))
        port: int = free.getsockname()[1]
    if world.size > 1:
        tell_port_to_all(world, port)
    return port


def main() -> None:
    parser = Parser(prog="python -m train.torchrun", description=__doc__)
    add = parser.add_argument
    add("--folder", type=Path, default=Path.cwd(), metavar="DIR", help="folder to start in [current]")
    add("--device", default="auto", help="device of the run; cpu hides the GPUs [auto]")
    add("--network", default="eth", help="network of the run: selects the interfaces in the site file [eth]")
    add("arguments", nargs=argparse.REMAINDER, metavar="ARGUMENTS", help="Python's arguments, after --")
    given = parser.parse_args()
    words = given.arguments[given.arguments[:1] == ["--"] :]
    if not words:
        raise UserError("nothing to start: give Python's arguments after --, e.g. -- train.py --lr 0.1")
    world = read_world(os.environ)
    with reported_by_rank_0(read_identity(os.environ).local_rank):  # each node has interfaces of its own
        check_interface(os.environ, "GLOO_SOCKET_IFNAME", given.network)
    os.environ.update(gloo_interface(os.environ, world))
    port: int | str
    if world.rendezvous.startswith("tcp://"):  # the user has said where to meet (MASTER_ADDR, MASTER_PORT)
        host, _, port = world.rendezvous.removeprefix("tcp://").rpartition(":")
        world = replace(world, host=host)
    else:
        port = meet(world)
    os.environ.update(variables(world, port))
    if given.device == "cpu":
        os.environ["CUDA_VISIBLE_DEVICES"] = ""
    if given.folder.resolve() != ROOT:  # from where Python finds this project only if it is installed
        os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))
    os.chdir(given.folder)
    sys.stdout.flush()
    sys.stderr.flush()
    os.execv(sys.executable, [sys.executable, *words])


if __name__ == "__main__":
    run_command(main)
