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
of it. A learner that died is waited for until it is evicted."""

from __future__ import annotations

from typing import NamedTuple

from mend_optim.engine.boundaries import Boundaries
from mend_optim.engine.state import EngineState
from mend_optim.membership.roster import Peer
from mend_optim.protocol.lineage import content_digest
from mend_optim.protocol.messages import Beat, Rumor


class Ended(NamedTuple):
    """The learners that end together: their tokens by name, and the digest of what they hold.

    `alone` says whether nobody else is left, and `keeps_own` whether this learner's weights then
    hold work that is in no anchor. `fresh` says whether nothing of what was trained is in some
    anchor, because there never was a quorum."""

    tokens: dict[str, int]
    digest: str
    alone: bool
    keeps_own: bool
    fresh: bool


class Ending:
    """Decides whether this learner is ready to end, and whether all are."""

    def __init__(self, state: EngineState, boundaries: Boundaries) -> None:
        self.state = state
        self.boundaries = boundaries
        # The tokens of those who have ended already, with the anchors that they ended on.
        self._gone: dict[str, tuple[int, bytes]] = {}
        # The end on which all have agreed. It stays: the others may leave before training looks.
        self._ended: Ended | None = None
        # The digests that this learner was ready for since it last stepped, each with the tokens of
        # all that had to be ready. They had finished, so these are their last.
        self._told: dict[bytes, dict[str, int]] = {}

    def trained_on(self) -> None:
        """This learner has stepped since it last rested: it has not ended."""
        self._ended = None
        self._told.clear()
        self.state.ended = b""

    def review(self) -> bool:
        """Look again whether this learner is ready. Returns whether it has something new to
        tell."""
        state = self.state
        before, state.ready = state.ready, self._agreement()
        state.roster.closed = bool(state.ready)
        if state.ready:
            self._told.setdefault(state.ready, self.tokens())
        if self._all_ready():
            self._end(state.ready)
        return state.ready != before

    def heard(self, beat: Beat) -> None:
        """A peer that has ended has heard from everybody, and so from this learner, that all were
        ready for that. So all of them have ended, although this one may not hear it from each."""
        if beat.ended in self._told:
            self._end(beat.ended)

    def _end(self, ready: bytes) -> None:
        if self._ended is None:
            account = self._account()
            self._ended = account._replace(tokens={**self._told[ready], **account.tokens})
            self.state.ended = ready

    def end(self) -> Ended | None:
        """The end, with all learners that share it; None before all have agreed. News of their
        tokens may come after that."""
        ended = self._ended
        return ended and ended._replace(tokens={**ended.tokens, **self.tokens()})

    def _all_ready(self) -> bool:
        """Whether all on the roster are ready to end as this learner is."""
        ready, peers = self.state.ready, self.state.roster.peers.values()
        return bool(ready) and all(peer.word and peer.word.ready == ready for peer in peers)

    def _account(self) -> Ended:
        state = self.state
        fresh = bool(self.fresh_fragments()) and state.totals.step > 0
        unmerged = any(f.unmerged(state.totals).step for f in state.fragments)
        return Ended(
            tokens=self.tokens(),
            digest=self.anchors().hex(),
            alone=state.alone,
            keeps_own=state.alone and unmerged,
            fresh=fresh,
        )

    def fresh_fragments(self) -> set[int]:
        """The fragments whose anchors are first weights: nothing is merged in them."""
        return {f.fragment for f in self.state.fragments if not f.lineage.tokens}

    def left(self, peer: Peer, rumor: Rumor | None) -> None:
        """A peer has left. If it was ready, it has ended, and this learner will end as it did. If
        others tell so, its last beat may not have come yet: that it finished is enough. A peer that
        this learner has never heard must have been ready for what this learner is ready for."""
        if peer.beat is None:
            if peer.rumor:
                self.told(peer.rumor)
        elif peer.beat.ready or rumor:
            self._note(peer.beat)

    def told(self, rumor: Rumor) -> None:
        """Others tell that a peer has left. Of several goodbyes, not each tells of its end."""
        if rumor.ready in self._told:
            self._gone[rumor.peer.name] = rumor.tokens, self.anchors()

    def heard_late(self, beat: Beat) -> None:
        """The beat of a peer that has left, or is not admitted: its goodbye was faster."""
        if beat.ready:
            self._note(beat)

    def _note(self, beat: Beat) -> None:
        """Its sender has ended, if it holds our anchors."""
        if self.state.fragments and self._finishes_here(beat):
            self._gone[beat.peer.name] = beat.tokens, self.anchors()

    def tokens(self) -> dict[str, int]:
        """By name, the tokens of all who end on this learner's anchors, once all have agreed."""
        state, anchors = self.state, self.anchors()
        gone = {name: tokens for name, (tokens, on) in self._gone.items() if on == anchors}
        words = [peer.word for peer in state.roster]
        here = {word.peer.name: word.tokens for word in words if word}
        return {**gone, **here, state.me.name: state.totals.tokens}

    def anchors(self) -> bytes:
        """The digest of this learner's anchors."""
        state = self.state
        keys = [state.key(fragment) for fragment in state.fragments[: state.shared]]
        return content_digest(repr(keys).encode())

    def _agreement(self) -> bytes:
        """The digest of the anchors and of the roster; empty if this learner is not ready."""
        state = self.state
        if not state.finishes or not self._is_settled():
            return b""
        if not all(peer.word and self._finishes_here(peer.word) for peer in state.roster):
            return b""
        names = sorted([state.me, *(peer.id for peer in state.roster)])
        return content_digest(repr(names).encode(), self.anchors())

    def _is_settled(self) -> bool:
        """Whether nothing here is left that can be merged."""
        still = all(f.is_still and not f.correction_pending for f in self.state.fragments)
        return still and (not self.can_merge() or self.boundaries.settled())

    def can_merge(self) -> bool:
        """Whether those who are left are a quorum, and one of them can seal."""
        state, roster = self.state, self.state.roster
        if roster.alone or roster.heard < state.policies.quorum.needed(roster.heard):
            return False
        return all(roster.sealer(f.fragment) is not None for f in state.fragments)

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
