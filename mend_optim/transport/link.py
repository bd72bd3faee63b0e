"""A learner's link with one peer, and the messages that wait to be sent to it.

Only the loop thread touches them.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager

from mend_optim.protocol.lineage import PeerId
from mend_optim.protocol.messages import Beat, Goodbye, Message, Want
from mend_optim.transport.departures import Departures
from mend_optim.transport.inflow import Inflow
from mend_optim.transport.lanes import Lanes
from mend_optim.transport.receiving import BusyError
from mend_optim.transport.security.certificate import Certificate

#: Messages that wait in one outbox at most; one more drops the oldest.
OUTBOX_LIMIT = 256


class Outbox:
    """Messages that wait for one stream.

    Putting a message never blocks. The task that takes them learns when there will be no more.
    """

    def __init__(self) -> None:
        #: Set by the task that takes the messages, once it has sent the last one.
        self.finished = asyncio.Event()
        self._waiting: deque[Message] = deque()
        #: Set when a message was put or the outbox was closed.
        self._changed = asyncio.Event()
        self._closed = False

    def put(self, message: Message) -> None:
        """Queue a message.

        A beat replaces one that still waits, because on a slow link only the newest is worth
        sending. A beat that asks for an answer or is one (`ping`, `pong`) is never replaced.
        """
        if isinstance(message, Beat):
            self._waiting = deque(
                m for m in self._waiting if not isinstance(m, Beat) or m.ping or m.pong
            )
        if len(self._waiting) == OUTBOX_LIMIT:
            self._waiting.popleft()
        self._waiting.append(message)
        self._changed.set()

    def close(self) -> None:
        """Announce that no more messages come. Those that wait are still taken."""
        self._closed = True
        self._changed.set()

    async def get(self) -> Message | None:
        """Return the next message; None if there will be no more."""
        while not self._waiting and not self._closed:
            self._changed.clear()
            await self._changed.wait()
        return self._waiting.popleft() if self._waiting else None


class Link:
    """One peer that agreed to train with this learner."""

    def __init__(self, id: PeerId) -> None:
        #: The peer. A newer incarnation gets a new link.
        self.id = id
        #: Where to dial the peer; empty if nobody can.
        self.address = ""
        #: Where this learner dials it or, if it does not, where the peer's own calls come from.
        self.host = ""
        #: Where the peer has last called from; empty if it has not.
        self.calls_from = ""
        #: Where it calls from since it was dialled, if it has called from another host before.
        self.moved_to = ""
        #: The certificate that the peer has called with; None if it has not, or needs none.
        self.certificate: Certificate | None = None
        #: Whether a control stream of this learner's dialling is open, or about to be.
        #: Then `address` is the one that was dialled.
        self.dialled = False
        #: The seed whose address that is; empty if gossip brought it.
        self.seed = ""
        #: Transfers under way, in either direction. While there are some, the link stays.
        self.busy = 0
        #: Streams of the peer's dialling that are open.
        self.served = 0
        #: How fast its control messages and headers are read, on whatever stream they come.
        self.inflow = Inflow()
        #: When the last control stream closed, or the peer was admitted, by the loop's clock.
        self.down_since = 0.0
        #: Whether the peer has said goodbye. This incarnation of it does not come back.
        self.has_left = False
        #: Outboxes of the open control streams, the newest last.
        self.streams: list[Outbox] = []
        #: The peer's open requests, which wait for replies: (kind, fragment), where the kind is
        #: "exchange" or "pull". At most one of each; a newer one closes the older.
        self.requests: dict[tuple[str, int], Outbox] = {}
        #: The bulky messages that are being sent to the peer.
        self.departures = Departures()
        #: By fragment, the want that this learner sent over the control stream, and the timer that
        #: gives it up. The peer may push exactly these fragments.
        self.asked: dict[int, tuple[Want, asyncio.TimerHandle]] = {}
        #: The connections for bulky messages to the peer. None until the first one, and after
        #: `address` has changed.
        self.lanes: Lanes | None = None

    @contextmanager
    def serving(self, most: int) -> Iterator[None]:
        """Count a stream of the peer's dialling while it is open. Raises `BusyError` if `most` of
        them are open."""
        if self.served >= most:
            raise BusyError(f"peer {self.id} has {self.served} streams open, the most that it may")
        self.served += 1
        self.busy += 1
        try:
            yield
        finally:
            self.served -= 1
            self.busy -= 1

    def reach(self, address: str, host: str) -> None:
        """Dial the peer at `address` from now on. An empty address tells nothing new."""
        if address and address != self.address:
            self.close_lanes()
            self.address = address
        self.host, self.moved_to = host, ""

    def called(self, host: str) -> None:
        """The peer calls from this host. If it has called from another one, it has moved to another
        network. Otherwise that is no better than where it was dialled: the proxy of a container may
        call in its place."""
        if self.calls_from not in ("", host):
            self.moved_to = host
        self.calls_from = host

    def hung_up(self) -> None:
        """The control stream of this learner's dialling has ended. If that is because the way to
        the peer is another one by now, the connections beside it are as dead, but would stand for
        longer."""
        self.retire_lanes()
        self.dialled = False
        self.host = self.moved_to or self.host

    def withdraw(self) -> None:
        """The peer says that nobody can dial it. Messages to it go over streams that it opens."""
        if self.address:
            self.close_lanes()
            self.address = ""

    def retire_lanes(self) -> None:
        """Let bulky messages begin on new connections; those on their way go on."""
        if self.lanes:
            self.lanes.retire()

    def close_lanes(self) -> None:
        """End the bulky messages to the peer."""
        if self.lanes:
            self.lanes.close()
        self.lanes = None

    def post(self, message: Message) -> bool:
        """Queue a control message on the newest stream, because an older one may be half dead.

        Returns:
            False if no control stream is open.
        """
        if self.streams:
            self.streams[-1].put(message)
        return bool(self.streams)

    def take_leave(self, goodbye: Goodbye) -> None:
        """Queue this learner's goodbye on all streams, because any of them may be half dead."""
        for outbox in self.streams:
            outbox.put(goodbye)

    def open_request(self, kind: str, fragment: int) -> Outbox:
        """Open a request of the peer, which waits for replies of this kind, and close its previous
        one."""
        self.close_request(kind, fragment)
        outbox = Outbox()
        self.requests[kind, fragment] = outbox
        return outbox

    def close_request(self, kind: str, fragment: int, outbox: Outbox | None = None) -> None:
        """Close a request of the peer.

        Args:
            kind: "exchange" or "pull".
            fragment: The fragment.
            outbox: The request's own outbox, if its stream has ended. A newer request stays open.
        """
        current = self.requests.get((kind, fragment))
        if current and outbox in (None, current):
            del self.requests[kind, fragment]
            current.close()
        if outbox:
            outbox.finished.set()

    def forget_wants(self) -> None:
        """Wait for no answer to a want any more, and tell nobody."""
        for _, timer in self.asked.values():
            timer.cancel()
        self.asked.clear()

    def outboxes(self) -> list[Outbox]:
        """Return the outboxes of everything that is open."""
        return [*self.streams, *self.requests.values()]
