"""Whether the training thread of this learner stands still: it evaluates, or it will never step
again, because its loop has ended and nobody has closed the learner.

An idle learner answers calls as one at rest does: with its pending offer, or with an empty one. So
rounds wait for no more than its answer, and it still counts for the quorum. What it has trained
since its last offer stays in its weights. With its next step it takes part as before."""

from __future__ import annotations

from mend_optim.engine.ledger import Event
from mend_optim.engine.policies import Policies
from mend_optim.engine.state import EngineState

#: A learner is not idle as long as this many of its inner steps take.
PAUSE_STEPS = 5
TEXT = (
    "no step for {for_s:.0f} s: rounds go on without this learner's work until it steps again; "
    "close() the optimizer if its training has ended"
)


def patience_s(policies: Policies, step_s: float) -> float:
    """How long a training loop may pause, in seconds: as long as a silent peer is kept on the
    roster, as a round waits in vain, and as some of its steps take."""
    return max(policies.timing.evict_after_s, policies.grace.max_s, PAUSE_STEPS * step_s)


class Idleness:
    """Looks at the step count of this learner with every beat."""

    def __init__(self, state: EngineState) -> None:
        self.state = state
        #: The step count at the last look, and when it was first seen. This learner's stops don't
        #: count.
        self._step = -1
        self._since = 0.0
        #: The step count at which the learner became idle; -1 if it never did.
        self._idle_at = -1

    @property
    def idle(self) -> bool:
        """Whether there was no step for long. False as soon as there is one."""
        return self._idle_at == self.state.totals.step

    def look(self, now: float) -> None:
        """Time passed. The learner is told once in each pause, unless it asked for the rest."""
        state = self.state
        awake_s = state.stops.awake_s(now)
        if not state.joined or state.totals.step != self._step:
            self._step = state.totals.step
            self._since = awake_s
            return
        for_s = awake_s - self._since
        if self.idle or for_s < patience_s(state.policies, state.step_s):
            return
        self._idle_at = self._step
        if not state.resting and not state.alone:
            state.emit(Event("idle", TEXT.format(for_s=for_s), {"for_s": for_s}))
