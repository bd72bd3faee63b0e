from __future__ import annotations

import itertools
import math
import struct
import tracemalloc
from collections.abc import Sequence

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from mend_optim.codecs import registry as codec
from mend_optim.codecs.packing import MOST, PACKED, Piece, pack
from mend_optim.engine.moment_schedule import Moment, Updates
from mend_optim.errors import PeerError
from mend_optim.protocol.messages import Packet
from mend_optim.worker.moment_packet import (
    ABSENT,
    FLOATS,
    HALVES,
    ROOTS,
    SQUARES,
    average,
    check_moment,
    decode_moment,
    dense_nbytes,
    encode_moment,
    is_between,
    tensors_held,
)
from tests import reference
from tests.support.depth import many
from tests.support.packets import with_word

FIRST = Moment(name="exp_avg", order="first", decay=0.9, corrected=True)
SECOND = Moment(name="exp_avg_sq", order="second", decay=0.99, corrected=True, nonnegative=True)
PRECISE = Moment(name="square_avg", order="second", decay=0.99, nonnegative=True, exact=True)
MOMENTS = [FIRST, SECOND, PRECISE]
SHAPES = [(3, 5), (), (7,), (0, 4), (150,)]
NUMEL = sum(map(math.prod, SHAPES))
COUNTS = (3, 1, 0, 2, 2**32 - 1)
BEGIN = 8 + 8 * len(SHAPES)
SEEDS = st.integers(0, 2**32 - 1)
UPDATES = st.lists(
    st.sampled_from([0, 1, 7, 2**31, 2**32 - 1]), min_size=len(SHAPES), max_size=len(SHAPES)
).map(tuple)
BODIES = st.binary(min_size=24, max_size=24)


def drawn(moment: Moment, seed: int, updates: Updates = COUNTS) -> Tensor:
    """Of all sizes, zero where absent."""
    generator = torch.Generator().manual_seed(seed)
    values = torch.randn(NUMEL, generator=generator) * 10 ** (
        20 * torch.rand(NUMEL, generator=generator) - 15
    )
    values *= torch.rand(NUMEL, generator=generator) < 0.8
    for part, count in zip(codec.split(values, SHAPES), updates, strict=True):
        part *= count > 0
    return values.abs() if moment.nonnegative else values


def read_back(moment: Moment, packet: Packet) -> tuple[Tensor, Updates]:
    check_moment(moment, packet, SHAPES)
    out = torch.full((NUMEL,), math.nan)
    return out, decode_moment(moment, packet, SHAPES, out)


def packed(data: bytes, numel: int = NUMEL) -> Packet:
    return Packet(PACKED, numel, memoryview(data))


def valid(moment: Moment, exact: bool = False) -> bytes:
    return bytes(encode_moment(moment, drawn(moment, 0), COUNTS, SHAPES, exact=exact).data)


def of_use(moment: Moment, packet: Packet) -> bool:
    """Whether it is accepted; then it must decode to reasonable numbers. Nothing but `PeerError`
    may come of it."""
    try:
        check_moment(moment, packet, SHAPES)
    except PeerError:
        return False
    found, updates = read_back(moment, packet)
    assert float(found.abs().max()) <= MOST
    assert not moment.nonnegative or float(found.min()) >= 0
    for part, count in zip(codec.split(found, SHAPES), updates, strict=True):
        assert count or not part.any()
    return True


# ── there and back ────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("moment", MOMENTS)
@given(SEEDS, UPDATES)
def test_exactly_there_and_back(moment: Moment, seed: int, updates: Updates) -> None:
    values = drawn(moment, seed, updates)
    found, counted = read_back(moment, encode_moment(moment, values, updates, SHAPES, exact=True))
    assert torch.equal(found, values)
    assert counted == updates


@given(SEEDS, UPDATES)
def test_a_first_moment_is_rounded_to_bfloat16(seed: int, updates: Updates) -> None:
    values = drawn(FIRST, seed, updates)
    found, counted = read_back(FIRST, encode_moment(FIRST, values, updates, SHAPES, exact=False))
    assert found.tolist() == [reference.bfloat16(x) for x in values.tolist()]
    assert bool(((found - values).abs() <= 2.0**-8 * values.abs()).all())
    assert counted == updates


