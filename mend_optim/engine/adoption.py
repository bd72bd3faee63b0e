"""Law 4 at work: anchors form a max-register. This module compares lineages, pulls greater
anchors, and takes seals and whole anchors.

    same genesis, greater anchor     pull it: by seals if they are fewer bytes, else as a whole
    other genesis, greater model     take all of it, in one piece
    alone, and ours is the greater   found an anchor from our weights, so that the others find it

Lineages of one genesis are compared fragment by fragment. Those of different genesis are compared
as whole models, and taken as whole models: no learner ends with a mixture of two."""

from __future__ import annotations

from collections.abc import Sequence

from mend_optim.engine.attestations import Attestations
from mend_optim.engine.effects import Advance, Install
from mend_optim.engine.first_weights import FirstWeights
from mend_optim.engine.ledger import Event
from mend_optim.engine.majority import Majority, OwnModel
from mend_optim.engine.mode import Change, Mode
from mend_optim.engine.others import Others
from mend_optim.engine.passages import Passages, Way
from mend_optim.engine.progress import Progress
from mend_optim.engine.pulling import Pulling, is_between
from mend_optim.engine.repairs import Repairs
from mend_optim.engine.seal_checks import flaw_of
from mend_optim.engine.state import EngineState
from mend_optim.engine.switching import Switching
from mend_optim.membership.zones import are_neighbours
from mend_optim.protocol.lineage import Lineage, PeerId, rollbacks
from mend_optim.protocol.messages import Beat, Seal, State


