"""How do numbers become the texts and nulls of a table, without a Python object a row?"""

from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from profiling.classify import short_name


def is_empty(names: Sequence[str]) -> np.ndarray:
    """Whether each text is empty."""
    return np.fromiter((not name for name in names), dtype=bool, count=len(names))


def short_names(names: Sequence[str], used: np.ndarray) -> list[str]:
    """The short name of each name whose number is in ``used``; empty for the others."""
    wanted = set(np.unique(used).tolist())
    return [short_name(name) if number in wanted else "" for number, name in enumerate(names)]


def or_null(values: np.ndarray, kind: pa.DataType) -> pa.Array:
    """Numbers with null in place of what is below 0."""
    return pa.array(values, mask=values < 0).cast(kind)


def coded(codes: np.ndarray, values: Sequence[str]) -> pa.DictionaryArray:
    """Texts by their number (-1: null), with only the used ones in the dictionary, each once."""
    used, compact = np.unique(codes, return_inverse=True)
    distinct: dict[str, int] = {}
    place = [distinct.setdefault(values[code], len(distinct)) if code >= 0 else -1 for code in used.tolist()]
    indices = pa.array(np.array(place, dtype=np.int32)[compact], mask=codes < 0)
    return pa.DictionaryArray.from_arrays(indices, pa.array(list(distinct), pa.string()))
