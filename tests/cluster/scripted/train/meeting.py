"""Scripted ranks that meet as the project's do, at a stand-in for PyTorch's store."""

import os
import sys
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "stand_ins"))

from torch.distributed import PrefixStore  # the stand-in's

from train.world import gather_at, open_store, read_world


def meet() -> Callable[[str], list[str]]:
    """Meet all other ranks; what gathers a text of every rank (a barrier, too)."""
    world = read_world(os.environ)
    store = open_store(world, timedelta(minutes=5))
    gathered = 0

    def gather(value: str) -> list[str]:
        nonlocal gathered
        gathered += 1
        return gather_at(PrefixStore(f"gather {gathered}", store), world, value)

    gather("")
    return gather
