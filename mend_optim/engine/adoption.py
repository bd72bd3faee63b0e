"""Law 4 at work: anchors form a max-register. Compare lineages, pull what is greater, take seals
and whole anchors.

same genesis, greater anchor       pull it (a seal if one is all we lack, else the whole anchor)
other genesis, greater model       take all of it, in one piece
solo, and ours is the greater      found our anchor from our weights, so that the others find them
"""

from __future__ import annotations

from collections.abc import Sequence

from mend_optim.engine.effects import PULL, Advance, Export, Install, Send
from mend_optim.engine.progress import Motion, Progress
from mend_optim.engine.state import EngineState, Switch
from mend_optim.protocol.lineage import Key, ModelKey, PeerId, model_key
from mend_optim.protocol.messages import Beat, Seal, State, Want


class Adoption:
    """What a learner does about anchors other than its own."""

    def __init__(self, state: EngineState) -> None:
        self.state = state

    def compare(self, now: float, beat: Beat) -> None:
        """Law 4: adopt what is greater. Solo, what is smaller makes us found our anchor, so that
        the others can adopt it."""
        same = beat.genesis == self.state.genesis
        theirs, ours = self._models(beat)
        switch = self.state.switch
        if (
            switch
            and switch.peer == beat.peer
            and (switch.genesis != beat.genesis or theirs <= ours)
        ):
            self.state.switch = None  # it took another model itself, or we trained past it
            self.state.wants.clear()
        # Whoever has steps behind it is no newcomer, even before it has joined: it goes on where a
        # checkpoint stood.
        at_work = beat.training or beat.step > 0
        if same and self.state.founding == "":
            self.state.solo = self.state.solo and not at_work
        if self.state.solo and theirs < ours:
            trained = any(f.unmerged(self.state.totals).tokens for f in self.state.fragments)
            self.state.founding = self.state.founding or (
                "due" if trained and self.state.joined else ""
            )
        elif same and not self.state.founding:
            for fragment, report in zip(self.state.fragments, beat.reports, strict=False):
                self.catch_up(now, fragment, report.key, beat.peer)
        elif not same and theirs > ours and self.state.founding != "running":
            self.state.founding = ""
            self._start_switch(now, beat)

    def _models(self, beat: Beat) -> tuple[ModelKey, ModelKey]:
        """Theirs and ours, in the fragments that both have."""
        state, shared = self.state, min(len(beat.reports), len(self.state.fragments))
        keys = (report.key for report in beat.reports[:shared])
        ours = model_key(
            map(state.key, state.fragments[:shared]), state.genesis, state.totals.step > 0
        )
        return model_key(keys, beat.genesis, beat.step > 0), ours

    def catch_up(self, now: float, fragment: Progress, key: Key, peer: PeerId) -> None:
        """Pull a greater anchor, unless its seal is about to come down the stream our offer went
        up; not for long if no bytes come: a sealer that died may have told the others, and nobody
        else has the seal."""
        if key <= fragment.lineage.key:
            wanted = self.state.wants.get(fragment.fragment)
            if wanted and wanted[0] == peer and not self.state.switch:
                # it showed more a moment ago, but has nothing to answer with
                del self.state.wants[fragment.fragment]
            return
        if fragment.behind_since is None:
            fragment.behind_since = now
        pending = fragment.pending
        coming = pending if pending and pending.delivered and pending.sent_to == peer else None
        patience = self.state.policies.timing.suspect_after_s + (coming.seal_s if coming else 0.0)
        if not coming or now - fragment.behind_since >= patience:
            self._want(now, fragment.fragment, peer, fragment.lineage.digest)

    def behind(self, fragment: Progress) -> bool:
        p, own = fragment.fragment, self.state.key(fragment)
        beats = (peer.beat for peer in self.state.roster.peers.values() if not peer.suspected)
        return any(
            beat.genesis == self.state.genesis and beat.reports[p].key > own
            for beat in beats
            if beat and p < len(beat.reports)
        )

    def _want(self, now: float, p: int, peer: PeerId, have: bytes) -> None:
        if p not in self.state.wants:
            self.state.wants[p] = (peer, now + self.state.policies.timing.round_timeout_s)
            self.state.emit(Send(peer, Want(self.state.me, p, have)))

    def _start_switch(self, now: float, beat: Beat) -> None:
        if self.state.switch is None and all(
            f.motion is not Motion.MOVING for f in self.state.fragments
        ):
            shared = self.state.fragments[: len(beat.reports)]
            self.state.switch = Switch(beat.peer, beat.genesis, len(shared))
            self.state.wants.clear()
            for fragment in shared:
                self._want(now, fragment.fragment, beat.peer, b"")

    def finish_switch(self) -> None:
        """Install the other model once all of it is here and every fragment stands still."""
        switch = self.state.switch
        if (
            switch
            and switch.complete
            and all(f.motion is Motion.STILL for f in self.state.fragments)
        ):
            self.state.switch = None
            self._install(
                tuple(switch.states[p] for p in sorted(switch.states)),
                merged_own_offer=False,
                replace=True,
            )

    def _install(self, states: tuple[State, ...], merged_own_offer: bool, replace: bool) -> None:
        for state in states:
            self.state.fragments[state.fragment].motion = Motion.MOVING
            self.state.fragments[state.fragment].deferred_news = None
        forget = not merged_own_offer and any(
            self.state.fragments[s.fragment].source_moved_on(s.lineage) for s in states
        )
        due = self._due_in(states[0]) if merged_own_offer else ()
        self.state.work(
            Install(
                states=states,
                merged_own_offer=merged_own_offer,
                replace=replace,
                forget=forget,
                due=due,
            )
        )

    def _due_in(self, state: State) -> tuple[str, ...]:
        """The moments that the round averaged which merged our pending offer. Of an anchor farther
        on, nobody knows which: ours are due again."""
        version = state.lineage.version
        one_on = version == self.state.fragments[state.fragment].lineage.version + 1
        return self.state.policies.due(version) if one_on else ()

    def take_seal(self, now: float, seal: Seal) -> None:
        fragment = self.state.fragments[seal.fragment]
        if seal.key <= fragment.lineage.key or self.state.switch or self.state.founding:
            return
        if fragment.motion is not Motion.STILL:
            self._keep(fragment, seal)
            return
        if seal.base != fragment.lineage.digest:
            if seal.sealer != self.state.me:
                self._want(now, seal.fragment, seal.sealer, fragment.lineage.digest)
            return
        lineage = fragment.lineage.seal(seal.members, seal.payload)
        if lineage.key != seal.key:
            self.state.fault(
                f"seal of {seal.sealer.name} refused: its lineage does not follow from its members"
            )
        else:
            fragment.motion = Motion.MOVING
            merged_own_offer = fragment.includes_pending(lineage)
            replace = (
                self._waits_exactly(fragment) if merged_own_offer else fragment.in_doubt(lineage)
            )
            ours, former = seal.sealer == self.state.me, seal.sealer.name == self.state.me.name
            forget = not ours and not merged_own_offer and fragment.source_moved_on(lineage)
            self.state.work(
                Advance(
                    seal=seal,
                    lineage=lineage,
                    merged_own_offer=merged_own_offer,
                    replace=replace,
                    sealed_here=ours,
                    forget=forget,
                    sealed_by_predecessor=former and not ours,
                )
            )

    def _waits_exactly(self, fragment: Progress) -> bool:
        """Synchronous adoption, and the training thread has not stepped on since the snapshot."""
        pending = fragment.pending
        synchronous = self.state.policies.schedule.adopt_after == 0
        return (
            synchronous
            and pending is not None
            and not pending.missed
            and pending.step == self.state.totals.step
        )

    def _keep(self, fragment: Progress, news: Seal | State) -> None:
        """Hold the greatest of what arrives while the fragment is busy."""
        held = fragment.deferred_news
        if held is None or _key_of(news) > _key_of(held):
            fragment.deferred_news = news

    def take_state(self, now: float, state: State) -> None:
        fragment, lineage = self.state.fragments[state.fragment], state.lineage
        if self.state.switch:
            if (
                lineage.genesis == self.state.switch.genesis
                and state.fragment < self.state.switch.fragments
            ):
                self.state.switch.states[state.fragment] = state
                self.state.wants.pop(state.fragment, None)
                self.finish_switch()
            return
        if (
            lineage.genesis != self.state.genesis
            or lineage.key <= fragment.lineage.key
            or self.state.founding
        ):
            self.state.wants.pop(state.fragment, None)
        elif fragment.motion is not Motion.STILL:
            self._keep(fragment, state)
        else:
            doubt = fragment.in_doubt(lineage)
            self._install((state,), fragment.includes_pending(lineage), doubt)

    def outdone(self, beats: Sequence[Beat]) -> bool:
        """Whether any of these beats shows a greater model, or a greater anchor of ours."""
        others = (self._models(b) for b in beats if b.genesis not in (b"", self.state.genesis))
        return any(theirs > ours for theirs, ours in others) or any(
            map(self.behind, self.state.fragments)
        )

    def expire(self, now: float) -> None:
        """Stop waiting for answers that did not come, or are of peers that may be gone: somebody
        else has them, too."""
        alive = self.state.roster.alive()
        self.state.wants = {
            p: (peer, until)
            for p, (peer, until) in self.state.wants.items()
            if now < until and peer in alive
        }
        switch = self.state.switch
        if switch and not self.state.wants and not switch.complete:
            self.state.switch = None

    def asked(self, want: Want) -> None:
        """A peer wants an anchor of ours."""
        same = (want.peer, want.fragment)
        self.state.deferred = [w for w in self.state.deferred if (w.peer, w.fragment) != same]
        self.state.deferred.append(want)
        self.answer(want.fragment)

    def answer(self, p: int) -> None:
        """Answer the wants for fragment `p` once its anchor stands still: a seal if that is all the
        asker lacks, else the whole anchor."""
        fragment, seal = self.state.fragments[p], self.state.seals[p]
        asked = [w for w in self.state.deferred if w.fragment == p]
        if (
            not asked
            or self.state.founding
            or self.state.switch
            or fragment.motion is Motion.MOVING
        ):
            return
        for want in asked:
            if seal and seal.base == want.have and seal.key == fragment.lineage.key:
                self.state.deferred.remove(want)
                self.state.emit(Send(want.peer, seal, PULL))
        if any(w.fragment == p for w in self.state.deferred):
            self.state.work(Export(p, fragment.lineage))


def _key_of(news: Seal | State) -> Key:
    return news.key if isinstance(news, Seal) else news.lineage.key
