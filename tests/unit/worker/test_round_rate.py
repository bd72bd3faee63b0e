from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from mend_optim.codecs.packing import raw
from mend_optim.errors import PeerError
from mend_optim.protocol.lineage import PeerId
from mend_optim.protocol.messages import Offer, Packet
from mend_optim.worker.round_rate import (
    MOST,
    RATE_NBYTES,
    RoundRate,
    rate_packet,
    read_rate,
    read_sum,
    round_rate,
)
from tests import reference
from tests.support.engines import BASE, GENESIS

rates = st.floats(0, 1e6)
members = st.lists(
    st.tuples(st.integers(1, 100), st.integers(1, 1000), rates), min_size=1, max_size=5
)
momenta = st.floats(0.01, 0.999)


def offer(
    steps: int = 1, rate: float = 1.0, tokens: int = 1, again: tuple[int, int] = (0, 0)
) -> Offer:
    return Offer(
        peer=PeerId("a", 1),
        fragment=0,
        seq=1,
        tokens=tokens,
        steps=steps,
        rate=rate,
        genesis=GENESIS,
        key=BASE.key,
        due=True,
        again=again,
    )


@given(members, momenta, st.integers(1, 500))
def test_it_is_the_textbooks(
    drawn: list[tuple[int, int, float]], momentum: float, period: int
) -> None:
    whole = sum(share for share, _, _ in drawn)
    work = [(share / whole, steps, rate) for share, steps, rate in drawn]
    offers = [offer(steps, rate) for _, steps, rate in work]
    found = round_rate(offers, [w for w, _, _ in work], momentum, period)
    expected = reference.round_rate(work, momentum, period)
    assert found == pytest.approx(expected, rel=1e-9, abs=1e-300)


def test_by_hand() -> None:
    offers = [offer(steps=10, rate=0.5), offer(steps=20, rate=0.25)]
    assert round_rate(offers, [0.5, 0.5], 0.25, 30) == (0.375, 0.5)


def test_an_offer_of_nothing_has_its_part_in_the_mean() -> None:
    nothing = offer(steps=0, rate=0.0, tokens=0, again=(30, 3))
    assert round_rate([offer(10, 0.5), nothing], [0.5, 0.5], 0.25, 10) == (0.25, 0.5)


@pytest.mark.parametrize("tokens", [0, 1])
def test_rates_of_earlier_work_are_not_known(tokens: int) -> None:
    """An offer that brings a residual brings more than its own rates tell of."""
    residual = offer(steps=8, rate=0.1 * tokens, tokens=tokens, again=(8, 8))
    assert round_rate([offer(), residual], [0.5, 0.5], 0.9, 10).rate == 0


def test_no_rate_is_beyond_float32() -> None:
    assert round_rate([offer(rate=1e300)] * 2, [0.5, 0.5], 0.9, 1).rate == MOST
    assert round_rate([offer(rate=1.7e308)] * 2, [1.0, 1.0], 0.9, 1).rate == MOST


@given(rates, st.floats(0, 1))
def test_the_packet_holds_them_as_float32(rate: float, decay: float) -> None:
    found = RoundRate(reference.float32(rate), reference.float32(decay))
    packet = rate_packet(RoundRate(rate, decay))
    assert packet.nbytes == RATE_NBYTES
    assert read_rate(packet) == read_rate(rate_packet(found)) == found


def packed(*numbers: float) -> Packet:
    return raw(torch.tensor(numbers, dtype=torch.float32))


@pytest.mark.parametrize(
    ("packet", "words"),
    [
        (packed(-1.0, 0.5), r"Rate of the round is -1.0; it must be in \[0, 1.8"),
        (packed(2.1 * MOST, 0.5), "Rate of the round is 3.8"),
        (packed(math.inf, 0.5), "Rate of the round is inf"),
        (packed(math.nan, 0.5), "Rate of the round is nan"),
        (packed(1.0, -0.5), r"Decay of the velocity is -0.5; it must be in \[0, 1\]"),
        (packed(1.0, 1.5), "Decay of the velocity is 1.5"),
        (packed(1.0, math.nan), "Decay of the velocity is nan"),
        (packed(1.0), "Rate of the round has 4 bytes; it must be 2 float32"),
        (packed(1.0, 0.5, 0.5), "has 12 bytes"),
        (Packet("none", 2, memoryview(bytes(4))), "has 4 bytes"),
        (Packet("packed", 2, memoryview(bytes(8))), "it must be 2 float32"),
    ],
)
def test_a_bad_rate_is_refused(packet: Packet, words: str) -> None:
    with pytest.raises(PeerError, match=words):
        read_rate(packet)


@pytest.mark.parametrize(
    ("packet", "words"),
    [
        (packed(-1.0), "Rate of the velocity is -1.0; it must be finite and >= 0"),
        (packed(math.inf), "Rate of the velocity is inf"),
        (packed(math.nan), "Rate of the velocity is nan"),
        (packed(1.0, 2.0), "Rate of the velocity has 8 bytes; it must be 1 float32"),
    ],
)
def test_a_bad_sum_is_refused(packet: Packet, words: str) -> None:
    with pytest.raises(PeerError, match=words):
        read_sum(packet)


def test_a_good_sum_is_read() -> None:
    assert (read_sum(packed(0.0)), read_sum(packed(2.5))) == (0.0, 2.5)
