"""Checkpoints: their contents, going on from them to the bit, meeting a cluster that has moved on,
and refusals."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import cache, partial
from itertools import cycle
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import Parameter
from torch.optim import SGD, AdamW, Optimizer

from mend_optim import (
    Adoption,
    DiLoCoNesterov,
    Int8,
    MendOptimizer,
    Nesterov,
    PowerSGD,
    UsageError,
)
from tests.support.checkpoints import adam, anchors, assert_alike, progress, resumed, save
from tests.support.depth import DEEP
from tests.support.learners import (
    TIMING,
    cluster,
    descent,
    drive,
    parameters,
    read,
    same,
    until,
    wave,
)

#: A learner that a busy machine has kept waiting must not be suspected: rounds would go on without
#: it.
PATIENT = replace(TIMING, beat_s=1.0)

#: So many steps that each fragment has one of its own.
DIVIDED = {"sync_every": 4, "adopt_after": 0}


def narrow() -> Optimizer:
    torch.manual_seed(3)
    return AdamW([Parameter(torch.randn(7).bfloat16()), Parameter(torch.randn(5))], lr=0.1)


def covering(cases: Iterable[str], places: Sequence[int]) -> list[tuple[str, int]]:
    """Each case at two of these steps, and each step with as many cases; with DEEP=1 all of
    them."""
    if DEEP:
        return [(case, at) for case in cases for at in places]
    turns = cycle(places)
    return [(case, next(turns)) for case in cases for _ in range(2)]


# ── to the bit ────────────────────────────────────────────────────────────────────────────────────

GAINS: dict[str, dict[str, Any]] = {
    "late": {"adopt_after": 4},
    "fragments": {"adopt_after": 2, "adoption": Adoption(gain=0.25), "fragments": 2},
    "momentum": {"adopt_after": 4, "outer": DiLoCoNesterov(lr=0.7, momentum=0.9)},
    "norm-preserving": {"adopt_after": 4, "merge": "norm_preserving"},
    "factors": {"adopt_after": 4, "codec": PowerSGD(rank=1, min_ratio=1)},
}

CASES: dict[str, tuple[Callable[[], Optimizer], dict[str, Any]]] = {
    "overlap": (adam, {"adopt_after": 3}),
    "synchronous": (adam, {"adopt_after": 0}),
    "norm-preserving": (adam, {"adopt_after": 4, "merge": "norm_preserving"}),
    "fragments": (adam, {"adopt_after": 1, "fragments": 2}),
    "momentum": (adam, {"adopt_after": 4, "outer": Nesterov(gain=0.9, momentum=0.8)}),
    "DiLoCo": (adam, {"adopt_after": 4, "outer": DiLoCoNesterov(lr=0.7, momentum=0.9)}),
    "bf16 offers": (adam, {"adopt_after": 4, "codec": "bf16"}),
    "factors": (adam, {"adopt_after": 4, "codec": PowerSGD(rank=1, min_ratio=1)}),
    "int8": (adam, {"adopt_after": 4, "codec": "int8"}),
    "int8 both ways": (adam, {"adopt_after": 4, "codec": Int8(back="same")}),
    "bf16 parameters": (narrow, {"adopt_after": 4}),
}
#: The sealer of these gives up its residual if it takes the whole anchor of a round that was sealed
#: after its checkpoint, and before that of another learner.
SEALERS_KEEP = {"int8 both ways"}


@cache
def straight(case: str) -> list[tuple[list[Tensor], list[Tensor], dict[str, Any]]]:
    """60 steps: weights, anchors and state of both learners."""
    make, options = CASES[case]
    with cluster(make(), make(), **{"sync_every": 7, "timing": PATIENT, **options}) as made:
        drive(made, 60, wave)
        return outcome(made)


def outcome(
    made: Sequence[MendOptimizer],
) -> list[tuple[list[Tensor], list[Tensor], dict[str, Any]]]:
    return [([*map(Tensor.clone, parameters(o))], anchors(o), o.inner.state_dict()) for o in made]


def settled(optimizers: Sequence[MendOptimizer]) -> None:
    """Wait until all that is offered is merged everywhere."""
    for o in optimizers:
        for p in range(len(o.status().fragments)):
            until(o, lambda o=o, p=p: progress(o, p).pending is None)  # type: ignore[misc]


@pytest.mark.parametrize(("case", "at"), covering(CASES, [28, 30, 29, 32]))
def test_going_on_from_a_checkpoint_is_as_if_nothing_had_happened(case: str, at: int) -> None:
    """One run takes 60 steps. Another takes `at` steps, both learners end, and restored ones take
    the rest. Weights, anchors and state agree."""
    make, options = CASES[case]
    # The last round is adopted at step 60 at the latest.
    options = {"sync_every": 7, "timing": PATIENT, **options}
    with cluster(make(), make(), **options) as first:
        drive(first, at, wave)
        if case in SEALERS_KEEP:
            settled(first)
        saved = [save(o) for o in first]
    with resumed([make, make], saved, **options) as second:
        drive(second, 60 - at, lambda i, s: wave(i, s + at))
        for optimizer, (weights, merged, state) in zip(second, straight(case), strict=True):
            assert same(parameters(optimizer), weights)
            assert same(anchors(optimizer), merged)
            assert_alike(optimizer.inner.state_dict(), state)
            assert optimizer.status().step == 60


def test_weights_of_another_dtype_are_still_those_of_the_checkpoint() -> None:
    """Unmerged work stays, as these weights are in both dtypes without a rounding."""
    wide, narrow = (
        partial(descent, 1.0, -2.0, dtype=dtype, lr=0.25)
        for dtype in (torch.float64, torch.float32)
    )
    with cluster(wide(), wide(), sync_every=100) as first:
        drive(first, 3, lambda i, s: 1.0 + i)
        saved = [save(o) for o in first]
    with resumed([narrow, narrow], saved, sync_every=100) as second:
        assert [(o.status().unmerged_tokens, o.status().dropped_tokens) for o in second] == [
            (3, 0),
            (3, 0),
        ]
        assert read(second[1]) == [1.0 - 1.5, -2.0 - 1.5]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("mixed", [False, True])
def test_wider_weights_have_what_the_narrow_ones_had_lost(dtype: torch.dtype, mixed: bool) -> None:
    """Otherwise the loss would count as progress, which the next offer takes out of the anchor."""

    def make(*dtypes: torch.dtype) -> Optimizer:
        return SGD([Parameter((torch.arange(5) / 7).to(each)) for each in dtypes], lr=0.01)

    with cluster(make(dtype, dtype), make(dtype, dtype), sync_every=2, adopt_after=0) as first:
        drive(first, 16, lambda i, s: (i + s) / 3)
        saved = [save(o) for o in first]
    lost = saved[0][1]["mend"]["fragments"][0]["tensors"]["rounding"]
    assert lost[:5].any()
    assert lost[5:].any()
    makes = [partial(make, torch.float32, dtype if mixed else torch.float32)] * 2
    with resumed(makes, saved, sync_every=2, adopt_after=0) as second:
        (wide, other), (was_wide, was_other) = parameters(second[0]), saved[0][0]
        assert torch.equal(wide, was_wide.float() + lost[:5])
        assert torch.equal(other, was_other if mixed else was_other.float() + lost[5:])
        if mixed:
            kept = second[0].state_dict()["mend"]["fragments"][0]["tensors"]["rounding"]
            assert torch.equal(kept, torch.cat([torch.zeros(5), lost[5:]]))
        assert second[0].status().unmerged_tokens == first[0].status().unmerged_tokens
        assert torch.allclose(wide, anchors(second[0])[0], rtol=0, atol=1e-6)


@pytest.mark.parametrize(("case", "at"), covering(GAINS, [28, 33, 30]))
def test_going_on_with_a_disagreement_is_as_if_nothing_had_happened(case: str, at: int) -> None:
    """All offers are merged when it is saved; the correction is applied, or is not."""
    options = {"sync_every": 7, **GAINS[case]}  # no round is open at step 61
    with cluster(adam(), adam(), **options) as made:
        drive(made, 61, wave)
        straight = outcome(made)
    with cluster(adam(), adam(), **options) as first:
        drive(first, at, wave)
        settled(first)
        assert all(progress(o).disagrees for o in first)
        saved = [save(o) for o in first]
    with resumed([adam, adam], saved, **options) as second:
        drive(second, 61 - at, lambda i, s: wave(i, s + at))
        assert_alike(outcome(second), straight)


def test_a_second_checkpoint_may_have_another_number_of_fragments() -> None:
    """That of the first one was nobody's wish."""

    def tensors() -> Optimizer:
        return AdamW([Parameter(torch.ones(4)) for _ in range(6)], lr=0.1)

    def saved(fragments: int) -> dict[str, Any]:
        with cluster(tensors(), tensors(), fragments=fragments, **DIVIDED) as optimizers:
            drive(optimizers, 6, wave)
            return optimizers[0].state_dict()

    with cluster(tensors(), started=False, **DIVIDED) as (optimizer,):
        for fragments in (3, 2):
            optimizer.load_state_dict(saved(fragments))
        optimizer.join()
        assert len(optimizer.status().fragments) == 2
        with pytest.raises(UsageError, match="got 3: pass fragments=3 to a new MendOptimizer"):
            optimizer.load_state_dict(saved(3))
