"""Finds out why no hello succeeds at an address. To a caller, gRPC says no more than that a socket
was closed, whatever is wrong with either certificate."""

from __future__ import annotations

import asyncio
import ssl
from contextlib import suppress

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
    host, port = parse_address("address", address)
    try:
        _, writer = await asyncio.wait_for(
            asyncio.open_connection(host, port, ssl=context, server_hostname=ANY_LEARNER),
            PATIENCE_S,
        )
    except ssl.SSLCertVerificationError as error:
        return _VERDICTS.get(error.verify_code, Unreached.AUTHORITY)
    except (ssl.SSLError, ConnectionResetError):
        return Unreached.NO_TLS
    except (OSError, asyncio.TimeoutError):
        return None
    writer.close()
    with suppress(OSError, asyncio.TimeoutError):
        await asyncio.wait_for(writer.wait_closed(), PATIENCE_S)
    # the certificate there is right, so it is ours that is not taken
    return Unreached.DECLINED


async def speaks_tls(address: str) -> bool:
    """Whether what listens at an address begins a TLS handshake. Believes no certificate, and says
    nothing to it."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    context.set_alpn_protocols(["h2"])
    return await _opens(address, context, PATIENCE_S)


async def accepts(address: str) -> bool:
    """Whether a connection to an address can be opened. Says nothing to what listens there."""
    return await _opens(address, None, OPEN_S)


async def _opens(address: str, context: ssl.SSLContext | None, patience_s: float) -> bool:
    host, port = parse_address("address", address)
    try:
        _, writer = await asyncio.wait_for(
            asyncio.open_connection(host, port, ssl=context), patience_s
        )
    except (OSError, asyncio.TimeoutError):
        return False
    writer.close()
    with suppress(OSError, asyncio.TimeoutError):
        await asyncio.wait_for(writer.wait_closed(), PATIENCE_S)
    return True
