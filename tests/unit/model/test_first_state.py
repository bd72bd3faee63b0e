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
