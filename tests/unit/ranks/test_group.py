"""The ranks come together; `tests/ranks` has real ones."""

from __future__ import annotations

from typing import Any

import pytest
import torch.distributed as dist
from torch.distributed import distributed_c10d

from mend_optim import UsageError
from mend_optim.ranks import group


@pytest.fixture
def store(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The store by which ranks find each other."""
    store = dist.HashStore()
    monkeypatch.setattr(distributed_c10d, "_get_default_store", lambda: store)
    return store


def test_nobody_waits_long_for_a_rank_that_is_not_there(store: Any) -> None:
    with pytest.raises(
        UsageError, match=r"none on rank 1, 2 within 0\.05 s; construct it on every"
    ):
        group._meet([4, 5, 6], 0, meet_s=0.05)


def test_ranks_that_are_there_are_not_waited_for(
    store: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(group, "_numbers", iter([7, 7]))
    with pytest.raises(UsageError, match="none on rank 0 within"):
        group._meet([4, 5], 1, meet_s=0.05)
    group._meet([4, 5], 0, meet_s=0.05)
