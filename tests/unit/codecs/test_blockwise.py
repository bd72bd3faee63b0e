from __future__ import annotations

import math
import struct
from collections.abc import Sequence
from functools import partial
from itertools import zip_longest

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from mend_optim.codecs.blockwise import (
    FLOAT4,
    INT4,
    INT8,
    LEAST_SCALE,
    BlockForm,
    Float4,
    Int4,
    Int8,
)
from mend_optim.codecs.packing import MOST, PART, Piece, fill, pack
from mend_optim.codecs.registry import (
    FORMS,
    Codec,
    check_packet,
    decode_packet,
    encode_packet,
    find_codec,
)
from mend_optim.errors import PeerError, UsageError
from mend_optim.protocol.messages import Packet
from tests.reference import bfloat16, dequantized, quantized
from tests.support.packets import bytes_of

MAGNITUDES: dict[BlockForm, Sequence[int]] = {
    INT8: range(128),
    INT4: range(8),
    FLOAT4: (0, 1, 2, 4, 8, 16, 32, 64),
}
each = pytest.mark.parametrize("form", [INT8, INT4, FLOAT4], ids=["int8", "int4", "float4"])
nibbles = pytest.mark.parametrize("form", [INT4, FLOAT4], ids=["int4", "float4"])
SEEDS = st.integers(0, 2**32 - 1)
BLOCKS = st.sampled_from([16, 32, 64])
SCALES = st.sampled_from([2.0**-149, 1e-44, 1e-40, 1e-37, 1e-30, 1e-3, 1.0, 7.0, 1e20, MOST])
SIZES = st.integers(1, 200)


def codec_of(form: BlockForm, block: int) -> Codec:
    return {INT8: Int8, INT4: Int4, FLOAT4: Float4}[form](block=block)


def random(seed: int, n: int, scale: float = 1.0) -> Tensor:
    """Between −scale and scale, with some zeros, and most values small."""
    generator = torch.Generator().manual_seed(seed)
    values = (2 * torch.rand(n, generator=generator) - 1) * torch.rand(n, generator=generator) ** 3
    return values * (torch.rand(n, generator=generator) < 0.9) * scale


def laid_out(
    form: BlockForm, scales: Sequence[float], codes: Sequence[int], block: int = 16
) -> bytes:
    """Scales, then codes: bytes, or pairs p + 16 q of a block's first and second half."""
    head = b"".join(struct.pack("<f", s)[2:] for s in scales)
    if form is INT8:
        return head + bytes(c & 0xFF for c in codes)
    found = []
    for at in range(0, len(codes), block):
        of_it = codes[at : at + block]
        half = math.ceil(len(of_it) / 2)
        found += [p + 16 * q for p, q in zip_longest(of_it[:half], of_it[half:], fillvalue=0)]
    return head + bytes(pair & 0xFF for pair in found)


def encoded(form: BlockForm, values: Tensor, block: int) -> bytes:
    (piece,), memory = codec_of(form, block).pieces([values], None)
    assert memory is None
    assert piece.form is form
    assert piece.param == block
    return bytes_of(piece)


def decoded(form: BlockForm, data: bytes, n: int, block: int) -> Tensor:
    out = torch.full((n,), math.nan)
    form.check(memoryview(data), (n,), block)
    return fill(out, partial(form.decoded, memoryview(data), (n,), block))


def there_and_back(form: BlockForm, values: Tensor, block: int = 16) -> Tensor:
    return decoded(form, encoded(form, values.reshape(-1), block), values.numel(), block).view(
        values.shape
    )


