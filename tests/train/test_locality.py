"""Which processors and cards are near a GPU, by a /sys of two sockets: a GPU and a card on each switch."""

import os
import types
from pathlib import Path

import pytest
import torch

from train.device import UCX_CARDS, bind_near, near_cards, near_cpus

# address -> (the bridges above it, its processors)
DEVICES = {
    "0000:17:00.0": ("pci0000:15/0000:15:01.0/0000:16:00.0", "0-3"),  # a GPU
    "0000:18:00.0": ("pci0000:15/0000:15:01.0/0000:16:00.0", "0-3"),  # mlx5_0, below the same switch
    "0000:3b:00.0": ("pci0000:15/0000:15:02.0/0000:3a:00.0", "0-3"),  # mlx5_1, below another
    "0000:9a:00.0": ("pci0000:97/0000:97:01.0/0000:98:00.0", "4-7"),  # a GPU of the other socket
    "0000:9b:00.0": ("pci0000:97/0000:97:01.0/0000:98:00.0", "4-7"),  # mlx5_2
}
CARDS = {"mlx5_0": "0000:18:00.0", "mlx5_1": "0000:3b:00.0", "mlx5_2": "0000:9b:00.0"}


@pytest.fixture
def sys(tmp_path: Path) -> Path:
    (tmp_path / "bus/pci/devices").mkdir(parents=True)
    (tmp_path / "class/infiniband").mkdir(parents=True)
    for address, (bridges, cpus) in DEVICES.items():
        real = tmp_path / "devices" / bridges / address
        real.mkdir(parents=True)
        (real / "local_cpulist").write_text(cpus + "\n")
        (tmp_path / "bus/pci/devices" / address).symlink_to(real)
    for card, address in CARDS.items():
        (tmp_path / "class/infiniband" / card).mkdir()
        (tmp_path / "class/infiniband" / card / "device").symlink_to(tmp_path / "bus/pci/devices" / address)
    return tmp_path


@pytest.mark.parametrize(
    ("gpu", "allowed", "cpus"),
    [
        ("0000:17:00.0", range(8), {0, 1, 2, 3}),
        ("0000:9a:00.0", range(2, 6), {4, 5}),
        ("0000:9a:00.0", range(4, 8), set()),  # the launcher has bound it already
        ("0000:9a:00.0", range(4), set()),  # all allowed ones are far: none would be left
        ("0000:ff:00.0", range(8), set()),  # the kernel does not know it
    ],
)
def test_processors(sys, gpu, allowed, cpus):
    assert near_cpus(gpu, allowed, sys) == cpus


@pytest.mark.parametrize(
    ("gpu", "cards", "near"),
    [
        ("0000:17:00.0", ["mlx5_0", "mlx5_1", "mlx5_2"], ("mlx5_0",)),
        ("0000:17:00.0", ["mlx5_1", "mlx5_2"], ("mlx5_1",)),  # at least the same socket
        ("0000:9a:00.0", ["mlx5_0", "mlx5_1", "mlx5_2"], ("mlx5_2",)),
        ("0000:17:00.0", ["mlx5_2"], ()),  # there is no choice
        ("0000:17:00.0", ["mlx5_0", "eth0"], ()),  # not all are known
        ("0000:17:00.0", [""], ()),
    ],
)
def test_cards(sys, gpu, cards, near):
    assert near_cards(gpu, cards, sys) == near


def test_a_rank_is_bound_to_both(sys, monkeypatch):
    bound = []
    properties = types.SimpleNamespace(pci_domain_id=0, pci_bus_id=0x9A, pci_device_id=0)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: properties)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(8)))
    monkeypatch.setattr(os, "sched_setaffinity", lambda _, cpus: bound.append(cpus))
    environment = {UCX_CARDS: "mlx5_0:1,mlx5_2:1"}
    place = bind_near(torch.device("cuda", 1), environment, sys)
    assert (place.cpus, place.cards, bound) == ("4-7", ("mlx5_2",), [{4, 5, 6, 7}])
    assert environment == {UCX_CARDS: "mlx5_2:1"}
