"""A program of a user's: what timm's training script does, with its loader, scaler and averaged model."""

import timm
import torch
from PIL import Image
from timm.data import create_loader
from timm.loss import LabelSmoothingCrossEntropy
from timm.optim import create_optimizer_v2
from timm.scheduler import CosineLRScheduler
from timm.utils import AverageMeter, ModelEmaV3, NativeScaler, accuracy


class Images(torch.utils.data.Dataset):
    """Grey images of 10 classes; timm's loader gives it a transform."""

    transform = None

    def __init__(self, samples: int) -> None:
        self.samples = samples

    def __len__(self) -> int:
        return self.samples

    def __getitem__(self, index: int):
        return self.transform(Image.new("RGB", (40, 40), (index % 256,) * 3)), index % 10


torch.set_num_threads(1)
model = timm.create_model("resnet10t", num_classes=10)
common = {"input_size": (3, 32, 32), "num_workers": 1, "use_prefetcher": False, "persistent_workers": False}
train = create_loader(Images(32), batch_size=4, is_training=True, **common)
evaluation = create_loader(Images(8), batch_size=4, is_training=False, **common)
optimizer = create_optimizer_v2(model, opt="adamw", lr=1e-3)
averaged, scaler = ModelEmaV3(model, decay=0.9), NativeScaler(device="cpu")
schedule = CosineLRScheduler(optimizer, t_initial=2)
criterion = LabelSmoothingCrossEntropy()
for epoch in range(2):
    model.train()
    losses = AverageMeter()
    for step, (images, labels) in enumerate(train):
        loss = criterion(model(images), labels)
        optimizer.zero_grad()
        scaler(loss, optimizer, clip_grad=1.0, parameters=model.parameters())
        averaged.update(model, step=epoch * len(train) + step)
        losses.update(loss.item(), images.size(0))
    for one in (model, averaged.module):
        one.eval()
        with torch.no_grad():
            for images, labels in evaluation:
                accuracy(one(images), labels)
    schedule.step(epoch + 1)
