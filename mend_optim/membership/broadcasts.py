"""This learner's beats to all: which peers get the next one, and how many of them one may miss."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from mend_optim.protocol.lineage import PeerId

#: Peers that one beat is sent to at most.
FANOUT = 16
#: Beats of this learner in which a peer may show no news of it before it is deaf. In a big roster,
#: where not every beat goes to everyone, up to twice as many. Silence makes a suspect after half as
#: long.
DEAF = 6


class Broadcasts:
    """The counts of this learner's last beats to all."""

    def __init__(self) -> None:
        #: Ascending; of a burst, the first alone.
        self._counts: deque[int] = deque([0], maxlen=2 * DEAF)
        #: The end of the present burst.
        self._next_at = float("-inf")

    @property
    def newest(self) -> int:
        """The count of the last one."""
        return self._counts[-1]

    def sent(self, now: float, count: int, beat_s: float) -> None:
        """Take note of one. Of beats that follow one another at once, as at a start of many
        learners, the first counts: no peer can have heard of all of them."""
        if now >= self._next_at:
            self._next_at = now + beat_s
            self._counts.append(count)

    def makes_deaf(self, learned_at: int, size: int) -> bool:
        """Whether a peer has missed so many since this one that it hears nothing, in a roster of so
        many learners."""
        patience = min(DEAF * (1 + size // FANOUT), 2 * DEAF)
        return sum(count > learned_at for count in self._counts) >= patience


def audience(everyone: Sequence[PeerId], count: int) -> list[PeerId]:
    """Return those of the peers that beat number `count` goes to: all of them, or of many a window
    of `FANOUT`, which moves on with every beat."""
    if len(everyone) <= FANOUT:
        return list(everyone)
    start = count * FANOUT % len(everyone)
    return [*everyone, *everyone][start : start + FANOUT]
