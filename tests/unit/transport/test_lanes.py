"""The connections for bulky messages to one peer."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mend_optim.errors import PeerError
from mend_optim.transport.lanes import MOST, MOST_IN_ALL, Lanes, most_lanes
from mend_optim.transport.stream import RpcFailed, StillError


class Stream:
    """A stream on the connection of that number, with a message on its way until it rests."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.moves = True


class Line:
    """A connection that opens streams of its own number."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.opened = 0

    @contextmanager
    def stream(self, method: str) -> Iterator[Stream]:
        assert method == "Exchange"
        self.opened += 1
        yield Stream(self.number)


class Dialled:
    """Lanes, and what was dialled and hung up for them."""

    def __init__(self) -> None:
        self.made: list[Line] = []
        self.closed: list[Line] = []
        self.lanes = Lanes(self.closed.append)

    def connect(self) -> Line:
        self.made.append(Line(len(self.made)))
        return self.made[-1]

    def stream(self, most: int = MOST):
        return self.lanes.stream("Exchange", self.connect, most)


def test_messages_one_after_the_other_take_one_lane() -> None:
    dialled = Dialled()
    for _ in range(3):
        with dialled.stream() as stream:
            assert stream.number == 0
    assert len(dialled.made) == 1


def test_a_stream_that_waits_for_its_answer_leaves_its_lane_to_others() -> None:
    dialled = Dialled()
    with dialled.stream() as one:
        one.moves = False
        with dialled.stream() as other:
            assert other.number == one.number


def test_messages_at_the_same_time_take_lanes_of_their_own() -> None:
    dialled = Dialled()
    with dialled.stream() as one, dialled.stream() as other:
        assert one.number != other.number
    assert dialled.lanes.connections == dialled.made


@given(st.integers(1, MOST), st.integers(1, 40))
def test_the_lanes_share_the_messages_evenly(most: int, messages: int) -> None:
    dialled = Dialled()
    with ExitStack() as stack:
        for _ in range(messages):
            stack.enter_context(dialled.stream(most))
        opened = [line.opened for line in dialled.made]
    assert len(opened) == min(most, messages)
    assert max(opened) - min(opened) <= 1


def two_lanes() -> Dialled:
    """Two lanes with nothing on their way, of which the first was the last to serve well."""
    dialled = Dialled()
    with dialled.stream(), dialled.stream():
        pass
    return dialled


def test_the_lane_that_has_served_well_last_is_taken_again() -> None:
    """Its window is open."""
    dialled = Dialled()
    with ExitStack() as later, dialled.stream():
        later.enter_context(dialled.stream())
    for _ in range(3):
        with dialled.stream() as stream:
            assert stream.number == 1


@pytest.mark.parametrize(
    ("fault", "taken"),
    [
        (StillError("nothing moved"), [0, 1, 2, 3]),
        (RpcFailed("UNAVAILABLE", "it broke"), [0, 1, 2, 3]),
        (RpcFailed("RESOURCE_EXHAUSTED", "no room"), [0, 0, 0, 0]),
        (PeerError("it ended without an answer"), [0, 0, 0, 0]),
        (OSError("this learner gave it up"), [0, 0, 0, 0]),
    ],
)
def test_a_lane_on_which_a_message_got_stuck_takes_no_more(
    fault: Exception, taken: list[int]
) -> None:
    """A message that one of the two ends itself says nothing about its lane."""
    dialled, found = two_lanes(), []
    for _ in taken:
        with suppress(type(fault)), dialled.stream() as stream:
            found.append(stream.number)
            stream.moves = False  # also if it is the answer that got stuck
            raise fault
    assert found == taken
    broken = taken if taken[-1] else []
    assert [line.number for line in dialled.closed] == broken


def test_a_lane_that_broke_is_not_taken_although_the_good_ones_are_busy() -> None:
    dialled, found = Dialled(), []
    with dialled.stream() as good:
        for _ in range(3):
            with suppress(StillError), dialled.stream() as stream:
                found.append(stream.number)
                raise StillError("nothing moved")
        assert good.number not in found
    assert found == [1, 2, 3]
    assert dialled.lanes.connections == dialled.made[:1]


def test_other_messages_on_a_lane_that_broke_go_on() -> None:
    """Only its own patience ends a message."""
    dialled = Dialled()
    with dialled.stream(1) as other:
        with suppress(StillError), dialled.stream(1) as stream:
            assert stream.number == other.number
            raise StillError("nothing moved")
        assert dialled.closed == []
    assert dialled.closed == dialled.made


def test_fewer_lanes_are_made_once_there_are_more_peers() -> None:
    dialled = Dialled()
    with dialled.stream(2), dialled.stream(2), dialled.stream(1), dialled.stream(1):
        assert len(dialled.made) == 2
        assert {line.opened for line in dialled.made} == {2}


def test_lanes_that_are_too_many_are_given_up_once_they_are_free() -> None:
    dialled = Dialled()
    with dialled.stream(), dialled.stream() as busy, dialled.stream():
        pass
    assert len(dialled.made) == 3
    with dialled.stream(1) as stream:
        assert stream.number == 0
    assert dialled.closed == [dialled.made[2], dialled.made[busy.number]]
    assert dialled.lanes.connections == dialled.made[:1]


def test_all_lanes_hang_up_and_new_ones_are_made() -> None:
    dialled = Dialled()
    with dialled.stream(), dialled.stream():
        dialled.lanes.close()
        assert dialled.closed == dialled.made
        with dialled.stream() as stream:
            assert stream.number == 2
    assert dialled.lanes.connections == dialled.made[2:]
    dialled.lanes.close()
    assert dialled.closed == dialled.made


def test_retired_lanes_end_their_streams_first() -> None:
    dialled = two_lanes()
    with dialled.stream() as old:
        dialled.lanes.retire()
        assert dialled.closed == [dialled.made[1]]
        with dialled.stream() as new:
            assert (old.number, new.number) == (0, 2)
        assert dialled.lanes.connections == [dialled.made[2], dialled.made[0]]
    assert dialled.closed == [dialled.made[1], dialled.made[0]]
    assert dialled.lanes.connections == [dialled.made[2]]


def test_only_so_many_retired_lanes_stay_for_answers() -> None:
    """On a network that flaps, each control stream retires those of the one before."""
    dialled = Dialled()
    with ExitStack() as stack:
        for generation in range(6):
            stack.enter_context(dialled.stream(2)).moves = False
            assert len(dialled.lanes.connections) == min(generation + 1, 3)
            dialled.lanes.retire()
        assert dialled.closed == dialled.made[:3]
    assert sorted(line.number for line in dialled.closed) == list(range(6))


def test_a_retired_lane_stays_while_a_message_is_on_its_way() -> None:
    """More peers may have come since it was made, so that there may be one lane at most now."""
    dialled = Dialled()
    with ExitStack() as stack:
        for _ in range(3):
            stack.enter_context(dialled.stream(1))
            dialled.lanes.retire()
        with dialled.stream(1):
            assert dialled.closed == []


def test_retired_lanes_hang_up_with_the_others() -> None:
    dialled = Dialled()
    with dialled.stream():
        dialled.lanes.retire()
        dialled.lanes.close()
        assert dialled.closed == dialled.made
    assert dialled.closed == dialled.made


@given(st.integers(0, 5000))
def test_many_peers_have_few_lanes_each(peers: int) -> None:
    most = most_lanes(peers)
    assert 1 <= most <= MOST
    assert peers * most <= max(peers, MOST_IN_ALL)
    assert most >= most_lanes(peers + 1)


def test_a_single_peer_has_the_most() -> None:
    assert most_lanes(1) == most_lanes(0) == MOST
