"""What a learner shares with one peer, and what waits to be sent to it. All of it belongs to the
loop thread."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Any

from mend_optim.protocol.lineage import PeerId
from mend_optim.protocol.messages import Beat, Message, Want

OUTBOX_LIMIT = 256


class Outbox:
    """Messages waiting for one stream. Putting never blocks; what takes them learns when there will
    be no more."""

    def __init__(self) -> None:
        self.finished = asyncio.Event()  # set by what takes the messages, when it has sent the last
        self._waiting: deque[Message] = deque()
        self._changed = asyncio.Event()
        self._closed = False

    def put(self, message: Message) -> None:
        """Queue a message. A beat replaces one that still waits, unless that asks or answers: on a
        slow link only the newest is worth sending."""
        if isinstance(message, Beat):
            self._waiting = deque(
                m for m in self._waiting if not isinstance(m, Beat) or m.ping or m.pong
            )
        if len(self._waiting) == OUTBOX_LIMIT:
            self._waiting.popleft()
        self._waiting.append(message)
        self._changed.set()

    def close(self) -> None:
        """No more messages; those that wait are still taken."""
        self._closed = True
        self._changed.set()

    async def get(self) -> Message | None:
        """The next message; None if there will be no more."""
        while not self._waiting and not self._closed:
            self._changed.clear()
            await self._changed.wait()
        return self._waiting.popleft() if self._waiting else None


class Link:
    """One peer that agreed to train with us."""

    def __init__(self, id: PeerId) -> None:
        self.id = id
        self.address = ""  # where to dial it; empty if nobody can
        self.host = ""  # where its connections come from, or where we dialled it
        self.dialled = False  # a control stream of our own dialling is open
        self.busy = 0  # transfers under way, either way
        self.down_since = 0.0  # when the last control stream closed
        self.streams: list[Outbox] = []  # its open control streams, newest last
        # its open streams that wait for replies: (kind, fragment)
        self.requests: dict[tuple[str, int], Outbox] = {}
        # what it should push to us, by fragment
        self.asked: dict[int, tuple[Want, asyncio.TimerHandle]] = {}
        self.channel: Any = None  # for bulky messages to it, once there was one
        self.hang_up: Callable[[], object] | None = None  # closes the channel

    def reach(self, address: str, host: str) -> None:
        """It is to be dialled there from now on; an empty address tells nothing new."""
        if address and address != self.address:
            self.close_channel()
            self.address = address
        self.host = host

    def close_channel(self) -> None:
        """End the bulky messages to it."""
        if self.hang_up:
            self.hang_up()
        self.channel = self.hang_up = None

    def post(self, message: Message) -> bool:
        """Queue a control message on the newest stream; an older one may be half dead. False if
        there is none."""
        if self.streams:
            self.streams[-1].put(message)
        return bool(self.streams)

    def open_request(self, kind: str, fragment: int) -> Outbox:
        """The peer waits for replies of this kind; its previous request is over."""
        self.close_request(kind, fragment)
        outbox = self.requests[kind, fragment] = Outbox()
        return outbox

    def close_request(self, kind: str, fragment: int, outbox: Outbox | None = None) -> None:
        """The request is over; a given `outbox` only if it is still the newest."""
        current = self.requests.get((kind, fragment))
        if current and outbox in (None, current):
            del self.requests[kind, fragment]
            current.close()
        if outbox:
            outbox.finished.set()

    def outboxes(self) -> list[Outbox]:
        """Everything that is open."""
        return [*self.streams, *self.requests.values()]
