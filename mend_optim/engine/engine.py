"""The engine of a learner: everything it decides, and nothing it does.

Tell it what happened (`boundaries.stepped`, `receive`, `finished`, `tick` …) and when. Then take
from `drain()` what it wants done: messages to send, jobs for the worker, events for the user. It
reads no clock, starts no thread and touches no tensor. It has one owner at a time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from mend_optim.engine.adoption import Adopter
from mend_optim.engine.answers import Answers
from mend_optim.engine.beats import Beats
from mend_optim.engine.boundaries import Boundaries
from mend_optim.engine.effects import Done, Effect, Extend, Found, Install, Job, Send
from mend_optim.engine.ending import Ending
from mend_optim.engine.finish_wait import FinishWait
from mend_optim.engine.idleness import Idleness
from mend_optim.engine.joining import Joining, Resumed
from mend_optim.engine.ledger import Event
from mend_optim.engine.mode import Change, Mode
from mend_optim.engine.namesakes import Namesakes
from mend_optim.engine.offers import Offers
from mend_optim.engine.outcomes import Outcomes
from mend_optim.engine.pending import NEVER
from mend_optim.engine.policies import Policies
from mend_optim.engine.presence import Presence
from mend_optim.engine.rollback import Rollbacks
from mend_optim.engine.sealer import Sealer
from mend_optim.engine.standing import Standing, standing_of
from mend_optim.engine.state import EngineState
from mend_optim.engine.stragglers import Stragglers
from mend_optim.errors import unreachable
from mend_optim.protocol.handshake import Namesake
from mend_optim.protocol.lineage import PeerId
from mend_optim.protocol.messages import (
    Beat,
    Call,
    Goodbye,
    Message,
    Offer,
    Rumor,
    Seal,
    State,
    Want,
)
from mend_optim.protocol.seed_lists import Listing
from mend_optim.protocol.transfer_fault import TransferFault
from mend_optim.protocol.unreached import Unreached


class Engine:
    """The front door: rounds, roster, lineages and joining of one learner."""

    def __init__(
        self, me: PeerId, address: str, seeds: Sequence[str], policies: Policies, now: float
    ) -> None:
        state = EngineState(me, address, seeds, policies)
        self.state = state
        self.adoption = Adopter(state)
        self.pulling = self.adoption.pulling
        self.stragglers = Stragglers(state)
        self.beats = Beats(state, self.stragglers, now)
        self.idleness = Idleness(state)
        self.offers = Offers(state, self.stragglers, self.idleness, self.adoption.passages)
        self.sealer = Sealer(state, self.adoption, self.stragglers, self.offers.standoffs)
        self.answers = Answers(state, self.sealer.relaying.passed_seals)
        self.boundaries = Boundaries(state, self.adoption, self.stragglers, self.offers.turns)
        self.finish_wait = FinishWait(state)
        self.rollbacks = Rollbacks(state, self.adoption)
        self.presence = Presence(state)
        self.ending = Ending(state, self.boundaries, self.presence)
        self.namesakes = Namesakes(state)
        self.joining = Joining(state, self.adoption, self.presence)
        self.outcomes = Outcomes(
            state,
            adoption=self.adoption,
            answers=self.answers,
            offers=self.offers,
            sealer=self.sealer,
            boundaries=self.boundaries,
        )

    # ── out ───────────────────────────────────────────────────────────────────────────────────────

    def drain(self, now: float) -> list[Effect]:
        """Return the effects in order, each of them once. Messages to this learner itself are
        delivered first."""
        while self.state.loopback:
            self._take(now, self.state.loopback.popleft())
        out, self.state.out = self.state.out, []
        return out

    def wake_at(self) -> float:
        """When `tick` must be called next, if nothing happens before."""
        return min(self.beats.due_at, self.state.wake_at)

    # ── the training thread ───────────────────────────────────────────────────────────────────────

    def begin(
        self, now: float, genesis: bytes, groups: tuple[bytes, ...], resumed: Resumed | None = None
    ) -> None:
        """The first step is about to be taken, with weights of this digest, or where a checkpoint
        stood. From here on there is something to compare."""
        self.joining.begin(now, genesis, groups, resumed)
        for beat in self.state.beats():
            self.adoption.compare(now, beat)
        self._beat(now)
        self.tick(now)

    def standings(self) -> list[Standing]:
        """Return each fragment's progress as a checkpoint keeps it."""
        self.state.was_saved = True
        return [standing_of(fragment) for fragment in self.state.fragments]

    def rest(self, now: float, finishing: bool = False) -> None:
        """Training pauses to synchronize: offer all unmerged work, then answer calls with empty
        offers until the next step. If it is `finishing`, it ends once all learners do."""
        if not self.state.resting:
            self.ending.trained_on()
        self.state.resting = True
        self.state.finishing = finishing
        for fragment in self.state.fragments:
            if fragment.unmerged(self.state.totals).step > 0:
                fragment.request_offer()
        self.beats.ask_all()
        self.tick(now)

    def correction_applied(self, now: float, p: int, replaced: bool) -> None:
        """The training thread takes the correction of fragment `p`, and applies it before its next
        forward pass."""
        self.state.fragments[p].correction_applied(replaced, self.state.totals)
        self.outcomes.go_on(now, p)

    def begin_anew(self, now: float) -> list[bool]:
        """The user has put other weights in the place of this learner's. Returns for each fragment
        whether an offer of it is on its way, which stays."""
        kept = self.boundaries.begin_anew()
        for fragment in self.state.fragments:
            self.outcomes.go_on(now, fragment.fragment)
        return kept

    def leave(self, now: float) -> None:
        """Say goodbye. From here on the learner takes no anchor and runs no round."""
        if self.state.mode is not Mode.CLOSED:
            for peer in list(self.state.roster.peers.values()):
                if self.state.ready or self.state.ended:  # not everyone may know it yet
                    self.beats.send(peer.id)
                self.state.emit(Send(peer.id, Goodbye(self.state.me)))
            self.state.change(Change.LEFT)

    def abandon(self) -> None:
        """This is a copy of the learner, which lives on elsewhere: tell nobody anything."""
        self.state.change(Change.LEFT)
        self.state.out.clear()

    # ── the worker ────────────────────────────────────────────────────────────────────────────────

    def finished(self, now: float, job: Job, done: Done) -> None:
        """The worker has performed a job. If it installed, founded or added an anchor, a beat
        follows, because other learners may wait for that anchor."""
        adopted = self.state.adopted_rounds
        self.outcomes.take(now, job, done)
        if self.state.adopted_rounds > adopted:
            self.state.adopted_at = now
        match job:
            case Install():
                self._check_joined(now)
                self._beat(now)
            case Found():
                self._beat(now)
            case Extend():
                for peer in self.state.roster.peers.values():
                    peer.beat = peer.beat and self.beats.comparable(peer.beat)
                self._beat(now)
        self._review_end(now)

    # ── the network ───────────────────────────────────────────────────────────────────────────────

    def met(self, now: float, id: PeerId, address: str, seed: str = "") -> bool:
        """A peer agreed to our hello, or we to its. False if a later process of its name is known
        (`Roster.namesake`), or if it is new to a run that is about to end."""
        for where in (seed, address):  # it may have dialled us before we got through to it
            self.state.seeds.resolve(where, id)
        known = self.state.roster.find(id)
        peer = self.state.roster.meet(now, id, address)
        if peer:
            self.presence.met(peer)
        if peer and not known:
            self.beats.due_at = now
        return peer is not None

    def linked(self, now: float, id: PeerId, up: bool) -> None:
        """The control stream with a peer opened or broke."""
        if self.state.mode is not Mode.CLOSED:  # a learner that leaves hangs up itself
            self.state.roster.link(now, id, up)
        if up:
            self.state.seeds.linked(id)
            self.beats.send(id)
        self._poll_all(now)

    def heard(self, now: float, id: PeerId, p: int) -> None:
        """Bytes of a bulky message of a fragment arrived from a peer. It is alive, and the anchor
        or the seal that we expect from it is still coming, or comes after that message."""
        self.state.roster.touch(now, id)
        self.pulling.heard(now, id, p)
        self.offers.heard(now, id, p)

    def refused(self, now: float, address: str, reason: str) -> None:
        """A hello was refused, by us or by a learner that says it is at `address`. It is no news of
        one that has left: a peer may know its next process by the time of the answer."""
        if self.state.mode is not Mode.CLOSED:
            facts = {"address": address, "reason": reason}
            self.state.emit(Event("refused", f"{address} refused: {reason}", facts))

    def refused_at(self, now: float, address: str, reason: str) -> None:
        """The learner that answers at `address` refused this one's hello, or was refused."""
        self.state.seeds.refuse(address, reason)
        self._check_joined(now)

    def outranked(self, now: float, address: str, namesake: Namesake) -> bool:
        """The learner at `address` turns this one away, because it knows a later process of this
        one's name. Returns whether this learner has another incarnation now."""
        renewed = self.namesakes.known(now, address, namesake)
        if renewed:
            self.joining.renewed(now)
        self._check_joined(now)
        return renewed

    def unreached(self, now: float, address: str, cause: Unreached) -> None:
        """Nobody answered at a seed."""
        self.state.seeds.fail(self.state.stops.awake_s(now), address, cause)
        self._check_joined(now)

    def listed(self, now: float, source: str, listing: Listing) -> None:
        """A list of peers was read."""
        self.state.seeds.listed(source, listing)
        self._check_joined(now)

    def itself(self, address: str) -> None:
        """The learner at this seed is this one."""
        self.state.seeds.discard(address)

    def receive(self, now: float, message: Message) -> None:
        """A message arrived from the peer that it names. Anything but a beat and a goodbye is
        ignored before the first step has begun, and after `leave`."""
        if not self.state.is_own(message):
            self._take(now, message)

    def passed_on(self, now: float, offer: Offer, by: PeerId) -> None:
        """A peer passed on the offer of another learner. It is ignored unless that learner is gone
        from here, too, or is in the peer's zone: one that lives offers by itself."""
        if self.sealer.relaying.may_pass_on(offer, by):
            self.receive(now, replace(offer, passed_by=by))

    def _take(self, now: float, message: Message) -> None:
        match message:
            case Beat():
                self._on_beat(now, message)
            case Goodbye():
                self._left(now, message)
            case _:
                closed = self.state.mode is Mode.CLOSED
                if not closed and self.state.has_fragment(message.fragment):
                    self._on_round_message(now, message)

    def _on_round_message(self, now: float, message: Call | Offer | Seal | State | Want) -> None:
        match message:
            case Call():
                self.offers.on_call(now, message)
            case Offer():
                self.sealer.on_offer(now, message)
            case Seal():
                self.adoption.take_seal(now, message)
            case State():
                self.adoption.take_state(now, message)
            case Want():
                self.answers.asked(message)
            case _:
                unreachable(message)

    def delivered(self, now: float, to: PeerId, message: Message) -> None:
        """The transport has handed over the whole of a bulky message; an offer's stream stays open
        for seals."""
        pending = self.offers.sent_as(to, message)
        if pending:
            self.offers.delivered(now, pending)
        self.sealer.relaying.arrived(now, to, message)

    def undelivered(self, now: float, to: PeerId, message: Message, fault: TransferFault) -> None:
        """The transport could not deliver a message, or its stream broke before the answer."""
        pending = self.offers.sent_as(to, message)
        if pending:
            self.offers.undelivered(now, pending, fault)
        self.sealer.relaying.failed(now, to, message)
        if isinstance(message, Want):
            self.pulling.unreachable(now, to, message.fragment, fault)
            self._check_joined(now)

    def _left(self, now: float, goodbye: Goodbye) -> None:
        """A peer has told that it leaves."""
        if self._forget(goodbye):
            self._poll_all(now)
            self._review_end(now)

    def _forget(self, gone: Goodbye | Rumor) -> bool:
        """A peer has left, as it told itself, or as others tell. Returns whether it was here."""
        is_news = self.state.roster.leave(gone.peer, gone.proof)
        if is_news:
            self.presence.left(gone.peer)
        return is_news

    def _take_rumors(self, now: float, rumors: Sequence[Rumor]) -> None:
        """However many have left, the rounds are looked at once."""
        gone = [r for r in self.state.roster.gossip(now, rumors) if self._forget(r)]
        if gone:
            self._poll_all(now)
            self._review_end(now)

    def _on_beat(self, now: float, beat: Beat) -> None:
        state = self.state
        self.namesakes.heard(beat)
        self.beats.heard(beat)
        known = state.roster.find(beat.peer)
        was_unknown = known is None or known.beat is None or known.beat.genesis != state.genesis
        peer = state.roster.hear(now, self.beats.comparable(beat))
        if peer is None or peer.beat is None:
            self.ending.heard(beat)
            return
        beat = peer.beat
        self._take_rumors(now, beat.roster)
        self.ending.heard(beat)
        if not state.fragments or not beat.genesis or not beat.reports:
            return
        self.joining.heard(now, beat)
        self.adoption.compare(now, beat)
        for fragment, report in zip(state.fragments, beat.reports, strict=False):
            self.offers.reported(now, fragment, beat, report, was_unknown)
        self.sealer.poll_all(now)
        self._check_joined(now)
        self._review_end(now)

    # ── time ──────────────────────────────────────────────────────────────────────────────────────

    def tick(self, now: float) -> None:
        """Time passed."""
        state = self.state
        for id in self.presence.expire(now):
            self.ending.evicted(id)
        if now >= self.beats.due_at:
            self._beat(now)
        state.wake_at = NEVER
        if not state.fragments:
            return
        if state.roster.alone and state.mode in (Mode.TRAINING, Mode.SWITCHING_TRAINING):
            state.change(Change.LOST_ALL_PEERS)
        self.outcomes.look(now)
        self.pulling.expire(now)
        self.adoption.give_way(now)
        self._poll_all(now)
        self._check_joined(now)
        for fragment in state.fragments:
            self.boundaries.agree(fragment.fragment)
        self._review_end(now)

    def _review_end(self, now: float) -> None:
        if self.state.fragments and self.ending.review(now):
            self._beat(now)

    def _beat(self, now: float) -> None:
        if self.state.mode is Mode.CLOSED:
            self.beats.due_at = now + self.state.policies.timing.beat_s
        else:
            self.presence.review(now)
            self.idleness.look(now)
            self.finish_wait.review(now)
            self.sealer.relaying.passed_seals.review()
            self.beats.send_to_all(now)

    def _poll_all(self, now: float) -> None:
        for fragment in self.state.fragments:
            self.offers.resend(now, fragment)
        self.sealer.poll_all(now)

    def _check_joined(self, now: float) -> None:
        if self.joining.check_joined(now):
            self._beat(now)
