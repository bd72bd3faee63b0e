"""The state that an optimizer does not have yet."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import Parameter
from torch.optim import SGD, Adam, Optimizer, RMSprop, SparseAdam

from mend_optim.model.first_state import first_state


class WithPlace(Optimizer):
    """Keeps a place in parameter space, as schedule-free does, and counts in a tensor of the
    group."""

    def __init__(self, params: Any) -> None:
        super().__init__(params, {"lr": 0.1, "count": torch.zeros(())})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            group["count"] += 1
            for p in group["params"]:
                self.state[p].setdefault("z", p.clone()).sub_(p.grad)


class Around(Optimizer):
    """Built around another optimizer, which has a state of its own, as timm's Lookahead."""

    def __init__(self, base: Optimizer, shares_groups: bool = True) -> None:
        super().__init__(base.param_groups, {})
        self.base = base
        if shares_groups:
            self.param_groups = base.param_groups

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        self.base.step()
        for group in self.param_groups:
            for p in group["params"]:
                self.state[p].setdefault("slow", p.clone())


def made(inner: Optimizer, weight: Tensor) -> dict[str, Any]:
    before = weight.detach().clone()
    (group,) = inner.param_groups
    state = first_state(inner, group, weight)
    assert torch.equal(weight.detach(), before)
    assert weight.grad is None
    assert not inner.state
    return state


def test_a_place_begins_at_the_parameter() -> None:
    weight = Parameter(torch.full((3,), 5.0))
    z = made(WithPlace([weight]), weight)["z"]
    assert z.tolist() == [5.0, 5.0, 5.0]
    assert z.data_ptr() != weight.data_ptr()


def test_a_count_in_a_tensor_of_the_group_stays() -> None:
    weight = Parameter(torch.ones(3))
    inner = WithPlace([weight])
    made(inner, weight)
    assert inner.param_groups[0]["count"] == 0


def test_nothing_stays_in_an_optimizer_around_which_this_one_is_built() -> None:
    """Its state_dict() would know no number for the stand-in, and raise."""
    weight = Parameter(torch.ones(3))
    base = Adam([weight])
    assert made(Around(Around(base)), weight)["slow"].tolist() == [1.0, 1.0, 1.0]
    assert not base.state
    assert base.state_dict()["state"] == {}


@pytest.mark.parametrize("shares_groups", [False, True])
def test_no_weight_is_trained_by_an_optimizer_inside_this_one(shares_groups: bool) -> None:
    weight = Parameter(torch.ones(3))
    weight.grad = torch.ones(3)
    base = Adam([weight])
    calls: list[Optimizer] = []
    base.register_step_post_hook(lambda optimizer, _, __: calls.append(optimizer))
    inner = Around(base, shares_groups)
    assert first_state(inner, inner.param_groups[0], weight)
    assert weight.tolist() == [1.0, 1.0, 1.0]
    assert not calls
    for each in (base, inner):
        assert each.param_groups[0]["params"] == [weight]
    base.step()
    assert calls == [base]


@pytest.mark.parametrize("make", [Adam, SGD, RMSprop])
def test_weight_decay_is_no_gradient(make: Any) -> None:
    options = {} if make is Adam else {"momentum": 0.9}
    weight = Parameter(torch.ones(3))
    inner = make([weight], lr=0.1, weight_decay=0.5, **options)
    state = made(inner, weight)
    moments = [value for name, value in state.items() if name != "step"]
    assert moments
    assert not any(bool(moment.any()) for moment in moments)
    assert inner.param_groups[0]["weight_decay"] == 0.5


def test_an_optimizer_of_sparse_gradients_has_one() -> None:
    weight = Parameter(torch.ones(3, 2))
    state = made(SparseAdam([weight]), weight)
    assert sorted(state) == ["exp_avg", "exp_avg_sq", "step"]
