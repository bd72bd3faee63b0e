"""The gain-normalised outer optimizer in real learners: `lr` is each learner's own, and changes
from step to step."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from typing import Any

import pytest
from torch import Tensor
from torch.optim import Optimizer

from mend_optim import Adoption, MendOptimizer, Nesterov
from tests.support.checkpoints import adam, anchors, newcomer, resumed, save
from tests.support.learners import (
    cluster,
    descent,
    drive,
    parameters,
    read,
    same,
    settle,
    start,
    step,
    together,
    wave,
)

OUTER = Nesterov(gain=0.9, momentum=0.8)
EXACT: dict[str, Any] = {"adoption": Adoption(gain=1.0)}


def schedule(i: int, s: int) -> float:
    """The learning rate of a step: a warm-up from 0, then a cosine's worth of nonsense."""
    return min(s, 5) * (3 + (5 * i + s) % 4) / 100


def train(optimizers: list[MendOptimizer], steps: range, grad: Callable[[int, int], float]) -> None:
    """These steps of each, at the learning rates of the schedule."""

    def loop(i: int) -> None:
        for s in steps:
            for group in optimizers[i].param_groups:
                group["lr"] = schedule(i, s)
            step(optimizers[i], grad(i, s))

    together(*(lambda i=i: loop(i) for i in range(len(optimizers))))


def velocities(optimizer: MendOptimizer) -> list[Tensor]:
    """b and s of every fragment, each under its own name."""
    fragments = optimizer.state_dict()["mend"]["fragments"]
    return [f["tensors"][name] for f in fragments for name in ("velocity", "velocity_rate")]


@pytest.mark.parametrize("sync_every", [1, 3, 7])
def test_on_a_straight_path_it_is_plain_averaging(sync_every: int) -> None:
    """Whatever the momentum, the period and the learning rates."""
    options = {"sync_every": sync_every, "adopt_after": 0, **EXACT}
    with cluster(descent(0.0), descent(0.0), outer=Nesterov(momentum=0.9), **options) as optimizers:
        train(optimizers, range(4 * sync_every), lambda i, s: 1.0)
        way = sum(schedule(i, s) for i in range(2) for s in range(4 * sync_every)) / 2
        assert [read(o) for o in optimizers] == [[pytest.approx(-way, rel=1e-5)]] * 2


def test_learners_of_different_rates_agree_to_the_bit_and_a_newcomer_with_them() -> None:
    options: dict[str, Any] = {"sync_every": 5, "fragments": 2, "outer": OUTER}
    with cluster(adam(), adam(), adam(), **options) as made:
        train(made, range(23), wave)
        settle(made)
        c = newcomer(adam(), "d", *made, **options)
        with closing(c):
            made.append(c)
            start(made)
            train(made, range(23, 41), wave)
            settle(made)
            for other in made[1:]:
                assert same(anchors(made[0]), anchors(other))
                assert same(velocities(made[0]), velocities(other))
            assert all(bool(tensor.any()) for tensor in velocities(c))


@pytest.mark.parametrize("at", [9, 10, 11, 12])
def test_going_on_from_a_checkpoint_is_as_if_nothing_had_happened(at: int) -> None:
    """Also with the rates of an offer on its way, and of steps that are in no offer yet."""
    make: Callable[[], Optimizer] = adam
    # The last round is adopted at step 32.
    options = {"sync_every": 5, "adopt_after": 2, "outer": OUTER, **EXACT}
    with cluster(make(), make(), **options) as made:
        train(made, range(33), wave)
        straight = [(parameters(o), anchors(o), velocities(o)) for o in made]
    with cluster(make(), make(), **options) as first:
        train(first, range(at), wave)
        saved = [save(o) for o in first]
    with resumed([make, make], saved, **options) as second:
        train(second, range(at, 33), wave)
        for optimizer, (weights, merged, held) in zip(second, straight, strict=True):
            assert same(parameters(optimizer), weights)
            assert same(anchors(optimizer), merged)
            assert same(velocities(optimizer), held)


def test_without_momentum_no_rate_is_counted() -> None:
    with cluster(descent(0.0), descent(0.0), sync_every=2, adopt_after=0) as made:
        drive(made, 3, wave)
        for optimizer in made:
            state = optimizer.state_dict()["mend"]
            assert "rate" not in state
            assert "velocity" not in state["fragments"][0]["tensors"]


def test_alone_the_rates_are_counted_too() -> None:
    """Peers may come, and a checkpoint may go on among some."""
    optimizer = MendOptimizer(descent(0.0, lr=0.25), outer=OUTER)
    drive([optimizer], 3, wave)
    state = optimizer.state_dict()
    assert state["mend"]["rate"] == 0.75
    other = MendOptimizer(descent(0.0), outer=OUTER)
    for parameter, value in zip(parameters(other), parameters(optimizer), strict=True):
        parameter.copy_(value)
    other.load_state_dict(state)
    drive([other], 1, wave)
    assert other.state_dict()["mend"]["rate"] == 1.0
