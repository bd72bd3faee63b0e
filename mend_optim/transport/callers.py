"""Notices that nobody can dial this learner, although it tells others where.

A firewall or a router may let this learner's calls out, and none in. The peers that it reaches dial
it, too, in vain. While they take its address for true, it may be chosen as a sealer, and no offer
comes. So an address that none of them gets through to is shown no more: such a learner takes part
like one without `listen`.

One caller is enough to keep the address. So of two learners of which one has dialled the other, at
least one keeps its own, and somebody can seal.
"""

from __future__ import annotations

from mend_optim.protocol.timing import Timing

#: Beats for which nobody has called, at least: peers dial a newcomer within a beat or two.
BEATS = 20
#: Between two looks, at most so many beats count: this learner may have been stopped meanwhile.
AT_ONCE = 2


class Callers:
    """Whether any peer has dialled this learner.

    Args:
        timing: Says how long nobody may have done so while this learner reaches others.
    """

    def __init__(self, timing: Timing) -> None:
        self._timing = timing
        #: Whether a peer has opened a control stream here. It turns true once, for good.
        self.came = False
        #: Whether the address was given up.
        self.gave_up = False
        #: When `look` was called last, and for how long this learner has reached others.
        self._looked_at = float("inf")
        self._waited_s = 0.0

    def look(self, now: float, reaches: bool) -> bool:
        """Time passed. Return whether to give the address up now.

        Args:
            now: The time.
            reaches: Whether a control stream of this learner's dialling is open.
        """
        passed_s = min(max(0.0, now - self._looked_at), AT_ONCE * self._timing.beat_s)
        self._looked_at = now
        self._waited_s = self._waited_s + passed_s if reaches else 0.0
        patience_s = max(self._timing.evict_after_s, BEATS * self._timing.beat_s)
        if self.came or self.gave_up or self._waited_s < patience_s:
            return False
        self.gave_up = True
        return True

    def called(self) -> bool:
        """A peer has dialled this learner. Return whether its address had been given up."""
        had_given_up, self.gave_up, self.came = self.gave_up, False, True
        return had_given_up
