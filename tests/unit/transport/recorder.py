"""A learner that only writes down what its transport tells it, and messages in its name."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from typing import Any

from mend_optim.protocol.handshake import Hello, Life, Namesake
from mend_optim.protocol.lineage import Key, Lineage, PeerId
from mend_optim.protocol.messages import Message, Offer, Packet, Seal, State
from mend_optim.protocol.seed_lists import Listing
from mend_optim.protocol.sight import Sight
from mend_optim.protocol.transfer_fault import TransferFault
from mend_optim.protocol.unreached import Unreached

PATIENCE_S = 15.0
LIMIT = 1 << 20


class Recorder:
    """A handler that writes down what it is told."""

    def __init__(self, name: str, incarnation: int = 1) -> None:
        self.id = PeerId(name, incarnation)
        self.policy = (("sync_every", "128"),)
        self.events: list[tuple[Any, ...]] = []
        #: Where others should dial this learner, one address after another.
        self.shown: list[str] = []
        self.known: list[tuple[PeerId, str]] = []
        #: How many other learners the run has.
        self.population = 1
        self.newest: dict[str, int] = {}
        #: What it knows of the newest of each name, if not that it is alive.
        self.lives: dict[str, Life] = {}
        self.lost: set[PeerId] = set()
        #: Of each message that was not delivered, why.
        self.transfer_faults: list[TransferFault] = []
        self.answer: Callable[[Message], None] = lambda message: None
        self._changed = asyncio.Event()

    def _note(self, *event: Any) -> None:
        self.events.append(event)
        self._changed.set()

    def hello(self) -> Hello:
        return Hello(peer=self.id, address="stale", model=(("model", "same"),), policy=self.policy)

    def sight(self) -> Sight:
        return Sight(
            peer=self.id,
            address="stale",
            joined=False,
            step=0,
            tokens=0,
            position=0,
            cluster_step=0,
            cluster_tokens=0,
        )

    def met(self, id: PeerId, address: str, seed: str) -> bool:
        if id.incarnation < self.newest.get(id.name, 0):
            return False
        self.newest[id.name] = id.incarnation
        self.lost.discard(id)
        self._note("met", id, address, seed)
        return True

    def namesake(self, id: PeerId) -> Namesake | None:
        newest = self.newest.get(id.name, 0)
        if id.incarnation >= newest:
            return None
        return Namesake(PeerId(id.name, newest), self.lives.get(id.name, Life.ALIVE))

    def has_lost(self, id: PeerId) -> bool:
        return id in self.lost

    def outranked(self, address: str, namesake: Namesake) -> PeerId | None:
        self._note("outranked", address, namesake)
        if namesake.life is not Life.GONE:
            return None
        self.id = self.id.beyond(namesake.id.incarnation)
        return self.id

    def linked(self, id: PeerId, up: bool) -> None:
        self._note("linked", id, up)

    def shows(self, address: str) -> None:
        self.shown.append(address)

    def undialled(self, address: str, reached: Sequence[PeerId]) -> None:
        self._note("undialled", address, tuple(reached))

    def dialled(self, address: str) -> None:
        self._note("dialled", address)

    def heard(self, id: PeerId, fragment: int) -> None:
        self._note("heard", id)

    def refused(self, address: str, reason: str) -> None:
        self._note("refused", address, reason)

    def refused_at(self, address: str, reason: str) -> None:
        self._note("refused at", address, reason)

    def unreached(self, address: str, cause: Unreached) -> None:
        self._note("unreached", address, cause)

    def listed(self, source: str, listing: Listing) -> None:
        self._note("listed", source, listing)

    def itself(self, address: str) -> None:
        self._note("itself", address)

    def passed_on(self, offer: Offer, by: PeerId) -> None:
        self._note("passed on", offer, by)

    def receive(self, message: Message) -> None:
        self._note("received", message)
        self.answer(message)

    def delivered(self, to: PeerId, message: Message) -> None:
        self._note("delivered", to, message)

    def undelivered(self, to: PeerId, message: Message, fault: TransferFault) -> None:
        self._note("undelivered", to, message)
        self.transfer_faults.append(fault)

    def contacts(self) -> Sequence[tuple[PeerId, str]]:
        return self.known

    def others(self) -> int:
        return self.population

    def of(self, kind: str) -> list[tuple[Any, ...]]:
        return [event[1:] for event in self.events if event[0] == kind]

    def messages(self, kind: type) -> list[Any]:
        return [message for (message,) in self.of("received") if isinstance(message, kind)]

    @property
    def up(self) -> dict[PeerId, bool]:
        return dict(self.of("linked"))

    async def until(self, condition: Callable[[], Any], within_s: float = PATIENCE_S) -> Any:
        """Wait for something this learner is told to make the condition true."""
        end = time.monotonic() + within_s
        while not (result := condition()):
            self._changed.clear()
            try:
                await asyncio.wait_for(self._changed.wait(), end - time.monotonic())
            except asyncio.TimeoutError:
                raise AssertionError(
                    f"{self.id} waits in vain; it was told {self.events[-20:]}"
                ) from None
        return result


def packet(data: bytes) -> Packet:
    return Packet("none", len(data) // 4, memoryview(data))


def offer_of(by: Recorder, seq: int = 1, size: int = 12, fragment: int = 0) -> Offer:
    data = bytes(i % 251 for i in range(997)) * (size // 997 + 1)
    key = Key(0, 0, b"base")
    return Offer(
        peer=by.id,
        fragment=fragment,
        seq=seq,
        tokens=10,
        steps=2,
        genesis=b"genesis",
        key=key,
        due=True,
        sections={"delta": packet(data[:size])},
    )


def seal_of(by: Recorder, *offers: Offer, version: int = 1, fragment: int = 0) -> Seal:
    key = Key(10 * version, version, b"digest %d" % version)
    entries = tuple(offer.entry for offer in offers)
    merged = {"merged": packet(b"m" * 40)}
    return Seal(
        sealer=by.id,
        fragment=fragment,
        base=b"base",
        key=key,
        members=entries,
        weights=(1.0,) * len(entries),
        absent=(),
        reason="all_present",
        payload=b"payload",
        sections=merged,
    )


def state_of(by: Recorder, size: int = 40, fragment: int = 0) -> State:
    lineage = Lineage(
        tokens=5, version=1, digest=b"digest", genesis=b"genesis", merged={PeerId("c", 3): 4}
    )
    sections = {"anchor": packet(b"a" * size), "velocity": packet(b"v" * size)}
    return State(
        peer=by.id, fragment=fragment, lineage=lineage, content=b"content", sections=sections
    )


def contents(message: Any) -> dict[str, bytes]:
    return {name: bytes(section.data) for name, section in message.sections.items()}
