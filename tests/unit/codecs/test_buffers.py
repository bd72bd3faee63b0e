"""A buffer returns to its pool when nothing holds its memory any more, and not before."""

from __future__ import annotations

import gc
import mmap
import os
import sys
import warnings
from pathlib import Path
from unittest.mock import Mock

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from mend_optim.codecs import buffers as pool
from mend_optim.codecs.buffers import HUGE, LOOK, PER_ROUND, Buffers, _size
from mend_optim.codecs.packing import as_bytes, raw
from mend_optim.codecs.registry import decode_packet
from mend_optim.model.layout import Layout
from mend_optim.own_tensors import OwnTensors
from mend_optim.protocol.messages import Packet


def test_a_buffer_is_reused_once_it_is_dropped() -> None:
    buffers = Buffers()
    first, second = buffers.take(8), buffers.take(8)
    where = first.data_ptr()
    assert second.data_ptr() != where
    del first
    gc.collect()
    assert buffers.take(8).data_ptr() == where


def test_no_code_runs_where_a_buffer_is_dropped() -> None:
    """Python ignores exceptions there, and Ctrl-C is one that comes at any instruction."""
    buffers, seen = Buffers(), []
    lent = [buffers.take(8)]
    where = lent[0].data_ptr()
    sys.setprofile(lambda frame, event, _: seen.append((event, frame.f_code.co_name)))
    try:
        lent.clear()
    finally:
        sys.setprofile(None)
    assert [name for event, name in seen if event == "call"] == []
    assert buffers.take(8).data_ptr() == where, "it did not come back"


HOLDERS = {
    "a packet": lambda buffer: raw(buffer),
    "its bytes": as_bytes,
    "a piece of its bytes": lambda buffer: as_bytes(buffer)[4:8],
    "a decoded packet": lambda buffer: decode_packet(raw(buffer), [(8,)]),
    "a slice": lambda buffer: buffer[2:4],
    "a view": lambda buffer: buffer.detach().view(2, 4),
    "an array": lambda buffer: buffer.numpy()[1:],
}


@pytest.mark.parametrize("holder", HOLDERS)
def test_a_buffer_is_not_reused_while_anything_holds_its_memory(holder: str) -> None:
    """Else a seal on its way to a slow peer would be overwritten by the next round's."""
    buffers = Buffers()
    where = buffers.take(8).data_ptr()
    held = HOLDERS[holder](buffers.take(8))
    gc.collect()
    assert buffers.take(8).data_ptr() != where
    del held
    gc.collect()
    assert buffers.take(8).data_ptr() == where


BYTES_HOLDERS = {
    "themselves": lambda data: data,
    "a piece of them": lambda data: data[100:200],
    "an array": lambda data: np.frombuffer(data, dtype=np.uint8)[4:],
    "a packet": lambda data: Packet("none", 100_000, data),
    "a decoded packet": lambda data: decode_packet(Packet("none", 100_000, data), [(100_000,)]),
}


@pytest.mark.parametrize("holder", BYTES_HOLDERS)
def test_bytes_are_not_reused_while_anything_holds_them(holder: str) -> None:
    def where(data: memoryview) -> int:
        return int(np.frombuffer(data, dtype=np.uint8).ctypes.data)

    buffers = Buffers()
    place = where(buffers.take_bytes(400_000))
    held = BYTES_HOLDERS[holder](buffers.take_bytes(400_000))
    gc.collect()
    assert where(buffers.take_bytes(400_000)) != place
    del held
    gc.collect()
    assert where(buffers.take_bytes(400_000)) == place


def test_a_buffer_serves_its_own_size_only() -> None:
    buffers = Buffers()
    where = buffers.take(8).data_ptr()
    small = buffers.take(4)
    assert (small.numel(), small.dtype) == (4, torch.float32)
    assert small.data_ptr() != where
    assert buffers.take(8).data_ptr() == where


def test_bytes_of_ever_other_sizes_take_no_more_memory_for_ever() -> None:
    buffers, seen = Buffers(), set()
    for nbytes in range(70_000, 130_000, 1000):
        held = buffers.take_bytes(nbytes)
        assert held.nbytes == nbytes
        seen.add(np.frombuffer(held, dtype=np.uint8).ctypes.data)
        del held
    assert len(seen) == 1


