"""Rounds between two learners of 25 M parameters in processes of their own, and the times of their
parts."""

from __future__ import annotations

import time
from collections.abc import Sequence

import torch
from torch import nn

from bench.watch import Span, Spans, Watch
from mend_optim import MendOptimizer
from mend_optim.engine.effects import Advance
from mend_optim.own_tensors import OwnTensors
from mend_optim.runtime.merge_worker import MergeWorker
from mend_optim.runtime.network_side import NetworkSide
from mend_optim.worker.anchors import Anchors
from mend_optim.worker.seal_payload import SealPayload

WIDTH, LAYERS = 512, 8  # 25.2 M elements in 96 tensors
ADOPTABLE = "adoptable"
LIMIT_S, POLL_S = 30.0, 5e-3


def instrument() -> Watch:
    """Watch all rounds of this process's learners."""
    watch = Watch()
    watch.on(OwnTensors, "copy", "snapshot")
    watch.on(Anchors, "perform", lambda _, job: type(job).__name__.lower())
    watch.on(SealPayload, "digest", "digest")
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


def take_round(optimizer: MendOptimizer, watch: Watch) -> tuple[float, Spans]:
    """Step up to the boundary, wait for the correction, and take the step that adopts it. Returns
    when the boundary was, and the spans of the round."""
    boundary, spans = take_boundary(optimizer, watch, 1)
    optimizer.step()
    return boundary, spans


def take_boundary(optimizer: MendOptimizer, watch: Watch, fragments: int) -> tuple[float, Spans]:
    """Step up to the boundary of so many fragments, and wait for their corrections. The next step
    adopts them. Returns when the boundary was, and the spans of the rounds."""
    boundary = _step_to_boundary(optimizer, watch)
    given_up = boundary + LIMIT_S
    while watch.count(ADOPTABLE) < fragments:
        if time.monotonic() > given_up:
            raise TimeoutError(f"no correction came within {LIMIT_S:g} s")
        time.sleep(POLL_S)  # the span records the exact time
    return boundary, watch.take()


@torch.no_grad()
def train(parameters: Sequence[nn.Parameter], rank: int) -> None:
    """Change the parameters: unchanged ones would come back in no bytes."""
    for parameter in parameters:
        parameter.add_(1e-3 * (rank + 1))


def took(spans: Sequence[Span]) -> float:
    """Seconds from when both had begun to when both had ended."""
    return max(end for _, end in spans) - max(start for start, _ in spans)
