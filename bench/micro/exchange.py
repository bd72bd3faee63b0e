"""A dense exchange of 25 M parameters between two learners, from the boundary to the correction,
compared with gloo.

    boundary ─snapshot─▶ ─prepare─▶ ─upload─▶ ─inspect─▶ ─merge─▶ ─download─▶ ─advance─▶ adoptable

Rounds alternate with gloo's all-reduce of the float32 values between the same two processes. Then
the same is measured with two codecs, and with the fragments that the size of the model gives, all
of them at one boundary. Their rounds overlap.

The processor time of a round is that of all threads but the training thread, of both learners, over
one copy of the parameters by each."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Sequence
from contextlib import closing
from functools import partial
from typing import NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor

from bench.cluster.learners import Seat, Still, run_learners, transformer
from bench.micro.rounds import (
    ADOPTABLE,
    LAYERS,
    WIDTH,
    instrument,
    take_boundary,
    take_round,
    took,
    train,
)
from bench.result import Result, compared
from bench.watch import Span, Spans, seconds
from mend_optim import AutoPeriod

WARM, ROUNDS = 2, 10
#: By codec, the goal of an exchange over gloo's all-reduce of float32.
GOALS = {"none": "<= 2.0", "int8": "<= 1.2", "int4": "<= 1.0"}


class Lap(NamedTuple):
    """One round and one all-reduce, as one learner saw them."""

    boundary: float
    spans: Spans
    gloo: Span
    #: Processor seconds of the threads in the background, and those of one copy of the parameters.
    background: float = 0.0
    copy: float = 0.0


def _all_reduce(values: Tensor) -> Span:
    began = time.monotonic()
    dist.all_reduce(values)
    return began, time.monotonic()


def _background() -> float:
    """The processor seconds of this process that were not of its training thread."""
    return time.process_time() - time.thread_time()


def _copy(values: Tensor, into: Tensor) -> float:
    began = time.thread_time()
    into.copy_(values)
    return time.thread_time() - began


def _begin_gloo(seat: Seat) -> None:
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    address = seat.addresses[1][0]  # of the second cluster, which has no learners
    dist.init_process_group("gloo", init_method=f"tcp://{address}", rank=seat.rank, world_size=2)


def _learn(codec: str, seat: Seat) -> list[Lap]:
    """Rounds of one fragment."""
    parameters = transformer(WIDTH, LAYERS)
    values = torch.zeros(sum(p.numel() for p in parameters))
    copies = torch.zeros_like(values)
    watch = instrument()
    _begin_gloo(seat)
    laps = []
    place = seat.join(Still(parameters), sync_every=2, group=None, codec=codec)
    with closing(place) as optimizer:
        optimizer.step()  # joins
        for _ in range(WARM + ROUNDS):
            watch.take()
            train(parameters, seat.rank)
            seat.meet()
            before = _background()
            boundary, spans = take_round(optimizer, watch)
            seat.meet()
            spent = _background() - before
            copied = _copy(values, copies)
            laps.append(Lap(boundary, spans, _all_reduce(values), spent, copied))
        seat.meet()
    dist.destroy_process_group()
    return laps[WARM:]


def _learn_divided(seat: Seat) -> list[Lap]:
    """Rounds of several fragments at once."""
    parameters = transformer(WIDTH, LAYERS)
    values = torch.zeros(sum(p.numel() for p in parameters))
    watch = instrument()
    _begin_gloo(seat)
    laps = []
    every_step = AutoPeriod(least=1, most=1)
    place = seat.join(Still(parameters), sync_every=every_step, fragments="auto", group=None)
    with closing(place) as optimizer:
        optimizer.join()
        fragments = len(optimizer.status().fragments)
        for _ in range(WARM + ROUNDS):
            train(parameters, seat.rank)
            seat.meet()
            boundary, spans = take_boundary(optimizer, watch, fragments)
            seat.meet()
            laps.append(Lap(boundary, spans, _all_reduce(values)))
        seat.meet()
    dist.destroy_process_group()
    return laps[WARM:]


def _parts(sealer: Lap, other: Lap) -> dict[str, float]:
    """The times of the parts of a round, along the path of the offer that travels."""
    mine, theirs = sealer.spans, other.spans
    return {
        "snapshot": seconds(theirs["snapshot"]),
        "prepare": seconds(theirs["prepare"]),
        "upload": mine["got offer"][-1][0] - theirs["prepare"][-1][1],
        "inspect": mine["merge"][0][0] - mine["got offer"][-1][0],
        "merge": seconds(mine["merge"]),
        "download": theirs["got seal"][-1][0] - mine["merge"][0][1],
        "advance": seconds(theirs["advance"]),
        "digest, in merge and advance": seconds(mine["digest"][:1]) + seconds(theirs["digest"][:1]),
    }


def _whole(what: str, laps: Sequence[tuple[Lap, ...]], goal: str = GOALS["none"]) -> Result:
    gloo = [1e3 * took([lap.gloo for lap in pair]) for pair in laps]
    times = [
        1e3 * took([(lap.boundary, lap.spans[ADOPTABLE][-1][1]) for lap in pair]) for pair in laps
    ]
    setting = (
        "25.2 M float32, 2 learners, from the later boundary to the later correction; "
        "floor = gloo all-reduce"
    )
    return compared("exchange", what, "ms", times, gloo, goal=goal, notes=setting)


def _spent(what: str, laps: Sequence[tuple[Lap, ...]]) -> Result:
    spent = [1e3 * sum(lap.background for lap in pair) for pair in laps]
    copies = [1e3 * sum(lap.copy for lap in pair) for pair in laps]
    setting = "of both learners, without their training threads; floor = one copy by each"
    return compared("exchange", what, "ms", spent, copies, notes=setting)


def run() -> Iterator[Result]:
    found = {
        codec: list(zip(*run_learners(partial(_learn, codec), 2, clusters=2), strict=True))
        for codec in GOALS
    }
    for codec, goal in GOALS.items():
        yield _whole(f"boundary to adoptable, {codec}", found[codec], goal)
        yield _spent(f"processor time in the background, {codec}", found[codec])
    laps = found["none"]
    divided = list(zip(*run_learners(_learn_divided, 2, clusters=2), strict=True))
    count = len(divided[0][0].spans[ADOPTABLE])
    yield _whole(f"boundary to all of {count} fragments adoptable", divided)
    gloo = [1e3 * took([lap.gloo for lap in pair]) for pair in laps]
    ordered = [sorted(pair, key=lambda lap: "merge" not in lap.spans) for pair in laps]
    parts = [_parts(*pair) for pair in ordered]
    for part in parts[0]:
        yield compared("exchange", f"of it: {part}", "ms", [1e3 * lap[part] for lap in parts], gloo)