# ── what goes back to the system ──────────────────────────────────────────────────────────────────


def places(buffers: Buffers, count: int, numel: int = 8) -> set[int]:
    """Where so many buffers are that are lent at a time."""
    return {buffer.data_ptr() for buffer in [buffers.take(numel) for _ in range(count)]}


def free(buffers: Buffers) -> int:
    buffers._collect()
    return sum(map(len, buffers._free.values()))


def test_buffers_that_nobody_needs_any_more_go_back() -> None:
    """As a learner needs many when it joins, and few in its rounds."""
    buffers = Buffers()
    assert len(places(buffers, 10)) == 10
    assert free(buffers) == 10
    for _ in range(2 * LOOK):
        places(buffers, 1)
    assert free(buffers) == 1


def test_buffers_of_sizes_that_nobody_takes_any_more_go_back() -> None:
    buffers = Buffers()
    places(buffers, 10, 8)
    for _ in range(3 * LOOK):
        places(buffers, 1, 4)
    assert free(buffers) == 1


def test_buffers_that_are_needed_now_and_then_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    new = Mock(wraps=pool._memory)
    monkeypatch.setattr(pool, "_memory", new)
    buffers = Buffers()
    for _ in range(LOOK):
        for _ in range(5):
            places(buffers, 1)
        places(buffers, 3)
    assert new.call_count == 3


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_large_buffers_go_back_to_the_system() -> None:
    """The C library keeps blocks of this size once one of them was freed."""

    def resident() -> int:
        return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")

    buffers, numel = Buffers(), 1 << 19
    np.ones(4 * numel, dtype=np.float32)  # a greater block, which is freed at once
    before = resident()
    held = [buffers.take(numel).fill_(1) for _ in range(50)]
    top = torch.ones(numel)  # no block below this one goes back from the C library
    full = resident() - before
    assert full > 50 * 4 * numel * 0.9
    held.clear()
    for _ in range(2 * LOOK):
        buffers.take(numel)
    assert resident() - before < full / 5
    assert top.sum() == numel


class WithoutHugePages(mmap.mmap):
    """As a kernel answers that has none."""

    def madvise(self, *_: object) -> None:
        raise OSError(22, "Invalid argument")


def test_a_kernel_without_huge_pages_will_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pool.mmap, "mmap", WithoutHugePages)
    assert Buffers().take(HUGE // 4).fill_(1).sum() == HUGE // 4


def test_a_learner_keeps_what_each_of_its_fragments_needs() -> None:
    """Each may have a size of its own."""
    weights = [torch.nn.Parameter(torch.zeros(8)) for _ in range(12)]
    layout = Layout([str(i) for i in range(12)], weights, 12)
    own = OwnTensors(layout, weights, torch.optim.SGD(weights), ())
    assert own.pool._look == 12 * PER_ROUND


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_child_does_not_write_to_buffers() -> None:
    buffer = Buffers().take(1 << 19).fill_(1)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of threads, which the child needs not
        child = os.fork()
    if not child:
        buffer[:8] = 2
        os._exit(0 if buffer[0] == 2 else 1)
    assert os.waitpid(child, 0)[1] == 0
    assert torch.equal(buffer, torch.ones(1 << 19))


def test_fragments_of_nearly_one_size_share_buffers() -> None:
    buffers = Buffers()
    where = buffers.take(1000).data_ptr()
    other = buffers.take(990)
    assert (other.numel(), other.untyped_storage().nbytes()) == (990, 3960)
    assert other.data_ptr() == where


@given(st.integers(0, 2**40))
def test_a_buffer_has_up_to_an_eighth_more_than_is_asked_for(numel: int) -> None:
    assert numel <= _size(numel) <= numel + numel // 8
    assert _size(_size(numel)) == _size(numel)


def test_without_memory_the_fault_says_how_much_was_asked_for() -> None:
    with pytest.raises(MemoryError, match=str(4 << 50)):
        Buffers().take(1 << 50)
