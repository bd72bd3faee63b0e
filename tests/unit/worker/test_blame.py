"""An error while a peer's bytes are read is the peer's fault, and ends no thread."""

from __future__ import annotations

import pytest
import torch

from mend_optim.errors import PeerError
from mend_optim.worker.blame import blamed_on_peer


@pytest.mark.parametrize("error", [RuntimeError("size 8256 beside 17"), IndexError("list")])
def test_an_error_about_a_peers_bytes_is_the_peers_fault(error: Exception) -> None:
    with pytest.raises(PeerError, match=str(error)) as blamed, blamed_on_peer():
        raise error
    assert blamed.value.__cause__ is error


def test_running_out_of_memory_is_nobodys_fault() -> None:
    with pytest.raises(MemoryError), blamed_on_peer():
        raise MemoryError


def test_nor_is_it_when_torch_runs_out_of_memory() -> None:
    """Its allocator raises a plain `RuntimeError`."""
    with pytest.raises(MemoryError, match=str(4 << 50)) as told, blamed_on_peer():
        torch.empty(1 << 50)
    assert isinstance(told.value.__cause__, RuntimeError)


def test_nor_is_it_when_the_library_below_torch_does() -> None:
    with pytest.raises(MemoryError, match="bad_alloc"), blamed_on_peer():
        raise RuntimeError("std::bad_alloc")


def test_a_fault_that_has_a_name_keeps_it() -> None:
    with pytest.raises(PeerError, match=r"^Section is missing$"), blamed_on_peer():
        raise PeerError("Section is missing")
