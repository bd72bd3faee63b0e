"""Who agreed to train with us, and the control streams with them.

    stranger ──hello, and we agree──▶ link ──first stream──▶ linked ──last stream closed──▶ link
       ▲                               │
       └── a newer incarnation came, or no stream for long

Only links may open streams. Either side may dial, or both: a message goes out on the newest stream
there is.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator
from dataclasses import replace

from mend_optim.errors import PeerError
from mend_optim.protocol.handshake import Hello, refusal
from mend_optim.protocol.lineage import PeerId
from mend_optim.protocol.messages import Beat, Control, Goodbye, Offer, Seal, State
from mend_optim.transport.address import seen_from
from mend_optim.transport.handler import Handler
from mend_optim.transport.link import Link, Outbox
from mend_optim.transport.stream import Stream
from mend_optim.transport.transfers import Transfers
from mend_optim.transport.wire import decode_control, encode_control

log = logging.getLogger("mend_optim.peer")

LINGER_S = 1.0  # how long the one that ends a stream waits for the other end to have read it
REASONS = 1000  # refusals remembered, so that each is reported once


class Links:
    """Everybody who agreed, by incarnation."""

    def __init__(self, handler: Handler, transfers: Transfers) -> None:
        self._handler, self._transfers = handler, transfers
        self._links: dict[PeerId, Link] = {}
        self._reported: set[tuple[str, str]] = set()

    def __iter__(self) -> Iterator[Link]:
        return iter(list(self._links.values()))

    def get(self, id: PeerId) -> Link | None:
        """The link with exactly this incarnation."""
        return self._links.get(id)

    # ── agreeing ──────────────────────────────────────────────────────────────────────────────────

    def agree(self, mine: Hello, theirs: Hello, address: str, seed: str = "") -> str:
        """Why we must not train together; empty if we may, and then the handler has met the
        peer."""
        reason = refusal(mine, theirs) or theirs.refusal
        if not reason and not self._handler.met(theirs.peer, address, seed):
            reason = f"incarnation: {theirs.peer} has left, or was replaced by a newer process of that name"
        if (
            reason
            and (theirs.peer.name, reason) not in self._reported
            and len(self._reported) < REASONS
        ):
            # reported once: the two will try again and again
            self._reported.add((theirs.peer.name, reason))
            self._handler.refused(address or theirs.peer.name, reason)
        return reason

    def admit(self, id: PeerId, address: str, host: str, dialled: bool = False) -> Link:
        """From now on the peer may open streams, and its past incarnations may not."""
        for past in self:
            if past.id.name == id.name and past.id != id:
                self.dismiss(past)
        link = self._links.setdefault(id, Link(id))
        if dialled or not link.dialled:  # where we reached it is better than where it says it is
            link.reach(address, host)
            link.dialled = dialled
        link.down_since = asyncio.get_running_loop().time()
        return link

    def dismiss(self, link: Link) -> None:
        """The peer is a stranger again."""
        self._links.pop(link.id, None)
        self._drop(link)
        for outbox in link.streams:
            outbox.close()
        link.close_channel()

    def tidy(self, patience_s: float) -> None:
        """Dismiss the peers that have been gone for so long; a transfer under way has its own
        patience."""
        now = asyncio.get_running_loop().time()
        for link in self:
            if not link.streams and not link.busy and now - link.down_since > patience_s:
                self.dismiss(link)

    def _drop(self, link: Link) -> None:
        """The peer is gone, or says so: end what waits for it, and what it waits for."""
        self._transfers.drop(link)
        for kind, fragment in list(link.requests):
            link.close_request(kind, fragment)

    # ── control streams ───────────────────────────────────────────────────────────────────────────

    async def converse(self, link: Link, stream: Stream, linger: bool = False) -> None:
        """Run a control stream until either end ends it; `linger`: then wait until the other has
        read all of it."""
        outbox = Outbox()
        link.streams.append(outbox)
        if len(link.streams) == 1:
            self._handler.linked(link.id, True)
        listening = asyncio.get_running_loop().create_task(self._listen(link, stream, outbox))
        try:
            while (message := await outbox.get()) is not None:
                assert not isinstance(message, (Offer, Seal, State))
                await stream.write(encode_control(message))
            await stream.finish()
            if linger:
                await asyncio.wait({listening}, timeout=LINGER_S)
        finally:
            listening.cancel()
            link.streams.remove(outbox)
            outbox.finished.set()
            if not link.streams:
                link.down_since = asyncio.get_running_loop().time()
                self._handler.linked(link.id, False)

    async def _listen(self, link: Link, stream: Stream, outbox: Outbox) -> None:
        try:
            while (data := await stream.read(patient=True)) is not None:
                self._take(link, decode_control(data))
        except PeerError as fault:
            log.debug("control stream of %s: %s", link.id, fault)
        finally:
            outbox.close()

    def _take(self, link: Link, message: Control) -> None:
        if message.peer != link.id:
            raise PeerError(f"a message of {message.peer} from {link.id}")
        if isinstance(message, Beat):
            roster = tuple(
                replace(r, address=seen_from(r.address, link.host)) for r in message.roster
            )
            message = replace(message, address=seen_from(message.address, link.host), roster=roster)
        self._handler.receive(message)
        if isinstance(message, Goodbye):
            self._drop(link)