def scales_of(data: bytes, n: int, block: int) -> Tensor:
    """Of every element."""
    blocks = -(-n // block)
    bits = torch.tensor(list(struct.unpack(f"<{blocks}h", data[: 2 * blocks])), dtype=torch.int16)
    return bits.view(torch.bfloat16).float().repeat_interleave(block)[:n]


# ── the twins ─────────────────────────────────────────────────────────────────────────────────────


@each
@given(SEEDS, SIZES, BLOCKS, SCALES)
def test_bytes_and_values_are_those_of_the_twin(
    form: BlockForm, seed: int, n: int, block: int, scale: float
) -> None:
    values = random(seed, n, scale)
    scales, codes = quantized(values.tolist(), block, MAGNITUDES[form])
    data = encoded(form, values, block)
    assert data == laid_out(form, scales, codes, block)
    assert decoded(form, data, n, block).tolist() == dequantized(
        scales, codes, block, MAGNITUDES[form]
    )


@each
@given(st.lists(st.integers(-127, 127), min_size=1, max_size=15), st.integers(-100, 100))
def test_halfway_between_levels_is_as_in_the_twin(
    form: BlockForm, halves: list[int], exponent: int
) -> None:
    """The greatest is such that the scale is a power of two."""
    levels = [form.top, *(half % (2 * form.top) / 2 * (1 if half > 0 else -1) for half in halves)]
    values = [level * 2.0**exponent for level in levels]
    assert encoded(form, torch.tensor(values), 16) == laid_out(
        form, *quantized(values, 16, MAGNITUDES[form])
    )


@each
@given(st.data())
def test_any_codes_decode_as_in_the_twin(form: BlockForm, data: st.DataObject) -> None:
    most = len(MAGNITUDES[form]) - 1
    codes = data.draw(st.lists(st.integers(-most, most), min_size=1, max_size=70))
    count = -(-len(codes) // 16)
    scales = data.draw(
        st.lists(
            st.floats(LEAST_SCALE, MOST / 128, width=32).map(bfloat16),
            min_size=count,
            max_size=count,
        )
    )
    found = decoded(form, laid_out(form, scales, codes), len(codes), 16)
    assert found.tolist() == dequantized(scales, codes, 16, MAGNITUDES[form])


@pytest.mark.parametrize(
    ("form", "values", "expected"),
    [
        (INT8, [127.0, 0.5, 0.51, 1.5, -2.5, 126.4, -126.6], [127, 0, 1, 2, -2, 126, -127]),
        (INT4, [-7.0, 0.5, 0.51, 1.5, -2.5, 6.4, 6.5], [-7, 0, 1, 2, -2, 6, 6]),
        (
            FLOAT4,
            [64.0, 0.49, 0.5, -1.4, 1.5, 2.9, 3.0, -47.9, 48.0],
            [64, 0, 1, -1, 2, 2, 4, -32, 64],
        ),
    ],
)
def test_levels_by_hand(form: BlockForm, values: list[float], expected: list[int]) -> None:
    assert there_and_back(form, torch.tensor(values)).tolist() == expected


# ── what is lost ──────────────────────────────────────────────────────────────────────────────────


@each
@given(SEEDS, SIZES, BLOCKS, SCALES)
def test_nothing_is_farther_than_half_a_step(
    form: BlockForm, seed: int, n: int, block: int, scale: float
) -> None:
    values = random(seed, n, scale)
    data = encoded(form, values, block)
    lost = (decoded(form, data, n, block).double() - values.double()).abs()
    s = scales_of(data, n, block).double()
    # Between 2ᵏ and 2ᵏ⁺¹ half a step of E3M0 is a third of the value at most; to zero, half of 1.
    half = s / 2 if form is not FLOAT4 else torch.maximum(s / 2, values.double().abs() / 3)
    assert bool((lost <= half * (1 + 2**-12)).all())


@each
@given(SEEDS, SIZES, SCALES)
def test_the_greatest_of_a_block_has_the_greatest_level(
    form: BlockForm, seed: int, n: int, scale: float
) -> None:
    """So that what was decoded has the same scale again; unless the scale is the smallest that
    there is."""
    values = random(seed, n, scale)
    data = encoded(form, values, 16)
    found, s = decoded(form, data, n, 16), scales_of(data, n, 16)
    for start in range(0, n, 16):
        if s[start] > LEAST_SCALE:
            assert found[start : start + 16].abs().max() == form.top * s[start]


@each
@pytest.mark.parametrize("exponent", [-110, -3, 0, 110])
def test_no_greatest_value_is_clipped(form: BlockForm, exponent: int) -> None:
    """Every float32 between two powers of two, as far as its upper 16 bits and some lower ones
    go."""
    bits = (torch.arange(256)[:, None] << 15) + torch.tensor(
        [0, 1, 2**14 - 1, 2**14, 2**14 + 1, 2**15 - 1]
    )
    values = (1 + bits.reshape(-1).double() / 2**23).float() * 2.0**exponent
    blocks = torch.zeros(len(values), 16)
    blocks[:, 3] = values
    found = there_and_back(form, blocks)[:, 3]
    assert bool(((found - values).abs() <= values * 2**-8).all())


@each
@given(SEEDS, SIZES, BLOCKS, SCALES)
def test_what_was_decoded_is_encoded_to_the_same_bytes(
    form: BlockForm, seed: int, n: int, block: int, scale: float
) -> None:
    data = encoded(form, random(seed, n, scale), block)
    assert encoded(form, decoded(form, data, n, block), block) == data


@each
@given(SEEDS, SIZES, SCALES)
def test_signs_make_no_difference(form: BlockForm, seed: int, n: int, scale: float) -> None:
    values = random(seed, n, scale)
    assert torch.equal(there_and_back(form, -values), -there_and_back(form, values))


@each
def test_zeros_come_back_as_zeros(form: BlockForm) -> None:
    values = torch.tensor([0.0, -0.0] * 20)
    found = there_and_back(form, values)
    assert not found.any()
    assert not found.signbit().any()


@each
@pytest.mark.parametrize("value", [2.0**-149, 2.0**-130, 2.0**-126])
def test_decoded_values_are_never_subnormal(form: BlockForm, value: float) -> None:
    found = there_and_back(form, torch.full((40,), value))
    assert torch.equal(found, torch.full((40,), LEAST_SCALE if value > 2.0**-128 else 0.0))


@each
def test_the_greatest_values_stay_within_bounds(form: BlockForm) -> None:
    values = torch.full((20,), MOST)
    values[::3] = -MOST
    found = there_and_back(form, values)
    assert found.abs().max() <= MOST
    assert bool(((found - values).abs() <= MOST / form.top / 2).all())


@each
def test_a_block_has_nothing_to_do_with_the_next(form: BlockForm) -> None:
    values = torch.cat([torch.full((16,), 1e-20), torch.full((16,), 1e20), torch.full((5,), 1e-20)])
    assert torch.allclose(there_and_back(form, values), values, rtol=2**-8, atol=0)


# ── tensors ───────────────────────────────────────────────────────────────────────────────────────


@each
@pytest.mark.parametrize(
    "shape", [(), (1,), (0,), (0, 4), (2,), (3, 5), (17,), (4, 2, 3, 3), (129,), (1, 1000)]
)
def test_every_shape_comes_back(form: BlockForm, shape: tuple[int, ...]) -> None:
    tensor = torch.full(shape, 0.5)
    shapes = [shape, (70,)]
    packet, _ = encode_packet(
        codec_of(form, 64), torch.cat([tensor.reshape(-1), torch.ones(70)]), shapes
    )
    check_packet(packet, shapes)
    found = decode_packet(packet, shapes)[: tensor.numel()]
    assert torch.allclose(found, tensor.reshape(-1), rtol=2**-8)


@each
@given(st.lists(st.integers(0, 150), max_size=6), SEEDS)
def test_many_tensors_are_encoded_as_each_alone(
    form: BlockForm, sizes: list[int], seed: int
) -> None:
    tensors = [random(seed + i, size) for i, size in enumerate([*sizes, 3000, 3003, 5])]
    together, _ = codec_of(form, 16).pieces(tensors, None)
    assert [bytes_of(piece) for piece in together] == [
        encoded(form, tensor, 16) for tensor in tensors
    ]


@each
@pytest.mark.parametrize("block", [16, 128, 65536])
@pytest.mark.parametrize("extra", [0, 1, 16, 4097])
def test_a_large_tensor_is_encoded_as_its_parts(form: BlockForm, block: int, extra: int) -> None:
    """Of 65536 elements: a whole number of blocks."""
    values = random(1, 2 * PART + extra)
    parts = [encoded(form, part, block) for part in values.split(65536)]
    heads = [2 * -(-len(part) // block) for part in values.split(65536)]
    scales = b"".join(part[:head] for part, head in zip(parts, heads, strict=True))
    codes = b"".join(part[head:] for part, head in zip(parts, heads, strict=True))
    data = encoded(form, values, block)
    assert data == scales + codes
    there = torch.cat([there_and_back(form, part, block) for part in values.split(65536)])
    assert torch.equal(decoded(form, data, len(values), block), there)


@each
def test_layout_in_memory_makes_no_difference(form: BlockForm) -> None:
    values = random(3, 60).view(6, 10)
    for other in (values.t(), values[:, ::3], values[1:].t()):
        (piece,), _ = codec_of(form, 16).pieces([other], None)
        assert bytes_of(piece) == encoded(form, other.contiguous(), 16)


@each
@pytest.mark.parametrize("offset", [0, 1, 2, 3])
def test_received_bytes_lie_anywhere(form: BlockForm, offset: int) -> None:
    values = random(4, 101)
    data = encoded(form, values, 16)
    out = torch.empty(101 + offset)[offset:]
    fill(out, partial(form.decoded, memoryview(bytes(offset) + data)[offset:], (101,), 16))
    assert torch.equal(out, decoded(form, data, 101, 16))


@pytest.mark.parametrize(("name", "least"), [("int8", 3.93), ("int4", 7.52), ("float4", 7.52)])
def test_so_many_times_smaller_than_float32(name: str, least: float) -> None:
    values = torch.ones(1000812)
    packet, _ = encode_packet(find_codec(name), values, [(1000, 1000), (512,), (300,)])
    assert values.nbytes / packet.nbytes >= least


@each
@given(SIZES, st.sampled_from([16, 64, 128, 65536]))
def test_sizes_are_known_beforehand(form: BlockForm, n: int, block: int) -> None:
    size = 2 * math.ceil(n / block) + (n if form is INT8 else math.ceil(n / 2))
    assert form.nbytes((n,), block) == size == len(encoded(form, torch.ones(n), block))


def test_codes_of_forms_are_those_of_the_protocol() -> None:
    assert [FORMS[code] for code in (2, 3, 4)] == [INT8, INT4, FLOAT4]


# ── what is refused ───────────────────────────────────────────────────────────────────────────────


def packet_of(form: BlockForm, scale: int, codes: list[int], n: int, block: int = 16) -> Packet:
    parts = (np.array([scale], dtype=np.uint16), np.array(codes, dtype=np.uint8))
    return pack([Piece(form, block, parts)], n)


ONE = 0x3F80  # 1 as bfloat16


@each
@pytest.mark.parametrize(
    "scale", [0x0000, 0x8000, 0x0001, 0x007F, 0x7F80, 0x7FC0, 0xFFC0, 0xFF80, 0xBF80, 0x7F7F]
)
def test_scales_that_cannot_be_are_refused(form: BlockForm, scale: int) -> None:
    with pytest.raises(PeerError, match="Scales are not finite, too small or too large"):
        check_packet(packet_of(form, scale, [0] * form.codes_nbytes(8), 8), [(8,)])


@each
def test_the_greatest_scale_is_the_last_within_bounds(form: BlockForm) -> None:
    """Every scale of a block is looked at, and only scales whose every level is at most MOST are
    good."""
    for bits in range(0x0080, 0x7F80):
        scale = struct.unpack("<f", struct.pack("<I", bits << 16))[0]
        if scale * form.top > MOST:
            break
    codes = [0] * form.codes_nbytes(8)
    check_packet(packet_of(form, 0x0080, codes, 8), [(8,)])
    check_packet(packet_of(form, bits - 1, codes, 8), [(8,)])
    with pytest.raises(PeerError, match="too large"):
        check_packet(packet_of(form, bits, codes, 8), [(8,)])


@each
@pytest.mark.parametrize("place", [0, 1, 2, 3])
def test_every_scale_is_looked_at(form: BlockForm, place: int) -> None:
    data = bytearray(encoded(form, torch.ones(60), 16))
    data[2 * place : 2 * place + 2] = struct.pack("<H", 0x7FC0)
    with pytest.raises(PeerError, match="not finite"):
        form.check(memoryview(data), (60,), 16)


@pytest.mark.parametrize("place", [0, 3, 7])
def test_the_byte_that_is_no_code_is_refused(place: int) -> None:
    codes = [0x7F, 0x81, 0, 1, 0xFF, 5, 6, 7]
    check_packet(packet_of(INT8, ONE, codes, 8), [(8,)])
    codes[place] = 0x80
    with pytest.raises(PeerError, match="Code is -128; codes range from -127 to 127"):
        check_packet(packet_of(INT8, ONE, codes, 8), [(8,)])


@nibbles
def test_the_pairs_that_are_none_are_refused(form: BlockForm) -> None:
    """Of 256 bytes, all but the 225 of two places from -7 to 7."""
    pairs = {p + 16 * q & 0xFF for p in range(-7, 8) for q in range(-7, 8)}
    assert len(pairs) == 225
    for byte in range(256):
        for place in (0, 2, 3):
            codes = [0x77, 0x89, 0xFF, 0x10]
            codes[place] = byte
            if byte in pairs:
                check_packet(packet_of(form, ONE, codes, 8), [(8,)])
                continue
            with pytest.raises(PeerError, match="Code is -8; codes range from -7 to 7"):
                check_packet(packet_of(form, ONE, codes, 8), [(8,)])


@nibbles
@pytest.mark.parametrize("n", [3, 15, 35])
def test_a_code_after_the_last_is_refused(form: BlockForm, n: int) -> None:
    scales = np.full(-(-n // 16), ONE, dtype=np.uint16)
    for last in range(-119, 120):
        codes = np.zeros(-(-n // 2), dtype=np.int8)
        codes[-1] = last
        packet = pack([Piece(form, 16, (scales, codes))], n)
        if last + 8 & 15 == 0:
            continue
        if abs(last) <= 7:
            check_packet(packet, [(n,)])
            continue
        with pytest.raises(PeerError, match="a code after the last element's"):
            check_packet(packet, [(n,)])


@nibbles
@pytest.mark.parametrize("n", [4, 16, 36])
def test_of_an_even_number_the_last_has_a_pair(form: BlockForm, n: int) -> None:
    scales = np.full(-(-n // 16), ONE, dtype=np.uint16)
    codes = np.full(n // 2, 0x77, dtype=np.uint8)
    check_packet(pack([Piece(form, 16, (scales, codes))], n), [(n,)])


@each
@pytest.mark.parametrize("block", [0, 1, 8, 15, 17, 48, 65535, 131072, 2**31, 2**32 - 1])
def test_blocks_that_cannot_be_are_refused(form: BlockForm, block: int) -> None:
    with pytest.raises(
        PeerError, match=f"{block} elements; it must be a power of two from 16 to 65536"
    ):
        check_packet(packet_of(form, ONE, [0] * form.codes_nbytes(8), 8, block), [(8,)])


@each
@pytest.mark.parametrize("more", [-1, 4])
def test_another_number_of_codes_is_refused(form: BlockForm, more: int) -> None:
    packet = packet_of(form, ONE, [0] * (form.codes_nbytes(8) + more - more % 4), 8)
    with pytest.raises(PeerError, match=r"^Packet is|the limit is"):
        check_packet(packet, [(8,)])


@each
@given(st.binary(min_size=26, max_size=26), st.sampled_from([16, 32]))
def test_random_bytes_are_refused_or_bounded(form: BlockForm, noise: bytes, block: int) -> None:
    data = memoryview(noise)[: form.nbytes((21,), block)]
    try:
        form.check(data, (21,), block)
    except PeerError:
        return
    out = torch.full((21,), math.nan)
    fill(out, partial(form.decoded, data, (21,), block))
    assert bool((out.abs() <= MOST).all())


@pytest.mark.parametrize("kind", [Int8, Int4, Float4])
@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"block": 0}, "block must be a power of two from 16 to 65536, got 0"),
        ({"block": 8}, "block must be a power of two from 16 to 65536, got 8"),
        ({"block": 100}, "block must be a power of two from 16 to 65536, got 100"),
        ({"block": 131072}, "block must be a power of two from 16 to 65536, got 131072"),
        ({"block": 64.0}, "block must be a power of two from 16 to 65536, got 64.0"),
        ({"block": True}, "block must be a power of two from 16 to 65536, got True"),
        ({"back": "dense"}, r"back must be one of \(\'auto\', \'exact\', \'same\'\), got 'dense'"),
    ],
)
def test_bad_options_are_named(kind: type[Int8], options: dict[str, object], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        kind(**options)  # type: ignore[arg-type]
