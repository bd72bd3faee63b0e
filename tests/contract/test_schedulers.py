"""Alone, a MendOptimizer behaves like the optimizer it wraps with every LR scheduler of torch.

Prints the table of results at the end of the run: `pytest -k contract`."""

from __future__ import annotations

import copy
import pickle
import warnings
from collections.abc import Callable
from typing import Any

import pytest
from torch.optim import SGD, Adam, lr_scheduler
from torch.optim.swa_utils import SWALR

from mend_optim import MendOptimizer
from tests.contract.contract import (
    Case,
    Wrap,
    advance,
    agree,
    differences,
    fill_cell,
    options,
    seen,
)

pytestmark = pytest.mark.usefixtures("no_environment")

Record = Callable[[str, Any], None]
DRIVEN = (Case(SGD, kwargs={"lr": 0.1, "momentum": 0.9}), Case(Adam, kwargs={"lr": 0.1}))


def decay(step: int) -> float:
    """A function, because a lambda cannot be pickled."""
    return 0.9**step


def shrink(step: int) -> float:
    return 0.8


def sequential(optimizer: Any) -> Any:
    first = lr_scheduler.ConstantLR(optimizer, factor=0.1, total_iters=2)
    return lr_scheduler.SequentialLR(
        optimizer, [first, lr_scheduler.ExponentialLR(optimizer, gamma=0.9)], [3]
    )


def chained(optimizer: Any) -> Any:
    first = lr_scheduler.ConstantLR(optimizer, factor=0.1, total_iters=3)
    return lr_scheduler.ChainedScheduler([first, lr_scheduler.ExponentialLR(optimizer, gamma=0.9)])


SCHEDULERS: dict[str, Callable[[Any], Any]] = {
    "LambdaLR": lambda o: lr_scheduler.LambdaLR(o, decay),
    "MultiplicativeLR": lambda o: lr_scheduler.MultiplicativeLR(o, shrink),
    "StepLR": lambda o: lr_scheduler.StepLR(o, step_size=2, gamma=0.5),
    "MultiStepLR": lambda o: lr_scheduler.MultiStepLR(o, milestones=[2, 5], gamma=0.3),
    "ConstantLR": lambda o: lr_scheduler.ConstantLR(o, factor=0.5, total_iters=3),
    "LinearLR": lambda o: lr_scheduler.LinearLR(o, start_factor=0.1, total_iters=5),
    "ExponentialLR": lambda o: lr_scheduler.ExponentialLR(o, gamma=0.9),
    "CosineAnnealingLR": lambda o: lr_scheduler.CosineAnnealingLR(o, T_max=6),
    "CosineAnnealingWarmRestarts": lambda o: lr_scheduler.CosineAnnealingWarmRestarts(o, T_0=3),
    "PolynomialLR": lambda o: lr_scheduler.PolynomialLR(o, total_iters=6, power=2.0),
    "CyclicLR": lambda o: lr_scheduler.CyclicLR(o, base_lr=0.01, max_lr=0.1, step_size_up=2),
    "OneCycleLR": lambda o: lr_scheduler.OneCycleLR(o, max_lr=1.0, total_steps=20),
    "ReduceLROnPlateau": lambda o: lr_scheduler.ReduceLROnPlateau(o, patience=1, factor=0.5),
    "SequentialLR": sequential,
    "ChainedScheduler": chained,
    "SWALR": lambda o: SWALR(o, swa_lr=0.05, anneal_epochs=4),
}


def drive(case: Case, optimizer: Any, scheduler: Any, start: int, stop: int) -> list[Any]:
    """Train, with the scheduler after each step. Returns everything that it may change in the
    groups, at each step."""
    rates = []
    for step in range(start, stop):
        advance(case, optimizer, step)
        schedule(scheduler)
        rates.append(options(optimizer))
    return rates


def schedule(scheduler: Any) -> None:
    scheduler.step(*[1.0] if isinstance(scheduler, lr_scheduler.ReduceLROnPlateau) else [])


def agree_aloud(run: Callable[[Wrap], Any]) -> None:
    """The results and the warnings are those of the bare optimizer."""

    def listen(wrap: Wrap) -> Any:
        with warnings.catch_warnings(record=True) as heard:
            warnings.simplefilter("always")
            result = run(wrap)
        return result, [(w.category, str(w.message)) for w in heard]

    agree(listen)


def check_rates(case: Case, make: Callable[[Any], Any]) -> None:
    """A scheduler created with the optimizer gives the same rates at every step, and they do
    change."""

    def run(wrap: Wrap) -> Any:
        optimizer = wrap(case.make(case.parameters()))
        rates = drive(case, optimizer, make(optimizer), 0, 10)
        assert any(differences(rates[0], later) for later in rates)
        return rates, seen(optimizer)

    agree_aloud(run)


