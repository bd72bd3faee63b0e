"""Who is known, alive, suspected, evicted; and who seals.

    alive ──silence or a broken link──▶ suspected ──evict_after_s of silence──▶ (evicted: forgotten but for a tombstone)
      ▲                                     │
      └────────── any sign of life ─────────┘          a goodbye evicts at once

A peer's beat count grows with every beat; hearing of a greater count from anybody is a sign of
life, so liveness spreads by gossip. A peer whose own beats show that it has not heard of us for a
while, from anybody, is suspected, too: it is deaf, and nothing that we send it arrives. A greater
incarnation replaces a smaller one of the same name."""

from __future__ import annotations

import hashlib
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache

from mend_optim.protocol.lineage import PeerId
from mend_optim.protocol.messages import Beat, Rumor
from mend_optim.protocol.timing import Timing

FANOUT = 16
DEAF = 6  # beats of ours that a peer may not have heard of: twice what makes a suspect
# the last tombstones are kept, the last goodbyes passed on: every start may bring a name
GRAVES, GOODBYES = 1024, 64
LEFT = 2**62  # the beat count of a peer that said goodbye: no news can be newer


@dataclass(slots=True, kw_only=True)
class Peer:
    """A learner as seen over the network. `knows`: our beat count, as it last told us; `fresh`:
    there were no steps behind it when it was first heard, nor behind its checkpoint."""

    id: PeerId
    address: str
    count: int
    met_at: float
    heard_at: float
    knows: int
    fresh: bool = False
    linked: bool = False
    silent: bool = False
    deaf: bool = False
    beat: Beat | None = None

    @property
    def suspected(self) -> bool:
        return self.silent or self.deaf

    def has(self, fragment: int) -> bool:
        """Whether the peer has that fragment, for all we know: not everybody adds a group at the
        same moment."""
        return self.beat is None or not self.beat.reports or fragment < len(self.beat.reports)

    @property
    def training(self) -> bool:
        return self.beat is not None and self.beat.training


