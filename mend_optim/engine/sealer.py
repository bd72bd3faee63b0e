"""The sealer's side of the rounds: take offers in, call for the rest, decide, publish the seal."""

from __future__ import annotations

from collections.abc import Sequence

from mend_optim.engine.adoption import Adopter
from mend_optim.engine.early_offers import EarlyOffers
from mend_optim.engine.effects import EXCHANGE, Done, Inspect, Merge, Send
from mend_optim.engine.headway import headway
from mend_optim.engine.healing import tell_refused
from mend_optim.engine.joint_offers import flaw_of_joint, may_take
from mend_optim.engine.ledger import RoundRecord
from mend_optim.engine.mode import Mode
from mend_optim.engine.period_choice import PeriodChoice
from mend_optim.engine.policies import weights
from mend_optim.engine.progress import Progress
from mend_optim.engine.relaying import Relaying
from mend_optim.engine.residual_share import is_all_residual, shares_of, weighed, weighed_entries
from mend_optim.engine.round import Phase, Round
from mend_optim.engine.round_plan import Plan, View, plan
from mend_optim.engine.seal_checks import to_refuse, way_of
from mend_optim.engine.standoffs import Standoffs
from mend_optim.engine.state import EngineState
from mend_optim.engine.stragglers import Stragglers
from mend_optim.membership.peer import Peer
from mend_optim.protocol.lineage import Entry, Lineage, PeerId
from mend_optim.protocol.messages import Call, Offer, Seal

#: Why an anchor takes no work of one more learner.
FULL = (
    "the anchor has work of as many processes as a message can list; let learners keep their names "
    "when they restart, or start the run anew from a checkpoint"
)


