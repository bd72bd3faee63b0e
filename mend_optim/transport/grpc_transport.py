"""The network over gRPC: one server, and connections to the peers.

This is the only module that imports gRPC. `dialler.py` decides whom to dial and when, `control.py`
runs the control streams, `transfers.py` runs the bulky ones. Control streams have connections of
their own, so that bulky messages never delay a beat.

Everything runs on one event loop. Nothing here raises at what a peer does: the handler is told what
it needs to know, and the log gets the rest at debug level.
"""

from __future__ import annotations

import asyncio
import logging
import os
import sys
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Any

from mend_optim.errors import PeerError, UsageError, require, unreachable
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
from mend_optim.protocol.refusals import Refusals
from mend_optim.protocol.timing import Timing
from mend_optim.transport.address import (
    advertised,
    format_address,
    host_of,
    parse_address,
    parse_dialable,
    seen_from,
)
from mend_optim.transport.connection import CALLER, SERVICE, Connection
from mend_optim.transport.control import Links
from mend_optim.transport.diagnosis import LEAVING
from mend_optim.transport.dialler import Dialler
from mend_optim.transport.forked_sockets import PORTS
from mend_optim.transport.grpc_options import channel_options, most_streams, server_options
from mend_optim.transport.handler import Handler
from mend_optim.transport.inflow import HELLO_UNIT, Inflow
from mend_optim.transport.link import Link
from mend_optim.transport.receiving import BusyError, Receiving
from mend_optim.transport.stream import Counter, Dialled, Served
from mend_optim.transport.transfers import Carrier, Transfers, TransferServer
from mend_optim.transport.wire import decode_hello, decode_id, encode_hello

# With gRPC's fork handlers on, a `DataLoader(num_workers=2)` that forks beside live calls dies by a
# segmentation fault in its workers. With them off, the children leave gRPC alone. gRPC reads this
# variable once, when it is first imported; if another module imported gRPC earlier without it, a
# warning is all that is left.
_IMPORTED_EARLIER = (
    "grpc._cython.cygrpc" in sys.modules and "GRPC_ENABLE_FORK_SUPPORT" not in os.environ
)
FORKS_CRASH = (
    os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0").lower() in ("1", "true", "yes")
    or _IMPORTED_EARLIER
)
# A link that breaks is an event of the learner, not a line of gRPC's on the user's terminal.
os.environ.setdefault("GRPC_VERBOSITY", "ERROR")

import grpc  # noqa: E402
import grpc.aio  # noqa: E402

log = logging.getLogger("mend_optim.transport")

#: The process that has used gRPC; 0: none has yet. A child that is forked later inherits it.
_used_in = 0

#: Seconds that `Transport.stop` lets queued messages leave.
FLUSH_S = 1.0
#: Seconds that a stopped server lets answers end that were just given.
GRACE_S = 0.1
#: Why a hello is not looked at.
OVERRUN = "too many hellos come at a time; try again"
#: Characters of an RPC's status.
REASON_LIMIT = 500

End = Callable[[Link, Served], Awaitable[None]]
"""The server's end of a stream."""


# ── serving ───────────────────────────────────────────────────────────────────────────────────────


