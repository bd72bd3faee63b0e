"""Methods that only the inner optimizer has, with peers: steps that are taken in them are merged,
and training without any step is told."""

from __future__ import annotations

import gc
import threading
from copy import deepcopy
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.optim import SGD, Optimizer

from mend_optim import MendOptimizer, UsageError
from mend_optim.model.unseen_moves import CALLS
from tests.support.learners import (
    LOCKSTEP,
    Watch,
    cluster,
    descent,
    parameters,
    read,
    same,
    step,
    together,
    weights,
)
from tests.support.two_steps import SAM, Mover, gradient

STEPS = 4
RATE = 0.125


def sharp_step(optimizer: Any, target: float) -> None:
    gradient(optimizer, target)
    optimizer.first_step()
    gradient(optimizer, target)
    optimizer.second_step()


def merged_by_hand(targets: tuple[float, float]) -> list[Tensor]:
    """Two bare learners whose weights are averaged after each step."""
    pair = [SAM(weights(1.0), lr=RATE) for _ in targets]
    for _ in range(STEPS):
        for optimizer, target in zip(pair, targets, strict=True):
            sharp_step(optimizer, target)
        (mean,) = torch.stack([parameters(each)[0] for each in pair]).mean(0, keepdim=True)
        for each in pair:
            parameters(each)[0].copy_(mean)
    return parameters(pair[0])


def test_two_calls_are_one_step_which_is_merged() -> None:
    targets = (-3.0, 9.0)
    with cluster(*(SAM(weights(1.0), lr=RATE) for _ in targets), **LOCKSTEP) as optimizers:

        def train(i: int) -> None:
            for _ in range(STEPS):
                sharp_step(optimizers[i], targets[i])

        together(lambda: train(0), lambda: train(1))
        for optimizer in optimizers:
            assert (optimizer.status().step, optimizer.status().rounds_adopted) == (STEPS, STEPS)
            assert same(parameters(optimizer), merged_by_hand(targets))


def test_who_joins_in_the_second_call_takes_the_others_weights_and_not_its_old_ones() -> None:
    pair = [SAM(weights(1.0), lr=RATE), SAM(weights(50.0), lr=RATE)]
    with cluster(*pair, started=False, sync_every=100) as (old, new):
        old.join()
        for _ in range(STEPS):
            sharp_step(old, -3.0)
        gradient(new, -3.0)
        new.first_step()
        assert read(new) == [50.5]
        old.param_groups[0]["lr"] = 0.0
        joined = threading.Event()

        def step_on() -> None:
            while not joined.is_set():
                sharp_step(old, -3.0)

        def join() -> None:
            new.second_step()
            joined.set()

        together(step_on, join)
        assert read(new) == read(old)
        assert new.status().step == 0


def test_methods_that_move_the_weights_without_a_step_are_told_once() -> None:
    watch = Watch()
    inner = Mover(weights(1.0), lr=RATE)
    with cluster(inner, started=False, each=[{"on_event": watch}]) as (optimizer,):
        for _ in range(CALLS - 1):
            optimizer.move()
            optimizer.look()
        assert not watch.of("unseen")
        optimizer.move()
        (event,) = watch.until("unseen")
        assert "move() and others have moved the weights 16 times" in event.text
        for _ in range(2 * CALLS):
            optimizer.move()
    assert len(watch.of("unseen")) == 1


def test_methods_that_move_the_weights_between_steps_are_no_news() -> None:
    watch = Watch()
    inner = Mover(weights(1.0), lr=RATE)
    with cluster(inner, each=[{"on_event": watch}]) as (optimizer,):
        for _ in range(2 * CALLS):
            optimizer.move()
            optimizer.move()
            step(optimizer, 1.0)
        optimizer.close()
    assert watch.of("unseen") == []


def test_steps_that_are_taken_past_the_wrapper_are_told_once() -> None:
    watch = Watch()
    (inner,) = pair = [descent(1.0)]
    with cluster(*pair, started=False, each=[{"on_event": watch}]) as (optimizer,):
        for _ in range(CALLS - 1):
            step(inner, 1.0)
        assert not watch.of("unseen")
        step(inner, 1.0)
        (event,) = watch.until("unseen")
        assert "the inner optimizer has taken 16 steps past this MendOptimizer" in event.text
        for _ in range(2 * CALLS):
            step(inner, 1.0)
        assert optimizer.status().step == 0
    assert len(watch.of("unseen")) == 1


def test_no_checkpoint_is_loaded_inside_a_step_of_an_own_method() -> None:
    inner = SAM(weights(1.0), lr=RATE)
    with cluster(inner) as (optimizer,):
        sharp_step(optimizer, -3.0)
        saved = optimizer.state_dict()
        hook = inner.base.register_step_post_hook(lambda *_: optimizer.load_state_dict(saved))
        with pytest.raises(UsageError, match=r"must not be called inside step\(\)"):
            sharp_step(optimizer, -3.0)
        hook.remove()
        optimizer.load_state_dict(saved)
    # Without peers there are no counts of others to part from.
    alone = MendOptimizer(inner)
    inner.base.register_step_post_hook(lambda *_: alone.load_state_dict(alone.state_dict()))
    sharp_step(alone, -3.0)


def test_steps_of_the_wrapper_are_seen_whichever_way_they_are_taken() -> None:
    watch = Watch()
    inner = SAM(weights(1.0), lr=RATE)
    with cluster(inner, each=[{"on_event": watch}]) as (optimizer,):
        for _ in range(2 * CALLS):
            sharp_step(optimizer, -3.0)
        optimizer.close()
        for _ in range(2 * CALLS):
            sharp_step(inner, -3.0)
    with cluster(descent(1.0), each=[{"on_event": watch}]) as (optimizer,):
        for _ in range(2 * CALLS):
            step(optimizer, 1.0)
        optimizer.close()
    with cluster(SGD(weights(1.0), lr=0.0), each=[{"on_event": watch}]) as (optimizer,):
        for _ in range(2 * CALLS):
            step(optimizer, 0.0)
        assert optimizer.status().step == 0
        optimizer.close()
    assert watch.of("unseen") == []


def test_an_inner_optimizer_that_copies_all_its_attributes_can_be_copied_still() -> None:
    class Whole(SGD):
        def __getstate__(self) -> dict[str, Any]:
            return self.__dict__

    inner = Whole(weights(1.0), lr=RATE)
    with cluster(inner):
        other = deepcopy(inner)
        for _ in range(CALLS):
            step(other, 1.0)
    assert read(other) == [1.0 - RATE * CALLS]


class Around(Optimizer):
    """An optimizer around another one, which has left out torch's constructor, as some libraries'
    do. It calls no hooks."""

    def __init__(self, inner: Optimizer) -> None:
        self.inner, self.param_groups, self.state = inner, inner.param_groups, inner.state
        self.defaults = inner.defaults

    def step(self, closure: Any = None) -> Any:
        return self.inner.step(closure)


def test_an_optimizer_that_knows_no_hooks_trains_with_peers() -> None:
    with cluster(Around(descent(1.0)), Around(descent(1.0)), **LOCKSTEP) as (a, b):
        together(lambda: step(a, 1.0), lambda: step(b, 1.0))
        assert a.status().step == b.status().step == 1


def test_a_run_that_is_gone_leaves_no_hook_behind() -> None:
    inner = descent(1.0)
    before = len(inner._optimizer_step_post_hooks)
    for _ in range(3):
        with cluster(inner, started=False):
            assert len(inner._optimizer_step_post_hooks) == before + 1
        gc.collect()
        assert len(inner._optimizer_step_post_hooks) == before
