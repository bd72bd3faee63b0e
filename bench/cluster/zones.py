"""Zones: the bytes that pass between two places of four learners, over those without zones.

Each place is a switch of its own. The kernel counts what passes through the wire between them, with
all headers, beats and answers. Rounds are in lockstep, so every learner is in each of them. Then
the same is measured with a moment that is averaged in every round."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import closing
from functools import partial

import torch

from bench.cluster.learners import Seat, learner_at, run_learners, transformer
from bench.cluster.namespaces import End, far_switched
from bench.result import Result, compared
from mend_optim import MendOptimizer, MomentSchedule

WIDTH, LAYERS = 256, 1  # 0.8 M elements in 12 tensors
PLACES = ("east", "west")
INSIDE = 4
PERIOD, LATE, STEP_S = 20, 15, 0.1
ROUNDS, FRAGMENTS, TIMES = 5, 4, 3
MOMENTUM = 0.9
PORT, END_S = 29800, 30.0
GOAL = "<= 0.333"


def _learn(ends: Sequence[End], trunk: End, zoned: bool, averages: bool, seat: Seat) -> float:
    """The bytes that pass between the places, per sync of the whole model. `averages`: whether the
    momentum of the inner optimizer is averaged in every round."""
    optimizer = learner_at(
        ends,
        PORT,
        seat,
        transformer(WIDTH, LAYERS),
        zone=PLACES[seat.rank // INSIDE] if zoned else None,
        sync_every=PERIOD,
        adopt_after=LATE,
        fragments=FRAGMENTS,
        momentum=MOMENTUM if averages else 0.0,
        moments=MomentSchedule(first=1) if averages else None,
    )
    with closing(optimizer):
        optimizer.join()
        seat.meet()
        _train(optimizer, 2)
        seat.meet()
        before, begun = trunk.counters(), optimizer.status().rounds_adopted
        seat.meet()
        _train(optimizer, ROUNDS)
        seat.meet()
        after, ended = trunk.counters(), optimizer.status().rounds_adopted
        seat.meet()
        if not optimizer.finish(END_S):
            raise TimeoutError(f"the learners did not end together within {END_S:g} s")
    volume = after.received + after.sent - before.received - before.sent
    return volume / ((ended - begun) / FRAGMENTS)


def _train(optimizer: MendOptimizer, rounds: int) -> None:
    for _ in range(PERIOD * rounds):
        due = time.monotonic() + STEP_S
        optimizer.step()
        time.sleep(max(0.0, due - time.monotonic()))


def measure(zoned: bool, averages: bool) -> float:
    """The megabytes of one sync between the places. `averages`: as of `_learn`."""
    torch.set_num_threads(1)
    with far_switched(INSIDE) as (ends, trunk):
        found = run_learners(partial(_learn, ends, trunk, zoned, averages), len(ends))
    return sum(found) / len(found) / 1e6


def run() -> Iterator[Result]:
    for averages, what in ((False, "float32"), (True, "float32 and a moment")):
        pairs = [(measure(True, averages), measure(False, averages)) for _ in range(TIMES)]
        zoned, flat = zip(*pairs, strict=True)
        yield compared(
            "zones",
            f"bytes between two zones of {INSIDE}, of a sync of the whole model, {what}",
            "MB",
            list(zoned),
            list(flat),
            goal=GOAL,
            notes="over those of the same learners without zones",
        )
