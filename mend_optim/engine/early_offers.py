"""Offers on anchors that this learner is about to have.

    a seal is published here, and taken     the worker is busy with the outer step
    another learner's anchor is pulled      it has not come yet

A peer may be faster: it has that anchor, trains on, and its next offer arrives meanwhile. The offer
does not fit the present anchor, but the one to come. Its author was told that it has arrived, so it
would not offer again before three beats of this learner have not mentioned it."""

from __future__ import annotations

from mend_optim.engine.progress import Progress
from mend_optim.engine.round import replaces
from mend_optim.engine.state import EngineState
from mend_optim.protocol.lineage import PeerId
from mend_optim.protocol.messages import Offer


class EarlyOffers:
    """Keeps the newest early offer of each sender and fragment until the anchor has moved. Their
    senders are on the roster: nobody can fill the memory with those of invented ones."""

    def __init__(self, state: EngineState) -> None:
        self.state = state
        self._kept: dict[tuple[PeerId, int], Offer] = {}

    def keep(self, offer: Offer, fragment: Progress) -> None:
        """An offer does not fit the present anchor. It is kept if it is on a greater one, and this
        learner is about to have a greater one."""
        find, place = self.state.roster.find, (offer.peer, offer.fragment)
        is_behind = fragment.behind_since is not None
        comes = fragment.is_about_to_move or is_behind
        held = self._kept.get(place)
        is_newer = held is None or replaces(offer, held)
        if comes and is_newer and find(offer.peer) and offer.key > fragment.lineage.key:
            self._kept = {place: kept for place, kept in self._kept.items() if find(place[0])}
            self._kept[place] = offer

    def take(self, p: int) -> list[Offer]:
        """Return the offers that are kept for fragment `p`, and forget them."""
        places = [place for place in self._kept if place[1] == p]
        return [self._kept.pop(place) for place in places]
