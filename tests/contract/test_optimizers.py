"""Alone, a MendOptimizer is the optimizer it wraps: every optimizer of torch, every option, every
way to use it.

`pytest -k contract` makes every check of every case and prints the table of what holds at the end
of the run. Otherwise, unless DEEP=1, the checks that `needed` names are made.
"""

from __future__ import annotations

import copy
import functools
import io
import pickle
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.optim import SGD, Adam, AdamW, Optimizer
from torch.optim.optimizer import (
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)

from mend_optim import MendOptimizer
from tests.contract.contract import (
    Case,
    Wrap,
    advance,
    agree,
    bare,
    cases,
    differences,
    fill_cell,
    held,
    seen,
    snapshot,
    train,
    trained,
)
from tests.support.depth import DEEP

pytestmark = pytest.mark.usefixtures("no_environment")

CASES = list(cases())
Record = Callable[[str, Any], None]
Duplicate = Callable[[Any], Any]


def through_a_file(thing: Any, weights_only: bool) -> Any:
    file = io.BytesIO()
    torch.save(thing, file)
    file.seek(0)
    return torch.load(file, weights_only=weights_only)


def resumed(case: Case, parameters: list[Tensor], state: dict[str, Any], wrap: Wrap) -> Any:
    """A new optimizer over a copy of the parameters, with a loaded state."""
    optimizer = wrap(case.make(copy.deepcopy(parameters)))
    optimizer.load_state_dict(state)
    return optimizer


# ── checks ────────────────────────────────────────────────────────────────────────────────────────


def check_steps(case: Case) -> None:
    """20 steps in a row."""

    def run(wrap: Wrap) -> Any:
        parameters = case.parameters()
        before = snapshot(parameters)
        optimizer = wrap(case.make(parameters))
        train(case, optimizer, 0, 20)
        assert differences(before, snapshot(parameters)) != []
        return seen(optimizer)

    agree(run)


def check_round_trip(case: Case) -> None:
    """Save after 5 steps, load into a fresh one, and both go on."""

    def run(wrap: Wrap) -> Any:
        parameters, optimizer = trained(case, wrap, 5)
        fresh = resumed(case, parameters, copy.deepcopy(optimizer.state_dict()), wrap)
        loaded = seen(fresh)
        train(case, fresh, 5, 10)
        train(case, optimizer, 5, 10)
        return loaded, seen(fresh), seen(optimizer), differences(seen(fresh), seen(optimizer))

    agree(run)


def check_into_bare(case: Case) -> None:
    """Wrapped, then bare, then wrapped again is bare three times."""

    def relay(*wraps: Wrap) -> Any:
        _, optimizer = trained(case, wraps[0], 5)
        for i, wrap in enumerate(wraps[1:], 1):
            optimizer = resumed(case, held(optimizer), copy.deepcopy(optimizer.state_dict()), wrap)
            train(case, optimizer, 5 * i, 5 * i + 5)
        return seen(optimizer)

    agree(lambda wrap: relay(wrap, bare, wrap))


def check_weights_only(case: Case) -> None:
    """The state survives a file that may hold only tensors and plain data."""

    def run(wrap: Wrap) -> Any:
        parameters, optimizer = trained(case, wrap, 5)
        fresh = resumed(
            case, parameters, through_a_file(optimizer.state_dict(), weights_only=True), wrap
        )
        train(case, fresh, 5, 10)
        return seen(fresh)

    agree(run)


def check_duplicates(case: Case, *duplicates: Duplicate) -> None:
    """Each copy trains the copied parameters and leaves the original alone."""

    def run(wrap: Wrap) -> Any:
        parameters, optimizer = trained(case, wrap, 5)
        before, twins = seen(optimizer), []
        for duplicate in duplicates:
            copies, twin = duplicate((parameters, optimizer))
            assert type(twin) is type(optimizer)
            assert all(
                a is b and a is not c
                for a, b, c in zip(held(twin), copies, held(optimizer), strict=True)
            )
            if isinstance(twin, MendOptimizer):
                assert twin.inner is not optimizer.inner
                assert twin.param_groups is twin.inner.param_groups
                assert twin.status().address == ""
                assert twin.synchronize(0.0)
            train(case, twin, 5, 10)
            twins.append(seen(twin))
        untouched = differences(before, seen(optimizer))
        train(case, optimizer, 5, 10)
        assert untouched == []
        assert all(differences(twin, seen(optimizer)) == [] for twin in twins)
        return twins

    agree(run)


def check_deepcopy(case: Case) -> None:
    check_duplicates(case, copy.deepcopy)


def check_pickle(case: Case) -> None:
    """By pickle, and by torch.save of the whole optimizer."""
    by_torch = functools.partial(through_a_file, weights_only=False)
    check_duplicates(case, lambda both: pickle.loads(pickle.dumps(both)), by_torch)


