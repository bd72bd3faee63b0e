"""Two fast learners and one three times slower: the cost of the slow one for the others, and how
often it takes part.

One cluster goes through phases that all three enter by the clock: no syncs, all fast, one slow;
then again. A step is a sleep and `step()`, so a shortage of cores does not count against the
library."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import closing
from typing import NamedTuple

from bench.cluster.learners import Seat, Still, run_learners, transformer
from bench.result import Result, compared, plain
from mend_optim import MendOptimizer
from mend_optim.engine.ledger import Event, RoundRecord

WIDTH, LAYERS = 128, 8  # 1.6 M elements in 96 tensors
SYNC_EVERY, FAST_S, SLOW_S = 32, 0.02, 0.06
OFF, EVEN, UNEVEN = "off", "even", "uneven"
PHASES = (OFF, EVEN, UNEVEN) * 3
PHASE_S = 3.0
SLOW = 2


class Phase(NamedTuple):
    """The results of one learner in one phase."""

    kind: str
    steps_per_s: float
    rounds: list[RoundRecord]


def _phase(optimizer: MendOptimizer, kind: str, pace_s: float, until: float) -> float:
    """Train until the phase ends; returns steps per second."""
    steps, started = 0, time.monotonic()
    while (now := time.monotonic()) < until:
        time.sleep(pace_s)
        (optimizer.inner if kind == OFF else optimizer).step()
        steps += 1
    return steps / (now - started)


def _learn(seat: Seat) -> list[Phase]:
    rounds: list[RoundRecord] = []

    def note(event: Event) -> None:
        if "round" in event.facts:
            rounds.append(event.facts["round"])

    phases = []
    inner = Still(transformer(WIDTH, LAYERS))
    with closing(seat.join(inner, sync_every=SYNC_EVERY, on_event=note)) as optimizer:
        optimizer.step()
        seat.meet()
        began = time.monotonic()
        for i, kind in enumerate(PHASES):
            rounds.clear()
            pace_s = SLOW_S if kind == UNEVEN and seat.rank == SLOW else FAST_S
            rate = _phase(optimizer, kind, pace_s, began + PHASE_S * (i + 1))
            phases.append(Phase(kind, rate, list(rounds)))
        seat.meet()
    return phases


def _rates(phases: list[Phase], kind: str) -> list[float]:
    return [phase.steps_per_s for phase in phases if phase.kind == kind]


def _shares(phases: list[Phase]) -> tuple[list[float], list[float]]:
    """The share of the seals that contain the slow learner, and its share of their tokens."""
    name = f"learner{SLOW}"
    uneven = [phase.rounds for phase in phases if phase.kind == UNEVEN and phase.rounds]
    took_part = [
        sum(any(m.name == name for m in r.members) for r in rounds) / len(rounds)
        for rounds in uneven
    ]
    members = [[m for record in rounds for m in record.members] for rounds in uneven]
    tokens = [
        sum(m.tokens for m in ms if m.name == name) / (sum(m.tokens for m in ms) or 1)
        for ms in members
    ]
    return took_part, tokens


def run() -> Iterator[Result]:
    learners = run_learners(_learn, 3)
    fast = [phases for rank, phases in enumerate(learners) if rank != SLOW]
    rates = {
        kind: [rate for phases in fast for rate in _rates(phases, kind)]
        for kind in (OFF, EVEN, UNEVEN)
    }
    setting = f"1.6 M float32, sync_every={SYNC_EVERY}, steps of 20 ms, the slow one's 60 ms"
    with_slow = "a fast learner's steps beside a slow one"
    yield compared(
        "slow",
        with_slow,
        "1/s",
        rates[UNEVEN],
        rates[EVEN],
        goal=">= 0.98",
        notes=f"floor = all are fast; {setting}",
    )
    yield compared(
        "slow", with_slow, "1/s", rates[UNEVEN], rates[OFF], notes="floor = nobody syncs"
    )
    took_part, tokens = _shares(learners[0])
    seals = sum(len(phase.rounds) for phase in learners[0] if phase.kind == UNEVEN)
    yield plain(
        "slow", "seals with the slow learner in them", "share", took_part, f"of {seals}, by phase"
    )
    yield plain(
        "slow",
        "the slow learner's share of their tokens",
        "",
        tokens,
        "of the work it does 1/7 = 0.143",
    )
