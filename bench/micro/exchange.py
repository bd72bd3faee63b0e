"""A dense exchange of 25 M parameters between two learners, from the boundary to the correction,
compared with gloo.

    boundary ─snapshot─▶ ─prepare─▶ ─upload─▶ ─inspect─▶ ─merge─▶ ─download─▶ ─advance─▶ adoptable

Rounds alternate with gloo's all-reduce of as many bytes between the same two processes."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import closing
from typing import NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor, nn

from bench.cluster.learners import Seat, Still, run_learners, transformer
from bench.result import Result, compared
from bench.watch import Span, Spans, Watch, seconds
from mend_optim import MendOptimizer
from mend_optim.engine.effects import Advance
from mend_optim.handover import Handover
from mend_optim.runtime.merge_worker import MergeWorker
from mend_optim.runtime.network_side import NetworkSide
from mend_optim.worker import seal_payload
from mend_optim.worker.anchors import Anchors

WIDTH, LAYERS = 512, 8  # 25.2 M elements in 96 tensors
WARM, ROUNDS = 2, 10
ADOPTABLE = "adoptable"
LIMIT_S, POLL_S = 30.0, 5e-3


class Lap(NamedTuple):
    """One round and one all-reduce, as one learner saw them."""

    boundary: float
    spans: Spans
    gloo: Span


def _instrument() -> Watch:
    watch = Watch()
    watch.on(Handover, "_copy", "snapshot")
    watch.on(Anchors, "perform", lambda _, job: type(job).__name__.lower())
    watch.on(seal_payload, "content_digest", "digest")
    watch.on(NetworkSide, "receive", lambda _, message: f"got {type(message).__name__.lower()}")
    watch.on(MergeWorker, "_perform", lambda _, job: ADOPTABLE if isinstance(job, Advance) else "")
    return watch


def _step_to_boundary(optimizer: MendOptimizer, watch: Watch) -> float:
    """Step up to the step that copies the parameters; returns when it began."""
    while True:
        began = time.monotonic()
        optimizer.step()
        if watch.count("snapshot"):
            return began
        time.sleep(POLL_S)


def _round(optimizer: MendOptimizer, watch: Watch) -> tuple[float, Spans]:
    """Step up to the boundary, wait for the correction, and take the step that adopts it."""
    boundary = _step_to_boundary(optimizer, watch)
    given_up = boundary + LIMIT_S
    while not watch.count(ADOPTABLE):
        if time.monotonic() > given_up:
            raise TimeoutError(f"no correction came within {LIMIT_S:g} s")
        time.sleep(POLL_S)  # the span records the exact time
    spans = watch.take()
    optimizer.step()
    return boundary, spans


def _all_reduce(values: Tensor) -> Span:
    began = time.monotonic()
    dist.all_reduce(values)
    return began, time.monotonic()


def _begin_gloo(seat: Seat) -> None:
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    address = seat.addresses[1][0]  # of the second cluster, which has no learners
    dist.init_process_group("gloo", init_method=f"tcp://{address}", rank=seat.rank, world_size=2)


@torch.no_grad()
def _train(parameters: list[nn.Parameter], rank: int) -> None:
    """Change the parameters: unchanged ones would come back in no bytes."""
    for parameter in parameters:
        parameter.add_(1e-3 * (rank + 1))


def _learn(seat: Seat) -> list[Lap]:
    parameters = transformer(WIDTH, LAYERS)
    values = torch.zeros(sum(p.numel() for p in parameters))
    watch = _instrument()
    _begin_gloo(seat)
    laps = []
    with closing(seat.join(Still(parameters), sync_every=2)) as optimizer:
        optimizer.step()  # joins
        for _ in range(WARM + ROUNDS):
            watch.take()
            _train(parameters, seat.rank)
            seat.meet()
            boundary, spans = _round(optimizer, watch)
            seat.meet()
            laps.append(Lap(boundary, spans, _all_reduce(values)))
        seat.meet()
    dist.destroy_process_group()
    return laps[WARM:]


def _took(spans: list[Span]) -> float:
    """Seconds from when both had begun to when both had ended."""
    return max(end for _, end in spans) - max(start for start, _ in spans)


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


def run() -> Iterator[Result]:
    laps = list(zip(*run_learners(_learn, 2, clusters=2), strict=True))
    gloo = [1e3 * _took([lap.gloo for lap in pair]) for pair in laps]
    whole = [
        1e3 * _took([(lap.boundary, lap.spans[ADOPTABLE][-1][1]) for lap in pair]) for pair in laps
    ]
    setting = (
        "25.2 M float32, 2 learners, from the later boundary to the later correction; "
        "floor = gloo all-reduce"
    )
    yield compared(
        "exchange", "boundary to adoptable", "ms", whole, gloo, goal="<= 2.5", notes=setting
    )
    ordered = [sorted(pair, key=lambda lap: "merge" not in lap.spans) for pair in laps]
    parts = [_parts(*pair) for pair in ordered]
    for part in parts[0]:
        yield compared("exchange", f"of it: {part}", "ms", [1e3 * lap[part] for lap in parts], gloo)
