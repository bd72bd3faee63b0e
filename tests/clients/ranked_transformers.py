"""The Trainer of transformers, with DDP over the ranks of a torchrun, or in one process."""

from __future__ import annotations

from typing import Any

import torch
from transformers import Trainer, TrainingArguments

from mend_optim.integrations.transformers import MendTrainerCallback
from tests.clients.ranked_session import RANKS, STEPS, Part, play
from tests.clients.transformers_trainer import TOKENS, model


def train(part: Part) -> dict[str, Any]:
    args = TrainingArguments(
        output_dir=str(part.folder),
        max_steps=part.steps,
        per_device_train_batch_size=2,
        eval_strategy="steps",
        eval_steps=3,
        save_strategy="steps",
        save_steps=STEPS,
        logging_steps=2,
        use_cpu=True,
        ddp_backend="gloo" if RANKS > 1 else None,
        report_to=[],
        disable_tqdm=True,
    )
    net = model(0)
    starts = torch.arange(64).reshape(64, 1)
    rows = list((starts + torch.arange(TOKENS)) % 32)
    data = [{"input_ids": row, "labels": row} for row in rows]
    trainer = Trainer(
        model=net,
        args=args,
        train_dataset=data,
        eval_dataset=data[:8],
        optimizers=(part.wrap(net), None),
    )
    callback = MendTrainerCallback.attach(trainer)
    former = str(part.folder / f"checkpoint-{STEPS}") if part.number else None
    trainer.train(resume_from_checkpoint=former)
    assert callback.finished is not None
    logged = [line["mend/steps"] for line in trainer.state.log_history if "loss" in line]
    return {**part.ended(net, callback.finished), "logged": logged}


if __name__ == "__main__":
    play(train)
