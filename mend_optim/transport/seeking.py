"""Finds the seeds and their addresses, again and again.

    list ──read──▶ seeds
    seed ──resolve──▶ addresses ──visit each──▶ outcomes ──verdict──▶ the handler

A seed's name may have many addresses, and they may change at any time. Each is dialled for as long
as the name has it. A name that stops resolving keeps the addresses that it had: a fault of a name
server takes nobody away.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from mend_optim.errors import PeerError
from mend_optim.protocol.seed_addresses import Answer, SeedAddresses
from mend_optim.protocol.seed_lists import UNREAD, Listing, SeedLists
from mend_optim.protocol.timing import Timing
from mend_optim.protocol.unreached import Unreached
from mend_optim.transport.address import is_ip, is_loopback, parse_address
from mend_optim.transport.background_log import BackgroundLog
from mend_optim.transport.handler import Handler
from mend_optim.transport.stream import settled

log = BackgroundLog("mend_optim")

#: Returns the addresses "ip:port" of a host and port. Raises `OSError` if there are none.
Resolve = Callable[[str, int], Awaitable[Sequence[str]]]

#: Beats until a name is resolved again.
AGAIN_BEATS = 10.0
#: The fewest beats between two times, whatever happens at its addresses.
LEAST_BEATS = 0.2
#: Beats until a list is read again in which others are still to come.
AWAITED_BEATS = 1.0
#: The most beats until a list is read again that cannot be read.
FAILED_BEATS = 120.0


class PeerList(Protocol):
    """A list of seeds that may change at any time, such as a file."""

    @property
    def name(self) -> str:
        """The user's name for it."""

    async def read(self, address: str) -> Listing:
        """Return its present addresses, without blocking the loop. `address` is this learner's own,
        for a list that learners enter themselves. Raises `PeerError` if it cannot be read."""


@dataclass
class _Followed:
    """A list that is read again and again."""

    #: Its content when it was last read.
    had: Listing = UNREAD
    #: How often in a row it could not be read.
    failures: int = 0
    #: Why, as the log was told last; empty once it could be read again.
    complaint: str = ""
    #: The same of an exception that nobody foresaw.
    fault: str = ""


