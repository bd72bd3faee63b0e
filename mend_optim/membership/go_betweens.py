"""Go-betweens: peers that know a way to a learner which this one does not reach itself.

    room 1            cloud            room 2
    c, d ───────────── a ───────────── e, f          no address of one room leads into the other

All learners have to choose the same sealer. If each chose from those that it reaches, then c would
seal what e seals, and work of one room after the other would be lost. So a learner chooses also
from those that a peer reaches, itself or through others, by that peer's own beats, if an anchor has
their work, or while it has little to lose: in a new run no anchor has any. It sends its offer to
the peer with the shortest way, which passes it on, and gets the seal from there. And it does not
choose a newcomer, itself included, that has to go through others, before an anchor has its work.

A peer may say that it reaches a learner which is dead, and keep all offers. So a go-between is
doubted while nothing comes of what it gets."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence

from mend_optim.membership.peer import MOST_HOPS, Peer
from mend_optim.membership.sealers import choose
from mend_optim.protocol.lineage import PeerId

#: The longest doubt that comes of earlier ones, in seconds.
LONGEST_S = 3600.0


class GoBetweens:
    """The peers that reach others, as their beats say.

    Args:
        peers: The roster's, by name. They may change at any time.
    """

    def __init__(self, peers: Mapping[str, Peer]) -> None:
        self._peers = peers
        #: Whether a learner that this one has not heard may be chosen, if others reach it.
        self.believes_in: Callable[[PeerId], bool] = lambda id: False
        #: By peer that is doubted, until when.
        self._doubted: dict[PeerId, float] = {}
        #: By peer that was ever doubted, for how long the last time.
        self._lasted: dict[PeerId, float] = {}

    def choosable(self, peers: Sequence[Peer]) -> Sequence[Peer]:
        """Return those of some peers that may be chosen as sealers: this learner has heard them
        itself, or others reach them. A newcomer that does not reach all others is not chosen before
        an anchor has its work: those that it does not reach would not choose it either."""
        if all(peer.heard and not peer.far for peer in peers):
            return peers
        reached = self._ways(peer.id for peer in peers if not peer.heard)
        return [
            p
            for p in peers
            if (p.heard and not p.far) or ((p.heard or p.id in reached) and self.believes_in(p.id))
        ]

    def candidates(self, peers: Sequence[Peer], me: Sequence[PeerId]) -> list[PeerId]:
        """Return those of some peers that may be chosen, and this learner (`me`; empty if nobody
        can dial it) if it may be, too. If nobody may, all of them that this learner has heard, and
        itself."""
        ids = (peer.id for peer in self.choosable(peers))
        able = [*ids, *filter(self._is_choosable, me)]
        return able or [*(peer.id for peer in peers if peer.heard), *me]

    def _is_choosable(self, me: PeerId) -> bool:
        """Whether this learner may be chosen, as its peers see it."""
        far = (peer.id for peer in self._peers.values() if not peer.reached)
        return self.believes_in(me) or not self.hops(far)

    def hops(self, ids: Iterable[PeerId]) -> dict[PeerId, int]:
        """Return the links on the shortest way to each of some learners that this one does not
        reach; of those alone to which a way of at most `MOST_HOPS` is known."""
        return {id: hops for id, hops in self._ways(ids).items() if hops <= MOST_HOPS}

    def _ways(self, ids: Iterable[PeerId]) -> dict[PeerId, int]:
        """The same of all to which a way is known. Hundreds may know of hundreds that they do not
        reach, so nothing is asked of each for each."""
        sought, found = frozenset(ids), dict[PeerId, int]()
        for peer in self._usable() if sought else ():
            for id in [*(sought & peer.reaches), *(sought & peer.far.keys())]:
                hops = 1 + peer.hops_to(id)
                found[id] = min(found.get(id, hops), hops)
        return found

    def choose(
        self, fragment: int, to: PeerId, without: Collection[PeerId] = (), zone: str = ""
    ) -> PeerId | None:
        """Return the go-between for a fragment's offers to a learner. None if this learner reaches
        it, or nobody does.

        Args:
            fragment: The fragment.
            to: The sealer.
            without: Peers that must not be it.
            zone: This learner's. A peer of the same zone goes before all others; among them, one
                that does not decline to seal.
        """
        peer = self._peers.get(to.name)
        if peer is None or peer.id != to or peer.linked:
            return None
        able = [p for p in self._usable() if p.hops_to(to) and p.has(fragment)]
        able = [p for p in able if p.id not in without]
        least = min((p.hops_to(to) for p in able), default=0)
        able = [p for p in able if p.hops_to(to) == least]
        near = [p for p in able if zone and p.beat and p.beat.zone == zone]
        ids = [p.id for p in near or able]
        return choose(fragment, ids, lambda id: self._peers[id.name].declines)

    def _usable(self) -> Iterator[Peer]:
        """The peers that can pass offers on: none can be sent to a peer that nobody can dial."""
        return (
            peer
            for peer in self._peers.values()
            if peer.address
            and peer.linked
            and peer.training
            and not peer.suspected
            and peer.id not in self._doubted
        )

    def doubt(self, now: float, id: PeerId, seconds: float) -> None:
        """Nothing came of the offers that a go-between got. It is doubted for so long. If it was
        doubted before, that is at least twice as long as the last time, or an hour if that is less.
        """
        twice = min(LONGEST_S, 2 * self._lasted.get(id, 0.0))
        self._lasted[id] = max(seconds, twice)
        self._doubted[id] = now + self._lasted[id]

    def expire(self, now: float) -> None:
        """End the doubts whose time is over, and forget those of peers that are gone."""
        self._doubted = {id: until for id, until in self._doubted.items() if now < until}
        here = {peer.id for peer in self._peers.values()}
        self._lasted = {id: lasted for id, lasted in self._lasted.items() if id in here}