class Server:
    """The listening side: answers hellos, and serves the streams that peers open.

    Args:
        links: The peers that agreed; only they may open streams.
        transfers: The other ends of bulky streams.
        timing: Sets the patience of a stream.
        counter: Counts the bytes of all streams.
        hello: Returns this learner's hello, with its address.
        learners: The most learners in the run.
        streams: Returns the most streams of one peer.
    """

    def __init__(
        self,
        links: Links,
        transfers: TransferServer,
        timing: Timing,
        counter: Counter,
        hello: Callable[[], Hello],
        *,
        learners: int,
        streams: Callable[[], int],
    ) -> None:
        self._links = links
        self._transfers = transfers
        self._timing = timing
        self._counter = counter
        self._hello = hello
        #: Anybody may say hello, under any name.
        self._hellos = Inflow(HELLO_UNIT)
        self._learners = learners
        self._streams = streams
        self._server: Any = None
        self._port = 0

    async def start(self, listen: str, listen_from: str) -> int:
        """Listen; return the port. Raises `UsageError` if this machine cannot listen there."""
        host, port = parse_address(listen_from, listen)
        server = grpc.aio.server(
            options=server_options(self._timing, self._learners, self._streams())
        )
        server.add_generic_rpc_handlers(
            (grpc.method_handlers_generic_handler(SERVICE, self._methods()),)
        )
        bound = 0
        # without a host: everywhere, whether the machine has IPv6 or not
        for one in [host] if host else ["::", "0.0.0.0"]:
            with suppress(RuntimeError):
                bound = bound or server.add_insecure_port(format_address(one, port))
        require(
            bound > 0,
            listen_from,
            listen,
            "an address of this machine with a free port",
            "another process may use the port, or the host is not this machine's; port 0 takes any"
            " that is free",
        )
        await server.start()
        self._server = server
        self._port = bound
        PORTS.add(bound)
        return bound

    @property
    def port(self) -> int:
        """The port that it listens on; 0 before `start`."""
        return self._port

    async def stop(self) -> None:
        """Stop listening, and end the streams that are open."""
        if self._server:
            await self._server.stop(GRACE_S)
            PORTS.discard(self._port)

    def _methods(self) -> dict[str, Any]:
        # Every method but Hello is a stream both ways, whatever the service says: on the wire that
        # is the same, and all streams can be handled alike.
        ends: dict[str, End] = {
            "Control": self._serve_control,
            "Exchange": self._transfers.exchange,
            "Pull": self._transfers.pull,
            "Push": self._transfers.push,
            "PassOn": self._transfers.pass_on,
        }
        methods = {
            name: grpc.stream_stream_rpc_method_handler(partial(self._serve, end))
            for name, end in ends.items()
        }
        return {"Hello": grpc.unary_unary_rpc_method_handler(self._serve_hello), **methods}

    async def _serve_hello(self, request: bytes, context: Any) -> bytes:
        if self._links.closing:
            await context.abort(grpc.StatusCode.UNAVAILABLE, LEAVING)
        if self._hellos.is_overrun():
            await context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, OVERRUN)
        await self._hellos.take(len(request))
        fault = ""
        try:
            theirs = decode_hello(request)
            mine = self._hello()
        except PeerError as refused:
            fault = str(refused)
        # The exception that `abort` raises refers to this frame until the garbage collector runs.
        del request
        if fault:
            self._links.refusals.add("", fault)
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, fault[:REASON_LIMIT])
        if theirs.peer != mine.peer:
            host = host_of(context.peer())
            address = seen_from(theirs.address, host)
            reason = self._links.agree(mine, theirs, address)
            if reason:
                mine = self._links.answer(mine, theirs, reason)
            else:
                self._links.admit(theirs.peer, address, host)
        return encode_hello(mine)

    async def _serve(self, end: End, _: object, context: Any) -> None:
        """Run the server's end of a stream. A fault becomes the RPC's status."""
        code = grpc.StatusCode.FAILED_PRECONDITION
        link: Link | None = None
        try:
            caller = decode_id(dict(context.invocation_metadata()).get(CALLER, b""))
            link = self._links.get(caller)
            if link is None or self._links.closing:
                raise PeerError(f"peer {caller} must say hello before it opens a stream")
            code = grpc.StatusCode.INVALID_ARGUMENT
            with link.serving(self._streams()):
                await end(link, Served(context, self._counter, self._timing.round_timeout_s))
            return
        except BusyError as fault:
            code = grpc.StatusCode.RESOURCE_EXHAUSTED
            reason = str(fault)
        except PeerError as fault:
            reason = str(fault)
        except Exception as fault:
            code = grpc.StatusCode.INTERNAL
            reason = type(fault).__name__
            log.debug("serving %s", context.peer(), exc_info=True)
        log.debug("refused a stream of %s: %s", context.peer(), reason)
        # strangers choose their names
        self._links.refusals.add(link.id.name if link else "", reason)
        await context.abort(code, reason[:REASON_LIMIT])

    async def _serve_control(self, link: Link, stream: Served) -> None:
        await stream.accept()
        await self._links.converse(link, stream)


# ── the transport ─────────────────────────────────────────────────────────────────────────────────


