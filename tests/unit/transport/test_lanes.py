"""The connections for bulky messages to one peer."""

from __future__ import annotations

from contextlib import ExitStack, contextmanager, suppress

from hypothesis import given
from hypothesis import strategies as st

from mend_optim.transport.lanes import MOST, MOST_IN_ALL, Lanes, most_lanes


class Line:
    """A connection that opens streams of its own number."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.opened = 0

    @contextmanager
    def stream(self, method: str):
        self.opened += 1
        yield (method, self.number)


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
            assert stream == ("Exchange", 0)
    assert len(dialled.made) == 1


def test_messages_at_the_same_time_take_lanes_of_their_own() -> None:
    dialled = Dialled()
    with dialled.stream() as one, dialled.stream() as other:
        assert one != other
    assert dialled.lanes.connections == dialled.made


@given(st.integers(1, MOST), st.integers(1, 40))
def test_the_lanes_share_the_streams_evenly(most: int, streams: int) -> None:
    dialled = Dialled()
    with ExitStack() as stack:
        for _ in range(streams):
            stack.enter_context(dialled.stream(most))
        opened = [line.opened for line in dialled.made]
    assert len(opened) == min(most, streams)
    assert max(opened) - min(opened) <= 1


def test_a_message_that_failed_goes_by_another_lane() -> None:
    """Its lane may be broken, and none of its streams open any more."""
    dialled = Dialled()
    with dialled.stream(), dialled.stream():
        pass
    taken = []
    for _ in range(4):
        with suppress(OSError), dialled.stream() as (_, number):
            taken.append(number)
            raise OSError("broken")
    assert taken == [0, 1, 0, 1]


def test_fewer_lanes_are_made_once_there_are_more_peers() -> None:
    dialled = Dialled()
    with dialled.stream(2), dialled.stream(2), dialled.stream(1), dialled.stream(1):
        assert len(dialled.made) == 2
        assert {line.opened for line in dialled.made} == {2}


def test_all_lanes_hang_up_and_new_ones_are_made() -> None:
    dialled = Dialled()
    with dialled.stream(), dialled.stream():
        dialled.lanes.close()
        assert dialled.closed == dialled.made
        with dialled.stream() as (_, number):
            assert number == 2
    assert dialled.lanes.connections == dialled.made[2:]
    dialled.lanes.close()
    assert dialled.closed == dialled.made


@given(st.integers(0, 5000))
def test_many_peers_have_few_lanes_each(peers: int) -> None:
    most = most_lanes(peers)
    assert 1 <= most <= MOST
    assert peers * most <= max(peers, MOST_IN_ALL)
    assert most >= most_lanes(peers + 1)


def test_a_single_peer_has_the_most() -> None:
    assert most_lanes(1) == most_lanes(0) == MOST
