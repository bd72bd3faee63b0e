"""Which first weights a newcomer takes, when many learners start together.

Each newcomer has first weights of its own, and all are to end with the greatest. A newcomer that
took every greater one as it heard of it would fetch a model several times: of n learners that are
met in any order, on average 1 + 1/2 + … + 1/n are greater than all before. So it waits until it has
heard of all that it knows of, or of no further one for a beat, and fetches the greatest."""

from __future__ import annotations

from collections.abc import Iterator

from mend_optim.engine.majority import OwnModel
from mend_optim.engine.pending import NEVER
from mend_optim.engine.state import EngineState
from mend_optim.protocol.lineage import ModelKey, PeerId
from mend_optim.protocol.messages import Beat

#: A newcomer that joins within so many beats waits for nobody. It fetches a model when a beat shows
#: it, and the next beat may come too late.
LAST_BEATS = 2


class FirstWeights:
    """A newcomer's knowledge of the other newcomers."""

    def __init__(self, state: EngineState) -> None:
        self.state = state
        self._known: set[PeerId] = set()
        #: When it heard of the first and of the last of them.
        self._first = self._last = 0.0
        #: When it stops waiting for learners that do not come. `Joining` writes it.
        self.join_by = NEVER

    def may_fetch(self, now: float, beat: Beat) -> bool:
        """Whether to fetch the model of this beat now. A trained model is taken at once. Of first
        weights, the greatest are waited for."""
        if self.state.begun or not _is_first(beat):
            return True
        rivals = list(self._rivals())
        known = {rival.peer for rival in rivals}
        if not known <= self._known:
            self._first = self._first if self._known else now
            self._last = now
            self._known |= known
        if any(self._key(rival) > self._key(beat) for rival in rivals):
            return False
        return self._is_complete() or now >= self._patience_ends()

    def _rivals(self) -> Iterator[Beat]:
        """The newcomers whose first weights are to be had."""
        for peer in self.state.roster.peers.values():
            beat = peer.beat
            if beat is None or peer.suspected or self.state.claims.doubts(peer.id):
                continue
            if _is_first(beat):
                yield beat

    def _key(self, beat: Beat) -> ModelKey:
        """By what this learner compares that model with its own."""
        theirs, _ = OwnModel(self.state).beside(beat)
        return theirs

    def _is_complete(self) -> bool:
        """Whether all learners that this one knows of have shown their weights."""
        beats = [peer.beat for peer in self.state.roster.peers.values()]
        return not self.state.seeds.missing and all(beat and beat.genesis for beat in beats)

    def _patience_ends(self) -> float:
        """A beat after the last newcomer, but in good time to fetch a model before it joins."""
        timing = self.state.policies.timing
        return min(
            self._last + timing.beat_s,
            self._first + timing.join_timeout_s / 2,
            self.join_by - LAST_BEATS * timing.beat_s,
        )


def _is_first(beat: Beat) -> bool:
    """Whether a beat shows first weights that nobody has joined or trained with."""
    return bool(
        beat.genesis
        and beat.reports
        and not beat.begun
        and not any(report.key.tokens for report in beat.reports)
    )
