"""Learners that start together, each with first weights of its own."""

from __future__ import annotations

from contextlib import closing
from typing import Any

import pytest
import torch
from torch.nn import Parameter
from torch.optim import SGD, AdamW, Optimizer

from mend_optim import MendOptimizer
from tests.support.addresses import free_addresses
from tests.support.checkpoints import newcomer
from tests.support.learners import Watch, cluster, drive, read, step, together, weights
from tests.support.two_steps import SAM, gradient

TRAINED = 3.0


def trained_elsewhere() -> Optimizer:
    """A bare optimizer that was trained before it is wrapped; its parameter is `TRAINED` now."""
    inner = SGD(weights(TRAINED + 1), lr=1.0, momentum=0.5)
    step(inner, 1.0)
    return inner


def fresh(first: float) -> Optimizer:
    return SGD(weights(first), lr=1.0, momentum=0.5)


def each_names_the_others(count: int, watch: Watch) -> list[dict[str, Any]]:
    """Options of learners that wait for one another."""
    addresses = free_addresses(count)
    return [
        {"listen": own, "peers": [a for a in addresses if a != own], "on_event": watch}
        for own in addresses
    ]


@pytest.mark.parametrize("first", [-8.0, 0.5, 70.0, 900.0])
@pytest.mark.parametrize("place", [0, 1, 2])
def test_all_take_those_that_were_trained(place: int, first: float) -> None:
    inners = [fresh(first), fresh(2 * first)]
    inners.insert(place, trained_elsewhere())
    watch = Watch()
    with cluster(*inners, each=each_names_the_others(3, watch)) as optimizers:
        assert [read(optimizer) for optimizer in optimizers] == [[TRAINED]] * 3
    assert not watch.of("replaced")


class Anchored(SGD):
    """Goes half-way back, at every third step, to a copy of the weights that it makes with
    itself."""

    def __init__(self, parameters: list[Parameter], name: str = "slow_params") -> None:
        super().__init__(parameters, lr=1.0)
        self.steps = 0
        self.name = name
        for p in parameters:
            self.state[p] = {name: p.detach().clone()}

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        super().step(closure)
        self.steps += 1
        if self.steps % 3 == 0:
            for p, state in self.state.items():
                state[self.name].lerp_(p, 0.5)
                p.copy_(state[self.name])


def test_copies_of_first_weights_become_copies_of_those_that_replace_them() -> None:
    """Or the learner would walk half-way back to its own first weights, and offer that."""
    watch = Watch()
    pair = [Anchored(weights(first)) for first in (1.0, 50.0)]
    with cluster(*pair, each=each_names_the_others(2, watch)) as optimizers:
        assert read(optimizers[0]) == read(optimizers[1])
        for inner in pair:
            ((parameter, state),) = inner.state.items()
            assert torch.equal(state["slow_params"], parameter)
    assert not watch.of("replaced")


def test_copies_that_do_not_follow_are_told_of() -> None:
    """Of another name than those of places, they may be anything: weights that lose are not taken
    for untrained in silence."""
    watch = Watch()
    pair = [Anchored(weights(first), name="origin") for first in (1.0, 50.0)]
    with cluster(*pair, each=each_names_the_others(2, watch)):
        assert len(watch.until("replaced")) == 1


class Around(Optimizer):
    """Has copies of the weights, which are these again after a step back, and a base optimizer."""

    def __init__(self, base: Optimizer) -> None:
        self.base = base
        super().__init__(base.param_groups, {})
        for p in base.param_groups[0]["params"]:
            self.state[p] = {"slow_params": p.detach().clone()}

    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        self.base.step(closure)


@pytest.mark.parametrize("first", [-8.0, 0.5, 70.0, 900.0])
def test_a_base_optimizer_tells_that_weights_were_trained(first: float) -> None:
    """Its state does, where copies beside it are those of the weights."""
    inners = [Around(fresh(first)), Around(trained_elsewhere())]
    with cluster(*inners, each=each_names_the_others(2, Watch())) as optimizers:
        assert [read(optimizer) for optimizer in optimizers] == [[TRAINED]] * 2


def test_those_that_sam_has_only_perturbed_were_not_trained() -> None:
    watch = Watch()
    pair = [SAM(weights(first), lr=1.0) for first in (1.0, 50.0)]
    options = each_names_the_others(2, watch)
    with cluster(*pair, each=options, started=False) as optimizers:
        for optimizer in optimizers:
            gradient(optimizer, 0.0)
            optimizer.first_step()
        together(*(optimizer.second_step for optimizer in optimizers))
        taken = [optimizer for optimizer in optimizers if not optimizer.status().step]
        assert len(taken) == 1
    assert not watch.of("replaced")


def test_of_several_that_were_trained_one_is_taken_and_the_others_are_told() -> None:
    other = fresh(50.0)
    step(other, 1.0)
    watch = Watch()
    with cluster(
        trained_elsewhere(), other, fresh(-1.0), each=each_names_the_others(3, watch)
    ) as optimizers:
        values = {read(optimizer)[0] for optimizer in optimizers}
        assert len(values) == 1
        assert values <= {TRAINED, 49.0}
    assert len(watch.of("replaced")) == 1


@pytest.mark.parametrize("first", [-8.0, 900.0])
@pytest.mark.parametrize("steps", [0.0, 1.0])
def test_an_optimizer_whose_state_no_step_has_changed_was_not_trained(
    steps: float, first: float
) -> None:
    """Some have state from the start, and a step of 0 in it. torch.distributed.checkpoint makes it
    by a step with gradients of 0."""
    ready = AdamW(weights(first), lr=0.1)
    ready.state[ready.param_groups[0]["params"][0]] = {
        "step": torch.full((), steps),
        "exp_avg": torch.zeros(3),
        "exp_avg_sq": torch.zeros(3),
    }
    watch = Watch()
    with cluster(trained_elsewhere(), ready, each=each_names_the_others(2, watch)) as optimizers:
        assert [read(optimizer) for optimizer in optimizers] == [[TRAINED]] * 2
    assert not watch.of("replaced")


@pytest.mark.parametrize("first", [-8.0, 0.5, 70.0, 900.0])
def test_a_checkpoint_of_one_alone_makes_no_trained_weights_of_others(first: float) -> None:
    """It is loaded without its weights, and brings the state of the optimizer that trained them."""
    alone = MendOptimizer(fresh(5.0), name="a")
    step(alone, 1.0)
    watch = Watch()
    with cluster(trained_elsewhere(), fresh(1.0), sync_every=1000) as others:
        drive(others, 1, lambda i, s: 1.0)  # has steps as the checkpoint has
        with closing(newcomer(fresh(first), "n", *others, sync_every=1000, on_event=watch)) as new:
            new.load_state_dict(alone.state_dict())
            new.join()
            assert read(new) == [TRAINED]
    assert not watch.of("replaced")
