"""The cost of `step()` with a peer, where no boundary is near: all that the training thread does in
the library at every step, and of it the watch over the weights.

The inner optimizer does nothing, so the bare one's time is that of torch's own hooks."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import closing
from functools import partial

import torch

from bench.cluster.learners import Seat, Still, run_learners, transformer
from bench.result import Result, plain
from mend_optim.model.weights_watch import WeightsWatch

WIDTH, LAYERS = 64, 8  # 0.4 M elements in 96 tensors
NEVER = 1_000_000  # steps: no boundary while this measures
STEPS, REPEATS, WARM = 100, 60, 5
GOAL = "<= 10"


def _us(work: Callable[[], object]) -> float:
    """Microseconds of one call, averaged over `STEPS`."""
    started = time.perf_counter()
    for _ in range(STEPS):
        work()
    return 1e6 * (time.perf_counter() - started) / STEPS


def _look(watch: WeightsWatch) -> None:
    watch.replaced()
    watch.stepped()


def _learn(seat: Seat) -> list[tuple[float, float, float]]:
    """For each repeat, the microseconds of the bare step, of the wrapped one, and of the watch."""
    parameters = transformer(WIDTH, LAYERS)
    for parameter in parameters:
        parameter.grad = torch.randn_like(parameter)
    bare, look = Still(parameters), partial(_look, WeightsWatch(parameters))
    rows = []
    with closing(seat.join(Still(parameters), sync_every=NEVER)) as optimizer:
        optimizer.step()  # joins
        seat.meet()
        if seat.rank == 0:  # the other one only lives
            rows = [(_us(bare.step), _us(optimizer.step), _us(look)) for _ in range(WARM + REPEATS)]
        seat.meet()
    return rows[WARM:]


def run() -> Iterator[Result]:
    rows = run_learners(_learn, 2)[0]
    notes = f"0.4 M float32 in 96 tensors, {STEPS} steps a repeat"
    whole = [step - bare for bare, step, _ in rows]
    watch = [look for _, _, look in rows]
    yield plain("step", "with a peer, between boundaries, over the bare step", "us", whole, notes)
    yield plain("step", "of it: the watch over the weights", "us", watch, goal=GOAL)
