"""The learner's side of the rounds: send the pending offer, send it again, answer calls."""

from __future__ import annotations

from dataclasses import replace

from mend_optim.engine.detours import Detours
from mend_optim.engine.effects import Send
from mend_optim.engine.idleness import Idleness
from mend_optim.engine.passages import Passages, Way
from mend_optim.engine.pending import NEVER, Pending
from mend_optim.engine.progress import Progress
from mend_optim.engine.residual_share import NO_SHARE
from mend_optim.engine.standoffs import Standoffs
from mend_optim.engine.state import EngineState
from mend_optim.engine.stragglers import Stragglers
from mend_optim.engine.turns import Turns
from mend_optim.membership.broadcasts import FANOUT
from mend_optim.membership.zones import are_neighbours, first_hop
from mend_optim.protocol.lineage import PeerId
from mend_optim.protocol.messages import NO_JOINT, Beat, Call, Message, Offer, Report, nbytes
from mend_optim.protocol.transfer_fault import TransferFault


class Offers:
    """Sends a learner's own offers, sends them again, and answers calls."""

    def __init__(
        self,
        state: EngineState,
        stragglers: Stragglers,
        idleness: Idleness,
        passages: Passages,
    ) -> None:
        self.state = state
        self.stragglers = stragglers
        self.idleness = idleness
        self.passages = passages
        self.turns = Turns(state)
        self.standoffs = Standoffs(state)
        self._detours = Detours(state)
        #: By relay that has not brought an offer to its sealer: until when it gets no other.
        self._withholding: dict[PeerId, float] = {}
        #: By (name, fragment): when a peer called that is not the sealer by our roster, and was
        #: answered. None of them is older than a period.
        self._answered: dict[tuple[str, int], float] = {}
        #: By fragment, the last call for an answer on an anchor that we lack.
        self._behind: dict[int, Call] = {}

    # ── send ──────────────────────────────────────────────────────────────────────────────────────

    def send_offer(self, now: float, fragment: Progress, to: PeerId | None) -> None:
        """Send the pending offer to `to` if that is alive, else to the fragment's sealer; from zone
        to zone, through a relay. If there is nobody to send it to, it waits."""
        pending = fragment.pending
        if pending is None or pending.offer is None:
            return
        state = self.state
        peer = state.roster.find(to) if to else None
        sealer = to if peer and not peer.suspected else state.sealer(fragment.fragment)
        target = self._first_hop(now, pending, sealer, fragment.fragment)
        pending.sent(now, target, delivered=target == state.me)
        if target is not None:
            offer = replace(pending.offer, key=fragment.lineage.key, due=pending.due)
            state.emit(Send(target, offer))

    def _first_hop(
        self, now: float, pending: Pending, sealer: PeerId | None, p: int
    ) -> PeerId | None:
        """The peer that is sent an offer for this sealer."""
        if sealer is None or pending.direct:
            return sealer
        self._withholding = {id: until for id, until in self._withholding.items() if until > now}
        hop = first_hop(self.state.roster, p, sealer, self._withholding)
        return sealer if hop == self.state.me and not self._gathers(p, sealer) else hop

    def _gathers(self, p: int, sealer: PeerId) -> bool:
        """Whether this learner, as a relay, joins offers with its own. It passes them on to the
        sealer by its own roster: another one that calls gets our offer from us."""
        roster = self.state.roster
        near = any(are_neighbours(roster, roster.me, id) for id in roster.alive())
        joins = self.state.joins_for(p, sealer) > NO_JOINT
        return near and joins and sealer == self.state.sealer(p)

    def resend(self, now: float, fragment: Progress) -> None:
        """Offer again if the learner that has the offer died, lost it, or runs the fragment's
        rounds no more."""
        pending = fragment.pending
        if pending is None or pending.offer is None or self.state.alone:
            return
        self._detours.look(now, fragment)
        live = self._is_live(pending.sent_to)
        sealer = self.state.sealer(fragment.fragment)
        target = self._first_hop(now, pending, sealer, fragment.fragment)
        on_its_way = (target, sealer) if target == self.state.me else (target,)
        moved = pending.sent_to not in on_its_way and (pending.delivered or not live)
        if not live or moved or now >= pending.resend_at:
            self.send_offer(now, fragment, None)

    def _is_live(self, id: PeerId | None) -> bool:
        if id is None:
            return False
        peer = self.state.roster.find(id)
        return id == self.state.me or (peer is not None and not peer.suspected)

    def on_call(self, now: float, call: Call) -> None:
        """The sealer asks for our offer: send the pending one, or make one at the end of this inner
        step, in lockstep only if that is our turn. At rest, take part with nothing; so does an idle
        learner, because there may be no such step for long."""
        state, p, caller = self.state, call.fragment, call.peer
        fragment = state.fragments[p]
        self.standoffs.called(p, caller)
        if not self._answers(now, p, caller):
            return
        self.turns.called(call)
        if fragment.pending:
            if self._is_elsewhere(now, fragment, fragment.pending, call):
                self.send_offer(now, fragment, caller)
        elif self._has_nothing(fragment):
            self._take_part(fragment, call)
        else:
            if self.idleness.idle:
                self._take_part(fragment, call)
            if not state.schedule.lockstep:
                fragment.request_offer(caller)

    def _has_nothing(self, fragment: Progress) -> bool:
        state = self.state
        if fragment.fragment in self.turns.early():
            return not fragment.unmerged(state.totals).step
        return state.resting and not state.has_unsent_work(fragment)

    def _take_part(self, fragment: Progress, call: Call) -> None:
        """Answer with nothing: at once, or as soon as we have the caller's anchor."""
        if fragment.lineage.key >= call.key:
            self.state.emit(Send(call.peer, self._nothing(fragment)))
        else:
            self._behind[call.fragment] = call

    def moved(self, p: int) -> None:
        """The anchor of `p` has moved: the sealer may have called for an answer on this one."""
        call, fragment = self._behind.pop(p, None), self.state.fragments[p]
        still_asked = call and call.peer == self.state.sealer(p) and not fragment.pending
        if call and still_asked and (self.idleness.idle or self._has_nothing(fragment)):
            self._take_part(fragment, call)

    def _is_elsewhere(self, now: float, fragment: Progress, pending: Pending, call: Call) -> bool:
        """Whether an offer is to be sent because a sealer calls. If it is with a relay for so long
        that the sealer should have it, the relay is named, and the offer goes to the sealer
        itself."""
        caller, p = call.peer, call.fragment
        if pending.offer is None or pending.sent_to == caller:
            return False
        relay = self._first_hop(now, pending, caller, p)
        if relay is None or relay != pending.sent_to:
            return True
        if relay == self.state.me:
            return False  # it waits here for those of our neighbours
        # The sealer may have merged it: it calls from an anchor that comes by the relay, too.
        may_be_merged = call.key > fragment.lineage.key
        waited = now - pending.sent_at
        if may_be_merged or waited < 2 * self._relayed_s(pending, caller, p):
            return False
        pending.astray()
        self._withholding[relay] = now + self.state.policies.timing.round_timeout_s
        if are_neighbours(self.state.roster, self.state.me, relay):  # a go-between has no such duty
            why = f"{caller.name} lacks it {waited:.1f} s after it was sent"
            self.state.refuse(relay, f"relaying of offer {pending.seq}", why)
        return True

    def _relayed_s(self, pending: Pending, sealer: PeerId, p: int) -> float:
        """How long an offer and its seal usually take by a relay, in seconds. The way between zones
        may be slow, and nobody but the relay sees how far it has come there."""
        state = self.state
        usual = state.round_latencies.usual(p, sealer)
        unknown_s = state.policies.timing.round_timeout_s / 2
        return max(self.patience(pending), usual * state.step_s if usual else unknown_s)

    def _answers(self, now: float, p: int, caller: PeerId) -> bool:
        """Whether to answer this call: always that of the sealer, and of every other peer one in a
        period.

        A peer may know better who seals. Until both know, it calls again with every beat, so this
        learner takes part in its rounds, at the pace of a run. More often, calls would only cost
        copies and uploads."""
        state = self.state
        if caller == state.sealer(p):
            return True
        period_s = state.schedule.sync_every * state.step_s
        since = now - max(period_s, state.policies.timing.beat_s)
        self._answered = {which: at for which, at in self._answered.items() if at > since}
        if (caller.name, p) in self._answered:
            return False
        self._answered[caller.name, p] = now
        return True

    def send_nothing(self, fragment: Progress, to: PeerId | None) -> None:
        """Take part with an empty offer, because the work there is cannot be offered. It goes to
        `to` if that is alive, else to the fragment's sealer."""
        target = to if self._is_live(to) else self.state.sealer(fragment.fragment)
        if target is not None:
            self.state.emit(Send(target, self._nothing(fragment)))

    def _nothing(self, fragment: Progress) -> Offer:
        """An empty offer, with which a learner takes part that rests or is idle."""
        state, p = self.state, fragment.fragment
        claims = state.policies.residual_in_weights or state.is_buffers(p)
        return Offer(
            peer=state.me,
            fragment=p,
            seq=0,
            tokens=0,
            steps=0,
            genesis=state.genesis,
            key=fragment.lineage.key,
            due=False,
            again=fragment.residual.share if claims else NO_SHARE,
        )

    # ── delivery ──────────────────────────────────────────────────────────────────────────────────

    def sent_as(self, to: PeerId, message: Message) -> Pending | None:
        """The pending offer, if the message is that, as it was sent to this peer last."""
        if not isinstance(message, Offer) or not message.steps:
            return None
        if not self.state.has_fragment(message.fragment):
            return None
        pending = self.state.fragments[message.fragment].pending
        if pending is None or pending.sent_to != to:
            return None
        same = (pending.claim, pending.seq) == (message.claim, message.seq)
        return pending if same else None

    def delivered(self, now: float, pending: Pending) -> None:
        """The peer has all of the offer. The seal that comes back may be as large as float32, and
        then takes that much longer than the offer took."""
        assert pending.offer is not None
        assert pending.sent_to is not None
        self.passages.passed(now, pending.sent_to, Way.TO, pending.offer.fragment)
        size, took = nbytes(pending.offer.sections), now - pending.sent_at
        if not self.state.is_buffers(pending.offer.fragment):
            # So few bytes say nothing about the link.
            self.stragglers.delivered(took, size)
        dense = sum(4 * packet.numel for packet in pending.offer.sections.values())
        longest = self.state.policies.timing.round_timeout_s
        pending.seal_s = min(took * max(1.0, dense / max(1, size)), longest)
        pending.arrived(resend_at=now + self.patience(pending))

    def undelivered(self, now: float, pending: Pending, fault: TransferFault) -> None:
        """The offer did not arrive, or its stream broke before the answer."""
        assert pending.offer is not None
        if pending.sent_to is not None and not pending.delivered:
            began, p = pending.sent_at, pending.offer.fragment
            self.passages.failed(now, pending.sent_to, Way.TO, p, began=began, fault=fault)
        pending.lost(resend_at=now + self.state.policies.timing.beat_s)

    def heard(self, now: float, id: PeerId, p: int) -> None:
        """Bytes of fragment `p` came from a peer, perhaps the seal of an offer that it has: in the
        meantime nothing is sent or asked for again.

        A peer may send one seal after the other: of every fragment, to every learner. A go-between
        sends seals all the time. So those of other fragments are waited for no longer than all may
        take."""
        state = self.state
        seals = len(state.fragments) * state.roster.size
        for fragment in state.fragments:
            pending = fragment.pending
            if pending and pending.sent_to == id:
                if pending.delivered:
                    pending.still_coming(now + self.patience(pending))
                others_s = state.policies.timing.suspect_after_s + seals * pending.seal_s
                fragment.heard_while_behind(now, NEVER if fragment.fragment == p else others_s)

    def reported(
        self, now: float, fragment: Progress, beat: Beat, report: Report, was_unknown: bool
    ) -> None:
        """A beat says which offers its learner holds. `was_unknown`: it has just taken our model
        over, and kept nothing of what reached it before."""
        pending = fragment.pending
        if pending is None or pending.sent_to != beat.peer:
            return
        if (self.state.me, pending.seq) in report.held:
            pending.arrived(resend_at=now + self.patience(pending))
        elif was_unknown and beat.genesis == self.state.genesis:
            pending.forgotten(now)
            self.resend(now, fragment)

    def patience(self, pending: Pending) -> float:
        """How long a sealer's beats may not mention our offer before it counts as lost, in seconds:
        the seal may be on its way."""
        rare = 1 + self.state.roster.size // FANOUT
        return self.state.policies.timing.suspect_after_s * rare + pending.seal_s
