"""Many learners on one machine: they start together, train a small model, and end together.

Nearly all that they cost is for beats and rounds, as the model is small and steps are slow. The
time of the end is that of `finish()`, which all call at once: from there until the last learner has
heard that all agree."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import nn
from torch.optim import AdamW

from bench.cluster.learners import Seat, run_learners
from bench.result import Result, plain
from mend_optim import Event, MendOptimizer

LEARNERS = 32
STEPS, STEP_S, SYNC_EVERY = 200, 0.2, 10
END_S = 90.0
#: Modules that take each process seconds to import: torch's optimizers need the second.
SLOW_TO_IMPORT = ("bench.__main__", "torch._dynamo")


class Stay(NamedTuple):
    """One learner's part in the run."""

    joined_s: float
    cores: float  # the share of a core that its process used in training
    merges: int
    suspicions: int
    end_s: float
    digest: str  # of the model that all have agreed on; empty if they have not


def _learn(seat: Seat) -> Stay:
    torch.manual_seed(seat.rank)
    model = nn.Linear(64, 64)
    suspicions: list[Event] = []

    def heard(event: Event) -> None:
        if event.kind == "suspected":
            suspicions.append(event)

    inner = AdamW(model.parameters(), lr=1e-3)
    optimizer = seat.join(inner, sync_every=SYNC_EVERY, group=None, on_event=heard)
    seat.meet()
    began = time.monotonic()
    optimizer.join()
    joined_s = time.monotonic() - began
    seat.meet()
    cores = _train(model, optimizer)
    merges = optimizer.status().fragments[0].version
    suspected = len(suspicions)
    seat.meet()
    began = time.monotonic()
    end = optimizer.finish(END_S)
    end_s = time.monotonic() - began
    optimizer.close()
    return Stay(joined_s, cores, merges, suspected, end_s, end.digest if end.agreed else "")


def _train(model: nn.Module, optimizer: MendOptimizer) -> float:
    """Take all steps. Returns the share of a core that the process used."""
    began, used = time.monotonic(), time.process_time()
    for _ in range(STEPS):
        optimizer.zero_grad()
        model(torch.randn(4, 64)).square().mean().backward()
        optimizer.step()
        time.sleep(STEP_S)
    return (time.process_time() - used) / (time.monotonic() - began)


def run() -> Iterator[Result]:
    """Rows of `python -m bench crowd`."""
    stays = run_learners(_learn, LEARNERS, preload=SLOW_TO_IMPORT)
    digests = {stay.digest for stay in stays} - {""}
    notes = f"{LEARNERS} learners, a step every {STEP_S} s, sync_every={SYNC_EVERY}"
    yield plain("crowd", "join()", "s", [stay.joined_s for stay in stays], notes)
    yield plain("crowd", "cores used in training", "", [stay.cores for stay in stays], notes)
    yield plain("crowd", f"merges in {STEPS} steps", "", [stay.merges for stay in stays], notes)
    suspicions = [stay.suspicions for stay in stays]
    yield plain("crowd", "suspicions of a learner", "", suspicions, notes, goal="<= 0")
    yield plain("crowd", "finish()", "s", [stay.end_s for stay in stays], notes)
    agreed = [sum(bool(stay.digest) for stay in stays) if len(digests) == 1 else 0]
    what = "learners that ended on one model"
    yield plain("crowd", what, "", agreed, notes, goal=f">= {LEARNERS}")
