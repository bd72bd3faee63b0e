"""The network over gRPC: one server, and connections to the peers.

`security/` opens ports and channels. `server.py` serves the callers, `dialler.py` decides whom to
dial and when, `control.py` runs the control streams, `transfers.py` runs the bulky ones. Control
streams have connections of their own, so that bulky messages never delay a beat.

Everything runs on one event loop. Nothing here raises at what a peer does: the handler is told what
it needs to know, and the log gets the rest at debug level.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from functools import partial

from mend_optim.errors import require, unreachable
from mend_optim.protocol.handshake import Hello
from mend_optim.protocol.lineage import PeerId
from mend_optim.protocol.messages import (
    Beat,
    Call,
    Goodbye,
    Message,
    Offer,
    Seal,
    State,
    Want,
)
from mend_optim.protocol.peer_limits import Limits
from mend_optim.protocol.proofs import Notary, signed
from mend_optim.protocol.refusals import Refusals
from mend_optim.protocol.timing import Timing
from mend_optim.protocol.transfer_fault import BROKEN
from mend_optim.transport.address import (
    advertised,
    parse_address,
    parse_dialable,
)
from mend_optim.transport.callers import Callers
from mend_optim.transport.connection import Connection
from mend_optim.transport.control import Links
from mend_optim.transport.dialler import Dialler
from mend_optim.transport.first_messages import FirstMessages
from mend_optim.transport.goodbyes import Goodbyes
from mend_optim.transport.grpc_options import channel_options, most_streams
from mend_optim.transport.grpc_setup import (
    begin_use,
    refuse_after_fork,
    refuse_green_threads,
    refuse_import_of_main,
)
from mend_optim.transport.handler import Handler
from mend_optim.transport.lanes import Lanes, most_lanes
from mend_optim.transport.link import Link
from mend_optim.transport.receiving import Receiving
from mend_optim.transport.renewal import Renewal
from mend_optim.transport.security.channels import BARE, Security
from mend_optim.transport.seeking import PeerList, Resolve
from mend_optim.transport.server import Server
from mend_optim.transport.stream import Counter, Dialled
from mend_optim.transport.surveying import SurveyServer
from mend_optim.transport.transfers import Carrier, Transfers, TransferServer
from mend_optim.transport.watching import WatchServer

log = logging.getLogger("mend_optim.transport")

#: Seconds that `Transport.stop` lets queued messages leave.
FLUSH_S = 2.0


class Transport:
    """One learner's place on the network. Call every method but the constructor on the loop thread.

    Args:
        handler: The learner. `handler.py` says what the transport tells it, and when.
        listen: "host:port" to listen on; None: nobody can dial this learner.
        listen_from: What the user calls `listen`, for errors.
        advertise: The address that peers should dial, where it is not `listen`.
        seeds: Addresses to dial from the start.
        lists: Lists of further ones, which are read again and again.
        timing: The learner's timeouts; all of the transport's derive from them.
        limit: Returns the greatest payload, in bytes, of a message for a fragment. Raises
            `LookupError` if there is no such fragment.
        allocate: Returns a writable buffer of that many bytes, for one section.
        limits: How much peers may cost.
        sizes: Returns the elements of each fragment.
        security: How links are secured.
        resolve: Finds the addresses of a seed's name, and of `listen`. It must not block the loop.

    Raises:
        UsageError: One of the addresses is not an address, or this process was forked from one that
            has used gRPC.
    """

    def __init__(
        self,
        handler: Handler,
        *,
        listen: str | None,
        listen_from: str = "listen",
        advertise: str | None,
        seeds: Sequence[str],
        timing: Timing,
        limit: Callable[[int], int],
        allocate: Callable[[int], memoryview],
        resolve: Resolve,
        limits: Limits = Limits(),
        sizes: Callable[[], Sequence[int]] = tuple,
        security: Security = BARE,
        lists: Sequence[PeerList] = (),
    ) -> None:
        refuse_after_fork()
        refuse_import_of_main()
        refuse_green_threads()
        if listen is not None:
            parse_address(listen_from, listen)
        if advertise is not None:
            _, port = parse_address("advertise", advertise)
            require(port > 0, "advertise", advertise, "an address with a port >= 1")
        for seed in seeds:
            parse_dialable("peers", seed)
        self._handler = handler
        self._timing = timing
        self._listen = listen
        self._listen_from = listen_from
        self._resolve = resolve
        self._advertise = advertise
        self._security = security
        self._seeds = tuple(dict.fromkeys(seeds))
        self._lists = tuple(lists)
        self._counter = Counter()
        self._callers = Callers(timing)
        patience_s = timing.round_timeout_s
        carrier = Carrier(
            handler, limit, allocate, patience_s=patience_s, checks=not security.keeps_bytes
        )
        self._transfers = Transfers(
            handler,
            carrier,
            patience_s=patience_s,
            dial=self._open_bulk,
            damaged=lambda name, reason: self._links.refusals.add(name, reason),
        )
        self._goodbyes = Goodbyes(security.notary)
        self._links = Links(handler, self._transfers, self._goodbyes)
        receiving = Receiving(lambda: limits.receiving(sum(sizes()), len(self._links)), patience_s)
        first_messages = FirstMessages(timing.evict_after_s / 3)
        self._server = Server(
            self._links,
            TransferServer(handler, carrier, receiving, patience_s=patience_s),
            timing,
            self._counter,
            self._hello,
            learners=limits.learners,
            streams=lambda: most_streams(len(sizes())),
            security=security,
            first_messages=first_messages,
            watch=WatchServer(handler.sight, security, first_messages, self._links.refusals),
            survey=SurveyServer(security, self._links.refusals),
            called=self._called,
            hung_up=self._callers.hung_up,
        )
        self._dialler = Dialler(
            handler,
            self._links,
            timing,
            connect=self._connect,
            hello=self._hello,
            security=security,
            resolve=resolve,
            each_beat=self._look_for_callers,
        )
        self._links.after_beat = self._dialler.told
        self._renewal = Renewal(security, self._links, self._server.rebind)
        #: Where peers should dial this learner; known once it listens, empty if nobody can.
        self._address = ""
        #: The task of `start`, until that has ended.
        self._starting: asyncio.Task[object] | None = None
        #: Connections on their way to be closed; the loop itself holds tasks only weakly.
        self._closing: set[asyncio.Task[None]] = set()

    @property
    def bytes_sent(self) -> int:
        """Bytes of all frames that were handed over to be sent."""
        return self._counter.sent

    @property
    def bytes_received(self) -> int:
        """Bytes of all frames that arrived."""
        return self._counter.received

    @property
    def refusals(self) -> Refusals:
        """What was refused of the peers' streams and hellos."""
        return self._links.refusals

    @property
    def port(self) -> int:
        """The port that this learner listens on; 0 if it does not listen."""
        return self._server.port

    @property
    def notary(self) -> Notary | None:
        """Signs this learner's offers; None if they are not signed."""
        return self._security.notary

    def secured(self) -> str:
        """Say how links are secured, for people."""
        return self._security.described()

    # ── life ──────────────────────────────────────────────────────────────────────────────────────

    async def start(self) -> str:
        """Listen, and begin to dial.

        Returns:
            The address that others should dial; empty if nobody can dial this learner.

        Raises:
            UsageError: This machine cannot listen on `listen`.
        """
        begin_use()
        self._starting = asyncio.current_task()
        try:
            self._links.me = self._handler.hello().peer
            if self._listen is not None:
                port = await self._server.start(self._listen, self._listen_from, self._resolve)
                self._address = self._advertise or advertised(self._listen, port)
                self._handler.shows(self._address)
            self._dialler.start(self._seeds, self._lists, self._address)
            self._renewal.start()
        finally:
            self._starting = None
        return self._address

    async def stop(self) -> None:
        """Send what is queued, such as goodbyes and seals, for at most `FLUSH_S`; then close
        everything. Safe to call twice, and while it starts or after that has failed."""
        if self._links.closing:
            return
        self._links.closing = True
        if self._starting:
            # gRPC cannot stop a server that only starts.
            self._starting.cancel()
            await asyncio.wait({self._starting})
        try:
            await self._flush()
            tasks = [*self._transfers.stop(), *self._dialler.stop(), *self._renewal.stop()]
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            for link in self._links:
                link.forget_wants()
                link.close_lanes()
            await asyncio.gather(*self._closing, return_exceptions=True)
        finally:
            # The loop may end before this has: the port is free all the same.
            await self._server.stop()

    async def _flush(self) -> None:
        outboxes = [outbox for link in self._links for outbox in link.outboxes()]
        for outbox in outboxes:
            outbox.close()
        waits = [asyncio.ensure_future(outbox.finished.wait()) for outbox in outboxes]
        if waits:
            await asyncio.wait(waits, timeout=FLUSH_S)
        # One by one: `gather` would tell of its cancellation, in a traceback that alarms users.
        for wait in waits:
            wait.cancel()

    def _hello(self) -> Hello:
        address = self._address if self._callers.is_shown else ""
        return replace(self._handler.hello(), address=address)

    def _look_for_callers(self) -> None:
        """Hide an address that nobody gets through to, and try it again later."""
        reached = [link.id for link in self._links if link.dialled and link.streams]
        now, has_hidden = asyncio.get_running_loop().time(), self._callers.has_hidden
        if not self._address or not self._callers.look(now, bool(reached)):
            return
        self._handler.shows(self._address if self._callers.is_shown else "")
        if not has_hidden:
            self._handler.undialled(self._address, reached)

    def _called(self) -> None:
        if self._callers.called():
            self._handler.shows(self._address)
            self._handler.dialled(self._address)

    # ── connections ───────────────────────────────────────────────────────────────────────────────

    def _connect(self, address: str, patience_s: float, name: str) -> Connection:
        """Open a connection to the learner of this name, or to any if it is empty. It may be dead
        for `patience_s` before it fails."""
        options = channel_options(self._timing, patience_s)
        channel = self._security.channel(address, options, name)
        assert self._links.me is not None, "nothing is dialled before `start`"
        return Connection(channel, self._links.me, self._counter, self._timing.round_timeout_s)

    def _open_bulk(self, link: Link, method: str) -> AbstractContextManager[Dialled]:
        """Open a stream for a bulky message, on one of the peer's connections for these."""
        link.lanes = link.lanes or Lanes(self._close_later)
        patience_s = self._timing.round_timeout_s
        connect = partial(self._connect, link.address, patience_s, link.id.name)
        return link.lanes.stream(method, connect, most_lanes(self._handler.others()))

    def _close_later(self, connection: Connection) -> None:
        task = asyncio.get_running_loop().create_task(connection.close())
        self._closing.add(task)
        task.add_done_callback(self._closing.discard)

    # ── sending ───────────────────────────────────────────────────────────────────────────────────

    def send(self, to: PeerId, message: Message, reply: str) -> None:
        """Send a message. Never blocks, never raises; the handler hears what becomes of it.

        Args:
            to: The peer.
            message: The message.
            reply: For a seal or a state, which of the peer's open requests it answers: "exchange"
                or "pull". For an offer, "pass on" if it is that of a learner that is gone. Empty
                otherwise.
        """
        if self._links.closing:
            return
        link = self._links.get(to)
        match message:
            case State() | Seal():
                if link:
                    self._reply(link, message, reply)
            case Offer():
                self._send_offer(to, link, self._signed(message), pass_on=bool(reply))
            case Want():
                self._send_want(to, link, message)
            case Goodbye():
                if link:
                    link.take_leave(self._goodbyes.signed(message))
            case Beat() | Call():
                if link:
                    link.post(message)
            case _:
                unreachable(message)

    def _reply(self, link: Link, message: State | Seal, reply: str) -> None:
        outbox = link.requests.get((reply, message.fragment))
        if outbox:
            outbox.put(message)
        elif reply == "pull" and link.address:
            self._transfers.push(link, message)

    def _send_offer(self, to: PeerId, link: Link | None, offer: Offer, *, pass_on: bool) -> None:
        if link is None or not link.address:
            self._undelivered_soon(to, offer)
        elif pass_on:
            self._transfers.pass_on(link, offer)
        else:
            self._transfers.exchange(link, offer)

    def _signed(self, offer: Offer) -> Offer:
        """The offer as it is sent. One that is passed on has its author's signature."""
        return signed(offer, self.notary) if self.notary else offer

    def _send_want(self, to: PeerId, link: Link | None, want: Want) -> None:
        if link is None:
            self._undelivered_soon(to, want)
        elif link.address:
            self._transfers.pull(link, want)
        else:
            self._transfers.ask(link, want)

    def _undelivered_soon(self, to: PeerId, message: Message) -> None:
        """The peer is not known, or nobody can dial it. Tell the handler, but not from within
        `send`."""
        asyncio.get_running_loop().call_soon(self._handler.undelivered, to, message, BROKEN)