class Transport:
    """One learner's place on the network. Call every method but the constructor on the loop thread.

    Args:
        handler: The learner. `handler.py` says what the transport tells it, and when.
        listen: "host:port" to listen on; None: nobody can dial this learner.
        listen_from: What the user calls `listen`, for errors.
        advertise: The address that peers should dial, where it is not `listen`.
        seeds: Addresses to dial from the start.
        timing: The learner's timeouts; all of the transport's derive from them.
        limit: Returns the greatest payload, in bytes, of a message for a fragment. Raises
            `LookupError` if there is no such fragment.
        allocate: Returns a writable buffer of that many bytes, for one section.
        limits: How much peers may cost.
        sizes: Returns the elements of each fragment.

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
        limits: Limits = Limits(),
        sizes: Callable[[], Sequence[int]] = tuple,
    ) -> None:
        _refuse_after_fork()
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
        self._advertise = advertise
        self._seeds = tuple(dict.fromkeys(seeds))
        self._counter = Counter()
        patience_s = timing.round_timeout_s
        carrier = Carrier(handler, limit, allocate, patience_s=patience_s)
        self._transfers = Transfers(handler, carrier, patience_s=patience_s, dial=self._open_bulk)
        self._links = Links(handler, self._transfers)
        receiving = Receiving(lambda: limits.receiving(sum(sizes()), len(self._links)), patience_s)
        self._server = Server(
            self._links,
            TransferServer(handler, carrier, receiving, patience_s=patience_s),
            timing,
            self._counter,
            self._hello,
            learners=limits.learners,
            streams=lambda: most_streams(len(sizes())),
        )
        self._dialler = Dialler(
            handler, self._links, timing, connect=self._connect, hello=self._hello
        )
        #: Where peers should dial this learner; known once it listens, empty if nobody can.
        self._address = ""
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

    # ── life ──────────────────────────────────────────────────────────────────────────────────────

    async def start(self) -> str:
        """Listen, and begin to dial.

        Returns:
            The address that others should dial; empty if nobody can dial this learner.

        Raises:
            UsageError: This machine cannot listen on `listen`.
        """
        global _used_in
        _used_in = os.getpid()
        if FORKS_CRASH:
            log.warning(
                "gRPC's fork handlers are on, so forked worker processes, such as those of"
                " DataLoader(num_workers=2), may crash; import mend_optim before grpc, or set"
                " GRPC_ENABLE_FORK_SUPPORT=0, or start the workers by spawning"
            )
        self._links.me = self._handler.hello().peer
        if self._listen is not None:
            port = await self._server.start(self._listen, self._listen_from)
            self._address = self._advertise or advertised(self._listen, port)
        self._dialler.start(self._seeds)
        return self._address

    async def stop(self) -> None:
        """Send what is queued, such as goodbyes and seals, for at most a second; then close
        everything. Safe to call twice."""
        if self._links.closing:
            return
        self._links.closing = True
        await self._flush()
        tasks = [*self._transfers.stop(), *self._dialler.stop(), *self._closing]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for link in self._links:
            if link.connection:
                await link.connection.close()
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
        return replace(self._handler.hello(), address=self._address)

    # ── connections ───────────────────────────────────────────────────────────────────────────────

    def _connect(self, address: str, patience_s: float) -> Connection:
        """Open a connection that may be dead for `patience_s` before it fails."""
        channel = grpc.aio.insecure_channel(
            address, options=channel_options(self._timing, patience_s)
        )
        assert self._links.me is not None, "nothing is dialled before `start`"
        return Connection(channel, self._links.me, self._counter, self._timing.round_timeout_s)

    def _open_bulk(self, link: Link, method: str) -> Dialled:
        """Open a stream for a bulky message, on the peer's connection for these."""
        if link.connection is None:
            link.connection = self._connect(link.address, self._timing.round_timeout_s)
            link.hang_up = partial(self._close_later, link.connection)
        return link.connection.stream(method)

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
                self._send_offer(to, link, message, pass_on=bool(reply))
            case Want():
                self._send_want(to, link, message)
            case Beat() | Call() | Goodbye():
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
        asyncio.get_running_loop().call_soon(self._handler.undelivered, to, message)


def _refuse_after_fork() -> None:
    """gRPC's threads and locks do not survive a fork: its next call would hang, or abort."""
    if _used_in not in (0, os.getpid()):
        raise UsageError(
            "listen and peers must not be given in a process that was forked from a learner's, got "
            f"process {os.getpid()}, a child of {_used_in}: gRPC does not survive the fork; start "
            "it with multiprocessing.get_context('spawn'), or make the first MendOptimizer with "
            "peers after you have forked"
        )
