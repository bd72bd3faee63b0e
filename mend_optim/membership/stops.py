"""Stops of this learner: a debugger, a paused container, a machine that was suspended.

A learner cannot see its own stop, but the clock shows it: the network loop looks at it at least
once in a beat. Meanwhile the others may have suspected this learner, and another one may have
merged the offers that it holds. So it seals nothing until it knows what the others have: until the
peers have answered a question that was asked since, or for `evict_after_s` if they don't."""

from __future__ import annotations

from mend_optim.protocol.timing import Timing


class Stops:
    """Notices the stops of this learner."""

    def __init__(self, timing: Timing) -> None:
        self._timing = timing
        #: When the network loop last looked at the clock; infinite before it has.
        self._looked_at = float("inf")
        #: When the last stop was over; `-inf`: there was none.
        self._over_at = float("-inf")
        #: The same of the first of the stops that follow one another.
        self._began_at = float("-inf")
        #: From when the present wait for answers counts; None: the peers have answered since the
        #: last stop.
        self._unanswered_since: float | None = None
        #: The seconds of all stops that the network loop has noticed, without the first
        #: `suspect_after_s` of each.
        self._sum_s = 0.0

    def look(self, now: float) -> float:
        """The network loop looks at the clock. Return for how many seconds this learner was stopped
        since it last did; 0 if it was not."""
        passed_s = now - self._looked_at
        self._unanswered_since, self._sum_s = self._wait_since(now), self.sum_s(now)
        self._began_at, self._over_at = self.began_at(now), self.last(now)
        self._looked_at = now
        return passed_s if self._is_stop(passed_s) else 0.0

    def sum_s(self, now: float) -> float:
        """The seconds of all stops, with one that is over and that the network loop has not noticed
        yet. The first `suspect_after_s` of each don't count: a learner whose loop is always late
        would be stopped all the time, and wait for ever."""
        return self._sum_s + max(0.0, now - self._looked_at - self._timing.suspect_after_s)

    def awake_s(self, now: float) -> float:
        """The time by a clock that stands still while this learner is stopped."""
        return now - self.sum_s(now)

    def last(self, now: float) -> float:
        """When the last stop was over; `-inf`: there was none. The network loop may not have looked
        since: other threads go on at the same time, and bytes that came meanwhile go first."""
        return now if self._is_stop(now - self._looked_at) else self._over_at

    def began_at(self, now: float) -> float:
        """When the first of the stops was over that follow one another; `-inf`: there was none. A
        learner whose loop is blocked again and again waits no longer for that. A stop after which
        the others have evicted this learner follows no other."""
        stopped_s, patience_s = now - self._looked_at, self._timing.evict_after_s
        follows = self._looked_at < self._over_at + patience_s and stopped_s < patience_s
        return now if self._is_stop(stopped_s) and not follows else self._began_at

    def known_at(self, now: float, answered: bool) -> float:
        """Return from when on this learner knows what the others did during its last stop. If the
        peers have answered, the next stop begins a wait of its own.

        Args:
            now: The present time.
            answered: Whether the peers have answered the last question.
        """
        over_at = self.last(now)
        # The loop asks as it looks: an answer to what was asked before the stop counts no more.
        if answered and over_at == self._over_at:
            self._unanswered_since = None
            return over_at
        since = self._wait_since(now)
        return (over_at if since is None else since) + self._timing.evict_after_s

    def _wait_since(self, now: float) -> float | None:
        """From when the present wait counts, also if a stop is over just now. Stops that follow one
        another lengthen no wait, or a learner whose loop is blocked again and again would wait for
        ever: it hears each answer after the next stop. Another stop begins a wait of its own, and
        so does one after which the others have evicted this learner."""
        since, stopped_s = self._unanswered_since, now - self._looked_at
        if not self._is_stop(stopped_s):
            return since
        patience_s = self._timing.evict_after_s
        if since is None or stopped_s >= patience_s:
            return now
        is_over = self._looked_at >= since + patience_s
        return now if is_over and self._is_stop(self._looked_at - self._over_at) else since

    def _is_stop(self, seconds: float) -> bool:
        """Whether peers suspect a learner of which they hear nothing for so long."""
        return seconds > self._timing.suspect_after_s
