"""A program of a user's: Lightning, which computes within the optimizer's step, and validates."""

import sys

import lightning
import torch
from torch.utils.data import DataLoader, TensorDataset


class Classifier(lightning.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.net = torch.nn.Sequential(torch.nn.Linear(16, 32), torch.nn.ReLU(), torch.nn.Linear(32, 4))

    def training_step(self, batch, index):
        inputs, labels = batch
        return torch.nn.functional.cross_entropy(self.net(inputs), labels)

    def validation_step(self, batch, index):
        self.log("loss", self.training_step(batch, index), sync_dist=True)

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=1e-3)


def loader(samples: int) -> DataLoader:
    return DataLoader(TensorDataset(torch.randn(samples, 16), torch.randint(0, 4, (samples,))), batch_size=4)


torch.set_num_threads(1)
trainer = lightning.Trainer(
    accelerator="cpu", devices=int(sys.argv[2]), strategy=sys.argv[3], max_epochs=2, logger=False,
    enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False,
    default_root_dir=sys.argv[1],
)  # fmt: skip
trainer.fit(Classifier(), loader(40 * trainer.world_size), loader(16 * trainer.world_size))
