"""Which network is trained, and how much arithmetic one of its images is."""

import pytest
import torch

from jobs.run import model_names
from profiling.errors import UserError
from train.models import CLASSES, build_model, check_images, flops_per_image, import_torchvision

# (forward, training) GFLOP an image at 224 x 224. ResNet50's are docs/methods.md's; the others are twice
# the multiply-adds that torchvision states beside its weights, and three times that less the first layer's.
GFLOP = {
    "resnet50": (8.18, 24.3),
    "vgg16": (2 * 15.47, 3 * 2 * 15.47 - 2 * 224 * 224 * 64 * 27 / 1e9),
    "alexnet": (2 * 0.714, 3 * 2 * 0.714 - 2 * 55 * 55 * 64 * 363 / 1e9),
    "resnet18": (2 * 1.814, 3 * 2 * 1.814 - 2 * 112 * 112 * 64 * 147 / 1e9),
}
PARAMETERS = {"resnet50": 25_557_032, "vgg16": 138_357_544, "alexnet": 61_100_840, "resnet18": 11_689_512}


@pytest.mark.parametrize("name", GFLOP)
def test_flops_of_an_image(name):
    with torch.device("meta"):  # no weights are drawn
        model = build_model(name)
    forward, training = flops_per_image(model, 224)
    assert sum(parameter.numel() for parameter in model.parameters()) == PARAMETERS[name]
    assert forward / 1e9 == pytest.approx(GFLOP[name][0], rel=2e-3)
    assert training / 1e9 == pytest.approx(GFLOP[name][1], rel=2e-3)


def test_every_model_gives_one_score_a_class():
    """The two that would return auxiliary scores in training do not."""
    for name in ("googlenet", "inception_v3", "mobilenet_v3_small"):
        with torch.device("meta"):
            scores = build_model(name)(torch.empty(2, 3, 299, 299))
        assert isinstance(scores, torch.Tensor) and scores.shape == (2, CLASSES)


def test_a_near_miss_is_named():
    with pytest.raises(UserError, match="no torchvision classification model 'vgg_16'; did you mean 'vgg16'"):
        build_model("vgg_16")
    models = import_torchvision().models
    assert model_names() == models.list_models(module=models)


def test_images_that_a_model_cannot_take_are_explained():
    check_images("resnet50", 32, 2)
    for name, size, batch in (("alexnet", 32, 2), ("resnet50", 32, 1), ("vit_b_16", 64, 2)):
        told = f"^{name} does not take batch {batch} of {size} x {size} images: .+"
        with pytest.raises(UserError, match=told):
            check_images(name, size, batch)
