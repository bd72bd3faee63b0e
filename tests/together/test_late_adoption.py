"""Learners that adopt anchors late, and by a gain: their weights, and where they end."""

from __future__ import annotations

import math
from contextlib import closing
from typing import Any

import pytest
import torch
from torch.nn import Parameter
from torch.optim import SGD

from mend_optim import Adoption, MendOptimizer
from mend_optim.worker.merge import MERGES
from tests.support.checkpoints import anchors, load, newcomer, progress, resumed, save
from tests.support.learners import (
    cluster,
    descent,
    drive,
    parameters,
    read,
    same,
    settle,
    start,
    together,
    until,
)

HALF: dict[str, Any] = {"sync_every": 4, "adopt_after": 3, "adoption": Adoption(gain=0.5)}
# The gradients of the two learners. Sums of them and of their halves are exact.
PULL = (1.0, 3.0)


def train(optimizers: list[MendOptimizer], steps: int) -> None:
    drive(optimizers, steps, lambda i, s: PULL[i])


def disagreements(optimizers: list[MendOptimizer]) -> list[bool]:
    return [progress(optimizer).disagrees for optimizer in optimizers]


def drawn(rounds: int, gain: float) -> tuple[list[float], list[float]]:
    """The twin: weights and disagreements of both after so many rounds of four steps, each adopted
    three steps later."""
    weights, rest, anchor = [0.0, 0.0], [0.0, 0.0], 0.0
    deltas = [4 * pull for pull in PULL]
    mean = sum(deltas) / 2
    for _ in range(rounds):
        anchor -= mean
        for i, delta in enumerate(deltas):
            rest[i] = (1 - gain) * (delta + rest[i] - mean)
    for i, pull in enumerate(PULL):
        weights[i] = anchor - rest[i] - 3 * pull
    return weights, rest


@pytest.mark.parametrize("rounds", [1, 2, 4])
def test_weights_go_by_the_gain_to_the_mean_and_with_the_anchor_in_full(rounds: int) -> None:
    with cluster(descent(0.0), descent(0.0), **HALF) as made:
        train(made, 4 * rounds + 3)
        drive(made, 1, lambda i, s: 0.0)
        expected, rest = drawn(rounds, gain=0.5)
        assert [read(o)[0] for o in made] == expected
        assert all(rest)
        assert disagreements(made) == [True, True]


def test_after_a_synchronize_all_weights_are_the_anchor() -> None:
    """To the bit, since no sum of these is rounded. Others are so up to a rounding."""
    with cluster(descent(0.0), descent(0.0), **HALF) as made:
        train(made, 10)
        settle(made)
        assert disagreements(made) == [False, False]
        assert read(made[0]) == [-20.0]
        for optimizer in made:
            assert same(parameters(optimizer), anchors(optimizer))
        assert same(parameters(made[0]), parameters(made[1]))


def test_a_disagreement_is_given_up_at_rest_though_nothing_is_left_to_merge() -> None:
    """The step after the last round changes no weight, and comes before it is adopted."""
    with cluster(descent(0.0), descent(0.0), **HALF) as made:
        train(made, 4)
        for optimizer in made:
            until(optimizer, lambda o=optimizer: progress(o).disagrees)  # type: ignore[misc]
            assert progress(optimizer).pending is None
        settle(made)
        assert [read(o) for o in made] == [[-8.0], [-8.0]]
        assert disagreements(made) == [False, False]


@pytest.mark.parametrize("merge", MERGES)
def test_anchors_do_not_depend_on_gains_which_may_differ_and_all_end_on_them(merge: str) -> None:
    each = [{"adoption": Adoption(gain=0.25)}, {"adoption": "auto"}, {"adoption": Adoption(gain=1)}]
    found = []
    for gains in (each, [{"adoption": Adoption(gain=1)}] * 3):
        inners = [descent(0.0) for _ in gains]
        options = {"sync_every": 4, "adopt_after": 3, "merge": merge, "quorum": 3}
        with cluster(*inners, each=gains, **options) as made:
            drive(made, 12, lambda i, s: (1.0, 3.0, 8.0)[i])
            for o in made:
                until(o, lambda o=o: o.status().fragments[0].version == 3)  # type: ignore[misc]
            found += [anchors(o) for o in made]
            settle(made)
            for o in made:
                torch.testing.assert_close(parameters(o), anchors(o), rtol=1e-5, atol=1e-5)
            assert not any(disagreements(made))
    assert all(same(found[0], other) for other in found[1:])


def test_a_newcomer_has_no_disagreement_and_the_anchor_has_none_of_the_others() -> None:
    with cluster(descent(0.0), descent(0.0), **HALF) as made:
        train(made, 7)
        with closing(newcomer(descent(9.0), "c", *made, **HALF)) as late:
            start([*made, late])
            assert same(parameters(late), anchors(made[0]))
            assert not progress(late).disagrees
            assert same(anchors(late), anchors(made[1]))


# Checkpoints


def open_disagreement() -> Any:
    """Two learners that have saved with a disagreement in their weights."""
    with cluster(descent(0.0), descent(0.0), **HALF) as made:
        train(made, 7)
        drive(made, 1, lambda i, s: 0.0)
        assert disagreements(made) == [True, True]
        return [save(o) for o in made]


def test_a_disagreement_that_was_saved_is_given_up_at_rest() -> None:
    saved = open_disagreement()
    with resumed([lambda: descent(0.0)] * 2, saved, **HALF) as made:
        assert disagreements(made) == [True, True]
        settle(made)
        assert [read(o) for o in made] == [[-14.0], [-14.0]]


def test_weights_other_than_those_saved_have_no_disagreement() -> None:
    (_, state), other = open_disagreement()
    with cluster(descent(0.0), descent(0.0), started=False, **HALF) as made:
        load(made[0], ([torch.full((3,), 100.0)], state))
        load(made[1], other)
        start(made)
        assert disagreements(made) == [False, True]
        settle(made)
        assert same(parameters(made[0]), anchors(made[0]))
        assert same(parameters(made[0]), parameters(made[1]))


# The norm-preserving mean


def plane() -> SGD:
    return SGD([Parameter(torch.zeros(2))], lr=1.0)


def pull(optimizer: MendOptimizer, *values: float) -> None:
    (parameter,) = optimizer.param_groups[0]["params"]
    parameter.grad = torch.tensor(values)
    optimizer.step()


def test_orthogonal_learners_move_the_anchor_by_as_much_as_each_of_them_moved() -> None:
    """√2 times the mean."""
    options = {"merge": "norm_preserving", "sync_every": 1, "adopt_after": 0}
    with cluster(plane(), plane(), **options) as (a, b):
        together(lambda: pull(a, 2.0, 0.0), lambda: pull(b, 0.0, 2.0))
        expected = torch.tensor([-1.0, -1.0]) * math.sqrt(2)
        torch.testing.assert_close(parameters(a)[0], expected)
        assert same(parameters(a), parameters(b))
        assert same(anchors(a), anchors(b))
