"""The sealer's side of a fragment: offers come in, and at most one seal at a time goes out.

    phase     event         next     why
    ────────  ────────────  ───────  ──────────────────────────────────────────────────────────────
    WAITING   launch        CALLING  a learner is due, or about H median steps have passed: all
                                     learners that have not offered are called
    CALLING   seal          MERGING  `decide` says so: the members are fixed, and the worker merges
    MERGING   sealed, void  WAITING  the seal is published; or the anchor has moved in the meantime,
                                     or this learner was stopped, and the merge is thrown away
    CALLING   void          WAITING  another learner is the sealer now
    WAITING   void          WAITING  the same, with nothing begun

An offer is valid on any anchor of its genesis that has merged exactly the same author's earlier
offers, because progress does not change when its learner moves from one anchor to another
(`outer.py`). So the inbox outlives rounds, handovers and voided merges. An offer leaves it when an
anchor has merged it. Receipt is idempotent: an offer is known by (peer, seq)."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace
from enum import Enum

from mend_optim.engine.effects import Outsize
from mend_optim.engine.lateness import Lateness
from mend_optim.engine.quorum import Delays
from mend_optim.protocol.lineage import Entry, Lineage, PeerId
from mend_optim.protocol.messages import SIGNATURE, Offer
from mend_optim.protocol.peer_limits import COUNTER_LIMIT


class Phase(Enum):
    """See the table above."""

    WAITING = "waiting"
    CALLING = "calling"
    MERGING = "merging"


PHASES = {
    (Phase.WAITING, "launch"): Phase.CALLING,
    (Phase.CALLING, "seal"): Phase.MERGING,
    (Phase.MERGING, "sealed"): Phase.WAITING,
    (Phase.MERGING, "void"): Phase.WAITING,
    (Phase.CALLING, "void"): Phase.WAITING,
    (Phase.WAITING, "void"): Phase.WAITING,
}


class Round:
    """Offers held for one fragment, and the phase they are in."""

    def __init__(self, fragment: int) -> None:
        self.fragment = fragment
        #: Written by `_on` alone, by the table above.
        self.phase = Phase.WAITING
        #: Offers by sender, at most one of each. Rounds do not empty it: `purge` and `discard` do.
        self.inbox: dict[PeerId, Offer] = {}
        #: The senders whose offers were refused for their size, and count as empty ones until the
        #: round is sealed.
        self.outsized: dict[PeerId, Outsize] = {}
        #: The same of rounds that sealed nothing, until the user is told.
        self.untold: dict[PeerId, Outsize] = {}
        #: The offers that are being merged. Invariant: empty unless MERGING.
        self.members: tuple[Offer, ...] = ()
        #: The learners whose work the last seal has. In the next round, others may bring the work
        #: of several.
        self.regulars: frozenset[PeerId] = frozenset()
        #: Names of expected learners that are not among the members of the last round.
        self.absent: tuple[str, ...] = ()
        #: Why the last round was sealed.
        self.reason = ""
        #: Since when there have been enough offers; None while there are not.
        self.quorum_at: float | None = None
        #: When those that have not offered are called next.
        self.call_at = 0.0
        #: When the last round began to call. Invariant: <= `decided_at` of the same round.
        self.launched_at = 0.0
        #: When its members were fixed.
        self.decided_at = 0.0
        #: Whether the last merge was thrown away because this learner was stopped meanwhile.
        self.was_interrupted = False
        #: When it was sealed. Invariant: >= `decided_at` of the same round.
        self.sealed_at = float("-inf")
        #: The durations of past rounds, for the grace window.
        self.delays = Delays()
        #: How late the learners' answers to calls are.
        self.lateness = Lateness()

    def _on(self, event: str) -> None:
        """Take the table's transition; an event that the table does not list is a bug and raises
        `KeyError`."""
        self.phase = PHASES[self.phase, event]

    # ── offers ────────────────────────────────────────────────────────────────────────────────────

    def fresh(self, offer: Offer, lineage: Lineage) -> bool:
        """Whether the offer is new here: not merged and not held yet. An empty offer is fresh
        unless its sender has an offer here, or an older anchor. Else a sealer would get on alone
        with the word of those that stay behind, until its anchor has no majority."""
        repeated = any(_repeats(later, offer) for later in self.inbox.values())
        if offer.genesis != lineage.genesis or repeated:
            return False
        if not offer.steps:
            # Tokens without a step are no work, and a number or another's name on nothing would
            # make two entries of one author.
            is_nothing = not offer.tokens and not offer.seq and offer.inherited is None
            return is_nothing and offer.peer not in self.inbox and offer.key >= lineage.key
        held = self.inbox.get(offer.peer)
        has_place = held is None or not held.steps or replaces(offer, held)
        return has_place and _fits(offer, lineage)

    def add(self, *offers: Offer) -> None:
        """Hold a fresh offer, in place of an older one of its sender; or all those of a joint one.
        If the sender has another incarnation now, it still counts once for a quorum."""
        for offer in offers:
            kept = {peer: held for peer, held in self.inbox.items() if not _repeats(offer, held)}
            if offer.steps:
                self.outsized.pop(offer.peer, None)
            self.inbox = {**kept, offer.peer: offer}
        self._keep_whole()

    def purge(self, lineage: Lineage) -> None:
        """Drop the offers that the anchor has merged by now, and empty offers, which count for one
        seal only."""
        self.inbox = {
            peer: offer
            for peer, offer in self.inbox.items()
            if offer.genesis == lineage.genesis and offer.steps and _fits(offer, lineage)
        }
        self.forget_refused()
        self._keep_whole()

    def forget_refused(self) -> None:
        """No seal of this learner will tell of the offers that were refused."""
        self.untold |= self.outsized
        self.outsized.clear()

    def take_untold(self) -> dict[PeerId, Outsize]:
        """The refused offers of which no seal tells. They are forgotten here."""
        untold, self.untold = self.untold, {}
        return untold

    def held(self) -> tuple[tuple[PeerId, int], ...]:
        """(sender, seq) of every offer here, for a beat."""
        return tuple((peer, offer.seq) for peer, offer in self.inbox.items())

    def launch_due(self, now: float, expected: Collection[PeerId], interval_s: float) -> bool:
        """Whether to call the others: a learner has reached its own boundary, all offers are in, or
        a launch interval has passed."""
        if self.phase is not Phase.WAITING or not self.has_work:
            return False
        due = any(offer.due for offer in self.inbox.values())
        return due or set(expected) <= set(self.inbox) or now >= self.sealed_at + interval_s

    def missing(self, expected: Collection[PeerId]) -> list[PeerId]:
        """The learners among these that have no offer in the inbox."""
        return [peer for peer in expected if peer not in self.inbox]

    # ── the life of a round ───────────────────────────────────────────────────────────────────────

    def launch(self, now: float) -> None:
        """Begin to call."""
        self._on("launch")
        self.launched_at = now
        self.call_at = now

    def slept(self, now: float, seconds: float) -> None:
        """This learner was stopped for so long, which is no time of the round."""
        self.launched_at = min(now, self.launched_at + seconds)
        if self.quorum_at is not None:
            self.quorum_at = min(now, self.quorum_at + seconds)

    def called(self, peers: Iterable[PeerId], now: float, again_at: float) -> None:
        """Those that have not offered were called."""
        self.lateness.called(now, peers)
        self.call_at = again_at

    @property
    def has_work(self) -> bool:
        """Whether any offer has work in it, or the author of a refused one is to be told."""
        return any(offer.steps for offer in self.inbox.values()) or bool(self.outsized)

    def quorum_since(self, now: float, needed: int) -> float | None:
        """Since when there have been enough offers, if there are by now."""
        if len(self.inbox) < needed:
            return None
        return now if self.quorum_at is None else self.quorum_at

    def note_quorum(self, now: float, needed: int) -> None:
        """Remember since when there have been enough offers, and how long that took."""
        since = self.quorum_since(now, needed)
        if since is not None and self.quorum_at is None:
            self.delays.quorum_took(now - self.launched_at)
        self.quorum_at = since

    def candidates(self, expected: Collection[PeerId], most: int) -> tuple[Offer, ...]:
        """The offers that a seal would have now, in the order of peer names; at most so many, those
        of expected learners before others.

        Two offers may hold the same author's work, for example if two processes went on from one
        checkpoint. Then the earlier offer counts, the author's own before a copy of it, and the
        other becomes an empty one: its sender learns that from the new anchor."""
        held = [self.inbox[peer] for peer in self._first(expected, most)]
        stepped = sorted((o for o in held if o.steps), key=_precedence, reverse=True)
        counts = {offer.claim.author: offer for offer in stepped}
        return whole(o if not o.steps or counts[o.claim.author] is o else _nothing(o) for o in held)

    def leave_out_parts(self, expected: Collection[PeerId], most: int) -> bool:
        """Drop the joint offers that `candidates` leave out because a part of them cannot be merged
        now; return whether there were any. They must not count for a quorum. If they are not held,
        their relay passes on the other parts one by one."""
        merged = {offer.peer for offer in self.candidates(expected, most)}
        lost = set(self._first(expected, most)) - merged
        for peer in lost:
            self.drop(peer)
        return bool(lost)

    def _first(self, expected: Collection[PeerId], most: int) -> list[PeerId]:
        """The senders of at most so many offers, those of expected learners before others, in the
        order of their names."""
        return sorted(sorted(self.inbox, key=lambda peer: (peer not in expected, peer))[:most])

    def leave_out(self, offer: Offer) -> None:
        """This offer cannot be merged with the others that are here: it is held no more."""
        self.drop(offer.peer)

    def close(
        self, now: float, expected: Collection[PeerId], reason: str, most: int
    ) -> tuple[Offer, ...]:
        """Fix the members, and name the absent learners."""
        self._on("seal")
        self.decided_at = now
        self.members = self.candidates(expected, most)
        self.absent = tuple(sorted(peer.name for peer in self.missing(expected)))
        self.reason = reason if reason != "all_present" or not self.absent else "slow_left_out"
        return self.members

    def note_stop(self, stopped_at: float) -> bool:
        """The merge is over, and this learner's last stop was at `stopped_at`. Return whether to
        throw the merge away, because that was since its members were fixed. Never twice in a row:
        if each merge itself stops the learner, there would be no round at all."""
        self.was_interrupted = stopped_at >= self.decided_at and not self.was_interrupted
        return self.was_interrupted

    def sealed(self, now: float) -> None:
        """The seal is published. It tells of the offers that were refused."""
        self._on("sealed")
        self.sealed_at = now
        self.outsized.clear()
        self._reset()

    def advanced(self, now: float, members: Iterable[Entry], is_mine: bool) -> None:
        """This learner has the anchor of a seal with these members. If the seal `is_mine`, the
        sealer itself has it."""
        self.regulars = frozenset(entry.peer for entry in members if entry.steps)
        if is_mine:
            self.delays.sync_took(now - self.decided_at)

    def void(self) -> None:
        """The anchor moved, or another learner is the sealer now. The round is over, and the offers
        stay."""
        self._on("void")
        self._reset()

    def refuse(self, outsized: Mapping[int, Outsize]) -> None:
        """These members, by index, count as empty offers from here on: the members are to be fixed
        again. Their senders learn of it from the seal."""
        refused = {self.members[i].peer: found for i, found in outsized.items()}
        seqs = {offer.peer: offer.seq for offer in self.members}
        for peer, found in refused.items():
            held = self.inbox.get(peer)
            if held and held.seq != seqs[peer]:
                continue  # a newer offer, with this one's work in it
            self.outsized[peer] = found
            if held:
                self.inbox[peer] = _nothing(held)
        self._keep_whole()
        self.void()

    def drop(self, peer: PeerId) -> None:
        """Hold this peer's offer no more."""
        self.inbox.pop(peer, None)
        self._keep_whole()

    def discard(self) -> None:
        """These offers could not be merged with one another. None is held any more, or the same
        merge would be tried again at once."""
        self.inbox.clear()

    def _keep_whole(self) -> None:
        """Drop what came in a joint offer that is not all here any more."""
        self.inbox = {offer.peer: offer for offer in whole(self.inbox.values())}

    def _reset(self) -> None:
        self.quorum_at = None
        self.members = ()


