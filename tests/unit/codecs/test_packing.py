from __future__ import annotations

import itertools
import math
import struct
import tracemalloc
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

import mend_optim.codecs.blockwise
import mend_optim.codecs.packing
import mend_optim.codecs.powersgd
import mend_optim.codecs.sparse
from mend_optim.codecs.blockwise import Blockwise
from mend_optim.codecs.packing import (
    BF16,
    DENSE,
    MOST,
    PACKED,
    Piece,
    bf16,
    coalesced,
    dense,
    pack,
    packed_nbytes,
    unpack,
    view,
)
from mend_optim.codecs.powersgd import PowerSGD
from mend_optim.codecs.registry import (
    CODECS,
    FORMS,
    Codec,
    check_packet,
    decode_packet,
    decoded,
    encode_packet,
    split,
)
from mend_optim.codecs.sparse import SPARSE, Sparse
from mend_optim.errors import PeerError
from mend_optim.protocol.messages import Packet
from tests import reference
from tests.support.packets import bytes_of, with_word

SHAPES = [(12, 10), (), (33,), (150,), (5, 3, 2, 2), (7,), (0, 4), (16, 16), (0,), (9, 9)]
NUMEL = sum(map(math.prod, SHAPES))
BEGIN = 8 + 8 * len(SHAPES)
FACTORS = [PowerSGD(rank=1, bits=bits, min_ratio=1) for bits in (8, 16)]
WAYS = [*CODECS.values(), FACTORS[0], Sparse(density=1.0), FACTORS[1]]
SEEDS = st.integers(0, 2**32 - 1)
BLOCKS = [way.block for way in WAYS if isinstance(way, Blockwise)]
SIZES = st.sampled_from([0, 1, 2, 3, 9, 64])
MIXES = st.lists(st.sampled_from(range(len(WAYS))), min_size=len(SHAPES), max_size=len(SHAPES))


def drawn(seed: int) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(NUMEL, generator=generator) * (torch.rand(NUMEL, generator=generator) < 0.3)


def pieces(seed: int, mix: list[int]) -> list[Piece]:
    """A piece of every tensor, each from a codec of its own; as codecs do, float32 where that is
    not larger."""
    found = []
    for tensor, way in zip(split(drawn(seed), SHAPES), mix, strict=True):
        ((piece,), _) = WAYS[way].pieces([tensor], None)
        found.append(piece if piece.nbytes < tensor.nbytes else dense(tensor))
    return found


def mixed() -> list[Piece]:
    """Every form that there is, once at least."""
    ways = itertools.cycle(range(len(WAYS)))
    return pieces(0, [next(ways) for _ in SHAPES])


def packed(data: bytes, numel: int = NUMEL) -> Packet:
    return Packet(PACKED, numel, memoryview(data))


def of_use(packet: Packet) -> bool:
    """Whether it is accepted; then it must decode to numbers of reasonable size. Nothing but
    `PeerError` may come out of the attempt."""
    try:
        check_packet(packet, SHAPES)
    except PeerError:
        return False
    found = decode_packet(packet, SHAPES, torch.full((NUMEL,), math.nan))
    assert found.shape == (NUMEL,)
    assert found.abs().max() <= MOST
    return True


# ── there and back ────────────────────────────────────────────────────────────────────────────────


@given(SEEDS, MIXES)
def test_what_is_packed_is_unpacked(seed: int, mix: list[int]) -> None:
    given, at = pieces(seed, mix), 0
    packet = pack(given, NUMEL)
    for piece, shape, found in zip(given, SHAPES, unpack(packet, SHAPES, FORMS), strict=True):
        assert (found.form, found.param, found.shape) == (piece.form, piece.param, shape)
        assert (found.start, found.stop) == (at, at + math.prod(shape))
        assert bytes(found.data) == bytes_of(piece)
        assert piece.form.nbytes(shape, piece.param) == piece.nbytes
        at = found.stop
    assert at == NUMEL
    assert packet.nbytes == packed_nbytes([piece.nbytes for piece in given])


@given(SEEDS, MIXES)
def test_a_tensor_among_others_is_decoded_as_it_is_alone(seed: int, mix: list[int]) -> None:
    given = pieces(seed, mix)
    packet = pack(given, NUMEL)
    check_packet(packet, SHAPES)
    together = split(decode_packet(packet, SHAPES, torch.full((NUMEL,), math.nan)), SHAPES)
    for piece, shape, found in zip(given, SHAPES, together, strict=True):
        alone = decode_packet(pack([piece], math.prod(shape)), [shape])
        assert torch.equal(found.reshape(-1), alone)


