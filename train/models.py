"""torchvision's classification models, and the FLOPs of one image."""

import importlib.util
import itertools
import sys
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

from jobs.run import model_names
from profiling.errors import UserError, did_you_mean

if TYPE_CHECKING:
    import torch

CLASSES = 1000

_NMS = "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor"  # arguments of both
_KEPT: list[Any] = []  # torch.library forgets what a collected Library defined


def import_torchvision() -> ModuleType:
    """torchvision, beside either build of torch.

    PyPI's is built for CUDA: beside a CPU torch it lacks two operators, which no classification model or
    transform uses. They are declared then.
    """
    if "torchvision" not in sys.modules:
        declare_missing_operators()
    import torchvision

    return torchvision


def declare_missing_operators() -> None:
    """Declare the operators of torchvision that it cannot load beside this torch."""
    import torch

    spec = importlib.util.find_spec("torchvision")
    if spec is None or spec.origin is None:
        raise UserError("torchvision is not installed; make setup installs it (or pip install -e '.[full]')")
    compiled = [file for end in ("so", "pyd") for file in sorted(Path(spec.origin).parent.glob(f"_C*.{end}"))]
    try:
        for file in compiled:
            torch.ops.load_library(str(file))
    except OSError:
        compiled = []
    if not compiled:
        library = torch.library.Library("torchvision", "DEF")
        for name in ("nms", "qnms"):
            library.define(name + _NMS)
        _KEPT.append(library)


def build_model(name: str, classes: int = CLASSES) -> "torch.nn.Module":
    """A torchvision classification model with random weights, or UserError, which names the nearest."""
    models = import_torchvision().models
    if name not in (names := model_names()):
        raise UserError(f"no torchvision classification model {name!r}{did_you_mean(name, names)}")
    # Two old models return auxiliary scores unless told otherwise, and draw their weights slowly.
    extra = {"aux_logits": False, "init_weights": True} if name in ("googlenet", "inception_v3") else {}
    return models.get_model(name, weights=None, num_classes=classes, **extra)


def flops_per_image(model: "torch.nn.Module", image_size: int) -> tuple[float, float]:
    """FLOPs of one image of ``image_size`` x ``image_size`` (1 multiply-add = 2): (forward, training).

    Counted on torch's meta device, where nothing is computed, from convolutions and matrix products alone,
    as is customary. Training is three times forward (each layer's gradients by its weights and by its inputs
    cost as much as its forward pass), less the gradient by the input of the first layer: nobody needs that.
    """
    import torch
    from torch.utils.flop_counter import FlopCounterMode

    images = torch.empty(1, 3, image_size, image_size, device="meta")
    tensors = {
        name: tensor.detach().to("meta")
        for name, tensor in itertools.chain(model.named_parameters(), model.named_buffers())
    }
    first: list[float] = []

    def count(layer: Any, _: Any, out: Any) -> None:
        # 2 x output elements x inputs an output element, of a convolution or a linear layer.
        first.append(2.0 * out.numel() * (layer.weight.numel() // layer.weight.shape[0]))

    kinds = torch.nn.Conv2d | torch.nn.Linear
    hooks = [module.register_forward_hook(count) for module in model.modules() if isinstance(module, kinds)]
    was_training = model.training
    model.eval()  # of one image batch norm would refuse to learn
    with torch.no_grad(), FlopCounterMode(display=False) as counter:
        torch.func.functional_call(model, tensors, (images,))
    model.train(was_training)
    for hook in hooks:
        hook.remove()
    forward = float(counter.get_total_flops())
    return forward, 3 * forward - first[0]


def check_images(name: str, image_size: int, batch: int, classes: int = CLASSES) -> None:
    """Raise UserError if a model cannot be trained with such batches; nothing is computed."""
    import torch

    with torch.device("meta"):
        model, images = build_model(name, classes), torch.empty(batch, 3, image_size, image_size)
    try:
        model(images)
    except (RuntimeError, ValueError, AssertionError) as error:
        reason = " ".join(str(error).split())[:200]
        raise UserError(
            f"{name} does not take batch {batch} of {image_size} x {image_size} images: {reason}"
        ) from None
