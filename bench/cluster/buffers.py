"""Batch norm in three learners whose data differ, or not: the loss of the global weights with the
statistics of all, beside that with each learner's own.

The learners are threads in lockstep. Their inputs have other means, `shift` apart. The held-out
data are of all three."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import torch
from torch import Generator, Tensor, nn
from torch.optim import AdamW

from bench.result import Result, plain
from mend_optim import MendOptimizer

LEARNERS, STEPS, SYNC_EVERY, LATE, SEEDS = 3, 400, 20, 5, (0, 1, 2)
INPUTS, CLASSES, BATCH, HELD_OUT = 10, 4, 32, 2000


def run() -> Iterator[Result]:
    torch.set_num_threads(1)
    for shift in (0.0, 1.0):
        for merged in (False, True):
            losses = [loss for seed in SEEDS for loss in final_losses(shift, merged, seed)]
            what = f"means {shift:g} apart, buffers {'merged' if merged else 'local'}"
            notes = f"{LEARNERS} learners, {STEPS} steps, {SYNC_EVERY} between rounds"
            yield plain("buffers", f"{what}: held-out loss", "nats", losses, notes=notes)


def final_losses(shift: float, merged: bool, seed: int) -> list[float]:
    """The held-out loss of the global weights at each learner."""
    held_out = [_draw(_generator(5000 + i), HELD_OUT, shift * (i - 1)) for i in range(LEARNERS)]
    inputs, labels = (torch.cat(parts) for parts in zip(*held_out, strict=True))
    models = [_model() for _ in range(LEARNERS)]
    made: list[MendOptimizer] = []
    for i, model in enumerate(models):
        optimizer = MendOptimizer(
            AdamW(model.parameters(), lr=3e-3),
            name=f"learner-{i}",
            listen="127.0.0.1:0",
            peers=[made[0].status().address] if made else [],
            sync_every=SYNC_EVERY,
            adopt_after=LATE,
            buffers=model if merged else None,
        )
        made.append(optimizer)
    losses = [0.0] * LEARNERS

    def train(i: int) -> None:
        model, optimizer, draws = models[i], made[i], _generator(10 * seed + i)
        for _ in range(STEPS):
            batch, labelled = _draw(draws, BATCH, shift * (i - 1))
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(batch), labelled).backward()
            optimizer.step()
        model.eval()
        with optimizer.global_weights(), torch.no_grad():
            losses[i] = nn.functional.cross_entropy(model(inputs), labels).item()
        optimizer.finish()

    # The first one knows of nobody: it would train alone until the others come.
    made[0].join()
    for optimizer in made[1:]:
        optimizer.join()
    threads = [threading.Thread(target=train, args=(i,)) for i in range(LEARNERS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return losses


def _generator(seed: int) -> Generator:
    return Generator().manual_seed(seed)


def _model() -> nn.Module:
    torch.manual_seed(0)
    width = 32
    return nn.Sequential(
        nn.Linear(INPUTS, width),
        nn.BatchNorm1d(width),
        nn.ReLU(),
        nn.Linear(width, width),
        nn.BatchNorm1d(width),
        nn.ReLU(),
        nn.Linear(width, CLASSES),
    )


def _draw(draws: Generator, count: int, mean: float) -> tuple[Tensor, Tensor]:
    """Inputs and their classes, by a rule that all learners share."""
    inputs = torch.randn(count, INPUTS, generator=draws) + mean
    rule = torch.randn(INPUTS, CLASSES, generator=_generator(99))
    return inputs, (inputs @ rule + inputs[:, :CLASSES] ** 2).argmax(1)
