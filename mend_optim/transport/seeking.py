"""Finds the addresses of the seeds, again and again.

    seed ──resolve──▶ addresses ──visit each──▶ outcomes ──verdict──▶ the handler

A seed's name may have many addresses, and they may change at any time. Each is dialled for as long
as the name has it. A name that stops resolving keeps the addresses that it had: a fault of a name
server takes nobody away.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Sequence
from contextlib import suppress

from mend_optim.protocol.seed_addresses import Answer, SeedAddresses
from mend_optim.protocol.timing import Timing
from mend_optim.protocol.unreached import Unreached
from mend_optim.transport.address import is_ip, is_loopback, parse_address
from mend_optim.transport.handler import Handler

#: Returns the addresses "ip:port" of a host and port. Raises `OSError` if there are none.
Resolve = Callable[[str, int], Awaitable[Sequence[str]]]

#: Beats until a name is resolved again.
AGAIN_BEATS = 10.0
#: The fewest beats between two times, whatever happens at its addresses.
LEAST_BEATS = 0.2


class Seeking:
    """The seeds of one learner, each with its addresses.

    Args:
        handler: Is told why a seed cannot be reached, and which one is this learner itself.
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
        self._seeds: dict[str, SeedAddresses] = {}
        #: The task that resolves each seed.
        self._tasks: dict[str, asyncio.Task[None]] = {}
        #: By seed, set when something has changed at one of its addresses.
        self._changed: dict[str, asyncio.Event] = {}

    def begin(self, seeds: Iterable[str]) -> None:
        """Look for these seeds from now on, too."""
        for seed in seeds:
            if seed not in self._seeds:
                self._seeds[seed] = SeedAddresses()
                self._changed[seed] = asyncio.Event()
                self._tasks[seed] = asyncio.get_running_loop().create_task(self._follow(seed))

    def stop(self) -> list[asyncio.Task[None]]:
        """Stop to look for them; return the tasks."""
        for task in self._tasks.values():
            task.cancel()
        return list(self._tasks.values())

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
            with suppress(asyncio.TimeoutError):
                patience_s = (AGAIN_BEATS - LEAST_BEATS) * self._timing.beat_s
                await asyncio.wait_for(changed.wait(), patience_s)

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


def _is_fixed(host: str) -> bool:
    """Whether no other machine can ever have that host."""
    return is_ip(host) or is_loopback(host)
