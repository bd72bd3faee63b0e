"""Joint offers, on the side of the relay: the worker makes one offer of the relay's own and those
of its neighbours, for a sealer in another zone.

    own offer here ──▶ gathering ──all are here, or it takes too long──▶ joining ──▶ sent

While a relay gathers, it calls the neighbours that have not offered, as a sealer does. A joint
offer is merged whole or not at all. If the sealer does not keep it, the relay passes the offers on
one by one: nothing depends on a joint one."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from mend_optim.engine.effects import Done, Join, Send
from mend_optim.engine.policies import weights
from mend_optim.engine.residual_share import NO_SHARE
from mend_optim.engine.round import Round
from mend_optim.engine.state import EngineState
from mend_optim.membership.zones import are_neighbours, zone_of
from mend_optim.protocol.lineage import PeerId
from mend_optim.protocol.messages import (
    JOINT_DELTAS,
    JOINT_MOMENTS,
    MOMENT_PREFIX,
    NO_JOINT,
    Call,
    Offer,
    Packet,
    Sections,
)
from mend_optim.protocol.peer_limits import OTHERS_LIMIT

#: A relay waits for its neighbours for this share of a period, and of the grace of a round.
PERIODS, GRACES = 0.25, 0.5
#: Sections in which the bytes do not matter.
DELTA_ALONE: Sections = {"delta": Packet("none", 0, memoryview(b""))}


def may_join(offer: Offer, level: int = JOINT_MOMENTS) -> bool:
    """Whether an offer is of new work of its own sender alone, and has nothing but its delta and,
    for a sealer that takes such, moments."""
    alone = not offer.others and offer.carrier is None and offer.inherited is None
    is_new = offer.steps > 0 and offer.again == NO_SHARE
    moments = {name for name in offer.sections if name.startswith(MOMENT_PREFIX)}
    fits = level >= (JOINT_MOMENTS if moments else JOINT_DELTAS)
    return alone and is_new and fits and set(offer.sections) - moments == {"delta"}


def flaw_of_joint(offer: Offer, state: EngineState) -> str:
    """Why a received joint offer is refused; empty if it is not."""
    zone = zone_of(state.roster, offer.peer)
    # An empty offer is taken without a look at its bytes, and the others would come along.
    if offer.others and not may_join(replace(offer, others=(), sections=DELTA_ALONE)):
        return "it cannot be joined with others"
    for other in offer.others:
        if state.is_me(other.peer):
            return "it has an offer of this learner"
        if zone and zone_of(state.roster, other.peer) not in ("", zone):
            return f"it has an offer of {other.peer.name}, which is not its neighbour"
        # A sender says nothing of the bytes of these.
        bare = replace(other, sections=DELTA_ALONE)
        if other.genesis != offer.genesis or not may_join(bare):
            return f"its offer of {other.peer.name} cannot be joined"
    return ""


def may_take(offer: Offer, state: EngineState) -> bool:
    """Whether this learner takes a received offer, as far as others are in it. It may not have
    heard yet who is whose neighbour; then the offers come one by one. A neighbour has no joint one
    for it: offers are joined to leave their zone. Parts of one would keep the offers of their
    authors out, which this learner may have to pass on."""
    if not offer.others:
        return True
    joins = state.takes_joint(offer.fragment) > NO_JOINT
    if offer.passed_by:
        return joins  # nobody is left who would offer its parts
    if are_neighbours(state.roster, state.me, offer.peer):
        return False
    near = (are_neighbours(state.roster, offer.peer, other.peer) for other in offer.others)
    return joins and all(near)


class JointOffers:
    """Gathers the offers of a zone, and has them joined."""

    def __init__(self, state: EngineState) -> None:
        self.state = state
        #: By fragment, since when this learner's own offer waits for others.
        self._since: dict[int, float] = {}
        #: The fragments whose offers the worker joins.
        self._joining: set[int] = set()
        #: By fragment, (sender, number) of the offers that were in a joint one. A second time they
        #: go one by one: the sealer may not take one of them.
        self._tried: dict[int, set[tuple[PeerId, int]]] = {}
        #: By fragment, when the last joint offer was sent.
        self._sent_at: dict[int, float] = {}

    def gathers(self, now: float, round: Round, sealer: PeerId, others: Sequence[Offer]) -> bool:
        """Whether `others`, which the sealer lacks, are to wait: for our own, for one another, or
        for the worker. If nothing is missing, they are joined; without any, our own goes alone."""
        p = round.fragment
        own = self.waiting(p)
        if p in self._joining:
            return True
        level = self.state.joins_for(p, sealer)
        joined = [offer for offer in others if self._joins(offer, level)]
        comes = bool(joined) and self._expects_own(p)
        if own is None and not comes:
            self._since.pop(p, None)
            return False
        if own and not self._joins(own, level):
            self._send(now, own, sealer)
            return False
        if self._waits(now, round, own):
            return True
        if own and joined:
            self._join(p, sealer, (own, *joined[:OTHERS_LIMIT]))
            return True
        if own:
            self._send(now, own, sealer)
        return False

    def _waits(self, now: float, round: Round, own: Offer | None) -> bool:
        """Whether an offer is missing, and its learner may be waited for. It is called once."""
        p, missing = round.fragment, self._missing(round)
        if p not in self._since:
            self._since[p] = now
            self._call(p, missing, calls_own=own is None)
        until = self._since[p] + self._patience_s()
        if (own and not missing) or now >= until:
            return False
        self.state.wake_by(until)
        return True

    def joined(self, now: float, job: Join, done: Done) -> tuple[Offer, ...]:
        """The worker has joined offers, or could not. Returns those that are on their way."""
        state, (own, *others) = self.state, job.offers
        self._joining.discard(job.fragment)
        self._tried[job.fragment] = {(offer.peer, offer.seq) for offer in job.offers}
        if done.fault:
            state.fault(f"offers of fragment {job.fragment} are not joined: {done.fault}")
            return ()
        # It may have another number or another model since.
        if self.waiting(job.fragment) != own or state.sealer(job.fragment) != job.sealer:
            return ()
        bare = tuple(replace(other, sections={}) for other in others)
        self._sent_at[job.fragment] = now
        self._send(now, replace(own, sections=done.sections, others=bare), job.sealer)
        return job.offers

    def is_on_its_way(self, offer: Offer, to: PeerId) -> bool:
        """Whether an offer is in the last joint one, which has not reached the sealer yet."""
        own = self.state.fragments[offer.fragment].pending
        if own is None or own.sent_to != to or not own.is_on_its_way:
            return False
        # Our own goes alone if it is sent again.
        return self._is_tried(offer) and own.sent_at == self._sent_at.get(offer.fragment)

    def _is_tried(self, offer: Offer) -> bool:
        return (offer.peer, offer.seq) in self._tried.get(offer.fragment, ())

    def waiting(self, p: int) -> Offer | None:
        """Our own offer, if it waits here for those of our neighbours."""
        pending = self.state.fragments[p].pending
        if pending is None or pending.offer is None or pending.sent_to != self.state.me:
            return None
        return replace(pending.offer, due=pending.due)

    def _joins(self, offer: Offer, level: int) -> bool:
        """Whether an offer is to be joined: our own, or that of a neighbour. `level`: which joint
        offers are to be made."""
        roster = self.state.roster
        is_near = offer.peer == roster.me or are_neighbours(roster, roster.me, offer.peer)
        # A neighbour with another inner optimizer may have moments that we can take no mean of.
        known = {MOMENT_PREFIX + moment.name for moment in self.state.policies.moments}
        is_known = all(name in known for name in offer.sections if name.startswith(MOMENT_PREFIX))
        fits = is_near and is_known and may_join(offer, level)
        return fits and not self._is_tried(offer)

    def _missing(self, round: Round) -> list[PeerId]:
        """The neighbours that train, and have not offered."""
        roster = self.state.roster
        here = (peer for peer in roster if are_neighbours(roster, roster.me, peer.id))
        expected = (p.id for p in here if p.training and not p.suspected and p.has(round.fragment))
        return sorted(set(expected) - set(round.inbox))

    def _expects_own(self, p: int) -> bool:
        """Whether our own offer may come, too: it has not gone to the sealer, and we train."""
        state, pending = self.state, self.state.fragments[p].pending
        is_here = pending is None or pending.sent_to in (None, state.me)
        return is_here and state.mode.may_seal and not state.resting

    def _call(self, p: int, missing: Iterable[PeerId], *, calls_own: bool) -> None:
        state, fragment = self.state, self.state.fragments[p]
        for peer in missing:
            state.emit(Send(peer, Call(state.me, p, fragment.lineage.key)))
        if calls_own and fragment.pending is None and not state.schedule.lockstep:
            fragment.request_offer(state.me)

    def _patience_s(self) -> float:
        policies = self.state.policies
        period_s = self.state.schedule.sync_every * self.state.step_s
        shares = PERIODS * period_s, GRACES * policies.grace.max_s
        return max(policies.timing.beat_s, min(shares))

    def _join(self, p: int, sealer: PeerId, offers: tuple[Offer, ...]) -> None:
        self._joining.add(p)
        w = weights(self.state.policies.weighting, [offer.entry for offer in offers])
        self.state.work(Join(fragment=p, sealer=sealer, offers=offers, weights=tuple(w)))

    def _send(self, now: float, offer: Offer, sealer: PeerId) -> None:
        fragment = self.state.fragments[offer.fragment]
        self._since.pop(offer.fragment, None)
        assert fragment.pending
        fragment.pending.sent(now, sealer, delivered=False)
        self.state.emit(Send(sealer, replace(offer, key=fragment.lineage.key)))
