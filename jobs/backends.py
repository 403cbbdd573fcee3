"""Is Horovod here, and what takes its place where it is not?"""

import importlib.util
from collections.abc import Sequence
from typing import Any

NO_HOROVOD = "Horovod is not installed (make horovod builds it): DDP exchanges the gradients in its place"


def has_horovod() -> bool:
    """Whether Horovod is installed beside this Python."""
    return importlib.util.find_spec("horovod") is not None


def in_place_of_horovod(backends: Sequence[Any]) -> list[Any]:
    """``backends`` with DDP for Horovod, each once."""
    return list(dict.fromkeys("ddp" if backend == "horovod" else backend for backend in backends))
