"""A connection from a learner back to its surveyor, to see whether others could make one.

Nobody can use a learner to reach a third party. It dials the IP address alone that the surveyor's
own connection comes from, and never a name. It sends nothing there. It reads the few bytes of a
token that it has drawn itself and told the surveyor over the connection that they have, and lets
go. So where something else listens, which can happen if several machines share an address, that
sees a connection come and go. The surveyor hears no byte of what it said."""

from __future__ import annotations

import asyncio
import ipaddress

from mend_optim.errors import PeerError
from mend_optim.protocol.surveyed import DialBack
from mend_optim.transport.limits import check
from mend_optim.transport.stream import within

#: Seconds until the connection must be there, and then until the token must.
DIAL_S = 3.0


def check_target(ip: str) -> None:
    """Raise `PeerError` unless a surveyor's address is that of one machine."""
    try:
        target = ipaddress.ip_address(ip)
    except ValueError:
        raise PeerError("the surveyor's connection has no IP address to dial back to") from None
    is_one = not (target.is_multicast or target.is_unspecified)
    check(is_one, f"{ip} is not the address of one machine")


async def dial_back(ip: str, port: int, token: bytes, patience_s: float = DIAL_S) -> DialBack:
    """Connect, and read the token. Says nothing.

    Args:
        ip: The IP address of the surveyor's own connection.
        port: Where the surveyor says that it listens.
        token: The bytes that it must say there.
        patience_s: How long each of the two steps may take.
    """
    check_target(ip)
    try:
        connecting = asyncio.open_connection(ip, port, limit=len(token))
        reader, writer = await within(connecting, patience_s)
    except PeerError as fault:
        return _why(fault.__cause__)
    try:
        said = await within(reader.readexactly(len(token)), patience_s)
    except PeerError:
        return DialBack.OTHER
    finally:
        # At once, and without waiting for what may still come.
        writer.transport.abort()
    return DialBack.REACHED if said == token else DialBack.OTHER


def _why(cause: BaseException | None) -> DialBack:
    if isinstance(cause, ConnectionRefusedError):
        return DialBack.REFUSED
    if cause is None or isinstance(cause, TimeoutError):
        return DialBack.ANSWER
    return DialBack.ROUTE
