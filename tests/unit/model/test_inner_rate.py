from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.nn import Parameter
from torch.optim import SGD, Adam

from mend_optim.model.inner_rate import inner_rate


def test_it_is_the_mean_over_the_groups() -> None:
    groups = [{"params": [Parameter(torch.ones(n))], "lr": lr} for n, lr in ((1, 0.5), (9, 1.5))]
    assert inner_rate(SGD(groups).param_groups) == 1.0


def test_a_tensor_is_read() -> None:
    inner = Adam([Parameter(torch.ones(1))], lr=torch.tensor(0.25), capturable=False)
    assert inner_rate(inner.param_groups) == 0.25


@pytest.mark.parametrize(
    "lr", [None, "0.1", True, -0.1, float("nan"), float("inf"), torch.ones(2), torch.tensor(-1.0)]
)
def test_what_is_no_rate_does_not_count(lr: Any) -> None:
    assert inner_rate([{"lr": lr}, {"lr": 0.5}]) == 0.5
    assert inner_rate([{"lr": lr}]) == 1.0


def test_without_rates_every_step_counts_as_1() -> None:
    assert inner_rate([]) == inner_rate([{}]) == 1.0


def test_a_rate_of_zero_is_a_rate() -> None:
    assert inner_rate([{"lr": 0.0}]) == 0.0