def test_the_bytes_are_those_of_the_description() -> None:
    given = [dense(torch.tensor([1.0, -2.0])), bf16(torch.tensor([3.0])), Piece(SPARSE, 0, ())]
    words = struct.pack("<8I", 3, 0, 0, 0, 1, 0, 5, 0)
    body = struct.pack("<2f", 1.0, -2.0) + b"\x40\x40\0\0"
    assert bytes(pack(given, 12).data) == words + body
    assert bytes(pack(given, 12, coalesce=5).data) == with_word(words, 1, 5) + body


@given(
    st.lists(
        st.integers(0, 4).map(lambda n: (n, 3)) | st.integers(0, 9).map(lambda n: (n,)), max_size=12
    ),
    SIZES,
)
def test_the_coalesced_are_those_of_the_twin(shapes: list[tuple[int, ...]], coalesce: int) -> None:
    found = list(coalesced(shapes, coalesce))
    assert found == reference.coalesced(shapes, coalesce)
    assert sum(map(math.prod, found)) == sum(map(math.prod, shapes))


def test_coalesced_by_hand() -> None:
    shapes = [(4, 2), (8,), (3,), (5,), (0,), (16,)]
    assert coalesced(shapes, 0) == shapes
    assert coalesced(shapes, 8) == [(16,), (3,), (5,), (16,)]
    assert coalesced(shapes, 1) == [(40,)]
    assert coalesced(shapes, 2**32 - 1) == [(4, 2), (8,), (3,), (5,), (0,), (16,)]


@pytest.mark.parametrize("way", [way for way in WAYS if way.coalesce], ids=str)
@given(
    seed=SEEDS,
    shapes=st.lists(st.sampled_from([(16,), (8, 16), (128,), (0,), (), (5,), (33, 3)]), max_size=8),
)
def test_coalesced_tensors_are_decoded_as_each_alone(
    way: Codec, seed: int, shapes: list[tuple[int, ...]]
) -> None:
    """Next to a tensor that makes it worth to encode anything."""
    sizes = [*map(math.prod, shapes), 2000]
    values = torch.randn(sum(sizes), generator=torch.Generator().manual_seed(seed))
    packet, _ = encode_packet(way, values, [*shapes, (2000,)])
    check_packet(packet, [*shapes, (2000,)])
    together = decode_packet(packet, [*shapes, (2000,)]).split(sizes)
    for tensor, shape, found in zip(values.split(sizes), shapes, together, strict=False):
        ((piece,), _) = way.pieces([tensor.view(shape)], None)
        piece = piece if piece.nbytes < tensor.nbytes else dense(tensor)
        assert torch.equal(found, decode_packet(pack([piece], tensor.numel()), [shape]))


@pytest.mark.parametrize("size", [max(BLOCKS), 256, 1 << 10])
@given(SEEDS, MIXES)
def test_the_size_of_parts_changes_no_bit(size: int, seed: int, mix: list[int]) -> None:
    packet = pack(pieces(seed, mix), NUMEL)
    whole = decode_packet(packet, SHAPES)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(mend_optim.codecs.packing, "PART", size)
        patch.setattr(mend_optim.codecs.blockwise, "PART", size)
        patch.setattr(mend_optim.codecs.sparse, "SPAN", size)
        patch.setattr(mend_optim.codecs.powersgd, "BLOCK", 4 * size)
        found = [part.clone() for part in decoded(packet, SHAPES)]
        again = pack(pieces(seed, mix), NUMEL)
    assert torch.equal(torch.cat(found), whole)
    assert max(map(len, found)) <= size
    assert bytes(again.data) == bytes(packet.data)


def test_what_is_decoded_in_parts_is_read_only_by_agreement() -> None:
    """With float32, the parts are the packet's own bytes: their consumer must not write there."""
    values = torch.arange(8.0)
    packet, _ = encode_packet(CODECS["none"], values, [(8,)])
    (part,) = decoded(packet, [(8,)])
    assert part.data_ptr() == values.data_ptr()


def test_no_tensors_are_packed_too() -> None:
    packet = pack([], 0)
    check_packet(packet, [])
    assert bytes(packet.data) == bytes(8)
    assert decode_packet(packet, []).shape == (0,)


def test_every_form_is_among_the_mixed() -> None:
    assert {piece.form.code for piece in mixed()} == set(FORMS)
    assert all(form.code == code for code, form in FORMS.items())


# ── memory of any kind ────────────────────────────────────────────────────────────────────────────


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("offset", range(8))
def test_bytes_may_be_anywhere(offset: int) -> None:
    packet = pack(mixed(), NUMEL)
    moved = memoryview(bytearray(offset) + bytes(packet.data))[offset:]
    for data in (moved, moved.toreadonly()):
        check_packet(Packet(PACKED, NUMEL, data), SHAPES)
        assert torch.equal(
            decode_packet(Packet(PACKED, NUMEL, data), SHAPES), decode_packet(packet, SHAPES)
        )


