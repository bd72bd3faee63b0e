"""How fast a peer's control messages and the headers of its bulky messages are read, and all hellos
together."""

from __future__ import annotations

import asyncio

#: Control messages that are read in a second, and how many at once after a pause.
RATE = 500.0
BURST = 1000.0
#: Bytes of a control message that cost as much as one message more; and of a hello, which has the
#: name of every parameter.
UNIT = 1024
HELLO_UNIT = 16 * 1024
#: Entries of a beat's lists that cost as much as one message more: each takes microseconds to
#: decode, however few bytes it has.
ENTRIES = 8
#: The least cost of a frame of a bulky message, in control messages, and the bytes of one that
#: costs nothing. Honest peers send few that are smaller: a header, and the end of each section.
FRAME_COST = 0.25
LARGE_FRAME = 16 * 1024


class Inflow:
    """Makes the reader of a peer's streams wait, so that no peer can keep the engine busy.

    gRPC reads no further while its reader waits, and the peer's messages stay with the peer. None
    is lost. No honest peer comes near the rate: it sends a beat per `beat_s`, and a few messages
    for each round of a fragment.

    Args:
        unit: Bytes that cost as much as one message more.
    """

    def __init__(self, unit: int = UNIT) -> None:
        self._unit = unit
        self._left = BURST
        self._looked_at = 0.0

    def is_overrun(self) -> bool:
        """Return whether so much waits that more of it had better be refused."""
        self._refill()
        return self._left < -BURST

    async def take(self, nbytes: int) -> None:
        """Take note of a message of so many bytes, and wait as long as too much has come. Do so
        before it is decoded: one that is refused costs as much."""
        await self._spend(1 + nbytes / self._unit)

    async def take_entries(self, count: int) -> None:
        """Take note of so many entries in the lists of a message that was decoded, and wait as long
        as too much has come."""
        await self._spend(count / ENTRIES)

    async def take_header(self, nbytes: int) -> None:
        """Take note of the header of a bulky message, and wait as long as too much has come. Do so
        before it is decoded."""
        await self._spend(max(FRAME_COST, nbytes / self._unit))

    async def take_chunk(self, nbytes: int) -> None:
        """Take note of a chunk of a bulky message, and wait as long as too many small ones have
        come."""
        if nbytes < LARGE_FRAME:
            await self._spend(FRAME_COST)

    async def _spend(self, cost: float) -> None:
        self._refill()
        self._left -= cost
        if self._left < 0:
            await asyncio.sleep(-self._left / RATE)

    def _refill(self) -> None:
        now = asyncio.get_running_loop().time()
        self._left = min(BURST, self._left + RATE * (now - self._looked_at))
        self._looked_at = now
