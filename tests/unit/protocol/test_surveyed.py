"""The arithmetic of surveys: the offset of a clock with its bound, and the rate of a link."""

from __future__ import annotations

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mend_optim.protocol.surveyed import (
    ENOUGH_S,
    ENOUGH_TRIPS,
    FIRST_BYTES,
    GROWTH,
    MOST_BYTES,
    SPENT_S,
    ClockTrip,
    Surveyed,
    Transfer,
    clearest,
    next_bytes,
)
from mend_optim.transport.surveying import TURN_BYTES

DAY_NS = 86_400 * 10**9
NANOSECONDS = st.integers(0, 10 * 10**9)
START = st.integers(0, 2 * 10**18)
OFFSETS = st.integers(-3 * DAY_NS, 3 * DAY_NS)


def trip(start: int, offset: int, there: int, work: int, back: int) -> ClockTrip:
    """A trip as the two clocks show it, of which the learner's is ahead by so much."""
    return ClockTrip(
        asked_ns=start,
        received_ns=start + there + offset,
        answered_ns=start + there + work + offset,
        heard_ns=start + there + work + back,
    )


@given(START, OFFSETS, NANOSECONDS, NANOSECONDS, NANOSECONDS)
def test_the_true_offset_is_within_the_bound(
    start: int, offset: int, there: int, work: int, back: int
) -> None:
    read = trip(start, offset, there, work, back)
    assert read.is_possible
    assert abs(read.offset_ns - offset) <= read.bound_ns
    assert read.travel_ns == there + back
    # The reading is wrong because one way takes longer than the other, and for no other reason.
    exact = offset + Fraction(there - back, 2)
    assert 0 <= exact - read.offset_ns < 1
    assert read.bound_ns <= Fraction(there + back, 2) + 2


@given(START, OFFSETS, NANOSECONDS, NANOSECONDS)
def test_the_bound_is_no_wider_than_it_must_be(
    start: int, offset: int, travel: int, work: int
) -> None:
    """If the question takes all of the time or none of it, the offset is as wrong as it may be."""
    for there, back in ((travel, 0), (0, travel)):
        read = trip(start, offset, there, work, back)
        assert abs(read.offset_ns - offset) >= read.bound_ns - 2


@given(st.lists(st.tuples(OFFSETS, NANOSECONDS, NANOSECONDS, NANOSECONDS), max_size=6))
def test_the_clearest_trip_is_the_shortest_possible_one(
    drawn: list[tuple[int, int, int, int]],
) -> None:
    trips = [trip(10**18, *each) for each in drawn]
    found = clearest(trips)
    if not trips:
        assert found is None
    else:
        assert found in trips
        assert all(found.bound_ns <= each.bound_ns for each in trips)


@given(*[st.integers(0, 1000)] * 4)
def test_a_clock_that_was_set_back_meanwhile_tells_nothing(
    asked: int, received: int, answered: int, heard: int
) -> None:
    read = ClockTrip(asked_ns=asked, received_ns=received, answered_ns=answered, heard_ns=heard)
    worked, waited = answered - received, heard - asked
    assert read.is_possible == (worked >= 0 and waited >= 0 and worked <= waited)
    assert (clearest([read]) is read) == read.is_possible


@given(st.integers(FIRST_BYTES, MOST_BYTES), st.floats(1e3, 1e10), st.floats(0.0, 2.0))
def test_a_rate_is_that_of_the_link_once_the_transfer_dominates(
    nbytes: int, rate: float, round_trip_s: float
) -> None:
    took_s = round_trip_s + nbytes / rate
    moved = Transfer(nbytes=nbytes, took_s=took_s, round_trip_s=round_trip_s)
    seen = nbytes / took_s
    assert seen * 0.999 <= moved.bytes_per_s <= 2.001 * seen
    assert moved.bytes_per_s <= 1.001 * rate
    if took_s >= 2 * round_trip_s:
        assert moved.bytes_per_s == pytest.approx(rate, rel=1e-3)
    if moved.is_enough:
        assert not moved.is_least
        assert took_s >= max(ENOUGH_S, ENOUGH_TRIPS * round_trip_s)


@given(st.floats(1e2, 1e11), st.floats(0.0, 3.0))
def test_transfers_grow_until_they_tell_enough_and_fit_into_a_turn(
    rate: float, round_trip_s: float
) -> None:
    done: list[Transfer] = []
    while nbytes := next_bytes(done):
        took_s = round_trip_s + nbytes / rate
        done.append(Transfer(nbytes=nbytes, took_s=took_s, round_trip_s=round_trip_s))
    sizes = [each.nbytes for each in done]
    assert sizes == [FIRST_BYTES * GROWTH**i for i in range(len(done))]
    assert sum(sizes) <= TURN_BYTES
    before = done[:-1]
    assert not any(each.is_enough for each in before)
    assert sum(each.took_s for each in before) < SPENT_S
    spent = sum(each.took_s for each in done) >= SPENT_S
    assert done[-1].is_enough or done[-1].nbytes == MOST_BYTES or spent


def test_nothing_is_known_before_a_survey() -> None:
    assert Surveyed() == Surveyed(seen_ip="", wait_s=0.0, is_too_old=False, fault="")
