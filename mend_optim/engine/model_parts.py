"""Models of which a peer shows a part: it lacks a group that this learner has added.

A learner that takes such a model keeps its group, which goes on as it is. If there was a rollback,
that may have taken back the group, too: then work that was given up would be merged again. So a
part is not fetched

- while a live peer shows the same model with more of this learner's fragments;
- nor, after a rollback, while a learner that this one knows of may have more of the model: it was
  not heard yet, or is suspected, or has more fragments and may be about to show this model, too.
  This learner waits a few beats for them, no longer: some may be dead."""

from __future__ import annotations

from mend_optim.engine.state import EngineState
from mend_optim.membership.peer import Peer
from mend_optim.protocol.lineage import rollbacks
from mend_optim.protocol.messages import Beat

#: Beats in which a learner that has just started, or was cut off, links with its peers and hears
#: them.
MEETING_BEATS = 5


class ModelParts:
    """Decides whether a model is fetched from a peer that may have a part of it."""

    def __init__(self, state: EngineState) -> None:
        self.state = state
        #: The model that this learner had when it first heard of a part of a greater one, and when
        #: that was. This learner's stops don't count.
        self._own, self._since = b"", 0.0

    def may_fetch(self, now: float, beat: Beat) -> bool:
        """Whether to fetch the greater model of this beat now."""
        state = self.state
        if len(beat.reports) >= len(state.fragments):
            return True
        if self._is_part_of_another(beat):
            return False
        if rollbacks(beat.genesis) <= rollbacks(state.genesis) or self._is_all_there_is(beat):
            return True
        awake_s = state.stops.awake_s(now)
        if self._own != state.genesis:
            self._own, self._since = state.genesis, awake_s
        return awake_s >= self._since + MEETING_BEATS * state.policies.timing.beat_s

    def _is_part_of_another(self, beat: Beat) -> bool:
        """Whether a live peer shows the same model as `beat`, with more of our fragments."""
        return any(
            other.genesis == beat.genesis and len(other.reports) > len(beat.reports)
            for other in self.state.live_beats()
        )

    def _is_all_there_is(self, beat: Beat) -> bool:
        """Whether no learner that this one knows of may have more of this beat's model."""
        state = self.state
        return not state.seeds.missing and not any(_may_have_more(p, beat) for p in state.roster)


def _may_have_more(peer: Peer, beat: Beat) -> bool:
    """Whether a peer may have more fragments of the model after a rollback than this beat shows."""
    shown = peer.beat
    if shown is None or peer.suspected:
        return True
    is_behind = rollbacks(shown.genesis) < rollbacks(beat.genesis)
    return is_behind and len(shown.reports) > len(beat.reports)
