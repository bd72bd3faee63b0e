"""Which processes are ranks of one learner, and what they must not do. `tests/ranks` has real
ones."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch.nn import Parameter
from torch.optim import SGD, Optimizer
from torch.testing._internal.distributed.fake_pg import FakeStore

from mend_optim import MendOptimizer, UsageError
from mend_optim.ranks.guard import is_divided

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


def test_ranks_that_meet_after_the_construction_are_refused_at_the_first_step() -> None:
    with wrapped(listen=LOOPBACK) as optimizer, ranks(2):
        with pytest.raises(UsageError, match=r"2 ranks that met afterwards.*init_process_group"):
            optimizer.step()
        assert optimizer.status().step == 0


@pytest.mark.parametrize(
    ("count", "options"),
    [(2, {"listen": LOOPBACK, "group": None}), (1, {"listen": LOOPBACK}), (2, {})],
    ids=["a learner of its own", "the only rank", "without peers"],
)
def test_a_process_by_itself_trains_by_itself(count: int, options: dict[str, Any]) -> None:
    with ranks(count), wrapped(**options) as optimizer:
        optimizer.step()
        assert optimizer.status().step == 1


def test_a_process_is_a_rank_if_its_group_has_several() -> None:
    assert not is_divided("auto")
    with ranks(2):
        assert is_divided("auto")
        assert is_divided(dist.group.WORLD)
        assert not is_divided(dist.new_group([0]))
        assert not is_divided(None)


class Container(Optimizer):
    """Passes calls on to the optimizers of the parts of a model."""

    def __init__(self, optimizers: Any) -> None:
        super().__init__([Parameter(torch.ones(3))], {})
        self.optimizers = optimizers


@pytest.mark.parametrize("kind", [list, tuple, lambda parts: dict(enumerate(parts))])
def test_a_container_of_optimizers_is_refused_with_peers(kind: Any) -> None:
    """Its own state is empty: moments would not be averaged, and nobody would be told."""
    parts = [SGD([Parameter(torch.ones(3))]) for _ in range(2)]
    told = r"inner must be an optimizer that holds no others, got '?a Container of 2'?; give one"
    with pytest.raises(UsageError, match=told):
        MendOptimizer(Container(kind(parts)), listen=LOOPBACK)
    MendOptimizer(Container(kind(parts)))
    MendOptimizer(Container(kind([])), listen=LOOPBACK).close()
    MendOptimizer(Container("none"), listen=LOOPBACK).close()


@pytest.mark.parametrize("group", ["all", 2, [0, 1]])
def test_what_is_no_group_is_refused(group: Any) -> None:
    with pytest.raises(UsageError, match="group must be 'auto', None or a ProcessGroup, got"):
        wrapped(group=group)


@pytest.mark.parametrize("shards", ["up", [1]])
def test_what_says_no_split_is_refused(shards: Any) -> None:
    with pytest.raises(UsageError, match="shards must be None, a dict of Split"):
        wrapped(shards=shards)
