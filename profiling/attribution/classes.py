"""Of which class is each device activity, where its name is not all that is known of it?"""

from collections.abc import Sequence

import numpy as np

from profiling.attribution.events import Events, pick
from profiling.cost.classify import classify
from profiling.schemas import CLASSES

CLASS = {name: number for number, name in enumerate(CLASSES)}
COMMUNICATION, MEMCPY, MEMSET = (CLASS[name] for name in ("communication", "memcpy", "memset"))
_ARITHMETIC = (CLASS["gemm"], CLASS["convolution"])


def classes_of(names: Sequence[str]) -> np.ndarray:
    """The class of each name, as a number of :data:`profiling.schemas.CLASSES`."""
    return np.array([CLASS[classify(name)] for name in names], dtype=np.int64)


def device_classes(events: Events, names: np.ndarray, operator: np.ndarray) -> np.ndarray:
    """The class of each device activity, by its name, or by its operator or record where these know better.

    Args:
        names: of host events; ``operator`` is an index of them.
    """
    of_name, device = classes_of(events.names), events.device
    kind = of_name[device["name"]]
    of_operator = np.where(operator >= 0, of_name[pick(names, operator, 0)], CLASS["other"])
    # A convolution is often done by the very kernels of a GEMM; which it was is the operator's to say.
    either = np.isin(kind, _ARITHMETIC) & np.isin(of_operator, _ARITHMETIC)
    kind = np.where(either | (kind == CLASS["other"]), of_operator, kind)
    # What bears the record of a collective is one, whatever its library calls it.
    bears = np.array([*(bool(one.collective) for one in events.messages), False], dtype=bool)
    kind[bears[device["message"]] & ~np.isin(kind, (MEMCPY, MEMSET))] = COMMUNICATION
    return kind
