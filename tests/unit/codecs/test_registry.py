"""The codecs as they are chosen by name, and what comes back of any packet."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from mend_optim.codecs.packing import as_bytes
from mend_optim.codecs.powersgd import PowerSGD
from mend_optim.codecs.registry import (
    CODECS,
    Codec,
    check_packet,
    codec_name,
    decode_packet,
    encode_packet,
    find_codec,
)
from mend_optim.errors import PeerError, UsageError
from mend_optim.protocol.messages import Packet
from mend_optim.worker.merge import weighted_mean

EXACT = [name for name, known in CODECS.items() if known.exact]
each = pytest.mark.parametrize("name", CODECS)
floats = st.lists(
    st.floats(-(2.0**100), 2.0**100, width=32, allow_subnormal=False), max_size=60
).map(lambda values: torch.tensor(values, dtype=torch.float32))


def there_and_back(name: str, values: Tensor) -> Tensor:
    shapes = [tuple(values.shape)]
    packet, _ = encode_packet(find_codec(name), values, shapes)
    check_packet(packet, shapes)
    return decode_packet(packet, shapes)


@given(floats)
def test_none_is_exact_to_the_bit_and_copies_neither_way(values: Tensor) -> None:
    packet, _ = encode_packet(find_codec("none"), values, [tuple(values.shape)])
    assert bytes(packet.data) == values.numpy().tobytes()
    decoded = decode_packet(packet, [tuple(values.shape)])
    assert as_bytes(decoded) == as_bytes(values)
    assert not len(values) or decoded.data_ptr() == values.data_ptr()


@given(floats)
def test_bf16_errs_by_at_most_2_to_the_minus_8(values: Tensor) -> None:
    decoded = there_and_back("bf16", values)
    assert decoded.dtype == torch.float32
    assert ((decoded - values).abs() <= values.abs() * 2**-8).all()


@given(floats)
def test_bf16_loses_nothing_twice(values: Tensor) -> None:
    once = there_and_back("bf16", values)
    assert torch.equal(there_and_back("bf16", once), once)


@each
@given(values=floats)
def test_what_is_short_travels_as_it_is_and_nothing_gets_longer(name: str, values: Tensor) -> None:
    packet, _ = encode_packet(find_codec(name), values, [tuple(values.shape)])
    assert packet.numel == values.numel()
    assert packet.nbytes <= values.nbytes
    if values.numel() <= 4:
        assert bytes(packet.data) == values.numpy().tobytes()


@each
def test_encoding_leaves_the_tensors_as_they_were(name: str) -> None:
    values = torch.linspace(-math.pi, 5, 3000)
    before = values.clone()
    encode_packet(find_codec(name), values, [(50, 40), (1000,)])
    assert torch.equal(values, before)


@each
def test_only_codecs_that_lose_nothing_call_themselves_exact(name: str) -> None:
    values = torch.randn(64 * 64, generator=torch.Generator().manual_seed(1))
    packet, _ = encode_packet(find_codec(name), values, [(64, 64)])
    assert (
        torch.equal(decode_packet(packet, [(64, 64)]), values)
        == find_codec(name).exact
        == (name in EXACT)
    )


def test_codecs_are_told_by_name_or_as_they_are() -> None:
    assert find_codec("powersgd") == PowerSGD()
    assert find_codec(PowerSGD(rank=2)) == PowerSGD(rank=2)
    assert [codec_name(known) for known in CODECS.values()] == list(CODECS)
    assert (
        codec_name(PowerSGD(rank=2))
        == "PowerSGD(rank=2, bits=8, min_ratio=2.0, back='auto', seed=0)"
    )


@pytest.mark.parametrize("told", ["zip", "", None, 4, PowerSGD])
def test_an_unknown_codec_is_the_users_mistake(told: Codec) -> None:
    with pytest.raises(
        UsageError, match=r"codec must be one of \['bf16', .* or a codec such as PowerSGD\(rank=4\)"
    ):
        find_codec(told)


def test_an_unknown_codec_in_a_packet_is_the_peers() -> None:
    with pytest.raises(PeerError, match="Codec 'zip' is unknown"):
        check_packet(Packet("zip", 0, memoryview(b"")), [(0,)])


@each
@pytest.mark.parametrize("change", ["codec", "numel", "short", "long"])
def test_a_packet_of_another_size_is_refused(name: str, change: str) -> None:
    packet, _ = encode_packet(
        find_codec(name), torch.randn(4096, generator=torch.Generator().manual_seed(1)), [(64, 64)]
    )
    data = bytes(packet.data)
    wrong = {
        "codec": replace(packet, codec="packed" if packet.codec == "none" else "none"),
        "numel": replace(packet, numel=4097),
        "short": replace(packet, data=memoryview(data[:-4])),
        "long": replace(packet, data=memoryview(data + b"\0" * 4)),
    }[change]
    with pytest.raises(PeerError, match=r"Packet|Tensor 0"):
        check_packet(wrong, [(64, 64)])


@given(
    st.sampled_from(["none", "packed", "", "zip"]),
    st.integers(-1, 10),
    st.binary(max_size=64),
    st.integers(0, 10),
)
def test_random_bytes_are_a_tensor_or_the_peers_fault(
    name: str, claimed: int, data: bytes, numel: int
) -> None:
    packet = Packet(name, claimed, memoryview(data))
    try:
        check_packet(packet, [(numel,)])
    except PeerError:
        return
    decoded = decode_packet(packet, [(numel,)])
    assert (decoded.shape, decoded.dtype) == ((numel,), torch.float32)
    assert torch.isfinite(decoded).all()


@pytest.mark.filterwarnings("error")
def test_read_only_bytes_are_decoded_without_a_warning() -> None:
    packet = Packet("none", 2, memoryview(b"\x00\x00\x80\x3f" * 2))
    assert decode_packet(packet, [(2,)]).add_(1).tolist() == [2, 2]
    assert bytes(packet.data) == b"\x00\x00\x80\x3f" * 2


@pytest.fixture
def float64_by_default() -> Iterator[None]:
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


@pytest.mark.parametrize("how", CODECS.values(), ids=list(CODECS))
def test_what_torch_makes_by_default_changes_nothing(
    how: Codec, request: pytest.FixtureRequest
) -> None:
    """A script may set it to float64. Others decode the same bytes."""
    shapes = [(64, 64), (300, 301), (7,)]
    values = torch.randn(sum(map(math.prod, shapes)), generator=torch.Generator().manual_seed(0))

    def there_and_back() -> tuple[bytes, Tensor, Tensor]:
        packet, _ = encode_packet(how, values, shapes)
        found = decode_packet(packet, shapes)
        return (
            bytes(packet.data),
            found,
            weighted_mean([found, values], [0.3, 0.7], torch.empty_like(values)),
        )

    usual = there_and_back()
    request.getfixturevalue("float64_by_default")
    for here, there in zip(there_and_back()[1:], usual[1:], strict=True):
        assert here.dtype == torch.float32
        assert torch.equal(here, there)
    assert there_and_back()[0] == usual[0]
