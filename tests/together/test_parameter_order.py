"""Checkpoints and learners whose parameters are equal in shape, and in another order: those with
names are ordered by these, and others as the optimizer lists them."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from typing import Any

import pytest
from torch.optim import SGD

from mend_optim import MendOptimizer, UsageError
from tests.support.learners import (
    LOCKSTEP,
    LOOPBACK,
    TIMING,
    Watch,
    cluster,
    drive,
    read,
    together,
    weights,
)
from tests.support.older_torch import needs_names

pytestmark = needs_names

#: The order of these names is not that of the list.
NAMES = ("z", "a")


def inner(named: bool, values: tuple[float, float] = (1.0, 5.0)) -> SGD:
    tensors = weights(*values)
    return SGD(list(zip(NAMES, tensors, strict=True)) if named else tensors, lr=1.0)


def saved(named: bool) -> tuple[dict[str, Any], list[float]]:
    """The checkpoint of a learner that has merged, and its weights as they are listed."""
    with cluster(*(inner(named) for _ in range(2)), **LOCKSTEP) as optimizers:
        drive(optimizers, 2, lambda i, s: 0.25)
        return copy.deepcopy(optimizers[0].state_dict()), read(optimizers[0])


@contextmanager
def learner(optimizer: SGD) -> Iterator[MendOptimizer]:
    made = MendOptimizer(optimizer, name="c", listen=LOOPBACK, timing=TIMING, **LOCKSTEP)
    with closing(made):
        yield made


@pytest.mark.parametrize("was_named", [False, True])
@pytest.mark.parametrize("has_weights", [False, True])
def test_an_optimizer_with_names_goes_on_in_the_order_of_the_checkpoint(
    was_named: bool, has_weights: bool
) -> None:
    state, values = saved(was_named)
    first = (values[0], values[1]) if has_weights else (1.0, 5.0)
    with learner(inner(named=True, values=first)) as optimizer:
        optimizer.load_state_dict(state)
        optimizer.join()
        assert read(optimizer) == values


def test_an_optimizer_without_names_does_not_guess_the_order() -> None:
    state, values = saved(named=True)
    with learner(inner(named=False, values=(values[0], values[1]))) as optimizer:
        with pytest.raises(UsageError, match=r"got \['a', 'z'\] first, here \['0', '1'\]: give it"):
            optimizer.load_state_dict(state)
        assert (read(optimizer), optimizer.status().step) == (values, 0)
        assert "param_names" not in optimizer.param_groups[0]


def test_without_names_the_weights_of_a_checkpoint_show_its_order() -> None:
    state, values = saved(named=True)
    (group,) = state["param_groups"]
    group["param_names"].reverse()
    with learner(inner(named=False, values=(values[1], values[0]))) as optimizer:
        optimizer.load_state_dict(state)
        optimizer.join()
        assert read(optimizer) == [values[1], values[0]]
        assert optimizer.status().step == 2
        assert "param_names" not in optimizer.param_groups[0]


def test_in_mid_run_another_order_is_refused() -> None:
    state, _ = saved(named=False)
    with learner(inner(named=True)) as optimizer:
        optimizer.join()
        with pytest.raises(UsageError, match=r"got \['0', '1'\] first, here \['a', 'z'\]"):
            optimizer.load_state_dict(state)
        with pytest.raises(UsageError, match=r"got \['0', '1'\] first, here \['a', 'z'\]"):
            optimizer.rollback(state)


def test_a_learner_with_the_same_names_in_another_order_is_refused() -> None:
    state, _ = saved(named=False)
    watch, pair = Watch(), (inner(named=True), inner(named=True))
    # The other one has no weights to begin with, and waits for those of somebody who does not
    # refuse it.
    each = [{"on_event": watch}, {"timing": replace(TIMING, join_timeout_s=1.0)}]
    with cluster(*pair, started=False, each=each) as (a, b):
        a.load_state_dict(state)
        together(a.join, b.join)
        event = watch.until("refused")[0]
        assert "refused: parameter z: here number 1, there number 2;" in event.text
        assert not a.status().roster


def test_a_learner_without_names_is_refused_by_one_that_is_ordered_by_names() -> None:
    watch = Watch()
    pair = inner(named=True), inner(named=False)
    with cluster(*pair, started=False, each=[{"on_event": watch}, {}]) as (a, b):
        together(a.join, b.join)
        event = watch.until("refused")[0]
        assert "order of parameters: here by name, there as listed;" in event.text
        assert not a.status().roster


def test_names_in_the_order_of_the_list_meet_no_names() -> None:
    tensors = weights(1.0, 5.0)
    named = SGD(list(zip(sorted(NAMES), tensors, strict=True)), lr=1.0)
    with cluster(named, inner(named=False), **LOCKSTEP) as optimizers:
        drive(optimizers, 2, lambda i, s: 0.25 + i)
        assert read(optimizers[0]) == read(optimizers[1])
