"""Three learners train, and one with a slow link joins them. A seal takes less time on that link
than a round does, and a whole anchor far more: the rounds that have the newcomer's work, over the
same where it catches up by whole anchors alone."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, nullcontext
from functools import partial
from unittest import mock

import torch
from torch import nn

from bench.cluster.learners import Seat, learner_at, run_learners
from bench.cluster.namespaces import End, switched
from bench.result import Result, compared
from mend_optim import Event, MendOptimizer, Timing
from mend_optim.engine.seal_by_seal import SealBySeal

LEARNERS, NEWCOMER = 4, 3
SIZE = 400_000  # 1.6 MB, and an eighth of that in a seal
FAST, SLOW = "100mbit", "1mbit"
STEP_S, EVERY = 0.1, 40  # a round in four seconds
WARM_S, LONG_S, TIMES = 60.0, 60.0, 3
PORT = 29900
GOAL = ">= 2"


def _learn(ends: Sequence[End], by_seals: bool, seat: Seat) -> float:
    """The share of rounds that have the newcomer's work, as the first learner sees them."""
    torch.manual_seed(seat.rank)
    model = [nn.Parameter(0.02 * torch.randn(SIZE))]
    shares: list[bool] = []
    joins = seat.rank == NEWCOMER
    begin = partial(
        learner_at,
        ends,
        PORT,
        seat,
        model,
        fragments=1,
        sync_every=EVERY,
        codec="int4",
        on_event=partial(_note, shares),
        timing=Timing(join_timeout_s=30.0 if joins else 5.0),  # the others need not wait for it
    )
    ends[seat.rank].limit(SLOW if joins else FAST)
    with nullcontext() if by_seals else mock.patch.object(SealBySeal, "source", return_value=None):
        return _train(begin, seat, shares, joins=joins)


def _note(shares: list[bool], event: Event) -> None:
    if event.kind == "round" and event.facts["round"].members:
        members = event.facts["round"].members
        shares.append(any(m.name == f"learner{NEWCOMER}" and m.tokens for m in members))


def _train(
    begin: Callable[[], MendOptimizer], seat: Seat, shares: list[bool], *, joins: bool
) -> float:
    """Train until the newcomer has joined, for a while, and for as long as rounds are counted."""
    if joins:
        seat.meet()
    with closing(begin()) as optimizer:
        optimizer.join()
        if not joins:
            _steps(optimizer, 2 * EVERY * STEP_S)
            seat.meet()
            while not seat.meeting.n_waiting:
                _steps(optimizer, STEP_S)
        seat.meet()
        _steps(optimizer, WARM_S)
        shares.clear()
        _steps(optimizer, LONG_S)
        counted = list(shares)
        seat.meet()
    return max(1, sum(counted)) / max(1, len(counted))  # the share is a floor, too: not 0


def _steps(optimizer: MendOptimizer, seconds: float) -> None:
    until = time.monotonic() + seconds
    while (now := time.monotonic()) < until:
        optimizer.step()
        time.sleep(max(0.0, now + STEP_S - time.monotonic()))


def measure(*, by_seals: bool) -> float:
    """The share of rounds that have the newcomer's work."""
    torch.set_num_threads(1)
    with switched(LEARNERS) as ends:
        return float(run_learners(partial(_learn, ends, by_seals), LEARNERS)[0])


def run() -> Iterator[Result]:
    runs = [[measure(by_seals=by_seals) for by_seals in (True, False)] for _ in range(TIMES)]
    by_seals, by_anchors = zip(*runs, strict=True)
    yield compared(
        "behind",
        "share of the rounds that have the work of a learner with a link of 1 Mbit/s",
        "",
        list(by_seals),
        list(by_anchors),
        goal=GOAL,
        notes="1.6 MB, int4, a round in 4 s; floor = it catches up by whole anchors alone",
    )
