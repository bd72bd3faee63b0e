"""The sealer that a fragment had before the roster changed.

    sealer   a           │ b               c has come, and fragments change hands
    anchors  3 ──seal──▶ │ 4               a sealed just before it heard of that

The others send their offers to b from then on. So the streams close down which that seal was to
come. Its anchor is the word of one learner, which nobody takes at once: b would seal nothing until
it is stuck. So a learner takes one more seal of the former sealer, on the anchor that it had itself
when the sealer changed, and asks for it. It asks that sealer before the others that show the anchor
by then: they have no seal, and would hand the whole anchor over."""

from __future__ import annotations

from typing import NamedTuple

from mend_optim.protocol.lineage import PeerId


class _Former(NamedTuple):
    sealer: PeerId
    #: The digest of this learner's anchor when another one took its place.
    anchor: bytes


class FormerSealers:
    """The last sealer of each fragment, and the one before it."""

    def __init__(self) -> None:
        self._present: dict[int, PeerId] = {}
        self._former: dict[int, _Former] = {}

    def look(self, p: int, sealer: PeerId | None, anchor: bytes) -> None:
        """By the roster, that is the sealer of fragment `p` now, and by its digest, that is this
        learner's anchor."""
        present = self._present.get(p)
        if sealer is None or sealer == present:
            return
        self._present[p] = sealer
        if present is not None:
            self._former[p] = _Former(present, anchor)

    def may_have_sealed(self, p: int, peer: PeerId, anchor: bytes) -> bool:
        """Whether a peer was the sealer when this learner came to the anchor with this digest, and
        may have sealed once more on it."""
        return self.that_may_have_sealed(p, anchor) == peer

    def that_may_have_sealed(self, p: int, anchor: bytes) -> PeerId | None:
        """The former sealer that may have sealed once more on this anchor."""
        former = self._former.get(p)
        return former.sealer if former and former.anchor == anchor else None