class Roster:
    """The peers this learner knows. `hear` and `gossip` feed it, `expire` ages it; all take the
    time as an argument."""

    def __init__(self, me: PeerId, address: str, timing: Timing) -> None:
        self.me, self.address, self.timing = me, address, timing
        self.peers: dict[str, Peer] = {}
        # name: (incarnation, last count; LEFT after a goodbye)
        self._tombstones: dict[str, tuple[int, int]] = {}
        # counts of our last beats to all
        self._broadcasts: deque[int] = deque([0], maxlen=2 * DEAF)

    def find(self, id: PeerId) -> Peer | None:
        """The peer of exactly this incarnation, if it is on the roster."""
        peer = self.peers.get(id.name)
        return peer if peer and peer.id == id else None

    def meet(self, now: float, id: PeerId, address: str) -> Peer | None:
        """A peer that said hello: direct news, so it lifts a tombstone of its own incarnation. None
        for ourselves or a past incarnation."""
        known = self.peers.get(id.name)
        if id.name == self.me.name or (known and known.id.incarnation > id.incarnation):
            return None
        buried = self._tombstones.get(id.name, (0, 0))
        if buried >= (id.incarnation, LEFT):
            return None
        if not known or known.id != id:
            self._tombstones.pop(id.name, None)
            count = buried[1] if buried[0] == id.incarnation else 0
            known = self._add(now, id, address, count)
        known.heard_at, known.silent = now, False
        known.knows, known.deaf = self._broadcasts[-1], False
        known.address = address or known.address
        return known

    def hear(self, now: float, beat: Beat) -> Peer | None:
        """A beat from the peer itself. None if it is of the past (an older beat or incarnation) or
        our own."""
        known = self.find(beat.peer)
        if known and known.beat and beat.count <= known.beat.count:
            return None
        # gossip may have been faster
        peer = self._learn(now, Rumor(beat.peer, beat.address, beat.count)) or known
        if peer:
            peer.fresh = peer.fresh or (peer.beat is None and beat.position == 0)
            peer.beat = beat
            peer.knows = max(
                [peer.knows, *(rumor.count for rumor in beat.roster if rumor.peer == self.me)]
            )
            patience = DEAF * (1 + self.size // FANOUT)
            peer.deaf = sum(count > peer.knows for count in self._broadcasts) >= min(
                patience, 2 * DEAF
            )
        return peer

    def broadcast(self, count: int) -> None:
        """A beat of ours, number `count`, goes out to all."""
        self._broadcasts.append(count)

    def gossip(self, now: float, rumors: Iterable[Rumor]) -> None:
        """What a peer says of others: a greater count is a sign of life, `left` is a goodbye passed
        on."""
        for rumor in rumors:
            if rumor.left:
                self.leave(rumor.peer)
            else:
                self._learn(now, rumor)

    def _learn(self, now: float, rumor: Rumor) -> Peer | None:
        name, incarnation = rumor.peer
        known = self.peers.get(name)
        last = (known.id.incarnation, known.count) if known else self._tombstones.get(name, (0, -1))
        if name == self.me.name or (incarnation, rumor.count) <= last:
            return None
        if known is None or known.id != rumor.peer:
            self._tombstones.pop(name, None)
            known = self._add(now, rumor.peer, rumor.address, rumor.count)
        known.count, known.heard_at, known.silent = rumor.count, now, False
        known.address = rumor.address or known.address
        return known

    def _add(self, now: float, id: PeerId, address: str, count: int) -> Peer:
        self.peers[id.name] = Peer(
            id=id,
            address=address,
            count=count,
            met_at=now,
            heard_at=now,
            knows=self._broadcasts[-1],
        )
        return self.peers[id.name]

    def touch(self, now: float, id: PeerId) -> None:
        """Bytes arrived from the peer: a sign of life, too."""
        peer = self.find(id)
        if peer:
            peer.heard_at, peer.silent = now, False

    def link(self, now: float, id: PeerId, up: bool) -> None:
        """The control stream with the peer opened, or broke: a broken one makes a suspect at
        once."""
        peer = self.find(id)
        if peer:
            peer.linked = up
            peer.silent = not up
            if up:
                peer.heard_at = now

    def leave(self, id: PeerId) -> bool:
        """The peer said goodbye: this incarnation never comes back. False if that changes
        nothing."""
        if id.name == self.me.name or self._tombstones.get(id.name, (0, 0)) >= (
            id.incarnation,
            LEFT,
        ):
            return False
        known = self.peers.get(id.name)
        if known and known.id.incarnation > id.incarnation:
            return False
        self.peers.pop(id.name, None)
        self._bury(id, LEFT)
        return known is not None

    def _bury(self, id: PeerId, count: int) -> None:
        self._tombstones.pop(id.name, None)
        self._tombstones[id.name] = (id.incarnation, count)
        if len(self._tombstones) > GRAVES:
            del self._tombstones[next(iter(self._tombstones))]

    def expire(self, now: float) -> list[PeerId]:
        """Suspect the silent, evict the long silent; returns the evicted."""
        for peer in self.peers.values():
            if now >= peer.heard_at + self.timing.suspect_after_s:  # as `wake_at` rounds it
                peer.silent = True
        silent = [p for p in self.peers.values() if now >= p.heard_at + self.timing.evict_after_s]
        for peer in silent:
            del self.peers[peer.id.name]
            self._bury(peer.id, peer.count)
        return [peer.id for peer in silent]

    def wake_at(self) -> float:
        """When somebody becomes suspect or evicted if nothing is heard."""
        limit = self.timing
        waits = (
            p.heard_at + (limit.evict_after_s if p.silent else limit.suspect_after_s)
            for p in self.peers.values()
        )
        return min(waits, default=float("inf"))

    @property
    def alone(self) -> bool:
        return not self.peers

    @property
    def size(self) -> int:
        """Learners on the roster, this one included."""
        return 1 + len(self.peers)

    def alive(self) -> list[PeerId]:
        """Peers that are not suspected, in name order."""
        return sorted(p.id for p in self.peers.values() if not p.suspected)

    def sealer(self, fragment: int) -> PeerId | None:
        """Who runs the fragment's rounds: the greatest hash of (fragment, name) over the live
        learners that can be dialled."""
        candidates = [
            p.id for p in self.peers.values() if p.address and not p.suspected and p.has(fragment)
        ]
        if self.address:
            candidates.append(self.me)
        return max(candidates, key=lambda id: _rendezvous(fragment, id.name), default=None)

    def known_at(self, started: bool) -> float:
        """When all know each other: a beat after somebody was met that may know others, or seal for
        some. Who began with nothing seals for nobody: once there have been rounds here, it is not
        waited for."""
        met = (p.met_at for p in self.peers.values() if not (started and p.fresh))
        return max(met, default=float("-inf")) + self.timing.beat_s

    def rumors(self) -> tuple[Rumor, ...]:
        """What this learner passes on: everyone it knows, not those it only suspects, and the
        goodbyes."""
        known = [Rumor(p.id, p.address, p.count) for p in self.peers.values() if not p.silent]
        left = [
            Rumor(PeerId(n, i), "", c, left=True)
            for n, (i, c) in self._tombstones.items()
            if c == LEFT
        ]
        return (*known, *left[-GOODBYES:])

    def audience(self, count: int) -> list[PeerId]:
        """Whom to send beat number `count`: everybody, or in a big roster a window that moves round
        it."""
        everyone = sorted(p.id for p in self.peers.values())
        if len(everyone) <= FANOUT:
            return everyone
        start = count * FANOUT % len(everyone)
        return (everyone + everyone)[start : start + FANOUT]


@lru_cache(maxsize=4096)
def _rendezvous(fragment: int, name: str) -> bytes:
    return hashlib.blake2b(f"{fragment}/{name}".encode(), digest_size=16).digest()


class Seeds:
    """The addresses the user gave, and what became of each: a peer, ourselves, or a refusal."""

    def __init__(self, addresses: Sequence[str]) -> None:
        self.found: dict[str, PeerId | None] = dict.fromkeys(addresses)
        self.refused: set[str] = set()

    def resolve(self, address: str, peer: PeerId) -> None:
        if address in self.found:
            self.found[address] = peer
            self.refused.discard(address)

    def discard(self, address: str) -> None:
        """The address is our own: nothing to wait for."""
        self.found.pop(address, None)

    def refuse(self, address: str) -> None:
        """The learner there and we must not train together: nothing to wait for, either."""
        if address in self.found:
            self.refused.add(address)

    @property
    def missing(self) -> list[str]:
        return [
            address
            for address, peer in self.found.items()
            if peer is None and address not in self.refused
        ]

    def peers(self) -> list[PeerId]:
        return [peer for peer in self.found.values() if peer is not None]
