"""The links between learners: a relay in front of each learner, which knows the caller and can hold
back traffic.

A cut link loses nothing and reports nothing, like a dead line under TCP: bytes stop, new
connections open and never answer, and everything continues when the link is back. Each direction
can be cut by itself. The relay identifies a caller by its socket, from /proc."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Iterable
from contextlib import suppress

from bench.storm.proc import socket_owner

CHUNK = 65536
LOOK_UPS, LOOK_AGAIN_S = 5, 0.02
UNKNOWN = ""
Direction = tuple[str, str]  # (from, to)


class Links:
    """Which directions are cut, and how many chunks of at most 64 KiB were held back in each since
    the start."""

    def __init__(self) -> None:
        self.held: Counter[Direction] = Counter()
        self.passed: Counter[Direction] = Counter()
        self._cut: Counter[Direction] = Counter()  # by how many faults at a time
        self._changed = asyncio.Event()

    def cut(self, directions: Iterable[Direction]) -> None:
        self._cut.update(directions)

    def mend(self, directions: Iterable[Direction]) -> None:
        self._cut.subtract(directions)
        self._changed.set()
        self._changed = asyncio.Event()

    async def travel(self, direction: Direction, size: int) -> None:
        """Return when a chunk of that size may pass."""
        if self._cut[direction] > 0:
            self.held[direction] += 1
        while self._cut[direction] > 0:
            await self._changed.wait()
        self.passed[direction] += size


class Relay:
    """The relay in front of one learner. Its address stays the same, whichever port the learner's
    present process listens on."""

    def __init__(self, name: str, links: Links, pids: Callable[[], dict[int, str]]) -> None:
        self.name, self.target = name, 0
        self._links, self._pids = links, pids
        self._travels: set[asyncio.Task[None]] = set()
        self.unknown_callers = self.refused = 0

    async def open(self) -> None:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.port: int = self._server.sockets[0].getsockname()[1]
        self.address = f"127.0.0.1:{self.port}"

    async def close(self) -> None:
        self._server.close()
        for travel in self._travels:
            travel.cancel()
        await asyncio.gather(*self._travels, return_exceptions=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._travels.add(task)
        try:
            await self._join_ends(reader, writer)
        except (OSError, asyncio.CancelledError):
            pass  # broken connections are expected here
        finally:
            self._travels.discard(task)
            writer.transport.abort()

    async def _join_ends(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        caller = await self._caller(writer.get_extra_info("peername")[1])
        out, back = (caller, self.name), (self.name, caller)
        await self._links.travel(out, 0)
        try:
            there, onward = await asyncio.open_connection("127.0.0.1", self.target)
        except OSError:  # the learner has no process at present
            self.refused += 1
            return
        ways = self._forward(out, reader, onward), self._forward(back, there, writer)
        tasks = [asyncio.ensure_future(way) for way in ways]
        try:
            await asyncio.wait(tasks)
        finally:
            for task in tasks:
                task.cancel()
            onward.transport.abort()

    async def _forward(
        self, direction: Direction, source: asyncio.StreamReader, sink: asyncio.StreamWriter
    ) -> None:
        """Forward chunks until the source ends; then pass the end on, too."""
        with suppress(OSError):
            while chunk := await source.read(CHUNK):
                await self._links.travel(direction, len(chunk))
                sink.write(chunk)
                await sink.drain()
        await self._links.travel(direction, 0)
        sink.close()

    async def _caller(self, port: int) -> str:
        """The learner that owns the socket at this port."""
        for _ in range(LOOK_UPS):
            pids = self._pids()
            pid = socket_owner(port, self.port, pids)
            if pid is not None:
                return pids[pid]
            await asyncio.sleep(LOOK_AGAIN_S)
        self.unknown_callers += 1
        return UNKNOWN


def all_ways(some: Iterable[str], others: Iterable[str]) -> list[Direction]:
    """Both directions of all links between the two groups."""
    pairs = [(a, b) for a in some for b in others if a != b]
    return pairs + [(b, a) for a, b in pairs]