class Adopter:
    """Compares the anchors of other learners with this learner's, and adopts the greater ones."""

    def __init__(self, state: EngineState) -> None:
        self.state = state
        self.majority = Majority(state)
        self.passages = Passages(state)
        self.pulling = Pulling(state, self.majority, self.passages)
        self.first_weights = FirstWeights(state)
        self.switching = Switching(state, self.majority, self.pulling, self.first_weights)
        self.attestations = Attestations(state, self.majority)
        self.repairs = Repairs(state, self.pulling, self.attestations)

    # ── compare ───────────────────────────────────────────────────────────────────────────────────

    def compare(self, now: float, beat: Beat) -> None:
        """Law 4: adopt the greater anchor. If we are alone, a lesser model makes us found an
        anchor, so that its learner can adopt that."""
        state = self.state
        self.majority.look(now)
        if not beat.genesis or not beat.reports:
            return  # there is no anchor that could be fetched
        self.attestations.heard(beat)
        same = beat.genesis == state.genesis
        theirs, ours = OwnModel(state).beside(beat)
        self.switching.check(beat, theirs <= ours)
        # A peer with steps behind it is no newcomer, even before it has joined: it goes on where a
        # checkpoint stood.
        if same and (beat.training or beat.step > 0):
            self._meet_own_model()
        if self.switching.is_part(beat):
            self.switching.ask(now, beat)
        elif state.alone and theirs < ours:
            self._meet_lesser_model()
        elif same and not state.mode.founding:
            others = Others(state)
            for fragment, report in zip(state.fragments, beat.reports, strict=False):
                self.pulling.catch_up(now, fragment, report.key, beat.peer, others)
            self.pulling.overtake(now, beat.peer)
            self._take_held(now)
        elif not same and theirs > ours:
            self.switching.meet(now, beat)

    def _meet_own_model(self) -> None:
        if self.state.mode in (Mode.SOLO, Mode.SWITCHING_SOLO):
            self.state.change(Change.MET_OWN_MODEL)

    def _meet_lesser_model(self) -> None:
        trained = any(f.unmerged(self.state.totals).tokens for f in self.state.fragments)
        if trained and self.state.mode is Mode.SOLO:
            self.state.change(Change.MET_LESSER_MODEL)

    def ask_on(self, now: float, peer: PeerId) -> None:
        """A whole anchor has come from a peer: ask it for another one."""
        state, known = self.state, self.state.roster.find(peer)
        beat = known.beat if known else None
        if beat is None:
            return
        if self.switching.is_part(beat):
            self.switching.ask(now, beat)
        elif state.genesis == beat.genesis and not state.mode.founding:
            others = Others(state)
            for fragment, report in zip(state.fragments, beat.reports, strict=False):
                # What a seal brings can wait for the next beat: this one may be old by now.
                if report.key.version > fragment.lineage.version + 1:
                    self.pulling.catch_up(now, fragment, report.key, peer, others)
            self.pulling.overtake(now, peer)

    # ── yield ─────────────────────────────────────────────────────────────────────────────────────

    def give_way(self, now: float) -> None:
        """If most learners get on with what is less than ours, or have something else under our
        keys, ask for what they have."""
        state = self.state
        self.majority.look(now)
        if not state.mode.may_adopt:
            return
        other = self.majority.gives_way_to_model()
        if other:
            self.switching.fetch(now, other, gives_way=True)
            if state.switch:
                state.emit(yield_event(other.peer, "model"))
            return
        others = Others(state)
        for fragment in state.fragments:
            p, beat = fragment.fragment, self.majority.gives_way(fragment, others)
            if beat and p not in state.wants and not state.claims.doubts(beat.peer):
                key = beat.reports[p].key
                self.pulling.want(now, fragment, beat.peer, key, whole=True, gives_way=True)
                state.emit(yield_event(beat.peer, f"anchor of fragment {p}"))
        self.repairs.look(now)

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
        self.passages.passed(now, seal.sender, Way.FROM, seal.fragment)
        self.pulling.seal_by_seal.came(seal.fragment)
        state, fragment = self.state, self.state.fragments[seal.fragment]
        is_new = seal.key > fragment.lineage.key and state.mode.may_adopt
        if not is_new:
            return
        if not (self.pulling.is_answer(seal, fragment) or _may_come(seal, fragment, state)):
            self.pulling.in_vain(now, seal.sender, seal.fragment)
        elif not fragment.is_still or self.repairs.is_mending(seal.fragment):
            fragment.defer(seal)
        elif seal.base != fragment.lineage.digest:
            self.pulling.missed(now, fragment, seal)
        elif self._is_due_from(seal, fragment):
            self._advance(fragment, seal)
        else:
            self.pulling.in_vain(now, seal.sender, seal.fragment)

    def _is_due_from(self, seal: Seal, fragment: Progress) -> bool:
        """Whether its sealer is the one that this learner expects, or has our offer; or most
        learners have what it led to."""
        if _is_expected(seal, fragment, self.state):
            return True
        return self.majority.believes(fragment, seal.key, seal.sender)

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
        self.passages.passed(now, anchor.peer, Way.FROM, anchor.fragment)
        self.pulling.seal_by_seal.came(anchor.fragment)
        self.pulling.sources.came(now, anchor.fragment, anchor.peer)
        state, p, lineage = self.state, anchor.fragment, anchor.lineage
        if state.switch:
            self.switching.collect(now, anchor)
            self.ask_on(now, anchor.peer)
            self.finish_switch()
            return
        fragment = state.fragments[p]
        self._check_gain(now, anchor, fragment)
        is_other = lineage.genesis != state.genesis or lineage.key == fragment.lineage.key
        mends = self.repairs.is_mended_by(anchor, fragment)
        if mends and not self.repairs.may_take(anchor, fragment):
            return
        unwanted = not mends and (is_other or not self._is_to_be_had(anchor, fragment))
        if unwanted or not state.mode.may_adopt:
            wanted = self.pulling.asked_of(anchor.peer, p)
            if wanted and wanted.held is None:
                self.pulling.give_up(p, wanted)
        elif not fragment.is_still:
            fragment.defer(anchor)
        else:
            merged = fragment.includes_pending(lineage)
            self._install((anchor,), merged_own_offer=merged, replace=fragment.in_doubt(lineage))

    def _is_to_be_had(self, anchor: State, fragment: Progress) -> bool:
        """Whether an anchor is greater than ours, and believed; or this learner gives way to it.
        The peer that was asked may be a round ahead of all others: its anchor is kept until they
        have it, too."""
        wanted = self.state.wants.get(anchor.fragment)
        asked = wanted if wanted and wanted.peer == anchor.peer else None
        key = anchor.lineage.key
        if key < fragment.lineage.key:
            return asked is not None and asked.gives_way
        is_shown = asked is not None and not asked.seal_only and key <= asked.key
        if is_shown or self.majority.believes(fragment, key, anchor.peer):
            return True
        if asked:
            asked.held = anchor
        return False

    def _take_held(self, now: float) -> None:
        """Take the anchors that were kept, and are believed by now."""
        for p, wanted in list(self.state.wants.items()):
            fragment, held = self.state.fragments[p], wanted.held
            if held and self.majority.believes(fragment, held.lineage.key, held.peer):
                wanted.held = None
                if not self.pulling.asks_anew(now, fragment, held):
                    self.take_state(now, held)

    def _check_gain(self, now: float, anchor: State, fragment: Progress) -> None:
        """Doubt a peer that hands over less than it has shown, and nothing that is of use."""
        wanted = self.state.wants.get(anchor.fragment)
        key = anchor.lineage.key
        if wanted and wanted.peer == anchor.peer and key < min(wanted.key, fragment.lineage.key):
            self.pulling.doubt(now, wanted.peer, wanted.since)

    def finish_switch(self) -> None:
        """Install the other model once all of it is here and every fragment stands still."""
        anchors = self.switching.take()
        if anchors:
            self._install(anchors, merged_own_offer=False, replace=True)

    def refused(self, now: float, states: Sequence[State], culprit: PeerId, why: str) -> None:
        """The worker has refused whole anchors, because of the one of that peer."""
        state = self.state
        state.refuse(culprit, "state", why)
        self.pulling.handed_over(now, culprit, kept=False)
        for anchor in states:
            state.fragments[anchor.fragment].move_refused()
            wanted = self.pulling.asked_of(anchor.peer, anchor.fragment)
            if wanted:
                self.pulling.give_up(anchor.fragment, wanted)

    def _install(
        self, anchors: tuple[State, ...], *, merged_own_offer: bool, replace: bool
    ) -> None:
        pairs = [(self.state.fragments[anchor.fragment], anchor) for anchor in anchors]
        for fragment, anchor in pairs:
            fragment.move_to(anchor.lineage)
        moved_on = any(fragment.source_moved_on(anchor.lineage) for fragment, anchor in pairs)
        former, genesis = self.state.genesis, anchors[0].lineage.genesis
        self.state.work(
            Install(
                states=anchors,
                contents=tuple(map(self.attestations.expected, anchors)),
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
        return self._gain(fragment) if _is_next(anchor, self.state) else 1.0

    def _due_in(self, anchor: State) -> tuple[str, ...]:
        """The moments that the round averaged which merged our pending offer. Of an anchor farther
        on nobody knows which they were: ours are due again."""
        version = anchor.lineage.version
        moments = self.state.moments_due(anchor.fragment, version)
        return moments if _is_next(anchor, self.state) else ()


def yield_event(peer: PeerId, what: str) -> Event:
    """The news that this learner gives its own anchors up for those of `peer`."""
    text = f"takes the {what} that {peer.name} and most other learners train: its own is given up"
    return Event("yielded", text, {"peer": peer.name, "incarnation": peer.incarnation})


def _is_next(anchor: State, state: EngineState) -> bool:
    """Whether one round leads from our anchor to this one."""
    return anchor.lineage.version == state.fragments[anchor.fragment].lineage.version + 1


def _may_come(seal: Seal, fragment: Progress, state: EngineState) -> bool:
    """Whether a seal came from its sealer, through a neighbour, or through the go-between that has
    our offer. Another peer is refused."""
    if seal.passed_by is None or are_neighbours(state.roster, state.me, seal.passed_by):
        return True
    if is_between(state, fragment, seal.passed_by, seal.sealer):
        return True
    sealer, passed_by = map(state.roster.find, (seal.sealer, seal.passed_by))
    # Two learners may come to reach each other while a seal is on its way, and the peer that passes
    # it on hears of that later.
    meets = sealer is not None and sealer.linked and state.me in sealer.reaches
    if meets and passed_by and seal.sealer not in passed_by.reaches:
        state.refuse_seal(seal, f"it is one of {seal.sealer.name}")
    return False


def _is_expected(seal: Seal, fragment: Progress, state: EngineState) -> bool:
    """Whether a seal is of the sealer, by our roster, or of a peer that has our offer, or comes
    from a go-between. A peer that was asked for an anchor is believed no more than others: it might
    seal one of its own."""
    sealer, pending = seal.sealer, fragment.pending
    if sealer.name == state.me.name or (pending and sealer == pending.sent_to):
        return True
    if is_between(state, fragment, seal.passed_by, sealer):
        return True
    if state.former_sealers.may_have_sealed(seal.fragment, sealer, seal.base):
        return True
    return state.roster.may_seal(seal.fragment, sealer)
