"""Time, memory and energy of a layer, and its place on the roofline.

    python -m train.studies.layers
    python -m train.studies.layers --device cpu --batch 8 --image-size 64
    python -m train.studies.layers --layer "Conv2d(3, 64, 7, stride=2)@256,3,224,224" --layer "GELU()@64,1000"

Without --layer: ReLU, MaxPool2d, Conv2d and Linear as in the first and last layers of VGG16, with batch 256
on a GPU and 16 on a CPU. --batch and --image-size change these; --layer includes the shape of the input.
docs/studies.md explains how each quantity is measured.
"""

import argparse
import ast
import time
from collections.abc import Callable, Sequence
from functools import partial
from itertools import cycle
from typing import Any, NamedTuple

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from profiling.cost.operators import Cost, Inputs, Tensor, operator_cost, tensor_of
from profiling.errors import UserError, did_you_mean, run_command
from profiling.schemas import PASSES
from train import energy
from train.calibrate import copy_on, gemm_on
from train.device import device_name
from train.studies import common

LAYERS = (
    "ReLU()@{batch},3,{size},{size}",
    "MaxPool2d(2, 2)@{batch},3,{size},{size}",
    "Conv2d(3, 128, 3, padding=1)@{batch},3,{size},{size}",
    "Linear(25088, 4096)@{batch},25088",
)
BATCH, BATCH_ON_CPU, IMAGE_SIZE = 256, 16, 224
PEAK_S = 0.3  # of measuring each peak
METERED_S = 5.0  # of each layer, after it has settled, in energy.TIMES parts


def main() -> None:
    parser = common.study_parser("layers", __doc__)
    parser.add_argument("--layer", action="append", metavar="SPEC",
                        help="measure this layer instead of the default four; repeatable")  # fmt: skip
    arguments = parser.parse_args()
    study = common.Study("layers", arguments)
    (device,) = study.devices
    counted = {spec: count(spec) for spec in specs_of(arguments, device.type)}
    # Figures of fp32 stand beside the peak of fp32.
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
    name = device_name(device)
    torch.ones(1, device=device)  # makes a GPU's context, whose power is that of the idle device, too
    # First of all: a device that has just worked draws more than an idle one.
    meter = energy.open_meter(device)
    idle = power(study, "peaks", name, "idle_w", meter, lambda: time.sleep(0.02))
    study.quantity("peaks", name, "flops_per_s", gemm_on(device, "fp32").rate(PEAK_S), "fp32, measured")
    study.quantity("peaks", name, "bytes_per_s", copy_on(device).rate(PEAK_S), "a copy, measured")
    for (case, make, shape), (forward, backward) in counted.items():
        with study.within_memory(f"{case} on {name}"):
            with torch.device(device):
                passes = common.Passes(make(), torch.randn(shape, requires_grad=True))
            timed = common.time_cases(device, {case: [passes.forward, passes.backward]}, PASSES, arguments)
            peak, retained = common.peak_and_retained(passes)
            study.case(
                case, name, timed[case], peak_memory_bytes=peak, retained_memory_bytes=retained,
                forward_flops=forward.flops, forward_bytes=forward.bytes, backward_flops=backward.flops,
                backward_bytes=backward.bytes,
            )  # fmt: skip
            if unknown := sorted(forward.unknown | backward.unknown):
                study.find("flops_missing", what=unknown, n=len(unknown), case=case)
            used = power(study, case, name, "power_w", meter, passes.both) if idle else []
            # Each beside one of the idle device, so that the spread includes the noise of both.
            for (watts, seconds), (idle_w, _) in zip(used, cycle(idle), strict=False):
                above = (watts - idle_w) * seconds
                study.quantity(case, name, "energy_above_idle_j", above, "both passes, once")
    study.finish()


def power(
    study: common.Study, case: str, device: str, quantity: str, meter: energy.Meter, action: energy.Action
) -> list[tuple[float, float]]:
    """Record mean power while an action is repeated: (W, seconds a repetition) each time it was metered."""
    metered = energy.several(meter, action, METERED_S)
    for used in metered:
        study.quantity(case, device, quantity, used.watts, used.note)
        if used.watts is None:
            study.find("not_recorded", what=f"power and energy: {used.note}")
    return [(used.watts, used.seconds / used.calls) for used in metered if used.watts is not None]


class LayerSpec(NamedTuple):
    """A layer of torch.nn, and the shape of its input."""

    case: str  # Conv2d(3, 64, 7, stride=2)@256,3,224,224
    make: Callable[[], torch.nn.Module]
    shape: tuple[int, ...]


