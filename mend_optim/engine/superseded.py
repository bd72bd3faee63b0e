"""What of an anchor is this learner's own: the account that says what a change of branches cost.

Two sealers that cannot hear each other may both merge on one anchor. Everybody ends on the greater
branch, and what only the other one had merged is superseded: it is in no anchor any more, and
nobody trains it again. Each learner counts its own, so all ledgers together count everything."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping
from typing import NamedTuple

from mend_optim.protocol.lineage import Lineage, PeerId

KEPT = 1024  # offers; a change of branches goes back as far as a partition lasts


class Merged(NamedTuple):
    """An offer that some anchor merged, and the offer of the same author that this anchor had
    merged before."""

    follows: int
    tokens: int


class SupersededAccount:
    """Offers of ours that were merged, by (author, seq). An anchor that has one has the one it
    follows, too. An offer has several numbers if it waited on several branches, and no anchor has
    it under two of them."""

    def __init__(self) -> None:
        self._offers: dict[tuple[PeerId, int], Merged] = {}
        self._kept: deque[list[tuple[PeerId, int]]] = deque()
        self._total = 0

    def add(self, author: PeerId, numbers: Mapping[int, int], tokens: int) -> None:
        """An offer was merged. `numbers`: those it had, and which offer it followed under each."""
        keys = [(author, seq) for seq in numbers]
        self._offers.update(
            {(author, seq): Merged(follows, tokens) for seq, follows in numbers.items()}
        )
        self._kept.append(keys)
        self._total += tokens
        if len(self._kept) > KEPT:
            oldest = [self._offers.pop(key) for key in self._kept.popleft()]
            self._total -= oldest[0].tokens

    def superseded_tokens(self, lineage: Lineage) -> int:
        """Tokens of ours that were merged, but not into this anchor: it belongs to another
        branch."""
        authors = {author for author, _ in self._offers}
        return self._total - sum(
            m.tokens for author in authors for m in self._inside(author, lineage)
        )

    def _inside(self, author: PeerId, lineage: Lineage) -> Iterator[Merged]:
        newest = max(seq for who, seq in self._offers if who == author)
        # The author of a checkpoint may have gone on after it, in a process of its own: with what
        # we know behind it.
        seq, before = min(lineage.last_merged(author), newest), newest + 1
        # falling: it ends, whatever was added
        while seq < before and (merged := self._offers.get((author, seq))):
            yield merged
            seq, before = merged.follows, seq
