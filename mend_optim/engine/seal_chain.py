"""The last seals of one fragment that this learner made, or may pass on. Each of them is on the
anchor that the one before it led to.

    anchor 3 ──seal──▶ anchor 4 ──seal──▶ anchor 5, ours

A peer that missed two seals would have to take our anchor whole, and may not take our word for it:
see `engine/majority.py`. A seal on its own anchor it can check. So it gets one seal after the
other. A seal is as large as what was merged. So only the last few are kept, and with each new one
those are let go that all live peers have gone past."""

from __future__ import annotations

from collections.abc import Collection

from mend_optim.protocol.lineage import Key, PeerId
from mend_optim.protocol.messages import Seal

#: Seals of a fragment that are kept at most.
SEALS = 3


class SealChain:
    """The last seals of a fragment. Invariant: the last one leads to our anchor, or is about to."""

    def __init__(self) -> None:
        #: Oldest first.
        self._seals: list[Seal] = []

    @property
    def last(self) -> Seal | None:
        return self._seals[-1] if self._seals else None

    @property
    def sealers(self) -> frozenset[PeerId]:
        return frozenset(seal.sealer for seal in self._seals)

    def add(self, seal: Seal, shown: Collection[Key]) -> None:
        """A seal was made, or taken. `shown` are the anchors of live peers, as far as we know."""
        if self.last and self.last.key.digest != seal.base:
            self._seals.clear()
        least = min(shown, default=seal.key)
        self._seals = [*(kept for kept in self._seals if kept.key > least), seal][-SEALS:]

    def let_go(self, shown: Collection[Key]) -> None:
        """Keep only what leads on from these anchors."""
        least = min(shown, default=None)
        self._seals = [kept for kept in self._seals if least is not None and kept.key > least]

    def moved(self, key: Key) -> None:
        """Our anchor is this one now. If it did not come by our last seal, the chain does not lead
        to it."""
        if self.last and self.last.key != key:
            self._seals.clear()

    def refused(self, key: Key) -> None:
        """The worker has refused the seal that leads to this anchor. Those before it lead to
        ours."""
        if self.last and self.last.key == key:
            self._seals.pop()

    def on(self, base: bytes, own: Key) -> Seal | None:
        """The seal on the anchor with this digest, if it is on the way to `own`, our anchor."""
        if self.last is None or self.last.key != own:
            return None
        return next((seal for seal in self._seals if seal.base == base), None)

    def with_offer(self, author: PeerId, seq: int) -> Seal | None:
        """The seal that has merged an offer."""
        return next((seal for seal in self._seals if seal.place(author, seq) is not None), None)
