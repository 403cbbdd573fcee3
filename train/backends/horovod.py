"""Horovod's allreduce: over NCCL between GPUs, over MPI or Gloo between CPUs.

Horovod's own launcher is not needed: under mpirun the ranks connect through MPI, under any other launcher
through Gloo, at a server that rank 0 opens (train.world).
"""

import os
import socket
from typing import Any

import torch

from jobs.run import Run
from profiling.errors import UserError
from profiling.identity import check_mpi
from train.backends import Backend
from train.world import World, check_interface, find_port, tell_port

_MPI_LAUNCHERS = ("Open MPI", "MPICH", "MVAPICH")
_BY_MPI = ("PMIX_RANK", "PMI_RANK")  # srun has set MPI up: --mpi=pmix or pmi2


class Horovod(Backend):
    """Ranks joined by Horovod. The gradients are exchanged when the backward pass is done, within it."""

    def __init__(self, run: Run, world: World, device: torch.device) -> None:
        hvd = import_horovod()
        self._hvd, self._run = hvd, run
        if not uses_mpi(world, hvd):
            # Its Gloo would wait for an interface that there is not.
            check_interface(os.environ, "HOROVOD_GLOO_IFACE", run.network)
        # Kept alive: it is where the other ranks' Gloo looks for rank 0.
        self._server = meet(world, hvd)
        hvd.init()
        check_mpi(hvd.size(), world.size, "Horovod", world.launcher)
        library = "mpi" if hvd.mpi_enabled() else "gloo"
        if device.type == "cuda" and hvd.nccl_built():
            library = "nccl"
        self.description = f"horovod/{library}"

    def wrap(self, model: torch.nn.Module) -> torch.nn.Module:
        # As DDP does: all ranks begin with rank 0's parameters.
        self._hvd.broadcast_parameters(model.state_dict(), root_rank=0)
        return model

    def wrap_optimizer(
        self, optimizer: torch.optim.Optimizer, model: torch.nn.Module
    ) -> torch.optim.Optimizer:
        compression = self._hvd.Compression.fp16 if self._run.grad == "fp16" else self._hvd.Compression.none
        distributed = self._hvd.DistributedOptimizer(
            optimizer, named_parameters=model.named_parameters(), compression=compression
        )
        self._hvd.broadcast_optimizer_state(optimizer, root_rank=0)
        synchronize_in_backward(model, distributed)
        return distributed

    def gather(self, value: str) -> list[str]:
        return self._hvd.allgather_object(value)

    def barrier(self) -> None:
        self._hvd.barrier()

    def abandon(self) -> None:
        self.close()  # it waits for nobody: the others are told, and end

    def close(self) -> None:
        # No barrier here: a rank that has failed must not wait for the others before it says why.
        self._hvd.shutdown()
        if self._server is not None:
            self._server.stop()


def import_horovod() -> Any:
    """``horovod.torch``; raises UserError if it is not installed, or was built for another PyTorch or MPI."""
    try:
        import horovod.torch as hvd
    except ImportError as error:
        if getattr(error, "name", "") == "horovod":
            raise UserError("Horovod is not installed (make horovod builds it); or use backend ddp") from None
        reason = " ".join(str(error).split())[:300]
        raise UserError(f"Horovod cannot be loaded ({reason}); rebuild it: make horovod") from None
    return hvd


def synchronize_in_backward(model: torch.nn.Module, optimizer: Any) -> None:
    """Have each backward pass, not the update, wait for the exchange of gradients, as the reference does."""
    step = optimizer.step

    def synchronized_step(*arguments: Any, **named: Any) -> Any:
        with optimizer.skip_synchronize():
            return step(*arguments, **named)

    optimizer.step = synchronized_step

    def when_backward_is_done(gradient: torch.Tensor) -> None:
        torch.autograd.Variable._execution_engine.queue_callback(optimizer.synchronize)

    def watch(_module: torch.nn.Module, _inputs: Any, output: torch.Tensor) -> None:
        if output.requires_grad:
            output.register_hook(when_backward_is_done)

    model.register_forward_hook(watch)


def uses_mpi(world: World, hvd: Any) -> bool:
    """Whether the ranks meet through MPI: where MPI has started them, and Horovod is built with it."""
    controller = os.environ.get("HOROVOD_CONTROLLER")
    if controller:
        return controller == "mpi"
    by_mpi = world.launcher in _MPI_LAUNCHERS or any(name in os.environ for name in _BY_MPI)
    return by_mpi and hvd.mpi_built()


def meet(world: World, hvd: Any) -> Any:
    """Tell Horovod of the ranks, where MPI does not; the server that rank 0 then has to keep, else None."""
    if uses_mpi(world, hvd):
        return None
    server, port = _serve(world) if world.rank == 0 else (None, 0)
    if world.rank and world.size > 1:
        port = find_port(world)
    # As horovodrun tells its ranks of themselves.
    os.environ |= {
        "HOROVOD_CONTROLLER": "gloo", "HOROVOD_CPU_OPERATIONS": "gloo",
        "HOROVOD_RANK": str(world.rank), "HOROVOD_SIZE": str(world.size),
        "HOROVOD_LOCAL_RANK": str(world.local_rank), "HOROVOD_LOCAL_SIZE": str(world.local_size),
        "HOROVOD_CROSS_RANK": str(world.rank // world.local_size), "HOROVOD_CROSS_SIZE": str(world.nodes),
        "HOROVOD_HOSTNAME": socket.gethostname(),
        "HOROVOD_GLOO_RENDEZVOUS_ADDR": socket.gethostbyname(world.host or "127.0.0.1"),
        "HOROVOD_GLOO_RENDEZVOUS_PORT": str(port),
    }  # fmt: skip
    return server


def _serve(world: World) -> tuple[Any, int]:
    """The server at which Gloo's ranks find each other, and its port, which the others are told."""
    from horovod.runner.common.util.hosts import SlotInfo
    from horovod.runner.http.http_server import RendezvousServer

    server = RendezvousServer()
    port = server.start()
    places = [
        SlotInfo(
            hostname="node", rank=rank, local_rank=rank % world.local_size,
            cross_rank=rank // world.local_size, size=world.size, local_size=world.local_size,
            cross_size=world.nodes,
        )
        for rank in range(world.size)
    ]  # fmt: skip
    server.init(places)
    if world.size > 1:
        tell_port(world, port)
    return server, port


open_backend = Horovod
