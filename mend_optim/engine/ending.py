"""The end of a run: all live learners agree to end on one anchor.

    training ──finish()──▶ finishing ──all on the roster finish, ──▶ ready ──all on the roster
                                       hold the same anchors,                announce the same
                                       and nothing is unmerged here          digest──▶ ended

A learner tells in its beats that it finishes. Until all others do, it stays at rest, and serves
their rounds. A learner that is ready tells the digest of its anchors and its roster, and admits no
newcomer any more.

Nobody moves after somebody has ended. A learner that ended has heard the same digest from its whole
roster. Each of them had nothing unmerged, takes no further step, and admits nobody that could bring
work. So no round can merge anything, and all of them end on these anchors, however late they hear
of it. A learner that died is waited for until it is evicted.

A newcomer may meet a learner that is not ready yet, while others that don't know the newcomer are
ready, and admit it no more. Then rosters differ, and no digest would ever be that of all. So a
learner that is ready leaves those out with which others that it waits for will not end: it takes
the roster of a peer that is ready on the same anchors, if that is a part of its own. Those left out
end with one another."""

from __future__ import annotations

from collections.abc import Collection
from typing import NamedTuple

from mend_optim.engine.boundaries import Boundaries
from mend_optim.engine.ledger import Event
from mend_optim.engine.presence import Presence
from mend_optim.engine.state import EngineState
from mend_optim.protocol.lineage import PeerId, content_digest
from mend_optim.protocol.messages import Beat, Rumor

UNFINISHED = (
    "leaves without finish(), and {} of its tokens are in no anchor: call finish() after the loop, "
    "which merges them and lets all end with one model; or save a checkpoint and go on from it"
)
#: For so many beats a learner that finishes waits for one that has left in mid-run.
RETURN_BEATS = 2


class Ended(NamedTuple):
    """The learners that end together: their tokens by name, and the digest of what they hold.

    `alone` says whether nobody else is here, and `keeps_own` whether this learner's weights then
    hold work that is in no anchor. `fresh` says whether nothing of what was trained is in some
    anchor, because there never was a quorum. `unshared` are the fragments with work, if no other
    learner has the parameters of any of them. A quorum needs `needed` learners, and `here` are
    there. `unmerged_tokens` are this learner's that are in no anchor."""

    tokens: dict[str, int]
    digest: str
    alone: bool
    keeps_own: bool
    fresh: bool
    unshared: tuple[int, ...] = ()
    here: int = 0
    needed: int = 0
    unmerged_tokens: int = 0

    @property
    def agreed(self) -> bool:
        """Whether all that end hold one model. Without a quorum, each keeps its own weights."""
        return self.alone or not self.fresh


class Told(NamedTuple):
    """The learners that this one was ready to end with: their tokens by name, the digest of the
    anchors that they all held, and the end that they would have had. They had finished, so the
    tokens are their last. `lost` are those that have fallen silent since, or train on: they may
    have ended on other anchors."""

    tokens: dict[str, int]
    anchors: bytes
    end: Ended
    lost: set[str]


