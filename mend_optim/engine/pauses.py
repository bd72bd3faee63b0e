"""Which peers have taken no step since this learner asked them for their weights.

A learner hands its weights over with its next step. If it begins to evaluate just then, they come
once that is over."""

from __future__ import annotations

from dataclasses import dataclass

from mend_optim.engine.idleness import PAUSE_STEPS
from mend_optim.protocol.lineage import PeerId
from mend_optim.protocol.messages import Beat

#: Beats until a peer has surely been asked, since it was first heard or has ended a pause. It may
#: have taken its steps of this time before it was asked.
ASKED_AFTER = 4


@dataclass(slots=True)
class _Steps:
    """How a peer steps."""

    #: Its steps when it was asked.
    when_asked: int
    #: When it has surely been asked.
    asked_at: float
    #: Its steps by its last beat.
    last: int
    #: When that number was first heard.
    since: float


class Pauses:
    """The steps of peers since they were asked.

    Args:
        beat_s: Seconds between two beats.
    """

    def __init__(self, beat_s: float) -> None:
        self._patience_s = ASKED_AFTER * beat_s
        self._steps: dict[PeerId, _Steps] = {}

    def heard(self, now: float, beat: Beat) -> bool:
        """Take note of a peer's steps. Returns whether it has taken one after a pause."""
        known = self._steps.get(beat.peer)
        if known is None:
            asked_at = now + self._patience_s
            self._steps[beat.peer] = _Steps(beat.step, asked_at, beat.step, now)
            return False
        if beat.step == known.last:
            return False
        pause_s = max(self._patience_s, PAUSE_STEPS * beat.seconds_per_step)
        is_over = now - known.since >= pause_s
        if is_over:
            known.asked_at = now + self._patience_s  # it is asked again
        if now <= known.asked_at:
            known.when_asked = beat.step
        known.last, known.since = beat.step, now
        return is_over

    def lasts(self, beat: Beat) -> bool:
        """Whether the peer of this last beat has taken no step since it was asked."""
        known = self._steps.get(beat.peer)
        return known is None or beat.step == known.when_asked
