"""Compare the two orders of ReLU and MaxPool2d.

    python -m train.studies.order
    python -m train.studies.order --device cpu --batch 2 --image-size 64 --model alexnet

Both orders give the same output, because ReLU is monotonic; but ReLU after the pooling has a quarter of the
elements to process. The model is rewritten (torch.fx) with every adjacent pair in one order, then in the
other, with the same weights. The default --batch is 128 on a GPU and 4 on a CPU; without --device both are
measured.
"""

from functools import partial

import torch
from torch import fx, nn
from torch.nn import functional

from profiling.errors import UserError, run_command
from profiling.schemas import PASSES
from train.device import device_name
from train.models import build_model, check_images
from train.studies import common

BATCH, BATCH_ON_CPU = 128, 4
IMAGE_SIZE = 224
CLASSES = 1000
RELU, POOL = "ReLU", "MaxPool2d"
ORDERS = {f"{RELU}, {POOL}": RELU, f"{POOL}, {RELU}": POOL}  # case -> which is first

_FUNCTIONS = {
    functional.relu: RELU, functional.relu_: RELU, torch.relu: RELU, torch.relu_: RELU,
    functional.max_pool2d: POOL, torch.max_pool2d: POOL,
}  # fmt: skip


def main() -> None:
    parser = common.study_parser("order", __doc__)
    parser.add_argument("--model", default="vgg16", help="a torchvision classification model [vgg16]")
    arguments = parser.parse_args()
    size = arguments.image_size or IMAGE_SIZE
    study = common.Study("order", arguments, both=True)
    models = in_both_orders(build_model(arguments.model, CLASSES), arguments.model)
    batches = {device: study.batch(device, BATCH, BATCH_ON_CPU) for device in study.devices}
    for batch in dict.fromkeys(batches.values()):
        check_images(arguments.model, size, batch, CLASSES)
    for device, batch in batches.items():
        name = device_name(device)
        with study.within_memory(f"batch {batch} on {name}"):
            with torch.device(device):
                images, labels = torch.randn(batch, 3, size, size), torch.randint(CLASSES, (batch,))
            with torch.no_grad():  # without dropout, whose choice would differ
                one, other = (model.to(device).eval()(images) for model in models.values())
            difference = float((one - other).abs().max())
            del one, other
            loss = partial(functional.cross_entropy, target=labels)
            steps = {case: common.Passes(model.train(), images, loss) for case, model in models.items()}
            timed = common.time_cases(
                device,
                {case: [step.forward, step.backward] for case, step in steps.items()},
                PASSES,
                arguments,
            )
            weights = nn.ModuleList(models.values()).parameters()
            known = {tensor.untyped_storage().data_ptr() for tensor in weights}
            for case, step in steps.items():
                peak, _ = common.peak_and_retained(step)
                study.case(
                    case, name, timed[case], batch=batch, image_size=size, pairs=len(pairs(models[case])),
                    activation_memory_bytes=common.saved_bytes(step.forward, known), peak_memory_bytes=peak,
                    same_output=difference == 0, largest_difference=difference,
                )  # fmt: skip
    study.finish()


def in_both_orders(model: nn.Module, name: str) -> dict[str, fx.GraphModule]:
    """The model with every pair in one order, and in the other; they share their weights."""
    try:
        models = {case: fx.symbolic_trace(model) for case in ORDERS}
    except (fx.proxy.TraceError, TypeError, RuntimeError) as error:
        reason = " ".join(str(error).split())[:200]
        raise UserError(f"torch.fx cannot follow {name}, whose path depends on its data: {reason}") from None
    if not pairs(models[f"{RELU}, {POOL}"]):
        raise UserError(f"{name} has no {RELU} beside a {POOL}: there is no order to change; try vgg16")
    for case, first in ORDERS.items():
        put_first(models[case], first)
    return models


def pairs(model: fx.GraphModule) -> list[tuple[fx.Node, fx.Node]]:
    """Neighbours of which one is a ReLU and one a pooling, and the first is for the second alone."""
    alone = [node for node in model.graph.nodes if len(node.all_input_nodes) == 1]
    both = [(node.all_input_nodes[0], node) for node in alone if len(node.all_input_nodes[0].users) == 1]
    return [two for two in both if {_kind(model, node) for node in two} == {RELU, POOL}]


def _kind(model: fx.GraphModule, node: fx.Node) -> str | None:
    if node.op == "call_module":
        layer = model.get_submodule(str(node.target))
        if isinstance(layer, nn.MaxPool2d):
            return None if layer.return_indices else POOL
        return RELU if isinstance(layer, nn.ReLU) else None
    if node.op == "call_function" and callable(node.target):
        return _FUNCTIONS.get(node.target) if not node.kwargs.get("return_indices") else None
    return RELU if node.op == "call_method" and node.target in ("relu", "relu_") else None


def put_first(model: fx.GraphModule, first: str) -> None:
    """Swap the pairs that do not begin with ``first``."""
    for before, after in pairs(model):
        source = before.all_input_nodes[0]
        # A ReLU that works in place would change what others read.
        if _kind(model, before) == first or (first == RELU and len(source.users) > 1):
            continue
        after.replace_all_uses_with(before)
        after.replace_input_with(before, source)
        before.replace_input_with(source, after)
        before.prepend(after)
    model.graph.lint()
    model.recompile()


if __name__ == "__main__":
    run_command(main)
