"""Which processors and network cards are nearest to a rank's GPU? The rank is bound to them.

What is near what the kernel says in /sys: a PCI device's processors (local_cpulist) and its place in the tree
of bridges. Where it says nothing (a virtual machine, macOS), or where all is equally near, nothing is bound.
NCCL finds the nearest card of those it may use by itself; UCX is told here.
"""

import os
from collections.abc import Iterable, MutableMapping, Sequence
from dataclasses import dataclass
from itertools import takewhile
from pathlib import Path
from typing import TYPE_CHECKING

from profiling.number_ranges import ranges

if TYPE_CHECKING:
    import torch

SYS = Path("/sys")
UCX_CARDS = "UCX_NET_DEVICES"


@dataclass(frozen=True)
class Place:
    """What a rank is bound to; empty: nothing, since nothing is nearer than the rest.

    Attributes:
        cpus: of the kernel's numbering, as a list, e.g. "0-15,32-47".
        cards: names of InfiniBand devices, e.g. ("mlx5_0",).
    """

    cpus: str = ""
    cards: tuple[str, ...] = ()


def bind_near(device: "torch.device", environment: MutableMapping[str, str], sys: Path = SYS) -> Place:
    """Bind this process to what is nearest to its GPU; must come before threads and connections are made.

    Args:
        environment: of this process; ``UCX_NET_DEVICES`` is narrowed where it names several cards.
    """
    address = _pci_address(device)
    if not address:
        return Place()
    allowed = os.sched_getaffinity(0)
    cpus = near_cpus(address, allowed, sys)
    if cpus:
        os.sched_setaffinity(0, cpus)
    ports = environment.get(UCX_CARDS, "").split(",")
    near = near_cards(address, [port.partition(":")[0] for port in ports], sys)
    if near:
        environment[UCX_CARDS] = ",".join(port for port in ports if port.partition(":")[0] in near)
    return Place(as_list(cpus), near)


def near_cpus(address: str, allowed: Iterable[int], sys: Path = SYS) -> set[int]:
    """Of the processors that a process may use, those near a PCI device; empty if that binds to nothing."""
    allowed = set(allowed)
    try:
        text = (sys / "bus/pci/devices" / address / "local_cpulist").read_text()
        near = allowed & from_list(text)
    except (OSError, ValueError):
        return set()
    return near if near < allowed else set()


def near_cards(address: str, cards: Sequence[str], sys: Path = SYS) -> tuple[str, ...]:
    """Of InfiniBand devices, those with most bridges in common with a PCI device; empty if all are."""
    gpu = _bridges(sys / "bus/pci/devices" / address)
    shared = {}
    for card in cards:
        bridges = _bridges(sys / "class/infiniband" / card / "device")
        if not gpu or not bridges:
            return ()
        shared[card] = sum(
            1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(gpu, bridges, strict=False))
        )
    most = max(shared.values(), default=0)
    near = tuple(card for card in cards if shared[card] == most)
    return near if len(near) < len(cards) else ()


def _bridges(device: Path) -> list[str]:
    """The way to a PCI device, from the root complex down: its real path's parts below /sys/devices."""
    return list(device.resolve().parts[:-1]) if device.exists() else []


def _pci_address(device: "torch.device") -> str:
    """A GPU's address as the kernel writes it, "0000:65:00.0"; "" if PyTorch does not say."""
    import torch

    if device.type != "cuda" or not hasattr(os, "sched_getaffinity"):
        return ""
    properties = torch.cuda.get_device_properties(device)
    names = ("pci_domain_id", "pci_bus_id", "pci_device_id")
    if not all(hasattr(properties, name) for name in names):  # before PyTorch 2.8
        return ""
    return "{:04x}:{:02x}:{:02x}.0".format(*(int(getattr(properties, name)) for name in names))


def from_list(text: str) -> set[int]:
    """The numbers of a kernel's list: "0-2,8" -> {0, 1, 2, 8}.

    Raises:
        ValueError: it is none.
    """
    numbers: set[int] = set()
    for part in filter(None, text.strip().split(",")):
        low, _, high = part.partition("-")
        numbers |= set(range(int(low), int(high or low) + 1))
    return numbers


def as_list(numbers: Iterable[int]) -> str:
    """Numbers as the kernel lists them: {0, 1, 2, 8} -> "0-2,8"."""
    return ",".join(ranges(numbers))
