"""The engine of a learner: everything it decides, and nothing it does.

Feed it what happened (`stepped`, `receive`, `finished`, `tick` …), with the time; then `drain()`
what it wants done: messages to send, jobs for the worker, events for the user. It reads no clock,
starts no thread, touches no tensor. One owner at a time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from mend_optim.engine.adoption import Adopting
from mend_optim.engine.boundaries import Training
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
from mend_optim.engine.joining import Resumed, Starting
from mend_optim.engine.ledger import Event, describe, sealed_record, taken_record
from mend_optim.engine.offers import Offering
from mend_optim.engine.policies import Policies
from mend_optim.engine.progress import NEVER, Motion, Pending, Progress, Standing, Totals
from mend_optim.engine.sealer import Sealing
from mend_optim.engine.state import Books
from mend_optim.engine.stragglers import Watching
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
    names,
)


class Syncer:
    """Rounds, roster, lineages and joining of one learner."""

    def __init__(
        self, me: PeerId, address: str, seeds: Sequence[str], policies: Policies, now: float
    ) -> None:
        self.books = Books(me, address, seeds, policies)
        self.adopting = Adopting(self.books)
        self.watching = Watching(self.books)
        self.offering = Offering(self.books, self.watching)
        self.sealing = Sealing(self.books, self.adopting, self.watching)
        self.training = Training(self.books, self.adopting, self.watching)
        self.starting = Starting(self.books, self.adopting)
        self._beats = self._broadcasts = 0
        self._beat_at = now
        self._told: set[PeerId] = set()  # whose groups are others than ours

    # ── out ───────────────────────────────────────────────────────────────────────────────────────

    def drain(self, now: float) -> list[Effect]:
        """What is to be done, in order; each is returned once. Messages to ourselves are delivered
        first."""
        while self.books.loopback:
            self.receive(now, self.books.loopback.popleft())
        out, self.books.out = self.books.out, []
        return out

    def wake_at(self) -> float:
        """When `tick` must be called next, if nothing happens before."""
        return min(self._beat_at, self.books.wake_at)

    # ── the training thread ───────────────────────────────────────────────────────────────────────

    def begin(
        self, now: float, genesis: bytes, groups: tuple[bytes, ...], resumed: Resumed | None = None
    ) -> None:
        """The first step is about to be taken, with weights of this digest, or where a checkpoint
        stood; from here on there is something to compare."""
        self.starting.begin(now, genesis, groups, resumed)
        for peer in self.books.roster.peers.values():
            if peer.beat:
                self.adopting.compare(now, peer.beat)
        self._beat(now)
        self.tick(now)

    def standings(self) -> list[Standing]:
        """What a checkpoint keeps."""
        return [fragment.standing() for fragment in self.books.fragments]

    def rest(self, now: float) -> None:
        """Training pauses to synchronize: offer what there is, and take part with nothing until the
        next step."""
        self.books.resting = True
        self.books.ping, self.books.answered = self.books.ping + 1, set()
        for fragment in self.books.fragments:
            fragment.called = fragment.called or fragment.unmerged(self.books.totals).step > 0
        ask = self._make_beat(ping=self.books.ping)
        for peer in self.books.roster.peers.values():
            self.books.emit(Send(peer.id, ask))
        self.tick(now)

    def taken(self, now: float, p: int, replaced: bool) -> None:
        """The training thread takes the correction of fragment `p`; it applies it before its next
        forward pass."""
        self.books.fragments[p].taken(replaced, self.books.totals)
        self._settled(now, p)

    def leave(self, now: float) -> None:
        """Say goodbye; nothing else is sent from here on."""
        if not self.books.closed:
            for peer in list(self.books.roster.peers.values()):
                self.books.emit(Send(peer.id, Goodbye(self.books.me)))
            self.books.closed = True

    # ── the worker ────────────────────────────────────────────────────────────────────────────────

    def finished(self, now: float, job: Job, done: Done) -> None:
        """A job was performed."""
        if isinstance(job, Prepare | Reoffer):
            self._prepared(now, job, done)
        elif isinstance(job, Inspect):
            self.sealing.inspected(now, job.offer, done)
        elif isinstance(job, Merge):
            self.sealing.merged(now, job, done)
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
        fragment = self.books.fragments[job.fragment]
        fragment.motion = Motion.STILL
        pending = fragment.pending
        if pending and pending.seq == job.seq:
            if done.fault:
                self.books.fault(f"fragment {job.fragment} was not offered: {done.fault}")
                fragment.withdraw()
                fragment.owes = False  # not to be tried again at once
                fragment.mark = self.books.totals.step
            else:
                if done.warning:
                    self.books.fault(
                        f"fragment {job.fragment} was offered without moments: {done.warning}"
                    )
                fragment.offered(self.books.genesis, done.sections)
                self.offering.send_offer(now, fragment, fragment.caller)
        fragment.caller = None
        self._settled(now, job.fragment)

    def _advanced(self, now: float, job: Advance, done: Done) -> None:
        fragment = self.books.fragments[job.seal.fragment]
        if done.fault:
            fragment.motion = Motion.STILL
            if fragment.pending:
                # no other seal will come for it: pull the anchor instead
                fragment.pending.delivered = False
            self.books.fault(f"seal of {job.seal.sealer.name} refused: {done.fault}")
        else:
            offer = fragment.pending.offer if job.mine and fragment.pending else None
            if job.mine:
                self._averaged(fragment, names(job.seal.sections), job.lineage.version)
            fragment.moved(
                job.lineage, job.mine, self.books.totals, self.books.policies.schedule, job.replace
            )
            if job.forget or (job.replace and not job.mine):
                fragment.forget()
            self.books.record(sealed_record(job.seal, job.mine, offer))
            self.sealing.advanced(now, job.seal)
            self.books.moved(job.seal.fragment)
        self._settled(now, job.seal.fragment)

    def _installed(self, now: float, job: Install, done: Done) -> None:
        if done.fault:
            self.books.fault(f"state of {job.states[0].peer.name} refused: {done.fault}")
        else:
            self.books.solo, self.books.founding = False, ""
        for state in job.states:
            fragment = self.books.fragments[state.fragment]
            fragment.motion = Motion.STILL
            if not done.fault:
                # another model may have it, too
                mine = job.mine or fragment.includes_pending(state.lineage)
                old, superseded = fragment.lineage, fragment.superseded_tokens
                version, brought = state.lineage.version, names(state.sections)
                self._averaged(fragment, brought & set(job.due), version)
                self.books.genesis = state.lineage.genesis
                fragment.moved(
                    state.lineage,
                    mine,
                    self.books.totals,
                    self.books.policies.schedule,
                    job.replace,
                )
                if job.forget or job.replace:
                    fragment.forget()
                if job.replace:  # the others' moments came with their weights
                    fragment.averaged |= self.books.policies.averaged(brought, version)
                dropped = fragment.unmerged(self.books.totals).tokens if job.replace else 0
                record = taken_record(state.fragment, old, state.lineage, "pulled", mine, dropped)
                self.books.record(
                    replace(record, superseded_tokens=fragment.superseded_tokens - superseded)
                )
                self.books.moved(state.fragment)
        if job.replace and not done.fault:
            self.books.catch_up_position(self.books.cluster_step())
            # groups that were added only here
            for fragment in self.books.fragments[len(job.states) :]:
                fragment.transplant(self.books.genesis)
                self.books.rounds[fragment.fragment].purge(fragment.lineage)
        for state in job.states:
            self._settled(now, state.fragment)
        self._check_joined(now)
        self._beat(now)  # others may wait for us to have it

    def _averaged(self, fragment: Progress, moments: frozenset[str], version: int) -> None:
        """Of these moments, those in our pending offer have a mean with ours in it since that
        version."""
        offer = fragment.pending.offer if fragment.pending else None
        fragment.averaged |= self.books.policies.averaged(
            names(offer.sections) & moments if offer else (), version
        )

    def _found(self, now: float, job: Found, done: Done) -> None:
        self.books.founding = ""
        self.books.solo = False
        # a group may have been added since
        for fragment in self.books.fragments[: len(job.tensors)]:
            fragment.motion = Motion.STILL
            if not done.fault:
                tokens = self.training.founded_at.tokens - fragment.banked.tokens
                lineage = fragment.found(tokens, done.digest)
                self.books.record(
                    taken_record(fragment.fragment, fragment.lineage, lineage, "founded", mine=True)
                )
                fragment.founded(lineage, self.training.founded_at)
                self.books.moved(fragment.fragment)
        if done.fault:
            self.books.fault(f"the anchor was not taken from the weights: {done.fault}")
        for fragment in self.books.fragments:
            self._settled(now, fragment.fragment)
        self._beat(now)

    def _extended(self, now: float, job: Extend, done: Done) -> None:
        self.books.extend(done.digest, Totals(*job.at), job.groups)
        for peer in self.books.roster.peers.values():
            peer.beat = peer.beat and self._comparable(peer.beat)
        self._beat(now)

    def _exported(self, job: Export, done: Done) -> None:
        for want in [w for w in self.books.deferred if w.fragment == job.fragment]:
            self.books.deferred.remove(want)
            if want.have != job.lineage.digest:
                state = State(self.books.me, job.fragment, job.lineage, done.digest, done.sections)
                self.books.emit(Send(want.peer, state, PULL))

    def _settled(self, now: float, p: int) -> None:
        """Fragment `p` stands still again: go on with what had to wait for that."""
        fragment = self.books.fragments[p]
        if fragment.motion is not Motion.STILL:
            return
        if self.books.switch:
            self.adopting.finish_switch()
        elif fragment.stash:
            stashed, fragment.stash = fragment.stash, None
            self.adopting.take_seal(now, stashed) if isinstance(
                stashed, Seal
            ) else self.adopting.take_state(now, stashed)
        self.adopting.answer(p)
        self.sealing.poll(now, p)

    # ── the network ───────────────────────────────────────────────────────────────────────────────

    def met(self, now: float, id: PeerId, address: str, seed: str = "") -> bool:
        """A peer agreed to our hello, or we to its. False if it is a past incarnation."""
        for where in (seed, address):  # it may have dialled us before we got through to it
            self.books.seeds.resolve(where, id)
        known = self.books.roster.find(id)
        peer = self.books.roster.meet(now, id, address)
        if peer and not known:
            self.books.emit(describe(id, "met", address=peer.address))
            self._beat_at = now
        return peer is not None

    def linked(self, now: float, id: PeerId, up: bool) -> None:
        """The control stream with a peer opened or broke."""
        self.books.roster.link(now, id, up)
        if up:
            self.books.emit(Send(id, self._make_beat()))
        self._poll_all(now)

    def heard(self, now: float, id: PeerId) -> None:
        """Bytes of a bulky message arrived from a peer: it lives, and what we want of it is still
        coming."""
        self.books.roster.touch(now, id)
        for p, (peer, _) in self.books.wants.items():
            if peer == id:
                self.books.wants[p] = (peer, now + self.books.policies.timing.round_timeout_s)
        self.offering.heard(now, id)

    def refused(self, now: float, address: str, reason: str) -> None:
        """A hello was refused, by us or by the learner at `address`."""
        self.books.seeds.refuse(address)
        self.books.emit(
            Event("refused", f"{address} refused: {reason}", {"address": address, "reason": reason})
        )
        self._check_joined(now)

    def receive(self, now: float, message: Message) -> None:
        """A message arrived. Anything but a hello's consequences is ignored until the first step
        has begun."""
        if isinstance(message, Beat):
            self._on_beat(now, message)
        elif isinstance(message, Goodbye):
            if self.books.roster.leave(message.peer):
                self.books.emit(describe(message.peer, "left"))
                self._poll_all(now)
        elif (
            self.books.fragments
            and not self.books.closed
            and 0 <= message.fragment < len(self.books.fragments)
        ):
            if isinstance(message, Call):
                self.offering.called(now, message.fragment, message.peer)
            elif isinstance(message, Offer):
                self.sealing.on_offer(now, message)
            elif isinstance(message, Seal):
                self.adopting.take_seal(now, message)
            elif isinstance(message, State):
                self.adopting.take_state(now, message)
            else:
                self.adopting.asked(message)

    def delivered(self, now: float, to: PeerId, message: Message) -> None:
        """The transport has handed over the whole of a bulky message; an offer's stream stays open
        for seals."""
        pending = self._pending_of(message)
        if pending and pending.sent_to == to:
            self.offering.delivered(now, pending)

    def undelivered(self, now: float, to: PeerId, message: Message) -> None:
        """The transport could not deliver a message, or its stream broke before the answer."""
        pending = self._pending_of(message)
        if pending and pending.sent_to == to:
            pending.delivered, pending.resend_at = False, now + self.books.policies.timing.beat_s
        elif isinstance(message, Want):
            self.books.wants.pop(message.fragment, None)
            if self.books.switch and self.books.switch.peer == to:
                self.books.switch = None
            self._check_joined(now)

    def _pending_of(self, message: Message) -> Pending | None:
        if not isinstance(message, Offer) or not self.books.fragments or not message.steps:
            return None
        pending = self.books.fragments[message.fragment].pending
        return (
            pending
            if pending and (pending.claim, pending.seq) == (message.claim, message.seq)
            else None
        )

    def _on_beat(self, now: float, beat: Beat) -> None:
        if beat.ping:
            self.books.emit(Send(beat.peer, self._make_beat(pong=beat.ping)))
        if 0 < beat.pong == self.books.ping:  # who was never asked has not answered
            self.books.answered.add(beat.peer)
        known = self.books.roster.find(beat.peer)
        strange = known is None or known.beat is None or known.beat.genesis != self.books.genesis
        peer = self.books.roster.hear(now, self._comparable(beat))
        if peer is None or peer.beat is None:
            return
        beat = peer.beat
        self.books.roster.gossip(now, beat.roster)
        if not self.books.fragments or not beat.genesis or not beat.reports:
            return
        self.starting.heard(beat)
        self.adopting.compare(now, beat)
        for fragment, report in zip(self.books.fragments, beat.reports, strict=False):
            pending = fragment.pending
            if (
                pending
                and pending.sent_to == beat.peer
                and (self.books.me, pending.seq) in report.held
            ):
                pending.delivered, pending.resend_at = True, now + self.offering.patience(pending)
            elif (
                pending
                and pending.sent_to == beat.peer
                and strange
                and beat.genesis == self.books.genesis
            ):
                # what reached it before it took our model over, it did not keep
                pending.resend_at = now
                self.offering.resend(now, fragment)
            self.sealing.poll(now, fragment.fragment)
        self._check_joined(now)

    def _comparable(self, beat: Beat) -> Beat:
        """The beat without fragments that are another group there than here; as if the peer did not
        have them."""
        pairs = zip(self.books.groups, beat.reports, strict=False)
        other = next((p for p, (group, report) in enumerate(pairs) if group != report.group), None)
        if other is None:
            return beat
        if beat.peer not in self._told:
            self._told.add(beat.peer)
            self.books.fault(
                f"{beat.peer.name} has added another group: fragment {other} is not merged with it"
            )
        return replace(beat, reports=beat.reports[:other])

    def tick(self, now: float) -> None:
        """Time passed."""
        for id in self.books.roster.expire(now):
            self.books.emit(describe(id, "evicted"))
        if now >= self._beat_at:
            self._beat(now)
        self.books.wake_at = NEVER
        if not self.books.fragments:
            return
        if self.books.joined and self.books.roster.alone:
            self.books.solo = True
        self.adopting.expire(now)
        for fragment in self.books.fragments:
            self.offering.resend(now, fragment)
            self.sealing.poll(now, fragment.fragment)
        self._check_joined(now)

    # ── beats and comparison of lineages ──────────────────────────────────────────────────────────

    def _beat(self, now: float) -> None:
        self._beat_at = now + self.books.policies.timing.beat_s
        if self.books.closed:
            return
        self._broadcasts += 1
        self.watching.review(now)
        # At rest we ask again with every beat: a peer may have linked since, or an answer been
        # lost.
        beat = self._make_beat(ping=self.books.ping if self.books.resting else 0)
        self.books.roster.broadcast(beat.count)
        for id in self.books.roster.audience(self._broadcasts):
            self.books.emit(Send(id, beat))

    def _make_beat(self, ping: int = 0, pong: int = 0) -> Beat:
        books = self.books
        self._beats += 1
        reports = tuple(
            Report(books.key(f), books.rounds[f.fragment].held(), group)
            for f, group in zip(books.fragments, books.groups, strict=True)
        )
        return Beat(
            books.me,
            books.roster.address,
            self._beats,
            books.totals.step,
            books.totals.tokens,
            books.step_s,
            books.joined,
            books.genesis,
            reports,
            books.roster.rumors(),
            ping,
            pong,
            books.position,
            self.watching.levels(),
        )

    def _poll_all(self, now: float) -> None:
        for fragment in self.books.fragments:
            self.offering.resend(now, fragment)
            self.sealing.poll(now, fragment.fragment)

    def _check_joined(self, now: float) -> None:
        if self.starting.check_joined(now):
            self._beat(now)
