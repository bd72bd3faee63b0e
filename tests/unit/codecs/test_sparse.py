from __future__ import annotations

import functools
import math
import struct
import tracemalloc
from collections.abc import Sequence

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from mend_optim.codecs.packing import DENSE, MOST, PACKED, Piece, pack, padded
from mend_optim.codecs.registry import LOSSLESS, check_packet, decode_packet, encode_packet
from mend_optim.codecs.sparse import CHUNK, SPARSE, Sparse, top
from mend_optim.errors import PeerError, UsageError
from mend_optim.protocol.messages import Packet
from tests.reference import largest_of_chunks, listed, positions
from tests.support.packets import bytes_of

SEEDS = st.integers(0, 2**32 - 1)
NUMELS = st.sampled_from(
    [1, 2, 3, 7, 100, 255, 256, 257, 1000, CHUNK - 1, CHUNK, CHUNK + 1, 2 * CHUNK, 9001]
)
DENSITIES = st.sampled_from([1e-9, 1 / 64, 0.07, 1 / 9, 0.25, 0.9, 0.999999])
KINDS = st.sampled_from(["normal", "ties", "zeros", "tiny", "rows"])
SHAPES = [
    (),
    (1,),
    (0,),
    (0, 4),
    (2,),
    (3,),
    (3, 5, 7),
    (64, 65),
    (CHUNK,),
    (CHUNK + 1,),
    (1, 3 * CHUNK),
]


