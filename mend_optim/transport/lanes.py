"""The connections for bulky messages to one peer: several lanes side by side.

One connection seldom fills a long link. It sends no more per round trip than its window holds, and
the window is halved at each lost packet. So messages that are on their way at the same time take
connections of their own, as the fragments of a model do: as many as there are messages, but few to
each of many peers, which share this learner's link anyway."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from mend_optim.transport.connection import Connection
from mend_optim.transport.stream import Dialled

#: Lanes to one peer at most; and to all peers together, as long as each has one.
MOST, MOST_IN_ALL = 8, 32


def most_lanes(peers: int) -> int:
    """Return how many lanes there may be to each of so many peers."""
    return max(1, min(MOST, MOST_IN_ALL // max(1, peers)))


class _Lane:
    """One connection, and the streams that are open on it."""

    def __init__(self, connection: Connection) -> None:
        self.connection = connection
        self.streams = 0


class Lanes:
    """The lanes to one peer.

    Args:
        hang_up: Closes a connection without waiting.
    """

    def __init__(self, hang_up: Callable[[Connection], object]) -> None:
        self._hang_up = hang_up
        #: The one that was taken last is the last.
        self._lanes: list[_Lane] = []

    @property
    def connections(self) -> list[Connection]:
        """The connections that there are."""
        return [lane.connection for lane in self._lanes]

    @contextmanager
    def stream(
        self, method: str, connect: Callable[[], Connection], most: int
    ) -> Iterator[Dialled]:
        """Open a stream for an RPC, on the lane with the fewest. One of several such lanes is the
        one that was taken least lately: the last one may be broken.

        Args:
            method: The RPC.
            connect: Makes a connection.
            most: Make no more lanes than that.
        """
        lane = self._take(connect, most)
        lane.streams += 1
        try:
            with lane.connection.stream(method) as stream:
                yield stream
        finally:
            lane.streams -= 1

    def _take(self, connect: Callable[[], Connection], most: int) -> _Lane:
        lane = min(self._lanes, key=lambda lane: lane.streams, default=None)
        if lane is None or (lane.streams and len(self._lanes) < most):
            lane = _Lane(connect())
        else:
            self._lanes.remove(lane)
        self._lanes.append(lane)
        return lane

    def close(self) -> None:
        """Hang up. The next stream makes a new lane."""
        lanes, self._lanes = self._lanes, []
        for lane in lanes:
            self._hang_up(lane.connection)
