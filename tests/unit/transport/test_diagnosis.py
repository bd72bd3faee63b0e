"""Why a hello got no answer: told by real dials, at each kind of place where no learner is."""

from __future__ import annotations

import asyncio
import socket
import ssl
import struct
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any

import pytest

from mend_optim.codecs.packing import fresh
from mend_optim.errors import PeerError
from mend_optim.protocol.timing import Timing
from mend_optim.protocol.unreached import Unreached
from mend_optim.runtime.resolver import resolve
from mend_optim.transport import server as room
from mend_optim.transport.connection import SERVICE
from mend_optim.transport.diagnosis import is_distrust, why_unreached
from mend_optim.transport.grpc_transport import Transport
from mend_optim.transport.security import probe
from mend_optim.transport.stream import RpcFailed
from tests.unit.transport.recorder import LIMIT, Recorder

grpc = room.grpc  # not imported here: its first importer decides about its fork handlers
HOST = "127.0.0.1"
TIMING = Timing(beat_s=0.1, round_timeout_s=5.0, evict_after_s=1.0)

Serve = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Any]


def address_of(server: asyncio.Server) -> str:
    return f"{HOST}:{server.sockets[0].getsockname()[1]}"


@asynccontextmanager
async def tcp(serve: Serve, **options: Any) -> AsyncIterator[str]:
    server = await asyncio.start_server(serve, HOST, 0, **options)
    try:
        yield address_of(server)
    finally:
        server.close()


async def _speak_http1(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await reader.read(1)
    writer.write(b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n")
    writer.close()


async def _speak_first(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    writer.write(b"SSH-2.0-OpenSSH_9\r\n")
    await reader.read()
    writer.close()


async def _hang_up(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    writer.close()


async def _reset(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    connection = writer.get_extra_info("socket")
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    writer.close()


async def _stay_silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while await reader.read(1000):
        pass
    writer.close()


def tls() -> AbstractAsyncContextManager[str]:
    """A server that wants TLS. It needs no certificate to refuse one who does not speak it."""
    return tcp(_stay_silent, ssl=ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER))


@asynccontextmanager
async def closed_port() -> AsyncIterator[str]:
    """A port that is bound, so that nobody else takes it, and at which nobody listens."""
    with socket.socket() as bound:
        bound.bind((HOST, 0))
        yield f"{HOST}:{bound.getsockname()[1]}"


@asynccontextmanager
async def no_name() -> AsyncIterator[str]:
    yield "no-such-host.invalid:1"


@asynccontextmanager
async def serving(*handlers: grpc.GenericRpcHandler) -> AsyncIterator[str]:
    """A gRPC server of these handlers."""
    server = grpc.aio.server()
    server.add_generic_rpc_handlers(handlers)
    port = server.add_insecure_port(f"{HOST}:0")
    await server.start()
    try:
        yield f"{HOST}:{port}"
    finally:
        await server.stop(0)


async def _babble(request: bytes, context: object) -> bytes:
    return b"\xff"


def other_hello() -> AbstractAsyncContextManager[str]:
    """A service of our name whose answer cannot be read."""
    hello = {"Hello": grpc.unary_unary_rpc_method_handler(_babble)}
    return serving(grpc.method_handlers_generic_handler(SERVICE, hello))


@asynccontextmanager
async def full() -> AsyncIterator[str]:
    """A port whose queue of connections is full: what else is sent to it is lost, as behind a
    firewall that drops packets."""
    with socket.socket() as listening, socket.socket() as first, socket.socket() as second:
        listening.bind((HOST, 0))
        listening.listen(0)
        for queued in (first, second):
            queued.setblocking(False)
            queued.connect_ex(listening.getsockname())
        yield f"{HOST}:{listening.getsockname()[1]}"


PLACES: dict[str, tuple[Callable[[], AbstractAsyncContextManager[str]], Unreached]] = {
    "closed port": (closed_port, Unreached.REFUSED),
    "no such name": (no_name, Unreached.NAME),
    "TLS": (tls, Unreached.PROTOCOL),
    "HTTP/1": (lambda: tcp(_speak_http1), Unreached.PROTOCOL),
    "ssh": (lambda: tcp(_speak_first), Unreached.PROTOCOL),
    "hangs up": (lambda: tcp(_hang_up), Unreached.PROTOCOL),
    "resets": (lambda: tcp(_reset), Unreached.PROTOCOL),
    "another gRPC service": (serving, Unreached.PROTOCOL),
    "a hello that cannot be read": (other_hello, Unreached.PROTOCOL),
    "silent": (lambda: tcp(_stay_silent), Unreached.MUTE),
    "full": (full, Unreached.ANSWER),
}


@pytest.mark.parametrize("place", PLACES)
def test_a_dial_tells_why_it_failed(place: str, monkeypatch: pytest.MonkeyPatch) -> None:
    there, cause = PLACES[place]
    monkeypatch.setattr(probe, "PATIENCE_S", 0.5)

    async def dial() -> None:
        learner = Recorder("a")
        async with there() as seed:
            transport = Transport(
                learner,
                listen=None,
                advertise=None,
                seeds=[seed],
                timing=TIMING,
                limit=[LIMIT].__getitem__,
                allocate=fresh,
                resolve=resolve,
            )
            await transport.start()
            try:
                await learner.until(lambda: learner.of("unreached"))
            finally:
                await transport.stop()
            assert learner.of("unreached")[0] == (seed, cause)
            assert learner.of("refused") == learner.of("met") == []

    asyncio.run(dial())


@pytest.mark.parametrize(
    ("details", "cause"),
    [
        ("DNS resolution failed for b:1: C-ares status is not ARES_SUCCESS", Unreached.NAME),
        ("Failed to connect to remote host: No route to host", Unreached.ROUTE),
        ("connect: Network is unreachable (101)", Unreached.ROUTE),
        ("this learner is leaving", Unreached.LEAVING),
        ("Hostname Verification Check failed.", Unreached.IMPOSTOR),
        ("Peer name n.mend-optim.invalid is not in peer certificate", Unreached.IMPOSTOR),
        ("words of a gRPC that is not written yet", Unreached.ANSWER),
    ],
)
def test_words_that_no_dial_here_brings_about(details: str, cause: Unreached) -> None:
    assert why_unreached(PeerError(f"UNAVAILABLE: {details}")) is cause


def test_every_cause_has_a_remedy() -> None:
    assert all(cause.remedy for cause in Unreached)


def test_only_grpc_says_that_a_certificate_is_not_accepted() -> None:
    """A peer's own words don't count."""
    words = "Tls handshake failed: SSL_ERROR_SSL: CERTIFICATE_VERIFY_FAILED"
    assert is_distrust(RpcFailed("UNAVAILABLE", words))
    assert not is_distrust(RpcFailed("UNKNOWN", words))
    assert not is_distrust(RpcFailed("UNAVAILABLE", "Socket closed"))
