"""A buffer returns to its pool when nothing holds its memory any more, and not before."""

from __future__ import annotations

import gc
import sys

import numpy as np
import pytest
import torch

from mend_optim.codecs.buffers import Buffers
from mend_optim.codecs.packing import as_bytes, raw
from mend_optim.codecs.registry import decode_packet
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