@given(SEEDS, UPDATES)
def test_the_root_of_a_second_moment_is_rounded_to_bfloat16(seed: int, updates: Updates) -> None:
    values = drawn(SECOND, seed, updates)
    found, counted = read_back(SECOND, encode_moment(SECOND, values, updates, SHAPES, exact=False))
    assert found.tolist() == [reference.rooted(x) for x in values.tolist()]
    assert bool(((found - values).abs() <= 2.0**-7 * values.abs()).all())
    assert counted == updates


@given(SEEDS)
def test_encoding_what_was_decoded_loses_nothing_more(seed: int) -> None:
    for moment in (FIRST, SECOND):
        once, _ = read_back(
            moment, encode_moment(moment, drawn(moment, seed), COUNTS, SHAPES, exact=False)
        )
        twice, _ = read_back(moment, encode_moment(moment, once, COUNTS, SHAPES, exact=False))
        assert torch.equal(once, twice)


@given(SEEDS)
def test_a_square_of_a_mean_stays_below_the_mean_of_squares(seed: int) -> None:
    """|m| ≤ √v, to the bit, after both were rounded."""
    v = drawn(SECOND, seed)
    m = v.sqrt() * torch.where(torch.arange(NUMEL) % 2 == 0, 1.0, -1.0)
    m = torch.where(m.double() ** 2 > v.double(), torch.nextafter(m, torch.zeros(NUMEL)), m)
    found_m, _ = read_back(FIRST, encode_moment(FIRST, m, COUNTS, SHAPES, exact=False))
    found_v, _ = read_back(SECOND, encode_moment(SECOND, v, COUNTS, SHAPES, exact=False))
    assert bool((found_m.double() ** 2 <= found_v.double()).all())


def test_the_smallest_and_the_greatest_second_moments() -> None:
    """Roots of what float32 can hardly hold are ordinary numbers."""
    values = torch.tensor([2.0**-149, 2.0**-140, 2.0**-126, 1.0, MOST])
    for exact in (True, False):
        packet, out = encode_moment(SECOND, values, (1,), [(5,)], exact=exact), torch.empty(5)
        check_moment(SECOND, packet, [(5,)])
        decode_moment(SECOND, packet, [(5,)], out)
        assert torch.allclose(out, values, rtol=2.0**-7, atol=2.0**-149)
        assert bool((out > 0).all())


def test_what_must_be_exact_always_is() -> None:
    values = drawn(PRECISE, 1)
    assert torch.equal(
        read_back(PRECISE, encode_moment(PRECISE, values, COUNTS, SHAPES, exact=False))[0], values
    )


def test_the_bytes_are_those_of_the_description() -> None:
    shapes = [(2,), (3,), (1,)]
    values = torch.tensor([4.0, 9.0, 0.0, 0.0, 0.0, 2.25])
    exact = encode_moment(FIRST, values, (5, 0, 2**33), shapes, exact=True)
    head = struct.pack("<4I", 3, 0, 32, 5) + struct.pack("<4I", 35, 0, 32, 2**32 - 1)
    assert bytes(exact.data) == head + struct.pack("<3f", 4, 9, 2.25)
    halves = encode_moment(FIRST, values, (5, 0, 1), shapes, exact=False)
    head = struct.pack("<4I", 3, 0, 33, 5) + struct.pack("<4I", 35, 0, 33, 1)
    assert bytes(halves.data) == head + b"\x80\x40\x10\x41" + b"\x10\x40\0\0"
    roots = encode_moment(SECOND, values, (5, 0, 1), shapes, exact=False)
    head = struct.pack("<4I", 3, 0, 34, 5) + struct.pack("<4I", 35, 0, 34, 1)
    assert bytes(roots.data) == head + b"\x00\x40\x40\x40" + b"\xc0\x3f\0\0"
    assert (exact.codec, exact.numel) == ("packed", 6)


def test_no_form_has_the_code_of_another() -> None:
    codes = [FLOATS.code, HALVES.code, ROOTS.code, ABSENT.code]
    assert codes == [32, 33, 34, 35]
    assert SQUARES.code == FLOATS.code
    assert not set(codes) & set(codec.FORMS)


