"""A `LightningModule`: `lr_find`, then `fit` twice. Each of them constructs the optimizer again."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.tuner import Tuner
from torch import Tensor, nn
from torch.nn import functional as F
from torch.optim import Adam
from torch.optim.lr_scheduler import StepLR
from torch.utils.data import DataLoader, TensorDataset

from .swap import Swap


class Regression(LightningModule):
    def __init__(self, swap: Swap) -> None:
        super().__init__()
        self.swap, self.lr = swap, 1e-3
        self.net = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 1))
        self.losses: list[float] = []

    def training_step(self, batch: list[Tensor], _: int) -> Tensor:
        loss = F.mse_loss(self.net(batch[0]), batch[1])
        self.losses.append(loss.item())
        return loss

    def configure_optimizers(self) -> Any:
        optimizer = self.swap(Adam(self.parameters(), lr=self.lr))
        return [optimizer], [StepLR(optimizer, 1, gamma=0.9)]


def trainer(folder: Path) -> Trainer:
    return Trainer(
        max_epochs=3,
        accelerator="cpu",
        default_root_dir=folder,
        gradient_clip_val=1.0,
        accumulate_grad_batches=2,
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )


def train(swap: Swap, folder: Path, seed: int) -> list[float]:
    inputs = torch.randn(256, 8)
    targets = inputs.sin().sum(1, keepdim=True)
    loader = DataLoader(TensorDataset(inputs, targets), batch_size=8, shuffle=True)
    model = Regression(swap)
    found = Tuner(trainer(folder)).lr_find(
        model, loader, num_training=30, early_stop_threshold=None
    )
    rate = found.suggestion() or model.lr
    for _ in range(2):
        trainer(folder).fit(model, loader)
    return [rate, *model.losses]
