"""Which layer does ``Conv2d(3, 64, 7, stride=2)@256,3,224,224`` mean?

The name is a class of torch.nn, the arguments are plain values; nothing is evaluated.
"""

import ast
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from profiling.errors import UserError, did_you_mean

if TYPE_CHECKING:
    import torch

EXAMPLE = '"Conv2d(3, 64, 7, stride=2)@256,3,224,224"'


@dataclass(frozen=True)
class LayerSpec:
    """A class of torch.nn, its arguments, and the shape of its input."""

    name: str
    arguments: tuple[Any, ...]
    options: Mapping[str, Any]
    shape: tuple[int, ...]

    @property
    def layer(self) -> str:
        """The layer as one writes it: ``Conv2d(3, 64, 7, stride=2)``."""
        options = [f"{name}={value!r}" for name, value in self.options.items()]
        return f"{self.name}({', '.join([*map(repr, self.arguments), *options])})"

    def __str__(self) -> str:
        return f"{self.layer}@{','.join(map(str, self.shape))}"


def parse(text: str) -> LayerSpec:
    """Take a spec apart; whether it builds is :func:`check`'s to say.

    Raises:
        UserError: it is none; one line.
    """
    layer, _, shape = text.rpartition("@")
    if not re.fullmatch(r"\s*\d+(\s*,\s*\d+)*\s*", shape):
        raise UserError(f"--layer {text!r}: after @ stands the shape of its input, e.g. {EXAMPLE}")
    try:
        sizes = tuple(int(size) for size in shape.split(","))
    except ValueError:  # Python reads no more than some thousand digits
        raise UserError(f"--layer {text[:60]!r}...: a size of its input is no sensible number") from None
    if 0 in sizes:
        raise UserError(f"--layer {text!r}: its input is empty; every size must be at least 1")
    try:
        call = ast.parse(layer.strip(), mode="eval").body
    except (SyntaxError, ValueError, MemoryError, RecursionError):
        call = None
    if not isinstance(call, ast.Call) or not isinstance(call.func, ast.Name):
        raise UserError(f"--layer {text!r} is no call of a class of torch.nn; it looks like {EXAMPLE}")
    try:
        arguments = tuple(ast.literal_eval(argument) for argument in call.args)
        options = {str(option.arg): ast.literal_eval(option.value) for option in call.keywords if option.arg}
    except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError):
        raise UserError(f"--layer {text!r}: its arguments must be plain values, e.g. {EXAMPLE}") from None
    if len(options) < len(call.keywords):
        raise UserError(f"--layer {text!r}: its arguments must be plain values, e.g. {EXAMPLE}")
    return LayerSpec(call.func.id, arguments, options, sizes)


def build(spec: LayerSpec) -> "torch.nn.Module":
    """The layer, on the device that is torch's default.

    Raises:
        UserError: torch.nn has no such layer, or it does not take these arguments.
    """
    import torch

    layers = [name for name, kind in vars(torch.nn).items() if _is_layer(kind)]
    if spec.name not in layers:
        near = did_you_mean(spec.name, layers)
        raise UserError(f"--layer: torch.nn has no layer {spec.name!r}{near if 'did' in near else ''}")
    try:
        return getattr(torch.nn, spec.name)(*spec.arguments, **spec.options)
    except Exception as error:  # noqa: BLE001 - the arguments are the user's, the errors any layer's own
        raise UserError(f"--layer: {spec.layer} does not build: {_short(error)}") from None


def _is_layer(kind: Any) -> bool:
    import torch

    return isinstance(kind, type) and issubclass(kind, torch.nn.Module) and kind is not torch.nn.Module


def output_of(result: Any) -> "torch.Tensor | None":
    """The tensor that a layer gives; of several (recurrent layers) the first."""
    import torch

    while isinstance(result, tuple | list) and result:
        result = result[0]
    return result if isinstance(result, torch.Tensor) else None


def check(spec: LayerSpec) -> None:
    """Whether a layer builds, takes its input and has gradients; nothing is computed.

    Raises:
        UserError: it does not; one line.
    """
    import torch

    with torch.device("meta"):
        module = build(spec)
        try:
            output = output_of(module(torch.empty(spec.shape, requires_grad=True)))
        except Exception as error:  # noqa: BLE001 - as above
            raise UserError(f"--layer: {spec} does not take its input: {_short(error)}") from None
    if output is None or not output.requires_grad:
        raise UserError(f"--layer: {spec} has no output with gradients to go backward from")


def _short(error: BaseException) -> str:
    return " ".join(str(error).split())[:200] or type(error).__name__
