"""The rank's place in the job, and how its ranks meet on a node that other jobs may share.

The rank's number is from :mod:`profiling.identity`. Rank 0 opens the store on a port chosen by the kernel. It
announces this port on the first free one of a few known ports, to ranks that name the same job. A rank that
finds another job or program on a known port tries the next one.
"""

import hashlib
import json
import random
import resource
import socket
import sys
import threading
import time
import zlib
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING

from profiling.errors import UserError
from profiling.findings import listed
from profiling.identity import check_mpi, expand_nodes, read_identity

if TYPE_CHECKING:
    from torch.distributed import Store, TCPStore

# launcher -> what tells its jobs from one another. Only its own: mpirun's daemons may have been started by
# srun, each in a step, or even a job, of its own.
_JOB_IDS = {
    "torchrun": ("TORCHELASTIC_RUN_ID", "MASTER_ADDR", "MASTER_PORT"),
    "Slurm": ("SLURM_JOB_ID", "SLURM_STEP_ID"),
    "Open MPI": ("OMPI_MCA_ess_base_jobid", "PMIX_NAMESPACE"),
    "MPICH": ("SLURM_JOB_ID", "PBS_JOBID", "LSB_JOBID", "PMI_JOBID"),
    "jsrun": ("LSB_JOBID", "PMIX_NAMESPACE"),
    "Flux": ("FLUX_JOB_ID",),
    "PALS": ("PBS_JOBID", "PALS_APID"),
    "MVAPICH": ("SLURM_JOB_ID", "PBS_JOBID", "LSB_JOBID", "PMI_JOBID"),
}


