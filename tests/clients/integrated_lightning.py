"""Lightning's Trainer with our callback: it counts tokens, logs, validates the global weights, and
finishes."""

from __future__ import annotations

import csv
import logging
from typing import Any

import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.callbacks import EMAWeightAveraging, ModelCheckpoint
from lightning.pytorch.loggers import CSVLogger
from torch import Tensor, nn
from torch.nn import functional as F
from torch.optim import AdamW
from torch.utils.data import DataLoader

from mend_optim.integrations.lightning import MendCallback
from tests.clients.integrated import Evaluations, Tokens, finished
from tests.clients.session import STEPS, Facts, Session, digest, serve

MICRO_BATCHES, LENGTH, EVERY = 2, 8, 4


class Net(nn.Module):
    """Predicts the next number of a row."""

    def __init__(self) -> None:
        super().__init__()
        with torch.random.fork_rng():
            torch.manual_seed(7)
            self.embedding, self.head = nn.Embedding(32, 8), nn.Linear(8, 32)

    def forward(self, *, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        logits = self.head(self.embedding(input_ids))[:, :-1]
        losses = F.cross_entropy(logits.transpose(1, 2), input_ids[:, 1:], reduction="none")
        weights = attention_mask[:, 1:]
        return (losses * weights).sum() / weights.sum()


class Rows(LightningModule):
    """Makes its optimizer where Lightning asks for it."""

    def __init__(self, session: Session) -> None:
        super().__init__()
        self.net = Net()
        self.session = session
        self.evaluations: Evaluations | None = None

    def training_step(self, batch: dict[str, Tensor], index: int) -> Tensor:
        return self.net(**batch)

    def validation_step(self, batch: dict[str, Tensor], index: int) -> None:
        self.log("validated", self.net(**batch))

    def configure_optimizers(self) -> Any:
        optimizer = self.session.wrap(AdamW(self.parameters(), lr=0.01))
        self.evaluations = Evaluations(self.net, optimizer)
        return optimizer


class Manual(Rows):
    """Steps by itself, without a closure."""

    def __init__(self, session: Session) -> None:
        super().__init__(session)
        self.automatic_optimization = False

    def training_step(self, batch: dict[str, Tensor], index: int) -> Tensor:
        optimizer = self.optimizers()
        optimizer.zero_grad()
        loss = self.net(**batch)
        self.manual_backward(loss)
        optimizer.step()
        return loss


class Steps(Callback):
    """Tells when own weights must be in place."""

    def on_train_batch_end(self, trainer: Trainer, module: Any, *_: Any) -> None:
        module.evaluations.stepped()

    def on_train_batch_start(self, trainer: Trainer, module: Any, *_: Any) -> None:
        module.evaluations.goes_on()


def rows(session: Session, count: int) -> list[dict[str, Tensor]]:
    """Numbers that count up, of several lengths, padded to one."""
    draws = torch.Generator().manual_seed(session.me)
    made = []
    for _ in range(count):
        start = int(torch.randint(0, 24, (1,), generator=draws))
        length = int(torch.randint(3 + session.me, LENGTH + 1, (1,), generator=draws))
        mask = (torch.arange(LENGTH) < length).long()
        made.append({"input_ids": (start + torch.arange(LENGTH)) % 32, "attention_mask": mask})
    return made


class Average(EMAWeightAveraging):
    """Tells which weights are in place before it puts the average there, and afterwards."""

    def __init__(self) -> None:
        super().__init__(decay=0.5)
        self.seen: dict[str, Any] = {}

    def on_train_end(self, trainer: Trainer, pl_module: Any) -> None:
        self.seen["ended_on"] = digest(pl_module.net.state_dict().values())
        super().on_train_end(trainer, pl_module)
        assert self._average_model is not None
        self.seen["average"] = digest(self._average_model.module.net.state_dict().values())

    def on_validation_epoch_start(self, trainer: Trainer, pl_module: Any) -> None:
        assert self._average_model is not None
        average = digest(self._average_model.module.net.state_dict().values())
        super().on_validation_epoch_start(trainer, pl_module)
        self.seen["validated"] = digest(pl_module.net.state_dict().values()) == average


def fit(session: Session, module: Rows, steps: int, *others: Callback, **options: Any) -> Facts:
    callback = MendCallback()
    keeper = ModelCheckpoint(session.folder, "last", save_top_k=1, every_n_train_steps=steps)
    tokens = Tokens(module.net, "attention_mask")
    trainer = Trainer(
        max_steps=steps,
        accelerator="cpu",
        devices=1,
        callbacks=[callback, Steps(), *others, keeper],
        logger=CSVLogger(session.folder),
        log_every_n_steps=3,
        val_check_interval=EVERY,
        check_val_every_n_epoch=None,
        enable_progress_bar=False,
        enable_model_summary=False,
        **options,
    )
    data = DataLoader(rows(session, 2 * STEPS * MICRO_BATCHES), batch_size=2)
    trainer.fit(module, data, DataLoader(rows(session, 4), batch_size=2))
    (finish,) = callback.finished.values()
    assert finish is not None
    assert module.evaluations is not None
    assert trainer.log_dir is not None
    with open(f"{trainer.log_dir}/metrics.csv") as file:
        logged = [row for row in csv.DictReader(file) if row.get("mend/steps")]
    return {
        **finished(session, module.net, finish),
        "expected_tokens": tokens.seen,
        "evaluations": module.evaluations.seen,
        "resumed": module.evaluations.resumed,
        "logged": [[int(row["step"]), float(row["mend/steps"])] for row in logged],
        "state": digest(module.net.state_dict().values()),
    }


def automatic(session: Session) -> Facts:
    """Gradients are accumulated, and one learner has more to train than the other."""
    steps = STEPS + 6 * session.me
    return fit(session, Rows(session), steps, accumulate_grad_batches=MICRO_BATCHES)


def manual(session: Session) -> Facts:
    return fit(session, Manual(session), STEPS)


def averaged(session: Session) -> Facts:
    """Another callback averages the learner's own weights."""
    average = Average()
    return {**fit(session, Rows(session), STEPS, average), **average.seen}


if __name__ == "__main__":
    logging.getLogger("lightning.pytorch").setLevel(logging.WARNING)
    serve(automatic, manual, averaged)
