"""Law 4 at work: anchors form a max-register. This module compares lineages, pulls greater
anchors, and takes seals and whole anchors.

    same genesis, greater anchor     pull it: a seal if one is all we lack, else the whole anchor
    other genesis, greater model     take all of it, in one piece
    alone, and ours is the greater   found an anchor from our weights, so that the others find it

Lineages of one genesis are compared fragment by fragment. Those of different genesis are compared
as whole models, and taken as whole models: no learner ends with a mixture of two."""

from __future__ import annotations

from collections.abc import Sequence

from mend_optim.engine.effects import Advance, Install, Send
from mend_optim.engine.mode import Change, Mode
from mend_optim.engine.progress import Progress
from mend_optim.engine.seal_checks import flaw_of
from mend_optim.engine.state import EngineState, Switch, Wanted
from mend_optim.protocol.lineage import Key, Lineage, ModelKey, PeerId, model_key, rollbacks
from mend_optim.protocol.messages import Beat, Seal, State, Want


class Adopter:
    """Compares the anchors of other learners with this learner's, and adopts the greater ones."""

    def __init__(self, state: EngineState) -> None:
        self.state = state

    # ── compare ───────────────────────────────────────────────────────────────────────────────────

    def compare(self, now: float, beat: Beat) -> None:
        """Law 4: adopt the greater anchor. If we are alone, a lesser model makes us found an
        anchor, so that its learner can adopt that."""
        state = self.state
        same = beat.genesis == state.genesis
        theirs, ours = self._models(beat)
        self._check_switch(beat, theirs <= ours)
        # A peer with steps behind it is no newcomer, even before it has joined: it goes on where a
        # checkpoint stood.
        if same and (beat.training or beat.step > 0):
            self._meet_own_model()
        if state.alone and theirs < ours:
            self._meet_lesser_model()
        elif same and not state.mode.founding:
            for fragment, report in zip(state.fragments, beat.reports, strict=False):
                self.catch_up(now, fragment, report.key, beat.peer)
        elif not same and theirs > ours:
            self._meet_greater_model(now, beat)

    def _models(self, beat: Beat) -> tuple[ModelKey, ModelKey]:
        """Theirs and ours, in the fragments that both have."""
        state, shared = self.state, min(len(beat.reports), len(self.state.fragments))
        keys = (report.key for report in beat.reports[:shared])
        own_keys = map(state.key, state.fragments[:shared])
        ours = model_key(own_keys, state.genesis, state.totals.step > 0)
        return model_key(keys, beat.genesis, beat.step > 0), ours

    def _check_switch(self, beat: Beat, is_lesser: bool) -> None:
        """The model on its way is wanted no more if its learner took another one itself, or if we
        have trained past it."""
        switch = self.state.switch
        if switch and switch.peer == beat.peer and (switch.genesis != beat.genesis or is_lesser):
            self.state.end_switch()
            self.state.wants.clear()

    def _meet_own_model(self) -> None:
        if self.state.mode in (Mode.SOLO, Mode.SWITCHING_SOLO):
            self.state.change(Change.MET_OWN_MODEL)

    def _meet_lesser_model(self) -> None:
        trained = any(f.unmerged(self.state.totals).tokens for f in self.state.fragments)
        if trained and self.state.mode is Mode.SOLO:
            self.state.change(Change.MET_LESSER_MODEL)

    def _meet_greater_model(self, now: float, beat: Beat) -> None:
        """Fetch all of it, unless our own copies are being made, or an anchor of ours moves."""
        state = self.state
        if state.claims.doubts(beat.peer) or _is_part_of_another(beat, state):
            return
        if state.mode is Mode.FOUNDING:
            state.change(Change.NOTHING_TO_FOUND)
        if not state.mode.may_adopt or any(f.is_moving for f in state.fragments):
            return
        shared = state.fragments[: len(beat.reports)]
        state.begin_switch(Switch(beat.peer, beat.genesis, len(shared)))
        state.wants.clear()
        for fragment, report in zip(shared, beat.reports, strict=False):
            self._want(now, fragment.fragment, beat.peer, report.key, b"")

    def behind(self, fragment: Progress, *, believed: bool = False) -> bool:
        """Whether a live peer shows a greater anchor of this fragment. With `believed`, doubted
        peers don't count."""
        state, p = self.state, fragment.fragment
        own = state.key(fragment)
        live = (peer.beat for peer in state.roster.peers.values() if not peer.suspected)
        return any(
            beat.genesis == state.genesis and beat.reports[p].key > own
            for beat in live
            if beat and p < len(beat.reports) and not (believed and state.claims.doubts(beat.peer))
        )

    def outdone(self, beats: Sequence[Beat]) -> bool:
        """Whether any of these beats shows a greater model, or a greater anchor of ours."""
        foreign = (b for b in beats if b.genesis not in (b"", self.state.genesis))
        models = (self._models(beat) for beat in foreign)
        return any(theirs > ours for theirs, ours in models) or any(
            self.behind(fragment) for fragment in self.state.fragments
        )

    # ── pull ──────────────────────────────────────────────────────────────────────────────────────

    def catch_up(self, now: float, fragment: Progress, key: Key, peer: PeerId) -> None:
        """Pull a greater anchor, unless its seal is about to come down the stream that our offer
        went up.

        That is not for long if no bytes come: a sealer that died may have told the others of its
        anchor, and nobody else has the seal."""
        state = self.state
        if key <= fragment.lineage.key:
            wanted = state.wants.get(fragment.fragment)
            if wanted and wanted.peer == peer and not state.mode.switching:
                # The peer showed more a moment ago, but has nothing to answer with.
                del state.wants[fragment.fragment]
            return
        since = fragment.seen_behind(now)
        pending = fragment.pending
        coming = pending if pending and pending.delivered and pending.sent_to == peer else None
        patience = state.policies.timing.suspect_after_s + (coming.seal_s if coming else 0.0)
        if not coming or now - since >= patience:
            self._want(now, fragment.fragment, peer, key, fragment.has)

    def _want(self, now: float, p: int, peer: PeerId, key: Key, have: bytes) -> None:
        state = self.state
        if p not in state.wants and not state.claims.doubts(peer):
            until = now + state.policies.timing.round_timeout_s
            state.wants[p] = Wanted(peer, key, now, until)
            state.emit(Send(peer, Want(state.me, p, have)))

    def heard(self, now: float, peer: PeerId) -> None:
        """Bytes arrived from a peer, so the anchors that we want of it are still coming."""
        until = now + self.state.policies.timing.round_timeout_s
        for wanted in self.state.wants.values():
            if wanted.peer == peer:
                wanted.until = until

    def unreachable(self, now: float, peer: PeerId, p: int) -> None:
        """That peer cannot give us the anchor of fragment `p` that we wanted."""
        wanted = self.state.wants.pop(p, None)
        if wanted and wanted.peer == peer:
            self._doubt(now, wanted.peer, wanted.since)
        if self.state.switch and self.state.switch.peer == peer:
            self.state.end_switch()

    def handed_over(self, now: float, peer: PeerId, *, kept: bool) -> None:
        """The worker has installed the whole anchors of a peer, or refused their bytes."""
        if kept:
            self.state.claims.kept(peer)
        elif not self.state.is_me(peer):
            self._doubt(now, peer, now)

    def _doubt(self, now: float, peer: PeerId, since: float) -> None:
        """An anchor that was asked for at `since` did not come."""
        state = self.state
        until = state.claims.failed(now, peer, now - since, state.policies.timing.beat_s)
        state.wake_by(until)

    def expire(self, now: float) -> None:
        """Stop waiting for answers that did not come, or are of peers that may be gone: somebody
        else has them, too."""
        state = self.state
        state.claims.expire(now, state.roster.peers)
        alive = state.roster.alive()
        for p, wanted in list(state.wants.items()):
            if now >= wanted.until:
                self._doubt(now, wanted.peer, wanted.since)
            if now >= wanted.until or wanted.peer not in alive:
                del state.wants[p]
        switch = state.switch
        asked = [wanted.peer for wanted in state.wants.values()]
        # Wants for anchors of our own model don't keep the switch open: nobody answers for it.
        if switch and not switch.complete and switch.peer not in asked:
            state.end_switch()

    # ── take ──────────────────────────────────────────────────────────────────────────────────────

    def take(self, now: float, news: Seal | State) -> None:
        """Take a seal or a whole anchor that was deferred."""
        match news:
            case Seal():
                self.take_seal(now, news)
            case State():
                self.take_state(now, news)

    def take_seal(self, now: float, seal: Seal) -> None:
        """A seal arrived, or was made here: advance by it, if it is on our anchor."""
        state, fragment = self.state, self.state.fragments[seal.fragment]
        if seal.key <= fragment.lineage.key or not state.mode.may_adopt:
            return
        if not fragment.is_still:
            fragment.defer(seal)
        elif seal.base != fragment.lineage.digest:
            if not state.is_me(seal.sealer):
                self._want(now, seal.fragment, seal.sealer, seal.key, fragment.lineage.digest)
        else:
            self._advance(fragment, seal)

    def _advance(self, fragment: Progress, seal: Seal) -> None:
        lineage = fragment.lineage.seal(seal.members, seal.payload)
        flaw = self._flaw_of(fragment, seal, lineage)
        if flaw:
            self.state.refuse_seal(seal, flaw)
            return
        merged = fragment.includes_pending(lineage)
        replace = self._waits_exactly(fragment) if merged else fragment.in_doubt(lineage)
        gain = self._gain(fragment) if merged and not replace else 1.0
        here = self.state.is_me(seal.sealer)
        predecessor = seal.sealer.name == self.state.me.name and not here
        fragment.move()
        self.state.work(
            Advance(
                seal=seal,
                lineage=lineage,
                base=fragment.lineage,
                merged_own_offer=merged,
                replace=replace,
                gain=gain,
                sealed_here=here,
                forget=not here and not merged and fragment.source_moved_on(lineage),
                sealed_by_predecessor=predecessor,
            )
        )

    def _flaw_of(self, fragment: Progress, seal: Seal, lineage: Lineage) -> str:
        """Why a seal that would lead to this lineage is refused; empty if it is not."""
        state = self.state
        if lineage.key != seal.key:
            return "its lineage does not follow from its members"
        buffers = state.is_buffers(seal.fragment)
        flaw = flaw_of(seal, fragment.lineage, state.policies, buffers)
        if not flaw and fragment.forged_in(seal.members, state.was_saved):
            return "it merges what this learner never offered in this learner's name"
        return flaw

    def _waits_exactly(self, fragment: Progress) -> bool:
        """Whether adoption is synchronous, and the training thread has not stepped on since the
        snapshot."""
        pending = fragment.pending
        synchronous = self.state.schedule.adopt_after == 0
        if not synchronous or pending is None or pending.missed:
            return False
        return pending.step == self.state.totals.step

    def _gain(self, fragment: Progress) -> float:
        """The gain of a seal that has merged the pending offer; 1 at rest, so that all learners end
        with the same weights."""
        state, pending = self.state, fragment.pending
        if state.resting or pending is None:
            return 1.0
        late = state.totals.step - pending.step
        return state.policies.adoption.gain_at(max(late, state.schedule.adopt_after or 0))

    def take_state(self, now: float, anchor: State) -> None:
        """A whole anchor arrived: install it if it is greater, or keep it for the switch."""
        state, p, lineage = self.state, anchor.fragment, anchor.lineage
        if state.switch:
            self._collect(now, state.switch, anchor)
            return
        fragment = state.fragments[p]
        self._check_gain(now, anchor, fragment)
        unwanted = lineage.genesis != state.genesis or lineage.key <= fragment.lineage.key
        if unwanted or not state.mode.may_adopt:
            state.wants.pop(p, None)
        elif not fragment.is_still:
            fragment.defer(anchor)
        else:
            merged = fragment.includes_pending(lineage)
            self._install((anchor,), merged_own_offer=merged, replace=fragment.in_doubt(lineage))

    def _check_gain(self, now: float, anchor: State, fragment: Progress) -> None:
        """Doubt a peer that hands over less than it has shown, and nothing that is of use."""
        wanted = self.state.wants.get(anchor.fragment)
        key = anchor.lineage.key
        if wanted and wanted.peer == anchor.peer and key < min(wanted.key, fragment.lineage.key):
            self._doubt(now, wanted.peer, wanted.since)

    def _collect(self, now: float, switch: Switch, anchor: State) -> None:
        if anchor.lineage.genesis == switch.genesis and anchor.fragment < switch.fragments:
            switch.states[anchor.fragment] = anchor
            self.state.wants.pop(anchor.fragment, None)
            if switch.complete and not self._is_greater(switch):
                self.state.end_switch()
                self._doubt(now, switch.peer, now)
            self.finish_switch()

    def _is_greater(self, switch: Switch) -> bool:
        """Whether the model that has arrived is greater than ours. A learner that was alone may
        hand over less than it has shown."""
        state = self.state
        keys = [anchor.lineage.key for anchor in switch.states.values()]
        own_keys = map(state.key, state.fragments[: switch.fragments])
        ours = model_key(own_keys, state.genesis, state.totals.step > 0)
        return model_key(keys, switch.genesis, started=True) > ours

    def finish_switch(self) -> None:
        """Install the other model once all of it is here and every fragment stands still."""
        switch = self.state.switch
        if switch is None or not switch.complete:
            return
        if all(fragment.is_still for fragment in self.state.fragments):
            self.state.end_switch()
            anchors = tuple(switch.states[p] for p in sorted(switch.states))
            self._install(anchors, merged_own_offer=False, replace=True)

    def _install(
        self, anchors: tuple[State, ...], *, merged_own_offer: bool, replace: bool
    ) -> None:
        pairs = [(self.state.fragments[anchor.fragment], anchor) for anchor in anchors]
        for fragment, _ in pairs:
            fragment.move()
            fragment.take_deferred()
        moved_on = any(fragment.source_moved_on(anchor.lineage) for fragment, anchor in pairs)
        former, genesis = self.state.genesis, anchors[0].lineage.genesis
        self.state.work(
            Install(
                states=anchors,
                merged_own_offer=merged_own_offer,
                replace=replace,
                forget=not merged_own_offer and moved_on,
                gain=self._gain_of(anchors[0]) if merged_own_offer and not replace else 1.0,
                due=self._due_in(anchors[0]) if merged_own_offer else (),
                resets=rollbacks(genesis) > rollbacks(former),
            )
        )

    def _gain_of(self, anchor: State) -> float:
        """The gain of a whole anchor that has merged the pending offer. The step to an anchor
        farther on is of several rounds, and of none of them the mean is known."""
        fragment = self.state.fragments[anchor.fragment]
        return self._gain(fragment) if self._is_next(anchor) else 1.0

    def _due_in(self, anchor: State) -> tuple[str, ...]:
        """The moments that the round averaged which merged our pending offer. Of an anchor farther
        on nobody knows which they were: ours are due again."""
        version = anchor.lineage.version
        return self.state.moments_due(anchor.fragment, version) if self._is_next(anchor) else ()

    def _is_next(self, anchor: State) -> bool:
        """Whether one round leads from our anchor to this one."""
        return anchor.lineage.version == self.state.fragments[anchor.fragment].lineage.version + 1


def _is_part_of_another(beat: Beat, state: EngineState) -> bool:
    """Whether a live peer shows the same model as `beat`, with more of our fragments. A group that
    a rollback took back must not go on from where it was here, because one peer lacks it."""
    count = len(beat.reports)
    live = (peer.beat for peer in state.roster.peers.values() if not peer.suspected)
    return count < len(state.fragments) and any(
        other.genesis == beat.genesis and len(other.reports) > count for other in live if other
    )
