"""The class of a wrapped optimizer, where other code looks closely: at signatures, hooks, copies,
registers of classes, and constructors."""

from __future__ import annotations

import copy
import gc
import inspect
from typing import Any

import pytest
import torch
from torch.optim import LBFGS, SGD, Optimizer

from mend_optim import MendOptimizer
from tests.support.learners import descent, read, step, weights

pytestmark = pytest.mark.usefixtures("no_environment")

HANDED_ON = ("step", "zero_grad", "state_dict", "load_state_dict", "add_param_group")


class Demanding(SGD):
    """An optimizer whose methods take more than torch's."""

    def __init__(self, params: Any, lr: float = 1.0) -> None:
        super().__init__(params, lr=lr)
        self.told: list[Any] = []

    def step(self, closure: Any = None, *, grad_scaler: Any = None) -> Any:  # type: ignore[override]
        self.told.append(grad_scaler)
        return super().step(closure)

    def zero_grad(self) -> None:  # type: ignore[override]
        super().zero_grad(set_to_none=False)

    def state_dict(self, *, short: bool = False) -> dict[str, Any]:  # type: ignore[override]
        return {**super().state_dict(), "short": short}

    def load_state_dict(self, state_dict: Any, strict: bool = True) -> None:
        self.told.append(strict)
        super().load_state_dict(state_dict)

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        super().add_param_group(param_group)


# ── signatures ────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("name", HANDED_ON)
@pytest.mark.parametrize("kind", [SGD, LBFGS, Demanding])
def test_a_method_shows_the_inner_ones_signature(kind: type[Any], name: str) -> None:
    inner = kind(weights(1.0))
    optimizer = MendOptimizer(inner)
    assert inspect.signature(getattr(optimizer, name)) == inspect.signature(getattr(inner, name))
    assert getattr(optimizer, name).__name__ == name


def test_checkpoints_hand_their_arguments_on() -> None:
    optimizer: Any = MendOptimizer(Demanding(weights(4.0)))
    step(optimizer, 1.0)
    state = optimizer.state_dict(short=True)
    assert (state["short"], state["mend"]["step"]) == (True, 1)
    optimizer.load_state_dict(state, strict=False)
    assert optimizer.told[-1] is False


def test_a_scaler_that_the_inner_step_wants_is_handed_to_it() -> None:
    inner: Any = Demanding(weights(4.0))
    inner._step_supports_amp_scaling = True
    optimizer = MendOptimizer(inner)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0)
    scaler.scale(optimizer.param_groups[0]["params"][0].sum()).backward()
    with pytest.warns(FutureWarning, match="passing itself"):
        scaler.step(optimizer)
    assert inner.told == [scaler]


def test_an_own_wrappers_step_is_still_taken() -> None:
    class Counting(MendOptimizer):
        steps = 0

        def step(self, *args: Any, **kwargs: Any) -> Any:
            Counting.steps += 1
            return super().step(*args, **kwargs)

    optimizer = Counting(descent(4.0))
    step(optimizer, 1.0)
    assert (Counting.steps, read(optimizer)) == (1, [3.0])


# ── hooks ─────────────────────────────────────────────────────────────────────────────────────────


def test_a_hook_sees_the_optimizer_where_it_was_registered() -> None:
    optimizer = MendOptimizer(descent(4.0))
    seen: list[Any] = []

    def hook(optimizer: Any, *_: Any) -> None:
        seen.append(optimizer)

    handles = [
        optimizer.register_step_pre_hook(hook),
        optimizer.register_step_post_hook(hook),
        optimizer.register_state_dict_pre_hook(hook, prepend=True),
        optimizer.register_state_dict_post_hook(hook),
        optimizer.register_load_state_dict_pre_hook(hook),
        optimizer.register_load_state_dict_post_hook(hook),
    ]
    step(optimizer, 1.0)
    optimizer.load_state_dict(optimizer.state_dict())
    assert len(seen) == len(handles)
    assert all(each is optimizer for each in seen)
    for handle in handles:
        handle.remove()
    step(optimizer, 1.0)
    assert len(seen) == len(handles)


def test_a_hook_may_change_the_arguments() -> None:
    optimizer = MendOptimizer(descent(4.0))
    called: list[str] = []

    def hook(_: Any, args: Any, kwargs: Any) -> Any:
        return (*args, lambda: called.append("theirs")), kwargs

    optimizer.register_step_pre_hook(hook)
    optimizer.step()
    assert called == ["theirs"]


