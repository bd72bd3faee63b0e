"""One end of an RPC: the bytes that it counts, and whether the other end took it."""

from __future__ import annotations

import asyncio

import pytest

from mend_optim.errors import PeerError
from mend_optim.transport.stream import Counter, Dialled, Rpc


class Slow:
    """Takes a frame on its way, and does not say so."""

    def __init__(self) -> None:
        self.taken = asyncio.Event()

    async def write(self, frame: bytes) -> None:
        self.taken.set()
        await asyncio.Event().wait()


def test_a_frame_on_its_way_is_counted_though_nobody_waits_for_it() -> None:
    """The other end may have all it wants of it, and hang up."""
    counter = Counter()

    async def send() -> None:
        slow = Slow()
        writing = asyncio.ensure_future(Rpc(slow, counter, patience_s=60).write(bytes(100)))
        await slow.taken.wait()
        writing.cancel()
        await asyncio.wait({writing})

    asyncio.run(send())
    assert (counter.sent, counter.received) == (100, 0)


class Answered:
    """An RPC whose other end has answered; `over`: with its end, and the reason."""

    def __init__(self, over: bool) -> None:
        self.over = over

    async def initial_metadata(self) -> tuple[()]:
        return ()

    def done(self) -> bool:
        return self.over

    async def details(self) -> str:
        return "go away"


def test_a_stream_that_is_over_at_once_was_not_accepted() -> None:
    """gRPC returns metadata of a refused RPC, too."""
    asyncio.run(Dialled(Answered(over=False), Counter(), patience_s=60).accepted())
    refused = Dialled(Answered(over=True), Counter(), patience_s=60)
    with pytest.raises(PeerError, match="did not accept the stream: go away"):
        asyncio.run(refused.accepted())
