"""The port of a surveyor that a learner dials back: whoever connects is told the token."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

from mend_optim.errors import UsageError, require
from mend_optim.transport.address import parse_address
from mend_optim.transport.wire_survey import LEAST_PORT


def listen(argument: str, address: str) -> socket.socket:
    """Listen at an address; without a host everywhere. Port 0 takes any that is free.

    Args:
        argument: The name of the user's argument, for errors.
        address: Where to listen.

    Raises:
        UsageError: The address is none, or this machine cannot listen there.
    """
    host, port = parse_address(argument, address)
    remedy = "learners dial no port below, where other services are"
    is_right = not port or port >= LEAST_PORT
    require(is_right, argument, address, f"an address with a port >= {LEAST_PORT}", remedy)
    try:
        if not host and socket.has_dualstack_ipv6():
            return socket.create_server(("", port), family=socket.AF_INET6, dualstack_ipv6=True)
        kind = socket.AF_INET6 if ":" in host else socket.AF_INET
        return socket.create_server((host, port), family=kind)
    except OSError as error:
        raise UsageError(
            f"{argument} must be an address of this machine with a free port, got {address!r}: "
            f"{error}; if a learner listens there, stop it, or check another port"
        ) from None


class TokenPort:
    """Tells the token to whoever connects, once it is known."""

    def __init__(self) -> None:
        self._token: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()

    def tell(self, token: bytes) -> None:
        """Tell this token from now on."""
        if not self._token.done():
            self._token.set_result(token)

    async def meet(self, _: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Serve one connection. The learner ends it."""
        with suppress(OSError):
            await asyncio.wait({self._token})
            writer.write(self._token.result())
            await writer.drain()
        writer.close()


@asynccontextmanager
async def serving(listening: socket.socket) -> AsyncIterator[TokenPort]:
    """Serve those that connect there, as long as the context lasts. The socket stays open."""
    port = TokenPort()
    server = await asyncio.start_server(port.meet, sock=listening.dup())
    try:
        yield port
    finally:
        server.close()
        port.tell(b"")