@dataclass(frozen=True)
class World:
    """This rank's place among the ranks."""

    rank: int = 0  # to ``size`` - 1 over all nodes
    size: int = 1
    local_rank: int = 0  # among the ranks of this node; the GPU it uses
    local_size: int = 1  # ranks on this node
    # The ``init_method`` by which torch.distributed's ranks find each other, where the launcher names the
    # place; else they meet on ``host`` (:func:`open_store`).
    rendezvous: str = ""
    host: str = ""  # where rank 0 is
    job: str = ""  # what tells this job from others on that host
    launcher: str = "none"  # who started us

    @property
    def nodes(self) -> int:
        return max(1, self.size // self.local_size)


def read_world(environment: Mapping[str, str]) -> World:
    """The world that a launcher describes, without one a single rank; UserError: what it says contradicts."""
    me = read_identity(environment)
    if me.launcher == "none":
        return World()
    rendezvous, host = _meeting_place(environment, me.size, me.local_size, me.launcher)
    # Ours come first: they are one for each run.
    ours = tuple(name for name in ("SCALEPROF_JOB", "SCALEPROF_RENDEZVOUS") if name in environment)
    job = "/".join(environment.get(name, "") for name in ours or _JOB_IDS[me.launcher])
    return World(me.rank, me.size, me.local_rank, me.local_size, rendezvous, host, job, me.launcher)


def _meeting_place(
    environment: Mapping[str, str], size: int, local_size: int, launcher: str
) -> tuple[str, str]:
    """(``init_method`` where one is given, the host of rank 0)."""
    if size == 1:
        return "", ""
    if "SCALEPROF_RENDEZVOUS" in environment:
        return environment["SCALEPROF_RENDEZVOUS"], ""
    host = environment.get("MASTER_ADDR", "")
    if host and "MASTER_PORT" in environment:
        return f"tcp://{host}:{environment['MASTER_PORT']}", ""
    if not host and size == local_size:
        host = "127.0.0.1"
    if not host and launcher == "Slurm" and environment.get("SLURM_STEP_NODELIST"):
        host = expand_nodes(environment["SLURM_STEP_NODELIST"])[0]
    host = host or environment.get("SCALEPROF_HOST", "")
    nodes = environment.get("SLURM_JOB_NUM_NODES", "0")
    if not host and environment.get("SLURM_JOB_NODELIST") and int(nodes) * local_size >= size:
        # Every mpirun fills an allocation from its first node on.
        host = expand_nodes(environment["SLURM_JOB_NODELIST"])[0]
    return "", host or _host_by_mpi(size, launcher)


def _host_by_mpi(size: int, launcher: str) -> str:
    """The host of rank 0 as MPI itself tells it: mpirun with a hostfile gives its ranks no list of nodes."""
    try:
        from mpi4py import MPI
    except (ImportError, RuntimeError):
        raise UserError(
            "the ranks are on several nodes, and the launcher does not say where rank 0 is: install mpi4py "
            "(pip install -e '.[mpi]'), or set MASTER_ADDR (mpirun -x MASTER_ADDR)"
        ) from None
    check_mpi(MPI.COMM_WORLD.size, size, f"mpi4py ({' '.join(map(str, MPI.get_vendor()))})", launcher)
    return MPI.COMM_WORLD.bcast(socket.gethostname())


def gloo_interface(environment: Mapping[str, str], world: World) -> dict[str, str]:
    """What Gloo must be told: on one node it goes over loopback, for the host's name may not resolve."""
    if "GLOO_SOCKET_IFNAME" in environment or world.size > world.local_size:
        return {}
    try:
        socket.getaddrinfo(socket.gethostname(), None)
    except OSError:
        loopback = [name for _, name in socket.if_nameindex() if name.startswith("lo")]
        return {"GLOO_SOCKET_IFNAME": loopback[0]} if loopback else {}
    return {}


def check_interface(environment: Mapping[str, str], variable: str, network: str) -> None:
    """Raise UserError for interfaces in ``variable`` (of the run's ``network``) that this node has not."""
    here = [name for _, name in socket.if_nameindex()]
    for name in filter(None, environment.get(variable, "").split(",")):
        if name not in here:
            node = f"{socket.gethostname()}, which has {', '.join(here)}"
            raise UserError(
                f"no network interface {name} on {node}: correct network.{network.lower()}.interface in the "
                f"site file (or {variable})"
            )


# Below the range from which kernels take ports for outgoing connections (32768 on).
FIRST_PORT, PORTS, CANDIDATES = 20000, 12000, 16
MEETING_S = 300.0  # ranks of one job start within minutes
_ANSWER_S = 2.0  # for one question; a program that accepts and says nothing costs no more
_RECEIPT_S = 3.0  # for a rank of this job to say that the answer came in time: a node may be overloaded
# Between two rounds of questions, at first and at most.
_AGAIN_S, _AGAIN_AT_MOST_S = 0.05, 1.0
_NAMES_THEM_S = 5.0  # before the others give up, rank 0 names the ranks that are missing
_RECEIVED = b"received"
_OTHER_FILES = 1024  # that a process may have open besides its connections


def open_store(world: World, timeout: timedelta) -> "TCPStore":
    """The store of ``world``'s job, at which torch.distributed's ranks meet; UserError after ``timeout``."""
    from torch.distributed import TCPStore

    allow_connections(world.size)
    name = job_name(world)
    deadline = time.monotonic() + timeout.total_seconds()
    if world.rank == 0:
        store = TCPStore("localhost", 0, None, True, timeout, wait_for_workers=False)
        announce(name, store.port, world.size - 1, deadline - _NAMES_THEM_S)
        return store
    port = ask(world.host, name, world.rank, deadline)
    return TCPStore(world.host, port, None, False, timeout, wait_for_workers=False)


def allow_connections(ranks: int) -> None:
    """Let this process have a connection to each rank, as far as the system allows."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    needed = ranks + _OTHER_FILES
    if hard != resource.RLIM_INFINITY:
        needed = min(needed, hard)
    if soft != resource.RLIM_INFINITY and soft < needed:
        resource.setrlimit(resource.RLIMIT_NOFILE, (needed, hard))


def gather_at(store: "Store", world: World, value: str) -> list[str]:
    """``value`` of every rank, in rank order: rank 0 collects them at ``store``, all others read that."""
    store.set(str(world.rank), value)
    if world.rank == 0:
        values = [store.get(str(rank)).decode() for rank in range(world.size)]
        store.set("all", json.dumps(values))
    collected: list[str] = json.loads(store.get("all"))
    return collected


def tell_port(world: World, port: int) -> None:
    """As rank 0, tell the other ranks of ``world`` a port of this node, in the background."""
    announce(job_name(world), port, world.size - 1, time.monotonic() + MEETING_S)


def tell_port_to_all(world: World, port: int) -> None:
    """As rank 0, tell all other ranks of ``world`` a port of this node; UserError if some do not ask."""
    name, others = job_name(world), world.size - 1
    if missing := _serve(_listen(candidates(name)), name, port, others, time.monotonic() + MEETING_S):
        raise UserError(_not_here(missing, world.size, MEETING_S))


def find_port(world: World) -> int:
    """The port that rank 0 of ``world`` tells, or UserError."""
    return ask(world.host or "127.0.0.1", job_name(world), world.rank, time.monotonic() + MEETING_S)


def job_name(world: World) -> str:
    """What the ranks of one job, and of no other, say alike."""
    # Where the launcher has no id of the job, its command is one.
    job = world.job if world.job.strip("/") else " ".join(sys.argv)
    return hashlib.sha256(f"{world.size} {job}".encode()).hexdigest()


def candidates(name: str) -> list[int]:
    """The ports at which rank 0 of a job may be asked; where others' are taken, these are mostly free."""
    start = zlib.crc32(name.encode())
    return [FIRST_PORT + (start + 769 * step) % PORTS for step in range(CANDIDATES)]


def announce(name: str, port: int, others: int, deadline: float) -> int:
    """As rank 0, tell ``port`` to all other ranks, in the background; returns the port of asking.

    Ranks that have not asked by ``deadline`` (of time.monotonic) are named on stderr.
    """
    server, began = _listen(candidates(name)), time.monotonic()
    asked_at = server.getsockname()[1]  # the thread may soon have closed it

    def serve() -> None:
        if missing := _serve(server, name, port, others, deadline):
            # In one write, as the main thread prints, too.
            sys.stderr.write(
                f"scaleprof: error: {_not_here(missing, others + 1, time.monotonic() - began)}\n"
            )

    threading.Thread(target=serve, daemon=True).start()
    return asked_at


def _not_here(missing: set[int], size: int, seconds: float) -> str:
    return f"not started within {seconds:.0f} s: {len(missing)} of {size} ranks ({listed(missing)})"


def _listen(ports: Sequence[int]) -> socket.socket:
    for port in ports:
        with suppress(OSError):
            return socket.create_server(("", port), backlog=512)
    raise UserError(f"none of the {len(ports)} ports from {ports[0]} on is free on {socket.gethostname()}")


def _serve(server: socket.socket, name: str, port: int, others: int, deadline: float) -> set[int]:
    """Tell ``port`` to whoever asks for the job ``name``; which of its ranks 1 to ``others`` did not ask."""
    missing = set(range(1, others + 1))
    silent = set(missing)
    with server:
        while missing and (left := deadline - time.monotonic()) > 0:
            server.settimeout(left)
            with suppress(OSError):  # who goes away in the middle will ask again
                connection, _ = server.accept()
                with connection:
                    connection.settimeout(_ANSWER_S)
                    job, _, rank = _line(connection).partition(b" ")
                    if job == name.encode() and rank.isdigit():
                        silent.discard(int(rank))
                        connection.sendall(b"%d\n" % port)
                        connection.settimeout(_RECEIPT_S)
                        if _line(connection) == _RECEIVED:  # else it gave up waiting, and will ask again
                            missing.discard(int(rank))
    return silent


def ask(host: str, name: str, rank: int, deadline: float) -> int:
    """The port of the store, from rank 0 on ``host``; UserError after ``deadline`` (of time.monotonic)."""
    problem, again_s = "nothing answers", _AGAIN_S
    while time.monotonic() < deadline:
        for port in candidates(name):
            try:
                with socket.create_connection((host, port), timeout=_ANSWER_S) as connection:
                    connection.sendall(f"{name} {rank}\n".encode())
                    answer = _line(connection)
                    if answer.isdigit():
                        connection.sendall(_RECEIVED + b"\n")
                        return int(answer)
            except OSError as error:
                problem = str(error)
                continue
            problem = "another program answers"
        time.sleep(again_s * random.uniform(0.5, 1.0))  # or all ranks would ask at the same moment
        again_s = min(2 * again_s, _AGAIN_AT_MOST_S)
    raise UserError(
        f"rank {rank} did not find rank 0 on {host} ({problem}); has it ended, or can this node not "
        f"reach {host} over TCP? MASTER_ADDR and MASTER_PORT set another address"
    )


def _line(connection: socket.socket) -> bytes:
    """A line of at most 200 bytes, without its end; what came if there is no more."""
    text = b""
    while not text.endswith(b"\n") and len(text) < 200:
        more = connection.recv(200)
        if not more:
            break
        text += more
    return text.strip()
