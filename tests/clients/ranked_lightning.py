"""The Trainer of Lightning, with DDP over the ranks of a torchrun, or in one process."""

from __future__ import annotations

import csv
from typing import Any

import torch
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import ModelCheckpoint
from lightning.pytorch.loggers import CSVLogger
from torch import Tensor
from torch.utils.data import DataLoader

from mend_optim.integrations.lightning import MendCallback
from tests.clients.ranked_session import RANK, RANKS, STEPS, Part, play
from tests.clients.session import network


class Regression(LightningModule):
    def __init__(self, part: Part) -> None:
        super().__init__()
        self.net = network()
        self.part = part

    def training_step(self, rows: Tensor, index: int) -> Tensor:
        return (self.net(rows) - rows.sum(1, keepdim=True).sin()).square().mean()

    def validation_step(self, rows: Tensor, index: int) -> None:
        self.log("validated", self.training_step(rows, index), sync_dist=True)

    def configure_optimizers(self) -> Any:
        return self.part.wrap(self.net)


def train(part: Part) -> dict[str, Any]:
    module, callback = Regression(part), MendCallback(count=len)
    place = part.folder / str(part.number)
    trainer = Trainer(
        max_steps=part.steps,
        accelerator="cpu",
        devices=RANKS,
        strategy="ddp" if RANKS > 1 else "auto",
        callbacks=[callback, ModelCheckpoint(place, "{step}", every_n_train_steps=STEPS)],
        logger=CSVLogger(place),
        log_every_n_steps=2,
        val_check_interval=3,
        check_val_every_n_epoch=None,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    rows = torch.randn(64, 8)
    former = part.folder / "0" / f"step={STEPS}.ckpt" if part.number else None
    trainer.fit(module, DataLoader(rows, 2), DataLoader(rows[:8], 4), ckpt_path=former)
    (finish,) = callback.finished.values()
    assert finish is not None
    logged, place_of_log = [], trainer.log_dir  # which all ranks must ask for
    if RANK == 0:  # the only one that logs
        with open(f"{place_of_log}/metrics.csv") as file:
            logged = [float(n) for row in csv.DictReader(file) if (n := row.get("mend/steps"))]
    return {**part.ended(module.net, finish), "logged": logged}


if __name__ == "__main__":
    play(train)
