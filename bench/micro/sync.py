"""The cost of one outer sync for the training thread, compared with one copy of the parameters and
one addition.

Two learners run real rounds over loopback: of 25 M parameters in one fragment, or of 250 M in
eight. After every round each measures the floor while the other waits: the copy and the addition
alone, on the same tensors. Each is measured
after a pause, as in a round, because an operation straight after another finds its code and data in
the caches. In a round the background threads of both learners compete for the cores."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from functools import partial
from pathlib import Path
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
SYNC_EVERY, STEP_S = 64, 0.02
WARM = 2
#: Bytes of memory that the large model takes, with all that belongs to it, on both learners.
LARGE_NBYTES = 17 << 30
EVERY_STEP = ("stepped", "take")


class Size(NamedTuple):
    """A model, and how many rounds of all of it are measured."""

    width: int
    layers: int
    fragments: int
    rounds: int
    text: str
    goal: str


SMALL = Size(512, 8, 1, 10, "25.2 M float32 in 96 tensors", "<= 1.5")
LARGE = Size(1024, 20, 8, 3, "252 M float32 in 240 tensors, 8 fragments", "<= 1.1")


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
    """One copy of all parameters into existing buffers, and one addition of these in place."""

    def __init__(self, parameters: Sequence[Tensor]) -> None:
        self._parameters = parameters
        self._copies = [torch.zeros_like(p) for p in parameters]

    def measure(self) -> Took:
        copy, add = after_a_pause(self._copy), after_a_pause(self._add)
        return Took(copy.wall + add.wall, copy.computed + add.computed)

    @torch.no_grad()
    def _copy(self) -> None:
        for copy, parameter in zip(self._copies, self._parameters, strict=True):
            copy.copy_(parameter)

    @torch.no_grad()
    def _add(self) -> None:
        for parameter, copy in zip(self._parameters, self._copies, strict=True):
            parameter.add_(copy, alpha=0.0)


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


class Steps(NamedTuple):
    """The steps of one round, and those of them that neither copied nor corrected anything."""

    all: list[Took]
    quiet: list[Took]

    @property
    def idle(self) -> Took:
        """The usual step without a sync. With slow rounds there may be none."""
        took = zip(*self.quiet, strict=True) if self.quiet else [[0.0], [0.0]]
        return Took(*map(median, took))

    @property
    def beyond(self) -> Took:
        """The time of all steps beyond that of as many steps without a sync."""
        sums = map(sum, zip(*self.all, strict=True))
        return Took(*(s - len(self.all) * i for s, i in zip(sums, self.idle, strict=True)))


def _train_a_round(optimizer: MendOptimizer, watch: Watch, fragments: int) -> Steps:
    """Step until so many corrections were applied."""
    steps = Steps([], [])
    while watch.count("apply") < fragments:
        before = watch.count("copy") + watch.count("apply")
        took = after_a_pause(optimizer.step)
        steps.all.append(took)
        if watch.count("copy") + watch.count("apply") == before:
            steps.quiet.append(took)
    return steps


def _share(spans: Spans, fragments: int) -> float:
    """By what to multiply the time of these copies and corrections, for one of each fragment."""
    return 2 * fragments / (len(spans["copy"]) + len(spans["apply"]))


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


def _learn(size: Size, seat: Seat) -> list[Round]:
    parameters = transformer(size.width, size.layers)
    floor, watch = Floor(parameters), _instrument()
    rounds = []
    options = {"sync_every": SYNC_EVERY, "fragments": size.fragments}
    with closing(seat.join(Still(parameters), **options)) as optimizer:
        optimizer.step()
        for _ in range(WARM + size.rounds):
            watch.take()
            steps, spans = _train_a_round(optimizer, watch, size.fragments), watch.take()
            share, parts = _share(spans, size.fragments), _parts(steps.beyond.wall, spans)
            took = _measure_in_turn(seat, floor)
            rounds.append(
                Round(
                    sync=share * steps.beyond.wall,
                    floor=took.wall,
                    idle=steps.idle.wall,
                    computed=share * steps.beyond.computed,
                    computed_floor=took.computed,
                    parts={part: share * seconds for part, seconds in parts.items()},
                )
            )
            seat.meet()
    return rounds[WARM:]


def run() -> Iterator[Result]:
    return _run(SMALL)


def run_large() -> Iterator[Result]:
    return _run(LARGE)


def absent_large() -> str:
    """Why the large model cannot be measured here; empty if it can."""
    listed = Path("/proc/meminfo")
    if not listed.exists():
        return "the system does not tell how much memory is free"
    lines = (line.split() for line in listed.read_text().splitlines())
    free = next(1024 * int(words[1]) for words in lines if words[0] == "MemAvailable:")
    if free < LARGE_NBYTES:
        return f"{free / 1e9:.0f} GB of memory are free; it takes {LARGE_NBYTES / 1e9:.0f} GB"
    return ""


def _run(size: Size) -> Iterator[Result]:
    learners = run_learners(partial(_learn, size), LEARNERS)
    rounds = [round for learner in learners for round in learner]
    floors = [1e3 * r.floor for r in rounds]
    setting = f"{size.text}, 2 learners; floor = one copy + one in-place add"
    sync = [1e3 * r.sync for r in rounds]
    what = "training thread per outer sync"
    yield compared("sync", what, "ms", sync, floors, goal=size.goal, notes=setting)
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
