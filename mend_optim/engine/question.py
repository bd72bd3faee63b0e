"""The question whether anybody has a greater anchor, and the peers that have answered it.

A learner asks it at rest, and after a stop. It travels with this learner's beats, under a number,
and a beat with that number answers it."""

from __future__ import annotations

from mend_optim.membership.roster import Roster
from mend_optim.membership.stops import Stops
from mend_optim.protocol.lineage import PeerId


class Question:
    """This learner's last question, and its answers."""

    def __init__(self, roster: Roster, stops: Stops) -> None:
        self._roster = roster
        self._stops = stops
        #: 0 before the first one.
        self.number = 0
        self.answered: set[PeerId] = set()

    def begin(self) -> None:
        """It is asked anew, with the next beats."""
        self.number, self.answered = self.number + 1, set()

    def heard(self, peer: PeerId, number: int) -> None:
        """A beat answers the question of this number; 0: none. A peer that was never asked has not
        answered."""
        if 0 < number == self.number:
            self.answered.add(peer)

    @property
    def awaited(self) -> set[PeerId]:
        """The live peers that this learner has a link with, and that have not answered yet."""
        near = {peer.id for peer in self._roster if peer.linked and not peer.suspected}
        return near - self.answered

    @property
    def is_answered(self) -> bool:
        """Whether the live peers that this learner has a link with have all answered."""
        return not self.awaited

    def knows_others_at(self, now: float) -> float:
        """From when on this learner knows what the others did while it was stopped last."""
        return self._stops.known_at(now, bool(self.answered) and self.is_answered)
