"""The network: one gRPC server and its clients, and a control stream to everyone we can dial.

    dial ──hello──▶ agreed? ──control stream──▶ linked; broken: dial again, later and later

Control streams have connections of their own, so that bulky messages never delay a beat. All of it
runs on one event loop. Nothing here raises at what a peer does: the handler is told what it needs
to know, the rest is logged at debug level. `control.py` and `transfer.py` say what happens on the
streams; this is the only room that knows gRPC.
"""

from __future__ import annotations

import asyncio
import logging
import os
import random
import sys
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from contextlib import suppress
from dataclasses import replace
from enum import Enum
from functools import partial
from typing import Any

from mend_optim.errors import PeerError, require
from mend_optim.protocol.handshake import Hello
from mend_optim.protocol.lineage import PeerId
from mend_optim.protocol.messages import Message, Offer, Seal, State, Want
from mend_optim.protocol.timing import Timing
from mend_optim.transport.address import (
    advertised,
    format_address,
    host_of,
    parse_address,
    parse_dialable,
    seen_from,
)
from mend_optim.transport.control import Links
from mend_optim.transport.forked_sockets import PORTS
from mend_optim.transport.handler import Handler
from mend_optim.transport.limits import MESSAGE_LIMIT
from mend_optim.transport.link import Link
from mend_optim.transport.stream import Counter, Dialled, Served, within
from mend_optim.transport.transfers import Transfers
from mend_optim.transport.wire import (
    decode_hello,
    decode_id,
    encode_hello,
    encode_id,
)

# gRPC's fork handlers and live calls do not go together: a `DataLoader(num_workers=2)` that forks
# beside them dies by a segmentation fault in its workers. Without the handlers the children leave
# gRPC alone. It reads this once, when it is first imported; if somebody imported it before us, all
# that is left is to say so.
_TOO_LATE = "grpc._cython.cygrpc" in sys.modules and "GRPC_ENABLE_FORK_SUPPORT" not in os.environ
FORKS_CRASH = (
    os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0").lower() in ("1", "true", "yes")
    or _TOO_LATE
)
# A link that breaks is an event of ours, not a line of gRPC's on the user's terminal.
os.environ.setdefault("GRPC_VERBOSITY", "ERROR")

import grpc  # noqa: E402
import grpc.aio  # noqa: E402

log = logging.getLogger("mend_optim.peer")

SERVICE = "mend_optim.Peer"
CALLER = "mend-peer-bin"  # the metadata that names the caller
FLUSH_S = 1.0  # how long `stop` lets queued messages leave
GRACE_S = 0.1  # how long a stopped server lets answers end that were just given
REASON_LIMIT = 500  # characters of a status


class VisitOutcome(Enum):
    """How a visit to an address ended."""

    LINKED = "there was a control stream, and it broke"
    FAILED = "nobody is there"
    DUPLICATE = "the peer is already dialled at another address"
    REFUSED = "we must not train together"
    OURSELVES = "we are there"


NEXT_VISIT = {
    VisitOutcome.LINKED: 0.2,
    VisitOutcome.FAILED: 10.0,
    VisitOutcome.DUPLICATE: 10.0,
    VisitOutcome.REFUSED: 30.0,
}
"""After how many beats an address is worth another visit. When nobody is there: at most; sooner at
first."""


