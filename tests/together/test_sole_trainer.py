"""In one process, no two learners train the same parameter: each would merge what the other has
learned once more."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import closing
from typing import Any

import pytest
import torch
from torch.nn import Parameter
from torch.optim import SGD, Optimizer

import mend_optim
from mend_optim import MendOptimizer, UsageError
from tests.support.learners import LOOPBACK, descent, read, step, weights
from tests.support.older_torch import needs_names

ALONE: dict[str, Any] = {"timing": mend_optim.Timing(join_timeout_s=0.0), "sync_every": 2}


@pytest.fixture(autouse=True)
def nobody_left() -> Iterator[None]:
    """No test leaves a learner behind."""
    yield
    mend_optim.close_all()


def learner(inner: Optimizer, name: str) -> MendOptimizer:
    return MendOptimizer(inner, name=name, listen=LOOPBACK, **ALONE)


# ── the same inner optimizer ──────────────────────────────────────────────────────────────────────


def test_a_second_learner_around_one_inner_optimizer_is_refused() -> None:
    inner = descent(8.0)
    first = learner(inner, "first")
    step(first, 1.0)
    second = learner(inner, "second")
    with pytest.raises(UsageError) as error:
        step(second, 1.0)
    assert str(error.value) == (
        "inner must be an optimizer that no other MendOptimizer trains with peers, got SGD; the "
        "learner 'first' of this process trains it: call close() of its MendOptimizer, or "
        "mend_optim.close_all(), before you step with another"
    )
    # the first one was not disturbed, and makes room for the second
    step(first, 1.0)
    assert (read(first), first.status().step) == ([6.0], 2)
    first.close()
    step(second, 1.0)
    assert (read(second), second.status().step) == ([5.0], 1)
    step(first, 1.0)  # closed, it is its inner optimizer


def test_the_one_that_steps_second_is_refused_whichever_was_made_first() -> None:
    inner = descent(8.0)
    first = learner(inner, "first")
    second = learner(inner, "second")
    step(second, 1.0)
    with pytest.raises(UsageError, match="the learner 'second' of this process trains it"):
        first.join()
    second.load_state_dict(second.state_dict())
    step(second, 1.0)  # as another incarnation
    assert (read(second), second.status().step) == ([6.0], 2)


@pytest.mark.parametrize("garbage", [False, True], ids=["dropped", "a circle"])
@pytest.mark.usefixtures("no_collector")
def test_an_inner_optimizer_is_free_once_its_wrapper_is_gone(garbage: bool) -> None:
    """A notebook cell that runs again wraps the same optimizer once more."""
    inner = descent(8.0)
    optimizer: MendOptimizer | None = None
    for cell in range(3):
        optimizer = learner(inner, "nb")
        trainer: list[object] = [optimizer]
        if garbage:
            trainer.append(trainer)
        del trainer
        step(optimizer, 1.0)
        assert (read(optimizer), optimizer.status().step) == ([7.0 - cell], 1)


# ── some of the same parameters ───────────────────────────────────────────────────────────────────


def two_heads() -> tuple[SGD, SGD]:
    """Two inner optimizers, each with a head of its own, and both with the body."""
    body, one, other = weights(8.0, 1.0, 2.0)
    first = SGD([("body", body), ("one", one)], lr=1.0)
    return first, SGD([("other", other), ("body", body)], lr=1.0)


def tied() -> tuple[SGD, SGD]:
    """As `two_heads`, where the bodies are two tensors with the same memory."""
    first, second = two_heads()
    second.param_groups[0]["params"][1] = Parameter(first.param_groups[0]["params"][0].detach())
    return first, second


def frozen() -> tuple[SGD, SGD]:
    first, second = two_heads()
    first.param_groups[0]["params"][0].requires_grad_(False)
    return first, second


@needs_names
@pytest.mark.parametrize("inners", [two_heads, tied, frozen])
def test_a_parameter_of_another_learner_is_refused_by_name(
    inners: Callable[[], tuple[SGD, SGD]],
) -> None:
    first, second = map(learner, inners(), ("first", "second"))
    step(first, 1.0)
    with pytest.raises(UsageError) as error:
        step(second, 1.0)
    assert str(error.value) == (
        "parameter body must not be a parameter of another MendOptimizer with peers, got one that "
        "the learner 'first' of this process trains; what others learned would be added to it "
        "twice: give each parameter, frozen ones too, to one inner optimizer, or call close() of "
        "the other MendOptimizer first"
    )
    # the first one was not disturbed, and makes room for the second
    step(first, 1.0)
    assert (read(first), first.status().step) == ([6.0, -1.0], 2)
    first.close()
    step(second, 1.0)
    assert (read(second), second.status().step) == ([1.0, 5.0], 1)


def test_optimizers_with_parameters_of_their_own_train_side_by_side() -> None:
    first, second = learner(descent(8.0), "generator"), learner(descent(8.0), "critic")
    for optimizer in (first, second, first, second):
        step(optimizer, 1.0)
    assert (read(first), read(second)) == ([6.0], [6.0])


@needs_names
def test_without_peers_optimizers_may_share_parameters() -> None:
    inners = two_heads()
    with_peers = learner(inners[0], "first")
    step(with_peers, 1.0)
    alone = MendOptimizer(inners[1])
    step(alone, 1.0)
    step(MendOptimizer(inners[0]), 1.0)
    assert read(alone) == [1.0, 5.0]


def test_an_added_group_has_no_parameter_of_another_learner() -> None:
    (body,) = weights(8.0)
    first, second = learner(SGD([body], lr=1.0), "first"), learner(descent(1.0), "second")
    step(first, 1.0)
    step(second, 1.0)
    with pytest.raises(UsageError, match=r"parameter 1 must not .* the learner 'first' of this"):
        second.add_param_group({"params": [body]})
    step(second, 1.0)
    assert (read(second), second.status().step) == ([-1.0], 2)
    first.close()
    second.add_param_group({"params": [body]})
    step(second, 1.0)
    assert (read(second), second.status().step) == ([-2.0, 6.0], 3)


def test_an_empty_parameter_is_no_place_in_memory() -> None:
    """All empty tensors have the same address, which is none."""
    inners = [SGD([*weights(8.0), Parameter(torch.empty(0))], lr=1.0) for _ in range(2)]
    for optimizer in map(learner, inners, ("first", "second")):
        step(optimizer, 1.0)
        assert optimizer.status().step == 1


@pytest.mark.usefixtures("no_collector")
@needs_names
def test_parameters_are_free_once_the_other_wrapper_is_gone() -> None:
    """A second phase of training has a new optimizer for all of the model."""
    inners = two_heads()
    first: MendOptimizer | None = learner(inners[0], "first")
    trainer: list[object] = [first]
    trainer.append(trainer)
    assert first is not None
    step(first, 1.0)
    del trainer, first
    second = learner(inners[1], "second")
    step(second, 1.0)
    assert read(second) == [1.0, 6.0]


def test_learners_that_begin_at_the_same_time_are_told_apart() -> None:
    """Each looks through the learners that there are, while others are added and go."""
    optimizers = [learner(descent(8.0), f"learner{i}") for i in range(8)]
    faults: list[BaseException] = []
    over = threading.Event()

    def look() -> None:
        try:
            while not over.is_set():
                mend_optim.sole_trainer.refuse_second(optimizers[0]._run)
        except BaseException as fault:
            faults.append(fault)

    step(optimizers[0], 1.0)
    looking = threading.Thread(target=look)
    looking.start()
    for optimizer in optimizers[1:]:
        with closing(optimizer):
            step(optimizer, 1.0)
    over.set()
    looking.join()
    assert not faults
