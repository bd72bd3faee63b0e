"""The sealer's side of the rounds: take offers in, call for the rest, decide, publish the seal."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median

from mend_optim.engine.adoption import Adoption
from mend_optim.engine.effects import EXCHANGE, PASS_ON, Done, Inspect, Merge, Send
from mend_optim.engine.policies import weights
from mend_optim.engine.progress import Motion, Progress
from mend_optim.engine.round import Phase, Round
from mend_optim.engine.state import EngineState
from mend_optim.engine.stragglers import Stragglers
from mend_optim.membership.roster import Peer
from mend_optim.protocol.lineage import PeerId
from mend_optim.protocol.messages import Call, Offer, Seal


class Sealer:
    """What a learner does as the sealer of a fragment, and about offers that reach it."""

    def __init__(self, state: EngineState, adoption: Adoption, stragglers: Stragglers) -> None:
        self.state, self.adoption, self.stragglers = state, adoption, stragglers
        self._inspecting: set[tuple[PeerId, int, int]] = set()  # (sender, fragment, seq)

    def on_offer(self, now: float, offer: Offer) -> None:
        fragment, seal = self.state.fragments[offer.fragment], self.state.seals[offer.fragment]
        if offer.genesis != self.state.genesis:
            return
        self.adoption.catch_up(now, fragment, offer.key, offer.peer)
        if seal and offer.steps and seal.place(offer.claim.author, offer.seq) is not None:
            self.state.emit(Send(offer.peer, seal, EXCHANGE))
        ticket = (offer.peer, offer.fragment, offer.seq)
        if ticket in self._inspecting or not self.state.rounds[offer.fragment].fresh(
            offer, fragment.lineage
        ):
            return
        if offer.steps and offer.peer != self.state.me:
            self._inspecting.add(ticket)
            self.state.work(Inspect(offer))
        else:
            self._admit(now, offer)

    def inspected(self, now: float, offer: Offer, done: Done) -> None:
        self._inspecting.discard((offer.peer, offer.fragment, offer.seq))
        if done.fault:
            self.state.fault(f"offer {offer.seq} of {offer.peer.name} refused: {done.fault}")
        elif self.state.rounds[offer.fragment].fresh(
            offer, self.state.fragments[offer.fragment].lineage
        ):
            self._admit(now, offer)

    def _admit(self, now: float, offer: Offer) -> None:
        self.state.rounds[offer.fragment].add(offer)
        self.poll(now, offer.fragment)

    def _expected(self, fragment: int) -> list[PeerId]:
        """Who takes part in a round: live peers that train this model (in lockstep all live peers),
        and us."""
        lockstep = self.state.policies.schedule.lockstep
        peers = [self.state.roster.find(id) for id in self.state.roster.alive()]
        return [
            self.state.me,
            *(p.id for p in peers if p and p.has(fragment) and (lockstep or self._trains(p))),
        ]

    def _trains(self, peer: Peer) -> bool:
        return (
            peer.beat is not None and peer.beat.training and peer.beat.genesis == self.state.genesis
        )

    def _awaited(self, expected: Sequence[PeerId], needed: int) -> list[PeerId]:
        """Whom a round waits for: everybody but the failing, or as many of these as quorum needs,
        the least slow first."""
        failing = self.stragglers.failing
        healthy = [id for id in expected if id not in failing]
        slow = sorted(
            (id for id in expected if id in failing), key=lambda id: (failing[id].ratio, id)
        )
        return healthy + slow[: max(0, needed - len(healthy))]

    def _step_s(self) -> float:
        """What an inner step takes: the learners' median."""
        beats = [
            p.beat for p in self.state.roster.peers.values() if p.beat and p.beat.seconds_per_step
        ]
        return median([self.state.step_s, *(b.seconds_per_step for b in beats)])

    def poll(self, now: float, p: int) -> None:
        """Run the fragment's round: launch, call, decide."""
        fragment, round = self.state.fragments[p], self.state.rounds[p]
        if (
            round.phase is Phase.MERGING
            or fragment.motion is Motion.MOVING
            or self.state.founding
            or self.state.switch
        ):
            return
        if (
            not self.state.joined
            or self.state.roster.sealer(p) != self.state.me
            or fragment.deferred_news
        ):
            if round.phase is Phase.CALLING:
                round.void()
            self._pass_on(now, round)
            return
        known_at = self.state.roster.known_at(started=fragment.lineage.version > 0)
        if now < known_at:
            self.state.wake_at = min(self.state.wake_at, known_at)
            return
        schedule, policies = self.state.policies.schedule, self.state.policies
        expected, step_s, needed = (
            self._expected(p),
            self._step_s(),
            policies.quorum.needed(self.state.roster.size),
        )
        # The least time between seals that leave somebody out: about H median steps.
        period_s = schedule.sync_every * step_s
        interval = 0.0 if schedule.lockstep else period_s
        awaited = self._awaited(expected, needed)
        if round.launch_due(now, awaited, interval):
            round.on("launch")
            round.call_at = round.launched_at = now
        if round.phase is Phase.WAITING:
            launch_at = round.sealed_at + interval
            self.state.wake_at = (
                min(self.state.wake_at, launch_at) if launch_at > now else self.state.wake_at
            )
            return
        self._call(now, round, expected)
        if self._must_catch_up(now, fragment):
            return
        # Without `adopt_after` nobody waits for a round, and a whole period hides it.
        hidden_s = period_s if schedule.adopt_after is None else schedule.adopt_after * step_s
        grace_s = policies.grace.seconds(hidden_s, round.delays)
        decision = round.decide(now, awaited, needed, grace_s, interval)
        if decision.seal:
            round.decided_at = now
            offers = round.close(expected, decision.reason)
            alone = not any(offer.tokens for offer in offers)
            # Who answered with nothing before it had the last round's seal was not in that round.
            here = fragment.lineage.tokens
            entries = [offer.weighed(alone and offer.key.tokens >= here) for offer in offers]
            shares = tuple(weights(policies.weighting, entries))
            moments = policies.due(fragment.lineage.version + 1)
            # at rest there may be no later round to take along what this loses
            flush = alone or self.state.flush
            self.state.work(
                Merge(
                    fragment=p,
                    base=fragment.lineage,
                    offers=offers,
                    weights=shares,
                    moments=moments,
                    flush=flush,
                )
            )
        elif decision.wake_at is not None:
            self.state.wake_at = min(self.state.wake_at, decision.wake_at)

    def _pass_on(self, now: float, round: Round) -> None:
        """Give the offers of those that are gone to who seals now: nobody else can."""
        if not round.inbox:
            return
        roster, p = self.state.roster, round.fragment
        sealer = roster.find(roster.sealer(p) or self.state.me)
        if sealer is None or now < round.pass_on_at:
            return
        held = sealer.beat.reports[p].held if sealer.beat and p < len(sealer.beat.reports) else ()
        gone = sorted(set(round.inbox) - {self.state.me, *roster.alive()})
        for offer in [round.inbox[peer] for peer in gone]:
            if offer.steps and (offer.peer, offer.seq) not in held:
                self.state.emit(Send(sealer.id, offer, PASS_ON))
                round.pass_on_at = now + self.state.policies.timing.suspect_after_s

    def _must_catch_up(self, now: float, fragment: Progress) -> bool:
        """Whether a live peer has a greater anchor: what is merged on ours would cost the work in
        that one. Not for longer than a transfer may stand still: the peer may be unable to hand it
        over."""
        if fragment.behind_since is None or not self.adoption.behind(fragment):
            return False
        until = fragment.behind_since + self.state.policies.timing.round_timeout_s
        if now < until:
            self.state.wake_at = min(self.state.wake_at, until)
        return now < until

    def _call(self, now: float, round: Round, expected: Sequence[PeerId]) -> None:
        if now < round.call_at:
            return
        round.call_at = now + self.state.policies.timing.beat_s
        for peer in round.missing(expected):
            self.state.emit(Send(peer, Call(self.state.me, round.fragment)))

    def merged(self, now: float, job: Merge, done: Done) -> None:
        p = job.fragment
        fragment, round = self.state.fragments[p], self.state.rounds[p]
        if (
            done.fault
            or fragment.lineage.key != job.base.key
            or fragment.motion is Motion.MOVING
            or self.state.switch
            or self.state.founding
        ):
            round.void()
            round.purge(fragment.lineage)
            # these offers do not go together: hold none of them, or they would be merged again at
            # once
            if done.fault:
                self.state.fault(f"round of fragment {p} thrown away: {done.fault}")
                round.inbox.clear()
            self.poll(now, p)
            return
        members = tuple(offer.entry for offer in job.offers)
        lineage = job.base.seal(members, done.digest)
        seal = Seal(
            sealer=self.state.me,
            fragment=p,
            base=job.base.digest,
            key=lineage.key,
            members=members,
            weights=job.weights,
            absent=round.absent,
            reason=round.reason,
            payload=done.digest,
            sections=done.sections,
        )
        audience = sorted(peer for peer in round.inbox if peer != self.state.me)
        round.sealed(now)
        self.state.seals[p] = seal
        for peer in audience:
            self.state.emit(Send(peer, seal, EXCHANGE))
        self.adoption.take_seal(now, seal)

    def advanced(self, now: float, seal: Seal) -> None:
        """We have the anchor of this seal."""
        if seal.sealer == self.state.me:
            round = self.state.rounds[seal.fragment]
            round.delays.sync_took(now - round.decided_at)
