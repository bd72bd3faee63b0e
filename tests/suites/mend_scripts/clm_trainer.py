"""A causal language model in transformers' `Trainer`, as in `run_clm`: training, evaluation, a
checkpoint, and a second `Trainer` that goes on from it."""

from __future__ import annotations

from pathlib import Path

import torch
from torch.optim import AdamW
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments

from .char_gpt import text
from .swap import Swap

BLOCK, STEPS = 32, 32


def blocks() -> list[dict[str, torch.Tensor]]:
    letters = sorted(set(text()))
    ids = torch.tensor([letters.index(letter) for letter in text()])
    rows = ids[: len(ids) // BLOCK * BLOCK].view(-1, BLOCK)
    return [{"input_ids": row, "labels": row} for row in rows]


def trainer(swap: Swap, folder: Path, seed: int, steps: int) -> Trainer:
    config = GPT2Config(vocab_size=64, n_positions=BLOCK, n_embd=32, n_layer=2, n_head=4)
    model = GPT2LMHeadModel(config)
    rows = blocks()
    return Trainer(
        model=model,
        args=TrainingArguments(
            output_dir=str(folder),
            max_steps=steps,
            per_device_train_batch_size=4,
            gradient_accumulation_steps=2,
            learning_rate=1e-3,
            warmup_steps=4,
            save_steps=STEPS // 2,
            logging_steps=1,
            use_cpu=True,
            report_to=[],
            disable_tqdm=True,
            seed=seed,
        ),
        train_dataset=rows[4:],
        eval_dataset=rows[:4],
        optimizers=(swap(AdamW(model.parameters(), lr=1e-3)), None),
    )


def losses(trainer: Trainer) -> list[float]:
    return [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]


def begun(swap: Swap, folder: Path, seed: int) -> list[float]:
    first = trainer(swap, folder, seed, STEPS // 2)
    first.train()
    return losses(first)


def train(swap: Swap, folder: Path, seed: int) -> list[float]:
    before = begun(swap, folder, seed)
    again = trainer(swap, folder, seed, STEPS)
    again.train(resume_from_checkpoint=str(folder / f"checkpoint-{STEPS // 2}"))
    return [*before, *losses(again), again.evaluate()["eval_loss"]]
