"""The loop of Accelerate, with DDP over the ranks of a torchrun, or in one process."""

from __future__ import annotations

from typing import Any

import torch
from accelerate import Accelerator
from torch.utils.data import DataLoader

from tests.clients.ranked_session import STEPS, Part, play
from tests.clients.session import network

MICRO_BATCHES = 2  # of one step, of one row each


def train(part: Part) -> dict[str, Any]:
    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=MICRO_BATCHES)
    net = network()
    wrapped = part.wrap(net)
    loader = DataLoader(torch.randn(64, 8), batch_size=1)
    model, optimizer, rows = accelerator.prepare(net, wrapped, loader)
    if part.number:
        accelerator.load_state(str(part.folder / "0"))
    logged: list[int] = []
    batches = iter(rows)
    for _ in range(STEPS * MICRO_BATCHES):
        row = next(batches)
        wrapped.count_tokens(len(row))
        with accelerator.accumulate(model):
            accelerator.backward((model(row) - row.sum(1, keepdim=True).sin()).square().mean())
            optimizer.step()
            optimizer.zero_grad()
        step = wrapped.status().step
        if accelerator.sync_gradients and step % 2 == 0:
            logged.append(step)
    accelerator.save_state(str(part.folder / str(part.number)))
    ended = part.ended(net, wrapped.finish())
    accelerator.free_memory()
    return {**ended, "logged": logged}


if __name__ == "__main__":
    play(train)