def test_a_hook_lives_on_with_the_inner_optimizer() -> None:
    inner = descent(4.0)
    optimizer = MendOptimizer(inner)
    seen: list[Any] = []
    optimizer.register_step_post_hook(lambda each, *_: seen.append(each))
    del optimizer
    gc.collect()
    inner.step()
    assert seen == [inner]


# ── constructors and registers ────────────────────────────────────────────────────────────────────


def test_its_class_makes_one_more_optimizer_of_the_same_kind() -> None:
    optimizer = MendOptimizer(SGD(weights(1.0), lr=0.25), name="a")
    parameter = weights(4.0)
    again: Any = type(optimizer)(parameter, **optimizer.defaults)
    step(again, 1.0)
    assert type(again) is type(optimizer)
    assert type(again.inner) is SGD
    assert again.defaults == optimizer.defaults
    assert (again.status().step, optimizer.status().step) == (1, 0)
    around: Any = type(optimizer)(SGD(parameter, lr=0.5), name="b")
    assert (around.name, around.defaults["lr"]) == ("b", 0.5)
    named: Any = type(optimizer)(inner=SGD(parameter, lr=0.5), name="c")
    assert named.name == "c"


def test_a_new_that_returns_a_wrapped_optimizer_does_not_initialize_it_again() -> None:
    class Magic(SGD):
        def __new__(cls, *args: Any, **kwargs: Any) -> Any:
            made = object.__new__(cls)
            made.__init__(*args, **kwargs)
            return MendOptimizer(made)

    optimizer: Any = Magic(iter(weights(4.0)), lr=1.0)
    step(optimizer, 1.0)
    assert (type(optimizer.inner), optimizer.status().step) == (Magic, 1)


def test_a_register_of_subclasses_does_not_hear_of_the_wrapper() -> None:
    heard: list[str] = []

    class Registered(SGD):
        def __init_subclass__(cls, **kwargs: Any) -> None:
            super().__init_subclass__(**kwargs)
            heard.append(cls.__qualname__)

    optimizer = MendOptimizer(Registered(weights(1.0)))
    assert isinstance(optimizer, Registered)
    assert heard == []
    type("Proxy", (type(optimizer),), {})
    assert heard == ["Proxy"]


def test_a_class_that_allows_no_common_subclass_is_wrapped_all_the_same() -> None:
    class Slotted(SGD):
        __slots__ = ("speed",)

    optimizer: Any = MendOptimizer(Slotted(weights(4.0), lr=1.0))
    optimizer.speed = 3
    step(optimizer, 1.0)
    assert (read(optimizer), optimizer.inner.speed) == ([3.0], 3)


# ── copies and ends ───────────────────────────────────────────────────────────────────────────────


class Living(SGD):
    """An optimizer that copies and ends itself in its own way."""

    ends = 0

    def __copy__(self) -> Optimizer:
        return Living(self.param_groups, lr=7.0)

    def __deepcopy__(self, memo: Any) -> Optimizer:
        return Living(copy.deepcopy(self.param_groups, memo), lr=7.0)

    def __del__(self) -> None:
        Living.ends += 1


@pytest.mark.parametrize("copied", [copy.copy, copy.deepcopy])
def test_a_copy_is_wrapped_although_the_inner_class_copies_itself(copied: Any) -> None:
    optimizer = MendOptimizer(Living(weights(4.0), lr=1.0))
    step(optimizer, 1.0)
    twin = copied(optimizer)
    assert isinstance(twin, MendOptimizer)
    assert (twin.status().step, type(twin.inner)) == (1, Living)


def test_the_inner_optimizer_ends_when_it_is_gone_and_not_before() -> None:
    inner = Living(weights(4.0), lr=1.0)
    optimizer = MendOptimizer(inner)
    before = Living.ends
    del optimizer
    gc.collect()
    assert Living.ends == before
    del inner
    gc.collect()
    assert Living.ends == before + 1


def test_it_lists_the_inner_optimizers_attributes() -> None:
    optimizer = MendOptimizer(Demanding(weights(1.0)))
    assert {"told", "param_groups", "synchronize", "inner"} <= set(dir(optimizer))
