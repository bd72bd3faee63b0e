"""The memory of a learner with fragments, beside that of one without."""

from __future__ import annotations

from unittest.mock import patch

import pytest
import torch
from torch.nn import Parameter
from torch.optim import SGD

from mend_optim import own_tensors, settings
from tests.support.counted_buffers import CountedBuffers
from tests.support.learners import cluster, drive

TENSORS, SIDE, PERIOD = 8, 256, 8


def model() -> SGD:
    draws = torch.Generator().manual_seed(0)
    tensors = [torch.randn(SIDE, SIDE, generator=draws) for _ in range(TENSORS)]
    return SGD([Parameter(tensor) for tensor in tensors], lr=1e-3)


def peak(codec: str, fragments: int) -> float:
    """The most that two learners of a run in lockstep have in use at a time, in bytes per parameter
    of one: of their tensors, their packets, and the messages that they receive."""
    pools: list[CountedBuffers] = []

    def pool(**_: int) -> CountedBuffers:
        pools.append(CountedBuffers())
        return pools[-1]

    options = {"sync_every": PERIOD, "adopt_after": 0, "moments": None}
    with (
        patch.object(own_tensors, "Buffers", pool),
        patch.object(settings, "Buffers", pool),
        cluster(model(), model(), codec=codec, fragments=fragments, **options) as optimizers,
    ):
        drive(optimizers, 2 * PERIOD, lambda i, s: 0.1 + i + s)
        for counted in pools:
            counted.peak = 0
        drive(optimizers, 2 * PERIOD, lambda i, s: 0.2 + i + s)
        assert len(pools) == 4
        return sum(counted.peak for counted in pools) / (TENSORS * SIDE * SIDE)


@pytest.mark.parametrize("codec", ["none", "int8"])
def test_with_eight_fragments_a_run_takes_about_half_of_the_memory(codec: str) -> None:
    """Not an eighth: a learner's residuals, and the newest seal of each fragment, stay. How many
    rounds are under way at a time is up to the threads."""
    assert peak(codec, 8) < 0.6 * peak(codec, 1)
