"""Shapes and element types of an operator's inputs, as recorded by the profiler."""

import ast
import math
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, NamedTuple

# Bytes of an element, by the names that Kineto and PyTorch print.
_ELEMENT_BYTES = {
    "float": 4, "double": 8, "half": 2, "bfloat16": 2, "long int": 8, "long": 8, "long long": 8, "int": 4,
    "short": 2, "short int": 2, "signed char": 1, "char": 1, "byte": 1, "unsigned char": 1, "bool": 1,
    "complexfloat": 8, "complexdouble": 16, "complex<float>": 8, "complex<double>": 16, "int64": 8,
    "int32": 4,
    "int16": 2, "int8": 1, "uint8": 1, "float32": 4, "float64": 8, "float16": 2,
}  # fmt: skip


def element_bytes(dtype: str) -> int | None:
    """Bytes of one element of a type such as ``c10::BFloat16`` or ``Float``; None if no tensor has it."""
    plain = dtype.removeprefix("c10::").removeprefix("torch.").lower()
    return 1 if plain.startswith("float8") else _ELEMENT_BYTES.get(plain)


class Tensor(NamedTuple):
    """One input: its sizes, the elements that differ in memory, and bytes an element."""

    sizes: tuple[int, ...]
    elements: int
    element: int

    @property
    def bytes(self) -> int:
        return self.elements * self.element


@dataclass(frozen=True)
class Inputs:
    """An operator's inputs as recorded; one entry an argument, None where it is no tensor."""

    tensors: tuple[Tensor | None, ...] = ()
    lists: tuple[tuple[Tensor, ...], ...] = ()  # arguments that are lists of tensors, in order
    values: tuple[Any, ...] = ()  # concrete values: numbers, lists, bools; None where not recorded

    def tensor(self, index: int) -> Tensor | None:
        return self.tensors[index] if index < len(self.tensors) else None

    def value(self, index: int) -> Any:
        return self.values[index] if index < len(self.values) else None


def parse_inputs(dims: Any, types: Any, strides: Any = None, concrete: Any = None) -> Inputs:
    """Inputs from Kineto's fields; what is not of the expected form is left out, never guessed."""
    types = types if isinstance(types, list) else []
    dims = dims if isinstance(dims, list) else []
    strides = strides if isinstance(strides, list) and len(strides) == len(dims) else [None] * len(dims)
    single: list[Tensor | None] = []
    lists: list[tuple[Tensor, ...]] = []
    sizes_known = [element_bytes(kind) for kind in types if isinstance(kind, str)]
    usual = next((size for size in sizes_known if size), 4)  # a list of tensors does not say its type
    for position, size in enumerate(dims):
        kind = types[position] if position < len(types) and isinstance(types[position], str) else ""
        if _are_sizes(size) and element_bytes(kind):
            single.append(_tensor(size, strides[position], element_bytes(kind) or usual))
        else:
            single.append(None)
            if isinstance(size, list) and size and all(_are_sizes(one) for one in size):
                lists.append(tuple(_tensor(one, None, usual) for one in size))
    values = (
        tuple(_literal(value) if isinstance(value, str) else value for value in concrete)
        if isinstance(concrete, list)
        else ()
    )
    return Inputs(tuple(single), tuple(lists), values)


def _are_sizes(value: Any) -> bool:
    """Whether a recorded value can be a tensor's sizes: no dimension and no whole beyond any memory."""
    return (
        isinstance(value, list)
        and all(isinstance(size, int) and 0 <= size < 1 << 62 for size in value)
        and math.prod(size or 1 for size in value) < 1 << 62
    )


def _tensor(sizes: list[int], strides: Any, element: int) -> Tensor:
    distinct = sizes
    if isinstance(strides, list) and len(strides) == len(sizes):
        distinct = [size for size, stride in zip(sizes, strides, strict=True) if stride != 0]
    return Tensor(tuple(sizes), math.prod(distinct), element)


@lru_cache(maxsize=4096)
def _literal(text: str) -> Any:
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        return text if text in ("same", "valid") else None
