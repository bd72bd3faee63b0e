from __future__ import annotations

import math
from functools import partial
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from mend_optim.errors import UsageError
from mend_optim.worker import outer
from mend_optim.worker.merge import weighted_mean
from mend_optim.worker.outer import (
    DiLoCoNesterov,
    Nesterov,
    Outer,
    correction_between,
    delta,
    disagreement,
    largest,
)
from mend_optim.worker.velocity import Velocity
from tests import reference
from tests.support.strategies import close, vectors

CLASSIC = DiLoCoNesterov()
policies = st.sampled_from(
    [Nesterov(), CLASSIC, Nesterov(gain=0.5), DiLoCoNesterov(lr=1.0, momentum=0.5)]
)


def stepped(
    policy: Outer, anchor: Tensor, merged: Tensor, mine: Tensor | None
) -> tuple[Tensor, Tensor]:
    """The new anchor and the correction, of a first outer step."""
    new, correction = anchor.clone(), torch.full_like(anchor, torch.nan)
    Velocity(policy, anchor).move(None, new, merged, own=mine, correction=correction)
    return new, correction


def trajectory(policy: Outer, deltas: list[Tensor], start: Tensor) -> list[list[float]]:
    anchor, velocity = start.clone(), Velocity(policy, start)
    found = []
    for merged in deltas:
        velocity.move(None, anchor, merged, own=None, correction=torch.empty_like(anchor))
        found.append(anchor.tolist())
    return found


def test_three_rounds_by_hand() -> None:
    found = trajectory(CLASSIC, [torch.ones(1)] * 3, torch.zeros(1))
    assert [x for (x,) in found] == pytest.approx([-1.33, -3.227, -5.6343])


@given(policies, vectors(6, 3))
def test_the_outer_step_is_the_textbooks(policy: Outer, drawn: list[Tensor]) -> None:
    start, *deltas = drawn
    lr = policy.lr if isinstance(policy, DiLoCoNesterov) else policy.gain
    expected = reference.nesterov(lr, policy.momentum, start.tolist(), [d.tolist() for d in deltas])
    for found, twin in zip(trajectory(policy, deltas, start), expected, strict=True):
        assert found == pytest.approx(twin, rel=1e-5, abs=0.02)


@given(vectors(2, 4))
def test_the_default_is_plain_averaging_to_the_bit(drawn: list[Tensor]) -> None:
    anchor, merged = drawn
    assert torch.equal(stepped(Nesterov(), anchor, merged, None)[0], anchor - merged)


def test_under_a_constant_delta_gain_grows_from_1_33_to_7() -> None:
    found = [0.0, *(x for (x,) in trajectory(CLASSIC, [torch.ones(1)] * 200, torch.zeros(1)))]
    assert found[0] - found[1] == pytest.approx(0.7 * 1.9)
    assert found[-2] - found[-1] == pytest.approx(0.7 / (1 - 0.9), rel=1e-3)


@given(vectors(5, 3), st.sampled_from([0.1, 0.5, 1.0]))
def test_one_sgd_step_a_round_is_training_on_the_averaged_gradient(
    drawn: list[Tensor], lr: float
) -> None:
    weights, *gradients = drawn
    deltas = [delta(weights, weights - lr * gradient) for gradient in gradients]
    merged = weighted_mean(deltas, [0.25] * 4, torch.empty(3))
    expected = weights - lr * torch.stack(gradients).mean(0)
    assert close(stepped(Nesterov(), weights, merged, None)[0], expected)


@given(policies, vectors(4, 3))
def test_a_merged_learner_moves_by_the_new_anchor_minus_its_snapshot(
    policy: Outer, drawn: list[Tensor]
) -> None:
    anchor, snapshot, merged, later = drawn
    mine = delta(anchor, snapshot.clone())
    new, correction = stepped(policy, anchor, merged, mine)
    assert close(snapshot + later + correction, snapshot + later + (new - snapshot))


@given(policies, vectors(3, 3))
def test_an_unmerged_learner_moves_as_the_anchor_does(policy: Outer, drawn: list[Tensor]) -> None:
    anchor, weights, merged = drawn
    new, correction = stepped(policy, anchor, merged, None)
    assert close(weights + correction, weights + (new - anchor))