class Sealer:
    """Runs the rounds of the fragments that this learner seals, and takes offers that reach it."""

    def __init__(
        self,
        state: EngineState,
        adoption: Adopter,
        stragglers: Stragglers,
        standoffs: Standoffs,
    ) -> None:
        self.state = state
        self.adoption = adoption
        self.stragglers = stragglers
        self.relaying = Relaying(state)
        self.standoffs = standoffs
        #: By sender and fragment, the offer that the worker is checking, and the newest one that
        #: came meanwhile. A peer that sends one after the other must not fill the worker's queue.
        self._inspecting: dict[tuple[PeerId, int], Offer] = {}
        self._uninspected: dict[tuple[PeerId, int], Offer] = {}
        self.early = EarlyOffers(state)
        self.period = PeriodChoice(state, stragglers)

    # ── offers come in ────────────────────────────────────────────────────────────────────────────

    def on_offer(self, now: float, offer: Offer) -> None:
        """An offer arrived: answer it with the seal that has it, or have its bytes checked."""
        state, p = self.state, offer.fragment
        if offer.genesis != state.genesis:
            return
        fragment, flaw = state.fragments[p], flaw_of_joint(offer, state)
        if flaw:
            state.refuse(offer.passed_by or offer.peer, f"offer {offer.seq}", flaw)
        if flaw or not may_take(offer, state):
            return
        self.adoption.pulling.catch_up(now, fragment, offer.key, offer.peer)
        seal = state.seals[p].with_offer(offer.claim.author, offer.seq)
        if seal and offer.steps:
            state.emit(Send(offer.peer, seal, EXCHANGE))
        if offer.steps and not fragment.lineage.has_room_for(offer.claim.author):
            state.refuse(offer.peer, f"offer {offer.seq}", FULL)
            return
        if not state.rounds[p].fresh(offer, fragment.lineage):
            self.early.keep(offer, fragment)
        elif (offer.steps or state.policies.signed) and offer.peer != state.me:
            self._have_inspected(offer)
        else:
            self._admit(now, offer)

    def _have_inspected(self, offer: Offer) -> None:
        """Have the worker check an offer's bytes, once it has checked the sender's former one."""
        place = (offer.peer, offer.fragment)
        former = self._inspecting.get(place)
        if former is None:
            self._inspecting[place] = offer
            self.state.work(Inspect(offer))
        elif (former.claim, former.seq) != (offer.claim, offer.seq):
            self._uninspected[place] = offer

    def inspected(self, now: float, offer: Offer, done: Done) -> None:
        """The worker has checked an offer's bytes."""
        state, p = self.state, offer.fragment
        self._inspecting.pop((offer.peer, p), None)
        newer = self._uninspected.pop((offer.peer, p), None)
        if done.fault:
            state.refuse(offer.passed_by or offer.peer, f"offer {offer.seq}", done.fault)
        elif all(state.rounds[p].fresh(o, state.fragments[p].lineage) for o in offer.together):
            self._admit(now, offer)
        if newer:
            self.on_offer(now, newer)

    def _admit(self, now: float, offer: Offer) -> None:
        round = self.state.rounds[offer.fragment]
        late_after_s = self.stragglers.late_after_s(round)
        for each in offer.together:
            round.lateness.came(now, each.peer, late_after_s)
        round.add(*offer.together)
        self.poll(now, offer.fragment)

    # ── gather, plan, apply ───────────────────────────────────────────────────────────────────────

    def poll_all(self, now: float) -> None:
        """Look at the rounds of all fragments."""
        for p, sealer in enumerate(self.state.roster.sealers(len(self.state.fragments))):
            self._look_at(now, p, sealer)

    def poll(self, now: float, p: int) -> None:
        """Look at the round of fragment `p`, and do what is to be done about it now."""
        self._look_at(now, p, self.state.roster.sealer(p))

    def _look_at(self, now: float, p: int, by_roster: PeerId | None) -> None:
        state, fragment, round = self.state, self.state.fragments[p], self.state.rounds[p]
        undecided = state.mode.founding or state.mode.switching or state.mode is Mode.CLOSED
        if undecided or round.phase is Phase.MERGING or fragment.is_moving:
            return
        sealer = self.standoffs.look(now, p, by_roster)
        if sealer != state.me or not state.mode.may_seal or fragment.deferred_news:
            self._stand_down(now, round)
            return
        if not (state.roster.place.hands_over or self.adoption.repairs.is_mending(p)):
            self._tell_untold(now, round)
            view = self._gather(now, fragment, round)
            self._apply(view, plan(view, state.policies))

    def _gather(self, now: float, fragment: Progress, round: Round) -> View:
        state = self.state
        afar = self._from_afar(fragment.fragment)
        round.lateness.took_part(afar)
        expected = [*self._expected(fragment.fragment), *afar]
        needed = state.policies.quorum.needed(state.roster.heard)
        return View(
            now=now,
            round=round,
            expected=expected,
            awaited=self.stragglers.awaited(now, round, expected, needed),
            needed=needed,
            period=state.schedule.sync_every,
            step_s=self.stragglers.step_s(),
            known_at=max(
                state.roster.known_at(started=fragment.lineage.version > 0),
                state.question.knows_others_at(now),
            ),
            all_rest=state.resting and all(peer.rests for peer in state.roster),
            behind_until=self.adoption.pulling.behind_until(now, fragment),
        )

    def _expected(self, p: int) -> list[PeerId]:
        """The learners that take part in a round, and that this one reaches: live peers that train
        this model (in lockstep all live peers), and this one."""
        state = self.state
        lockstep = state.schedule.lockstep
        here = (peer for peer in state.roster if peer.heard and not peer.suspected and peer.has(p))
        return [state.me, *sorted(x.id for x in here if lockstep or self._trains(x))]

    def _from_afar(self, p: int) -> list[PeerId]:
        """The learners that this one does not reach, and whose offers it merged last. They are far
        off, and would miss every other round if none waited. No call reaches those that finish."""
        last, roster = self.state.seals[p].last, self.state.roster
        peers = [roster.find(entry.peer) for entry in last.members] if last else []
        unheard = [x for x in peers if x and not (x.heard or (x.word and x.word.finishes))]
        return [peer.id for peer in roster.go_betweens.choosable(unheard)]

    def _trains(self, peer: Peer) -> bool:
        beat = peer.beat
        return beat is not None and beat.training and beat.genesis == self.state.genesis

    def _apply(self, view: View, todo: Plan) -> None:
        state, round, now = self.state, view.round, view.now
        if todo.launch:
            round.launch(now)
        if todo.call is not None:
            round.called(todo.call, now, again_at=now + state.policies.timing.beat_s)
            key = state.fragments[round.fragment].lineage.key
            for peer in todo.call:
                state.emit(Send(peer, Call(state.me, round.fragment, key)))
        if todo.collects:
            round.note_quorum(now, view.needed)
        state.wake_by(todo.wake_at)
        if todo.seal and (self._leave_out_parts(view) or self._refuse_outlier(view)):
            self.poll(now, round.fragment)  # with those that are left
        elif todo.seal:
            self._merge(view, todo.seal)

    def _leave_out_parts(self, view: View) -> bool:
        return view.round.leave_out_parts(view.expected, self.state.policies.limits.learners)

    def _refuse_outlier(self, view: View) -> bool:
        """Refuse the offer because of which all would refuse the seal; return whether there is one.
        Nobody can say what one learner means by its tokens; but the others can be compared."""
        state, round = self.state, view.round
        base = state.fragments[round.fragment].lineage
        offers = round.candidates(view.expected, state.policies.limits.learners)
        entries = self._weighed(round.fragment, offers, base)
        found = to_refuse(base, offers, entries, self._own(round.fragment))
        if found is None:
            return False
        offer, why = found
        round.leave_out(offer)
        state.refuse(offer.peer, f"offer {offer.seq}", f"{why}{way_of(offer)}")
        return True

    def _own(self, p: int) -> Entry | None:
        """This learner's unmerged work of fragment `p` as an entry, if there is any."""
        work = self.state.fragments[p].unmerged(self.state.totals)
        return Entry(self.state.me, 0, work.tokens, work.step) if work.step else None

    def _weighed(self, p: int, offers: Sequence[Offer], base: Lineage) -> list[Entry]:
        """The entries by which these offers are weighed in a round on `base`."""
        if self.state.is_buffers(p):
            # A learner at rest has no progress, but it has values: those of the anchor.
            return [weighed(offer, all_residual=True) for offer in offers]
        if not self.state.policies.residual_in_weights:
            # A claim to a residual where there is none would make all refuse the seal.
            return [offer.entry for offer in offers]
        return weighed_entries(offers, base.tokens)

    def _merge(self, view: View, reason: str) -> None:
        """Fix the members, and have the worker merge what they offered."""
        state, round = self.state, view.round
        lineage = state.fragments[round.fragment].lineage
        offers = round.close(view.now, view.expected, reason, state.policies.limits.learners)
        entries = self._weighed(round.fragment, offers, lineage)
        outsized = {i: round.outsized.get(offer.peer) for i, offer in enumerate(offers)}
        shares = tuple(weights(state.policies.weighting, entries))
        merge = Merge(
            fragment=round.fragment,
            base=lineage,
            offers=offers,
            weights=shares,
            headway=headway(entries, shares, round.regulars),
            moments=state.moments_due(round.fragment, lineage.version + 1),
            period=state.schedule.sync_every,
            # At rest there may be no later round to take along what this one loses.
            flush=is_all_residual(offers) or state.flushes(round.fragment),
            outsized={i: found for i, found in outsized.items() if found},
        )
        state.work(merge)

    def _stand_down(self, now: float, round: Round) -> None:
        """Another learner seals: the round is over here."""
        if round.phase is Phase.CALLING:
            round.void()
        round.lateness.void()
        round.forget_refused()
        self._tell_untold(now, round)
        if round.inbox or self.relaying.joint.waiting(round.fragment):
            self.relaying.pass_on(now, round)

    # ── the worker has merged ─────────────────────────────────────────────────────────────────────

    def merged(self, now: float, job: Merge, done: Done) -> None:
        """The worker has merged a round's offers: publish the seal, unless the anchor has moved, or
        this learner was stopped since their members were fixed."""
        state, p = self.state, job.fragment
        fragment, round = state.fragments[p], state.rounds[p]
        moved = fragment.lineage.key != job.base.key or fragment.is_moving
        stopped = round.note_stop(state.stops.last(now))
        if done.fault or moved or stopped or not state.mode.may_seal:
            self._throw_away(now, fragment, round, done.fault)
            return
        if done.outsized:
            round.refuse(done.outsized)
            self.poll(now, p)
            return
        seal = self._seal(job, done, round)
        tell_refused(state, p, round.outsized, told={offer.peer for offer in job.offers})
        self.stragglers.sealed(round)
        round.sealed(now)
        state.seals[p].add(seal, list(state.had(p)))
        for peer in sorted(set(round.inbox) - {state.me}):
            state.emit(Send(peer, seal, EXCHANGE))
        self.adoption.take_seal(now, seal)

    def _tell_untold(self, now: float, round: Round) -> None:
        """Tell of the offers that were refused in a round that has sealed nothing. Beats tell their
        authors that they are held no more, so they are offered again; and so is our own."""
        pending, untold = self.state.fragments[round.fragment].pending, round.take_untold()
        tell_refused(self.state, round.fragment, untold)
        if pending and self.state.me in untold:
            pending.forgotten(now)

    def _seal(self, job: Merge, done: Done, round: Round) -> Seal:
        members = tuple(offer.entry for offer in job.offers)
        entries = self._weighed(job.fragment, job.offers, job.base)
        return Seal(
            sealer=self.state.me,
            fragment=job.fragment,
            base=job.base.digest,
            key=job.base.seal(members, done.digest).key,
            members=members,
            weights=job.weights,
            absent=round.absent,
            reason=round.reason,
            payload=done.digest,
            period=self.period.next(job, done) if job.fragment == 0 else 0,
            shares=shares_of(members, entries),
            sections=done.sections,
        )

    def _throw_away(self, now: float, fragment: Progress, round: Round, fault: str) -> None:
        round.void()
        round.purge(fragment.lineage)
        if fault:
            self.state.fault(f"round of fragment {round.fragment} thrown away: {fault}")
            round.discard()
        self.poll(now, round.fragment)

    def advanced(self, now: float, seal: Seal, record: RoundRecord) -> None:
        """This learner has the anchor of a seal, and has recorded it."""
        self.period.volumes.add(record)
        is_mine = self.state.is_me(seal.sealer)
        self.state.rounds[seal.fragment].advanced(now, seal.members, is_mine)
        if not is_mine:
            self.stragglers.followed(self.state.rounds[seal.fragment], seal)
            self.relaying.hand_down(seal)
