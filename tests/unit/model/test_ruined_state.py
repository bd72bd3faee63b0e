"""The inner optimizer's state after an accident."""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from typing import Any

import pytest
import torch
from torch.nn import Parameter
from torch.optim import LBFGS, SGD, Adagrad, AdamW, NAdam, Optimizer, RMSprop

from mend_optim.model.layout import Layout
from mend_optim.model.moment_state import FragmentState
from mend_optim.model.ruined_state import reset_moments

MAKES: dict[str, Callable[..., Optimizer]] = {
    "adamw": AdamW,
    "nadam": NAdam,
    "rmsprop": lambda p: RMSprop(p, centered=True, momentum=0.9),
    "adagrad": Adagrad,
    "momentum": lambda p: SGD(p, lr=0.1, momentum=0.9),
    "lbfgs": lambda p: LBFGS(p, max_iter=2),
}


def trained(make: Callable[..., Optimizer]) -> tuple[list[Parameter], Optimizer]:
    torch.manual_seed(0)
    weights = [Parameter(torch.randn(())), Parameter(torch.randn(3, 2))]
    inner = make(weights)

    def closure() -> torch.Tensor:
        inner.zero_grad()
        loss = sum((w**2).sum() for w in weights)
        assert isinstance(loss, torch.Tensor)
        loss.backward()
        return loss

    for _ in range(3):
        inner.step(closure)
    return weights, inner


def ruin(state: Any) -> None:
    if isinstance(state, torch.Tensor):
        if state.is_floating_point() and state.numel() > 1:
            state.fill_(torch.nan)
    elif isinstance(state, dict):
        for name, value in state.items():
            if name != "step":
                ruin(value)
    elif isinstance(state, list):
        for value in state:
            ruin(value)


@pytest.mark.parametrize("name", MAKES)
@pytest.mark.parametrize("is_nan", [False, True])
def test_the_next_step_is_one_of_an_optimizer_that_never_saw_the_accident(
    name: str, is_nan: bool
) -> None:
    weights, inner = trained(MAKES[name])
    if is_nan:
        ruin(dict(inner.state))
    fragment = Layout(["a", "b"], [w.detach() for w in weights], 1).fragments[0]
    steps = [deepcopy(inner.state[w].get("step")) for w in weights]
    reset_moments(FragmentState(fragment, weights, inner, 3))
    assert [inner.state[w].get("step") for w in weights] == steps
    for weight in weights:
        for key, value in inner.state[weight].items():
            if isinstance(value, torch.Tensor) and value.shape == weight.shape and key != "step":
                assert not value.any(), key

    def closure() -> torch.Tensor:
        inner.zero_grad()
        loss = sum((w**2).sum() for w in weights)
        assert isinstance(loss, torch.Tensor)
        loss.backward()
        return loss

    inner.step(closure)
    assert all(bool(torch.isfinite(w).all()) for w in weights)


def test_other_fragments_keep_theirs() -> None:
    weights, inner = trained(AdamW)
    layout = Layout(["a", "b"], [w.detach() for w in weights], 2)
    (first,) = layout.fragments[0].tensors
    reset_moments(FragmentState(layout.fragments[0], weights, inner, 3))
    assert not inner.state[weights[first]]["exp_avg"].any()
    assert inner.state[weights[1 - first]]["exp_avg"].any()
