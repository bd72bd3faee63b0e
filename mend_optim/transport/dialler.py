"""Keeps a control stream to every peer that this learner can dial.

    address ──visit──▶ hello ──both agree──▶ control stream ──breaks──▶ visit again after a while

An address of a seed, which the user gave, is dialled for as long as the seed has it
(`seeking.py`). A contact, a peer that gossip told of, is dialled only while the handler lists it
and no control stream of this learner's dialling is open: at once when a beat first tells of it, and
later with this learner's own beats.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from enum import Enum
from functools import partial
from typing import Any

from mend_optim.errors import PeerError
from mend_optim.protocol.handshake import NO_VALUE, Hello
from mend_optim.protocol.lineage import PeerId
from mend_optim.protocol.messages import Beat
from mend_optim.protocol.seed_addresses import Answer
from mend_optim.protocol.timing import Timing
from mend_optim.protocol.unreached import Unreached
from mend_optim.protocol.visited import COUNT
from mend_optim.transport.address import parse_address
from mend_optim.transport.background_log import BackgroundLog
from mend_optim.transport.connection import Connection
from mend_optim.transport.control import Links
from mend_optim.transport.diagnosis import why_unreached
from mend_optim.transport.dial_turns import DialTurns
from mend_optim.transport.handler import Handler
from mend_optim.transport.limits import check
from mend_optim.transport.security.channels import Security
from mend_optim.transport.security.probe import accepts
from mend_optim.transport.seeking import PeerList, Resolve, Seeking
from mend_optim.transport.stream import RpcFailed, StillError

log = BackgroundLog("mend_optim.transport")

#: Addresses known by hearsay that are dialled at a time. A peer may tell of many learners, and of
#: anybody's addresses.
HEARSAY_DIALS = 8
#: Failures in a row after which a learner looks for the reason by itself.
PROBE_AFTER = 2
#: Failures in a row beyond this many don't lengthen the pause any more (2**10 beats).
FAILURES = 10

BEYOND = (
    "%s: does not dial %a at %s, beyond this machine: pass credentials=, or insecure=True if you "
    "trust every process that reaches the links"
)


class VisitOutcome(Enum):
    """How a visit to an address ended."""

    LINKED = "there was a control stream, and it broke"
    FAILED = "nobody answered"
    DUPLICATE = "the peer is already dialled at another address"
    REFUSED = "the two learners must not train together"
    OUTRANKED = "one of them has a name of which the other knows a process with a later start"
    OURSELVES = "this learner itself is there"


#: Beats until the next visit to an address. After a failure, the pause grows from that of `LINKED`
#: up to this.
NEXT_VISIT = {
    VisitOutcome.LINKED: 0.2,
    VisitOutcome.FAILED: 10.0,
    VisitOutcome.DUPLICATE: 10.0,
    VisitOutcome.REFUSED: 30.0,
    VisitOutcome.OUTRANKED: 2.0,
}


class Dialler:
    """Visits seeds and contacts, one task per seed and address.

    Args:
        handler: Is told which seed is this learner itself, and why one cannot be reached; lists the
            contacts.
        links: Admits the peers that agree, and runs the control streams with them.
        timing: The beat is the unit of all pauses.
        connect: Opens a connection to an address; `patience_s` is how long the connection may be
            dead before it fails. The third argument is the name of the learner that must be there;
            empty if any may.
        hello: Returns this learner's hello, with its address.
        security: Says where to dial, whether connections prove the names of learners, and why one
            fails.
        resolve: Finds the addresses of a seed's name.
        each_beat: Is called with every beat.
    """

    def __init__(
        self,
        handler: Handler,
        links: Links,
        timing: Timing,
        *,
        connect: Callable[[str, float, str], Connection],
        hello: Callable[[], Hello],
        security: Security,
        resolve: Resolve,
        each_beat: Callable[[], None],
    ) -> None:
        self._handler = handler
        self._links = links
        self._timing = timing
        self._connect = connect
        self._hello = hello
        self._security = security
        self._each_beat = each_beat
        self._random = random.Random()
        self._seeking = Seeking(handler, timing, resolve, partial(self._begin, contact=None))
        #: The task that visits each (address, seed), while it runs. The seed of a contact is empty.
        self._dials: dict[tuple[str, str], asyncio.Task[None]] = {}
        #: By (address, seed) that is visited, how often in a row nobody has answered.
        self._failures: dict[tuple[str, str], int] = {}
        self._watching: asyncio.Task[None] | None = None
        self._has_told_beyond = False
        #: The peers that were looked at since this learner's last beat.
        self._looked_at: set[PeerId] = set()
        self._hearsay = DialTurns(HEARSAY_DIALS)

    def start(self, seeds: Sequence[str], lists: Sequence[PeerList], address: str) -> None:
        """Begin to dial the seeds, those of the lists, and whatever contacts the handler lists.
        `address` is where others should dial this learner."""
        self._seeking.begin(seeds, lists, address)
        self._watching = asyncio.get_running_loop().create_task(self._watch())

    def stop(self) -> list[asyncio.Task[None]]:
        """Cancel all visits; return their tasks."""
        tasks = [*self._seeking.stop(), *self._dials.values()]
        if self._watching:
            tasks.append(self._watching)
        for task in tasks:
            task.cancel()
        return tasks

    def _begin(self, address: str, seed: str, contact: PeerId | None) -> None:
        key = (address, seed)
        if key not in self._dials:
            task = asyncio.get_running_loop().create_task(self._dial(address, seed, contact))
            self._dials[key] = task
            task.add_done_callback(partial(self._ended, key))

    def _ended(self, key: tuple[str, str], task: asyncio.Task[Any]) -> None:
        self._dials.pop(key, None)
        self._failures.pop(key, None)

    async def _watch(self) -> None:
        """Every beat: dial the contacts, and dismiss the peers that are long gone."""
        while True:
            contacts = self._handler.contacts()
            self._looked_at = {id for id, _ in contacts}
            self._dial_some(contacts)
            self._links.tidy(self._timing.evict_after_s)
            self._each_beat()
            await asyncio.sleep(self._timing.beat_s)

    def told(self, beat: Beat) -> None:
        """Dial those of whom a peer is the first to tell. Where learners join, each would else wait
        for the links with all others until its next beat."""
        new = {rumor.peer for rumor in beat.roster} - self._looked_at
        if new and self._watching and not self._links.closing:
            self._looked_at |= new
            self._dial_some(each for each in self._handler.contacts() if each[0] in new)

    def _dial_some(self, contacts: Iterable[tuple[PeerId, str]]) -> None:
        sought = {address for address, seed in self._dials if seed}
        for id, address in contacts:
            if not self._security.may_dial(address):
                self._tell_beyond(id, address)
            elif address not in sought and not self._is_dialled(id):
                self._begin(address, "", id)

    def _tell_beyond(self, id: PeerId, address: str) -> None:
        """A peer on this machine, which may leave it, tells of one beyond."""
        if not self._has_told_beyond:
            self._has_told_beyond = True
            log.warning(BEYOND, self._hello().peer.name, id.name, address)

    def _is_dialled(self, id: PeerId) -> bool:
        link = self._links.get(id)
        return link is not None and link.dialled

    def _is_wanted(self, address: str, seed: str, contact: PeerId | None) -> bool:
        """Return whether to visit again: a seed while that is its address; a contact while the
        handler lists it and it is not dialled."""
        if contact is None:
            return self._seeking.is_wanted(seed, address)
        return not self._is_dialled(contact) and contact in dict(self._handler.contacts())

    async def _dial(self, address: str, seed: str, contact: PeerId | None) -> None:
        """Visit an address again and again."""
        failures = 0
        while self._is_wanted(address, seed, contact):
            outcome = await self._visit(address, seed, contact)
            if outcome is VisitOutcome.OURSELVES or self._links.closing:
                return
            beats = NEXT_VISIT[outcome]
            if outcome is VisitOutcome.FAILED:
                beats = min(beats, NEXT_VISIT[VisitOutcome.LINKED] * 2**failures)
                failures = min(failures + 1, FAILURES)
            else:
                failures = 0
            self._failures[address, seed] = failures
            # random, so that learners that lost each other don't all dial at the same moment
            await asyncio.sleep(self._timing.beat_s * beats * self._random.uniform(0.5, 1.0))

    @asynccontextmanager
    async def _turn(self, address: str, contact: PeerId | None) -> AsyncIterator[None]:
        """Connect and say hello inside. A seed, and a peer that has agreed before, is always next.
        A visit that fails keeps its turn for a beat. So only a few addresses where no learner is
        are dialled in each beat, however many of them somebody tells of."""
        if contact is None or self._links.get(contact) is not None:
            yield
            return
        async with self._hearsay.one(self._failures.get((address, ""), 0)):
            try:
                yield
            except Exception:
                await asyncio.sleep(self._timing.beat_s)
                raise

    async def _visit(self, address: str, seed: str, contact: PeerId | None) -> VisitOutcome:
        try:
            name = await self._name_at(address, seed, contact)
            if not self._may_meet(name, address, seed):
                return VisitOutcome.REFUSED
            async with AsyncExitStack() as open_:
                async with self._turn(address, contact):
                    if not self._is_wanted(address, seed, contact):  # it may have waited for long
                        return VisitOutcome.FAILED
                    connection = await open_.enter_async_context(self._connected(address, name))
                    theirs = await self._ask(connection, self._hello(), address, seed, name)
                return await self._meet(connection, theirs, address, seed)
        except PeerError as fault:
            log.debug("%s: %s", address, fault)
        except Exception:
            log.debug("%s", address, exc_info=True)
        return VisitOutcome.FAILED

    def _may_meet(self, name: str, address: str, seed: str) -> bool:
        """Return whether to dial the learner of this name. A seed that this learner shuts out is
        reported."""
        try:
            self._security.check_peer(name, None)
        except PeerError as fault:
            log.debug("%s: %s", address, fault)
            if seed:
                failures = self._failures.get((address, seed), 0)
                self._seeking.failed(seed, address, Unreached.DENIED, failures)
            return False
        return True

    @asynccontextmanager
    async def _connected(self, address: str, name: str) -> AsyncIterator[Connection]:
        # A control stream that died silently must fail, and be dialled again, before the peer is
        # evicted.
        connection = self._connect(address, self._timing.evict_after_s / 6, name)
        try:
            yield connection
        finally:
            await connection.close()

    async def _name_at(self, address: str, seed: str, contact: PeerId | None) -> str:
        """Return the name that the learner at an address must prove; empty if it need not.

        A caller can only demand a name of its server, and never ask for it. So at a seed, the first
        connection takes any learner of the run and asks for its name, and is used for nothing else.
        The learner there must not take that for a greeting: this one may shut it out.
        """
        if not self._security.authenticates:
            return ""
        if contact is not None:
            return contact.name
        asks = replace(self._hello(), model=((COUNT, NO_VALUE),), policy=())
        async with self._connected(address, "") as connection:
            return (await self._ask(connection, asks, address, seed, "")).peer.name

    async def _ask(
        self, connection: Connection, mine: Hello, address: str, seed: str, name: str
    ) -> Hello:
        """Say hello to the learner of this name, or to any; return the answer. Raise `PeerError` if
        it says that it is another. A seed that gives no answer is reported."""
        try:
            theirs = await connection.hello(mine, self._timing.evict_after_s)
        except PeerError as fault:
            if seed:
                failures = self._failures.get((address, seed), 0)
                cause = await self._cause(address, fault, name, failures)
                self._seeking.failed(seed, address, cause, failures)
            raise
        check(name in ("", theirs.peer.name), f"{name!a} says that it is {theirs.peer.name!a}")
        return theirs

    async def _cause(self, address: str, fault: PeerError, name: str, failures: int) -> Unreached:
        """Return why nobody answers at an address. A learner whose certificate is wrong, or that
        finds ours wrong, may look like another program. One that stands still, or whose packets are
        too large for the network, may look like a machine that is off."""
        if not isinstance(fault, RpcFailed | StillError):
            return Unreached.PROTOCOL  # there was an answer, and it is no hello
        cause = why_unreached(fault)
        if cause is Unreached.IMPOSTOR and not name:
            return Unreached.NO_LEARNER
        says_nothing = not (isinstance(fault, RpcFailed) and fault.is_answer)
        if cause is Unreached.ANSWER and says_nothing:
            return Unreached.MUTE if await accepts(address) else cause
        if cause is Unreached.PROTOCOL and failures >= PROBE_AFTER:
            return await self._security.probe(address) or cause
        return cause

    async def _meet(
        self, connection: Connection, theirs: Hello, address: str, seed: str
    ) -> VisitOutcome:
        mine = self._hello()
        if theirs.peer == mine.peer:
            self._seeking.answered(seed, address, Answer.ITSELF)
            return VisitOutcome.OURSELVES
        self._seeking.answered(seed, address, Answer.LEARNER)
        reason = self._links.agree(mine, theirs, address, seed)
        if theirs.namesake:
            return VisitOutcome.OUTRANKED
        if reason:
            answer = self._links.answer(mine, theirs, reason)
            if answer.namesake:
                # the peer has agreed, and cannot know this reason otherwise
                await connection.hello(answer, self._timing.evict_after_s)
                return VisitOutcome.OUTRANKED
            return VisitOutcome.REFUSED
        if self._is_dialled(theirs.peer):
            return VisitOutcome.DUPLICATE
        host, _ = parse_address("address", address)
        link = self._links.admit(theirs.peer, address, host, dialled=True, seed=seed)
        try:
            with connection.stream("Control") as stream:
                await stream.accepted()
                await self._links.converse(link, stream, linger=True)
        finally:
            link.hung_up()
        return VisitOutcome.LINKED
