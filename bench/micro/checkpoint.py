"""The time of `state_dict()` with peers, over one copy and one SHA-256 of the anchor, which is the
least work it contains.

Two learners of 25 M parameters. At rest nothing else happens; in training every step saves while
rounds go on."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from contextlib import closing
from typing import NamedTuple

import torch

from bench.cluster.learners import Seat, Still, run_learners, transformer
from bench.result import Result, compared, plain
from bench.watch import time_of

LEARNERS = 2
WIDTH, LAYERS = 512, 8  # 25.2 M elements in 96 tensors
SYNC_EVERY, STEPS = 16, 48
AT_REST = 6
PATIENCE_S = 60


class Times(NamedTuple):
    """Seconds."""

    at_rest: list[float]
    in_training: list[float]
    floor: list[float]


def _learn(seat: Seat) -> Times:
    parameters = transformer(WIDTH, LAYERS)
    anchor = torch.cat([p.detach().flatten() for p in parameters])
    times = Times([], [], [])
    with closing(seat.join(Still(parameters), sync_every=SYNC_EVERY)) as optimizer:
        for _ in range(STEPS):
            optimizer.step()
            times.in_training.append(time_of(optimizer.state_dict))
        seat.meet()
        optimizer.synchronize(PATIENCE_S)
        for turn in range(AT_REST * LEARNERS):
            seat.meet()
            if turn % LEARNERS == seat.rank:
                times.at_rest.append(time_of(optimizer.state_dict))
                times.floor.append(time_of(lambda: hashlib.sha256(anchor.clone().numpy()).digest()))
    return times


def run() -> Iterator[Result]:
    learners = run_learners(_learn, LEARNERS)
    floors = [1e3 * s for times in learners for s in times.floor]
    setting = "25.2 M float32, 2 learners; floor = one copy + one SHA-256 of them, at rest"
    rest = [1e3 * s for times in learners for s in times.at_rest]
    yield compared("checkpoint", "state_dict() at rest", "ms", rest, floors, goal="", notes=setting)
    busy = [1e3 * s for times in learners for s in times.in_training]
    yield plain("checkpoint", "state_dict() after every step", "ms", busy, "while rounds go on")
