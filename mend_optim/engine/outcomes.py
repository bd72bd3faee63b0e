"""The engine's steps after the worker has performed a job: one method for each kind of job."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

from mend_optim.engine.accounts import Totals
from mend_optim.engine.adoption import Adopter
from mend_optim.engine.answers import Answers
from mend_optim.engine.boundaries import Boundaries
from mend_optim.engine.effects import (
    Advance,
    Agree,
    Attest,
    Done,
    Export,
    Extend,
    Found,
    Inspect,
    Install,
    Job,
    Join,
    Merge,
    Prepare,
    Reoffer,
    Retake,
)
from mend_optim.engine.healing import Healing
from mend_optim.engine.ledger import Event, RoundRecord, sealed_record, whole_anchor_record
from mend_optim.engine.mode import Change
from mend_optim.engine.offers import Offers
from mend_optim.engine.other_models import Branches, switched_event
from mend_optim.engine.progress import Progress
from mend_optim.engine.rollback import rollback_event, rolled_back
from mend_optim.engine.sealer import Sealer
from mend_optim.engine.state import EngineState
from mend_optim.errors import unreachable
from mend_optim.protocol.lineage import Lineage, Rollback
from mend_optim.protocol.messages import State, moment_names


class Outcomes:
    """Takes results, and lets every fragment go on that stands still again."""

    def __init__(
        self,
        state: EngineState,
        *,
        adoption: Adopter,
        answers: Answers,
        offers: Offers,
        sealer: Sealer,
        boundaries: Boundaries,
    ) -> None:
        self.state = state
        self.adoption = adoption
        self.answers = answers
        self.offers = offers
        self.healing = Healing(state, offers)
        self.sealer = sealer
        self.boundaries = boundaries
        self._branches = Branches(state.policies.timing.evict_after_s)

    def take(self, now: float, job: Job, done: Done) -> None:
        """A job was performed."""
        self.state.seal_residuals.update(done.seal_residuals)
        match job:
            case Prepare() | Reoffer():
                self._prepared(now, job, done)
            case Inspect():
                self.sealer.inspected(now, job.offer, done)
            case Join():
                self.sealer.relaying.joined(now, job, done)
                self.sealer.poll(now, job.fragment)
            case Merge():
                self.sealer.merged(now, job, done)
            case Advance():
                self._advanced(now, job, done)
            case Install():
                self._installed(now, job, done)
            case Agree():
                self.state.fragments[job.fragment].agreed()
                self.go_on(now, job.fragment)
            case Retake():
                self.healing.retaken(job, done)
                self.go_on(now, job.fragment)
            case Found():
                self._founded(now, job, done)
            case Extend():
                self.state.extend(done.digest, Totals(*job.at), job.groups)
            case Export() | Attest():
                self._read(job, done)
            case _:
                unreachable(job)

    def go_on(self, now: float, p: int) -> None:
        """Go on with everything that had to wait until fragment `p` stands still."""
        fragment = self.state.fragments[p]
        if not fragment.is_still or self.healing.go_on(fragment):
            return
        if self.state.switch:
            self.adoption.finish_switch()
        else:
            news = fragment.take_deferred() or self.adoption.pulling.seal_by_seal.next(fragment)
            if news:
                self.adoption.take(now, news)
        self.answers.answer(p)
        self.offers.moved(p)
        for offer in self.sealer.early.take(p):
            self.sealer.on_offer(now, offer)
        self.sealer.poll(now, p)
        self.boundaries.agree(p)
        self.state.attest(now, p)

    # ── fragments that were busy ──────────────────────────────────────────────────────────────────

    def take_held(self, now: float, p: int) -> bool:
        """All steps up to the copy of fragment `p`, which was held, are counted now. Returns
        whether the copy is to be offered, and `Boundaries.snapshot` follows; else it is of no
        use."""
        if self.boundaries.reserve_held(p):
            return True
        self.let_go(now, p)
        return False

    def let_go(self, now: float, p: int) -> None:
        """No copy is made of fragment `p`, which was held."""
        fragment = self.state.fragments[p]
        if fragment.is_held:
            fragment.let_go()
            self.go_on(now, p)

    def look(self, now: float) -> None:
        """Let go of the fragments that were held for too long: training may pause for hours between
        the decision and the copy, and peers wait for the anchor. Take the news that came while a
        fragment was busy, if nothing has since: a copy was interrupted, or a switch has ended. Give
        peers the anchors that they asked for meanwhile."""
        for fragment in self.state.fragments:
            self.answers.answer(fragment.fragment)
            if fragment.is_held and fragment.held_until <= now:
                self.let_go(now, fragment.fragment)
            elif fragment.is_still and fragment.deferred_news and not self.state.switch:
                self.go_on(now, fragment.fragment)

    # ── offers ────────────────────────────────────────────────────────────────────────────────────

    def _prepared(self, now: float, job: Prepare | Reoffer, done: Done) -> None:
        """The worker has encoded Δ, or could not. The offer goes to the sealer that asked."""
        fragment = self.state.fragments[job.fragment]
        asked = fragment.copied()
        if fragment.pending and fragment.pending.seq == job.seq:
            if done.fault:
                self.healing.not_offered(fragment, asked, done.fault)
            elif self.healing.is_ruined(job.fragment):
                self.healing.not_offered(fragment, asked, "")
            else:
                self._tell_missing_moments(job.fragment, done)
                fragment.offered(self.state.genesis, done.sections, done.digest)
                self.offers.send_offer(now, fragment, asked)
        self.go_on(now, job.fragment)

    def _tell_missing_moments(self, p: int, done: Done) -> None:
        if done.warning:
            self.state.fault(f"fragment {p} was offered without moments: {done.warning}")

    # ── anchors ───────────────────────────────────────────────────────────────────────────────────

    def _advanced(self, now: float, job: Advance, done: Done) -> None:
        """The worker has taken the outer step of a seal, or refused its bytes."""
        state, seal, p = self.state, job.seal, job.seal.fragment
        fragment = state.fragments[p]
        if done.fault:
            fragment.move_refused()
            state.seals[p].refused(seal.key)
            state.refuse_seal(seal, done.fault)
        else:
            offer = fragment.pending.offer if job.merged_own_offer and fragment.pending else None
            share = fragment.offered_share if job.merged_own_offer else 1.0
            if job.merged_own_offer and fragment.pending and not state.is_buffers(p):
                state.measured(p, seal.sealer, fragment.pending.step)
            if job.merged_own_offer:
                self._note_moments(fragment, moment_names(seal.sections), job.lineage.version)
            fragment.moved(
                job.lineage,
                state.totals,
                state.schedule,
                merged_own_offer=job.merged_own_offer,
                replaced=job.replace,
                gain=self._gain(p, job.gain if job.merged_own_offer else None),
            )
            if job.forget or (job.replace and not job.merged_own_offer):
                fragment.residual.forget()
            state.set_period(seal.period)
            dropped = fragment.tell_dropped(state.totals) if job.replace else 0
            state.record(sealed_record(seal, job.merged_own_offer, offer, share, dropped))
            state.adopted_since_rollback += 1
            self.sealer.advanced(now, seal, state.records[-1])
            state.moved(p)
            self.healing.sealed(fragment, seal, done)
            self.adoption.pulling.seal_by_seal.took(seal)
        self.go_on(now, p)
        self.adoption.ask_on(now, seal.sender)

    def _gain(self, p: int, gain: float | None) -> float | None:
        """The gain of a correction. Buffers don't follow an anchor all the way, whatever the gain;
        what is missing is made up for at rest."""
        return 0.0 if self.state.is_buffers(p) else gain

    def _note_moments(self, fragment: Progress, moments: Collection[str], version: int) -> None:
        """Of these moments, those in our pending offer have a mean with ours in it since that
        version."""
        offer = fragment.pending.offer if fragment.pending else None
        sent = moment_names(offer.sections) if offer else frozenset()
        fragment.averaged_moments(self.state.policies.averaged(sent & frozenset(moments), version))

    def _installed(self, now: float, job: Install, done: Done) -> None:
        """The worker has installed whole anchors, or refused their bytes."""
        state = self.state
        if done.fault:
            culprit = job.states[done.refused].peer
            self.adoption.refused(now, job.states, culprit, done.fault)
        else:
            for peer in {anchor.peer for anchor in job.states}:
                self.adoption.pulling.handed_over(now, peer, kept=True)
            state.change(Change.INSTALLED)
            former = state.genesis
            records = [self._take_anchor(job, anchor) for anchor in job.states]
            rollback = rolled_back(former, state.genesis)
            state.adopted_since_rollback += len(records)
            if rollback:
                state.adopted_since_rollback = 0
                state.emit(rollback_event(rollback, records))
            elif state.genesis != former:
                self._tell(switched_event(job.states[0].peer, records))
            else:
                self._tell(self._branches.event(now, job.states[0].peer, records))
            if job.replace:
                self._follow_model(len(job.states), rollback)
        for anchor in job.states:
            self.go_on(now, anchor.fragment)
        self.adoption.ask_on(now, job.states[0].peer)

    def _tell(self, event: Event | None) -> None:
        if event:
            self.state.emit(event)

    def _take_anchor(self, job: Install, anchor: State) -> RoundRecord:
        state, p, lineage = self.state, anchor.fragment, anchor.lineage
        fragment = state.fragments[p]
        # Another model may have our pending offer, too.
        merged = job.merged_own_offer or fragment.includes_pending(lineage)
        old, superseded = fragment.lineage, fragment.superseded_tokens
        share = fragment.offered_share if merged else 1.0
        brought = moment_names(anchor.sections)
        self._note_moments(fragment, brought & set(job.due), lineage.version)
        state.genesis = lineage.genesis
        fragment.held.begin_anew(handed_over=lineage.version > 0 and not state.is_me(anchor.peer))
        fragment.moved(
            lineage,
            state.totals,
            state.schedule,
            merged_own_offer=merged,
            replaced=job.replace,
            gain=self._gain(p, job.gain if merged else None),
        )
        state.set_period(anchor.period)
        if job.forget or job.replace:
            fragment.residual.forget()
        if job.replace:  # the others' moments came with their weights
            fragment.averaged_moments(state.policies.averaged(brought, lineage.version))
        dropped = fragment.tell_dropped(state.totals) if job.replace else 0
        rollback = rolled_back(old.genesis, lineage.genesis)
        record = whole_anchor_record(
            p, old, lineage, _way_to(old, lineage), mine=merged, share=share, dropped_tokens=dropped
        )
        superseded = fragment.superseded_tokens - superseded
        by = rollback.by if rollback else ""
        record = replace(record, sealer=by, superseded_tokens=superseded)
        if superseded > 0:
            # The number of our last offer in it may not tell: it may have been made elsewhere.
            names = {*record.superseded, state.me.name}
            record = replace(record, superseded=tuple(sorted(names)))
        state.record(record)
        state.moved(p)
        return record

    def _follow_model(self, taken: int, rollback: Rollback | None) -> None:
        """Another model has replaced ours in its first fragments: go on from its position. Groups
        that were added only here are its fragments now. After a rollback nothing of ours but their
        anchors is: it may have been given up."""
        state = self.state
        state.catch_up_position(state.cluster_step())
        for fragment in state.fragments[taken:]:
            fragment.transplant(state.genesis, keeps_offer=rollback is None)
            state.rounds[fragment.fragment].purge(fragment.lineage)
            if rollback:
                self.healing.give_up(fragment, f"{rollback.by} has rolled the run back")

    def _founded(self, now: float, job: Found, done: Done) -> None:
        """The worker has made anchors of our weights, or refused them."""
        state = self.state
        state.change(Change.FOUNDED)
        # A group may have been added since the copies were made.
        for fragment in state.fragments[: len(job.tensors)]:
            fragment.copied()
            if not done.fault:
                self._found(fragment, done.digest)
        if done.fault:
            state.fault(f"the anchor was not taken from the weights: {done.fault}")
        for fragment in state.fragments:
            self.go_on(now, fragment.fragment)

    def _found(self, fragment: Progress, digest: bytes) -> None:
        at = self.boundaries.founded_at
        lineage = fragment.found(at.tokens - fragment.settled.tokens, digest)
        record = whole_anchor_record(
            fragment.fragment, fragment.lineage, lineage, "founded", mine=True
        )
        self.state.record(record)
        self.state.adopted_since_rollback += 1
        fragment.became_anchor(lineage, at)
        fragment.held.begin_anew(handed_over=False)
        self.state.moved(fragment.fragment)

    def _read(self, job: Export | Attest, done: Done) -> None:
        """The worker has copied an anchor out, or taken the digest of what is in it."""
        if isinstance(job, Attest):
            self.state.fragments[job.fragment].held.note(job.key, done.digest)
        else:
            self._exported(job, done)

    def _exported(self, job: Export, done: Done) -> None:
        content = State(
            peer=self.state.me,
            fragment=job.fragment,
            lineage=job.lineage,
            content=done.digest,
            period=0 if job.fragment else self.state.schedule.sync_every,
            sections=done.sections,
        )
        self.answers.exported(job, content)


def _way_to(old: Lineage, new: Lineage) -> str:
    """How a whole anchor came, as the ledger tells it."""
    if rolled_back(old.genesis, new.genesis):
        return "rolled_back"
    if new.genesis != old.genesis or new.key > old.key:
        return "pulled"
    return "mended" if new.key == old.key else "yielded"