def check_step_hooks(case: Case) -> None:
    """Each fires once per step, whether registered on the wrapper, on the inner optimizer or for
    all."""

    def run(wrap: Wrap) -> list[str]:
        calls: list[str] = []

        def note(call: str) -> Callable[..., None]:
            return lambda *_: calls.append(call)

        optimizer = wrap(case.make(case.parameters()))
        inner = getattr(optimizer, "inner", optimizer)
        handles = [
            register_optimizer_step_pre_hook(note("all, before")),
            register_optimizer_step_post_hook(note("all, after")),
            optimizer.register_step_pre_hook(note("wrapper, before")),
            optimizer.register_step_post_hook(note("wrapper, after")),
            inner.register_step_pre_hook(note("inner, before")),
            inner.register_step_post_hook(note("inner, after")),
        ]
        try:
            train(case, optimizer, 0, 2)
        finally:
            for handle in handles:
                handle.remove()
        train(case, optimizer, 2, 3)
        assert len(calls) == len(set(calls)) * 2 == 12
        return calls

    agree(run)


def check_state_hooks(case: Case) -> None:
    """Those of state_dict and load_state_dict fire once, and what they return is what is saved and
    loaded."""

    def run(wrap: Wrap) -> Any:
        calls: list[str] = []
        _, optimizer = trained(case, wrap, 2)
        for on in (optimizer, getattr(optimizer, "inner", optimizer)):
            on.register_state_dict_pre_hook(lambda *_: calls.append("before save"))
            on.register_state_dict_post_hook(
                lambda _, state: calls.append("after save") or {**state, "note": 7}
            )
            on.register_load_state_dict_pre_hook(
                lambda _, state: calls.append("before load") or faster(state)
            )
            on.register_load_state_dict_post_hook(lambda *_: calls.append("after load"))
        state = copy.deepcopy(optimizer.state_dict())
        optimizer.load_state_dict(state)
        assert calls == [
            when
            for when in ("before save", "after save", "before load", "after load")
            for _ in range(2)
        ]
        assert state["note"] == 7
        assert optimizer.param_groups[0]["lr"] == 4 * state["param_groups"][0]["lr"]
        return seen(optimizer)

    agree(run)


def faster(state: dict[str, Any]) -> dict[str, Any]:
    groups = [{**group, "lr": 2 * group["lr"]} for group in state["param_groups"]]
    return {**state, "param_groups": groups}


def check_closure(case: Case) -> None:
    """The closure is called as often and in the same grad mode. Its result is returned, its
    exception is raised, and a raised exception is no step."""

    def run(wrap: Wrap) -> Any:
        optimizer = wrap(case.make(case.parameters()))
        calls: list[bool] = []

        def closure() -> Tensor:
            calls.append(torch.is_grad_enabled())
            return case.loss(held(optimizer), len(calls))

        def failing() -> float:
            raise ArithmeticError("in the closure")

        results = [optimizer.step(closure), optimizer.step(closure=closure)]
        results += [] if case.closure else [optimizer.step()]
        with pytest.raises(ArithmeticError, match="in the closure"):
            optimizer.step(failing)
        if isinstance(optimizer, MendOptimizer):
            assert optimizer.status().step == len(results)
        return snapshot(results), calls, seen(optimizer)

    agree(run)


def check_zero_grad(case: Case) -> None:
    """Gradients set to None, set to zero, and by default."""

    def run(wrap: Wrap) -> Any:
        _, optimizer = trained(case, wrap, 1)
        grads = []
        for options in ({"set_to_none": True}, {"set_to_none": False}, {}):
            case.fill(held(optimizer), 1)
            optimizer.zero_grad(**options)
            grads.append(snapshot([p.grad for p in held(optimizer)]))
        none, zeros, default = grads
        assert none == default == [None] * len(zeros)
        assert all(torch.count_nonzero(grad) == 0 for grad in zeros)
        return grads

    agree(run)


def check_add_group(case: Case) -> None:
    """A group added between steps trains from then on; a group that is already there is refused."""

    def run(wrap: Wrap) -> Any:
        _, optimizer = trained(case, wrap, 3)
        more = torch.ones(2, 2).requires_grad_(held(optimizer)[0].requires_grad)
        optimizer.add_param_group({"params": [more], "lr": case.lr()})
        with pytest.raises(ValueError, match="appear in more than one parameter group"):
            optimizer.add_param_group({"params": [more]})
        train(case, optimizer, 3, 8)
        assert held(optimizer)[-1] is more
        return seen(optimizer)

    agree(run)


def check_same_groups(case: Case) -> None:
    """Groups and state are the inner optimizer's own objects, also after loading."""

    def run(wrap: Wrap) -> Any:
        optimizer = wrap(case.make(case.parameters()))
        inner = getattr(optimizer, "inner", optimizer)
        for step in range(2):
            assert isinstance(optimizer, Optimizer)
            assert optimizer.param_groups is inner.param_groups
            assert optimizer.state is inner.state
            assert optimizer.defaults is inner.defaults
            advance(case, optimizer, step)
            optimizer.load_state_dict(copy.deepcopy(optimizer.state_dict()))
        assert optimizer.param_groups is inner.param_groups
        assert optimizer.state is inner.state
        return seen(optimizer)

    agree(run)


