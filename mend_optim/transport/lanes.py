"""The connections for bulky messages to one peer: several lanes side by side.

One connection seldom fills a long link that loses packets: it sends no more per round trip than its
window holds, and the window is halved at each loss. So a message that finds another one on its way
takes a connection of its own, as those of several fragments do; but few to each of many peers,
which share this learner's link anyway. Where messages leave faster than they come, they take one
connection, one after the other: its window is open, and that of a new one grows by and by."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from mend_optim.transport.connection import Connection
from mend_optim.transport.stream import Dialled, RpcFailed, StillError

#: Lanes to one peer at most; and to all peers together, as long as each has one.
MOST, MOST_IN_ALL = 8, 32


def most_lanes(peers: int) -> int:
    """Return how many lanes there may be to each of so many peers."""
    return max(1, min(MOST, MOST_IN_ALL // max(1, peers)))


class _Lane:
    """One connection, and the streams that are open on it."""

    def __init__(self, connection: Connection) -> None:
        self.connection = connection
        self.streams: list[Dialled] = []

    @property
    def load(self) -> int:
        """The messages that are on their way."""
        return sum(stream.moves for stream in self.streams)


class Lanes:
    """The lanes to one peer.

    Args:
        hang_up: Closes a connection without waiting.
    """

    def __init__(self, hang_up: Callable[[Connection], object]) -> None:
        self._hang_up = hang_up
        #: First the one that has served well last.
        self._lanes: list[_Lane] = []
        #: Those that take no more messages. They are hung up once their streams are over.
        self._retired: list[_Lane] = []

    @property
    def connections(self) -> list[Connection]:
        """The connections that there are."""
        return [lane.connection for lane in (*self._lanes, *self._retired)]

    @contextmanager
    def stream(
        self, method: str, connect: Callable[[], Connection], most: int
    ) -> Iterator[Dialled]:
        """Open a stream for an RPC, on the lane with the fewest messages on their way. Of several
        such lanes, that is the one which has served well last. One on which a message got stuck, or
        that broke, takes no more messages.

        Args:
            method: The RPC.
            connect: Makes a connection.
            most: Make no more lanes than that. As many retired ones stay for answers alone.
        """
        lane = self._take(connect, most)
        with lane.connection.stream(method) as stream:
            lane.streams.append(stream)
            try:
                yield stream
            except (StillError, RpcFailed) as fault:
                # the peer itself ends some streams, which says nothing of their lane
                if lane in self._lanes and not (isinstance(fault, RpcFailed) and fault.is_refusal):
                    self._lanes.remove(lane)
                    self._retired.append(lane)
                raise
            else:
                self._put_first(lane)
            finally:
                lane.streams.remove(stream)
                self._hang_up_retired()

    def _take(self, connect: Callable[[], Connection], most: int) -> _Lane:
        self._shrink(most)
        # a message that is on its way, on the others, ends or fails within its patience
        resting = [lane for lane in self._retired if not lane.load]
        for retired in resting[:-most]:
            self._drop(retired)
        lane = min(self._lanes, key=lambda lane: lane.load, default=None)
        if lane is None or (lane.load and len(self._lanes) < most):
            lane = _Lane(connect())
            self._lanes.append(lane)
        return lane

    def _shrink(self, most: int) -> None:
        """Hang up the lanes without a stream that are too many, since more peers have come."""
        idle = [lane for lane in reversed(self._lanes) if not lane.streams]
        for lane in idle[: max(0, len(self._lanes) - most)]:
            self._lanes.remove(lane)
            self._hang_up(lane.connection)

    def _put_first(self, lane: _Lane) -> None:
        """Let a lane be the first, if it still takes messages."""
        if lane in self._lanes:
            self._lanes.remove(lane)
            self._lanes.insert(0, lane)

    def retire(self) -> None:
        """Begin no stream on these lanes any more. The next one makes a new lane; those that are
        open go on."""
        self._retired += self._lanes
        self._lanes = []
        self._hang_up_retired()

    def _hang_up_retired(self) -> None:
        for lane in [lane for lane in self._retired if not lane.streams]:
            self._drop(lane)

    def _drop(self, lane: _Lane) -> None:
        """Hang up a retired lane."""
        self._retired.remove(lane)
        self._hang_up(lane.connection)

    def close(self) -> None:
        """Hang up. The next stream makes a new lane."""
        connections = self.connections
        self._lanes, self._retired = [], []
        for connection in connections:
            self._hang_up(connection)
