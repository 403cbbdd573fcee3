"""Convert columns of codes to Arrow strings and nulls without a Python object per row; codes of classes."""

from collections.abc import Iterable, Sequence

import numpy as np
import pyarrow as pa

from profiling.cost.classify import classify, short_name
from profiling.schemas import CLASSES
from profiling.tables import array_of

CLASS = {name: number for number, name in enumerate(CLASSES)}
COMMUNICATION, MEMCPY, MEMSET = (CLASS[name] for name in ("communication", "memcpy", "memset"))


def classes_of(names: Sequence[str]) -> np.ndarray:
    """The class of each name, as a number of :data:`profiling.schemas.CLASSES`."""
    return np.array([CLASS[classify(name)] for name in names], dtype=np.int64)


def short_names(names: Sequence[str], used: np.ndarray) -> list[str]:
    """The short name of each name whose number is in ``used``; empty for the others."""
    is_used = np.zeros(len(names), dtype=bool)
    is_used[used] = True
    return [short_name(name) if needed else "" for name, needed in zip(names, is_used.tolist(), strict=True)]


def text_array(texts: Iterable[str]) -> pa.Array:
    """Texts as Arrow's; see :func:`array_of`."""
    encoded = [text.encode("utf-8", "replace") for text in texts]
    borders = np.cumsum([0, *map(len, encoded)]).astype(np.int32)
    buffers = [None, pa.py_buffer(borders), pa.py_buffer(b"".join(encoded))]
    return pa.Array.from_buffers(pa.string(), len(encoded), buffers)


def distinct(values: np.ndarray) -> np.ndarray:
    """Each of some integers once, rising. Plain ``np.unique`` imports numpy.ma, in every process anew."""
    values = np.sort(values)
    return values[np.append(True, values[1:] != values[:-1])[: len(values)]]


def or_null(values: np.ndarray, kind: pa.DataType) -> pa.Array:
    """Numbers with null in place of what is below 0."""
    return array_of(values, values >= 0).cast(kind)


def coded(codes: np.ndarray, values: Sequence[str]) -> pa.DictionaryArray:
    """Texts by their number (-1: null), with only the used ones in the dictionary, each once."""
    codes = codes.astype(np.intp)  # once, not at every look-up
    used = np.zeros(len(values) + 1, dtype=bool)
    used[codes] = True  # -1 is the last one
    distinct: dict[str, int] = {}
    place = np.full(len(values) + 1, -1, dtype=np.int32)
    for code in np.flatnonzero(used[:-1]).tolist():
        place[code] = distinct.setdefault(values[code], len(distinct))
    indices = array_of(place[codes], codes >= 0 if used[-1] else None)
    return pa.DictionaryArray.from_arrays(indices, text_array(distinct))
