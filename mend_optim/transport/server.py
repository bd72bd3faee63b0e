"""The listening side of a learner: its port, the hellos that it answers, and the streams that its
peers open."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Sequence
from contextlib import suppress
from functools import partial
from typing import Any

from mend_optim.errors import PeerError, require
from mend_optim.protocol.handshake import Hello
from mend_optim.protocol.timing import Timing
from mend_optim.transport.address import format_address, host_of, parse_address, seen_from
from mend_optim.transport.background_log import BackgroundLog
from mend_optim.transport.connection import CALLER, SERVICE
from mend_optim.transport.control import Links
from mend_optim.transport.diagnosis import LEAVING
from mend_optim.transport.first_messages import FirstMessages
from mend_optim.transport.forked_sockets import PORTS
from mend_optim.transport.grpc_options import server_options
from mend_optim.transport.grpc_setup import grpc
from mend_optim.transport.inflow import HELLO_UNIT, Inflow
from mend_optim.transport.link import Link
from mend_optim.transport.own_addresses import own_addresses
from mend_optim.transport.security.channels import Security
from mend_optim.transport.seeking import Resolve
from mend_optim.transport.statuses import REASON_LIMIT, status_of
from mend_optim.transport.stream import Counter, Served
from mend_optim.transport.surveying import SurveyServer
from mend_optim.transport.transfers import TransferServer
from mend_optim.transport.watching import WatchServer
from mend_optim.transport.wire import decode_hello, decode_id, encode_hello

log = BackgroundLog("mend_optim.transport")

#: Seconds that a stopped server lets answers end that were just given.
GRACE_S = 0.1
#: Why a hello is not looked at.
OVERRUN = "too many hellos come at a time; try again"
#: Seconds between the first two attempts to listen anew, and at most between any two.
REBIND_S = 0.05
MOST_REBIND_S = 5.0
#: Seconds that the look after the credentials waits for a port that is taken.
HELD_UP_S = 1.0
LOST = (
    "%s: another process has taken port %d while this learner listened anew with new credentials: "
    "nobody can dial it until the port is free"
)
PARTLY_LOST = (
    "%s: cannot listen with new credentials on port %d of %s, where it did before: another process "
    "has the port, or the address is this machine's no more"
)
FAILED = "%s: could not listen on port %d with new credentials, and tries it again"
FOUND = "%s: listens on port %d again"

End = Callable[[Link, Served], Awaitable[None]]
"""The server's end of a stream."""


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
        security: Opens the port, and knows the callers.
        first_messages: Reads the hellos.
        watch: Answers those that only watch.
        survey: Answers those that measure the way here.
        called: Is called when a peer has opened a control stream.
        hung_up: Is called when that has ended.
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
        security: Security,
        first_messages: FirstMessages,
        watch: WatchServer,
        survey: SurveyServer,
        called: Callable[[], None],
        hung_up: Callable[[], None],
    ) -> None:
        self._links = links
        self._watch = watch
        self._called = called
        self._hung_up = hung_up
        self._survey = survey
        self._transfers = transfers
        self._security = security
        self._timing = timing
        self._counter = counter
        self._hello = hello
        #: Anybody may say hello, under any name.
        self._hellos = Inflow(HELLO_UNIT)
        self._first_messages = first_messages
        self._learners = learners
        self._streams = streams
        #: The servers that listen, each at one address.
        self._servers: list[Any] = []
        #: Servers that listen no more, and the tasks that end them.
        self._leaving: dict[asyncio.Task[None], Any] = {}
        self._hosts: Sequence[str] = ()
        self._port = 0
        #: The credentials were renewed since the first of the servers took its own.
        self._is_outdated = False
        #: Listens anew, after the credentials were renewed.
        self._returning: asyncio.Task[None] | None = None

    async def start(self, listen: str, listen_from: str, resolve: Resolve) -> int:
        """Listen; return the port. Raises `UsageError` if this machine cannot listen there.

        Args:
            listen: The address.
            listen_from: The user's name for it.
            resolve: Finds the addresses of a name. It must not block the loop.
        """
        host, port = parse_address(listen_from, listen)
        if host:
            await self._listen_at(await own_addresses(host, port, resolve), port)
        else:
            # everywhere, whether the machine has IPv6 or not
            await self._listen_at(["::"], port)
            if not self._port:
                await self._listen_at(["0.0.0.0"], port)
        require(
            self._port > 0,
            listen_from,
            listen,
            "an address of this machine with a free port",
            "another process may use the port, or the host is not this machine's; port 0 takes any"
            " that is free",
        )
        PORTS.add(self._port)
        return self._port

    async def _listen_at(self, hosts: Sequence[str], port: int) -> None:
        """Listen on the same port of all these hosts, or of none. If gRPC chooses the port, another
        program may have it at some of them; these are left out."""
        for host in hosts:
            bound = await self._serve_at(host, self._port or port)
            if bound:
                self._hosts = [*self._hosts, host]
                self._port = bound
            elif port:
                await self._give_up()
                return

    async def _give_up(self) -> None:
        """Free the port where it could be had."""
        for server in self._servers:
            await server.stop(None)
        self._servers.clear()
        self._hosts, self._port = (), 0

    async def _serve_at(self, host: str, port: int) -> int:
        """Serve there, with the present credentials. Returns the port; 0 if it cannot be had."""
        options = server_options(self._timing, self._learners, self._streams())
        server = grpc.aio.server(options=options)
        server.add_generic_rpc_handlers(
            (grpc.method_handlers_generic_handler(SERVICE, self._methods()),)
        )
        bound = 0
        if not self._servers:
            self._is_outdated = False
        with suppress(RuntimeError):
            bound = self._security.bind(server, format_address(host, port))
        if bound:
            # First this: `stop` may come while it starts.
            self._servers.append(server)
            await _whole(server.start())
        return bound

    async def rebind(self) -> None:
        """Listen anew, with the present credentials. Streams that are open stay with the former
        server until they end, or until a stream's patience is over.

        If another process takes the port in between, attempts go on in the background. They take
        the credentials that are present by then."""
        if not self._port:
            return
        self._is_outdated = True
        if self._returning is None or self._returning.done():
            name = self._hello().peer.name
            self._returning = asyncio.get_running_loop().create_task(self._return(name))
        await asyncio.wait({self._returning}, timeout=HELD_UP_S)

    async def returning(self) -> None:
        """Wait until it listens after the last `rebind`. To cancel this wait does not stop it."""
        if self._returning:
            await asyncio.shield(self._returning)

    async def _return(self, name: str) -> None:
        # The credentials may be renewed again while a server with the former ones starts.
        while self._is_outdated:
            self._let_go()
            # the former server lets go of the port at once, but not before it has run
            await asyncio.sleep(0)
            await self._serve_again(name)

    def _let_go(self) -> None:
        """Listen no more. Streams that are open stay."""
        patience_s = self._timing.round_timeout_s
        for former in self._servers:
            leaving = asyncio.get_running_loop().create_task(former.stop(patience_s))
            self._leaving[leaving] = former
            leaving.add_done_callback(self._leaving.pop)
        self._servers.clear()

    async def _serve_again(self, name: str) -> None:
        """Serve where it served before, as soon as that can be."""
        is_told = has_failed = False
        missing = self._hosts
        for pause_s in pauses():
            if self._servers and self._is_outdated:
                # They wait for the others with credentials that were renewed meanwhile.
                self._let_go()
                await asyncio.sleep(0)
                missing = self._hosts
            try:
                missing = [one for one in missing if not await self._serve_at(one, self._port)]
                if not missing:
                    break
            except Exception:
                if not has_failed:
                    has_failed = True
                    log.exception(FAILED, name, self._port)
                self._let_go()
                missing = self._hosts
            if pause_s == MOST_REBIND_S and not is_told:
                is_told = True
                if self._servers:
                    log.warning(PARTLY_LOST, name, self._port, ", ".join(missing))
                else:
                    log.warning(LOST, name, self._port)
            await asyncio.sleep(pause_s)
        if is_told:
            log.info(FOUND, name, self._port)

    @property
    def port(self) -> int:
        """The port that it listens on; 0 before `start`."""
        return self._port

    async def stop(self) -> None:
        """Stop listening, and end the streams that are open."""
        if self._returning:
            self._returning.cancel()
            await asyncio.wait([self._returning])
        for server in (*self._servers, *self._leaving.values()):
            await server.stop(GRACE_S)
        PORTS.discard(self._port)

    def _methods(self) -> dict[str, Any]:
        # Every method is a stream both ways, whatever the service says: on the wire that is the
        # same. All streams can be handled alike, and no message is read before it is wanted.
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
        return {
            "Hello": grpc.stream_stream_rpc_method_handler(self._serve_hello),
            "Watch": grpc.stream_stream_rpc_method_handler(self._watch.serve),
            "Survey": grpc.stream_stream_rpc_method_handler(self._survey.serve),
            **methods,
        }

    async def _serve_hello(self, _: object, context: Any) -> None:
        if self._hellos.is_overrun():
            await context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, OVERRUN)
        code, reason = grpc.StatusCode.INVALID_ARGUMENT, ""
        try:
            theirs = await self._read_hello(context)
            mine = self._hello()
        except PeerError as fault:
            code, reason = status_of(fault, code), str(fault)
        if reason:
            self._links.refusals.add("", reason)
            await context.abort(code, reason[:REASON_LIMIT])
        if self._links.closing:
            await context.abort(grpc.StatusCode.UNAVAILABLE, LEAVING)
        await context.write(encode_hello(self._answer(mine, theirs, context)))

    async def _read_hello(self, context: Any) -> Hello:
        """Return the caller's hello, which may speak in that name. Raises `PeerError`."""
        request = await self._first_messages.read(context)
        await self._hellos.take(len(request))
        theirs = decode_hello(request)
        self._security.check_caller(context, theirs.peer.name)
        return theirs

    def _answer(self, mine: Hello, theirs: Hello, context: Any) -> Hello:
        """Return the answer to a hello, and admit its learner if the two may train together."""
        if theirs.peer != mine.peer:
            host = host_of(context.peer())
            address = seen_from(theirs.address, host)
            reason = self._links.agree(mine, theirs, address)
            if reason:
                mine = self._links.answer(mine, theirs, reason)
            else:
                may_dial = address and self._security.may_dial(address)
                self._links.admit(theirs.peer, address if may_dial else "", host)
        return mine

    async def _serve(self, end: End, _: object, context: Any) -> None:
        """Run the server's end of a stream. A fault becomes the RPC's status."""
        code = grpc.StatusCode.FAILED_PRECONDITION
        link: Link | None = None
        try:
            caller = decode_id(dict(context.invocation_metadata()).get(CALLER, b""))
            certificate = self._security.check_caller(context, caller.name)
            link = self._links.get(caller)
            if link is None or self._links.closing:
                raise PeerError(f"peer {caller} must say hello before it opens a stream")
            link.certificate = certificate
            code = grpc.StatusCode.INVALID_ARGUMENT
            with link.serving(self._streams()):
                await end(link, Served(context, self._counter, self._timing.round_timeout_s))
            return
        except PeerError as fault:
            code = status_of(fault, code)
            reason = str(fault)
        except Exception as fault:
            # not INTERNAL, by which gRPC itself ends RPCs without a reason
            code = grpc.StatusCode.UNKNOWN
            reason = type(fault).__name__
            log.debug("serving %s", context.peer(), exc_info=True)
        log.debug("refused a stream of %s: %s", context.peer(), reason)
        # strangers choose their names
        self._links.refusals.add(link.id.name if link else "", reason)
        await context.abort(code, reason[:REASON_LIMIT])

    async def _serve_control(self, link: Link, stream: Served) -> None:
        await stream.accept()
        self._called()
        try:
            await self._links.converse(link, stream)
        finally:
            self._hung_up()


async def _whole(starting: Coroutine[Any, Any, None]) -> None:
    """Start a server, also if nobody waits for it any more. gRPC cannot stop one whose start was
    cancelled, and its port would stay taken as long as the process lives."""
    started = asyncio.ensure_future(starting)
    try:
        await asyncio.shield(started)
    finally:
        await asyncio.wait({started})


def pauses() -> Iterator[float]:
    """Seconds between the attempts to listen on a port that is taken."""
    pause_s = REBIND_S
    while True:
        yield pause_s
        pause_s = min(2 * pause_s, MOST_REBIND_S)