class Seeking:
    """The seeds of one learner, each with its addresses.

    Args:
        handler: Is told why a seed cannot be reached, which one is this learner itself, and what a
            list has.
        timing: The beat is the unit of all pauses.
        resolve: Finds the addresses of a name.
        dial: Begins to dial an address of a seed, unless that goes on.
    """

    def __init__(
        self, handler: Handler, timing: Timing, resolve: Resolve, dial: Callable[[str, str], None]
    ) -> None:
        self._handler = handler
        self._timing = timing
        self._resolve = resolve
        self._dial = dial
        self._lists = SeedLists(())
        #: The task that reads each list, by the name of the list.
        self._readers: dict[str, asyncio.Task[None]] = {}
        self._seeds: dict[str, SeedAddresses] = {}
        #: The task that resolves each seed.
        self._tasks: dict[str, asyncio.Task[None]] = {}
        #: By seed, set when something has changed at one of its addresses.
        self._changed: dict[str, asyncio.Event] = {}

    def begin(self, seeds: Sequence[str], lists: Sequence[PeerList], address: str) -> None:
        """Begin to look for the seeds, and for what the lists have.

        Args:
            seeds: Those to look for as long as this learner lives.
            lists: The lists that are read again and again.
            address: Where others should dial this learner; empty if nobody can.
        """
        self._lists = SeedLists(seeds)
        self._follow_wanted()
        loop = asyncio.get_running_loop()
        for each in lists:
            self._listed(each.name, UNREAD)  # the first step waits for what it has
            self._readers[each.name] = loop.create_task(self._read(each, address))

    def _follow_wanted(self) -> None:
        """Look for the seeds that are wanted now, and for no others."""
        wanted = self._lists.wanted()
        for seed in set(self._seeds).difference(wanted):
            del self._seeds[seed], self._changed[seed]
            self._tasks.pop(seed).cancel()
        for seed in wanted:
            if seed not in self._seeds:
                self._seeds[seed] = SeedAddresses()
                self._changed[seed] = asyncio.Event()
                self._tasks[seed] = asyncio.get_running_loop().create_task(self._follow(seed))

    def stop(self) -> list[asyncio.Task[None]]:
        """Stop to look for them; return the tasks."""
        tasks = [*self._readers.values(), *self._tasks.values()]
        for task in tasks:
            task.cancel()
        return tasks

    def is_wanted(self, seed: str, address: str) -> bool:
        """Return whether this is an address of that seed at present."""
        return seed in self._seeds and address in self._seeds[seed]

    def answered(self, seed: str, address: str, answer: Answer) -> None:
        """A learner answered at an address of a seed."""
        if seed in self._seeds:
            self._seeds[seed].note(address, answer)
            if answer is Answer.ITSELF:
                self._tell(seed)

    def failed(self, seed: str, address: str, cause: Unreached, failures: int) -> None:
        """Nobody answered at an address of a seed, for the `failures`-th time in a row. The first
        time, the name may have another address by now."""
        if seed in self._seeds:
            self._seeds[seed].note(address, cause)
            self._tell(seed)
            if failures <= 1:
                self._changed[seed].set()

    def _tell(self, seed: str) -> None:
        match self._seeds[seed].verdict():
            case Unreached() as cause:
                self._handler.unreached(seed, cause)
            case Answer.ITSELF if _is_fixed(parse_address("peers", seed)[0]):
                self._handler.itself(seed)
            case Answer.ITSELF:
                self._handler.unreached(seed, Unreached.ITSELF)

    # ── lists ─────────────────────────────────────────────────────────────────────────────────────

    async def _read(self, source: PeerList, address: str) -> None:
        """Read a list again and again, whatever goes wrong: nobody would see this task end."""
        followed = _Followed()
        while True:
            try:
                await self._read_once(source, address, followed)
            except Exception as error:
                followed.failures += 1
                if repr(error) != followed.fault:
                    followed.fault = repr(error)
                    log.exception("%s: could not be read, and is read again", source.name)
            pause = pause_beats(followed.had, followed.failures)
            await asyncio.sleep(self._timing.beat_s * pause)

    async def _read_once(self, source: PeerList, address: str, followed: _Followed) -> None:
        """Read a list. One that cannot be read keeps what it had; the complaint is logged once,
        until it is another one. Before it has anything, its complaint is why the first step
        waits."""
        try:
            followed.had = await source.read(address)
        except PeerError as error:
            followed.failures += 1
            if followed.had is UNREAD:
                self._listed(source.name, Listing(seeds=(), awaited=str(error)))
            elif str(error) != followed.complaint:
                followed.complaint = str(error)
                log.warning(
                    "%s: %s; the addresses that it had stay", source.name, followed.complaint
                )
        else:
            self._listed(source.name, followed.had)
            if followed.complaint or followed.fault:
                log.info("%s: read again", source.name)
            followed.complaint = followed.fault = ""
            followed.failures = 0

    def _listed(self, name: str, listing: Listing) -> None:
        self._lists.take(name, listing)
        self._handler.listed(name, listing)
        self._follow_wanted()

    # ── names ─────────────────────────────────────────────────────────────────────────────────────

    async def _follow(self, seed: str) -> None:
        host, port = parse_address("peers", seed)
        if is_ip(host):
            self._renew(seed, [seed])
            return
        changed = self._changed[seed]
        while True:
            changed.clear()
            await self._look(seed, host, port)
            await asyncio.sleep(LEAST_BEATS * self._timing.beat_s)
            patience_s = (AGAIN_BEATS - LEAST_BEATS) * self._timing.beat_s
            await settled(changed.wait(), patience_s)

    async def _look(self, seed: str, host: str, port: int) -> None:
        try:
            addresses = await self._resolve(host, port)
        except OSError:
            if not len(self._seeds[seed]):
                self._handler.unreached(seed, Unreached.NAME)
        else:
            self._renew(seed, addresses)

    def _renew(self, seed: str, addresses: Sequence[str]) -> None:
        for address in self._seeds[seed].renew(addresses):
            self._dial(address, seed)
        self._tell(seed)


def pause_beats(had: Listing, failures: int) -> float:
    """Return the beats until a list is read again: few while others are awaited, more the more
    often in a row it has failed."""
    beats = AWAITED_BEATS if had.awaited else AGAIN_BEATS
    return min(beats * max(1, failures), FAILED_BEATS)


def _is_fixed(host: str) -> bool:
    """Whether no other machine can ever have that host."""
    return is_ip(host) or is_loopback(host)