@pytest.mark.filterwarnings("error")
def test_received_bytes_are_not_written_to() -> None:
    packet = pack(mixed(), NUMEL)
    before = bytes(packet.data)
    check_packet(packet, SHAPES)
    decode_packet(packet, SHAPES).zero_()
    assert bytes(packet.data) == before


def test_a_view_is_of_the_bytes_where_that_can_be() -> None:
    data = bytearray(struct.pack("<4f", 1, 2, 3, 4))
    floats = view(memoryview(data), torch.float32, 4, 2)
    assert floats.tolist() == [2, 3]
    data[4:8] = struct.pack("<f", 5)
    assert floats.tolist() == [5, 3]
    assert view(memoryview(bytes(data)), torch.float32, 8).tolist() == [3, 4]
    # not every processor reads others
    assert view(memoryview(bytearray(9))[1:], torch.float32).data_ptr() % 4 == 0
    assert (
        view(memoryview(b""), torch.float32).shape
        == view(memoryview(data), torch.float32, 16).shape
        == (0,)
    )


# ── what a peer may send ──────────────────────────────────────────────────────────────────────────


def test_every_shorter_and_longer_packet_is_refused() -> None:
    data = bytes(pack(mixed(), NUMEL).data)
    assert of_use(packed(data))
    for wrong in [
        *(data[:size] for size in range(len(data))),
        *(data + bytes(more) for more in range(1, 10)),
    ]:
        with pytest.raises(PeerError, match=r"^Packet is|the limit is"):
            check_packet(packed(wrong), SHAPES)


def test_no_byte_of_the_header_can_be_changed_to_do_harm() -> None:
    data = bytes(pack(mixed(), NUMEL).data)
    for at, other in itertools.product(
        range(BEGIN), (0x01, 0x02, 0x04, 0x08, 0x10, 0x20, 0x40, 0x80, 0xFF)
    ):
        wrong = bytearray(data)
        wrong[at] ^= other
        of_use(packed(bytes(wrong)))


@pytest.mark.parametrize("param", [0, 1, 2, 3, 31, 255, 2**16, 2**31 - 1, 2**31, 2**32 - 1])
@pytest.mark.parametrize("code", [*FORMS, 9999])
def test_no_form_and_parameter_do_harm(code: int, param: int) -> None:
    data = bytes(pack(mixed(), NUMEL).data)
    for i in range(len(SHAPES)):
        wrong = with_word(with_word(data, 2 + 2 * i, code), 3 + 2 * i, param)
        if code not in FORMS:
            with pytest.raises(PeerError, match=f"Tensor {i} has the unknown form 9999"):
                check_packet(packed(wrong), SHAPES)
        of_use(packed(wrong))


@settings(max_examples=200)
@given(
    st.sampled_from(sorted(FORMS)),
    st.integers(0, 300),
    st.sampled_from(SHAPES),
    st.randoms(use_true_random=False),
)
def test_random_bytes_of_a_form_are_refused_or_bounded(
    code: int, param: int, shape: tuple[int, ...], chance
) -> None:  # type: ignore[no-untyped-def]
    """The right size, so that what is refused is refused for what it says."""
    numel = math.prod(shape)
    try:
        nbytes = FORMS[code].nbytes(shape, param)
    except PeerError:
        return
    if nbytes > 4 * numel:
        return
    body = chance.randbytes(nbytes)
    packet = packed(struct.pack("<4I", 1, 0, code, param) + body + bytes(-nbytes % 4), numel)
    try:
        check_packet(packet, [shape])
    except PeerError:
        return
    found = decode_packet(packet, [shape], torch.full((numel,), math.nan))
    assert bool((found.abs() <= MOST).all())


@pytest.mark.parametrize("seed", range(20))
def test_no_change_anywhere_does_harm(seed: int) -> None:
    chance = np.random.default_rng(seed)
    data = bytes(pack(mixed(), NUMEL).data)
    for at in chance.integers(0, len(data), 30):
        wrong = bytearray(data)
        wrong[at] = chance.integers(256)
        of_use(packed(bytes(wrong)))


