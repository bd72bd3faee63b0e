"""A process that is one rank of several takes part only if its user says that it is a learner of
its own."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch.nn import Parameter
from torch.optim import SGD
from torch.testing._internal.distributed.fake_pg import FakeStore

from mend_optim import MendOptimizer, UsageError

LOOPBACK = "127.0.0.1:0"


@contextmanager
def ranks(count: int) -> Iterator[None]:
    """This process is rank 0 of so many; the others are not real."""
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=count)
    try:
        yield
    finally:
        dist.destroy_process_group()


def wrapped(**options: Any) -> MendOptimizer:
    parameter = Parameter(torch.ones(3))
    parameter.grad = torch.ones(3)
    return MendOptimizer(SGD([parameter], lr=0.1), **options)


def test_a_rank_of_several_is_refused_and_told_the_remedies() -> None:
    with ranks(2), pytest.raises(UsageError, match=r"runs 2 ranks.*pass group=None") as error:
        wrapped(listen=LOOPBACK)
    assert "DDP" in str(error.value)


def test_ranks_that_meet_after_the_construction_are_refused_at_the_first_step() -> None:
    with wrapped(listen=LOOPBACK) as optimizer, ranks(2):
        with pytest.raises(UsageError, match="runs 2 ranks"):
            optimizer.step()
        assert optimizer.status().step == 0


@pytest.mark.parametrize(
    ("count", "options"),
    [(2, {"listen": LOOPBACK, "group": None}), (1, {"listen": LOOPBACK}), (2, {})],
    ids=["a learner of its own", "the only rank", "without peers"],
)
def test_all_others_train(count: int, options: dict[str, Any]) -> None:
    with ranks(count), wrapped(**options) as optimizer:
        optimizer.step()
        assert optimizer.status().step == 1