@pytest.mark.parametrize("moment", MOMENTS)
@given(UPDATES)
def test_no_packet_is_greater_than_the_greatest(moment: Moment, updates: Updates) -> None:
    assert encode_moment(
        moment, drawn(moment, 0, updates), updates, SHAPES, exact=True
    ).nbytes <= dense_nbytes(SHAPES)
    assert encode_moment(
        moment, drawn(moment, 0), (1,) * 5, SHAPES, exact=True
    ).nbytes == dense_nbytes(SHAPES)


def test_a_packet_is_written_where_it_is_told() -> None:
    given: list[memoryview] = []

    def allocate(nbytes: int) -> memoryview:
        given.append(memoryview(bytearray(b"\xaa" * nbytes)))
        return given[-1]

    packet = encode_moment(SECOND, drawn(SECOND, 0), COUNTS, SHAPES, exact=False, allocate=allocate)
    assert len(given) == 1
    assert bytes(given[0]) == bytes(packet.data) == valid(SECOND)


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("offset", range(4))
@pytest.mark.parametrize("moment", MOMENTS)
def test_bytes_may_be_anywhere(moment: Moment, offset: int) -> None:
    expected, _ = read_back(moment, packed(valid(moment)))
    moved = memoryview(bytearray(offset) + valid(moment))[offset:]
    for data in (moved, moved.toreadonly()):
        assert torch.equal(read_back(moment, Packet(PACKED, NUMEL, data))[0], expected)


@pytest.mark.parametrize("moment", MOMENTS)
@pytest.mark.parametrize("exact", [True, False])
@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, 2.0**127, -(2.0**127), -1e-30])
@pytest.mark.parametrize("at", [0, NUMEL - 1])
def test_what_cannot_be_a_moment_is_not_sent(
    moment: Moment, exact: bool, value: float, at: int
) -> None:
    values = drawn(moment, 0)
    values[at] = value
    if value == -1e-30 and not moment.nonnegative:
        encode_moment(moment, values, COUNTS, SHAPES, exact=exact)
        return
    with pytest.raises(
        PeerError, match=rf"its {moment.name} is not finite, too large, or negative"
    ):
        encode_moment(moment, values, COUNTS, SHAPES, exact=exact)


# ── what a peer may send ──────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("exact", [True, False])
@pytest.mark.parametrize("moment", MOMENTS)
def test_every_shorter_and_longer_packet_is_refused(moment: Moment, exact: bool) -> None:
    data = valid(moment, exact)
    assert of_use(moment, packed(data))
    for wrong in [
        *(data[:size] for size in range(len(data))),
        *(data + bytes(more) for more in range(1, 10)),
    ]:
        with pytest.raises(PeerError, match=rf"{moment.name}: .*(need|the limit is)"):
            check_moment(moment, packed(wrong), SHAPES)


@pytest.mark.parametrize("moment", MOMENTS)
def test_no_byte_of_the_header_can_be_changed_to_do_harm(moment: Moment) -> None:
    data = valid(moment)
    for at, other in itertools.product(
        range(BEGIN), (0x01, 0x02, 0x04, 0x08, 0x10, 0x20, 0x40, 0x80, 0xFF)
    ):
        wrong = bytearray(data)
        wrong[at] ^= other
        of_use(moment, packed(bytes(wrong)))


@pytest.mark.parametrize("param", [0, 1, 255, 2**31, 2**32 - 1])
@pytest.mark.parametrize("code", [*codec.FORMS, *range(30, 40), 2**32 - 1])
@pytest.mark.parametrize("moment", MOMENTS)
def test_no_form_and_count_do_harm(moment: Moment, code: int, param: int) -> None:
    known = (32, 34, 35) if moment.nonnegative else (32, 33, 35)
    for i in range(len(SHAPES)):
        wrong = with_word(with_word(valid(moment), 2 + 2 * i, code), 3 + 2 * i, param)
        if code not in known:
            with pytest.raises(
                PeerError, match=f"{moment.name}: Tensor {i} has the unknown form {code}"
            ):
                check_moment(moment, packed(wrong), SHAPES)
        of_use(moment, packed(wrong))


