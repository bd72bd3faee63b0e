"""Finds out why no hello succeeds at an address. To a caller, gRPC says no more than that a socket
was closed, whatever is wrong with either certificate."""

from __future__ import annotations

import asyncio
import ssl
from contextlib import suppress
from typing import Any

from mend_optim.protocol.unreached import Unreached
from mend_optim.transport.address import parse_address
from mend_optim.transport.security.names import ANY_LEARNER

#: Seconds that a probe may take.
PATIENCE_S = 5.0
#: Seconds in which a connection must open: after one, a first packet that was lost is sent again.
#: Where a machine is off, each visit waits as long.
OPEN_S = 3.0
#: OpenSSL's numbers of what is wrong with a certificate.
_VERDICTS = {9: Unreached.EARLY, 10: Unreached.EXPIRED, 62: Unreached.NO_LEARNER}
#: A connection was closed before it said anything. One that is refused has not been open.
_CLOSED = (ConnectionResetError, ConnectionAbortedError, BrokenPipeError)


async def probe(address: str, authorities: bytes) -> Unreached | None:
    """Dial, and look at the certificate there. Returns what is wrong with it; None if nothing
    is, or nobody answers.

    Args:
        address: Where to dial.
        authorities: Those that this learner trusts, in PEM.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    # Between the certificates, there may be words in any language.
    context.load_verify_locations(cadata=authorities.decode("ascii", "ignore"))
    context.set_alpn_protocols(["h2"])
    try:
        await _dial(address, PATIENCE_S, ssl=context, server_hostname=ANY_LEARNER)
    except ssl.SSLCertVerificationError as error:
        return _VERDICTS.get(error.verify_code, Unreached.AUTHORITY)
    except ssl.SSLError:
        return Unreached.NO_TLS
    except _CLOSED:
        return Unreached.CLOSED
    except (OSError, asyncio.TimeoutError):
        return None
    # the certificate there is right, so it is ours that is not taken
    return Unreached.DECLINED


async def probe_without_credentials(address: str) -> Unreached | None:
    """Dial, and look whether what is there begins a TLS handshake. Believes no certificate. Returns
    what can be seen; None if that is nothing."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    context.set_alpn_protocols(["h2"])
    try:
        await _dial(address, PATIENCE_S, ssl=context)
    except _CLOSED:
        return Unreached.CLOSED
    except (OSError, asyncio.TimeoutError):
        return None
    return Unreached.WANTS_TLS


async def accepts(address: str) -> bool:
    """Whether a connection to an address can be opened. Says nothing to what listens there."""
    try:
        await _dial(address, OPEN_S)
    except (OSError, asyncio.TimeoutError):
        return False
    return True


async def _dial(address: str, patience_s: float, **options: Any) -> None:
    """Open a connection, and close it. Raises `OSError` or `asyncio.TimeoutError`."""
    host, port = parse_address("address", address)
    opening = asyncio.open_connection(host, port, **options)
    _, writer = await asyncio.wait_for(opening, patience_s)
    writer.close()
    with suppress(OSError, asyncio.TimeoutError):
        await asyncio.wait_for(writer.wait_closed(), PATIENCE_S)
