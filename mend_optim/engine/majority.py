"""Whose anchors this learner takes, where learners disagree: no single peer moves a run that gets
on.

Nothing in a whole anchor tells whether its bytes are what was trained. So this learner takes a
greater anchor

- that more than half of the *voters* show: live peers that it hears itself, that have trained, and
  that have its model;
- that anybody shows, while it has little to lose: its process has adopted only a few anchors, or
  only a few since a rollback, or nobody trains its model with it;
- that anybody shows, if its own anchor has not moved for long. Then a peer that knows more is a
  better explanation than a peer that lies, and waiting any longer would end the rounds.

Until then the claim is *held*: rounds go on as if nobody had made it.

Two branches of one run may thus get on side by side, after a partition for one. If the lesser
branch has the majority, the learners of the greater one *yield*: a learner whose anchors more than
half of all learners have neither taken nor had, while they got on with theirs, takes what most of
them have. Of two branches, with a and b learners of n = a + b, the learners of the lesser one see a
majority for the greater one if 2b > n − 1; those of the greater one yield if 2a > n. One of the
two holds, and never both.

A rollback is a user's decision, and is taken on the word of one learner. The others hear of it one
after the other, while that learner gets on. Each of them may come to another anchor of the new
line, and none of these has a majority. So the first anchors after a rollback are believed like
those of a new process. A liar gains nothing: it could have rolled the run back itself."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from mend_optim.engine.others import Others
from mend_optim.engine.progress import Progress
from mend_optim.engine.state import EngineState
from mend_optim.protocol.lineage import Key, ModelKey, PeerId, model_key, rollbacks
from mend_optim.protocol.messages import Beat, State

#: An anchor that has not moved for so many times the longest of its last pauses is stuck.
PAUSES = 4
#: Anchors that a peer shows one after the other, before it gets on with them.
GETS_ON = 2
#: Stands for the whole model where a fragment is named.
MODEL = -1


@dataclass(slots=True)
class _Moves:
    """When an anchor moved."""

    digest: bytes
    at: float
    #: The pauses between its last moves, but for those with a rest: there are no rounds then. None
    #: is longer than it took until the anchor was stuck: a disturbance is not the pace of a run.
    pauses: deque[float] = field(default_factory=lambda: deque(maxlen=4))
    #: Whether this learner has rested since.
    rested: bool = False
    #: Since when it has not moved although a peer claims a greater one; None if none does.
    held_since: float | None = None

    def look(self, now: float, digest: bytes, *, resting: bool, least_s: float) -> None:
        if digest != self.digest:
            if not (self.rested or resting):
                self.pauses.append(min(now - self.at, self.patience_s(least_s)))
            self.digest, self.at, self.held_since, self.rested = digest, now, None, False
        self.rested = self.rested or resting

    def patience_s(self, least_s: float) -> float:
        """For how long it may stand still before it is stuck."""
        return max(least_s, PAUSES * max(self.pauses, default=0.0))


@dataclass(slots=True)
class Apart:
    """A peer with anchors that are none of this learner's."""

    since: float
    #: The last that it showed, and how many others before.
    shown: object
    moves: int = 0

    def look(self, shown: object) -> None:
        """The peer shows this."""
        if shown != self.shown:
            self.shown = shown
            self.moves += 1


class Camps:
    """How many learners train each model. Where hundreds join, each has its own."""

    def __init__(self, geneses: Iterable[bytes]) -> None:
        self._sizes = Counter(geneses)
        half = sum(self._sizes.values()) / 2
        #: The model that more than half of them train; None if there is none.
        self.of_most = next((g for g, size in self._sizes.most_common(1) if size > half), None)

    def __getitem__(self, genesis: bytes) -> int:
        return self._sizes[genesis]


