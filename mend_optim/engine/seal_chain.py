"""The last seals of one fragment that this learner made, or may pass on. Each of them is on the
anchor that the one before it led to.

    anchor 3 ──seal──▶ anchor 4 ──seal──▶ anchor 5, ours

A peer that missed two seals would have to take our anchor whole, and may not take our word for it:
see `engine/majority.py`. A seal on its own anchor it can check. So it gets one seal after the
other, and if they are compressed, they are fewer bytes (`engine/seal_by_seal.py`). A seal is as
large as what was merged. So only the last few are kept: no more bytes than the weights of the
anchor have, but `SEALS` in any case. With each new one those are let go that all live peers have
gone past."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from mend_optim.protocol.lineage import Key, PeerId
from mend_optim.protocol.messages import Seal, nbytes

#: Seals of a fragment that are kept, however large they are.
SEALS = 3
#: Seals of a fragment that are kept at most, however small they are. A learner takes an outer step
#: for each.
MOST_SEALS = 16
#: Bytes of a weight in an anchor.
WEIGHT_BYTES = 4


def cost(seal: Seal) -> float:
    """Return the bytes of a seal over those of the weights of its anchor; 0 if it has none."""
    weights = max((packet.numel for packet in seal.sections.values()), default=0)
    return nbytes(seal.sections) / (WEIGHT_BYTES * weights) if weights else 0.0


def newest(seals: Sequence[Seal]) -> list[Seal]:
    """Return those of a chain that are kept for their number and size: a whole anchor would be
    fewer bytes than more of them."""
    count, total = 0, 0.0
    for seal in reversed(seals[-MOST_SEALS:]):
        total += cost(seal)
        if total > 1 and count >= SEALS:
            break
        count += 1
    return list(seals[len(seals) - count :])


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
        self._seals = newest([*(kept for kept in self._seals if kept.key > least), seal])

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
