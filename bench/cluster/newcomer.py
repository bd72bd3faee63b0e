"""A newcomer takes the model of four learners whose links send more slowly than they receive, as
those of most homes do: the time until it has joined, over the same where it asks one of them for
the whole model.

The learners train meanwhile, with rounds so rare that their links are free."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager, nullcontext
from functools import partial
from typing import NamedTuple
from unittest import mock

import torch
from torch import nn

from bench.cluster.learners import Seat, learner_at, run_learners
from bench.cluster.namespaces import End, switched
from bench.result import Result, compared
from mend_optim import MendOptimizer
from mend_optim.engine import sources

LEARNERS = 4
TENSORS, SIZE = 8, 500_000  # 16 MB in 8 fragments
UP, DOWN, WEAK = "20mbit", "100mbit", "4mbit"
STEP_S, EVERY, TIMES = 0.05, 2000, 3
PORT = 29900
GOAL = "<= 0.5"


class Case(NamedTuple):
    """How the newcomer asks for the model."""

    #: Whether it asks the first peer that it hears for all fragments.
    asks_one: bool = False
    #: How fast the first of the four learners sends.
    first: str = UP


ALL, ONE = Case(), Case(asks_one=True)


def _learn(ends: Sequence[End], case: Case, seat: Seat) -> float:
    """The seconds that this learner took to join, if it is the newcomer."""
    torch.manual_seed(seat.rank)
    model = [nn.Parameter(0.02 * torch.randn(SIZE)) for _ in range(TENSORS)]
    begin = partial(learner_at, ends, PORT, seat, model, fragments=TENSORS, sync_every=EVERY)
    end = ends[seat.rank]
    if seat.rank == LEARNERS:
        end.limit(DOWN)
        seat.meet()
        return _join(begin, case, seat)
    return _train(begin, end, UP if seat.rank else case.first, seat)


def _train(begin: Callable[[], MendOptimizer], end: End, up: str, seat: Seat) -> float:
    """Train until the newcomer has joined."""
    with closing(begin()) as optimizer:
        optimizer.join()
        optimizer.step()
        optimizer.synchronize()
        end.limit(up, DOWN)
        seat.meet()
        while not seat.meeting.n_waiting:
            optimizer.step()
            time.sleep(STEP_S)
        end.limit("")
        seat.meet()
    return 0.0


def _join(begin: Callable[[], MendOptimizer], case: Case, seat: Seat) -> float:
    with _from_one() if case.asks_one else nullcontext():
        began = time.monotonic()
        with closing(begin()) as optimizer:
            optimizer.join()
            took = time.monotonic() - began
            assert optimizer.status().rounds_adopted, "it has kept its own weights"
            seat.meet()
    return took


@contextmanager
def _from_one() -> Iterator[None]:
    """The first peer that is heard is asked for all fragments at once."""
    with (
        mock.patch.object(sources, "MOST_AT_ONCE", TENSORS),
        mock.patch.object(sources, "at_once", return_value=TENSORS),
    ):
        yield


def measure(case: Case) -> float:
    """The seconds until a newcomer has joined."""
    torch.set_num_threads(1)
    with switched(LEARNERS + 1) as ends:
        return float(run_learners(partial(_learn, ends, case), LEARNERS + 1)[LEARNERS])


def run() -> Iterator[Result]:
    for first in (UP, WEAK):
        cases = [case._replace(first=first) for case in (ALL, ONE)]
        runs = [[measure(case) for case in cases] for _ in range(TIMES)]
        shared, lone = zip(*runs, strict=True)
        yield compared(
            "newcomer",
            f"time to join four learners, the first of which sends {first}",
            "s",
            list(shared),
            list(lone),
            goal=GOAL if first == UP else "",
            notes=f"16 MB, 8 fragments, the learners send {UP} and receive {DOWN}; floor = one of "
            "them is asked for all",
        )
