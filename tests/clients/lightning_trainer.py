"""Lightning's Trainer: automatic optimization, which steps through a closure, and manual
optimization."""

from __future__ import annotations

import logging
from typing import Any

import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.callbacks import LearningRateMonitor, ModelCheckpoint
from lightning.pytorch.loggers import CSVLogger
from torch import Tensor
from torch.nn import functional as F
from torch.optim import AdamW
from torch.optim.lr_scheduler import LambdaLR
from torch.utils.data import DataLoader, TensorDataset

from tests.clients.session import (
    STEPS,
    Facts,
    Session,
    examples,
    gradient_norm,
    network,
    serve,
    watch,
)

MICRO_BATCHES = 2  # of one step


class Regression(LightningModule):
    """Makes its optimizer where Lightning asks for it: the wrapped one of a session, or a plain
    one."""

    def __init__(self, session: Session | None) -> None:
        super().__init__()
        self.net = network()
        self.session = session
        self.clipped: list[float] = []

    def loss(self, batch: list[Tensor]) -> Tensor:
        inputs, targets = batch
        return F.mse_loss(self.net(inputs), targets)

    def on_train_start(self) -> None:
        """Join before the first of the micro-batches, whose gradients a join in the step may drop:
        the other learner may be some rounds ahead."""
        if self.automatic_optimization and self.session and self.session.optimizer:
            self.session.optimizer.join()

    def training_step(self, batch: list[Tensor], index: int) -> Tensor:
        loss = self.loss(batch)
        self.log("loss", loss)
        return loss

    def configure_optimizers(self) -> Any:
        plain = AdamW(self.parameters(), lr=0.01)
        optimizer = self.session.wrap(plain) if self.session else plain
        self.clipped = watch(optimizer, gradient_norm)
        schedule = LambdaLR(optimizer, lambda step: 1 / (1 + step))
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}


class Manual(Regression):
    """Calls the optimizer's proxy itself, without a closure."""

    def __init__(self, session: Session | None) -> None:
        super().__init__(session)
        self.automatic_optimization = False

    def training_step(self, batch: list[Tensor], index: int) -> None:  # type: ignore[override]
        optimizer = self.optimizers()
        optimizer.zero_grad()
        self.manual_backward(self.loss(batch))
        self.clip_gradients(optimizer, gradient_clip_val=0.1, gradient_clip_algorithm="norm")
        optimizer.step()
        self.lr_schedulers().step()


class Diary(Callback):
    """Records what a callback sees."""

    def __init__(self) -> None:
        self.batches = self.steps = self.epochs = 0
        self.rates: list[float] = []

    def on_before_optimizer_step(
        self, trainer: Trainer, module: LightningModule, optimizer: Any
    ) -> None:
        self.steps += 1
        self.rates.append(optimizer.param_groups[0]["lr"])

    def on_train_batch_end(self, *_: Any) -> None:
        self.batches += 1

    def on_train_epoch_end(self, *_: Any) -> None:
        self.epochs += 1


def fit(
    session: Session,
    module: Regression,
    folder: str,
    steps: int = STEPS,
    resume: str = "",
    **options: Any,
) -> Facts:
    """Run up to step number `steps`, from the learner's own checkpoint `resume`; returns the
    results."""
    place = session.folder / folder
    diary = Diary()
    keeper = ModelCheckpoint(place, "{step}", every_n_train_steps=STEPS // 2, save_top_k=-1)
    trainer = Trainer(
        max_steps=steps,
        accelerator="cpu",
        devices=1,
        callbacks=[diary, keeper, LearningRateMonitor("step")],
        logger=CSVLogger(place, flush_logs_every_n_steps=1),
        log_every_n_steps=1,
        enable_progress_bar=False,
        enable_model_summary=False,
        **options,
    )
    data = DataLoader(TensorDataset(*examples(session, STEPS * 4)), batch_size=4)
    trainer.fit(module, data, ckpt_path=session.folder / resume if resume else None)
    seen = {
        "global_step": trainer.global_step,
        "batches": diary.batches,
        "steps": diary.steps,
        "epochs": diary.epochs,
        "rates": diary.rates,
        "files": sorted(path.name for path in place.glob("*.ckpt")),
    }
    if not session.optimizer:
        trainer.save_checkpoint(place / "merged.ckpt")
        return seen
    settled = session.settle()
    with session.optimizer.global_weights():
        trainer.save_checkpoint(place / "merged.ckpt")
    return session.outcome(module.net, settled=settled, clipped=module.clipped, seen=seen)


def automatic(session: Session) -> Facts:
    """Train with clipped and accumulated gradients, then go on from the checkpoint in a new trainer
    and optimizer. Before that, do the same alone with a plain optimizer: everything visible from
    outside must be the same."""
    options = {"accumulate_grad_batches": MICRO_BATCHES, "gradient_clip_val": 0.1}
    plain = fit(session, Regression(None), "plain", **options)
    plain_resumed = fit(
        session, Regression(None), "plain2", 2 * STEPS, "plain/merged.ckpt", **options
    )
    first = fit(session, Regression(session), "first", **options)
    session.leave()
    module = Regression(session)
    torch.nn.init.zeros_(module.net[0].weight)  # the checkpoint's weights take its place
    resumed = fit(session, module, "second", 2 * STEPS, "first/merged.ckpt", **options)
    return {"plain": plain, "plain_resumed": plain_resumed, "first": first, "resumed": resumed}


def manual(session: Session) -> Facts:
    return fit(session, Manual(session), "run")


def newcomer(session: Session) -> Facts:
    """A learner starts from other weights, which its first step replaces: the gradient of those
    weights must not be used."""
    module = Manual(session)
    if session.me:
        torch.nn.init.zeros_(module.net[0].weight)
    return fit(session, module, "run")


if __name__ == "__main__":
    logging.getLogger("lightning.pytorch").setLevel(logging.WARNING)
    serve(automatic, manual, newcomer)
