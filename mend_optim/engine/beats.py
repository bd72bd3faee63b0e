"""The beats that one learner sends, and the part of a peer's beat that it can compare with its
own."""

from __future__ import annotations

from dataclasses import replace
from operator import eq

from mend_optim.engine.declining import Declining
from mend_optim.engine.effects import Send
from mend_optim.engine.progress import Progress
from mend_optim.engine.state import EngineState
from mend_optim.engine.stragglers import Stragglers
from mend_optim.protocol.lineage import PeerId
from mend_optim.protocol.messages import Beat, Report


class Beats:
    """Makes beats, counts them, and sends them when they are due."""

    def __init__(self, state: EngineState, stragglers: Stragglers, now: float) -> None:
        self.state = state
        self.stragglers = stragglers
        self.declining = Declining(state, stragglers)
        #: When the next beat is due.
        self.due_at = now
        #: The number of the last beat. Only grows: it is a sign of life.
        self._count = 0
        #: The number of beats that were sent to all, which turns the window of a big roster.
        self._broadcasts = 0
        #: Peers with other groups than ours, of which the user was told.
        self._reported: set[PeerId] = set()

    def make(self, ping: int = 0, pong: int = 0) -> Beat:
        """A beat of this moment, with a number of its own."""
        state = self.state
        self._count += 1
        reports = map(self._report, state.fragments, state.groups, state.sealers())
        return Beat(
            peer=state.me,
            address=state.roster.address,
            count=self._count,
            step=state.totals.step,
            tokens=state.totals.tokens,
            seconds_per_step=state.step_s,
            training=state.joined,
            genesis=state.genesis,
            reports=tuple(reports),
            roster=state.roster.rumors(),
            turned_away=state.roster.turned_away(),
            ping=ping,
            pong=pong,
            position=state.position,
            paces=self.stragglers.levels(),
            latency=state.latency.median,
            finishes=state.finishes,
            ready=state.ready if state.finishes else b"",
            ended=state.ended if state.finishes else b"",
            zone=state.roster.zone,
            takes_joint=state.takes_joint(0),
            declines=state.roster.declines_to_seal(state.me),
            rests=state.resting,
        )

    def _report(self, fragment: Progress, group: bytes, sealer: PeerId | None) -> Report:
        state, p = self.state, fragment.fragment
        return Report(
            state.key(fragment),
            self._held(p, sealer),
            group,
            fragment.held.told(),
            state.round_latencies.of(p, sealer, fragment.pending, state.totals.step),
        )

    def _held(self, p: int, sealer: PeerId | None) -> tuple[tuple[PeerId, int], ...]:
        """The offers here. One of this learner's own says that it runs the rounds: see
        `standoffs.py`. A relay's own offer, and that of a former sealer, may be here, too."""
        state = self.state
        held = state.rounds[p].held()
        if sealer == state.me:
            return held
        return tuple((peer, seq) for peer, seq in held if peer != state.me)

    def send_to_all(self, now: float) -> None:
        """Send a beat to the roster, or in a big one to the next part of it."""
        state = self.state
        self.due_at = now + state.policies.timing.beat_s
        self._broadcasts += 1
        self.stragglers.review(now)
        has_changed = self.declining.review(now)
        state.attest_what_stands()
        beat = self.make()
        # At rest, or after a stop, a learner asks again with every beat: a peer may have linked
        # since, or an answer may have been lost. After a stop it seals nothing until all have
        # answered, so it asks all of them at once.
        must_know = now < state.question.knows_others_at(now)
        question = replace(beat, ping=state.question.number) if state.resting or must_know else beat
        state.roster.broadcast(now, beat.count)
        # All choose other sealers by that, and should do so at one time.
        everyone = state.roster.alive() if has_changed else []
        audience = everyone or state.roster.audience(self._broadcasts)
        awaited = state.question.awaited.difference(audience) if must_know else set()
        for id in [*audience, *sorted(awaited)]:
            state.emit(Send(id, beat if id in state.question.answered else question))

    def send(self, to: PeerId, ping: int = 0, pong: int = 0) -> None:
        """Send a beat to one peer."""
        self.state.emit(Send(to, self.make(ping, pong)))

    def ask_all(self) -> None:
        """Ask every peer for a beat in answer at once: has anybody a greater anchor?"""
        state = self.state
        state.question.begin()
        question = self.make(ping=state.question.number)
        for peer in state.roster.peers.values():
            state.emit(Send(peer.id, question))

    def heard(self, beat: Beat) -> None:
        """Answer a question, and note an answer to ours."""
        if beat.ping:
            self.send(beat.peer, pong=beat.ping)
        self.state.question.heard(beat.peer, beat.pong)

    def comparable(self, beat: Beat) -> Beat:
        """The beat up to the first fragment that is another group there than here, as if the peer
        did not have the rest."""
        groups = [report.group for report in beat.reports]
        if all(map(eq, self.state.groups, groups)):  # nearly always
            return beat
        pairs = zip(self.state.groups, groups, strict=False)
        other = next(p for p, (ours, theirs) in enumerate(pairs) if ours != theirs)
        if beat.peer not in self._reported:
            self._reported.add(beat.peer)
            self.state.fault(
                f"{beat.peer.name} has added another group: fragment {other} is not merged with it"
            )
        return replace(beat, reports=beat.reports[:other])
