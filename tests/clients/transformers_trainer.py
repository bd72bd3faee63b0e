"""The Trainer of transformers: a tiny model with random weights, checkpoints, and going on from a
checkpoint."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch.optim import AdamW
from transformers import (
    GPT2Config,
    GPT2LMHeadModel,
    Trainer,
    TrainerCallback,
    TrainingArguments,
    get_linear_schedule_with_warmup,
)

from tests.clients.session import STEPS, Facts, Session, gradient_norm, serve, watch

MICRO_BATCHES, TOKENS, LR, WARMUP = 2, 8, 0.01, 4


class Diary(TrainerCallback):  # type: ignore[misc]
    """Records what a callback sees."""

    def __init__(self) -> None:
        self.steps = self.micro_batches = 0
        self.saved: list[int] = []

    def on_substep_end(self, *_: Any, **__: Any) -> None:
        self.micro_batches += 1

    def on_step_end(self, *_: Any, **__: Any) -> None:
        self.micro_batches += 1
        self.steps += 1

    def on_save(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self.saved.append(state.global_step)


def model(seed: int) -> GPT2LMHeadModel:
    torch.manual_seed(seed)
    return GPT2LMHeadModel(
        GPT2Config(vocab_size=32, n_positions=TOKENS, n_embd=16, n_layer=1, n_head=2)
    )


def texts(session: Session) -> list[dict[str, torch.Tensor]]:
    """Numbers that count up, from this learner's own starting point."""
    starts = torch.randint(0, 24, (64,), generator=torch.Generator().manual_seed(session.me))
    rows = [(start + torch.arange(TOKENS)) % 32 for start in starts]
    return [{"input_ids": row, "labels": row} for row in rows]


def run(session: Session, net: GPT2LMHeadModel, steps: int, resume: Path | None = None) -> Facts:
    """Train up to step number `steps` of a schedule for twice `STEPS`; two runs of a scene share
    one folder."""
    wrapped = session.wrap(AdamW(net.parameters(), lr=LR))
    clipped, diary = watch(wrapped, gradient_norm), Diary()
    trainer = Trainer(
        model=net,
        args=TrainingArguments(
            output_dir=str(session.folder),
            max_steps=steps,
            per_device_train_batch_size=4,
            max_grad_norm=0.5,
            gradient_accumulation_steps=MICRO_BATCHES,
            save_steps=STEPS // 2,
            logging_steps=1,
            use_cpu=True,
            report_to=[],
            disable_tqdm=True,
            seed=session.me,
        ),
        train_dataset=texts(session),
        optimizers=(wrapped, get_linear_schedule_with_warmup(wrapped, WARMUP, 2 * STEPS)),
        callbacks=[diary],
    )
    trainer.train(resume_from_checkpoint=str(resume) if resume else None)
    settled = session.settle()
    logs = [entry for entry in trainer.state.log_history if "grad_norm" in entry]
    return session.outcome(
        net,
        settled=settled,
        clipped=clipped,
        global_step=trainer.state.global_step,
        rates=[entry["learning_rate"] for entry in logs],
        losses=[entry["loss"] for entry in logs],
        **vars(diary),
    )


def train(session: Session) -> Facts:
    """Train, then go on from the learner's own last checkpoint, whose weights are those of a moment
    between two merges."""
    first = run(session, model(0), STEPS)
    session.leave()
    resumed = run(session, model(1), 2 * STEPS, session.folder / f"checkpoint-{STEPS}")
    return {"first": first, "resumed": resumed}


if __name__ == "__main__":
    serve(train)
