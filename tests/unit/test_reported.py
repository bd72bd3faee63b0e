"""Numbers that a script reports."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from mend_optim import MendOptimizer, UsageError
from mend_optim.protocol.sight import REPORTED_LIMIT
from tests.support.learners import descent


def test_the_newest_value_under_each_name_is_in_the_status() -> None:
    optimizer = MendOptimizer(descent(1.0), name="a")
    optimizer.report(loss=2, rate=torch.tensor(0.5))
    optimizer.report(loss=1.5)
    assert optimizer.status().reported == {"loss": 1.5, "rate": 0.5}
    assert "reported  loss 1.5, rate 0.5" in str(optimizer.status())


@pytest.mark.parametrize(
    ("numbers", "match"),
    [
        ({}, "at least one number"),
        ({"x" * 33: 1.0}, "at most 32 characters"),
        ({"a\n": 1.0}, "printable"),
        ({"": 1.0}, "printable"),
        ({"loss": "low"}, "a number"),
        ({"loss": None}, "a number"),
        ({"loss": torch.ones(2)}, "a number"),
        ({f"x{i}": 1.0 for i in range(REPORTED_LIMIT + 1)}, "at most 16 names"),
    ],
)
def test_what_is_wrong_changes_nothing(numbers: dict[str, Any], match: str) -> None:
    optimizer = MendOptimizer(descent(1.0), name="a")
    optimizer.report(kept=1.0)
    with pytest.raises(UsageError, match=match):
        optimizer.report(**numbers)
    assert optimizer.status().reported == {"kept": 1.0}


def test_as_many_names_as_there_may_be_are_taken() -> None:
    optimizer = MendOptimizer(descent(1.0), name="a")
    optimizer.report(**{f"{i:032}": i for i in range(REPORTED_LIMIT)})
    assert len(optimizer.status().reported) == REPORTED_LIMIT


@pytest.mark.filterwarnings("error")
def test_a_loss_with_a_gradient_is_taken_without_a_warning() -> None:
    parameter = torch.nn.Parameter(torch.ones(2))
    optimizer = MendOptimizer(torch.optim.SGD([parameter], lr=0.1), name="a")
    loss = parameter.square().sum()
    optimizer.report(loss=loss)
    assert optimizer.status().reported == {"loss": 2.0}
    loss.backward()
    assert parameter.grad is not None
