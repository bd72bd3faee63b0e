"""Methods that only the inner optimizer has, without peers: they do what they do bare, and a step
that is taken in them counts."""

from __future__ import annotations

import inspect
from typing import Any

import pytest
from torch import Tensor
from torch.optim import Optimizer

from mend_optim import MendOptimizer
from tests.support.learners import parameters, read, same, weights
from tests.support.two_steps import SAM, Minimizer

pytestmark = pytest.mark.usefixtures("no_environment")


def loss(optimizer: Optimizer) -> Tensor:
    (parameter,) = optimizer.param_groups[0]["params"]
    return (parameter**2).sum()


def sharp_step(optimizer: Any) -> None:
    optimizer.zero_grad()
    loss(optimizer).backward()  # type: ignore[no-untyped-call]
    optimizer.first_step()
    optimizer.zero_grad()
    loss(optimizer).backward()  # type: ignore[no-untyped-call]
    optimizer.second_step()


def test_two_calls_are_one_step_with_the_bare_numbers() -> None:
    bare = SAM(weights(4.0), lr=0.125, momentum=0.5)
    optimizer = MendOptimizer(SAM(weights(4.0), lr=0.125, momentum=0.5))
    for _ in range(5):
        sharp_step(bare)
        sharp_step(optimizer)
    assert same(parameters(optimizer), parameters(bare))
    assert optimizer.status().step == 5


def test_a_step_with_a_closure_counts_once() -> None:
    optimizer: Any = MendOptimizer(SAM(weights(4.0), lr=0.125))

    def closure() -> Tensor:
        optimizer.zero_grad()
        value = loss(optimizer)
        value.backward()  # type: ignore[no-untyped-call]
        return value

    closure()
    optimizer.step(closure)
    assert optimizer.status().step == 1


def test_a_method_that_steps_itself_counts_one_step_and_its_tokens() -> None:
    optimizer: Any = MendOptimizer(Minimizer(weights(4.0), lr=0.25))
    optimizer.count_tokens(7)
    assert optimizer.minimize(lambda: loss(optimizer)).item() == 48.0
    assert (optimizer.status().step, optimizer.status().tokens) == (1, 7)
    assert read(optimizer) == [2.0]


def test_a_method_is_the_inner_ones_to_look_at() -> None:
    inner = Minimizer(weights(4.0), lr=0.25)
    optimizer: Any = MendOptimizer(inner)
    assert inspect.ismethod(optimizer.minimize)
    assert optimizer.minimize.__self__ is inner
    assert optimizer.minimize.__doc__ == "Descend on a loss."
    assert inspect.signature(optimizer.minimize) == inspect.signature(inner.minimize)


def test_nothing_is_left_at_the_inner_optimizer_even_if_the_method_fails() -> None:
    inner = Minimizer(weights(4.0), lr=0.25)
    optimizer: Any = MendOptimizer(inner)
    with pytest.raises(ArithmeticError, match="its own fault"):
        optimizer.fail()
    optimizer.minimize(lambda: loss(optimizer))
    assert not inner._optimizer_step_pre_hooks
    assert optimizer.status().step == 1
