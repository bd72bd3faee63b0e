"""The calling side of the gRPC service: one channel to one address, a hello, streams."""

from __future__ import annotations

from typing import Any

from mend_optim.protocol.handshake import Hello
from mend_optim.protocol.lineage import PeerId
from mend_optim.protocol.sight import Sight
from mend_optim.transport.stream import Counter, Dialled, within
from mend_optim.transport.wire import decode_hello, encode_hello, encode_id
from mend_optim.transport.wire_sight import decode_sight, encode_look

#: The service of `protos/peer.proto`.
SERVICE = "mend_optim.Peer"
#: The metadata entry in which every RPC but Hello names its caller.
CALLER = "mend-peer-bin"


class Connection:
    """A channel to a peer's address, on which this learner is the caller.

    Args:
        channel: The gRPC channel. It connects when it is first used.
        caller: This learner.
        counter: Counts the bytes of all streams.
        patience_s: Seconds that a stream may stand still before it fails.
    """

    def __init__(self, channel: Any, caller: PeerId, counter: Counter, patience_s: float) -> None:
        self._channel = channel
        self._metadata = ((CALLER, encode_id(caller)),)
        self._counter = counter
        self._patience_s = patience_s

    async def hello(self, mine: Hello, timeout_s: float) -> Hello:
        """Say hello; return the peer's answer. Raises `PeerError`."""
        method = self._channel.unary_unary(f"/{SERVICE}/Hello")
        call = method(encode_hello(mine), timeout=timeout_s)
        return decode_hello(await within(call, None))

    async def look(self, timeout_s: float) -> Sight:
        """Look at the learner there, without taking part. Raises `PeerError`."""
        method = self._channel.unary_unary(f"/{SERVICE}/Watch")
        call = method(encode_look(), timeout=timeout_s, metadata=self._metadata)
        return decode_sight(await within(call, None))

    def stream(self, method: str) -> Dialled:
        """Open a stream for an RPC of the service."""
        rpc = self._channel.stream_stream(f"/{SERVICE}/{method}")(metadata=self._metadata)
        return Dialled(rpc, self._counter, self._patience_s)

    async def close(self) -> None:
        """Break the streams that are open, and stop connecting."""
        await self._channel.close()