class Transport:
    """One learner's place on the network. Every method but the constructor is called on the loop
    thread.

    `limit(fragment)` and `allocate(nbytes)` are those of `wire.Assembler`. Raises `UsageError` for
    what is no address.
    """

    def __init__(
        self,
        handler: Handler,
        *,
        listen: str | None,
        advertise: str | None,
        seeds: Sequence[str],
        timing: Timing,
        limit: Callable[[int], int],
        allocate: Callable[[int], memoryview],
    ) -> None:
        if listen is not None:
            parse_address("listen", listen)
        if advertise is not None:
            require(
                parse_address("advertise", advertise)[1] > 0,
                "advertise",
                advertise,
                "an address with a port >= 1",
            )
        for seed in seeds:
            parse_dialable("peers", seed)
        self._handler, self._timing = handler, timing
        # so long may a connection be silent before it is tried
        self._quiet_s = timing.evict_after_s / 3
        self._listen, self._advertise, self._seeds = listen, advertise, tuple(dict.fromkeys(seeds))
        self._counter = Counter()
        self._transfers = Transfers(
            handler, limit, allocate, timing.round_timeout_s, self._dial_bulk
        )
        self._links = Links(handler, self._transfers)
        self._dials: dict[str, asyncio.Task[None]] = {}
        self._tasks: set[asyncio.Task[Any]] = set()
        self._random = random.Random()
        self._server: Any = None
        self._port = 0
        self._address = ""
        self._caller: tuple[tuple[str, bytes], ...] = ()
        self._stopping = False

    @property
    def bytes_sent(self) -> int:
        return self._counter.sent

    @property
    def bytes_received(self) -> int:
        return self._counter.received

    # ── life ──────────────────────────────────────────────────────────────────────────────────────

    async def start(self) -> str:
        """Listen and begin to dial; returns the address that others should dial. `UsageError` if we
        cannot listen."""
        if FORKS_CRASH:
            log.warning(
                "gRPC's fork handlers are on: forked worker processes, as of DataLoader(num_workers=2), may crash; "
                "import mend_optim before grpc, or set GRPC_ENABLE_FORK_SUPPORT=0, or let the workers be spawned"
            )
        self._caller = ((CALLER, encode_id(self._handler.hello().peer)),)
        if self._listen is not None:
            port = await self._bind(self._listen)
            self._address = self._advertise or advertised(self._listen, port)
        for seed in self._seeds:
            self._begin_dial(seed, seed, None)
        self._spawn(self._watch())
        return self._address

    async def _bind(self, listen: str) -> int:
        host, port = parse_address("listen", listen)
        server = grpc.aio.server(options=self._server_options())
        server.add_generic_rpc_handlers(
            (grpc.method_handlers_generic_handler(SERVICE, self._methods()),)
        )
        bound = 0
        for one in [host] if host else ["::", "0.0.0.0"]:  # everywhere, with or without IPv6
            with suppress(RuntimeError):
                bound = bound or server.add_insecure_port(format_address(one, port))
        remedy = "another process may use the port, or the host is not this machine's; port 0 takes any that is free"
        require(bound > 0, "listen", listen, "an address of this machine with a free port", remedy)
        await server.start()
        self._server, self._port = server, bound
        PORTS.add(bound)
        return bound

    async def stop(self) -> None:
        """Send what is queued (goodbyes, seals), for at most a second; then close everything."""
        if self._stopping:
            return
        self._stopping = True
        await self._flush()
        tasks = [*self._transfers.stop(), *self._tasks]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for link in self._links:
            if link.channel:
                await link.channel.close()
        if self._server:
            await self._server.stop(GRACE_S)
            PORTS.discard(self._port)

    async def _flush(self) -> None:
        outboxes = [outbox for link in self._links for outbox in link.outboxes()]
        for outbox in outboxes:
            outbox.close()
        flushed = asyncio.gather(*(outbox.finished.wait() for outbox in outboxes))
        await asyncio.wait({flushed}, timeout=FLUSH_S)
        flushed.cancel()

    def _spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)  # the loop itself holds tasks weakly
        task.add_done_callback(self._tasks.discard)
        return task

    def _options(self, patience_s: float) -> dict[str, int]:
        """Of a connection that may stand still for so long: a transfer must survive an outage that
        is shorter."""
        return {
            "grpc.max_send_message_length": MESSAGE_LIMIT,
            "grpc.max_receive_message_length": MESSAGE_LIMIT,
            "grpc.keepalive_time_ms": int(1000 * self._quiet_s),
            "grpc.keepalive_timeout_ms": int(1000 * patience_s),
            # else a minute, whatever the line above says
            "grpc.http2.ping_timeout_ms": int(1000 * patience_s),
            "grpc.keepalive_permit_without_calls": 1,
            "grpc.http2.max_pings_without_data": 0,
        }

    def _server_options(self) -> list[tuple[str, int]]:
        options = self._options(self._timing.round_timeout_s)
        # else a second learner on the same port would quietly share it
        options["grpc.so_reuseport"] = 0
        options["grpc.http2.max_ping_strikes"] = 0  # peers ping as their own timing says
        return list(options.items())

    def _channel(self, address: str, patience_s: float) -> Any:
        options = self._options(patience_s)
        options["grpc.enable_http_proxy"] = 0  # a proxy in the environment is not for peers
        options["grpc.use_local_subchannel_pool"] = 1  # a connection of its own for every channel
        # that is: to connect in
        options["grpc.min_reconnect_backoff_ms"] = int(1000 * self._timing.evict_after_s)
        options["grpc.initial_reconnect_backoff_ms"] = int(200 * self._timing.beat_s)
        options["grpc.max_reconnect_backoff_ms"] = int(1000 * self._quiet_s)
        return grpc.aio.insecure_channel(address, options=list(options.items()))

    # ── sending ───────────────────────────────────────────────────────────────────────────────────

    def send(self, to: PeerId, message: Message, reply: str) -> None:
        """Send a message, on the peer's open stream of kind `reply` or one of our own. Never
        blocks, never raises."""
        link = self._links.get(to)
        if self._stopping:
            return
        if link and reply and isinstance(message, (State, Seal)):
            self._reply(link, message, reply)
        elif link and isinstance(message, Offer) and link.address:
            (self._transfers.pass_on if reply else self._transfers.exchange)(link, message)
        elif link and isinstance(message, Want):
            (self._transfers.pull if link.address else self._transfers.ask)(link, message)
        elif isinstance(message, (Offer, Want)):  # to somebody whom we have not met, or cannot dial
            asyncio.get_running_loop().call_soon(self._handler.undelivered, to, message)
        elif link:
            link.post(message)

    def _reply(self, link: Link, message: State | Seal, reply: str) -> None:
        outbox = link.requests.get((reply, message.fragment))
        if outbox:
            outbox.put(message)
        elif reply == "pull" and link.address:
            self._transfers.push(link, message)

    def _dial_bulk(self, link: Link, method: str) -> Dialled:
        if link.channel is None:
            channel = link.channel = self._channel(link.address, self._timing.round_timeout_s)
            link.hang_up = lambda: self._spawn(channel.close())
        return self._call(link.channel, method)

    def _call(self, channel: Any, method: str) -> Dialled:
        rpc = channel.stream_stream(f"/{SERVICE}/{method}")(metadata=self._caller)
        return Dialled(rpc, self._counter, self._timing.round_timeout_s)

    # ── serving ───────────────────────────────────────────────────────────────────────────────────

    def _methods(self) -> dict[str, Any]:
        # Streams both ways, whatever the service says: on the wire it is the same, and here all
        # streams are alike.
        ends: dict[str, Callable[[Link, Served], Awaitable[None]]] = {
            "Control": self._serve_control,
            "Exchange": self._transfers.serve_exchange,
            "Pull": self._transfers.serve_pull,
            "Push": self._transfers.serve_push,
            "PassOn": self._transfers.serve_pass_on,
        }
        methods = {
            name: grpc.stream_stream_rpc_method_handler(partial(self._serve, end))
            for name, end in ends.items()
        }
        return {"Hello": grpc.unary_unary_rpc_method_handler(self._serve_hello), **methods}

    async def _serve_hello(self, request: bytes, context: Any) -> bytes:
        if self._stopping:
            await context.abort(grpc.StatusCode.UNAVAILABLE, "leaving")
        try:
            theirs, mine = decode_hello(request), self._hello()
        except PeerError as fault:
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, str(fault)[:REASON_LIMIT])
        if theirs.peer != mine.peer:
            host = host_of(context.peer())
            address = seen_from(theirs.address, host)
            reason = self._links.agree(mine, theirs, address)
            if reason:
                mine = replace(mine, refusal=reason)
            else:
                self._links.admit(theirs.peer, address, host)
        return encode_hello(mine)

    async def _serve(
        self, end: Callable[[Link, Served], Awaitable[None]], _: object, context: Any
    ) -> None:
        """The server's end of every stream: who calls, then what it does; a fault becomes the RPC's
        status."""
        code = grpc.StatusCode.FAILED_PRECONDITION
        try:
            caller = decode_id(dict(context.invocation_metadata()).get(CALLER, b""))
            link = self._links.get(caller)
            if link is None or self._stopping:
                raise PeerError(f"{caller} is not known here: say hello first")
            code = grpc.StatusCode.INVALID_ARGUMENT
            link.busy += 1
            try:
                await end(link, Served(context, self._counter, self._timing.round_timeout_s))
            finally:
                link.busy -= 1
            return
        except PeerError as fault:
            reason = str(fault)
        except Exception as fault:
            code, reason = grpc.StatusCode.INTERNAL, type(fault).__name__
            log.debug("serving %s", context.peer(), exc_info=True)
        log.debug("refused %s: %s", context.peer(), reason)
        await context.abort(code, reason[:REASON_LIMIT])

    async def _serve_control(self, link: Link, stream: Served) -> None:
        await stream.accept()
        await self._links.converse(link, stream)

    # ── dialling ──────────────────────────────────────────────────────────────────────────────────

    def _hello(self) -> Hello:
        return replace(self._handler.hello(), address=self._address)

    def _begin_dial(self, address: str, seed: str, contact: PeerId | None) -> None:
        if address not in self._dials:
            self._dials[address] = task = self._spawn(self._dial(address, seed, contact))
            task.add_done_callback(lambda _: self._dials.pop(address, None))

    async def _watch(self) -> None:
        """Every beat: dial the peers that others told us of, forget those that are long gone."""
        while True:
            for id, address in self._handler.contacts():
                if not self._is_dialled(id):
                    self._begin_dial(address, "", id)
            self._links.tidy(self._timing.evict_after_s)
            await asyncio.sleep(self._timing.beat_s)

    def _is_dialled(self, id: PeerId) -> bool:
        link = self._links.get(id)
        return link is not None and link.dialled

    async def _dial(self, address: str, seed: str, contact: PeerId | None) -> None:
        """Keep a control stream to an address: a seed's for ever, a contact's as long as it is
        one."""
        failures = 0
        while contact is None or (
            not self._is_dialled(contact) and contact in dict(self._handler.contacts())
        ):
            verdict = await self._visit(address, seed)
            if verdict is VisitOutcome.OURSELVES or self._stopping:
                return
            beats = NEXT_VISIT[verdict]
            if verdict is VisitOutcome.FAILED:
                beats = min(beats, NEXT_VISIT[VisitOutcome.LINKED] * 2**failures)
            failures = min(failures + 1, 10) if verdict is VisitOutcome.FAILED else 0
            await asyncio.sleep(self._timing.beat_s * beats * self._random.uniform(0.5, 1.0))

    async def _visit(self, address: str, seed: str) -> VisitOutcome:
        # a dead control stream is dialled again soon
        channel = self._channel(address, self._quiet_s / 2)
        try:
            return await self._greet(channel, address, seed)
        except PeerError as fault:
            log.debug("%s: %s", address, fault)
        except Exception:
            log.debug("%s", address, exc_info=True)
        finally:
            await channel.close()
        return VisitOutcome.FAILED

    async def _greet(self, channel: Any, address: str, seed: str) -> VisitOutcome:
        mine = self._hello()
        call = channel.unary_unary(f"/{SERVICE}/Hello")(
            encode_hello(mine), timeout=self._timing.evict_after_s
        )
        theirs = decode_hello(await within(call, None))
        if theirs.peer == mine.peer:
            if seed:
                self._handler.itself(seed)
            return VisitOutcome.OURSELVES
        if self._links.agree(mine, theirs, address, seed):
            return VisitOutcome.REFUSED
        if self._is_dialled(theirs.peer):
            return VisitOutcome.DUPLICATE
        link = self._links.admit(
            theirs.peer, address, parse_address("address", address)[0], dialled=True
        )
        try:
            with self._call(channel, "Control") as stream:
                await stream.accepted()
                await self._links.converse(link, stream, linger=True)
        finally:
            link.dialled = False
        return VisitOutcome.LINKED