def parse(text: str) -> LayerSpec:
    """Parse a spec, whose arguments are plain values and never evaluated; or raise UserError."""
    written, _, sizes = text.rpartition("@")
    try:
        call = ast.parse(written.strip(), mode="eval").body
        shape = tuple(int(size) for size in sizes.split(","))
        if not (isinstance(call, ast.Call) and isinstance(call.func, ast.Name)) or min(shape) < 1:
            raise ValueError
        arguments = [ast.literal_eval(argument) for argument in call.args]
        options = {str(option.arg): ast.literal_eval(option.value) for option in call.keywords}
    except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError):
        raise UserError(
            f"--layer {text[:200]!r}: not a class of torch.nn, its plain values, @ and the input's shape, "
            'as in "Conv2d(3, 64, 7, stride=2)@256,3,224,224"'
        ) from None
    classes = {name: kind for name, kind in vars(torch.nn).items() if isinstance(kind, type)}
    layers = {name: kind for name, kind in classes.items() if issubclass(kind, torch.nn.Module)}
    del layers["Module"]
    if (name := call.func.id) not in layers:
        near = did_you_mean(name, layers, "the documentation of torch.nn")
        raise UserError(f"--layer: torch.nn has no layer {name!r}{near}")
    case = f"{ast.unparse(call)}@{','.join(map(str, shape))}"
    return LayerSpec(case, partial(layers[name], *arguments, **options), shape)


def specs_of(arguments: argparse.Namespace, kind: str) -> list[LayerSpec]:
    """The layers that flags ask for, on a device of this kind."""
    if arguments.layer and (arguments.batch or arguments.image_size):
        raise UserError("--layer says the shape of its input: leave --batch and --image-size out")
    batch, size = arguments.batch or (BATCH_ON_CPU if kind == "cpu" else BATCH), arguments.image_size
    usual = [text.format(batch=batch, size=size or IMAGE_SIZE) for text in LAYERS]
    return list({spec.case: spec for spec in map(parse, arguments.layer or usual)}.values())


class Counter(TorchDispatchMode):
    """Sums the costs of the operators dispatched inside it; ``unknown``: those that have no formula."""

    def __init__(self) -> None:
        super().__init__()
        self.flops = self.bytes = 0.0
        self.unknown: set[str] = set()

    def __torch_dispatch__(self, func: Any, _types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        name = func._schema.name
        output = result[0] if isinstance(result, tuple | list) and result else result
        sizes = tuple(output.shape) if isinstance(output, torch.Tensor) else None
        # Of a backward operator the output is a gradient, not what its formula asks for.
        cost = operator_cost(name, _inputs(args), None if "backward" in name else sizes)
        if cost is None and sizes is not None and not any(isinstance(arg, torch.Tensor) for arg in args):
            cost = Cost(0, output.nbytes)  # it reads nothing, and fills what it makes
        if cost is None:
            self.unknown.add(name)
        else:
            self.flops, self.bytes = self.flops + cost.flops, self.bytes + cost.bytes
        return result


def count(spec: LayerSpec) -> tuple[Counter, Counter]:
    """The costs of both passes of a layer, of which nothing is computed; UserError: it has none."""
    try:
        what = f"{spec.case.rpartition('@')[0]} does not build"
        with torch.device("meta"):
            module = spec.make()
            what = f"{spec.case} does not take its input"
            passes = common.Passes(module, torch.empty(spec.shape, requires_grad=True))
    except Exception as error:  # noqa: BLE001 - the arguments are the user's, the errors any layer's own
        reason = " ".join(str(error).split())[:200] or type(error).__name__
        raise UserError(f"--layer: {what}: {reason}") from None
    with Counter() as forward:
        output = passes.forward()
    if not output.requires_grad:
        raise UserError(f"--layer: {spec.case} has no output with gradients to go backward from")
    with Counter() as backward:
        passes.backward(output)
    return forward, backward


def _inputs(args: Sequence[Any]) -> Inputs:
    """An operator's arguments: tensors, lists of tensors, and plain values."""

    def recorded(value: Any) -> Any:
        if isinstance(value, torch.Tensor):
            return tensor_of(list(value.shape), list(value.stride()), value.element_size())
        return list(map(recorded, value)) if isinstance(value, list | tuple) else value

    known = [recorded(value) for value in args]
    lists = [v for v in known if isinstance(v, list) and v and all(isinstance(one, Tensor) for one in v)]
    return Inputs(
        tuple(value if isinstance(value, Tensor) else None for value in known),
        tuple(map(tuple, lists)),
        tuple(None if isinstance(value, Tensor) or value in lists else value for value in known),
    )


if __name__ == "__main__":
    run_command(main)
