"""The engine of a learner: everything it decides, and nothing it does.

Feed it what happened (`stepped`, `receive`, `finished`, `tick` …), with the time; then `drain()`
what it wants done: messages to send, jobs for the worker, events for the user. It reads no clock,
starts no thread, touches no tensor. One owner at a time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from mend_optim.engine.adoption import Adoption
from mend_optim.engine.boundaries import Boundaries
from mend_optim.engine.effects import (
    PULL,
    Advance,
    Done,
    Effect,
    Export,
    Extend,
    Found,
    Inspect,
    Install,
    Job,
    Merge,
    Prepare,
    Reoffer,
    Send,
)
from mend_optim.engine.joining import Joining, Resumed
from mend_optim.engine.ledger import Event, describe, sealed_record, whole_anchor_record
from mend_optim.engine.offers import Offers
from mend_optim.engine.policies import Policies
from mend_optim.engine.progress import NEVER, Motion, Pending, Progress, Standing, Totals
from mend_optim.engine.sealer import Sealer
from mend_optim.engine.state import EngineState
from mend_optim.engine.stragglers import Stragglers
from mend_optim.protocol.lineage import PeerId
from mend_optim.protocol.messages import (
    Beat,
    Call,
    Goodbye,
    Message,
    Offer,
    Report,
    Seal,
    State,
    Want,
    moment_names,
)


class Engine:
    """Rounds, roster, lineages and joining of one learner."""

    def __init__(
        self, me: PeerId, address: str, seeds: Sequence[str], policies: Policies, now: float
    ) -> None:
        self.state = EngineState(me, address, seeds, policies)
        self.adoption = Adoption(self.state)
        self.stragglers = Stragglers(self.state)
        self.offers = Offers(self.state, self.stragglers)
        self.sealer = Sealer(self.state, self.adoption, self.stragglers)
        self.boundaries = Boundaries(self.state, self.adoption, self.stragglers)
        self.joining = Joining(self.state, self.adoption)
        self._beats = self._broadcasts = 0
        self._beat_at = now
        self._reported_groups: set[PeerId] = set()  # whose groups are others than ours

    # ── out ───────────────────────────────────────────────────────────────────────────────────────

    def drain(self, now: float) -> list[Effect]:
        """What is to be done, in order; each is returned once. Messages to ourselves are delivered
        first."""
        while self.state.loopback:
            self.receive(now, self.state.loopback.popleft())
        out, self.state.out = self.state.out, []
        return out

    def wake_at(self) -> float:
        """When `tick` must be called next, if nothing happens before."""
        return min(self._beat_at, self.state.wake_at)

    # ── the training thread ───────────────────────────────────────────────────────────────────────

    def begin(
        self, now: float, genesis: bytes, groups: tuple[bytes, ...], resumed: Resumed | None = None
    ) -> None:
        """The first step is about to be taken, with weights of this digest, or where a checkpoint
        stood; from here on there is something to compare."""
        self.joining.begin(now, genesis, groups, resumed)
        for peer in self.state.roster.peers.values():
            if peer.beat:
                self.adoption.compare(now, peer.beat)
        self._beat(now)
        self.tick(now)

    def standings(self) -> list[Standing]:
        """What a checkpoint keeps."""
        return [fragment.standing() for fragment in self.state.fragments]

    def rest(self, now: float) -> None:
        """Training pauses to synchronize: offer what there is, and take part with nothing until the
        next step."""
        self.state.resting = True
        self.state.ping, self.state.answered = self.state.ping + 1, set()
        for fragment in self.state.fragments:
            fragment.offer_requested = (
                fragment.offer_requested or fragment.unmerged(self.state.totals).step > 0
            )
        ask = self._make_beat(ping=self.state.ping)
        for peer in self.state.roster.peers.values():
            self.state.emit(Send(peer.id, ask))
        self.tick(now)

    def correction_applied(self, now: float, p: int, replaced: bool) -> None:
        """The training thread takes the correction of fragment `p`; it applies it before its next
        forward pass."""
        self.state.fragments[p].correction_applied(replaced, self.state.totals)
        self._settled(now, p)

    def leave(self, now: float) -> None:
        """Say goodbye; nothing else is sent from here on."""
        if not self.state.closed:
            for peer in list(self.state.roster.peers.values()):
                self.state.emit(Send(peer.id, Goodbye(self.state.me)))
            self.state.closed = True

    # ── the worker ────────────────────────────────────────────────────────────────────────────────

    def finished(self, now: float, job: Job, done: Done) -> None:
        """A job was performed."""
        if isinstance(job, Prepare | Reoffer):
            self._prepared(now, job, done)
        elif isinstance(job, Inspect):
            self.sealer.inspected(now, job.offer, done)
        elif isinstance(job, Merge):
            self.sealer.merged(now, job, done)
        elif isinstance(job, Advance):
            self._advanced(now, job, done)
        elif isinstance(job, Install):
            self._installed(now, job, done)
        elif isinstance(job, Found):
            self._found(now, job, done)
        elif isinstance(job, Extend):
            self._extended(now, job, done)
        else:
            self._exported(job, done)

    def _prepared(self, now: float, job: Prepare | Reoffer, done: Done) -> None:
        fragment = self.state.fragments[job.fragment]
        fragment.motion = Motion.STILL
        pending = fragment.pending
        if pending and pending.seq == job.seq:
            if done.fault:
                self.state.fault(f"fragment {job.fragment} was not offered: {done.fault}")
                fragment.withdraw()
                fragment.has_unsent_residual = False  # not to be tried again at once
                fragment.cycle_start = self.state.totals.step
            else:
                if done.warning:
                    self.state.fault(
                        f"fragment {job.fragment} was offered without moments: {done.warning}"
                    )
                fragment.offered(self.state.genesis, done.sections)
                self.offers.send_offer(now, fragment, fragment.requested_by)
        fragment.requested_by = None
        self._settled(now, job.fragment)

    def _advanced(self, now: float, job: Advance, done: Done) -> None:
        fragment = self.state.fragments[job.seal.fragment]
        if done.fault:
            fragment.motion = Motion.STILL
            if fragment.pending:
                # no other seal will come for it: pull the anchor instead
                fragment.pending.delivered = False
            self.state.fault(f"seal of {job.seal.sealer.name} refused: {done.fault}")
        else:
            offer = fragment.pending.offer if job.merged_own_offer and fragment.pending else None
            if job.merged_own_offer:
                self._averaged(fragment, moment_names(job.seal.sections), job.lineage.version)
            fragment.moved(
                job.lineage,
                job.merged_own_offer,
                self.state.totals,
                self.state.policies.schedule,
                job.replace,
            )
            if job.forget or (job.replace and not job.merged_own_offer):
                fragment.forget()
            self.state.record(sealed_record(job.seal, job.merged_own_offer, offer))
            self.sealer.advanced(now, job.seal)
            self.state.moved(job.seal.fragment)
        self._settled(now, job.seal.fragment)

    def _installed(self, now: float, job: Install, done: Done) -> None:
        if done.fault:
            self.state.fault(f"state of {job.states[0].peer.name} refused: {done.fault}")
        else:
            self.state.solo, self.state.founding = False, ""
        for state in job.states:
            fragment = self.state.fragments[state.fragment]
            fragment.motion = Motion.STILL
            if not done.fault:
                # another model may have it, too
                merged_own_offer = job.merged_own_offer or fragment.includes_pending(state.lineage)
                old, superseded = fragment.lineage, fragment.superseded_tokens
                version, brought = state.lineage.version, moment_names(state.sections)
                self._averaged(fragment, brought & set(job.due), version)
                self.state.genesis = state.lineage.genesis
                fragment.moved(
                    state.lineage,
                    merged_own_offer,
                    self.state.totals,
                    self.state.policies.schedule,
                    job.replace,
                )
                if job.forget or job.replace:
                    fragment.forget()
                if job.replace:  # the others' moments came with their weights
                    fragment.averaged |= self.state.policies.averaged(brought, version)
                dropped = fragment.unmerged(self.state.totals).tokens if job.replace else 0
                record = whole_anchor_record(
                    state.fragment, old, state.lineage, "pulled", merged_own_offer, dropped
                )
                self.state.record(
                    replace(record, superseded_tokens=fragment.superseded_tokens - superseded)
                )
                self.state.moved(state.fragment)
        if job.replace and not done.fault:
            self.state.catch_up_position(self.state.cluster_step())
            # groups that were added only here
            for fragment in self.state.fragments[len(job.states) :]:
                fragment.transplant(self.state.genesis)
                self.state.rounds[fragment.fragment].purge(fragment.lineage)
        for state in job.states:
            self._settled(now, state.fragment)
        self._check_joined(now)
        self._beat(now)  # others may wait for us to have it

    def _averaged(self, fragment: Progress, moments: frozenset[str], version: int) -> None:
        """Of these moments, those in our pending offer have a mean with ours in it since that
        version."""
        offer = fragment.pending.offer if fragment.pending else None
        fragment.averaged |= self.state.policies.averaged(
            moment_names(offer.sections) & moments if offer else (), version
        )

    def _found(self, now: float, job: Found, done: Done) -> None:
        self.state.founding = ""
        self.state.solo = False
        # a group may have been added since
        for fragment in self.state.fragments[: len(job.tensors)]:
            fragment.motion = Motion.STILL
            if not done.fault:
                tokens = self.boundaries.founded_at.tokens - fragment.settled.tokens
                lineage = fragment.found(tokens, done.digest)
                self.state.record(
                    whole_anchor_record(
                        fragment.fragment, fragment.lineage, lineage, "founded", mine=True
                    )
                )
                fragment.founded(lineage, self.boundaries.founded_at)
                self.state.moved(fragment.fragment)
        if done.fault:
            self.state.fault(f"the anchor was not taken from the weights: {done.fault}")
        for fragment in self.state.fragments:
            self._settled(now, fragment.fragment)
        self._beat(now)

    def _extended(self, now: float, job: Extend, done: Done) -> None:
        self.state.extend(done.digest, Totals(*job.at), job.groups)
        for peer in self.state.roster.peers.values():
            peer.beat = peer.beat and self._comparable(peer.beat)
        self._beat(now)

    def _exported(self, job: Export, done: Done) -> None:
        for want in [w for w in self.state.deferred if w.fragment == job.fragment]:
            self.state.deferred.remove(want)
            if want.have != job.lineage.digest:
                state = State(
                    peer=self.state.me,
                    fragment=job.fragment,
                    lineage=job.lineage,
                    content=done.digest,
                    sections=done.sections,
                )
                self.state.emit(Send(want.peer, state, PULL))

    def _settled(self, now: float, p: int) -> None:
        """Fragment `p` stands still again: go on with what had to wait for that."""
        fragment = self.state.fragments[p]
        if fragment.motion is not Motion.STILL:
            return
        if self.state.switch:
            self.adoption.finish_switch()
        elif fragment.deferred_news:
            deferred, fragment.deferred_news = fragment.deferred_news, None
            self.adoption.take_seal(now, deferred) if isinstance(
                deferred, Seal
            ) else self.adoption.take_state(now, deferred)
        self.adoption.answer(p)
        self.sealer.poll(now, p)

    # ── the network ───────────────────────────────────────────────────────────────────────────────

    def met(self, now: float, id: PeerId, address: str, seed: str = "") -> bool:
        """A peer agreed to our hello, or we to its. False if it is a past incarnation."""
        for where in (seed, address):  # it may have dialled us before we got through to it
            self.state.seeds.resolve(where, id)
        known = self.state.roster.find(id)
        peer = self.state.roster.meet(now, id, address)
        if peer and not known:
            self.state.emit(describe(id, "met", address=peer.address))
            self._beat_at = now
        return peer is not None

    def linked(self, now: float, id: PeerId, up: bool) -> None:
        """The control stream with a peer opened or broke."""
        self.state.roster.link(now, id, up)
        if up:
            self.state.emit(Send(id, self._make_beat()))
        self._poll_all(now)

    def heard(self, now: float, id: PeerId) -> None:
        """Bytes of a bulky message arrived from a peer: it lives, and what we want of it is still
        coming."""
        self.state.roster.touch(now, id)
        for p, (peer, _) in self.state.wants.items():
            if peer == id:
                self.state.wants[p] = (peer, now + self.state.policies.timing.round_timeout_s)
        self.offers.heard(now, id)

    def refused(self, now: float, address: str, reason: str) -> None:
        """A hello was refused, by us or by the learner at `address`."""
        self.state.seeds.refuse(address)
        self.state.emit(
            Event("refused", f"{address} refused: {reason}", {"address": address, "reason": reason})
        )
        self._check_joined(now)

    def receive(self, now: float, message: Message) -> None:
        """A message arrived. Anything but a hello's consequences is ignored until the first step
        has begun."""
        if isinstance(message, Beat):
            self._on_beat(now, message)
        elif isinstance(message, Goodbye):
            if self.state.roster.leave(message.peer):
                self.state.emit(describe(message.peer, "left"))
                self._poll_all(now)
        elif (
            self.state.fragments
            and not self.state.closed
            and 0 <= message.fragment < len(self.state.fragments)
        ):
            if isinstance(message, Call):
                self.offers.on_call(now, message.fragment, message.peer)
            elif isinstance(message, Offer):
                self.sealer.on_offer(now, message)
            elif isinstance(message, Seal):
                self.adoption.take_seal(now, message)
            elif isinstance(message, State):
                self.adoption.take_state(now, message)
            else:
                self.adoption.asked(message)

    def delivered(self, now: float, to: PeerId, message: Message) -> None:
        """The transport has handed over the whole of a bulky message; an offer's stream stays open
        for seals."""
        pending = self._pending_of(message)
        if pending and pending.sent_to == to:
            self.offers.delivered(now, pending)

    def undelivered(self, now: float, to: PeerId, message: Message) -> None:
        """The transport could not deliver a message, or its stream broke before the answer."""
        pending = self._pending_of(message)
        if pending and pending.sent_to == to:
            pending.delivered, pending.resend_at = False, now + self.state.policies.timing.beat_s
        elif isinstance(message, Want):
            self.state.wants.pop(message.fragment, None)
            if self.state.switch and self.state.switch.peer == to:
                self.state.switch = None
            self._check_joined(now)

    def _pending_of(self, message: Message) -> Pending | None:
        if not isinstance(message, Offer) or not self.state.fragments or not message.steps:
            return None
        pending = self.state.fragments[message.fragment].pending
        return (
            pending
            if pending and (pending.claim, pending.seq) == (message.claim, message.seq)
            else None
        )

    def _on_beat(self, now: float, beat: Beat) -> None:
        if beat.ping:
            self.state.emit(Send(beat.peer, self._make_beat(pong=beat.ping)))
        if 0 < beat.pong == self.state.ping:  # who was never asked has not answered
            self.state.answered.add(beat.peer)
        known = self.state.roster.find(beat.peer)
        was_unknown = (
            known is None or known.beat is None or known.beat.genesis != self.state.genesis
        )
        peer = self.state.roster.hear(now, self._comparable(beat))
        if peer is None or peer.beat is None:
            return
        beat = peer.beat
        self.state.roster.gossip(now, beat.roster)
        if not self.state.fragments or not beat.genesis or not beat.reports:
            return
        self.joining.heard(beat)
        self.adoption.compare(now, beat)
        for fragment, report in zip(self.state.fragments, beat.reports, strict=False):
            pending = fragment.pending
            if (
                pending
                and pending.sent_to == beat.peer
                and (self.state.me, pending.seq) in report.held
            ):
                pending.delivered, pending.resend_at = True, now + self.offers.patience(pending)
            elif (
                pending
                and pending.sent_to == beat.peer
                and was_unknown
                and beat.genesis == self.state.genesis
            ):
                # what reached it before it took our model over, it did not keep
                pending.resend_at = now
                self.offers.resend(now, fragment)
            self.sealer.poll(now, fragment.fragment)
        self._check_joined(now)

    def _comparable(self, beat: Beat) -> Beat:
        """The beat without fragments that are another group there than here; as if the peer did not
        have them."""
        pairs = zip(self.state.groups, beat.reports, strict=False)
        other = next((p for p, (group, report) in enumerate(pairs) if group != report.group), None)
        if other is None:
            return beat
        if beat.peer not in self._reported_groups:
            self._reported_groups.add(beat.peer)
            self.state.fault(
                f"{beat.peer.name} has added another group: fragment {other} is not merged with it"
            )
        return replace(beat, reports=beat.reports[:other])

    def tick(self, now: float) -> None:
        """Time passed."""
        for id in self.state.roster.expire(now):
            self.state.emit(describe(id, "evicted"))
        if now >= self._beat_at:
            self._beat(now)
        self.state.wake_at = NEVER
        if not self.state.fragments:
            return
        if self.state.joined and self.state.roster.alone:
            self.state.solo = True
        self.adoption.expire(now)
        for fragment in self.state.fragments:
            self.offers.resend(now, fragment)
            self.sealer.poll(now, fragment.fragment)
        self._check_joined(now)

    # ── beats and comparison of lineages ──────────────────────────────────────────────────────────

    def _beat(self, now: float) -> None:
        self._beat_at = now + self.state.policies.timing.beat_s
        if self.state.closed:
            return
        self._broadcasts += 1
        self.stragglers.review(now)
        # At rest we ask again with every beat: a peer may have linked since, or an answer been
        # lost.
        beat = self._make_beat(ping=self.state.ping if self.state.resting else 0)
        self.state.roster.broadcast(beat.count)
        for id in self.state.roster.audience(self._broadcasts):
            self.state.emit(Send(id, beat))

    def _make_beat(self, ping: int = 0, pong: int = 0) -> Beat:
        state = self.state
        self._beats += 1
        reports = tuple(
            Report(state.key(f), state.rounds[f.fragment].held(), group)
            for f, group in zip(state.fragments, state.groups, strict=True)
        )
        return Beat(
            peer=state.me,
            address=state.roster.address,
            count=self._beats,
            step=state.totals.step,
            tokens=state.totals.tokens,
            seconds_per_step=state.step_s,
            training=state.joined,
            genesis=state.genesis,
            reports=reports,
            roster=state.roster.rumors(),
            ping=ping,
            pong=pong,
            position=state.position,
            paces=self.stragglers.levels(),
        )

    def _poll_all(self, now: float) -> None:
        for fragment in self.state.fragments:
            self.offers.resend(now, fragment)
            self.sealer.poll(now, fragment.fragment)

    def _check_joined(self, now: float) -> None:
        if self.joining.check_joined(now):
            self._beat(now)
