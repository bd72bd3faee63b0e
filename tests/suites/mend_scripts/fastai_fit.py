"""A `Learner` of fastai: `lr_find`, `fit_one_cycle`, saved and loaded, and once more."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import torch
from fastai.callback.schedule import lr_find  # noqa: F401  (it is a method of `Learner` from here on)
from fastai.data.core import DataLoaders
from fastai.data.load import DataLoader
from fastai.learner import Learner
from fastai.optimizer import OptimWrapper
from torch import nn
from torch.nn import functional as F
from torch.optim import AdamW

from .swap import Swap

EPOCHS, BATCH = 3, 16


def loaders() -> DataLoaders:
    inputs = torch.randn(256, 8)
    targets = inputs.sin().sum(1, keepdim=True)
    rows = list(zip(inputs, targets, strict=True))
    return DataLoaders(
        DataLoader(rows[:192], bs=BATCH, shuffle=True), DataLoader(rows[192:], bs=BATCH)
    )


def train(swap: Swap, folder: Path, seed: int) -> list[float]:
    learner = Learner(
        loaders(),
        nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 1)),
        loss_func=F.mse_loss,
        opt_func=partial(OptimWrapper, opt=swap.of(AdamW)),
        path=folder,
    )
    losses: list[float] = []
    with learner.no_bar(), learner.no_logging():
        found = learner.lr_find(num_it=30, show_plot=False)
        for _ in range(2):
            learner.fit_one_cycle(EPOCHS, lr_max=3e-3)
            losses += [float(loss) for loss in learner.recorder.losses]
            learner.save("stage")
            learner.load("stage")
        losses += [float(figure) for figure in learner.validate()]
    return [float(found.valley), *losses]
