"""The wrapping of every optimizer, on optimizers of torch and of our own."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import nn
from torch.optim import SGD, AdamW, Optimizer

from mend_optim import MendOptimizer
from tests.suites.mend_suites.wrapping import AROUND, ESCAPED, INSIDE, Wrapping


def weights() -> list[nn.Parameter]:
    return [nn.Parameter(torch.ones(3))]


class Nested(SGD):
    """Has an optimizer of its own for half of the work."""

    def __init__(self, params: Any, lr: float) -> None:
        parameters = list(params)
        super().__init__(parameters, lr=lr)
        self.helper = AdamW(parameters, lr=lr)


class Around(Optimizer):
    def __init__(self, optimizer: Optimizer) -> None:
        self.optimizer = optimizer


class OwnNew(SGD):
    def __new__(cls, *args: Any, **kwargs: Any) -> Any:
        return object.__new__(cls)


@pytest.fixture
def wrapping() -> Iterator[Wrapping]:
    wrapping = Wrapping(MendOptimizer)
    with wrapping.installed():
        yield wrapping


def test_a_constructor_returns_the_wrapper_of_a_real_optimizer(wrapping: Wrapping) -> None:
    made: Any = AdamW(weights(), lr=0.5)
    assert isinstance(made, MendOptimizer)
    assert type(made.inner) is AdamW
    assert made.param_groups[0]["lr"] == 0.5
    assert wrapping.wrapped == {"AdamW": 1}
    assert not wrapping.bare


def test_the_wrapped_optimizer_trains_as_the_bare_one() -> None:
    def train() -> list[float]:
        parameters = weights()
        optimizer = AdamW(parameters, lr=0.1)
        for _ in range(3):
            parameters[0].grad = parameters[0].detach().clone()
            optimizer.step()
        assert isinstance(optimizer, MendOptimizer) == bool(wrapped)
        return parameters[0].tolist()

    wrapped = False
    expected = train()
    with Wrapping(MendOptimizer).installed():
        wrapped = True
        assert train() == expected


def test_an_optimizer_inside_another_is_left_bare(wrapping: Wrapping) -> None:
    made: Any = Nested(weights(), lr=0.5)
    assert isinstance(made, MendOptimizer)
    inner: Any = made.inner
    assert type(inner.helper) is AdamW
    assert wrapping.wrapped == {"Nested": 1}
    assert wrapping.bare == {INSIDE: 1}


def test_an_optimizer_around_a_wrapped_one_is_left_bare(wrapping: Wrapping) -> None:
    made = Around(SGD(weights(), lr=0.5))
    assert type(made) is Around
    assert isinstance(made.optimizer, MendOptimizer)
    assert wrapping.bare == {AROUND: 1}


def test_a_class_that_escapes_is_counted(wrapping: Wrapping) -> None:
    assert type(OwnNew(weights(), lr=0.5)) is OwnNew
    assert wrapping.bare == {ESCAPED: 1}


def test_copies_keep_what_they_copy(wrapping: Wrapping) -> None:
    made: Any = SGD(weights(), lr=0.5)
    copies: list[Any] = [copy.deepcopy(made), pickle.loads(pickle.dumps(made))]
    for copied in copies:
        assert isinstance(copied, MendOptimizer)
        assert type(copied.inner) is SGD
    assert wrapping.wrapped == {"SGD": 1}


def test_wrapping_by_hand_still_wraps_once(wrapping: Wrapping) -> None:
    with wrapping.suspended():
        inner = SGD(weights(), lr=0.5)
    assert type(inner) is SGD
    assert MendOptimizer(inner).inner is inner
    assert not wrapping.wrapped
    assert not wrapping.bare


def test_errors_of_the_constructor_are_the_same(wrapping: Wrapping) -> None:
    with pytest.raises(ValueError, match="Invalid learning rate"):
        SGD(weights(), lr=-1.0)
    with pytest.raises(TypeError, match="params"):
        SGD()  # type: ignore[call-arg]
    assert isinstance(SGD(weights(), lr=1.0), MendOptimizer)


def test_a_wrapper_that_is_of_the_class_is_not_initialized_again() -> None:
    """Python initializes what a class's `__new__` returns, if it is of that class."""

    class Both(MendOptimizer, SGD):
        pass

    with Wrapping(Both).installed():
        made: Any = SGD(weights(), lr=0.5)
    assert type(made) is Both
    assert type(made.inner) is SGD


def test_nothing_is_wrapped_afterwards() -> None:
    init = Optimizer.__init__
    with Wrapping(MendOptimizer).installed():
        assert Optimizer.__init__ is not init
    assert Optimizer.__init__ is init
    assert type(SGD(weights(), lr=0.5)) is SGD
