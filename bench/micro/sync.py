"""The cost of one outer sync for the training thread, compared with one copy of the parameters and
one addition.

Two learners of 25 M parameters run real rounds over loopback. After every round each measures the
floor while the other waits: the copy and the addition alone, on the same tensors. Each is measured
after a pause, as in a round, because an operation straight after another finds its code and data in
the caches. In a round the background threads of both learners compete for the cores."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from statistics import median
from typing import NamedTuple

import torch
from torch import Tensor

from bench.cluster.learners import Seat, Still, run_learners, transformer
from bench.result import Result, compared, plain
from bench.watch import Spans, Watch, seconds, time_of
from mend_optim import MendOptimizer
from mend_optim.own_tensors import OwnTensors
from mend_optim.runtime.learner import Learner

LEARNERS = 2
WIDTH, LAYERS = 512, 8  # 25.2 M elements in 96 tensors
SYNC_EVERY, STEP_S = 64, 0.02
WARM, ROUNDS = 2, 10
EVERY_STEP = ("stepped", "take")


class Round(NamedTuple):
    """The seconds of one round on one learner."""

    sync: float
    floor: float
    idle: float  # one step without a sync
    computed: float  # of the sync: the thread's processor time
    computed_floor: float  # of the floor: the same
    parts: dict[str, float]


class Took(NamedTuple):
    """The seconds of something, and those for which its thread computed."""

    wall: float
    computed: float


class Floor:
    """One copy of all parameters into existing buffers, and one addition of other tensors in
    place."""

    def __init__(self, parameters: Sequence[Tensor]) -> None:
        self._parameters = parameters
        self._copies = [torch.empty_like(p) for p in parameters]
        self._changes = [torch.zeros_like(p) for p in parameters]

    def measure(self) -> Took:
        copy, add = after_a_pause(self._copy), after_a_pause(self._add)
        return Took(copy.wall + add.wall, copy.computed + add.computed)

    @torch.no_grad()
    def _copy(self) -> None:
        for copy, parameter in zip(self._copies, self._parameters, strict=True):
            copy.copy_(parameter)

    @torch.no_grad()
    def _add(self) -> None:
        for parameter, change in zip(self._parameters, self._changes, strict=True):
            parameter.add_(change)


def pause_then(work: Callable[[], object]) -> float:
    """The seconds that it takes, after a pause as long as an inner step."""
    time.sleep(STEP_S)
    return time_of(work)


def after_a_pause(work: Callable[[], object]) -> Took:
    """The seconds of both kinds that it takes, after a pause as long as an inner step."""
    computed = [0.0]

    def timed() -> None:
        started = time.thread_time()
        work()
        computed[0] = time.thread_time() - started

    return Took(pause_then(timed), computed[0])


def _instrument() -> Watch:
    watch = Watch()
    watch.on(OwnTensors, "copy", "copy")
    watch.on(OwnTensors, "apply", "apply")
    for name in (*EVERY_STEP, "submit"):
        watch.on(Learner, name, name)
    return watch


def _train_a_round(optimizer: MendOptimizer, watch: Watch) -> list[Took]:
    """Step until a correction was applied; returns how long each step took."""
    times = []
    while not watch.count("apply"):
        times.append(after_a_pause(optimizer.step))
    return times


def _beyond(times: Sequence[float]) -> float:
    """The time of all steps beyond that of as many steps without a sync."""
    return sum(times) - median(times) * len(times)


def _parts(sync: float, spans: Spans) -> dict[str, float]:
    """The parts of a sync's time. For the engine, under its mutex: the time of its calls beyond
    their usual time."""
    usual = [
        median(end - start for start, end in spans[name]) * len(spans[name]) for name in EVERY_STEP
    ]
    engine = sum(seconds(spans[name]) for name in (*EVERY_STEP, "submit")) - sum(usual)
    parts = {"copy": seconds(spans["copy"]), "apply": seconds(spans["apply"]), "engine": engine}
    return {**parts, "waits elsewhere": sync - sum(parts.values())}


def _measure_in_turn(seat: Seat, floor: Floor) -> Took:
    took = Took(0.0, 0.0)
    for rank in range(LEARNERS):
        seat.meet()
        if rank == seat.rank:
            took = floor.measure()
    return took


def _learn(seat: Seat) -> list[Round]:
    parameters = transformer(WIDTH, LAYERS)
    floor, watch = Floor(parameters), _instrument()
    rounds = []
    with closing(seat.join(Still(parameters), sync_every=SYNC_EVERY)) as optimizer:
        optimizer.step()
        for _ in range(WARM + ROUNDS):
            watch.take()
            times, computed = zip(*_train_a_round(optimizer, watch), strict=True)
            sync, parts = _beyond(times), _parts(_beyond(times), watch.take())
            took = _measure_in_turn(seat, floor)
            rounds.append(
                Round(sync, took.wall, median(times), _beyond(computed), took.computed, parts)
            )
            seat.meet()
    return rounds[WARM:]


def run() -> Iterator[Result]:
    rounds = [round for learner in run_learners(_learn, LEARNERS) for round in learner]
    floors = [1e3 * r.floor for r in rounds]
    setting = "25.2 M float32 in 96 tensors, 2 learners; floor = one copy + one in-place add"
    sync = [1e3 * r.sync for r in rounds]
    yield compared(
        "sync", "training thread per outer sync", "ms", sync, floors, goal="<= 1.5", notes=setting
    )
    computed, computed_floors = (
        [1e3 * r.computed for r in rounds],
        [1e3 * r.computed_floor for r in rounds],
    )
    yield compared(
        "sync",
        "processor time of the training thread per outer sync",
        "ms",
        computed,
        computed_floors,
        goal="<= 1.3",
        notes=setting,
    )
    for part in rounds[0].parts:
        yield compared(
            "sync", f"of it: {part}", "ms", [1e3 * r.parts[part] for r in rounds], floors
        )
    idle = [1e6 * r.idle for r in rounds]
    yield plain(
        "sync",
        "a step without a sync",
        "us",
        idle,
        "after a sleep, the inner optimizer does nothing",
    )