class Majority:
    """Decides which anchors are believed, and to whose this learner yields."""

    def __init__(self, state: EngineState) -> None:
        self.state = state
        #: By a clock that stands still while this learner is stopped: it hears of no other anchor.
        self._now = 0.0
        #: Whether this learner finishes, and all others rest: the pace of the run tells nothing of
        #: the next round then.
        self._all_finish = False
        #: By fragment; `MODEL`: of any of them.
        self._moves: dict[int, _Moves] = {}
        #: By fragment, or `MODEL`, and by name of a voter.
        self._apart: dict[int, dict[str, Apart]] = {}

    def look(self, now: float) -> None:
        """Time passed, or an anchor may have moved."""
        self._now = now = self.state.stops.awake_s(now)
        self._all_finish = self.state.finishes and all(peer.rests for peer in self.state.roster)
        digests = {f.fragment: f.lineage.digest for f in self.state.fragments}
        digests[MODEL] = b"".join(digests.values())
        resting, least_s = self.state.resting, self.state.policies.timing.evict_after_s
        for p, digest in digests.items():
            moves = self._moves.get(p)
            if moves is None:
                moves = self._moves[p] = _Moves(digest, now)
            moves.look(now, digest, resting=resting, least_s=least_s)

    # ── believe ───────────────────────────────────────────────────────────────────────────────────

    def believes(
        self, fragment: Progress, key: Key, peer: PeerId, others: Others | None = None
    ) -> bool:
        """Whether an anchor of this model that `peer` claims is to be had, if it is greater."""
        shown = (others or Others(self.state)).shown(fragment.fragment)
        if peer in shown and key > shown[peer]:  # its last beat may be older than its claim
            shown = {**shown, peer: key}
        bound = self._bound(fragment, shown)
        return bound is None or key <= bound

    def believed(self, fragment: Progress) -> Key | None:
        """The greatest anchor that is to be had, of those that the peers show; None: any is."""
        return self._bound(fragment, Others(self.state).shown(fragment.fragment))

    def _bound(self, fragment: Progress, shown: Mapping[PeerId, Key]) -> Key | None:
        if not shown or not self.state.policies.limits.majority:
            return None
        # The greatest anchor that more than half show, or beyond.
        most = sorted(shown.values(), reverse=True)[len(shown) // 2]
        if most > fragment.lineage.key:
            return most  # that one comes first
        return None if self.state.is_young or self._is_stuck(fragment.fragment) else most

    def camps(self) -> Camps:
        """How many of the peers that have trained train which model."""
        return Camps(beat.genesis for beat in self.voters(0))

    def believes_model(self, beat: Beat, camps: Camps) -> bool:
        """Whether the model of another genesis that a beat shows is to be had, if it is greater.
        `camps`: those that `camps` returns."""
        state = self.state
        if not state.policies.limits.majority or rollbacks(beat.genesis) > rollbacks(state.genesis):
            return True
        of_others = camps.of_most not in (None, beat.genesis, state.genesis)
        if not camps[state.genesis] and not of_others:
            return True  # nobody trains ours with us
        if camps.of_most == beat.genesis:
            return True
        return not of_others and (state.is_young or self._is_stuck(MODEL))

    def voters(self, p: int) -> list[Beat]:
        """The last beats of the peers that have trained, and have this fragment."""
        return Others(self.state).voters(p)

    def _same(self, beat: Beat) -> bool:
        return beat.genesis == self.state.genesis

    def is_stuck(self, anchor: State) -> bool:
        """Whether this learner has been stuck for so long that it takes any such anchor."""
        same = anchor.lineage.genesis == self.state.genesis
        return self._is_stuck(anchor.fragment if same else MODEL)

    def _is_stuck(self, p: int) -> bool:
        """Whether an anchor has not moved for long, although a greater one is claimed."""
        moves = self._moves.get(p)
        if moves is None:
            return True
        if moves.held_since is None:
            moves.held_since = self._now
        return self._now - moves.held_since >= self._patience_s(p)

    def _patience_s(self, p: int) -> float:
        moves, least_s = self._moves.get(p), self.state.policies.timing.evict_after_s
        return least_s if moves is None or self._all_finish else moves.patience_s(least_s)

    # ── yield ─────────────────────────────────────────────────────────────────────────────────────

    def gives_way(self, fragment: Progress, others: Others) -> Beat | None:
        """A beat that shows the anchor to which this learner yields in a fragment, if it does."""
        if not self.state.policies.limits.majority:
            return None
        p, own = fragment.fragment, fragment.lineage.key
        apart = {
            peer.name: key
            for peer, key in others.shown(p).items()
            if key < own and not fragment.has_had(key.digest)
        }
        ripe = self._ripe(p, apart)
        if not ripe:
            return None
        voters = others.voters(p)
        listed = sorted((b for b in voters if b.peer.name in ripe), key=lambda b: b.reports[p].key)
        return self._of_most(listed, len(voters))

    def gives_way_to_model(self) -> Beat | None:
        """The same, for a whole model of another genesis."""
        state = self.state
        if not state.policies.limits.majority:
            return None
        voters, camps, own = self.voters(0), self.camps(), OwnModel(state)
        apart = {
            beat.peer.name: (beat.genesis, beat.reports)
            for beat in voters
            if self._is_apart(beat, own)
        }
        ripe = self._ripe(MODEL, apart)
        # A learner that has little to lose does not count itself.
        ours = camps[state.genesis] + (0 if self.state.is_young else 1)
        for genesis in sorted({beat.genesis for beat in voters if beat.peer.name in ripe}):
            theirs = [b for b in voters if b.genesis == genesis and b.peer.name in ripe]
            if len(theirs) > ours:
                return max(theirs, key=lambda b: (b.reports[0].key, b.peer))
        return None

    def _is_apart(self, beat: Beat, own: OwnModel) -> bool:
        if self._same(beat):
            return False
        theirs, ours = own.beside(beat)
        return theirs < ours and theirs.rollbacks == ours.rollbacks

    @staticmethod
    def _of_most(ascending: list[Beat], voters: int) -> Beat | None:
        """The greatest of these that more than half of all learners have, or beyond."""
        needed = (voters + 1) // 2 + 1
        return ascending[-needed] if len(ascending) >= needed else None

    def _ripe(self, p: int, apart: Mapping[str, object]) -> set[str]:
        """Of the voters that are apart, the names of those that have been so for long, and get
        on."""
        before = self._apart.get(p, {})
        self._apart[p] = {n: before.get(n, Apart(self._now, shown)) for n, shown in apart.items()}
        for name, seen in self._apart[p].items():
            seen.look(apart[name])
        since, listed = self._now - self._patience_s(p), self._apart[p].items()
        return {name for name, seen in listed if seen.since <= since and seen.moves >= GETS_ON}


class OwnModel:
    """This learner's model at one moment, beside which those of many others are looked at."""

    def __init__(self, state: EngineState) -> None:
        self.keys = [state.key(fragment) for fragment in state.fragments]
        self._genesis, self._begun = state.genesis, state.begun
        #: By how many fragments are looked at.
        self._places: dict[int, ModelKey] = {}

    def beside(self, beat: Beat) -> tuple[ModelKey, ModelKey]:
        """Theirs and ours, in the fragments that both have."""
        shared = min(len(beat.reports), len(self.keys))
        if shared not in self._places:
            self._places[shared] = model_key(self.keys[:shared], self._genesis, self._begun)
        keys = (report.key for report in beat.reports[:shared])
        return model_key(keys, beat.genesis, beat.begun), self._places[shared]
