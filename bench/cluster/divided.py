"""Fragments on slow links: how often learners sync the whole model, divided by its size, over one
fragment.

Two or four learners are around a switch. The kernel limits the speed from and to each of them. A
step takes a fixed time, and rounds begin as often as they end (`sync_every="auto"`). One cluster
after the other is measured, in turns: with `fragments="auto"`, then with one fragment."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import closing
from functools import partial
from statistics import median
from typing import NamedTuple

from bench.cluster.learners import Seat, learner_at, run_learners, transformer
from bench.cluster.namespaces import End, switched
from bench.result import Result, compared, plain
from mend_optim import MendOptimizer

WIDTH, LAYERS = 256, 5  # 3.9 M elements in 60 tensors
RATE, STEP_S = "100mbit", 0.05
SETTLE_S, MEASURE_S = 12.0, 18.0
PORT, TIMES, END_S = 29700, 2, 30.0
GOAL = ">= 1.5"


class Setting(NamedTuple):
    """The number of learners, their codec and their fragments."""

    learners: int
    codec: str
    fragments: int | str


class Pace(NamedTuple):
    """Syncs of the whole model per second, and the median steps that a round takes, L."""

    syncs: float
    latency: int
    fragments: int


SETTINGS = ((2, "none"), (4, "none"), (4, "int8"))


def _learn(ends: Sequence[End], setting: Setting, seat: Seat) -> Pace:
    end = ends[seat.rank]
    optimizer = learner_at(
        ends,
        PORT,
        seat,
        transformer(WIDTH, LAYERS),
        fragments=setting.fragments,
        codec=setting.codec,
    )
    with closing(optimizer):
        optimizer.join()
        seat.meet()
        end.limit(RATE)
        seat.meet()
        train(optimizer, SETTLE_S)
        found = pace(optimizer, MEASURE_S)
        seat.meet()
        end.limit("")
        seat.meet()
        if not optimizer.finish(END_S):
            raise TimeoutError(f"the learners did not end together within {END_S:g} s")
    return found


def train(optimizer: MendOptimizer, seconds: float) -> None:
    """Take steps of `STEP_S` for so long."""
    end = time.monotonic() + seconds
    while (begun := time.monotonic()) < end:
        optimizer.step()
        time.sleep(max(0.0, begun + STEP_S - time.monotonic()))


def pace(optimizer: MendOptimizer, seconds: float) -> Pace:
    """The pace of a learner that trains for so long."""
    before, begun = optimizer.status(), time.monotonic()
    train(optimizer, seconds)
    after, seconds = optimizer.status(), time.monotonic() - begun
    fragments = len(after.fragments)
    syncs = (after.rounds_adopted - before.rounds_adopted) / fragments / seconds
    return Pace(syncs, after.latency, fragments)


def measure(setting: Setting) -> Pace:
    """The pace of a cluster: the median of its learners."""
    with switched(setting.learners) as ends:
        paces = run_learners(partial(_learn, ends, setting), setting.learners)
    return typical(paces)


def typical(paces: Sequence[Pace]) -> Pace:
    """The median of the learners of a cluster."""
    syncs, latency = median(p.syncs for p in paces), median(p.latency for p in paces)
    return Pace(syncs, round(latency), paces[0].fragments)


def run() -> Iterator[Result]:
    for learners, codec in SETTINGS:
        pairs = [
            tuple(measure(Setting(learners, codec, fragments)) for fragments in ("auto", 1))
            for _ in range(TIMES)
        ]
        divided, whole = zip(*pairs, strict=True)
        what = f"{learners} learners, {codec}, {RATE}"
        yield compared(
            "fragments",
            f"syncs of the whole model, {what}",
            "1/s",
            [pace.syncs for pace in divided],
            [pace.syncs for pace in whole],
            goal=GOAL,
            notes=f"{divided[0].fragments} fragments over one",
        )
        for paces in (divided, whole):
            count = paces[0].fragments
            taken = [float(pace.latency) for pace in paces]
            yield plain("fragments", f"steps of a round, {what}, P = {count}", "1", taken)
