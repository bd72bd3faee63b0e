"""The cost of MendOptimizer without peers: its `step()` compared with the inner optimizer's own.

Both take steps with the same AdamW on the same tensors, in turns."""

from __future__ import annotations

import time
from collections.abc import Iterator

import torch
from torch.optim import AdamW, Optimizer

from bench.cluster.learners import transformer
from bench.result import Result, compared
from mend_optim import MendOptimizer

WIDTH, LAYERS = 64, 8  # 0.4 M elements in 96 tensors
STEPS, REPEATS, WARM = 5, 200, 10


def _step_s(optimizer: Optimizer) -> float:
    """The seconds of one step, averaged over a few."""
    started = time.perf_counter()
    for _ in range(STEPS):
        optimizer.step()
    return (time.perf_counter() - started) / STEPS


def run() -> Iterator[Result]:
    torch.set_num_threads(1)
    parameters = transformer(WIDTH, LAYERS)
    for parameter in parameters:
        parameter.grad = torch.randn_like(parameter)
    bare = AdamW(parameters, lr=1e-9)
    wrapped = MendOptimizer(bare)
    steps, floors = [], []
    for turn in range(WARM + REPEATS):
        order = (bare, wrapped) if turn % 2 else (wrapped, bare)
        took = {optimizer: _step_s(optimizer) for optimizer in order}
        steps.append(1e6 * took[wrapped])
        floors.append(1e6 * took[bare])
    notes = f"AdamW, 0.4 M float32 in 96 tensors, {STEPS} steps a repeat"
    yield compared(
        "alone",
        "step() without peers",
        "us",
        steps[WARM:],
        floors[WARM:],
        goal="<= 1.02",
        notes=notes,
    )
