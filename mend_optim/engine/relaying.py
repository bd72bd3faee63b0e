"""Offers that a learner holds for rounds that another one runs, and passes on to that sealer: those
of learners that are gone, because nobody else has a copy; those that it relays for its zone; and
those of learners that do not reach the sealer. If this learner does not reach it either, they go to
a go-between, which does the same.

The sealer may refuse such an offer for good: because of its size, its signature, or its author's
name. So the holder waits twice as long after each time. An offer that is still on its way is not
sent again, however long that takes: it would have to begin anew. After `TRIES` the holder gives up
the offer of a learner that is gone, if it was the sealer that did not keep it: a go-between may
refuse it because its author is still here. A learner that lives asks for its offer in other ways.
The holder begins anew with another sealer."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from mend_optim.engine.effects import EXCHANGE, PASS_ON, Done, Join, Send
from mend_optim.engine.joint_offers import JointOffers
from mend_optim.engine.passed_seals import PassedSeals
from mend_optim.engine.pending import NEVER
from mend_optim.engine.round import Round
from mend_optim.engine.state import EngineState
from mend_optim.membership.peer import Peer
from mend_optim.membership.reach import are_apart, connected, is_far_behind
from mend_optim.membership.zones import are_neighbours
from mend_optim.protocol.lineage import Key, PeerId
from mend_optim.protocol.messages import Message, Offer, Seal

#: Times that one sealer gets an offer that it does not keep.
TRIES = 5


@dataclass(slots=True, kw_only=True)
class _Passing:
    """How often an offer has reached the sealer, or a go-between."""

    seq: int
    to: PeerId
    #: Before this time it is not sent again; `NEVER` while it is on its way.
    next_at: float
    arrived: int = 0
    #: The anchor that the peer showed when it was first due again. None before, and if this learner
    #: had it by then.
    until: Key | None = None


class Relaying:
    """Passes on the offers that another learner is to merge."""

    def __init__(self, state: EngineState) -> None:
        self.state = state
        #: By the offer's sender and its fragment.
        self._passing: dict[tuple[PeerId, int], _Passing] = {}
        self.joint = JointOffers(state)
        self.passed_seals = PassedSeals(state)

    def joined(self, now: float, job: Join, done: Done) -> None:
        """The worker has joined offers, or could not. If they are on their way, they are not passed
        on one by one for a while."""
        for offer in self.joint.joined(now, job, done):
            self._wait(now, self._passing_of(now, offer, job.sealer))

    def pass_on(self, now: float, round: Round) -> None:
        """Another learner seals this fragment: it gets what it does not hold."""
        self._forget_others(round)
        state = self.state
        sealer = state.roster.find(state.sealer(round.fragment) or state.me)
        if sealer is None:
            return
        to = self._next_hop(round, sealer)
        lacking = [
            offer for offer in self._lacking(round, sealer, to) if self._is_due(now, offer, to)
        ]
        if self.joint.gathers(now, round, sealer.id, lacking):
            return
        for offer in lacking:
            passing = self._passing_of(now, offer, to.id)
            if to is sealer and passing.arrived >= TRIES and not self._lives(offer.peer):
                round.drop(offer.peer)
                state.fault(_given_up(offer, sealer.id))
            else:
                passing.next_at = NEVER
                state.emit(Send(to.id, offer, PASS_ON))

    def may_pass_on(self, offer: Offer, by: PeerId) -> bool:
        """Whether a peer may pass on an offer: of an author that is gone from here, too, that this
        learner has no stream with, or that is the peer's neighbour; a joint one, if all are gone
        that made it. Of authors that are not on the roster, as many offers are held as learners may
        be there: any name can be invented."""
        if offer.others:
            return self._may_be_gone({each.peer for each in offer.together})
        is_near = are_neighbours(self.state.roster, offer.peer, by)
        return is_near or self._may_be_gone({offer.peer})

    def _may_be_gone(self, authors: set[PeerId]) -> bool:
        """Whether authors are gone as far as this learner can tell, and may be held here."""
        found = {author: self.state.roster.find(author) for author in authors}
        if any(known and known.linked and not known.suspected for known in found.values()):
            return False
        unknown = {author for author, known in found.items() if known is None}
        return not unknown or self._has_room_for(unknown)

    def _has_room_for(self, authors: set[PeerId]) -> bool:
        state = self.state
        held = {peer for round in state.rounds for peer in round.inbox}
        unknown = {peer for peer in held if state.roster.find(peer) is None}
        return authors <= unknown or len(unknown | authors) <= state.policies.limits.learners

    def hand_down(self, seal: Seal) -> None:
        """The learners whose offers this one relays get the seal from it, too. Others may ask for
        it."""
        state, p = self.state, seal.fragment
        authors = sorted(set(state.rounds[p].inbox) - {state.me})
        far = connected(state.roster, p, authors, seal.sealer)
        for peer in authors:
            if peer in far or are_neighbours(state.roster, state.me, peer):
                state.emit(Send(peer, seal, EXCHANGE))
        self.passed_seals.keep(seal)

    def arrived(self, now: float, to: PeerId, message: Message) -> None:
        """A peer has the whole of a message. If that is an offer, its beats tell whether it keeps
        it, and those that are joined with it."""
        for passing in self._passed(to, message):
            self._wait(now, passing)
            passing.arrived += 1
            passing.until = None

    def failed(self, now: float, to: PeerId, message: Message) -> None:
        """A message did not reach a peer."""
        for passing in self._passed(to, message):
            self._wait(now, passing)

    def _passed(self, to: PeerId, message: Message) -> Iterator[_Passing]:
        for each in message.together if isinstance(message, Offer) else ():
            passing = self._passing.get((each.peer, each.fragment))
            if passing and (passing.seq, passing.to) == (each.seq, to):
                yield passing

    def _is_due(self, now: float, offer: Offer, to: Peer) -> bool:
        """Whether to send an offer that a peer does not hold: not if it is on its way there, or has
        arrived, and may be in the peer's anchor, which this learner has yet to get."""
        passing = self._passing_of(now, offer, to.id)
        if now < passing.next_at or self.joint.is_on_its_way(offer, to.id):
            return False
        return not passing.arrived or not self._may_be_merged(passing, offer.fragment)

    def _may_be_merged(self, passing: _Passing, p: int) -> bool:
        """Whether a peer may have merged an offer that has reached it. Where rounds take less time
        than their seals, the peer is always ahead: the first anchor that it shows without the offer
        tells."""
        own, shown = self.state.fragments[p].lineage.key, self.state.shown_by(passing.to, p)
        if shown is None or shown <= own:
            return False
        passing.until = passing.until or shown
        return own < passing.until

    def _next_hop(self, round: Round, sealer: Peer) -> Peer:
        """The sealer, or a go-between if this learner does not reach it."""
        roster = self.state.roster
        between = roster.go_betweens.choose(round.fragment, sealer.id, zone=roster.zone)
        return roster.find(between or sealer.id) or sealer

    def _lacking(self, round: Round, sealer: Peer, to: Peer) -> Iterator[Offer]:
        """Offers with work which the next hop does not hold, and that did not come from there: of
        learners that are gone, of those that the sealer does not reach, even if there are several
        hops between them, and of those of this zone if the sealer is in another one."""
        p, roster = round.fragment, self.state.roster
        reports = to.beat.reports if to.beat else ()
        held = reports[p].held if p < len(reports) else ()
        is_far = not are_neighbours(roster, roster.me, sealer.id)
        for peer in sorted(set(round.inbox) - {self.state.me}):
            offer = round.inbox[peer]
            relayed = is_far and are_neighbours(roster, roster.me, peer)
            apart = are_apart(roster, peer, sealer.id)
            behind = is_far_behind(roster, offer.passed_by or peer, sealer.id, to.id)
            wanted = relayed or apart or behind or not self._lives(peer)
            separate = offer.carrier is None and (not offer.others or self._is_left(offer))
            comes_back = to is not sealer and to.id in (peer, offer.passed_by)
            held_or_back = comes_back or (offer.peer, offer.seq) in held
            if wanted and separate and offer.steps and not held_or_back:
                yield offer

    def _is_left(self, joint: Offer) -> bool:
        """Whether all are gone whose work a joint offer has: nobody offers any part of it again."""
        return not any(self._lives(each.peer) for each in joint.together)

    def _lives(self, peer: PeerId) -> bool:
        known = self.state.roster.find(peer)
        return known is not None and not known.suspected

    def _passing_of(self, now: float, offer: Offer, to: PeerId) -> _Passing:
        place = offer.peer, offer.fragment
        known = self._passing.get(place)
        if known is None or (known.seq, known.to) != (offer.seq, to):
            known = _Passing(seq=offer.seq, to=to, next_at=now)
            self._passing[place] = known
        return known

    def _wait(self, now: float, passing: _Passing) -> None:
        suspect_after_s = self.state.policies.timing.suspect_after_s
        passing.next_at = now + suspect_after_s * 2.0 ** min(passing.arrived, TRIES)

    def _forget_others(self, round: Round) -> None:
        """Forget how it went with offers that are here no more."""
        self._passing = {
            (peer, p): passing
            for (peer, p), passing in self._passing.items()
            if p != round.fragment or peer in round.inbox
        }


def _given_up(offer: Offer, sealer: PeerId) -> str:
    """What the user is told of an offer that is held no more."""
    names = " and ".join(each.peer.name for each in offer.together)
    gone = "which are gone" if offer.others else "which is gone"
    kept = f"{sealer.name} did not keep it {TRIES} times"
    return f"offer {offer.seq} of {names}, {gone}, given up: {kept}"
