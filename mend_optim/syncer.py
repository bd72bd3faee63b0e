"""The engine of a learner: everything it decides, and nothing it does.

Feed it what happened (`stepped`, `receive`, `finished`, `tick` …), with the time; then `drain()` what it wants done: messages to send,
jobs for the worker, events for the user. It reads no clock, starts no thread, touches no tensor. One owner at a time.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import median
from typing import Union

from torch import Tensor

from .anchor import Advance, Done, Export, Found, Inspect, Install, Job, Merge, Prepare
from .joining import ModelKey, Seeds, Switch, model_key
from .ledger import Event, RoundRecord, describe, sealed_record, taken_record
from .lineage import Key, Lineage, PeerId
from .merge import weights
from .progress import NEVER, Motion, Pending, Progress, Totals
from .protocol import Beat, Call, Goodbye, Message, Offer, Report, Seal, State, Want
from .quorum import Grace, Quorum
from .roster import FANOUT, Peer, Roster, Timing
from .round import Phase, Round
from .schedule import Schedule

EXCHANGE, PULL = "exchange", "pull"
RECORDS = 64


@dataclass(frozen=True, slots=True)
class Send:
    """A message for a peer. `reply` names the open stream it answers on ("exchange" or "pull"), empty if it opens its own."""

    to: PeerId
    message: Message
    reply: str = ""


@dataclass(frozen=True, slots=True)
class Work:
    """A job for the worker, to be performed in the order of emission and reported with `finished`."""

    job: Job


Effect = Union[Send, Work, Event]


@dataclass(frozen=True, kw_only=True)
class Policies:
    """What the engine goes by."""

    schedule: Schedule
    quorum: Quorum = Quorum()
    grace: Grace = Grace()
    weighting: str = "tokens"
    timing: Timing = Timing()


class Syncer:
    """Rounds, roster, lineages and joining of one learner."""

    def __init__(self, me: PeerId, address: str, seeds: Sequence[str], policies: Policies, now: float) -> None:
        self.me, self.policies = me, policies
        self.roster = Roster(me, address, policies.timing)
        self.seeds = Seeds(seeds)
        self.totals = Totals()
        self.genesis = b""
        self.fragments: list[Progress] = []
        self.rounds: list[Round] = []
        self.seals: list[Seal | None] = []
        self.records: deque[RoundRecord] = deque(maxlen=RECORDS)
        self.adopted_rounds = 0
        self.joined = self.resting = self.closed = False
        self.solo = True  # no peer of our genesis heard of since we were last alone
        self._founding = ""  # "", "due" or "running"
        self._founded_at = Totals()
        self._switch: Switch | None = None
        self._wants: dict[int, float] = {}
        self._deferred: list[Want] = []
        self._inspecting: set[tuple[PeerId, int, int]] = set()
        self._join_by = NEVER
        self._beats = 0
        self._beat_at = now
        self._wake_at = NEVER
        self._stepped_at: float | None = None
        self._step_s = 0.0
        self._out: list[Effect] = []

    # ── out ──────────────────────────────────────────────────────────────────────────────────────────────────────────

    def drain(self) -> list[Effect]:
        """What is to be done, in order; each is returned once."""
        out, self._out = self._out, []
        return out

    def wake_at(self) -> float:
        """When `tick` must be called next, if nothing happens before."""
        return min(self._beat_at, self._wake_at)

    def _emit(self, effect: Effect) -> None:
        self._out.append(effect)

    def _work(self, job: Job) -> None:
        self._emit(Work(job))

    def _record(self, record: RoundRecord) -> None:
        self.records.append(record)
        self.adopted_rounds += 1
        self._emit(Event("round", f"fragment {record.fragment} version {record.version}: {record.reason}", {"round": record}))

    # ── the training thread ──────────────────────────────────────────────────────────────────────────────────────────

    def begin(self, now: float, genesis: bytes) -> None:
        """The first step is about to be taken, with weights of this digest; from here on there is something to compare."""
        schedule = self.policies.schedule
        self.genesis = genesis
        lineage = Lineage.fresh(genesis)
        self.fragments = [Progress(p, lineage, schedule.first_mark(p)) for p in range(schedule.fragments)]
        self.rounds = [Round(p) for p in range(schedule.fragments)]
        self.seals = [None] * schedule.fragments
        self._join_by = now + self.policies.timing.join_timeout_s
        for peer in self.roster.peers.values():
            if peer.beat:
                self._compare(now, peer.beat)
        self._beat(now)
        self.tick(now)

    def stepped(self, now: float, tokens: int) -> None:
        """One inner step on `tokens` tokens was taken."""
        if self._stepped_at is not None and not self.resting:
            last = now - self._stepped_at
            self._step_s = last if not self._step_s else 0.8 * self._step_s + 0.2 * last
        self._stepped_at, self.resting = now, False
        self.totals.step += 1
        self.totals.tokens += tokens

    def rest(self, now: float) -> None:
        """Training pauses to synchronize: offer what there is, and take part with nothing until the next step."""
        self.resting = True
        for fragment in self.fragments:
            fragment.called = True
        self.tick(now)

    def wanted(self) -> list[int]:
        """Fragments whose parameters the training thread should copy now; then call `snapshot` for each (or `found` for all)."""
        if not self.joined or self._switch:
            return []
        if self._founding == "due":
            if not any(f.unmerged(self.totals).step for f in self.fragments):
                self._founding = ""
                return []
            still = all(f.motion is Motion.STILL and not f.untaken for f in self.fragments)
            return list(range(len(self.fragments))) if still else []
        if self.solo or self._founding:
            return []
        return [f.fragment for f in self.fragments if f.wants_snapshot(self.totals, self.policies.schedule)]

    @property
    def founding(self) -> bool:
        """Whether the wanted snapshots are to found anchors, all at once."""
        return self._founding == "due"

    def reserve(self, p: int) -> None:
        """The training thread begins to copy fragment `p`: its anchor stands still until `snapshot`."""
        fragment = self.fragments[p]
        due = self.resting or self.policies.schedule.due(self.totals.step, fragment.mark)
        fragment.snapshot(self.totals, due)

    def snapshot(self, p: int, tensor: Tensor) -> None:
        """The copy of fragment `p` that was reserved is ready to become an offer."""
        pending = self.fragments[p].pending
        assert pending is not None
        self._work(Prepare(p, pending.seq, tensor))

    def reserve_all(self) -> None:
        """The training thread begins to copy all fragments, to found anchors."""
        self._founding = "running"
        self._founded_at = Totals(self.totals.step, self.totals.tokens)
        for fragment in self.fragments:
            fragment.motion = Motion.SNAPSHOT

    def found(self, tensors: tuple[Tensor, ...]) -> None:
        """The copies of all fragments are ready to become the anchors."""
        self._work(Found(tensors))

    def holds_back(self, p: int) -> bool:
        """Under `adopt_after`: whether a correction of `p` that is ready must wait for its step."""
        adopt_at = self.fragments[p].adopt_at
        return adopt_at is not None and self.totals.step < adopt_at

    def must_wait(self) -> bool:
        """Under `adopt_after`: whether the training thread is at a step whose anchor has not come yet."""
        overlap = self.policies.schedule.adopt_after
        if overlap is None or self.solo:
            return False
        return any(
            f.pending is not None and not f.pending.missed and self.totals.step >= f.pending.step + overlap
            for f in self.fragments
        )

    def taken(self, now: float, p: int, replaced: bool) -> None:
        """The training thread takes the correction of fragment `p`; it applies it before its next forward pass."""
        self.fragments[p].taken(replaced, self.totals)
        self._settled(now, p)

    def settled(self) -> bool:
        """Whether nothing of ours is unmerged and our anchors are the greatest we have heard of."""
        if self.solo:
            return True
        clean = all(not f.unmerged(self.totals).step and not f.untaken and not self._behind(f) for f in self.fragments)
        return clean and not self._switch

    def leave(self, now: float) -> None:
        """Say goodbye; nothing else is sent from here on."""
        if not self.closed:
            for peer in list(self.roster.peers.values()):
                self._emit(Send(peer.id, Goodbye(self.me)))
            self.closed = True

    # ── the worker ───────────────────────────────────────────────────────────────────────────────────────────────────

    def finished(self, now: float, job: Job, done: Done) -> None:
        """A job was performed."""
        if isinstance(job, Prepare):
            self._prepared(now, job, done)
        elif isinstance(job, Inspect):
            self._inspected(now, job.offer, done)
        elif isinstance(job, Merge):
            self._merged(now, job, done)
        elif isinstance(job, Advance):
            self._advanced(now, job, done)
        elif isinstance(job, Install):
            self._installed(now, job, done)
        elif isinstance(job, Found):
            self._found(now, done)
        else:
            self._exported(job, done)

    def _fault(self, text: str) -> None:
        self._emit(Event("fault", text))

    def _prepared(self, now: float, job: Prepare, done: Done) -> None:
        fragment = self.fragments[job.fragment]
        fragment.motion = Motion.STILL
        pending = fragment.pending
        if pending and pending.seq == job.seq:
            if done.fault:
                self._fault(f"fragment {job.fragment} was not offered: {done.fault}")
                fragment.pending, fragment.mark = None, self.totals.step
            else:
                pending.offer = Offer(
                    self.me, job.fragment, job.seq, pending.tokens, pending.steps, self.genesis, fragment.lineage.key,
                    pending.due, done.sections,
                )  # fmt: skip
                self._send_offer(now, fragment, fragment.caller)
        fragment.caller = None
        self._settled(now, job.fragment)

    def _advanced(self, now: float, job: Advance, done: Done) -> None:
        fragment = self.fragments[job.seal.fragment]
        if done.fault:
            fragment.motion = Motion.STILL
            self._fault(f"seal of {job.seal.sealer.name} refused: {done.fault}")
        else:
            fragment.moved(job.lineage, job.mine, self.totals, self.policies.schedule)
            self._record(sealed_record(job.seal, job.mine))
            self._moved(job.seal.fragment)
        self._settled(now, job.seal.fragment)

    def _installed(self, now: float, job: Install, done: Done) -> None:
        if done.fault:
            self._fault(f"state of {job.states[0].peer.name} refused: {done.fault}")
        else:
            self.solo, self._founding = False, ""
        for state in job.states:
            fragment = self.fragments[state.fragment]
            fragment.motion = Motion.STILL
            if not done.fault:
                dropped = fragment.unmerged(self.totals).tokens if job.replace else 0
                record = taken_record(state.fragment, fragment.lineage, state.lineage, "pulled", job.mine, dropped)
                self.genesis = state.lineage.genesis
                fragment.moved(state.lineage, job.mine, self.totals, self.policies.schedule)
                self._record(record)
                self._moved(state.fragment)
        for state in job.states:
            self._settled(now, state.fragment)
        self._check_joined(now)

    def _moved(self, p: int) -> None:
        """The anchor of `p` has a new lineage: what it merged need not be kept."""
        lineage = self.fragments[p].lineage
        self._wants.pop(p, None)
        seal = self.seals[p]
        if seal and seal.key != lineage.key:
            self.seals[p] = None
        self.rounds[p].purge(lineage)

    def _found(self, now: float, done: Done) -> None:
        self._founding = ""
        self.solo = False
        for fragment in self.fragments:
            fragment.motion = Motion.STILL
            if not done.fault:
                tokens = self._founded_at.tokens - fragment.banked.tokens
                fragment.seq += 1
                lineage = fragment.lineage.found(self.me, fragment.seq, tokens, done.digest)
                self._record(taken_record(fragment.fragment, fragment.lineage, lineage, "founded", mine=True))
                fragment.founded(lineage, self._founded_at)
                self._moved(fragment.fragment)
        if done.fault:
            self._fault(f"the anchor was not taken from the weights: {done.fault}")
        for fragment in self.fragments:
            self._settled(now, fragment.fragment)
        self._beat(now)

    def _exported(self, job: Export, done: Done) -> None:
        for want in [w for w in self._deferred if w.fragment == job.fragment]:
            self._deferred.remove(want)
            if want.have != job.lineage.digest:
                state = State(self.me, job.fragment, job.lineage, done.digest, done.sections)
                self._emit(Send(want.peer, state, PULL))

    def _settled(self, now: float, p: int) -> None:
        """Fragment `p` stands still again: go on with what had to wait for that."""
        fragment = self.fragments[p]
        if fragment.motion is not Motion.STILL:
            return
        if self._switch:
            self._finish_switch()
        elif fragment.stash:
            stashed, fragment.stash = fragment.stash, None
            self._take_seal(now, stashed) if isinstance(stashed, Seal) else self._take_state(now, stashed)
        self._answer(p)
        self._poll(now, p)

    # ── the network ──────────────────────────────────────────────────────────────────────────────────────────────────

    def met(self, now: float, id: PeerId, address: str, seed: str = "") -> bool:
        """A peer agreed to our hello, or we to its. False if it is a past incarnation."""
        if seed:
            self.seeds.resolve(seed, id)
        known = self.roster.find(id)
        peer = self.roster.meet(now, id, address)
        if peer and not known:
            self._emit(describe(id, "met", address=peer.address))
            self._beat_at = now
        return peer is not None

    def linked(self, now: float, id: PeerId, up: bool) -> None:
        """The control stream with a peer opened or broke."""
        self.roster.link(now, id, up)
        if up:
            self._emit(Send(id, self._make_beat()))
        self._poll_all(now)

    def heard(self, now: float, id: PeerId) -> None:
        """Bytes of a bulky message arrived from a peer."""
        self.roster.touch(now, id)

    def refused(self, now: float, address: str, reason: str) -> None:
        """A hello was refused, by us or by the learner at `address`."""
        self.seeds.discard(address)
        self._emit(Event("refused", f"{address}: {reason}", {"address": address, "reason": reason}))
        self._check_joined(now)

    def receive(self, now: float, message: Message) -> None:
        """A message arrived. Anything but a hello's consequences is ignored until the first step has begun."""
        if isinstance(message, Beat):
            self._on_beat(now, message)
        elif isinstance(message, Goodbye):
            if self.roster.leave(message.peer):
                self._emit(describe(message.peer, "left"))
                self._poll_all(now)
        elif self.fragments and not self.closed and 0 <= message.fragment < len(self.fragments):
            if isinstance(message, Call):
                self._called(now, message.fragment, message.peer)
            elif isinstance(message, Offer):
                self._on_offer(now, message)
            elif isinstance(message, Seal):
                self._take_seal(now, message)
            elif isinstance(message, State):
                self._take_state(now, message)
            else:
                self._deferred = [w for w in self._deferred if (w.peer, w.fragment) != (message.peer, message.fragment)]
                self._deferred.append(message)
                self._answer(message.fragment)

    def delivered(self, now: float, to: PeerId, message: Message) -> None:
        """The transport has handed over the whole of a bulky message; an offer's stream stays open for seals."""
        pending = self._pending_of(message)
        if pending and pending.sent_to == to:
            pending.delivered, pending.resend_at = True, now + self._patience()

    def undelivered(self, now: float, to: PeerId, message: Message) -> None:
        """The transport could not deliver a message, or its stream broke before the answer."""
        pending = self._pending_of(message)
        if pending and pending.sent_to == to:
            pending.delivered, pending.resend_at = False, now + self.policies.timing.beat_s
        elif isinstance(message, Want):
            self._wants.pop(message.fragment, None)
            if self._switch and self._switch.peer == to:
                self._switch = None
            self._check_joined(now)

    def _pending_of(self, message: Message) -> Pending | None:
        if not isinstance(message, Offer) or not self.fragments or not message.steps:
            return None
        pending = self.fragments[message.fragment].pending
        return pending if pending and pending.seq == message.seq else None

    def _on_beat(self, now: float, beat: Beat) -> None:
        peer = self.roster.hear(now, beat)
        if peer is None:
            return
        self.roster.gossip(now, beat.roster)
        if not self.fragments or not beat.genesis or len(beat.reports) != len(self.fragments):
            return
        self._compare(now, beat)
        for fragment, report in zip(self.fragments, beat.reports, strict=True):
            pending = fragment.pending
            if pending and pending.sent_to == beat.peer and (self.me, pending.seq) in report.held:
                pending.delivered, pending.resend_at = True, now + self._patience()
            self._poll(now, fragment.fragment)
        self._check_joined(now)

    def tick(self, now: float) -> None:
        """Time passed."""
        for id in self.roster.expire(now):
            self._emit(describe(id, "evicted"))
        if now >= self._beat_at:
            self._beat(now)
        self._wake_at = NEVER
        if not self.fragments:
            return
        if self.joined and self.roster.alone:
            self.solo = True
        self._wants = {p: until for p, until in self._wants.items() if now < until}
        if self._switch and not self._wants and self._founding == "" and not self._switch.complete(len(self.fragments)):
            self._switch = None
        for fragment in self.fragments:
            self._resend(now, fragment)
            self._poll(now, fragment.fragment)
        self._check_joined(now)

    # ── beats and comparison of lineages ─────────────────────────────────────────────────────────────────────────────

    def _beat(self, now: float) -> None:
        self._beat_at = now + self.policies.timing.beat_s
        if self.closed:
            return
        self._beats += 1
        beat = self._make_beat()
        for id in self.roster.audience(self._beats):
            self._emit(Send(id, beat))

    def _make_beat(self) -> Beat:
        reports = tuple(Report(self._key(f), self.rounds[f.fragment].held()) for f in self.fragments)
        return Beat(
            self.me, self.roster.address, self._beats, self.totals.step, self.totals.tokens, self._step_s,
            self.joined, self.genesis, reports, self.roster.rumors(),
        )  # fmt: skip

    def _key(self, fragment: Progress) -> Key:
        """What others should compare with: while solo, our weights are the anchor, with all tokens trained so far."""
        key = fragment.lineage.key
        tokens = fragment.unmerged(self.totals).tokens
        return Key(key.tokens + tokens, key.version + 1, key.digest) if self.solo and tokens else key

    def _model(self) -> ModelKey:
        return model_key((self._key(f) for f in self.fragments), self.genesis)

    def _compare(self, now: float, beat: Beat) -> None:
        """Law 4: adopt what is greater. Solo, what is smaller makes us found our anchor, so that the others can adopt it."""
        same = beat.genesis == self.genesis
        theirs = model_key((r.key for r in beat.reports), beat.genesis)
        switch = self._switch
        if switch and switch.peer == beat.peer and (switch.genesis != beat.genesis or theirs <= self._model()):
            self._switch = None  # it took another model itself, or we trained past it
            self._wants.clear()
        if same and (beat.training or theirs == self._model()) and self._founding == "":
            self.solo = self.solo and not beat.training
        if self.solo and theirs < self._model():
            trained = any(f.unmerged(self.totals).tokens for f in self.fragments)
            self._founding = self._founding or ("due" if trained and self.joined else "")
        elif same and not self._founding:
            for fragment, report in zip(self.fragments, beat.reports, strict=True):
                self._catch_up(now, fragment, report.key, beat.peer)
        elif not same and theirs > self._model() and self._founding != "running":
            self._founding = ""
            self._start_switch(now, beat)

    def _catch_up(self, now: float, fragment: Progress, key: Key, peer: PeerId) -> None:
        """Pull a greater anchor, unless its seal is about to come down the stream our offer went up."""
        if key <= fragment.lineage.key:
            return
        if fragment.behind_since is None:
            fragment.behind_since = now
        pending = fragment.pending
        coming = pending and pending.delivered and pending.sent_to == peer
        if not coming or now - fragment.behind_since >= self.policies.timing.round_timeout_s:
            self._want(now, fragment.fragment, peer, fragment.lineage.digest)

    def _behind(self, fragment: Progress) -> bool:
        beats = (peer.beat for peer in self.roster.peers.values() if not peer.suspected)
        return any(
            b.genesis == self.genesis and b.reports[fragment.fragment].key > self._key(fragment) for b in beats if b and b.reports
        )

    def _want(self, now: float, p: int, peer: PeerId, have: bytes) -> None:
        if p not in self._wants:
            self._wants[p] = now + self.policies.timing.round_timeout_s
            self._emit(Send(peer, Want(self.me, p, have)))

    def _start_switch(self, now: float, beat: Beat) -> None:
        if self._switch is None and all(f.motion is not Motion.MOVING for f in self.fragments):
            self._switch = Switch(beat.peer, beat.genesis)
            self._wants.clear()
            for fragment in self.fragments:
                self._want(now, fragment.fragment, beat.peer, b"")

    def _finish_switch(self) -> None:
        """Install the other model once all of it is here and every fragment stands still."""
        switch = self._switch
        if switch and switch.complete(len(self.fragments)) and all(f.motion is Motion.STILL for f in self.fragments):
            self._switch = None
            self._install(tuple(switch.states[p] for p in sorted(switch.states)), mine=False, replace=True)

    def _install(self, states: tuple[State, ...], mine: bool, replace: bool) -> None:
        for state in states:
            self.fragments[state.fragment].motion = Motion.MOVING
            self.fragments[state.fragment].stash = None
        self._work(Install(states, mine, replace))

    # ── adopting ─────────────────────────────────────────────────────────────────────────────────────────────────────

    def _take_seal(self, now: float, seal: Seal) -> None:
        fragment = self.fragments[seal.fragment]
        if seal.key <= fragment.lineage.key or self._switch or self._founding:
            return
        if fragment.motion is not Motion.STILL:
            self._keep(fragment, seal)
            return
        if seal.base != fragment.lineage.digest:
            if seal.sealer != self.me:
                self._want(now, seal.fragment, seal.sealer, fragment.lineage.digest)
            return
        lineage = fragment.lineage.seal(seal.members, seal.payload)
        if lineage.key != seal.key:
            self._fault(f"seal of {seal.sealer.name} refused: its lineage does not follow from its members")
        elif fragment.in_doubt(lineage, self.me):
            self._want(now, seal.fragment, seal.sealer, b"")
        else:
            fragment.motion = Motion.MOVING
            self._work(Advance(seal, lineage, fragment.includes_pending(lineage, self.me)))

    def _keep(self, fragment: Progress, news: Seal | State) -> None:
        """Hold the greatest of what arrives while the fragment is busy."""
        held = fragment.stash
        if held is None or _key_of(news) > _key_of(held):
            fragment.stash = news

    def _take_state(self, now: float, state: State) -> None:
        fragment, lineage = self.fragments[state.fragment], state.lineage
        if self._switch:
            if lineage.genesis == self._switch.genesis:
                self._switch.states[state.fragment] = state
                self._wants.pop(state.fragment, None)
                self._finish_switch()
            return
        if lineage.genesis != self.genesis or lineage.key <= fragment.lineage.key or self._founding:
            self._wants.pop(state.fragment, None)
        elif fragment.motion is not Motion.STILL:
            self._keep(fragment, state)
        else:
            doubt = fragment.in_doubt(lineage, self.me)
            self._install((state,), fragment.includes_pending(lineage, self.me), doubt)

    def _answer(self, p: int) -> None:
        """Answer the wants for fragment `p` once its anchor stands still: a seal if that is all the asker lacks, else the whole anchor."""
        fragment, seal = self.fragments[p], self.seals[p]
        asked = [w for w in self._deferred if w.fragment == p]
        if not asked or self._founding or self._switch or fragment.motion is Motion.MOVING:
            return
        for want in asked:
            if seal and seal.base == want.have and seal.key == fragment.lineage.key:
                self._deferred.remove(want)
                self._emit(Send(want.peer, seal, PULL))
        if any(w.fragment == p for w in self._deferred):
            self._work(Export(p, fragment.lineage))

    # ── offering ─────────────────────────────────────────────────────────────────────────────────────────────────────

    def _send_offer(self, now: float, fragment: Progress, to: PeerId | None) -> None:
        """Send the pending offer to `to` if it is live, else to the fragment's sealer; nobody to send to: wait."""
        pending = fragment.pending
        if pending is None or pending.offer is None:
            return
        peer = self.roster.find(to) if to else None
        target = to if peer and not peer.suspected else self.roster.sealer(fragment.fragment)
        pending.sent_to, pending.delivered, pending.resend_at = target, False, NEVER
        if target is None:
            return
        offer = replace(pending.offer, key=fragment.lineage.key, due=pending.due)
        if target == self.me:
            pending.delivered = True
            self._on_offer(now, offer)
        else:
            self._emit(Send(target, offer))

    def _resend(self, now: float, fragment: Progress) -> None:
        """Offer again if whoever has the offer died, lost it, or runs the fragment's rounds no more."""
        pending = fragment.pending
        if pending is None or pending.offer is None or self.solo:
            return
        peer = self.roster.find(pending.sent_to) if pending.sent_to else None
        live = pending.sent_to == self.me or (peer is not None and not peer.suspected)
        moved = self.roster.sealer(fragment.fragment) != pending.sent_to and (pending.delivered or not live)
        if not live or moved or now >= pending.resend_at:
            self._send_offer(now, fragment, None)

    def _patience(self) -> float:
        """How long a sealer's beats may not mention our offer before it counts as lost."""
        return self.policies.timing.suspect_after_s * (1 + self.roster.size // FANOUT)

    def _called(self, now: float, p: int, caller: PeerId) -> None:
        """The sealer asks for our offer: send the pending one, or make one at the end of this step; at rest, take part with nothing."""
        fragment = self.fragments[p]
        if fragment.pending:
            if fragment.pending.offer and fragment.pending.sent_to != caller:
                self._send_offer(now, fragment, caller)
        elif self.resting and not fragment.unmerged(self.totals).step:
            empty = Offer(self.me, p, fragment.seq, 0, 0, self.genesis, fragment.lineage.key, False)
            if caller != self.me:
                self._emit(Send(caller, empty))
            elif self.rounds[p].fresh(empty, fragment.lineage):
                self.rounds[p].add(empty)
        elif not self.policies.schedule.lockstep:
            fragment.called, fragment.caller = True, caller

    # ── sealing ──────────────────────────────────────────────────────────────────────────────────────────────────────

    def _on_offer(self, now: float, offer: Offer) -> None:
        fragment, seal = self.fragments[offer.fragment], self.seals[offer.fragment]
        if offer.genesis != self.genesis:
            return
        self._catch_up(now, fragment, offer.key, offer.peer)
        if seal and offer.steps and any((m.peer, m.seq) == (offer.peer, offer.seq) for m in seal.members):
            self._emit(Send(offer.peer, seal, EXCHANGE))
        ticket = (offer.peer, offer.fragment, offer.seq)
        if ticket in self._inspecting or not self.rounds[offer.fragment].fresh(offer, fragment.lineage):
            return
        if offer.steps:
            self._inspecting.add(ticket)
            self._work(Inspect(offer))
        else:
            self._admit(now, offer)

    def _inspected(self, now: float, offer: Offer, done: Done) -> None:
        self._inspecting.discard((offer.peer, offer.fragment, offer.seq))
        if done.fault:
            self._fault(f"offer {offer.seq} of {offer.peer.name} refused: {done.fault}")
        elif self.rounds[offer.fragment].fresh(offer, self.fragments[offer.fragment].lineage):
            self._admit(now, offer)

    def _admit(self, now: float, offer: Offer) -> None:
        self.rounds[offer.fragment].add(offer)
        self._poll(now, offer.fragment)

    def _poll_all(self, now: float) -> None:
        for fragment in self.fragments:
            self._resend(now, fragment)
            self._poll(now, fragment.fragment)

    def _expected(self) -> list[PeerId]:
        """Whom a round waits for: live peers that train this model (in lockstep all live peers), and us."""
        lockstep = self.policies.schedule.lockstep
        peers = [self.roster.find(id) for id in self.roster.alive()]
        return [self.me, *(p.id for p in peers if p and (lockstep or self._trains(p)))]

    def _trains(self, peer: Peer) -> bool:
        return peer.beat is not None and peer.beat.training and peer.beat.genesis == self.genesis

    def _interval_s(self) -> float:
        """About H median steps: the least time between seals that leave somebody out."""
        if self.policies.schedule.lockstep:
            return 0.0
        beats = [p.beat for p in self.roster.peers.values() if p.beat and p.beat.seconds_per_step]
        return self.policies.schedule.sync_every * median([self._step_s, *(b.seconds_per_step for b in beats)])

    def _poll(self, now: float, p: int) -> None:
        """Run the fragment's round: launch, call, decide."""
        fragment, round = self.fragments[p], self.rounds[p]
        if round.phase is Phase.MERGING or fragment.motion is Motion.MOVING or self._founding or self._switch:
            return
        if not self.joined or self.roster.sealer(p) != self.me or fragment.stash:
            if round.phase is Phase.CALLING:
                round.void()
            return
        expected, interval = self._expected(), self._interval_s()
        if round.launch_due(now, expected, interval):
            round.on("launch")
            round.call_at = now
        if round.phase is Phase.WAITING:
            launch_at = round.sealed_at + interval
            self._wake_at = min(self._wake_at, launch_at) if launch_at > now else self._wake_at
            return
        self._call(now, round, expected)
        decision = round.decide(now, expected, self.policies.quorum.needed(self.roster.size), self.policies.grace.max_s, interval)
        if decision.seal:
            offers = round.close(expected, decision.reason)
            scheme = self.policies.weighting
            self._work(Merge(p, fragment.lineage, offers, tuple(weights(scheme, [o.entry for o in offers]))))
        elif decision.wake_at is not None:
            self._wake_at = min(self._wake_at, decision.wake_at)

    def _call(self, now: float, round: Round, expected: Sequence[PeerId]) -> None:
        if now < round.call_at:
            return
        round.call_at = now + self.policies.timing.beat_s
        for peer in round.missing(expected):
            if peer == self.me:
                self._called(now, round.fragment, self.me)
            else:
                self._emit(Send(peer, Call(self.me, round.fragment)))

    def _merged(self, now: float, job: Merge, done: Done) -> None:
        p = job.fragment
        fragment, round = self.fragments[p], self.rounds[p]
        if done.fault or fragment.lineage.key != job.base.key or fragment.motion is Motion.MOVING or self._switch or self._founding:
            round.void()
            round.purge(fragment.lineage)
            self._poll(now, p)
            return
        members = tuple(offer.entry for offer in job.offers)
        lineage = job.base.seal(members, done.digest)
        seal = Seal(
            self.me, p, job.base.digest, lineage.key, members, job.weights, round.absent, round.reason, done.digest,
            done.sections,
        )  # fmt: skip
        audience = sorted(peer for peer in round.inbox if peer != self.me)
        round.sealed(now)
        self.seals[p] = seal
        for peer in audience:
            self._emit(Send(peer, seal, EXCHANGE))
        self._take_seal(now, seal)

    # ── joining ──────────────────────────────────────────────────────────────────────────────────────────────────────

    def _check_joined(self, now: float) -> None:
        """Joined: everyone the user named is here (or somebody is training already, or nobody came in time), and nobody has a greater anchor."""
        if self.joined or not self.fragments:
            return
        beats = [p.beat for p in self.roster.peers.values() if p.beat and not p.suspected]
        here = {beat.peer for beat in beats if beat.genesis}
        everyone = not self.seeds.missing and all(peer in here for peer in self.seeds.peers())
        found = everyone or any(beat.training for beat in beats)
        behind = any(
            model_key((r.key for r in b.reports), b.genesis) > self._model() for b in beats if b.genesis and b.genesis != self.genesis
        ) or any(self._behind(f) for f in self.fragments)
        fetching = bool(self._wants) or self._switch is not None or any(f.motion is not Motion.STILL for f in self.fragments)
        if (found and not behind and not fetching) or (now >= self._join_by and not fetching):
            self.joined = True
            alone = not here
            text = "nobody found yet: training alone, still looking" if alone and self.seeds.missing else "joined"
            self._emit(Event("alone" if alone else "joined", text, {"waiting for": self.seeds.missing}))
            self._beat(now)


def _key_of(news: Seal | State) -> Key:
    return news.key if isinstance(news, Seal) else news.lineage.key
