"""The tokens in a batch; the optimizer in other libraries' wrappers."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from mend_optim import MendOptimizer, UsageError
from mend_optim.integrations.batch_tokens import tokens_in
from mend_optim.integrations.finding import find_optimizer, found_in, require_found
from tests.support.learners import descent

MASKS = st.lists(st.lists(st.integers(0, 1), min_size=4, max_size=4), min_size=1, max_size=5)


@given(MASKS)
def test_a_mask_says_which_are_tokens(mask: list[list[int]]) -> None:
    batch = {"input_ids": torch.zeros(len(mask), 4), "attention_mask": torch.tensor(mask)}
    assert tokens_in(batch) == sum(map(sum, mask))


@pytest.mark.parametrize(
    ("batch", "tokens"),
    [
        ({"input_ids": torch.zeros(3, 4)}, 12),
        ({"input_ids": torch.zeros(3, 4), "attention_mask": torch.ones(3, 1, 4, 4)}, 12),
        ({"input_ids": torch.zeros(3, 4), "attention_mask": torch.ones(3, 4).bool()}, 12),
        ({"attention_mask": torch.ones(3, 2)}, 6),
        ({"pixels": torch.zeros(3, 4)}, 0),
        ({"input_ids": [1, 2]}, 0),
        ([torch.zeros(3, 4)], 0),
        (torch.zeros(3, 4), 0),
        (None, 0),
    ],
)
def test_batches_of_other_kinds(batch: Any, tokens: int) -> None:
    assert tokens_in(batch) == tokens


def around(optimizer: Any, times: int) -> Any:
    """Wrappers that have the optimizer as an attribute, as Accelerate's."""
    for _ in range(times):
        optimizer = SimpleNamespace(optimizer=optimizer)
    return optimizer


@pytest.mark.parametrize("times", [0, 1, 3])
def test_it_is_found_in_wrappers(times: int) -> None:
    optimizer = MendOptimizer(descent(0.0), name="a")
    assert find_optimizer(around(optimizer, times)) is optimizer
    assert require_found(around(optimizer, times)) is optimizer


def test_a_proxy_that_claims_to_be_one_is_not_taken_for_it() -> None:
    optimizer = MendOptimizer(descent(0.0), name="a")

    class Proxy(type(optimizer)):  # type: ignore[misc]
        """Lightning makes such a class."""

        def __init__(self) -> None:
            object.__setattr__(self, "_run", optimizer._run)

        @property
        def optimizer(self) -> MendOptimizer:
            return optimizer

    proxy = Proxy()
    assert isinstance(proxy, MendOptimizer)
    assert find_optimizer(proxy) is optimizer


def test_an_optimizer_inside_the_inner_one_is_not_it() -> None:
    inner = descent(0.0)
    inner.optimizer = descent(0.0)  # type: ignore[attr-defined]  # as SAM has a base optimizer
    wrapped = MendOptimizer(inner, name="a")
    assert find_optimizer(wrapped) is wrapped


def test_wrappers_in_a_circle_have_none() -> None:
    circle = SimpleNamespace()
    circle.optimizer = circle
    assert find_optimizer(circle) is None
    with pytest.raises(UsageError, match=r"must be a MendOptimizer.*got 'SimpleNamespace'"):
        require_found(circle)


def test_each_is_found_once() -> None:
    a, b = MendOptimizer(descent(0.0), name="a"), MendOptimizer(descent(0.0), name="b")
    assert found_in([a, descent(0.0), around(b, 1), around(a, 2), None]) == [a, b]
