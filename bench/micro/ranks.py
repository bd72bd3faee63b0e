"""The cost of one outer sync for the training threads of a learner of several ranks, and the cost
of a step between syncs.

A learner of 4 ranks, each with a quarter of every tensor, runs real rounds with another learner
over loopback. After every round each process copies its own part while the others wait: that is one
floor. The other one is a copy and an addition of the own part, which all ranks make at once, as
they do in a round. Where there are fewer cores than ranks, that takes several times as long. The
thread's processor time, without its waits for a core or for other ranks, is compared with that of
one copy.

The agreement of a step is measured on two ranks without rounds: the time in which they hear the
words of the step before and say theirs, on the board and by the collective. Their steps follow at
once; or they compute before each for some milliseconds, which takes the code of a step out of the
caches, and meet in a collective of their own.

The same rounds are run once more with transfers on the training threads, which then wait for them.

Resident memory is measured as in `memory`, and compared with a formula. In it, the learner of one
process beside the ranks stands for what the lead needs as any learner does."""

from __future__ import annotations

import importlib
import tempfile
import time
from collections.abc import Iterator
from contextlib import closing
from itertools import chain
from pathlib import Path
from statistics import median
from typing import NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor, nn

from bench.cluster.learners import Seat, Still, run_learners, transformer
from bench.micro.memory import Memory, forget_peak, resident
from bench.micro.sync import Took, after_a_pause, pause_then
from bench.result import Result, compared, plain
from bench.watch import Watch
from mend_optim import MendOptimizer
from mend_optim.own_tensors import OwnTensors
from mend_optim.ranks import board
from mend_optim.ranks.courier import Courier, Errand, Work
from mend_optim.ranks.crew import Crew
from mend_optim.ranks.group import Group
from mend_optim.ranks.shards import Split
from mend_optim.ranks.words import Call, Word

RANKS = 4
WIDTH, LAYERS = 512, 20  # 63 M elements in 240 tensors
SYNC_EVERY = 32
WARM, ROUNDS = 1, 6
FRAGMENTS = (1, 4)
AGREEMENTS, SQUARE = 500, 700
GOAL, STEP_GOAL = "<= 1.3", "<= 20"


class Round(NamedTuple):
    """The seconds of one round on one rank."""

    sync: float
    copy: float  # of its own part, while the others wait
    both: float  # a copy and an addition of its own part, while the other ranks do the same
    computed: float  # of the sync: the thread's processor time
    copied: float  # of the copy: the same
    idle: float  # one step without a sync, the median of all


class Plan:
    """The facts that all processes of this bench know.

    Args:
        store: the file by which the ranks meet.
        waits: whether training threads wait for each transfer.
    """

    def __init__(self, store: str, waits: bool) -> None:
        self._store = store
        self._waits = waits

    def __call__(self, seat: Seat) -> list[Round]:
        if self._waits:
            _wait_for_couriers()
        parameters = transformer(WIDTH, LAYERS)
        with closing(join(seat, parameters, self._store, RANKS, SYNC_EVERY)) as optimizer:
            return _learn(seat, optimizer)


def meet(store: str, rank: int, ranks: int) -> None:
    """Become a rank of so many."""
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=ranks)


def join(
    seat: Seat,
    parameters: list[nn.Parameter],
    store: str,
    ranks: int,
    sync_every: int,
    *,
    fragments: int = 1,
) -> MendOptimizer:
    """The first so many seats are the ranks of learner a; the last one is learner b."""
    is_a = seat.rank < ranks
    if is_a:
        meet(store, seat.rank, ranks)
        split = Split(dim=0, group=dist.group.WORLD)
        parameters = [nn.Parameter(p.detach().chunk(ranks)[seat.rank].clone()) for p in parameters]
    a, b = seat.addresses[0][0], seat.addresses[0][ranks]
    return MendOptimizer(
        Still(parameters),
        name="a" if is_a else "b",
        listen=a if is_a else b,
        peers=[b if is_a else a],
        sync_every=sync_every,
        fragments=fragments,
        moments=None,
        shards=(lambda name, tensor: split) if is_a else None,
    )


