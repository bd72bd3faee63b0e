"""The state that an inner optimizer does not have yet: made as its first step would, and counted as
after many."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer


def first_state(inner: Optimizer, group: Mapping[str, Any], parameter: Tensor) -> dict[str, Any]:
    """What a step on a zero gradient makes of state for the parameter, of whatever kind this
    optimizer keeps. Empty for an optimizer that cannot step so.

    A stand-in of zeros takes the step. With the parameter itself and a learning rate of 0, as
    torch.distributed.checkpoint has it, the step would be 0/0 where ε = 0, and all of the parameter
    NaN."""
    stand_in = torch.zeros_like(parameter.detach())
    stand_in.grad = torch.zeros_like(stand_in)
    step: Any = type(inner).step  # not the instance's, which schedulers count
    step = step.__wrapped__ if getattr(step, "hooked", False) else step
    with suppress(Exception), _alone({**group, "params": [stand_in]}, inner):
        step(inner)
    made: dict[str, Any] = inner.state.pop(stand_in, {})
    return made


@contextmanager
def _alone(group: dict[str, Any], inner: Any) -> Iterator[None]:
    """With this group only, and no hooks: a class that calls its base's step() runs them there."""
    groups, hooks = (
        inner.param_groups,
        (inner._optimizer_step_pre_hooks, inner._optimizer_step_post_hooks),
    )
    all_groups, all_hooks = list(groups), [dict(each) for each in hooks]
    groups[:] = [group]
    for each in hooks:
        each.clear()
    try:
        yield
    finally:
        groups[:] = all_groups
        for each, those in zip(hooks, all_hooks, strict=True):
            each.update(those)


def count(state: dict[str, Any], group: Mapping[str, Any], updates: int) -> None:
    """Let the state's counters be what they are after so many updates."""
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
        if product < 1e-60:  # none in float32
            return 0.0
    return product
