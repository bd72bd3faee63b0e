"""One end of an RPC: the bytes that it counts."""

from __future__ import annotations

import asyncio

from mend_optim.transport.stream import Counter, Rpc


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
