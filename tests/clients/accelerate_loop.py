"""Hugging Face Accelerate: a loop over prepared objects, gradients accumulated and clipped, and its
checkpoints."""

from __future__ import annotations

from typing import Any

import torch
from accelerate import Accelerator
from accelerate.utils import ProjectConfiguration
from torch.nn import functional as F
from torch.optim import AdamW
from torch.optim.lr_scheduler import LambdaLR
from torch.utils.data import DataLoader, TensorDataset

from tests.clients.session import (
    STEPS,
    Facts,
    Session,
    digest,
    examples,
    gradient_norm,
    network,
    serve,
    watch,
)

MICRO_BATCHES = 2  # of one step


class Run:
    """One accelerator, and the objects that it prepared."""

    def __init__(self, session: Session) -> None:
        self.session = session
        project = ProjectConfiguration(
            project_dir=str(session.folder), automatic_checkpoint_naming=True
        )
        self.accelerator = Accelerator(
            cpu=True, gradient_accumulation_steps=MICRO_BATCHES, project_config=project
        )
        self.bare = network()
        wrapped = session.wrap(AdamW(self.bare.parameters(), lr=0.01))
        self.clipped = watch(wrapped, gradient_norm)
        data = DataLoader(
            TensorDataset(*examples(session, STEPS * MICRO_BATCHES * 4)), batch_size=4
        )
        schedule = LambdaLR(wrapped, lambda step: 1 / (1 + step))
        self.model, self.optimizer, self.data, self.schedule = self.accelerator.prepare(
            self.bare, wrapped, data, schedule
        )
        self.rates: list[float] = []
        self.micro_batches = self.skipped = 0

    def epoch(self) -> None:
        for inputs, targets in self.data:
            with self.accelerator.accumulate(self.model):
                self.micro_batches += 1
                self.accelerator.backward(F.mse_loss(self.model(inputs), targets))
                if self.accelerator.sync_gradients:
                    self.accelerator.clip_grad_norm_(self.model.parameters(), 0.1)
                    self.rates.append(self.schedule.get_last_lr()[0])
                self.optimizer.step()
                self.skipped += self.optimizer.step_was_skipped
                self.schedule.step()
                self.optimizer.zero_grad()

    def moments(self) -> str:
        return digest(state["exp_avg"] for state in self.optimizer.optimizer.state.values())

    def outcome(self, **facts: Any) -> Facts:
        seen = {
            "rates": [*self.rates],
            "clipped": [*self.clipped],
            "micro_batches": self.micro_batches,
        }
        return self.session.outcome(self.bare, skipped=self.skipped, **seen, **facts)


def loop(session: Session) -> Facts:
    """Train an epoch, save the state with the global weights, load it into a new run, and train one
    more epoch."""
    first = Run(session)
    first.epoch()
    settled = session.settle()
    assert session.optimizer is not None
    with session.optimizer.global_weights():
        saved = first.accelerator.save_state()
    trained = first.outcome(settled=settled, saved=str(saved), moments=first.moments())
    session.leave()
    second = Run(session)
    torch.nn.init.zeros_(second.bare[0].weight)
    second.accelerator.load_state(saved)
    loaded = second.outcome(moments=second.moments(), next_rate=second.schedule.get_last_lr()[0])
    second.epoch()
    settled = session.settle()
    return {"trained": trained, "loaded": loaded, **second.outcome(settled=settled)}


if __name__ == "__main__":
    serve(loop)
