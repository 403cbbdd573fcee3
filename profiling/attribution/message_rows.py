"""Which collective is each row of a kernels table, and which process group made it?"""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from profiling.attribution.coding import coded, or_null
from profiling.attribution.events import Events, Interner
from profiling.attribution.messages import UNKNOWN, Message, complete


@dataclass(frozen=True)
class Messages:
    """The messages of a table's rows.

    Attributes:
        number: of each row, index of ``distinct``; -1: it is no collective.
    """

    number: np.ndarray
    distinct: list[Message]

    def bytes(self, otherwise: np.ndarray) -> np.ndarray:
        """Of each row the bytes of its message; of those that are no collective what is given."""
        sizes = np.array([*(one.bytes for one in self.distinct), np.nan])
        return np.where(self.number >= 0, sizes[self.number], otherwise)

    def columns(self) -> dict[str, pa.Array]:
        """The columns of :data:`profiling.schemas.SCHEMAS` that say what a collective was."""
        texts = {
            "collective": [one.collective for one in self.distinct],
            "process_group": [one.group for one in self.distinct],
            "group_ranks": [one.ranks for one in self.distinct],
            "dtype": [one.dtype for one in self.distinct],
        }
        sizes = np.array([*(one.size or -1 for one in self.distinct), -1])
        return {
            **{name: self._text(values) for name, values in texts.items()},
            "group_size": or_null(sizes[self.number], pa.int32()),
        }

    def _text(self, values: list[str]) -> pa.Array:
        has_text = np.array([*(value not in ("", UNKNOWN) for value in values), False], dtype=bool)
        return coded(np.where(has_text[self.number], self.number, -1), values)


def messages_of(
    events: Events,
    collective: np.ndarray,
    names: np.ndarray,
    own: np.ndarray,
    place: np.ndarray,
    of_calls: Mapping[int, Message],
    group: Message,
) -> Messages:
    """The messages of rows.

    Args:
        collective: which rows are collectives.
        names: of the rows, as numbers of ``events.names``.
        own: the messages that they bear themselves, as numbers of ``events.messages``; -1: none.
        place: the host events they belong to, whose messages are ``of_calls``.
        group: the process group of those that do not say it.
    """
    rows = np.flatnonzero(collective)
    interner = Interner()
    number = np.full(len(names), -1, dtype=np.int64)
    of_operators = [
        [*([events.messages[mine]] if mine >= 0 else []), *([of_calls[where]] if where in of_calls else [])]
        for mine, where in zip(own[rows].tolist(), place[rows].tolist(), strict=True)
    ]
    texts = [events.names[name] for name in names[rows].tolist()]
    number[rows] = interner.of([complete(*one, group) for one in zip(texts, of_operators, strict=True)])
    return Messages(number, list(interner.index))