class Ending:
    """Decides whether this learner is ready to end, and whether all are."""

    def __init__(self, state: EngineState, boundaries: Boundaries, presence: Presence) -> None:
        self.state = state
        self.boundaries = boundaries
        self.presence = presence
        # The end on which all have agreed. It stays: the others may leave before training looks.
        self._ended: Ended | None = None
        # By digest, all that this learner was ready for since it last stepped. A learner ends only
        # if all the others were ready for the same, so those that have left are in here, too.
        self._told: dict[bytes, Told] = {}
        # The peers that trained at the last review.
        self._training: set[PeerId] = set()
        # Until then, one of them that has left may come back.
        self._returns_by = 0.0

    def trained_on(self) -> None:
        """This learner has stepped since it last rested: it has not ended."""
        self._ended = None
        self._told.clear()
        self.state.ended = b""
        self.state.agreed = False

    def review(self, now: float) -> bool:
        """Look again whether this learner is ready. Returns whether it has something new to
        tell."""
        state = self.state
        self._forget_those_that_train_on()
        self._expect_returns(now)
        before, state.ready = state.ready, self._agreement() if now >= self._returns_by else b""
        state.roster.closed = bool(state.ready)
        if state.ready:
            told = Told(self._tokens(), state.anchors_digest(), self._outlook(), set())
            self._told[state.ready] = told
        if self._all_ready():
            self._end(state.ready)
        return state.ready != before

    def heard(self, beat: Beat) -> None:
        """A peer that has ended has heard from everybody, and so from this learner, that all were
        ready for that. So all of them have ended, although this one may not hear it from each."""
        told = self._told.get(beat.ended)
        if told and told.anchors == self.state.anchors_digest():
            self._end(beat.ended)
        for id in self._not_with(beat):
            self.state.roster.leave_out(id)
            self.presence.left_out(id)
            self.evicted(id)

    def _not_with(self, beat: Beat) -> set[PeerId]:
        """The peers with which the sender of a beat will not end, if this learner may end without
        them. If they are more than the others, it waits for them. One that has left says so
        itself."""
        state = self.state
        if not state.ready or beat.ready in (b"", state.ready) or self._ended:
            return set()
        gone = {rumor.peer for rumor in beat.roster if rumor.left}
        here = {beat.peer, *(rumor.peer for rumor in beat.roster)} - gone
        mine = {state.me, *(peer.id for peer in state.roster)}
        left_out = mine - here
        if state.me not in here or not here < mine or left_out & gone or len(left_out) > len(here):
            return set()
        return left_out if self._digest(here) == beat.ready else set()

    def evicted(self, id: PeerId) -> None:
        """A peer has fallen silent. It may have evicted us, too, and got on with others: nobody
        knows on what it ended."""
        self._training.discard(id)
        for told in self._told.values():
            told.lost.add(id.name)

    def end(self) -> Ended | None:
        """The end, with all learners that share it; None before all have agreed."""
        return self._ended

    def tell_unfinished(self) -> None:
        """This learner leaves, and its script has not said so: tell of work that others lose."""
        state = self.state
        unmerged = self._unmerged_tokens()
        if unmerged and not (state.finishes or state.alone or state.roster.alone):
            text = UNFINISHED.format(unmerged)
            state.emit(Event("unfinished", text, {"unmerged_tokens": unmerged}))

    def _unmerged_tokens(self) -> int:
        """Own tokens that are in no anchor."""
        state = self.state
        return max((f.unmerged(state.totals).tokens for f in state.fragments), default=0)

    def _expect_returns(self, now: float) -> None:
        """A learner that leaves while it trains may be back in a moment: it has loaded a
        checkpoint."""
        roster = self.state.roster
        training = {p.id for p in roster if not (p.word and p.word.finishes)}
        if any(roster.find(id) is None for id in self._training - training):
            self._returns_by = now + RETURN_BEATS * self.state.policies.timing.beat_s
        self._training = training

    def _forget_those_that_train_on(self) -> None:
        """A learner whose `finish` ran out of time may step again. It does not end with us then."""
        for peer in self.state.roster if self._told else ():
            if peer.word and not peer.word.finishes:
                for told in self._told.values():
                    told.lost.add(peer.id.name)

    def _end(self, ready: bytes) -> None:
        if self._ended is None:
            self._ended = self._account(ready)
            self.state.ended = ready
            self.state.agreed = self._ended.agreed

    def _all_ready(self) -> bool:
        """Whether all on the roster are ready to end as this learner is."""
        ready, peers = self.state.ready, self.state.roster.peers.values()
        return bool(ready) and all(peer.word and peer.word.ready == ready for peer in peers)

    def _account(self, ready: bytes) -> Ended:
        """The end for which all in this digest were ready, so none of them is lost."""
        anchors, end = self.state.anchors_digest(), self._outlook()
        tokens: dict[str, int] = {}
        for told in self._told.values():
            if told.anchors == anchors:
                known = told.tokens.items()
                tokens.update({name: count for name, count in known if name not in told.lost})
                # The goodbye of the last peer may overtake the beat with which it ended. Where
                # nothing is merged, it has left with other weights.
                if end.alone and told.end.fresh and told.lost.isdisjoint(told.tokens):
                    end = told.end
        return end._replace(tokens=tokens | self._told[ready].tokens)

    def _outlook(self) -> Ended:
        """The end, if it were now, without an account."""
        state = self.state
        fresh = bool(self.fresh_fragments()) and state.totals.step > 0
        unmerged = [f.fragment for f in state.fragments if f.unmerged(state.totals).step]
        peers = state.roster.peers.values()
        # The last peer may have left just now, and the mode changes with time only.
        alone = state.alone or state.roster.alone
        unshared = tuple(p for p in unmerged if not any(peer.has(p) for peer in peers))
        return Ended(
            tokens={},
            digest=state.anchors_digest().hex(),
            alone=alone,
            keeps_own=alone and bool(unmerged),
            fresh=fresh,
            unshared=unshared if len(unshared) == len(unmerged) else (),
            here=1 + len(peers),
            needed=state.policies.quorum.needed(state.roster.heard),
            unmerged_tokens=self._unmerged_tokens(),
        )

    def fresh_fragments(self) -> set[int]:
        """The fragments whose anchors are first weights: nothing is merged in them."""
        return {f.fragment for f in self.state.fragments if not f.lineage.tokens}

    def _tokens(self) -> dict[str, int]:
        """The tokens of this learner and of its roster, by name."""
        words = [peer.word for peer in self.state.roster]
        others = {word.peer.name: word.tokens for word in words if word}
        return {**others, self.state.me.name: self.state.totals.tokens}

    def _agreement(self) -> bytes:
        """The digest of the anchors and of the roster; empty if this learner is not ready."""
        state = self.state
        if not state.finishes or not self._is_settled():
            return b""
        if not all(peer.word and self._finishes_here(peer.word) for peer in state.roster):
            return b""
        return self._digest({state.me, *(peer.id for peer in state.roster)})

    def _digest(self, learners: Collection[PeerId]) -> bytes:
        """The digest with which these learners end on the anchors that this one holds."""
        return content_digest(repr(sorted(learners)).encode(), self.state.anchors_digest())

    def _is_settled(self) -> bool:
        """Whether nothing here is left that can be merged."""
        still = all(f.is_still and not f.correction_pending for f in self.state.fragments)
        return still and (not self.can_merge() or self.boundaries.settled(self._unmergeable()))

    def can_merge(self) -> bool:
        """Whether those who are left are a quorum, one of them can seal, and this learner's work is
        finite. Those that are suspected come back, or are evicted."""
        state = self.state
        if any(f.is_beyond_help for f in state.fragments) or state.roster.alone:
            return False
        return len(self._unmergeable()) < len(state.fragments)

    def _unmergeable(self) -> set[int]:
        """The fragments that none of those who are left can seal, or that too few of them have for
        a quorum: added groups, perhaps. Work in others does not wait for them.

        A learner that this one has not heard itself counts once there was a round: the sealer may
        hear both. Before, its offers may reach nobody."""
        state, roster = self.state, self.state.roster
        needed, found = state.policies.quorum.needed(roster.heard), set()
        had_rounds = any(fragment.lineage.tokens for fragment in state.fragments)
        counted = [peer for peer in roster if peer.heard or had_rounds]
        for p in range(len(state.fragments)):
            having = 1 + sum(peer.has(p) for peer in counted)
            if having < needed or not (roster.address or roster.able(p)):
                found.add(p)
        return found

    def _finishes_here(self, beat: Beat | Rumor) -> bool:
        """Whether its sender finishes, too, and holds the anchors that this learner holds. A rumor
        does not tell these; the digest that its peer is ready for has them in it."""
        state = self.state
        if isinstance(beat, Rumor):
            return beat.finishes
        if not beat.finishes or beat.genesis != state.genesis:
            return False
        pairs = zip(state.fragments, beat.reports, strict=False)
        return all(report.key == state.key(fragment) for fragment, report in pairs)
