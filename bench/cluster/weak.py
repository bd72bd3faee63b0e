"""Four learners around a switch, of which one has a weak link: the rounds of the others, over those
without a weak link.

Each round moves a fragment up and down. Were all to wait for the weak link, all would have as few
rounds as it takes. The weak learner is measured twice: once nobody can dial it, so it seals for
nobody, and once it seals its share of the fragments. The clock starts some rounds after the link
has become weak, as the sealers have to see first how late its offers are, and the weak learner has
to hear that it should decline to seal."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import closing
from functools import partial
from statistics import median
from typing import NamedTuple

import torch
from torch import nn

from bench.cluster.learners import Seat, learner_at, run_learners
from bench.cluster.namespaces import End, switched
from bench.result import Result, compared
from mend_optim import MendOptimizer

LEARNERS, WEAK = 4, 0
TENSORS, SIZE = 8, 100_000  # 0.8 M elements in 8 fragments
FAST, SLOW = "100mbit", "2mbit"
STEP_S, LONG_S, TIMES = 0.02, 20.0, 3
PORT = 29900
GOAL = ">= 0.8"


class Case(NamedTuple):
    """How the learner `WEAK` is joined to the others."""

    rate: str
    seals: bool
    warm_s: float = 30.0


CALM, DIALS, SEALS = Case(FAST, True), Case(SLOW, False), Case(SLOW, True, warm_s=150.0)


def _learn(ends: Sequence[End], case: Case, seat: Seat) -> float:
    """This learner's anchors of each fragment per second."""
    torch.manual_seed(0)
    model = [nn.Parameter(0.02 * torch.randn(SIZE)) for _ in range(TENSORS)]
    is_weak = seat.rank == WEAK
    listens = case.seals or not is_weak
    optimizer = learner_at(ends, PORT, seat, model, listens=listens, fragments=TENSORS)
    with closing(optimizer):
        optimizer.join()
        seat.meet()
        ends[seat.rank].limit(case.rate if is_weak else FAST)
        seat.meet()
        _train(optimizer, case.warm_s)
        seat.meet()
        before, began = _versions(optimizer), time.monotonic()
        _train(optimizer, LONG_S)
        rounds = (_versions(optimizer) - before) / (time.monotonic() - began)
        seat.meet()
        ends[seat.rank].limit("")
    return rounds / TENSORS


def _versions(optimizer: MendOptimizer) -> int:
    return sum(fragment.version for fragment in optimizer.status().fragments)


def _train(optimizer: MendOptimizer, seconds: float) -> None:
    until = time.monotonic() + seconds
    while (now := time.monotonic()) < until:
        optimizer.step()
        time.sleep(max(0.0, now + STEP_S - time.monotonic()))


def measure(case: Case) -> float:
    """The rounds of each fragment per second that a learner with a fast link takes part in."""
    torch.set_num_threads(1)
    with switched(LEARNERS) as ends:
        found = run_learners(partial(_learn, ends, case), LEARNERS)
    return median(rounds for rank, rounds in enumerate(found) if rank != WEAK)


def run() -> Iterator[Result]:
    runs = [[measure(case) for case in (CALM, DIALS, SEALS)] for _ in range(TIMES)]
    calm, *weak = zip(*runs, strict=True)
    for rounds, what in zip(weak, ("that nobody dials", "that seals, too"), strict=True):
        yield compared(
            "weak",
            f"rounds beside a learner with a link of 2 Mbit/s {what}",
            "1/s",
            list(rounds),
            list(calm),
            goal=GOAL,
            notes=f"{LEARNERS} learners on links of 100 Mbit/s; floor = all links are",
        )
