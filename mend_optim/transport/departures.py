"""The order in which bulky messages leave for one peer.

    seal  before  offer  before  whole anchor

A seal goes first, because its members wait for it. An offer goes next, because a round waits for
it. A whole anchor is for a learner that is behind, and is the longest. Each message has a stream of
its own, and several streams would share the link evenly: so a less urgent message pauses between
two frames while a more urgent one moves. Messages that are equally urgent go side by side. Beats
and calls have another connection, and never wait.

The order holds among the messages to one peer. A peer that reads slowly must not delay those to
anybody else.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager

from mend_optim.errors import unreachable
from mend_optim.protocol.messages import Bulk, Offer, Seal, State

#: The part of a stream's patience after which a paused message sends a frame all the same. By then
#: a message that is stuck in one frame holds nothing back.
PAUSE_SHARE = 1 / 4
#: A message that is overtaken by so many frames sends one of its own. Else a learner that is behind
#: would never get the anchor that it needs over a link that seals fill.
OVERTAKES = 16


def urgency(message: Bulk) -> int:
    """The place of a message in the order; the least goes first."""
    match message:
        case Seal():
            return 0
        case Offer():
            return 1
        case State():
            return 2
        case _:
            unreachable(message)


class Departure:
    """One message on its way out. `Departures` makes them.

    Args:
        all: Those to the same peer.
        rank: Its place in the order.
        pause_s: The longest pause between two of its frames.
    """

    def __init__(self, all: Departures, rank: int, pause_s: float) -> None:
        self._all = all
        self.rank = rank
        self.pause_s = pause_s
        #: When its last frame began to leave, by the loop's clock.
        self.moved_at = asyncio.get_running_loop().time()
        #: How many frames of more urgent messages have left since.
        self.overtaken = 0

    async def turn(self) -> None:
        """Wait until the next frame may leave: no more urgent message moves, or the pause was long
        enough, in seconds or in frames."""
        loop = asyncio.get_running_loop()
        ends_at = loop.time() + self.pause_s
        while self.overtaken < OVERTAKES:
            until = min(self._all.busy_until(self.rank), ends_at)
            if until <= loop.time():
                break
            await self._all.change(until - loop.time())
        self.overtaken = 0
        self.moved_at = loop.time()
        self._all.overtake(self.rank)


class Departures:
    """The bulky messages that are leaving for one peer."""

    def __init__(self) -> None:
        self._leaving: list[Departure] = []
        #: Set once a message has left, or was overtaken for long. Each one is followed by a fresh
        #: event.
        self._changed = asyncio.Event()

    @contextmanager
    def leaving(self, message: Bulk, patience_s: float) -> Iterator[Departure]:
        """Send a message within this context, and wait for its `turn` before each frame.

        Args:
            message: The message.
            patience_s: Seconds for which its stream may stand still.
        """
        departure = Departure(self, urgency(message), PAUSE_SHARE * patience_s)
        self._leaving.append(departure)
        try:
            yield departure
        finally:
            self._leaving.remove(departure)
            self._wake()

    def busy_until(self, rank: int) -> float:
        """Until when the more urgent messages count as moving, by the loop's clock."""
        ahead = (other for other in self._leaving if other.rank < rank)
        return max((other.moved_at + other.pause_s for other in ahead), default=0.0)

    def overtake(self, rank: int) -> None:
        """A frame of a message of this rank leaves."""
        behind = [other for other in self._leaving if other.rank > rank]
        for other in behind:
            other.overtaken += 1
        if any(other.overtaken >= OVERTAKES for other in behind):
            self._wake()

    def _wake(self) -> None:
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()

    async def change(self, seconds: float) -> None:
        """Wait until a message has left, or was overtaken for long; no longer than that."""
        changed = asyncio.ensure_future(self._changed.wait())
        try:
            await asyncio.wait({changed}, timeout=seconds)
        finally:
            changed.cancel()