def whole(offers: Iterable[Offer]) -> tuple[Offer, ...]:
    """These without the parts of joint offers of which another part is not among them: their packet
    is that of all of them. A part that has become an empty offer came in none."""
    held = {offer.peer: offer for offer in offers}
    stay = set()
    for first in held.values():
        parts = [(other, held.get(other.peer)) for other in first.others]
        here = all(p and p.carrier == first.peer and p.seq == other.seq for other, p in parts)
        if first.carrier is None and here:
            stay |= {first.peer, *(other.peer for other in first.others)}
    return tuple(offer for offer in held.values() if offer.peer in stay)


def _fits(offer: Offer, lineage: Lineage) -> bool:
    """Whether an anchor can merge the offer without a repetition and without a gap. An anchor that
    has an offer has the one that it follows, so the merged vector says all that is in it."""
    author = offer.claim.author
    in_turn = lineage.last_merged(author) == offer.follows <= offer.claim.settled
    if not lineage.has_room_for(author):
        return False
    return in_turn and lineage.tokens + offer.tokens <= COUNTER_LIMIT


def replaces(offer: Offer, held: Offer) -> bool:
    """Whether an offer takes the place of one that is held, with work, of the same sender. An
    offer that came from its sender goes before one that another peer has passed on, and may have
    made up: an invented number would keep the true offer out for ever.

    A later offer does not drive out a joint one, in which there is the work of others. Its sender
    offers the rest again, on the anchor that has the joint one."""
    if _came_joint(held) and held.claim.author == offer.claim.author and held.seq < offer.seq:
        return False
    if (offer.passed_by is None) == (held.passed_by is None):
        return offer.order > held.order
    differs = (offer.entry, offer.follows) != (held.entry, held.follows)
    return differs and offer.passed_by is None


def _came_joint(offer: Offer) -> bool:
    """Whether an offer is a part of a joint one."""
    return offer.carrier is not None or bool(offer.others)


def _repeats(later: Offer, offer: Offer) -> bool:
    """Whether `later`, from a later incarnation of the same sender, has all that `offer` has."""
    is_later = later.peer.name == offer.peer.name and later.peer > offer.peer
    same = (later.claim, later.seq) == (offer.claim, offer.seq)
    return is_later and (same or not offer.steps)


def _precedence(offer: Offer) -> tuple[int, bool, PeerId]:
    """The order of offers that hold the same author's work: the first one counts."""
    return offer.seq, offer.claim.author != offer.peer, offer.peer


def _nothing(offer: Offer) -> Offer:
    """An empty offer of the same sender. The signature shows that the sender is there."""
    kept = {name: packet for name, packet in offer.sections.items() if name == SIGNATURE}
    return replace(
        offer,
        seq=0,
        tokens=0,
        steps=0,
        sections=kept,
        content=b"",
        inherited=None,
        follows=0,
        again=(0, 0),
        others=(),
        carrier=None,
    )
