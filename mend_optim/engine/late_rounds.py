"""Whether rounds take so many inner steps that averaging is weak (docs/learning.md)."""

from __future__ import annotations

from mend_optim.engine.ledger import Event
from mend_optim.engine.period import LAST, AutoPeriod, Latency, is_steady
from mend_optim.engine.schedule import Schedule

#: Rounds are late if they take so many inner steps.
LATE = 20
_TEXT = (
    "rounds take {} inner steps, in a period of {}: the later an anchor comes, the less learners "
    "gain from one another; a larger batch per step, a codec such as 'int8', fewer and faster links"
    " between learners, or a smaller batch where a step takes much longer make rounds shorter"
)


class LateRounds:
    """Tells the user once that rounds are late.

    Args:
        auto: the limits of an automatic period; None if it is fixed.
    """

    def __init__(self, auto: AutoPeriod | None) -> None:
        self._auto = auto
        self._is_told = False

    def look(self, latency: Latency, schedule: Schedule) -> Event | None:
        """A round was measured. Returns what to tell the user, if rounds are late: neither while a
        run begins, nor while the period changes. Rounds may take less time with the next period, or
        once all have compiled their models."""
        steps, period = latency.median, schedule.sync_every
        changes = self._auto is not None and not is_steady(period, steps)
        begins = latency.rounds < LAST * schedule.fragments
        if self._is_told or changes or begins or steps < LATE:
            return None
        self._is_told = True
        facts = {"latency": steps, "sync_every": period}
        return Event("late", _TEXT.format(steps, period), facts)
