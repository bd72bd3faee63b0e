"""How many inner steps this learner's rounds of each fragment take."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from statistics import median_high

from mend_optim.engine.pending import Pending
from mend_optim.protocol.lineage import PeerId

#: Rounds of a fragment that are remembered: as few as a median needs, so that news comes soon.
ROUNDS_KEPT = 3


@dataclass(slots=True)
class _Rounds:
    """The rounds of one fragment and one sealer."""

    sealer: PeerId | None
    #: The inner step from which on this learner takes that one for the sealer.
    since: int
    last: deque[int] = field(default_factory=lambda: deque(maxlen=ROUNDS_KEPT))


class RoundLatencies:
    """The latest latencies of each fragment, as long as one learner seals it."""

    def __init__(self) -> None:
        self._rounds: dict[int, _Rounds] = {}

    def add(self, p: int, sealer: PeerId, began: int, step: int) -> None:
        """An anchor is ready after this step. It has merged this learner's offer of the snapshot
        after step `began`."""
        rounds = self._rounds.get(p) or self._of(p, sealer, step)
        if rounds.sealer == sealer:  # else it was on its way when another one became the sealer
            rounds.last.append(max(1, step - max(began, rounds.since)))

    def usual(self, p: int, sealer: PeerId) -> int:
        """Return how many steps the last rounds of this sealer took, a median; 0 before the first
        one has ended, and for a learner that is not the sealer here: any may call for offers."""
        rounds = self._rounds.get(p)
        known = rounds.last if rounds and rounds.sealer == sealer else ()
        return median_high(known or (0,))

    def of(self, p: int, sealer: PeerId | None, pending: Pending | None, step: int) -> int:
        """Return how many steps the rounds of the present sealer take: the median of the last ones,
        or the age of the offer that it has not merged yet, if that is more; at least 1. 0 before
        the first round has ended.

        Args:
            p: the fragment.
            sealer: its sealer now.
            pending: this learner's offer, if there is one.
            step: the inner step that has ended last.
        """
        rounds = self._of(p, sealer, step)
        if not rounds.last:
            return 0
        age = step - max(pending.step, rounds.since) if pending else 0
        return max(median_high(rounds.last), age)

    def _of(self, p: int, sealer: PeerId | None, step: int) -> _Rounds:
        known = self._rounds.get(p)
        if known is None or known.sealer != sealer:
            known = self._rounds[p] = _Rounds(sealer, step)
        return known
