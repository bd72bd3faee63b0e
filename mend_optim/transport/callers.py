"""Notices that nobody can dial this learner, although it tells others where.

A firewall or a router may let this learner's calls out, and none in. The peers that it reaches dial
it, too, in vain. While they take its address for true, it may be chosen as a sealer, and no offer
comes. So an address that none of them gets through to is hidden: such a learner takes part like one
without `listen`.

The way in may open later, and nobody dials a learner without an address. So the address is shown
again for a few beats, now and then. One caller is enough to show it, for as long as any is there: a
machine may get another address, and a firewall another rule.
"""

from __future__ import annotations

from mend_optim.protocol.timing import Timing

#: Beats for which nobody has called, at least: peers dial a newcomer within a beat or two, and one
#: that they have refused before within 30.
BEATS = 40
#: Beats for which a hidden address is shown again: peers learn of it by one another, and dial.
TRIAL_BEATS = 8
#: Beats until the first trial. Each pause is twice as long as the one before, up to the longest.
PAUSE_BEATS, LONGEST_BEATS = 120, 1920
#: Between two looks, at most so many beats count: this learner may have been stopped meanwhile.
AT_ONCE = 2


class Callers:
    """Whether any peer dials this learner.

    Args:
        timing: Says how long nobody may do so while this learner reaches others.
    """

    def __init__(self, timing: Timing) -> None:
        self._timing = timing
        #: The control streams of peers' dialling that are open.
        self._open = 0
        #: Whether the address is shown.
        self.is_shown = True
        #: Whether it has been hidden since somebody last called.
        self.has_hidden = False
        #: When `look` was called last, and for how long nothing has changed since.
        self._looked_at = float("inf")
        self._waited_s = 0.0
        self._pause_beats = PAUSE_BEATS

    def look(self, now: float, reaches: bool) -> bool:
        """Time passed. Return whether `is_shown` has changed.

        Args:
            now: The time.
            reaches: Whether a control stream of this learner's dialling is open.
        """
        passed_s = min(max(0.0, now - self._looked_at), AT_ONCE * self._timing.beat_s)
        self._looked_at = now
        self._waited_s = self._waited_s + passed_s if reaches and not self._open else 0.0
        if self._waited_s < self._patience_s():
            return False
        if not self.is_shown:
            self._pause_beats = min(2 * self._pause_beats, LONGEST_BEATS)
        self._waited_s = 0.0
        self.has_hidden = True
        self.is_shown = not self.is_shown
        return True

    def called(self) -> bool:
        """A peer has dialled this learner. Return whether the address was hidden since one last
        did."""
        is_news = self.has_hidden
        self._open += 1
        self._pause_beats = PAUSE_BEATS
        self.has_hidden, self.is_shown = False, True
        return is_news

    def hung_up(self) -> None:
        """A control stream of a peer's dialling has ended."""
        self._open -= 1

    def _patience_s(self) -> float:
        beat_s = self._timing.beat_s
        if not self.is_shown:
            return self._pause_beats * beat_s
        if self.has_hidden:
            return TRIAL_BEATS * beat_s
        return max(self._timing.evict_after_s, BEATS * beat_s)
