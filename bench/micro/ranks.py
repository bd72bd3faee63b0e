"""The cost of one outer sync for the training threads of a learner of several ranks, compared with
a copy of a rank's own part, and the cost of a step between syncs.

A learner of 4 ranks, each with a quarter of every tensor, runs real rounds with another learner
over loopback. Its transfers run on the training threads of the ranks. After every round each
process copies its own part while the others wait."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from statistics import median
from typing import NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor, nn

from bench.cluster.learners import Seat, Still, run_learners, transformer
from bench.micro.sync import pause_then
from bench.result import Result, compared, plain
from bench.watch import Watch
from mend_optim import MendOptimizer
from mend_optim.own_tensors import OwnTensors
from mend_optim.ranks.shards import Split

RANKS = 4
WIDTH, LAYERS = 512, 20  # 63 M elements in 240 tensors
SYNC_EVERY = 32
WARM, ROUNDS = 1, 6
GOAL, STEP_GOAL = "<= 1.3", "<= 20"


class Round(NamedTuple):
    """The seconds of one round on one rank."""

    sync: float
    copy: float  # of its own part
    idle: float  # one step without a sync, the median of all


class Plan:
    """The facts that all processes of this bench know.

    Args:
        store: the file by which the ranks meet.
    """

    def __init__(self, store: str) -> None:
        self._store = store

    def __call__(self, seat: Seat) -> list[Round]:
        parameters = transformer(WIDTH, LAYERS)
        with closing(self._join(seat, parameters)) as optimizer:
            return _learn(seat, optimizer)

    def _join(self, seat: Seat, parameters: list[nn.Parameter]) -> MendOptimizer:
        is_a = seat.rank < RANKS
        if is_a:
            dist.init_process_group(
                "gloo",
                init_method=f"file://{self._store}",
                rank=seat.rank,
                world_size=RANKS,
            )
            split = Split(dim=0, group=dist.group.WORLD)
            parameters = [
                nn.Parameter(p.detach().chunk(RANKS)[seat.rank].clone()) for p in parameters
            ]
        a, b = seat.addresses[0][0], seat.addresses[0][RANKS]
        return MendOptimizer(
            Still(parameters),
            name="a" if is_a else "b",
            listen=a if is_a else b,
            peers=[b if is_a else a],
            sync_every=SYNC_EVERY,
            moments=None,
            shards=(lambda name, tensor: split) if is_a else None,
        )


@torch.no_grad()
def _copy(parameters: list[Tensor], copies: list[Tensor]) -> None:
    for copy, parameter in zip(copies, parameters, strict=True):
        copy.copy_(parameter)


def _learn(seat: Seat, optimizer: MendOptimizer) -> list[Round]:
    parameters = optimizer.param_groups[0]["params"]
    copies = list(map(torch.empty_like, parameters))
    watch = Watch()
    watch.on(OwnTensors, "apply", "apply")
    steps: list[list[float]] = []
    floors = []
    optimizer.step()
    for _ in range(WARM + ROUNDS):
        watch.take()
        times = []
        while not watch.count("apply"):
            times.append(pause_then(optimizer.step))
        steps.append(times)
        took = 0.0
        for rank in range(RANKS + 1):
            seat.meet()
            if rank == seat.rank:
                took = pause_then(lambda: _copy(parameters, copies))
        floors.append(took)
        seat.meet()
    idle = median(each for times in steps[WARM:] for each in times)
    syncs = [sum(times) - idle * len(times) for times in steps]
    return [Round(sync, took, idle) for sync, took in zip(syncs, floors, strict=True)][WARM:]


def run() -> Iterator[Result]:
    with tempfile.TemporaryDirectory() as folder:
        learners = run_learners(Plan(str(Path(folder) / "store")), RANKS + 1)
    setting = f"63 M float32 in 240 tensors, {RANKS} ranks and another learner"
    lead, others = learners[0], [each for rank in learners[1:RANKS] for each in rank]
    for who, rounds in (("lead", lead), ("other ranks", others)):
        sync, copy = (
            [1e3 * value for value in column] for column in list(zip(*rounds, strict=True))[:2]
        )
        what = f"training thread per outer sync, {who}"
        notes = f"{setting}; floor = one copy of the rank's part"
        yield compared("ranks", what, "ms", sync, copy, goal=GOAL, notes=notes)
    idle = [1e6 * rank[0].idle for rank in learners[:RANKS]]
    yield plain("ranks", "a step without a sync", "us", idle, setting, goal=STEP_GOAL)