def _wait_for_couriers() -> None:
    """From here on, the thread that gives a courier of this process an errand waits for it."""
    put = Courier.put

    def put_and_wait(courier: Courier, work: Work) -> Errand:
        errand = put(courier, work)
        errand.wait()
        return errand

    Courier.put = put_and_wait  # type: ignore[method-assign]


class Holding:
    """The facts that all processes know which measure their memory.

    Args:
        store: the file by which the ranks meet.
        fragments: how many there are.
    """

    def __init__(self, store: str, fragments: int) -> None:
        self._store = store
        self._fragments = fragments

    def __call__(self, seat: Seat) -> Memory:
        """Of the model's parameters, not of the rank's alone."""
        parameters = transformer(WIDTH, LAYERS)
        count = sum(parameter.numel() for parameter in parameters)
        watch = Watch()
        watch.on(OwnTensors, "apply", "apply")
        optimizer = join(
            seat, parameters, self._store, RANKS, SYNC_EVERY, fragments=self._fragments
        )
        del parameters
        # It has its threads and modules by now, and copies at the first step.
        importlib.import_module("torch._dynamo")
        before = resident("VmRSS")
        with closing(optimizer):
            optimizer.step()
            seat.meet()
            forget_peak()
            for _ in range(ROUNDS * self._fragments):
                while not watch.count("apply"):
                    pause_then(optimizer.step)
                watch.take()
                seat.meet()
            peak = resident("VmHWM")
            optimizer.synchronize()
            seat.meet()
            rest = resident("VmRSS")
            seat.meet()
        return Memory((peak - before) / count, (rest - before) / count)


