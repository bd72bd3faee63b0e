"""What of an anchor is this learner's own: the account that says what a change of branches cost.

Two sealers that cannot hear each other may both merge on one anchor. Everybody ends on the greater branch, and what
only the other one had merged is superseded: it is in no anchor any more, and nobody trains it again. Each learner
counts its own, so all ledgers together count everything."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from .lineage import Lineage, PeerId

KEPT = 1024  # offers; a change of branches goes back as far as a partition lasts


class Merged(NamedTuple):
    """An offer that some anchor merged, and the offer of the same author that this anchor had merged before."""

    follows: int
    tokens: int


class Share:
    """Offers of ours that were merged, by (author, seq). An anchor that has one has the one it follows, too."""

    def __init__(self) -> None:
        self._offers: dict[tuple[PeerId, int], Merged] = {}
        self._total = 0

    def add(self, author: PeerId, seq: int, follows: int, tokens: int) -> None:
        self._offers[author, seq] = Merged(follows, tokens)
        self._total += tokens
        if len(self._offers) > KEPT:
            self._total -= self._offers.pop(next(iter(self._offers))).tokens

    def superseded_tokens(self, lineage: Lineage) -> int:
        """Tokens of ours that were merged, but not into this anchor: it belongs to another branch."""
        authors = {author for author, _ in self._offers}
        return self._total - sum(m.tokens for author in authors for m in self._inside(author, lineage))

    def _inside(self, author: PeerId, lineage: Lineage) -> Iterator[Merged]:
        last = lineage.last_merged(author)
        newest = max(seq for who, seq in self._offers if who == author)
        # The author of a checkpoint may have gone on after it, in a process of its own: with what we know behind it.
        merged = self._offers.get((author, min(last, newest)))
        while merged:
            yield merged
            merged = self._offers.get((author, merged.follows))