def check_no_grad(case: Case) -> None:
    """Parameters without a gradient, always or at times, frozen or not, are left alone."""

    def run(wrap: Wrap) -> Any:
        parameters = case.parameters()
        parameters[1].requires_grad_(False)
        optimizer = wrap(case.make(parameters))
        before = snapshot(parameters)

        def closure(step: int) -> Tensor:
            loss = case.loss(parameters, step)
            parameters[1].grad = parameters[3].grad = None
            parameters[2].grad = None if step % 2 else parameters[2].grad
            return loss

        for step in range(4):
            if case.closure:
                optimizer.step(lambda step=step: closure(step))
            else:
                closure(step)
                optimizer.step()
        assert differences([before[1], before[3]], snapshot([parameters[1], parameters[3]])) == []
        return seen(optimizer), len(optimizer.state)

    agree(run)


CHECKS: dict[str, Callable[[Case], None]] = {
    "steps": check_steps,
    "round-trip": check_round_trip,
    "into-bare": check_into_bare,
    "weights-only": check_weights_only,
    "deepcopy": check_deepcopy,
    "pickle": check_pickle,
    "step-hooks": check_step_hooks,
    "state-hooks": check_state_hooks,
    "closure": check_closure,
    "zero-grad": check_zero_grad,
    "add-group": check_add_group,
    "same-groups": check_same_groups,
    "no-grad": check_no_grad,
}


# each optimizer with its first options, those by default
FIRST = {case.optimizer: case.options for case in reversed(CASES)}


def needed(case: Case, check: str) -> bool:
    """Every check of every implementation of every optimizer; and of all other options what may
    depend on them: the steps of each implementation, and once the state that they lead to. A copy
    of options that hold a tensor may share it, so that each check is made of those."""
    if check == "steps" or case.options == FIRST[case.optimizer]:
        return True
    tensors = any(isinstance(option, Tensor) for option in case.kwargs.values())
    return case.variant == "plain" and (tensors or check in ("into-bare", "weights-only"))


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if metafunc.function is not test_contract:
        return
    whole = DEEP or "contract" in metafunc.config.option.keyword
    cells = [(case, check) for case in CASES for check in CHECKS if whole or needed(case, check)]
    names = [f"{case.name}-{check}" for case, check in cells]
    metafunc.parametrize(("case", "check"), cells, ids=names)


@pytest.mark.skipif(len(CASES) < 10, reason="this torch has no catalogue of its optimizers")
def test_contract(case: Case, check: str, record_property: Record) -> None:
    fill_cell(record_property, "optimizers", case.name, check, lambda: CHECKS[check](case))


# ── differentiable and compiled ───────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    "case", [c for c in CASES if c.variant == "differentiable"], ids=lambda case: case.name
)
def test_contract_differentiable(case: Case, record_property: Record) -> None:
    """Gradients flow back through the steps, to everything that they depend on."""

    def run(wrap: Wrap) -> Any:
        parameters = case.parameters()
        optimizer = wrap(case.make(parameters))
        scale = torch.tensor(1.0, requires_grad=True)
        for step in range(3):
            case.fill(parameters, step, scale)
            optimizer.step()
        end = sum(p.double().sum() for p in parameters)
        assert end.requires_grad
        return seen(optimizer), torch.autograd.grad(end, scale)

    fill_cell(record_property, "differentiable", case.name, "gradient", lambda: agree(run))


COMPILED: dict[str, Callable[[list[Tensor]], Optimizer]] = {
    "SGD": lambda p: SGD(p, lr=0.1, momentum=0.9),
    "Adam": lambda p: Adam(p, lr=0.01),
    "AdamW foreach": lambda p: AdamW(p, lr=0.01, foreach=True),
}


@pytest.fixture
def _forget_compiled() -> Iterator[None]:
    torch.compiler.reset()
    yield
    torch.compiler.reset()


@pytest.mark.usefixtures("_forget_compiled")
# while torch loads its compiler
@pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning")
@pytest.mark.parametrize("kind", COMPILED)
def test_contract_compiled(kind: str, record_property: Record) -> None:
    """The same compiled function over the wrapper does the same."""
    case = Case(SGD)

    def run(wrap: Wrap) -> Any:
        parameters = case.parameters()[:2]
        optimizer = wrap(COMPILED[kind](parameters))
        compiled = torch.compile(lambda: optimizer.step(), backend="eager")
        for step in range(3):
            case.fill(parameters, step)
            compiled()
        if isinstance(optimizer, MendOptimizer):
            assert optimizer.status().step == 3
        return seen(optimizer)

    fill_cell(record_property, "compiled", kind, "steps", lambda: agree(run))