@pytest.mark.parametrize(
    ("moment", "code", "param", "words"),
    [
        (FIRST, 32, 0, "Moment has values but 0 updates"),
        (FIRST, 33, 0, "Moment has values but 0 updates"),
        (SECOND, 34, 0, "Moment has values but 0 updates"),
        (SECOND, 35, 1, "Moment is absent but has 1 updates"),
        (FIRST, 34, 1, "unknown form 34"),
        (SECOND, 33, 1, "unknown form 33"),
        (FIRST, 0, 0, "unknown form 0"),
    ],
)
def test_a_form_that_does_not_fit_is_refused(
    moment: Moment, code: int, param: int, words: str
) -> None:
    size = {32: 4, 33: 2, 34: 2, 35: 0, 0: 4}[code]
    with pytest.raises(PeerError, match=words):
        check_moment(
            moment, packed(struct.pack("<4I", 1, 0, code, param) + bytes(4 * size), 4), [(4,)]
        )


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf, 2.0**127, -(2.0**127)])
@pytest.mark.parametrize("at", [0, 3])
def test_values_that_cannot_be_are_refused(bad: float, at: int) -> None:
    values = [1.0, 2.0, 3.0, 4.0]
    values[at] = bad
    floats = struct.pack("<4f", *values)
    halves = b"".join(struct.pack("<f", value)[2:] for value in values)
    for moment, code, data in (
        (FIRST, 32, floats),
        (FIRST, 33, halves),
        (SECOND, 32, floats),
        (SECOND, 34, halves),
    ):
        with pytest.raises(PeerError, match="not finite, too large, or negative"):
            check_moment(moment, packed(struct.pack("<4I", 1, 0, code, 1) + data, 4), [(4,)])


@pytest.mark.parametrize(
    ("value", "fine"),
    [(-1e-30, False), (-1.0, False), (0.0, True), (2.0**63, True), (2.0**64, False)],
)
def test_roots_are_from_nothing_to_the_root_of_the_greatest(value: float, fine: bool) -> None:
    data = struct.pack("<4I", 1, 0, 34, 1) + struct.pack("<f", value)[2:] + b"\0\0"
    if fine:
        check_moment(SECOND, packed(data, 1), [(1,)])
    else:
        with pytest.raises(PeerError):
            check_moment(SECOND, packed(data, 1), [(1,)])


def test_a_negative_second_moment_is_refused_and_a_negative_first_is_not() -> None:
    data = struct.pack("<4I", 1, 0, 32, 1) + struct.pack("<f", -1e-30)
    check_moment(FIRST, packed(data, 1), [(1,)])
    for moment in (SECOND, PRECISE):
        with pytest.raises(
            PeerError, match=f"{moment.name}: Moment is not finite, too large, or negative"
        ):
            check_moment(moment, packed(data, 1), [(1,)])


@settings(max_examples=many(75, 150))
@given(st.sampled_from(MOMENTS), st.sampled_from([32, 33, 34, 35]), st.integers(0, 3), BODIES)
def test_random_bytes_of_a_form_are_refused_or_fine(
    moment: Moment, code: int, param: int, body: bytes
) -> None:
    size = {32: 4, 33: 2, 34: 2, 35: 0}[code] * 6
    packet = packed(struct.pack("<4I", 1, 0, code, param) + body[:size], 6)
    try:
        check_moment(moment, packet, [(6,)])
    except PeerError:
        return
    out = torch.full((6,), math.nan)
    assert decode_moment(moment, packet, [(6,)], out) == (param,)
    assert bool((out.abs() <= MOST).all())
    assert not moment.nonnegative or bool((out >= 0).all())


@pytest.mark.parametrize("seed", range(10))
@pytest.mark.parametrize("moment", MOMENTS)
def test_no_change_anywhere_does_harm(moment: Moment, seed: int) -> None:
    chance = np.random.default_rng(seed)
    data = valid(moment)
    for at in chance.integers(0, len(data), 30):
        wrong = bytearray(data)
        wrong[at] = chance.integers(256)
        of_use(moment, packed(bytes(wrong)))


