"""Turns of those that wait to dial: so many may do so at a time."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from heapq import heappop, heappush


class DialTurns:
    """Of those that wait, one that has failed less often has the next turn, and of these the one
    that came first.

    Args:
        most: How many have a turn at a time.
    """

    def __init__(self, most: int) -> None:
        self._free = most
        self._waiting: list[tuple[int, int, asyncio.Future[None]]] = []
        self._arrivals = itertools.count()

    @asynccontextmanager
    async def one(self, failures: int) -> AsyncIterator[None]:
        """Have a turn inside. `failures`: how often the caller has failed so far."""
        await self._take(failures)
        try:
            yield
        finally:
            self._give_back()

    async def _take(self, failures: int) -> None:
        if self._free:
            self._free -= 1
            return
        turn = asyncio.get_running_loop().create_future()
        heappush(self._waiting, (failures, next(self._arrivals), turn))
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():
                self._give_back()  # it was given, and nobody is left to use it
            raise

    def _give_back(self) -> None:
        while self._waiting:
            *_, turn = heappop(self._waiting)
            if not turn.done():
                turn.set_result(None)
                return
        self._free += 1