def drawn(seed: int, kind: str, numel: int) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(numel, generator=generator)
    some = torch.rand(numel, generator=generator)
    return {
        "normal": x,
        "ties": (2 * x).round(),
        "zeros": torch.where(some < 0.02, x, 0.0 * x),  # negative zeros among them
        "tiny": x * 2.0**-140,  # subnormal: a flush to zero would lose them
        "rows": torch.where(torch.arange(numel) // 300 % 4 == 1, x, 0.0),
    }[kind]


def there_and_back(codec: Sparse, tensor: Tensor) -> Tensor:
    shape = tuple(tensor.shape)
    packet, memory = encode_packet(codec, tensor.reshape(-1), [shape])
    assert memory is None
    check_packet(packet, [shape])
    return decode_packet(packet, [shape], torch.full((tensor.numel(),), math.nan)).view(shape)


def same_bits(a: Tensor, b: Tensor) -> bool:
    return a.shape == b.shape and torch.equal(a.view(torch.int32), b.view(torch.int32))


# ── the largest ───────────────────────────────────────────────────────────────────────────────────


@given(SEEDS, KINDS, NUMELS, DENSITIES)
def test_the_largest_of_every_chunk_are_chosen(
    seed: int, kind: str, numel: int, density: float
) -> None:
    x = drawn(seed, kind, numel)
    kept = torch.where(torch.from_numpy(top(x.numpy(), density)), x, 0.0)
    assert kept.tolist() == largest_of_chunks(x.tolist(), density)


@given(
    SEEDS, KINDS, NUMELS.filter(lambda numel: numel >= 100), st.sampled_from([1 / 64, 0.07, 0.25])
)
def test_they_arrive_as_they_were_and_the_rest_as_zeros(
    seed: int, kind: str, numel: int, density: float
) -> None:
    x = drawn(seed, kind, numel)
    found = there_and_back(Sparse(density=density), x)
    assert found.tolist() == largest_of_chunks(x.tolist(), density)


def test_too_many_that_are_equal_and_too_few_that_are_not_zero_do_not_make_up_for_each_other() -> (
    None
):
    x = torch.zeros(2 * CHUNK)
    x[100:169] = -2.0
    x[CHUNK + 7 : CHUNK + 66] = torch.arange(59) + 1.0
    assert int(x.count_nonzero()) == 2 * CHUNK // 64
    kept = torch.from_numpy(top(x.numpy(), 1 / 64))
    assert kept.nonzero().flatten().tolist() == [*range(100, 164), *range(CHUNK + 7, CHUNK + 66)]


def test_many_chunks_are_chosen_from_as_one() -> None:
    x = drawn(0, "normal", 70 * CHUNK + 55)
    mask = top(x.numpy(), 0.01)
    for start in range(0, len(x), CHUNK):
        assert np.array_equal(
            mask[start : start + CHUNK], top(x[start : start + CHUNK].numpy(), 0.01)
        )


@given(SEEDS, KINDS, NUMELS, DENSITIES, st.sampled_from([1e-18, 1.0, 1e18]))
def test_the_share_of_the_energy_that_arrives_is_at_least_the_density(
    seed: int, kind: str, numel: int, density: float, scale: float
) -> None:
    x = drawn(seed, kind, numel) * scale
    lost = (x - there_and_back(Sparse(density=density), x)).double()
    assert lost.square().sum() <= (1 - density) * x.double().square().sum() * (1 + 1e-12)


def test_the_largest_need_not_fit_where_all_that_is_not_zero_does() -> None:
    x = torch.zeros(1000)
    x[3:900:7] = 1.0
    assert same_bits(there_and_back(Sparse(density=0.99), x), x)
    assert encode_packet(Sparse(density=0.99), x, [(1000,)])[0].nbytes < 4 * 1000 / 4


def test_nothing_is_left_out_where_that_makes_nothing_smaller() -> None:
    pair, triple = torch.tensor([1.0, 2.0]), torch.tensor([1.0, 3.0, 2.0])
    pieces, _ = Sparse().pieces([pair, triple], None)
    assert [piece.form for piece in pieces] == [DENSE, SPARSE]
    assert decode_packet(pack(pieces, 5), [(2,), (3,)]).tolist() == [1, 2, 0, 3, 0]


# ── without loss ──────────────────────────────────────────────────────────────────────────────────


@given(SEEDS, KINDS, NUMELS, st.floats(0, 1))
def test_nothing_is_lost_at_density_one(seed: int, kind: str, numel: int, share: float) -> None:
    x = drawn(seed, kind, numel)
    x[torch.rand(numel, generator=torch.Generator().manual_seed(seed + 1)) >= share] = 0.0
    assert same_bits(there_and_back(Sparse(density=1.0), x), x)


def test_negative_zeros_tiny_numbers_and_the_greatest_come_back_to_the_bit() -> None:
    x = torch.zeros(5000)
    x[::50] = torch.tensor([-0.0, 2.0**-149, -(2.0**-149), MOST, -MOST]).repeat(20)
    assert same_bits(there_and_back(Sparse(density=1.0), x), x)
    assert encode_packet(LOSSLESS, x, [(5000,)])[0].nbytes < 600


@given(SEEDS, NUMELS, st.floats(0, 1))
def test_what_is_not_smaller_without_its_zeros_travels_as_it_is(
    seed: int, numel: int, share: float
) -> None:
    x = drawn(seed, "normal", numel)
    x[torch.rand(numel, generator=torch.Generator().manual_seed(seed + 1)) >= share] = 0.0
    places = x.nonzero().flatten().tolist()
    nbytes = 4 * len(places) + len(positions(places, numel))
    ((piece,), _) = LOSSLESS.pieces([x], None)
    assert (piece.form, piece.nbytes) == (
        (SPARSE, nbytes) if padded(nbytes) < 4 * numel else (DENSE, 4 * numel)
    )


def test_a_tensor_without_zeros_is_not_even_copied() -> None:
    x = torch.ones(3, 500)
    ((piece,), _) = LOSSLESS.pieces([x], None)
    assert piece.form is DENSE
    assert piece.parts[0] is x


def test_negative_zeros_alone_travel_as_they_are() -> None:
    ((piece,), _) = LOSSLESS.pieces([torch.full((100,), -0.0)], None)
    assert piece.form is DENSE


@pytest.mark.parametrize("codec", [Sparse(), Sparse(density=1.0)])
@pytest.mark.parametrize("numel", [1, 5, CHUNK, 10**6])
def test_zeros_take_no_bytes(codec: Sparse, numel: int) -> None:
    ((piece,), _) = codec.pieces([torch.zeros(numel)], None)
    assert (piece.form, piece.param, piece.nbytes) == (SPARSE, 0, 0)
    assert not there_and_back(codec, torch.zeros(numel)).any()


# ── on the wire ───────────────────────────────────────────────────────────────────────────────────


@given(
    SEEDS,
    KINDS.filter(lambda kind: kind != "zeros"),
    NUMELS,
    st.sampled_from([0.001, 0.1, 0.111, 0.5]),
)
def test_the_bytes_are_values_and_positions(
    seed: int, kind: str, numel: int, density: float
) -> None:
    x = drawn(seed, kind, numel)
    kept = x * torch.from_numpy(top(x.numpy(), density))
    places = kept.nonzero().flatten().tolist()
    expected = struct.pack(f"<{len(places)}f", *kept[places].tolist()) + positions(places, numel)
    assert SPARSE.nbytes((numel,), len(places)) == len(expected)
    ((piece,), _) = LOSSLESS.pieces([torch.where(kept != 0, kept, 0.0)], None)
    assert bytes_of(piece) == expected or piece.form is DENSE


@pytest.mark.parametrize(
    ("numel", "places", "expected"),
    [
        # a byte each; then, of 3 + 2 bits, 0 + 0, 1 + 0 and 2 + 1
        (300, [2, 255, 257], "02ff01 0b"),
        (20, [1, 9], "020200"),  # as long as a list, but simpler
        (20, [0, 19], "010008"),
    ],
)
def test_positions_are_those_of_the_description(
    numel: int, places: list[int], expected: str
) -> None:
    x = torch.zeros(numel)
    x[places] = 1.0
    ((piece,), _) = LOSSLESS.pieces([x], None)
    assert bytes_of(piece)[4 * len(places) :] == bytes.fromhex(expected)


@pytest.mark.parametrize(
    ("numel", "density", "nbytes"),
    [
        (4096, 1 / 64, 4 * 64 + 64 + 10),
        (4097, 1 / 64, 4 * 65 + 65 + 11),
        (8192, 1 / 4, 4 * 2048 + 1024),
        (256, 1 / 64, 4 * 4 + 4 + 1),
        (9, 1 / 64, 4 * 1 + 2),
        (64 * 4096, 1 / 32, 4 * 8192 + 8192 + 1152),
    ],
)
def test_sizes_are_those_of_values_and_positions(numel: int, density: float, nbytes: int) -> None:
    ((piece,), _) = Sparse(density=density).pieces([drawn(0, "normal", numel)], None)
    assert piece.nbytes == nbytes
    packet, _ = encode_packet(Sparse(density=density), drawn(0, "normal", numel), [(numel,)])
    assert packet.nbytes == 8 + 8 + padded(nbytes)


@pytest.mark.parametrize("codec", [Sparse(), Sparse(density=0.3), Sparse(density=1.0)])
@pytest.mark.parametrize("shape", SHAPES)
def test_every_shape_comes_back(codec: Sparse, shape: tuple[int, ...]) -> None:
    x = torch.zeros(shape)
    x.view(-1)[:1] = -3.5
    assert same_bits(there_and_back(codec, x), x)


@pytest.mark.parametrize("density", [1 / 64, 0.3, 1.0])
def test_memory_that_is_not_in_order_is_read_in_order(density: float) -> None:
    x = drawn(1, "zeros", 96 * 80).view(96, 80)
    codec = Sparse(density=density)
    for view in (x.t(), x[:, ::2], x[5:, 3:70]):
        ((piece,), _) = codec.pieces([view], None)
        ((copied,), _) = codec.pieces([view.contiguous()], None)
        assert piece.param == copied.param
        assert bytes_of(piece) == bytes_of(copied)


def test_a_fragment_of_many_tensors_comes_back() -> None:
    x = drawn(3, "rows", sum(map(math.prod, SHAPES)))
    packet, _ = encode_packet(LOSSLESS, x, SHAPES)
    check_packet(packet, SHAPES)
    assert packet.codec == PACKED
    assert same_bits(decode_packet(packet, SHAPES), x)


# ── what a peer may send ──────────────────────────────────────────────────────────────────────────

LISTED, MAPPED = (1000, [3, 5, 255, 256, 700]), (20, [0, 1, 5, 8, 19])
both = pytest.mark.parametrize(("numel", "places"), [LISTED, MAPPED])


def sent(places: bytes, values: Sequence[float], numel: int, count: int | None = None) -> Packet:
    parts = (np.array(values, dtype="<f4"), np.frombuffer(places, dtype=np.uint8))
    return pack([Piece(SPARSE, len(values) if count is None else count, parts)], numel)


def flipped(data: bytes, bit: int) -> bytes:
    return bytes(byte ^ (1 << bit % 8 if i == bit // 8 else 0) for i, byte in enumerate(data))


@both
def test_what_is_as_it_must_be_is_accepted(numel: int, places: list[int]) -> None:
    packet = sent(positions(places, numel), [1.0, -MOST, 3.0, 0.0, 5.0], numel)
    check_packet(packet, [(numel,)])
    expected = torch.zeros(numel)
    expected[places] = torch.tensor([1.0, -MOST, 3.0, 0.0, 5.0])
    assert torch.equal(decode_packet(packet, [(numel,)]), expected)


@both
@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, 2.0**127])
def test_values_that_are_not_finite_or_too_great_are_refused(
    numel: int, places: list[int], value: float
) -> None:
    with pytest.raises(PeerError, match="not finite, or too large"):
        check_packet(sent(positions(places, numel), [1.0, 2.0, 3.0, 4.0, value], numel), [(numel,)])


@pytest.mark.parametrize("count", [21, 2**31, 2**32 - 1])
def test_more_values_than_elements_are_refused(count: int) -> None:
    numel, places = MAPPED
    with pytest.raises(PeerError, match=f"{count} values but only 20 elements"):
        check_packet(sent(positions(places, numel), [1.0] * 5, numel, count), [(numel,)])


@pytest.mark.parametrize("count", [0, 4, 6, 500])
def test_another_number_of_values_than_is_said_is_refused(count: int) -> None:
    numel, places = LISTED
    with pytest.raises(PeerError, match=r"need|the limit is"):
        check_packet(sent(positions(places, numel), [1.0] * 5, numel, count), [(numel,)])


@pytest.mark.parametrize(
    "places",
    [[3, 5, 5, 256, 700], [5, 3, 255, 256, 700], [3, 5, 255, 256, 1000], [3, 5, 255, 999, 1023]],
)
def test_positions_that_do_not_increase_or_are_outside_are_refused(places: list[int]) -> None:
    with pytest.raises(PeerError, match="do not increase, or do not stay below 1000"):
        check_packet(sent(listed(places, 1000), [1.0] * 5, 1000), [(1000,)])


def test_a_list_of_more_or_fewer_positions_is_refused() -> None:
    numel, places = LISTED
    good = positions(places, numel)
    for bit in range(8 * 5, 8 * len(good)):
        with pytest.raises(
            PeerError, match=f"list has {4 if good[bit // 8] >> bit % 8 & 1 else 6} entries; 5 are"
        ):
            check_packet(sent(flipped(good, bit), [1.0] * 5, numel), [(numel,)])


def test_a_bit_after_the_end_of_a_list_is_refused() -> None:
    numel, places = LISTED
    good = positions(places, numel)
    moved = flipped(flipped(good, 8 * 5 + 6), 8 * 5 + 15)
    with pytest.raises(PeerError, match="Positions do not increase"):
        check_packet(sent(moved, [1.0] * 5, numel), [(numel,)])


def test_a_bitmap_of_more_or_fewer_positions_is_refused() -> None:
    numel, places = MAPPED
    good = positions(places, numel)
    for bit in range(8 * len(good)):
        with pytest.raises(
            PeerError,
            match=f"Bitmap has {4 if bit in places else 6} positions; 5 below 20 are needed",
        ):
            check_packet(sent(flipped(good, bit), [1.0] * 5, numel), [(numel,)])


def test_a_bit_after_the_end_of_a_bitmap_is_refused() -> None:
    numel, places = MAPPED
    moved = flipped(flipped(positions(places, numel), places[0]), numel)
    with pytest.raises(PeerError, match="Bitmap has 5 positions; 5 below 20 are needed"):
        check_packet(sent(moved, [1.0] * 5, numel), [(numel,)])


@given(st.data(), st.integers(1, 700), st.sampled_from([0.02, 0.1, 0.5]))
def test_random_positions_are_refused_or_are_what_they_say(
    data: st.DataObject, numel: int, share: float
) -> None:
    count = max(1, int(share * numel))
    nbytes = SPARSE.nbytes((numel,), count) - 4 * count
    of = data.draw(st.permutations(range(numel)))[:count]
    right = positions(sorted(of), numel)
    flips = data.draw(st.sets(st.integers(0, 8 * nbytes - 1), max_size=2)) if nbytes else set()
    places = functools.reduce(flipped, flips, right)
    if data.draw(st.booleans()):
        places = data.draw(st.binary(min_size=nbytes, max_size=nbytes))
    packet = sent(places, [float(i + 1) for i in range(count)], numel)
    try:
        check_packet(packet, [(numel,)])
    except PeerError:
        return
    found = decode_packet(packet, [(numel,)])
    where = found.nonzero().flatten()
    assert found[where].tolist() == [i + 1 for i in range(count)]
    assert positions(where.tolist(), numel) == places


@pytest.mark.parametrize("share", [0.01, 0.1, 0.5, 0.9])
def test_checking_and_decoding_take_less_memory_than_the_tensor(share: float) -> None:
    numel = 1 << 20
    generator = torch.Generator().manual_seed(0)
    x = torch.where(
        torch.rand(numel, generator=generator) < share, torch.randn(numel, generator=generator), 0.0
    )
    packet, _ = encode_packet(LOSSLESS, x, [(numel,)])
    assert packet.codec == PACKED
    out = torch.empty(numel)
    tracemalloc.start()
    try:
        check_packet(packet, [(numel,)])
        decode_packet(packet, [(numel,)], out)
        assert tracemalloc.get_traced_memory()[1] < 4 * numel
    finally:
        tracemalloc.stop()
    assert torch.equal(out, x)


# ── options ───────────────────────────────────────────────────────────────────────────────────────


def test_only_density_one_is_exact() -> None:
    assert [Sparse(density=density).exact for density in (1e-3, 1 / 64, 0.999999, 1.0, 1)] == [
        False
    ] * 3 + [True] * 2


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"density": 0}, r"density must be a number in \(0, 1\], got 0"),
        ({"density": -0.1}, r"density must be a number in \(0, 1\], got -0.1"),
        ({"density": 1.01}, r"density must be a number in \(0, 1\], got 1.01"),
        ({"density": math.nan}, r"density must be a number in \(0, 1\], got nan"),
        ({"density": True}, r"density must be a number in \(0, 1\], got True"),
        ({"density": "0.1"}, r"density must be a number in \(0, 1\], got '0.1'"),
        ({"back": "dense"}, r"back must be one of \(\'auto\', \'exact\', \'same\'\), got 'dense'"),
        ({"back": None}, r"back must be one of \(\'auto\', \'exact\', \'same\'\), got None"),
    ],
)
def test_bad_options_are_named(options: dict[str, object], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        Sparse(**options)  # type: ignore[arg-type]
