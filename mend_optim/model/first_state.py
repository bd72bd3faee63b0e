"""State that an inner optimizer does not have yet: created by the optimizer's own step, with its
counters set as after any number of updates."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

# The names of state that is a place in parameter space, and words in them. schedule-free's `z` is
# one, and some of its optimizers step with a closure only. The slow weights of a Lookahead are
# others, and most make them at their first step back.
PLACES = ("z",)
_PLACE_WORDS = ("slow", "cached_params")


def is_place(name: str) -> bool:
    """Whether state of this name is a place in parameter space."""
    return name in PLACES or any(word in name for word in _PLACE_WORDS)


def named_state(inner: Optimizer, parameter: Tensor) -> dict[str, Any]:
    """What the optimizer keeps for the parameter, by name: nothing if it keeps no dict. torch lets
    it keep whatever it likes."""
    state = inner.state.get(parameter)
    return state if isinstance(state, dict) else {}


def is_empty(state: object) -> bool:
    """Whether an optimizer keeps nothing yet. A tensor may have no truth value."""
    return state is None or (isinstance(state, dict) and not state)


def first_state(inner: Optimizer, group: Mapping[str, Any], parameter: Tensor) -> Any:
    """The state that this optimizer creates for the parameter in a step on a zero gradient without
    weight decay. Empty if the optimizer cannot take such a step.

    A copy of the parameter takes the step in its place, so state that is a place in parameter space
    begins at the parameter. torch.distributed.checkpoint steps the parameter itself with a learning
    rate of 0; where ε = 0, that step is 0/0 and turns the whole parameter into NaN."""
    # The step may count in a tensor of the group.
    options = {name: v.clone() if isinstance(v, Tensor) else v for name, v in group.items()}
    if "weight_decay" in options:
        options["weight_decay"] = 0.0  # it would be a gradient
    optimizers = within(inner)
    for is_sparse in (False, True):  # SparseAdam takes no dense gradient
        stand_in = parameter.detach().clone()
        with suppress(Exception), _only({**options, "params": [stand_in]}, optimizers):
            gradient = torch.zeros_like(stand_in)
            stand_in.grad = gradient.to_sparse() if is_sparse else gradient
            _step_of(inner)(inner)
        made: Any = inner.state.pop(stand_in, {})
        for each in optimizers:
            # Left there, it would be in no group, and state_dict() would raise.
            each.state.pop(stand_in, None)
        if not is_empty(made):
            break
    return made


def within(inner: Any) -> list[Any]:
    """The optimizer, and those that it is built around. Its step takes theirs."""
    found = [inner]
    for each in found:
        inside = (value for value in vars(each).values() if isinstance(value, Optimizer))
        found += [value for value in inside if all(value is not known for known in found)]
    return found


def _step_of(inner: Optimizer) -> Any:
    """The class's step, unwrapped: schedulers count calls of the instance's."""
    step: Any = type(inner).step
    return step.__wrapped__ if getattr(step, "hooked", False) else step


@contextmanager
def _only(group: dict[str, Any], optimizers: Sequence[Any]) -> Iterator[None]:
    """Leave the optimizers with this group only and without hooks: a class that calls its base's
    step() would run them. They may share one list of groups, or not."""
    groups = [each.param_groups for each in optimizers]
    hooks = [
        registered
        for each in optimizers
        for registered in (each._optimizer_step_pre_hooks, each._optimizer_step_post_hooks)
    ]
    all_groups = [list(listed) for listed in groups]
    all_hooks = [dict(registered) for registered in hooks]
    for listed in groups:
        listed[:] = [group]
    for registered in hooks:
        registered.clear()
    try:
        yield
    finally:
        for listed, saved in zip(groups, all_groups, strict=True):
            listed[:] = saved
        for registered, saved_hooks in zip(hooks, all_hooks, strict=True):
            registered.update(saved_hooks)


def count(state: dict[str, Any], group: Mapping[str, Any], updates: int) -> None:
    """Set the state's counters to what they are after `updates` updates."""
    counters: dict[str, float] = {"step": updates}
    if "mu_product" in state:  # NAdam's
        counters["mu_product"] = _mu_product(
            float(group["betas"][0]), float(group["momentum_decay"]), updates
        )
    for name, value in counters.items():
        counter = state.get(name)
        if isinstance(counter, Tensor):
            counter.fill_(value)
        elif counter is not None:
            state[name] = type(counter)(value)


@lru_cache(maxsize=64)
def _mu_product(beta: float, momentum_decay: float, updates: int) -> float:
    """Π β (1 − ½ 0.96^(i ψ)) over the updates i."""
    product = 1.0
    for i in range(1, updates + 1):
        product *= beta * (1 - 0.5 * 0.96 ** (i * momentum_decay))
        # float32 has no number this small.
        if product < 1e-60:
            return 0.0
    return product