@given(policies, vectors(3, 3))
def test_unmerged_progress_is_the_same_on_the_next_anchor(
    policy: Outer, drawn: list[Tensor]
) -> None:
    anchor, weights, merged = drawn
    new, correction = stepped(policy, anchor, merged, None)
    assert close(delta(new, weights + correction), delta(anchor, weights.clone()))


@given(policies, vectors(3, 3))
def test_alone_in_a_round_the_plain_step_changes_no_weight(
    policy: Outer, drawn: list[Tensor]
) -> None:
    """A learner whose own delta is the merged one stands on the new anchor, wherever that is."""
    anchor, weights, _ = drawn
    mine = delta(anchor, weights.clone())
    new, correction = stepped(policy, anchor, mine, mine)
    assert close(weights + correction, new)
    assert policy != Nesterov() or close(new, weights)


@given(vectors(3, 3))
def test_taking_a_whole_anchor_corrects_as_its_seal_would_have(drawn: list[Tensor]) -> None:
    anchor, merged, mine = drawn
    for own in (None, mine):
        new, correction = stepped(Nesterov(), anchor, merged, own)
        assert torch.equal(correction_between(anchor, new, own, torch.empty(3)), correction)


@given(vectors(2, 4), st.floats(0.01, 0.99))
def test_the_disagreement_that_is_kept_is_the_twins(drawn: list[Tensor], gain: float) -> None:
    own, mean = drawn
    rest, _ = reference.kept(own.tolist(), mean.tolist(), gain)
    before = own.clone()
    assert disagreement(own, -mean, gain).tolist() == pytest.approx(rest, rel=1e-5, abs=5e-3)
    assert torch.equal(own, before)


def test_delta_is_written_over_the_snapshot() -> None:
    anchor, snapshot = torch.tensor([3.0]), torch.tensor([1.0])
    assert delta(anchor, snapshot) is snapshot
    assert (anchor.item(), snapshot.item()) == (3, 2)


def test_the_step_reads_merged_and_mine_but_never_writes_them() -> None:
    merged, mine = torch.tensor([2.0]), torch.tensor([5.0])
    stepped(CLASSIC, torch.ones(1), merged, mine)
    assert (merged.item(), mine.item()) == (2, 5)


@pytest.mark.parametrize("size", [1, 7, 31, 999])
def test_the_block_size_changes_no_bit(size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    generator = torch.Generator().manual_seed(0)
    anchor, merged, mine = (torch.randn(1003, generator=generator) for _ in range(3))
    whole = stepped(CLASSIC, anchor, merged, mine)
    monkeypatch.setattr(outer, "blocks", partial(outer.blocks, size=size))
    assert all(
        torch.equal(a, b)
        for a, b in zip(stepped(CLASSIC, anchor, merged, mine), whole, strict=True)
    )


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"gain": 0}, r"outer.gain must be in \(0, 10\], got 0"),
        ({"gain": 11.0}, r"outer.gain must be in \(0, 10\], got 11.0"),
        ({"gain": float("nan")}, "outer.gain .* got nan"),
        ({"gain": "1"}, "outer.gain .* got '1'"),
        ({"momentum": 1}, r"outer.momentum must be in \[0, 1\), got 1"),
        ({"momentum": -0.1}, "outer.momentum .* got -0.1"),
        ({"momentum": None}, "outer.momentum .* got None"),
    ],
)
def test_a_wrong_policy_is_named(wrong: dict[str, Any], words: str) -> None:
    with pytest.raises(UsageError, match=words):
        Nesterov(**wrong)


@given(vectors(1, 7))
def test_the_largest_element_is_that_of_the_absolute_values(drawn: list[Tensor]) -> None:
    assert largest(drawn[0]) == max(abs(value) for value in drawn[0].tolist())


@pytest.mark.parametrize("place", range(3))
def test_the_largest_of_elements_of_which_one_is_nan_is_nan(place: int) -> None:
    values = torch.tensor([-2.0, 1.0, 3.0])
    values[place] = torch.nan
    assert math.isnan(largest(values))
    assert largest(torch.tensor([1.0, -torch.inf])) == math.inf
    assert largest(torch.empty(0)) == 0.0