def check_on_inner(case: Case, make: Callable[[Any], Any]) -> None:
    """A scheduler created over the inner optimizer, before or after it was wrapped."""

    def run(wrap: Wrap) -> Any:
        inner = case.make(case.parameters())
        scheduler = make(inner)
        early = drive(case, wrap(inner), scheduler, 0, 6)
        optimizer = wrap(case.make(case.parameters()))
        late = drive(case, optimizer, make(getattr(optimizer, "inner", optimizer)), 0, 6)
        assert differences(early, late) == []
        return early, late, seen(optimizer)

    agree_aloud(run)


def check_after_load(case: Case, make: Callable[[Any], Any]) -> None:
    """A scheduler created before and after the state of a scheduled optimizer was loaded."""

    def run(wrap: Wrap) -> Any:
        parameters, runs = case.parameters(), []
        optimizer = wrap(case.make(parameters))
        drive(case, optimizer, make(optimizer), 0, 3)
        for load_first in (True, False):
            fresh = wrap(case.make(copy.deepcopy(parameters)))
            scheduler = None if load_first else make(fresh)
            fresh.load_state_dict(copy.deepcopy(optimizer.state_dict()))
            runs.append((drive(case, fresh, scheduler or make(fresh), 3, 9), seen(fresh)))
        return runs

    agree_aloud(run)


def check_resumed(case: Case, make: Callable[[Any], Any]) -> None:
    """Optimizer and scheduler are saved and loaded, and go on as if training had never stopped."""

    def run(wrap: Wrap) -> Any:
        parameters = case.parameters()
        optimizer = wrap(case.make(parameters))
        scheduler = make(optimizer)
        drive(case, optimizer, scheduler, 0, 4)
        fresh = wrap(case.make(copy.deepcopy(parameters)))
        again = make(fresh)
        fresh.load_state_dict(copy.deepcopy(optimizer.state_dict()))
        again.load_state_dict(copy.deepcopy(scheduler.state_dict()))
        straight, resumed = drive(case, optimizer, scheduler, 4, 8), drive(case, fresh, again, 4, 8)
        return straight, resumed, seen(optimizer), seen(fresh)

    agree_aloud(run)


def check_wrong_order(case: Case, make: Callable[[Any], Any]) -> None:
    """A scheduler that steps before the optimizer warns, as over the bare one."""

    def run(wrap: Wrap) -> Any:
        optimizer = wrap(case.make(case.parameters()))
        scheduler = make(optimizer)
        for step in range(2):
            schedule(scheduler)
            advance(case, optimizer, step)
        return options(optimizer), seen(optimizer)

    agree_aloud(run)
    if type(make(case.make(case.parameters()))).step is lr_scheduler.LRScheduler.step:
        with pytest.warns(UserWarning, match="before `optimizer.step"):
            run(MendOptimizer)


def check_copied(case: Case, make: Callable[[Any], Any], duplicate: Callable[[Any], Any]) -> None:
    """Copies of both go on together, separate from the originals."""

    def run(wrap: Wrap) -> Any:
        optimizer = wrap(case.make(case.parameters()))
        scheduler = make(optimizer)
        drive(case, optimizer, scheduler, 0, 4)
        before = seen(optimizer)
        twin, follower = duplicate((optimizer, scheduler))
        copied = drive(case, twin, follower, 4, 8)
        assert differences(before, seen(optimizer)) == []
        return copied, drive(case, optimizer, scheduler, 4, 8), seen(twin), seen(optimizer)

    agree_aloud(run)


SCHEDULING: dict[str, Callable[[Case, Callable[[Any], Any]], None]] = {
    "rates": check_rates,
    "on-inner": check_on_inner,
    "after-load": check_after_load,
    "resumed": check_resumed,
    "wrong-order": check_wrong_order,
    "deepcopy": lambda case, make: check_copied(case, make, copy.deepcopy),
    "pickle": lambda case, make: check_copied(
        case, make, lambda both: pickle.loads(pickle.dumps(both))
    ),
}


@pytest.mark.parametrize("check", SCHEDULING)
@pytest.mark.parametrize("case", DRIVEN, ids=lambda case: case.optimizer.__name__)
@pytest.mark.parametrize("kind", SCHEDULERS)
def test_contract_scheduler(kind: str, case: Case, check: str, record_property: Record) -> None:
    row = f"{kind}/{case.optimizer.__name__}"
    fill_cell(
        record_property, "schedulers", row, check, lambda: SCHEDULING[check](case, SCHEDULERS[kind])
    )
