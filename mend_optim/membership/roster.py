"""Which peers a learner knows, which of them are alive, and which learner seals.

    alive ──silence, deafness or a broken link──▶ suspected ──evict_after_s of silence──▶ evicted
      ▲                                               │
      └─────────────── any sign of life ──────────────┘        a goodbye evicts at once

Liveness spreads by gossip: a peer's beat count grows with every beat, and hearing of a greater
count from anybody is a sign of life. A peer is deaf if its own beats show that it has not heard of
this learner for a while, from anybody. A deaf peer is suspected, because nothing that is sent to it
arrives.

A name has one incarnation on the roster: a greater one replaces a smaller one. Of an evicted peer
only a tombstone stays, which keeps old gossip from bringing the peer back. A process that is not
beyond them is turned away, and told so: `namesake`.

A word about a third learner is only a hint. A peer that this learner has not heard itself is
dialled, and news of it is passed on, but it counts for no quorum, holds up no round, and seals only
if others reach it: see `go_betweens.py`. A goodbye that somebody else tells of is believed only of
a peer that is not linked with this learner. The roster has at most `limits.learners` places; a peer
known by hearsay gives its place up first.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import islice, pairwise

from mend_optim.membership.broadcasts import FANOUT, Broadcasts, audience
from mend_optim.membership.go_betweens import GoBetweens
from mend_optim.membership.graves import LEFT, Graves
from mend_optim.membership.own_place import OwnPlace
from mend_optim.membership.peer import Peer
from mend_optim.membership.resumed import Resumed
from mend_optim.membership.sealers import choose, choose_each
from mend_optim.membership.turned_away import TurnedAway
from mend_optim.protocol.handshake import Life, Namesake
from mend_optim.protocol.lineage import CLOCKS_DIFFER_NS, PeerId
from mend_optim.protocol.messages import Beat, Rumor
from mend_optim.protocol.peer_limits import Limits
from mend_optim.protocol.timing import Timing

LIMITS = Limits()
#: Beats after a peer was met in which those that this learner has not heard yet hold up rounds.
PHANTOMS = 5
#: Processes turned away that one beat passes on: the newest.
AWAY = 64


class Roster:
    """The peers that one learner knows, itself not included.

    `meet`, `hear` and `gossip` feed it, `expire` ages it. Time is always an argument.

    Args:
        me: This learner.
        address: Where others can dial this learner; empty if nobody can, and then it never seals.
        timing: When silence makes a suspect, and when it evicts.
        limits: How many learners there may be.
        zone: This learner's zone; empty if it is in none.
    """

    def __init__(
        self, me: PeerId, address: str, timing: Timing, limits: Limits = LIMITS, zone: str = ""
    ) -> None:
        self.me = me
        self.zone = zone
        self.address = address
        self.place = OwnPlace()
        #: Whether the sender of a beat has another model than this learner. It seals nothing here.
        self.trains_other: Callable[[Beat], bool] = lambda beat: False
        #: Those that declined until lately.
        self.resumed = Resumed()
        self.timing = timing
        self.limits = limits
        #: By name. Invariant: peers[name].id.name == name != me.name.
        self.peers: dict[str, Peer] = {}
        self._graves = Graves()
        #: Those with an open control stream. Not all of them are on the roster.
        self._streams: set[PeerId] = set()
        #: The peers that reach others.
        self.go_betweens = GoBetweens(self.peers)
        self._turned_away = TurnedAway()
        #: Whether any peer has ever been here.
        self.had_company = False
        #: Whether nobody new is admitted, because the run is about to end.
        self.closed = False
        #: When this learner first heard of others; None before. Its incarnation began no later.
        self._since: float | None = None
        self._broadcasts = Broadcasts()

    def __iter__(self) -> Iterator[Peer]:
        """Iterate over all peers, in the order in which they came. Don't add or remove peers
        meanwhile."""
        return iter(self.peers.values())

    def beats(self, genesis: bytes | None = None) -> list[Beat]:
        """Return the last beat of every peer that has sent one, suspects included.

        Args:
            genesis: Only the beats of peers with these first weights; None: all.
        """
        known = [peer.beat for peer in self if peer.beat]
        return [beat for beat in known if genesis is None or beat.genesis == genesis]

    def find(self, id: PeerId) -> Peer | None:
        """Return the peer of exactly this incarnation, if it is on the roster."""
        peer = self.peers.get(id.name)
        return peer if peer and peer.id == id else None

    def meet(self, now: float, id: PeerId, address: str) -> Peer | None:
        """Take note of a peer that said hello. This is direct news, so it lifts a tombstone of the
        same incarnation, unless that said goodbye.

        Returns:
            The peer; None if it is this learner, a past incarnation, or new to a closed or full
            roster.
        """
        known = self.peers.get(id.name)
        if id.name == self.me.name:
            return None
        if self.namesake(id):
            self._turned_away.add(id)
            return None
        if known is None or known.id != id:
            if self.closed or (known is None and not self._make_room()):
                return None
            self._turned_away.forget(id.name)
            incarnation, count = self._graves.last(id.name)
            self._graves.open(id.name)
            count = count if incarnation == id.incarnation else 0
            known = self._add(now, id, address, count)
        known.greets(now, self._broadcasts.newest, now + self.timing.evict_after_s)
        known.address = address
        return known

    def namesake(self, id: PeerId) -> Namesake | None:
        """Return the process of the same name because of which `meet` turns this one away, if there
        is one."""
        known = self.peers.get(id.name)
        if known and known.id.incarnation > id.incarnation:
            return Namesake(known.id, Life.SUSPECTED if known.silent else Life.ALIVE)
        incarnation, count = self._graves.last(id.name)
        if (incarnation, count) >= (id.incarnation, LEFT):
            return Namesake(PeerId(id.name, incarnation), Life.GONE)
        return None

    def turned_away(self) -> tuple[PeerId, ...]:
        """Return the processes that were turned away because one of their name is alive, the
        newest. That one shall hear of it."""
        known = [(id, self.namesake(id)) for id in self._turned_away]
        alive = [id for id, namesake in known if namesake and namesake.life is Life.ALIVE]
        return tuple(alive[-AWAY:])

    def hear(self, now: float, beat: Beat) -> Peer | None:
        """Take in a beat from the peer itself.

        Returns:
            The peer; None if the beat is older than a known one, of a past incarnation, or this
            learner's own.
        """
        known = self.find(beat.peer)
        if known and known.beat and beat.count <= known.beat.count:
            return None
        self.resumed.hear(now, known, beat)
        # if gossip was faster than the beat, `_learn` finds nothing new in it
        peer = self._learn(now, beat) or known
        if peer:
            peer.fresh = peer.fresh or (peer.beat is None and beat.position == 0)
            # It may have found that nobody can dial it.
            peer.beat, peer.address, peer.sign_at = beat, beat.address, now
            peer.tells_ways(beat.roster[: self.limits.rumors])
            # Gossip may have told of a greater count, and not truly: this is a sign of life, too.
            peer.heard_at = now
            peer.silent = False
            counts = [rumor.count for rumor in beat.roster if rumor.peer == self.me]
            peer.learns(max(counts, default=0), self._broadcasts.newest)
            hears_nothing = self._broadcasts.makes_deaf(peer.learned_at, self.size)
            peer.deaf = hears_nothing and now >= (peer.answers_by or now)
        return peer

    def broadcast(self, now: float, count: int) -> None:
        """Take note that this learner sends beat number `count` to all."""
        self._broadcasts.sent(now, count, self.timing.beat_s)
        self._graves.broadcast()

    def gossip(self, now: float, rumors: Iterable[Rumor]) -> list[Rumor]:
        """Take in what a peer says of others: a greater count is a sign of life, and `left` passes
        a goodbye on. A peer that is linked with this learner says goodbye itself.

        Returns:
            The goodbyes that are believed; `leave` is still to be called.
        """
        goodbyes = []
        latest = self._latest(now)
        for rumor in islice(rumors, self.limits.rumors):
            if rumor.peer.incarnation > latest:
                continue
            if not rumor.left:
                self._learn(now, rumor)
            elif not self._is_linked(rumor.peer.name):
                goodbyes.append(rumor)
        return goodbyes

    def _latest(self, now: float) -> int:
        """The greatest incarnation that hearsay may tell of."""
        if self._since is None:
            self._since = now
        return self.me.incarnation + int((now - self._since) * 1e9) + CLOCKS_DIFFER_NS

    def _may_be(self, name: str) -> bool:
        """Whether hearsay may bring this name to the roster, or a new process of it: not in place
        of a peer that is linked, and only while there is room."""
        has_place = name in self.peers or self.size < self.limits.learners
        return has_place and not self._is_linked(name)

    def _is_linked(self, name: str) -> bool:
        return name in self.peers and self.peers[name].linked

    def _make_room(self) -> bool:
        """Whether there is room for one more peer; if need be, one known by hearsay goes."""
        if self.size < self.limits.learners:
            return True
        hearsay = next((p for p in self if p.is_hearsay), None)
        if hearsay is None:
            return False
        del self.peers[hearsay.id.name]
        return True

    def _learn(self, now: float, news: Beat | Rumor) -> Peer | None:
        """Take in a sign of life: a beat of the peer itself, or what another one tells. Return the
        peer, or None if that is nothing new."""
        name, incarnation = news.peer
        known = self.peers.get(name)
        last = (known.id.incarnation, known.count) if known else self._graves.last(name)
        if name == self.me.name or (incarnation, news.count) <= last:
            return None
        if known is None or known.id != news.peer:
            if self.closed or not (isinstance(news, Beat) or self._may_be(name)):
                return None
            if known is None and isinstance(news, Beat) and not self._make_room():
                return None
            lost = self._graves.is_silent(news.peer)
            self._graves.open(name)
            known = self._add(now, news.peer, news.address, news.count, lost)
        if isinstance(news, Rumor):
            self.resumed.hear(now, known, news)
            known.rumor = news
        known.count = news.count
        known.heard_at = now
        known.silent = False
        if not known.heard:
            known.address = news.address
        return known

    def _add(self, now: float, id: PeerId, address: str, count: int, lost: bool = False) -> Peer:
        peer = self.peers[id.name] = Peer(
            id=id,
            address=address,
            count=count,
            met_at=now,
            heard_at=now,
            knows=self._broadcasts.newest,
            linked=id in self._streams and not lost,
            lost=lost,
        )
        self.had_company = True
        return peer

    def touch(self, now: float, id: PeerId) -> None:
        """Take note that bytes arrived from a peer, which is a sign of life, too."""
        peer = self.find(id)
        if peer:
            peer.heard_at = peer.sign_at = now
            peer.silent = False

    def link(self, now: float, id: PeerId, up: bool) -> None:
        """Take note that the first control stream with a peer opened, or the last one broke. A
        peer without one is suspected at once, unless this learner hung up while others told that
        the peer lives: where they agree, nobody else seals for it meanwhile."""
        (self._streams.add if up else self._streams.discard)(id)
        peer = self.find(id)
        if peer:
            peer.linked = up
            hung_up = peer.lost and not peer.heard
            peer.silent = not up and (peer.silent or not hung_up)
            if up:
                peer.heard_at = peer.sign_at = now
                peer.lost = False

    def leave(self, id: PeerId, proof: bytes = b"") -> bool:
        """Evict a peer that said goodbye. That incarnation never comes back.

        Args:
            id: The peer.
            proof: The proof of its goodbye, which is passed on with it.

        Returns:
            Whether the peer was on the roster.
        """
        if id.name == self.me.name or self._graves.last(id.name) >= (id.incarnation, LEFT):
            return False
        known = self.peers.get(id.name)
        if known and known.id.incarnation > id.incarnation:
            return False
        self.peers.pop(id.name, None)
        self._graves.bury(id, LEFT, proof)
        return known is not None

    def leave_out(self, id: PeerId) -> None:
        """Evict a peer, however live it is. Newer news of it brings it back to an open roster."""
        self._graves.bury(id, self.peers.pop(id.name).count)

    def slept(self, now: float, seconds: float) -> None:
        """This learner was stopped for so long, and could hear nobody: that was no silence. Until a
        peer is heard again, this holds once: a learner may be stopped again and again, and the peer
        may be dead."""
        for peer in self:
            if peer.heard_at != peer.excused_at:
                peer.heard_at = peer.excused_at = min(now, peer.heard_at + seconds)
                peer.sign_at = min(now, peer.sign_at + seconds)

    def has_lost(self, id: PeerId) -> bool:
        """Whether this process was evicted for its silence, and the two have not met anew. Not on a
        closed roster, to which nobody comes back."""
        known = self.find(id)
        return not self.closed and (self._graves.is_silent(id) if known is None else known.lost)

    def expire(self, now: float) -> list[PeerId]:
        """Suspect the silent peers, and evict those that have been silent for long.

        Returns:
            The evicted.
        """
        self.go_betweens.expire(now)
        self.resumed.expire(now, lambda id: id == self.me or self.find(id) is not None)
        # These sums must be those of `wake_at`. Rounded in another way, they could let a learner
        # wake up and find nothing to do, again and again.
        for peer in self:
            if now >= peer.heard_at + peer.suspect_after_s(self.timing):
                peer.silent = True
            if peer.heard and now >= peer.sign_at + self._hearsay_after_s(peer):
                # Others may still reach it. This learner knows it by hearsay alone.
                peer.is_heard_no_more()
        silent = [p for p in self if now >= p.heard_at + self.timing.evict_after_s]
        for peer in silent:
            del self.peers[peer.id.name]
            self._graves.bury(peer.id, peer.count, silent=True)
        return [peer.id for peer in silent]

    def _hearsay_after_s(self, peer: Peer) -> float:
        """After how long without a sign of its own a peer is known by hearsay. In a big roster,
        not every beat comes to everyone."""
        return (1 + self.size // FANOUT if peer.linked else 1) * self.timing.evict_after_s

    def wake_at(self) -> float:
        """Return when the next peer is to be suspected or evicted, if nothing is heard of it."""
        evict_after_s = self.timing.evict_after_s
        times = (
            p.heard_at
            + (evict_after_s if p.silent else min(evict_after_s, p.suspect_after_s(self.timing)))
            for p in self
        )
        return min(times, default=float("inf"))

    @property
    def alone(self) -> bool:
        """Whether there is no peer, suspects included."""
        return not self.peers

    @property
    def size(self) -> int:
        """The number of learners on the roster, this one included."""
        return 1 + len(self.peers)

    @property
    def heard(self) -> int:
        """The number of learners that this one has heard itself, this one included."""
        return 1 + sum(peer.heard for peer in self)

    def alive(self) -> list[PeerId]:
        """Return the peers that are not suspected, in name order."""
        return sorted(p.id for p in self if not p.suspected)

    def sealer(self, fragment: int) -> PeerId | None:
        """Return the learner that runs a fragment's rounds, of the live ones that can be dialled
        and have the fragment: see `sealers`. None if there is none."""
        return self._chosen(range(fragment, fragment + 1))[0]

    def sealers(self, fragments: int) -> list[PeerId | None]:
        """Return the sealer of each of the first fragments. For those that the same learners have,
        it goes through the roster once: each beat is looked at for all fragments, and there may be
        many of both."""
        ends = sorted({0, fragments, *(int(min(p.fragments, fragments)) for p in self)})
        spans = [range(first, end) for first, end in pairwise(ends)]
        return [sealer for span in spans for sealer in self._chosen(span)]

    def _chosen(self, span: range) -> list[PeerId | None]:
        """The sealers of fragments that the same learners have."""
        live = [p for p in self if p.address and not p.suspected and p.has(span[0])]
        return choose_each(span, self._candidates(live), self.declines_to_seal)

    def may_seal(self, fragment: int, id: PeerId) -> bool:
        """Whether a learner seals a fragment by this roster, or would if it were not suspected, or
        if nobody were, or if it did not decline, or if those that seal again still declined. Others
        may not suspect those that this learner suspects, and a seal may have been on its way when
        its sealer declined, or when the learner for which it sealed took its place again."""
        if self.sealer(fragment) in (None, id):
            return True
        able, peer = self.able(fragment), self.find(id)
        with_it = [p for p in able if p is peer or not p.suspected]
        seen = [self._candidates(peers) for peers in (with_it, able)]
        stood_back = self.resumed.besides(id, self.declines_to_seal)
        return peer in able and id in (choose(fragment, some, stood_back) for some in seen)

    def able(self, fragment: int) -> Sequence[Peer]:
        """Return the peers that can seal a fragment, suspects included."""
        return self.go_betweens.choosable([p for p in self if p.address and p.has(fragment)])

    def _candidates(self, peers: Sequence[Peer]) -> list[PeerId]:
        """Those of these peers that may be chosen, and this learner if it can be dialled and may
        be."""
        return self.go_betweens.candidates(peers, [self.me] if self.address else [])

    def declines_to_seal(self, id: PeerId) -> bool:
        """Whether a learner, perhaps this one, leaves its place as a sealer to others."""
        if id == self.me:
            return self.place.is_left
        peer = self.peers[id.name]
        return peer.declines or (peer.beat is not None and self.trains_other(peer.beat))

    def known_at(self, started: bool) -> float:
        """Return from when on all learners know each other: a beat after the last peer was met
        that may know others, or seal for some.

        Args:
            started: Whether there have been rounds here. If so, fresh peers don't count: a peer
                that began with nothing seals for nobody.
        """
        peers = [p for p in self if not (started and p.fresh)]
        met = max((p.met_at for p in peers), default=float("-inf"))
        # Phantoms may come at any time. They hold rounds up while real learners meet, not later.
        heard = max((p.met_at for p in peers if p.heard), default=float("-inf"))
        return min(met, heard + PHANTOMS * self.timing.beat_s) + self.timing.beat_s

    def rumors(self) -> tuple[Rumor, ...]:
        """Return what this learner passes on: every peer that is not silent, and the goodbyes."""
        hops = self.go_betweens.hops([p.id for p in self if not p.reached])
        told = (_rumor_of(p, hops.get(p.id, 0)) for p in self if not p.silent)
        return (*told, *self._graves.goodbyes())

    def audience(self, count: int) -> list[PeerId]:
        """Return the peers to send beat number `count` to: all of them, or in a big roster a window
        of `FANOUT`, which moves on with every beat. Phantoms take no place in it, or the others
        would hear of this learner too rarely."""
        everyone = sorted(p.id for p in self if self.size <= FANOUT or not p.is_hearsay)
        return audience(everyone, count)


def _rumor_of(peer: Peer, hops: int) -> Rumor:
    """The news of a peer, with how far it is with its end. `hops`: the links on the way to it
    through others; 0 if there is none."""
    word = peer.word
    rumor = Rumor(
        peer.id,
        peer.address,
        peer.count,
        reached=peer.reached,
        hops=hops,
        declines=peer.declines,
    )
    if word is None or not word.finishes:
        return rumor
    return replace(rumor, finishes=True, ready=word.ready, tokens=word.tokens)