class Words:
    """The facts that two ranks know which only agree.

    Args:
        store: the file by which they meet.
        has_board: whether they have a board.
        computes: whether they compute between two steps, and meet.
    """

    def __init__(self, store: str, has_board: bool, computes: bool) -> None:
        self._store = store
        self._has_board = has_board
        self._computes = computes

    def __call__(self, seat: Seat) -> list[float]:
        """The seconds of each agreement."""
        if not self._has_board:
            board.MEMORY = Path("/nowhere")
        meet(self._store, seat.rank, 2)
        crew, square, took = Crew(Group()), torch.rand(SQUARE, SQUARE), []
        for step in range(AGREEMENTS):
            if self._computes:
                square @ square
                dist.barrier()
            started = time.perf_counter()
            told = crew.posted()
            tokens = told.tokens if told else 0
            crew.post(Word(call=Call.STEP, step=step, tokens=512, staged=tokens // 1024))
            took.append(time.perf_counter() - started)
        crew.posted()
        return took[WARM:]


@torch.no_grad()
def _copy(parameters: list[Tensor], copies: list[Tensor]) -> None:
    for copy, parameter in zip(copies, parameters, strict=True):
        copy.copy_(parameter)


@torch.no_grad()
def _add(parameters: list[Tensor], changes: list[Tensor]) -> None:
    for parameter, change in zip(parameters, changes, strict=True):
        parameter.add_(change)


def _learn(seat: Seat, optimizer: MendOptimizer) -> list[Round]:
    parameters = optimizer.param_groups[0]["params"]
    copies = list(map(torch.empty_like, parameters))
    watch = Watch()
    watch.on(OwnTensors, "apply", "apply")
    steps: list[list[Took]] = []
    changes = list(map(torch.zeros_like, parameters))
    floors = []
    optimizer.step()
    for _ in range(WARM + ROUNDS):
        watch.take()
        times = []
        while not watch.count("apply"):
            times.append(after_a_pause(optimizer.step))
        steps.append(times)
        took = Took(0.0, 0.0)
        for rank in range(RANKS + 1):
            seat.meet()
            if rank == seat.rank:
                took = after_a_pause(lambda: _copy(parameters, copies))
        seat.meet()
        both = 0.0
        if seat.rank < RANKS:
            both = pause_then(lambda: _copy(parameters, copies))
            both += pause_then(lambda: _add(parameters, changes))
        floors.append((took, both))
        seat.meet()
    idle = Took(*(median(each) for each in zip(*chain(*steps[WARM:]), strict=True)))
    rounds = []
    for times, (took, both) in zip(steps, floors, strict=True):
        wall, computed = (
            sum(each) - usual * len(times)
            for each, usual in zip(zip(*times, strict=True), idle, strict=True)
        )
        rounds.append(Round(wall, took.wall, both, computed, took.computed, idle.wall))
    return rounds[WARM:]


def agreements() -> Iterator[Result]:
    """The rows about words."""
    ways = {
        "on the board, steps at once": (True, False),
        "by the collective, steps at once": (False, False),
        "on the board, after computing": (True, True),
        "by the collective, after computing": (False, True),
    }
    for how, (has_board, computes) in ways.items():
        with tempfile.TemporaryDirectory() as folder:
            ranks = run_learners(Words(str(Path(folder) / "store"), has_board, computes), 2)
        for name, rank in zip(("lead", "other rank"), ranks, strict=True):
            took = [1e6 * each for each in rank]
            goal = STEP_GOAL if has_board else ""
            yield plain("ranks", f"agreement of a step {how}, {name}", "us", took, goal=goal)


def holdings() -> Iterator[Result]:
    """The rows about memory."""
    for fragments in FRAGMENTS:
        with tempfile.TemporaryDirectory() as folder:
            holding = Holding(str(Path(folder) / "store"), fragments)
            lead, *others, alone = run_learners(holding, RANKS + 1)
        # Of each rank's own part: a copy, which stays in a pool. Of its part of one fragment: what
        # is cut out of that copy for the lead, or a correction. The lead has the others' parts of
        # a fragment, too, before they are put together.
        own = 4 / RANKS
        formulas = {
            "lead": (alone.peak + own + 4 / fragments, alone.rest + own),
            "other ranks": (own + own / fragments, own),
        }
        for who, found in (("lead", [lead]), ("other ranks", others)):
            for name, formula in zip(Memory._fields, formulas[who], strict=True):
                text = f"bytes per parameter of the model, {name}, {who}, fragments={fragments}"
                values = [getattr(memory, name) for memory in found]
                floors = [formula] * len(values)
                yield compared("ranks", text, "B", values, floors, notes="floor = the formula")
        for name in Memory._fields:
            text = f"bytes per parameter, {name}, a learner of one process, fragments={fragments}"
            yield plain("ranks", text, "B", [getattr(alone, name)])


def learned(waits: bool) -> list[list[Round]]:
    """The rounds of all learners."""
    with tempfile.TemporaryDirectory() as folder:
        plan = Plan(str(Path(folder) / "store"), waits)
        learners: list[list[Round]] = run_learners(plan, RANKS + 1)
    return learners


def by_rank(learners: list[list[Round]]) -> dict[str, list[Round]]:
    """The rounds of the lead, and those of the other ranks."""
    return {
        "lead": learners[0],
        "other ranks": [each for rank in learners[1:RANKS] for each in rank],
    }


def syncs() -> Iterator[Result]:
    """The rows about training threads in rounds."""
    learners = learned(waits=False)
    waiting = by_rank(learned(waits=True))
    setting = f"63 M float32 in 240 tensors, {RANKS} ranks and another learner"
    for who, rounds in by_rank(learners).items():
        sync, copy, both, computed, copied = (
            [1e3 * value for value in column] for column in list(zip(*rounds, strict=True))[:5]
        )
        what = f"training thread per outer sync, {who}"
        notes = f"{setting}; floor = one copy of the rank's part"
        yield compared("ranks", what, "ms", sync, copy, goal=GOAL, notes=notes)
        notes = f"{setting}; floor = a copy and an addition of its part, on all ranks at once"
        yield compared("ranks", what, "ms", sync, both, notes=notes)
        what = f"processor time of the training thread per outer sync, {who}"
        notes = f"{setting}; floor = that of one copy of its part"
        yield compared("ranks", what, "ms", computed, copied, notes=notes)
        what = f"training thread per outer sync, with transfers on it, {who}"
        notes = f"{setting}; floor = the same with transfers in the background"
        yield compared("ranks", what, "ms", [1e3 * r.sync for r in waiting[who]], sync, notes=notes)
    idle = [1e6 * rank[0].idle for rank in learners[:RANKS]]
    yield plain("ranks", "a step without a sync", "us", idle, setting)


def run() -> Iterator[Result]:
    yield from agreements()
    yield from holdings()
    yield from syncs()
