"""Learners that declined to seal until lately. The seals that others made in their place may still
be on their way, or be made at this moment by a learner that has not heard of it yet."""

from __future__ import annotations

from collections.abc import Callable

from mend_optim.membership.peer import Peer
from mend_optim.protocol.lineage import PeerId
from mend_optim.protocol.messages import Beat, Rumor

#: Seconds after a learner seals again in which a seal of its substitute may come.
RESUMED_S = 600.0


class Resumed:
    """The learners that seal again, for a while."""

    def __init__(self) -> None:
        self._until: dict[PeerId, float] = {}

    def add(self, now: float, id: PeerId) -> None:
        """A learner, perhaps this one, declines no more."""
        self._until[id] = now + RESUMED_S

    def hear(self, now: float, peer: Peer | None, word: Beat | Rumor) -> None:
        """A peer, as it was known before, tells this of itself. Or others tell it, which counts if
        this learner has not heard the peer.

        A newcomer that has joined is none of them: all of a new run join at one time, and each of
        them would count as the substitute of all others. See `engine/former_sealers.py`."""
        if peer is None or peer.id != word.peer or not peer.is_weak or word.declines:
            return
        if isinstance(word, Beat) or not peer.heard:
            self.add(now, peer.id)

    def besides(self, id: PeerId, declines: Callable[[PeerId], bool]) -> Callable[[PeerId], bool]:
        """Return whether a learner may have left its place to another one, of this id: it declines,
        or did until lately."""
        return lambda other: other != id and (other in self._until or declines(other))

    def expire(self, now: float, is_here: Callable[[PeerId], bool]) -> None:
        """Forget those that have sealed for long enough, and those that are not here any more."""
        kept = ((id, until) for id, until in self._until.items() if now < until and is_here(id))
        self._until = dict(kept)
