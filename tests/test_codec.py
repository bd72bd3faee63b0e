from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from mend_optim.codec import Packet, as_bytes, codec, decode
from mend_optim.errors import PeerError, UsageError

CODECS = ["none", "bf16"]
floats = st.lists(st.floats(-(2.0**100), 2.0**100, width=32, allow_subnormal=False), max_size=20).map(
    lambda values: torch.tensor(values, dtype=torch.float32)
)
any_floats = st.lists(st.floats(width=32), max_size=20).map(lambda values: torch.tensor(values, dtype=torch.float32))


@given(any_floats)
def test_none_is_exact_to_the_bit(tensor: Tensor) -> None:
    packet = codec("none").encode(tensor)
    assert bytes(packet.data) == tensor.numpy().tobytes()
    assert as_bytes(decode(packet, tensor.numel())) == as_bytes(tensor)


def test_none_copies_neither_way() -> None:
    tensor = torch.zeros(4)
    packet = codec("none").encode(tensor)
    assert decode(packet, 4).data_ptr() == tensor.data_ptr()
    tensor[0] = 1
    assert bytes(packet.data[:4]) == b"\x00\x00\x80\x3f"


@given(floats)
def test_bf16_errs_by_at_most_2_to_the_minus_8(tensor: Tensor) -> None:
    decoded = decode(codec("bf16").encode(tensor), tensor.numel())
    assert decoded.dtype == torch.float32
    assert ((decoded - tensor).abs() <= tensor.abs() * 2**-8).all()


@given(floats)
def test_bf16_loses_nothing_twice(tensor: Tensor) -> None:
    once = decode(codec("bf16").encode(tensor), tensor.numel())
    assert torch.equal(decode(codec("bf16").encode(once), tensor.numel()), once)


@pytest.mark.parametrize("name", CODECS)
@given(tensor=floats)
def test_a_packet_describes_itself(name: str, tensor: Tensor) -> None:
    packet = codec(name).encode(tensor)
    assert (packet.codec, packet.numel, packet.nbytes) == (name, tensor.numel(), codec(name).nbytes(tensor.numel()))


@pytest.mark.parametrize("name", CODECS)
def test_encoding_leaves_the_tensor_as_it_was(name: str) -> None:
    tensor = torch.tensor([1.0, math.pi])
    codec(name).encode(tensor)
    assert tensor.tolist() == [1.0, torch.tensor(math.pi).item()]


def test_only_codecs_that_lose_nothing_call_themselves_exact() -> None:
    third = torch.tensor([1 / 3])
    exact = [name for name in CODECS if torch.equal(decode(codec(name).encode(third), 1), third)]
    assert exact == [name for name in CODECS if codec(name).exact] == ["none"]


def test_an_unknown_codec_is_the_users_mistake_here_and_the_peers_in_a_packet() -> None:
    with pytest.raises(UsageError, match=r"codec must be one of \['bf16', 'none'\], got 'zip'"):
        codec("zip")
    with pytest.raises(PeerError, match="unknown codec 'zip'"):
        decode(Packet("zip", 0, memoryview(b"")), 0)


@pytest.mark.parametrize("name", CODECS)
@pytest.mark.parametrize("change", ["codec", "numel", "short", "long"])
def test_a_packet_of_another_size_is_refused_with_both_sizes(name: str, change: str) -> None:
    packet = codec(name).encode(torch.zeros(6))
    data, other = bytes(packet.data), CODECS[1 - CODECS.index(name)]
    wrong = {
        "codec": replace(packet, codec=other),
        "numel": replace(packet, numel=7),
        "short": replace(packet, data=memoryview(data[:-1])),
        "long": replace(packet, data=memoryview(data + b"\0")),
    }[change]
    with pytest.raises(PeerError, match=f"packet of {wrong.numel} elements in {wrong.nbytes} bytes, expected 6 in"):
        decode(wrong, 6)


@given(st.sampled_from([*CODECS, "", "zip"]), st.integers(-1, 10), st.binary(max_size=44), st.integers(0, 10))
def test_random_bytes_are_a_tensor_or_the_peers_fault(name: str, claimed: int, data: bytes, numel: int) -> None:
    try:
        decoded = decode(Packet(name, claimed, memoryview(data)), numel)
    except PeerError:
        return
    assert (decoded.shape, decoded.dtype) == ((numel,), torch.float32)


@pytest.mark.filterwarnings("error")
def test_read_only_bytes_are_decoded_without_a_warning() -> None:
    packet = Packet("none", 2, memoryview(b"\x00\x00\x80\x3f" * 2))
    assert decode(packet, 2).add_(1).tolist() == [2, 2]
    assert bytes(packet.data) == b"\x00\x00\x80\x3f" * 2