@pytest.mark.parametrize("code", [32, 33, 34, 35])
@pytest.mark.parametrize("param", [0, 1, 2**32 - 1])
def test_no_packet_takes_more_memory_than_it_has(code: int, param: int) -> None:
    shape = (1 << 10, 1 << 10)
    for moment, size in itertools.product((FIRST, SECOND), (0, 4, 4096)):
        data = struct.pack("<4I", 1, 0, code, param) + bytes(size)
        tracemalloc.start()
        try:
            check_moment(moment, packed(data, 1 << 20), [shape])
        except PeerError:
            pass
        else:
            assert (code, param, size) == (35, 0, 0)
        finally:
            peak = tracemalloc.get_traced_memory()[1]
            tracemalloc.stop()
        assert peak < 1 << 16


@pytest.mark.parametrize("numel", [0, NUMEL - 1, NUMEL + 1, -1])
def test_another_number_of_elements_is_refused(numel: int) -> None:
    with pytest.raises(
        PeerError, match=f"exp_avg: Packet is 'packed' with {numel} elements; .* with {NUMEL}"
    ):
        check_moment(FIRST, packed(valid(FIRST), numel), SHAPES)


@pytest.mark.parametrize("name", ["none", "", "gzip"])
def test_another_codec_is_refused(name: str) -> None:
    with pytest.raises(
        PeerError, match=f"exp_avg: Packet is '{name}' with {NUMEL} elements; 'packed'"
    ):
        check_moment(FIRST, Packet(name, NUMEL, memoryview(bytes(4 * NUMEL))), SHAPES)


def test_what_is_between() -> None:
    assert is_between(torch.tensor([0.0, 1.0]), 0, 1)
    assert is_between(torch.empty(0), 0, 1)
    for wrong in ([-0.1, 0.5], [0.5, 1.1], [0.5, math.nan]):
        assert not is_between(torch.tensor(wrong), 0, 1)


# ── the mean ──────────────────────────────────────────────────────────────────────────────────────


def averaged(moment: Moment, packets: Sequence[Packet]) -> tuple[Tensor, Updates]:
    out = torch.full((NUMEL,), math.nan)
    return out, average(moment, packets, SHAPES, out).updates


@pytest.mark.parametrize("exact", [True, False])
@pytest.mark.parametrize("moment", MOMENTS)
@settings(max_examples=many(25, 50))
@given(st.lists(st.tuples(SEEDS, UPDATES), min_size=1, max_size=5))
def test_the_mean_is_of_those_that_have_it(
    moment: Moment, exact: bool, members: list[tuple[int, Updates]]
) -> None:
    packets = [
        encode_moment(moment, drawn(moment, seed, updates), updates, SHAPES, exact=exact)
        for seed, updates in members
    ]
    found, updates = averaged(moment, packets)
    assert updates == tuple(
        max(counts) for counts in zip(*(counts for _, counts in members), strict=True)
    )
    parts = [codec.split(read_back(moment, packet)[0], SHAPES) for packet in packets]
    for i, mean in enumerate(codec.split(found, SHAPES)):
        have = [
            p[i].flatten().tolist() if counts[i] else None
            for p, (_, counts) in zip(parts, members, strict=True)
        ]
        twin = reference.mean_of_those_that_have_it(have, mean.numel())
        size = max((abs(x) for member in have if member for x in member), default=0.0)
        assert mean.flatten().tolist() == pytest.approx(twin, rel=1e-6, abs=1e-6 * size + 1e-44)
    assert not moment.nonnegative or float(found.min()) >= 0


MEANS = st.lists(
    st.tuples(SEEDS, st.lists(st.integers(0, 5), min_size=len(SHAPES), max_size=len(SHAPES))),
    min_size=1,
    max_size=4,
)


