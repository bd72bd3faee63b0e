"""The memory and the places that peers' transfers may take here.

A peer has one place for each kind of transfer and fragment: a newer one takes the place of an older
one. The offers that arrive share the memory; one for which there is no room waits for its turn
before its bytes are read, so gRPC's flow control holds its sender back.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Hashable
from dataclasses import dataclass, field
from typing import Any, TypeVar

from mend_optim.errors import PeerError
from mend_optim.protocol.lineage import PeerId
from mend_optim.transport.stream import StillError

T = TypeVar("T")
#: Bytes per second below which a transfer uses up its patience.
LEAST_RATE = 10_000
#: A peer that waits for room waits so many times the patience's third part, at most.
TURNS = 2
SUPERSEDED = "a newer transfer for the same fragment took its place"


class BusyError(PeerError):
    """There is no room for the peer's request now. It may try again."""


class Places:
    """One place for each key. A newer piece of work takes the place of an older one."""

    def __init__(self) -> None:
        self._running: dict[Hashable, asyncio.Task[Any]] = {}

    async def run(self, key: Hashable, work: Coroutine[Any, Any, T]) -> T:
        """Do the work. Raises `PeerError` if newer work took its place."""
        older = self._running.pop(key, None)
        if older:
            older.cancel()
        task = asyncio.get_running_loop().create_task(work)
        self._running[key] = task
        try:
            return await task
        except asyncio.CancelledError:
            if self._running.get(key) is not task:
                raise PeerError(SUPERSEDED) from None
            raise
        finally:
            if self._running.get(key) is task:
                del self._running[key]


class Pace:
    """Whether a transfer moves. It may stand still for its patience, which every `LEAST_RATE` bytes
    give back by a second."""

    def __init__(self, patience_s: float) -> None:
        self._patience_s = patience_s
        self._left_s = patience_s
        self._looked_at = asyncio.get_running_loop().time()

    def moved(self, nbytes: int) -> None:
        """Take note of a frame. Raises `StillError` if the transfer is too slow."""
        now = asyncio.get_running_loop().time()
        left_s = self._left_s - (now - self._looked_at) + nbytes / LEAST_RATE
        self._left_s = min(left_s, self._patience_s)
        self._looked_at = now
        if self._left_s < 0:
            raise StillError(
                f"the message came slower than {LEAST_RATE} bytes per second for "
                f"{self._patience_s:g} s"
            )


@dataclass(eq=False)
class _Arrival:
    """An offer that arrives, or waits for room to do so."""

    peer: PeerId
    place: Hashable
    nbytes: int
    task: asyncio.Task[Any]
    admitted: asyncio.Event = field(default_factory=asyncio.Event)
    #: Why it was ended here; empty if it was not.
    reason: str = ""

    def end(self, reason: str) -> None:
        self.reason = reason
        self.task.cancel()

    async def wait(self, seconds: float) -> None:
        """Wait for room; no longer than that."""
        if self.admitted.is_set():
            return
        waiting = asyncio.ensure_future(self.admitted.wait())
        try:
            await asyncio.wait({waiting}, timeout=seconds)
        finally:
            waiting.cancel()


class Receiving:
    """The offers that arrive at this learner.

    Args:
        limit: Returns the bytes that may be on their way at a time, all in all. One offer may
            always be, whatever its size.
        patience_s: How long a sender waits for its bytes to move.
    """

    def __init__(self, limit: Callable[[], int], patience_s: float) -> None:
        self._limit = limit
        self._turn_s = patience_s / (TURNS + 1)
        #: Those that have room, and those that wait for it: the oldest first.
        self._arriving: list[_Arrival] = []
        self._waiting: list[_Arrival] = []

    @property
    def nbytes(self) -> int:
        """Bytes of the offers that have room now."""
        return sum(arrival.nbytes for arrival in self._arriving)

    async def take(
        self,
        peer: PeerId,
        kind: str,
        read: Callable[[Callable[[int, int], Coroutine[Any, Any, None]]], Coroutine[Any, Any, T]],
    ) -> T:
        """Read a message, and return it.

        Args:
            peer: The sender.
            kind: "exchange" or "pass on". Of two exchanges for one fragment the newer stays; what
                is passed on comes one after the other.
            read: Reads it, given a function to await once the fragment and the size are known.

        Raises:
            BusyError: There was no room for it in time, or it had to make room.
            PeerError: A newer one took its place.
        """
        arrivals: list[_Arrival] = []

        async def announce(fragment: int, nbytes: int) -> None:
            arrival = _Arrival(peer, (peer, kind, fragment), nbytes, task)
            arrivals.append(arrival)
            await self._admit(arrival, replaces=kind == "exchange")

        task = asyncio.get_running_loop().create_task(read(announce))
        try:
            return await task
        except asyncio.CancelledError:
            reason = arrivals[0].reason if arrivals else ""
            if reason == SUPERSEDED:
                raise PeerError(reason) from None
            if reason:
                raise BusyError(reason) from None
            raise
        finally:
            for arrival in arrivals:
                self._forget(arrival)

    async def _admit(self, arrival: _Arrival, *, replaces: bool) -> None:
        """Wait until there is room for it."""
        if replaces:
            for older in [*self._arriving, *self._waiting]:
                if older.place == arrival.place:
                    older.end(SUPERSEDED)
                    self._forget(older)
        self._waiting.append(arrival)
        self._fill()
        for _ in range(TURNS):
            await arrival.wait(self._turn_s)
            self._make_room(arrival)
        if not arrival.admitted.is_set():
            raise BusyError(
                f"{self.nbytes} bytes of offers are on their way; there was no room for "
                f"{arrival.nbytes} more (limits.receive_bytes)"
            )

    def _make_room(self, waiter: _Arrival) -> None:
        """The peer that takes up the most gives way to one that has waited for a turn and wants
        less: it may send as slowly as it likes."""
        if waiter.admitted.is_set():
            return
        held: dict[PeerId, int] = {}
        for arrival in self._arriving:
            held[arrival.peer] = held.get(arrival.peer, 0) + arrival.nbytes
        greatest = max(held, key=lambda peer: held[peer], default=waiter.peer)
        if greatest != waiter.peer and held[greatest] > held.get(waiter.peer, 0) + waiter.nbytes:
            for arrival in [a for a in self._arriving if a.peer == greatest]:
                arrival.end("others had waited for room (limits.receive_bytes)")
                self._forget(arrival)

    def _forget(self, arrival: _Arrival) -> None:
        self._arriving = [a for a in self._arriving if a is not arrival]
        self._waiting = [a for a in self._waiting if a is not arrival]
        self._fill()

    def _fill(self) -> None:
        """Let those in that have waited longest, as far as there is room."""
        taken = {arrival.place for arrival in self._arriving}
        for arrival in list(self._waiting):
            if arrival.place in taken:
                continue
            if self._arriving and self.nbytes + arrival.nbytes > self._limit():
                return
            self._waiting.remove(arrival)
            self._arriving.append(arrival)
            taken.add(arrival.place)
            arrival.admitted.set()
