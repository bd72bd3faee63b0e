"""Checkpoints: their contents, going on from them to the bit, meeting a cluster that has moved on,
and refusals."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import Parameter
from torch.optim import AdamW, Optimizer

from mend_optim import DiLoCoNesterov, Int8, Nesterov, PowerSGD
from tests.support.checkpoints import adam, anchors, assert_alike, resumed, save
from tests.support.learners import cluster, drive, parameters, same, wave


def narrow() -> Optimizer:
    torch.manual_seed(3)
    return AdamW([Parameter(torch.randn(7).bfloat16()), Parameter(torch.randn(5))], lr=0.1)


# ── to the bit ────────────────────────────────────────────────────────────────────────────────────

CASES: dict[str, tuple[Callable[[], Optimizer], dict[str, Any]]] = {
    "overlap": (adam, {"adopt_after": 3}),
    "synchronous": (adam, {"adopt_after": 0}),
    "fragments": (adam, {"adopt_after": 1, "fragments": 2}),
    "momentum": (adam, {"adopt_after": 4, "outer": Nesterov(gain=0.9, momentum=0.8)}),
    "DiLoCo": (adam, {"adopt_after": 4, "outer": DiLoCoNesterov(lr=0.7, momentum=0.9)}),
    "bf16 offers": (adam, {"adopt_after": 4, "codec": "bf16"}),
    "factors": (adam, {"adopt_after": 4, "codec": PowerSGD(rank=1, min_ratio=1)}),
    "int8 both ways": (adam, {"adopt_after": 4, "codec": Int8(back="same")}),
    "bf16 parameters": (narrow, {"adopt_after": 4}),
}


@cache
def straight(case: str) -> list[tuple[list[Tensor], list[Tensor], dict[str, Any]]]:
    """60 steps: weights, anchors and state of both learners."""
    make, options = CASES[case]
    with cluster(make(), make(), **{"sync_every": 7, **options}) as made:
        drive(made, 60, wave)
        return [
            ([*map(Tensor.clone, parameters(o))], anchors(o), o.inner.state_dict()) for o in made
        ]


@pytest.mark.parametrize("at", [28, 29, 30, 32])
@pytest.mark.parametrize("case", CASES)
def test_going_on_from_a_checkpoint_is_as_if_nothing_had_happened(case: str, at: int) -> None:
    """One run takes 60 steps. Another takes `at` steps, both learners end, and restored ones take
    the rest. Weights, anchors and state agree."""
    make, options = CASES[case]
    options = {"sync_every": 7, **options}  # the last round is adopted at step 60 at the latest
    with cluster(make(), make(), **options) as first:
        drive(first, at, wave)
        saved = [save(o) for o in first]
    with resumed([make, make], saved, **options) as second:
        drive(second, 60 - at, lambda i, s: wave(i, s + at))
        for optimizer, (weights, merged, state) in zip(second, straight(case), strict=True):
            assert same(parameters(optimizer), weights)
            assert same(anchors(optimizer), merged)
            assert_alike(optimizer.inner.state_dict(), state)
            assert optimizer.status().step == 60
