"""Three learners, one of which becomes twice as slow during the run: the throughput of the others,
and the loss of all.

They train the text example, with a step every 60 ms, or every 120 ms for the slow learner after a
third of the time. Each policy runs for as long. In lockstep (`adopt_after`) a round waits for every
learner that it expects; without it, no learner's training waits."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass, field
from functools import partial
from statistics import mean
from typing import Any

import torch
from torch.optim import AdamW

from bench.cluster.learners import Seat, run_learners
from bench.result import Result, compared, plain
from examples.train_text import CONTEXT, TextModel, evaluate, read_corpus, windows
from mend_optim import FailSlow, Grace, MendOptimizer
from mend_optim.engine.ledger import Event, RoundRecord

STEP_S, SLOWER = 0.06, 2.0
EVEN_S, SETTLE_S, UNEVEN_S = 20.0, 10.0, 30.0  # all alike; the change, and what comes of it
SLOW, SYNC_EVERY, BATCH = 2, 16, 4
ADAPTIVE: dict[str, Any] = {"adopt_after": 4, "quorum": 2, "grace": Grace(fraction=0.5)}
POLICIES: dict[str, dict[str, Any]] = {
    "lockstep, wait for all": {"adopt_after": 4, "quorum": 3, "failslow": None},
    "lockstep, quorum only": {"adopt_after": 4, "quorum": 2, "grace": 0.0, "failslow": None},
    "lockstep, quorum and adaptive grace": {**ADAPTIVE, "failslow": None},
    "lockstep, quorum and fail-slow": {"adopt_after": 4, "quorum": 2, "failslow": FailSlow()},
    "as it comes": {},
}


@dataclass
class Run:
    """One learner's results: steps/s while all were alike and while one was slow, the rounds while
    one was slow, and the end."""

    before: float = 0.0
    after: float = 0.0
    rounds: list[RoundRecord] = field(default_factory=list)
    slow_said: list[str] = field(default_factory=list)
    tokens: int = 0
    merged: int = 0
    loss: float = 0.0


def _train(
    optimizer: MendOptimizer,
    model: TextModel,
    text: Any,
    *,
    step_s: float,
    until: float,
    draws: Any,
) -> float:
    """Train until then; returns steps per second."""
    steps, began = 0, time.monotonic()
    while time.monotonic() < until:
        due = time.monotonic() + step_s
        optimizer.zero_grad()
        model(
            *windows(text, torch.randint(len(text) - CONTEXT, (BATCH,), generator=draws))
        ).backward()
        time.sleep(max(0.0, due - time.monotonic()))
        optimizer.step()
        steps += 1
    return steps / (time.monotonic() - began)


def _learn(seat: Seat, options: dict[str, Any]) -> Run:
    text, held_out = read_corpus(seat.rank, 3)
    run, rounds = Run(), list[RoundRecord]()

    def note(event: Event) -> None:
        if "round" in event.facts:
            rounds.append(event.facts["round"])
        elif event.kind in ("slow", "recovered"):
            run.slow_said.append(f"{event.kind} {event.facts['peer']}")

    torch.manual_seed(0)
    model, draws = TextModel(), torch.Generator().manual_seed(seat.rank)
    inner = AdamW(model.parameters(), lr=1e-3)
    with closing(seat.join(inner, sync_every=SYNC_EVERY, on_event=note, **options)) as optimizer:
        optimizer.join()
        seat.meet()
        began = time.monotonic()
        run.before = _train(
            optimizer, model, text, step_s=STEP_S, until=began + EVEN_S, draws=draws
        )
        step_s = STEP_S * (SLOWER if seat.rank == SLOW else 1.0)
        _train(optimizer, model, text, step_s=step_s, until=began + EVEN_S + SETTLE_S, draws=draws)
        rounds.clear()
        run.after = _train(
            optimizer,
            model,
            text,
            step_s=step_s,
            until=began + EVEN_S + SETTLE_S + UNEVEN_S,
            draws=draws,
        )
        run.rounds = [record for record in rounds if record.members]
        with optimizer.global_weights():
            run.loss = float(evaluate(model, held_out))
        optimizer.synchronize()
        optimizer.synchronize()
        status = optimizer.status()
        run.tokens, run.merged = status.tokens, status.fragments[0].tokens
        seat.meet()
    return run


def run() -> Iterator[Result]:
    torch.set_num_threads(1)
    for name, options in POLICIES.items():
        yield from _figures(name, run_learners(partial(_learn, options=options), 3))


def _figures(name: str, runs: list[Run]) -> Iterator[Result]:
    fast = [run for rank, run in enumerate(runs) if rank != SLOW]
    rates = [run.after for run in fast], [run.before for run in fast]
    goal = ">= 0.99" if "fail-slow" in name or name == "as it comes" else ""
    said = sorted({text for run in runs for text in run.slow_said})
    notes = f"a learner is {SLOWER:g} times slower; {'; '.join(said) or 'nobody is called slow'}"
    yield compared(
        "straggler",
        f"{name}: a fast learner's steps beside the slow one",
        "1/s",
        *rates,
        goal=goal,
        notes=notes,
    )
    seals = runs[0].rounds
    members = [m for record in seals for m in record.members]
    took_part = (
        mean(any(m.name == f"learner{SLOW}" for m in record.members) for record in seals)
        if seals
        else 0.0
    )
    yield plain(
        "straggler",
        f"{name}: seals with the slow learner in them",
        "",
        [took_part],
        f"of {len(seals)}",
    )
    per_s = sum(m.tokens for m in members) / UNEVEN_S
    yield plain(
        "straggler", f"{name}: merged", "steps/s", [per_s], "of all learners, while one is slow"
    )
    trained, merged = sum(run.tokens for run in runs), max(run.merged for run in runs)
    yield plain(
        "straggler",
        f"{name}: of what was trained, merged in the end",
        "",
        [merged / trained],
        f"{trained}",
    )
    yield plain(
        "straggler", f"{name}: held-out loss after as long", "nats/byte", [run.loss for run in runs]
    )