@pytest.mark.parametrize("code", FORMS)
@pytest.mark.parametrize("param", [0, 1, 2**20, 2**32 - 1])
def test_no_packet_takes_more_memory_than_the_fragment(code: int, param: int) -> None:
    """Of a few bytes that say they are much; numpy's memory is counted."""
    shape = (1 << 10, 1 << 10)
    for size in (0, 4, 4096):
        data = struct.pack("<4I", 1, 0, code, param) + bytes(size)
        tracemalloc.start()
        try:
            check_packet(packed(data, 1 << 20), [shape])
        except PeerError:
            pass
        else:
            assert (code, param, size) == (SPARSE.code, 0, 0)
        finally:
            peak = tracemalloc.get_traced_memory()[1]
            tracemalloc.stop()
        assert peak < 1 << 16


@pytest.mark.parametrize("count", [0, 1, len(SHAPES) - 1, len(SHAPES) + 1, 2**32 - 1])
def test_another_number_of_tensors_is_refused(count: int) -> None:
    data = bytes(pack(mixed(), NUMEL).data)
    with pytest.raises(PeerError, match=rf"header is \[{count}, "):
        check_packet(packed(with_word(data, 0, count)), SHAPES)


def test_a_number_of_tensors_that_are_coalesced_in_another_way_is_refused() -> None:
    data = bytes(pack(mixed(), NUMEL).data)
    with pytest.raises(PeerError, match=r"header is \[10, 1\]; \[1, 1\] is needed"):
        check_packet(packed(with_word(data, 1, 1)), SHAPES)
    # none, 256 and none
    with pytest.raises(PeerError, match=r"header is \[10, 16\]; \[8, 16\] is needed"):
        check_packet(packed(with_word(data, 1, 16)), SHAPES)


def test_a_form_that_is_larger_than_float32_is_refused() -> None:
    positions, values = np.full(3, 255, dtype=np.uint8), torch.ones(24)
    assert SPARSE.nbytes((24,), 24) == 4 * 24 + 3
    with pytest.raises(PeerError, match="Tensor 0 is 99 bytes; the limit is 96"):
        check_packet(pack([Piece(SPARSE, 24, (values, positions))], 24), [(24,)])


def test_a_tensor_that_goes_beyond_the_bytes_is_refused() -> None:
    data = bytes(pack([dense(torch.ones(3)), dense(torch.ones(5))], 8).data)
    with pytest.raises(PeerError, match="Tensor 1 is 20 bytes; the limit is 16"):
        check_packet(packed(data[:-4], 8), [(3,), (5,)])


@pytest.mark.parametrize("form", [DENSE, BF16])
@pytest.mark.parametrize("param", [1, 2**32 - 1])
def test_a_parameter_where_none_is_taken_is_refused(form: object, param: int) -> None:
    piece = dense(torch.ones(4)) if form is DENSE else bf16(torch.ones(4))
    with pytest.raises(PeerError, match=f"parameter is {param}; this form takes none"):
        check_packet(pack([replace(piece, param=param)], 4), [(4,)])


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, 2.0**127, -(2.0**127)])
@pytest.mark.parametrize("as_piece", [dense, bf16])
@pytest.mark.parametrize("at", [0, 6])
def test_values_that_are_not_finite_or_too_great_are_refused(
    value: float, as_piece, at: int
) -> None:  # type: ignore[no-untyped-def]
    x = torch.ones(7)
    check_packet(pack([as_piece(x)], 7), [(7,)])
    x[at] = value
    with pytest.raises(PeerError, match="not finite, or too large to be merged"):
        check_packet(pack([as_piece(x)], 7), [(7,)])


@pytest.mark.parametrize("as_piece", [dense, bf16])
def test_the_greatest_value_is_accepted(as_piece) -> None:  # type: ignore[no-untyped-def]
    check_packet(pack([as_piece(torch.tensor([MOST, -MOST]))], 2), [(2,)])


@pytest.mark.parametrize("numel", [0, NUMEL - 1, NUMEL + 1, -1])
def test_another_number_of_elements_is_refused(numel: int) -> None:
    packet = pack(mixed(), NUMEL)
    with pytest.raises(
        PeerError, match=f"{numel} elements in {packet.nbytes} bytes; {NUMEL} elements in"
    ):
        check_packet(Packet(PACKED, numel, packet.data), SHAPES)


def test_no_bytes_at_all_are_refused() -> None:
    with pytest.raises(PeerError, match="Packet is 0 bytes; at least 8 are needed for 0 tensors"):
        check_packet(packed(b"", 0), [])
    with pytest.raises(PeerError, match="Packet is 0 bytes; at least 16 are needed for 1 tensors"):
        check_packet(packed(b"", 3), [(3,)])
    with pytest.raises(PeerError, match="Packet is 0 bytes; at least 16 are needed for 1 tensors"):
        check_packet(Packet(PACKED, 3, np.empty((0, 2), dtype=np.float32).data), [(3,)])
