"""A look at learners by somebody that takes no part: the dialling side of Watch."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from mend_optim.errors import PeerError
from mend_optim.protocol.lineage import PeerId
from mend_optim.protocol.sight import Sight
from mend_optim.protocol.timing import Timing
from mend_optim.transport.connection import Connection
from mend_optim.transport.grpc_options import channel_options
from mend_optim.transport.late_events import run_alone
from mend_optim.transport.security.channels import Security
from mend_optim.transport.stream import Counter
from mend_optim.transport.visit import INCARNATION

#: Addresses that are dialled at a time.
AT_A_TIME = 16


def looks(
    addresses: Sequence[str], security: Security, name: str, patience_s: float
) -> dict[str, Sight | PeerError]:
    """Look at the learner at each address, in an event loop of its own.

    Args:
        addresses: host and port of each.
        security: as a learner's.
        name: the watcher's, which its certificate proves.
        patience_s: how long each may take.
    """
    return run_alone(_looks(addresses, security, PeerId(name, INCARNATION), patience_s))


async def _looks(
    addresses: Sequence[str], security: Security, me: PeerId, patience_s: float
) -> dict[str, Sight | PeerError]:
    gate = asyncio.Semaphore(AT_A_TIME)

    async def one(address: str) -> Sight | PeerError:
        async with gate:
            try:
                return await _look(address, security, me, patience_s)
            except PeerError as fault:
                return fault

    found = await asyncio.gather(*map(one, addresses))
    return dict(zip(addresses, found, strict=True))


async def _look(address: str, security: Security, me: PeerId, patience_s: float) -> Sight:
    # A certificate for any learner of the run will do: this shows nothing to the other side.
    options = channel_options(Timing(), patience_s)
    channel = security.channel(address, options, "")
    connection = Connection(channel, me, Counter(), patience_s)
    try:
        return await connection.look(patience_s)
    finally:
        await connection.close()
