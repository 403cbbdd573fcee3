"""How many FLOPs and bytes has a module's forward and backward pass? Counted on torch's meta device.

Every operator that PyTorch dispatches is counted by :func:`profiling.cost.operators.operator_cost`.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from profiling.cost.operators import Cost, operator_cost
from profiling.cost.shapes import Inputs, Tensor

if TYPE_CHECKING:
    from collections.abc import Sequence


class Counter(TorchDispatchMode):
    """Sums the costs of the operators that run inside it.

    Attributes:
        total: FLOPs and bytes so far.
        unknown: operators that have no formula.
    """

    def __init__(self) -> None:
        super().__init__()
        self.total = Cost(0.0, 0.0)
        self.unknown: set[str] = set()

    def __torch_dispatch__(self, func: Any, _types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        name = func._schema.name
        output = result[0] if isinstance(result, tuple | list) and result else result
        sizes = tuple(output.shape) if isinstance(output, torch.Tensor) else None
        # Of a backward operator the output is a gradient, not what its formula asks for.
        cost = operator_cost(name, _inputs(args), None if "backward" in name else sizes)
        if cost is None and sizes is not None and not any(isinstance(one, torch.Tensor) for one in args):
            cost = Cost(0, output.nbytes)  # it reads nothing, and fills what it makes
        if cost is None:
            self.unknown.add(name)
        else:
            self.total = Cost(self.total.flops + cost.flops, self.total.bytes + cost.bytes)
        return result


def _inputs(args: "Sequence[Any]") -> Inputs:
    lists = [value for value in args if isinstance(value, list | tuple) and _are_tensors(value)]
    return Inputs(
        tuple(_tensor(value) if isinstance(value, torch.Tensor) else None for value in args),
        tuple(tuple(_tensor(one) for one in value) for value in lists),
        tuple(_value(value) for value in args),
    )


def _are_tensors(value: "Sequence[Any]") -> bool:
    return bool(value) and all(isinstance(one, torch.Tensor) for one in value)


def _value(value: Any) -> Any:
    if isinstance(value, list | tuple):
        return None if _are_tensors(value) else list(value)
    return None if isinstance(value, torch.Tensor) else value


def _tensor(tensor: torch.Tensor) -> Tensor:
    # As profiling.cost.shapes has it: elements that stand still in memory (stride 0) are read once.
    elements = 1
    for size, stride in zip(tensor.shape, tensor.stride(), strict=True):
        elements *= size if stride else 1
    return Tensor(tuple(tensor.shape), elements, tensor.element_size())


def count(
    forward: Callable[[], torch.Tensor], backward: Callable[[torch.Tensor], object]
) -> tuple[Cost, Cost, set[str]]:
    """(forward, backward, operators without a formula) of passes over tensors on the meta device."""
    with Counter() as first:
        output = forward()
    with Counter() as second:
        backward(output)
    return first.total, second.total, first.unknown | second.unknown
