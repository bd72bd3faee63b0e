"""Goodbyes that go from learner to learner, where offers are signed.

A peer on its own link proves by its certificate that it leaves. A word about somebody else's
goodbye proves nothing by itself: it would hide a learner that trains on from those that cannot
reach it. So the leaving learner signs its goodbye, and its signature travels with every rumor of
it. Where offers are not signed, everything stays as it was told."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import lru_cache

from mend_optim.errors import PeerError
from mend_optim.protocol.lineage import PeerId
from mend_optim.protocol.messages import Beat, Goodbye, Rumor
from mend_optim.protocol.proofs import Notary, check_goodbye, goodbye_proof

#: Proofs of goodbyes that are looked at in one beat. A learner passes on no more, and checking all
#: that a beat can hold would keep the network loop busy.
CHECKED = 64


class Goodbyes:
    """Signs the goodbyes of one learner, and leaves out those of others that are not proven.

    Args:
        notary: signs in this learner's name, and checks the signatures of others; None: nothing is
            signed, and nothing is left out.
    """

    def __init__(self, notary: Notary | None) -> None:
        self._notary = notary
        # Every peer tells of the same ones, beat after beat.
        self._is_proven = lru_cache(1024)(self._check)

    def signed(self, goodbye: Goodbye) -> Goodbye:
        """This learner's goodbye, with its proof."""
        if self._notary is None:
            return goodbye
        return replace(goodbye, proof=goodbye_proof(goodbye.peer, self._notary))

    def proven(self, goodbye: Goodbye) -> Goodbye:
        """A peer's own goodbye. It counts anyway, but is passed on only with a proof."""
        if self._notary is None or self._is_proven(goodbye.peer, goodbye.proof):
            return goodbye
        return replace(goodbye, proof=b"")

    def told(self, beat: Beat, is_linked: Callable[[str], bool]) -> Beat:
        """A beat without the goodbyes that its sender cannot prove.

        Args:
            beat: the beat.
            is_linked: whether a learner of this name has a link with this one. Then its goodbye
                comes from itself.
        """
        if self._notary is None or not any(rumor.left for rumor in beat.roster):
            return beat
        return replace(beat, roster=tuple(self._believable(beat, is_linked)))

    def _believable(self, beat: Beat, is_linked: Callable[[str], bool]) -> Iterator[Rumor]:
        looked_at = 0
        for rumor in beat.roster:
            if not rumor.left:
                yield rumor
            elif rumor.proof and looked_at < CHECKED:
                looked_at += 1
                is_there = is_linked(rumor.peer.name)
                if not is_there and self._is_proven(rumor.peer, rumor.proof):
                    yield rumor

    def _check(self, peer: PeerId, proof: bytes) -> bool:
        assert self._notary is not None
        try:
            check_goodbye(peer, proof, self._notary)
        except PeerError:
            return False
        return True