@pytest.mark.parametrize("moment", MOMENTS)
@settings(max_examples=many(25, 50))
@given(MEANS)
def test_a_mean_of_means_counts_each_member_once(
    moment: Moment, groups: list[tuple[int, list[int]]]
) -> None:
    packets = [
        encode_moment(moment, drawn(moment, seed, tuple(held)), held, SHAPES, exact=True)
        for seed, held in groups
    ]
    found = torch.full((NUMEL,), math.nan)
    counts = [held for _, held in groups]
    told = average(moment, packets, SHAPES, found, counts)
    assert told.members == tuple(map(sum, zip(*counts, strict=True)))
    parts = [codec.split(read_back(moment, packet)[0], SHAPES) for packet in packets]
    for i, mean in enumerate(codec.split(found, SHAPES)):
        pairs = zip(parts, counts, strict=True)
        have = [part[i].flatten().tolist() if held[i] else None for part, held in pairs]
        twin = reference.mean_of_means(have, [n[i] for n in counts], mean.numel())
        size = max((abs(x) for values in have if values for x in values), default=0.0)
        assert mean.flatten().tolist() == pytest.approx(twin, rel=1e-6, abs=1e-6 * size + 1e-44)
    assert [tensors_held(moment, packet, SHAPES) for packet in packets] == [
        [n > 0 for n in held] for held in counts
    ]


@given(st.lists(SEEDS, min_size=2, max_size=6))
def test_every_quotient_and_every_sum_is_rounded_once(seeds: list[int]) -> None:
    """To the bit, in the order of the members: so it is the same on all hardware."""
    members = [drawn(FIRST, seed, (1,) * 5) for seed in seeds]
    found, _ = averaged(
        FIRST, [encode_moment(FIRST, values, (1,) * 5, SHAPES, exact=True) for values in members]
    )
    expected = []
    for column in zip(*(values.tolist() for values in members), strict=True):
        total = 0.0
        for value in column:
            total = reference.float32(total + reference.float32(value / len(members)))
        expected.append(total)
    assert found.tolist() == expected


@pytest.mark.parametrize("moment", MOMENTS)
def test_of_one_it_is_what_it_sent(moment: Moment) -> None:
    values = drawn(moment, 3)
    found, updates = averaged(moment, [encode_moment(moment, values, COUNTS, SHAPES, exact=True)])
    assert torch.equal(found, values)
    assert updates == COUNTS


@given(SEEDS, st.integers(2, 7))
def test_of_equals_it_is_what_they_have(seed: int, members: int) -> None:
    values = drawn(SECOND, seed)
    found, _ = averaged(
        SECOND, [encode_moment(SECOND, values, COUNTS, SHAPES, exact=True)] * members
    )
    assert torch.allclose(found, values, rtol=1e-6, atol=0)


def test_of_nobody_there_is_none() -> None:
    nobody = encode_moment(FIRST, torch.zeros(NUMEL), (0,) * 5, SHAPES, exact=True)
    for packets in ([nobody, nobody], []):
        found, updates = averaged(FIRST, packets)
        assert updates == (0,) * 5
        assert found.tolist() == [0] * NUMEL


def test_no_mean_is_infinite() -> None:
    great = encode_moment(FIRST, torch.full((NUMEL,), MOST), (1,) * 5, SHAPES, exact=True)
    found, _ = averaged(FIRST, [great] * 8)
    assert found.tolist() == [MOST] * NUMEL


def test_averaging_reads_only() -> None:
    packets = [packed(valid(SECOND, exact)) for exact in (True, False)]
    averaged(SECOND, packets)
    assert [bytes(packet.data) for packet in packets] == [
        valid(SECOND, exact) for exact in (True, False)
    ]


def test_a_packet_of_pieces_of_its_own_is_checked_alike() -> None:
    check_moment(FIRST, pack([Piece(FLOATS, 1, (torch.ones(4),))], 4), [(4,)])
    with pytest.raises(PeerError, match="Tensor 0 is 16 bytes; the limit is 8"):
        check_moment(FIRST, pack([Piece(FLOATS, 1, (torch.ones(2),))], 4), [(4,)])


def test_tensors_that_are_coalesced_are_refused() -> None:
    """Each has updates of its own."""
    shapes = [(2,), (2,)]
    with pytest.raises(PeerError, match=r"header is \[1, 2\]; \[2, 0\] is needed"):
        check_moment(FIRST, pack([Piece(FLOATS, 1, (torch.ones(4),))], 4, coalesce=2), shapes)
    pieces = [Piece(FLOATS, 1, (torch.ones(2),))] * 2
    with pytest.raises(PeerError, match=r"header is \[2, 7\]; \[2, 0\] is needed"):
        check_moment(FIRST, pack(pieces, 4, coalesce=7), shapes)
    check_moment(FIRST, pack(pieces, 4), shapes)
