"""The memory on the host that a learner takes, for each codec: bytes per parameter beyond those of
the model and its gradients, at the peak of some rounds and at rest after them.

Two or four learners are processes of their own. The kernel counts their resident memory. An
optimizer without state leaves weights and gradients as the only other memory that grows with the
model. Rounds are in lockstep, so that every learner is in each of them, and adopted late, so that
there is a disagreement."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import NamedTuple

import torch
from torch.optim import SGD

from bench.cluster.learners import Seat, run_learners, transformer
from bench.result import Result, plain

WIDTH, LAYERS = 512, 8  # 25.2 M elements in 96 tensors
CODECS = ("none", "bf16", "int8", "int4", "sparse", "powersgd")
PERIOD, LATE, ROUNDS, STEP_S = 20, 10, 4, 0.05
SETTLE_S = 60.0


class Memory(NamedTuple):
    """Bytes per parameter, of one learner."""

    peak: float
    rest: float


def resident(field: str) -> int:
    """Bytes of this process, as the kernel counts them: "VmRSS" now, "VmHWM" at the peak."""
    for line in Path("/proc/self/status").read_text().splitlines():
        name, _, value = line.partition(":")
        if name == field:
            return 1024 * int(value.split()[0])
    raise RuntimeError(f"the kernel does not tell {field}")


def forget_peak() -> None:
    """The peak that the kernel counts begins anew."""
    Path("/proc/self/clear_refs").write_text("5")


def _learn(codec: str, fragments: int | str, seat: Seat) -> Memory:
    parameters = transformer(WIDTH, LAYERS)
    draws = torch.Generator().manual_seed(seat.rank)
    for parameter in parameters:
        parameter.grad = torch.randn(parameter.shape, generator=draws)
    inner = SGD(parameters, lr=1e-3)
    inner.step()
    before = resident("VmRSS")
    options = {"codec": codec, "fragments": fragments, "moments": None}
    place = seat.join(inner, sync_every=PERIOD, adopt_after=LATE, **options)
    with closing(place) as optimizer:
        optimizer.join()
        seat.meet()
        forget_peak()
        for _ in range(PERIOD * ROUNDS):
            due = time.monotonic() + STEP_S
            optimizer.step()
            time.sleep(max(0.0, due - time.monotonic()))
        peak = resident("VmHWM")
        seat.meet()
        if not optimizer.synchronize(SETTLE_S):
            raise TimeoutError(f"not all was merged within {SETTLE_S:g} s")
        seat.meet()
        rest = resident("VmRSS")
        seat.meet()
    count = sum(parameter.numel() for parameter in parameters)
    return Memory((peak - before) / count, (rest - before) / count)


def run() -> Iterator[Result]:
    for codec in CODECS:
        for learners, fragments in ((2, 1), (2, "auto"), (4, "auto")):
            found = run_learners(partial(_learn, codec, fragments), learners)
            what = f"{codec}, {learners} learners, fragments={fragments!r}"
            for name in Memory._fields:
                values = [getattr(memory, name) for memory in found]
                text = f"bytes per parameter, {name}, {what}"
                yield plain("memory", text, "B", values, notes="n: the learners")
