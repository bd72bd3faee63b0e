"""The account of the work that a change of branches costs: which of this learner's merged offers
an anchor contains.

Two sealers that cannot hear each other may both merge on the same anchor. All learners end on the
greater branch. Work that only the other branch had merged is superseded: it is in no anchor any
more, and no learner trains it again. Each learner counts its own work, so all ledgers together
count everything."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping
from typing import NamedTuple

from mend_optim.protocol.lineage import Lineage, PeerId

# Offers that are remembered, at least. A change of branches goes back as far as a partition lasts.
KEPT = 1024
#: Offers that are forgotten at a time: a look at the account takes as long as a thousand of them.
AT_A_TIME = 256


class Merged(NamedTuple):
    """An offer that some anchor has merged."""

    #: The number of the same author's offer that this anchor had merged before.
    follows: int
    tokens: int


class SupersededAccount:
    """The merged offers of this learner.

    An anchor that contains an offer also contains the offer that it follows. An offer has several
    numbers if it waited on several branches, and no anchor contains it under two of them."""

    def __init__(self) -> None:
        #: By (author, seq).
        self._offers: dict[tuple[PeerId, int], Merged] = {}
        #: The keys of each offer, oldest first. Invariant: less than `KEPT + AT_A_TIME`.
        self._kept: deque[list[tuple[PeerId, int]]] = deque()
        #: Tokens of all that are kept, and of those that were superseded when they were forgotten:
        #: these stay lost.
        self._total = 0

    def add(
        self, author: PeerId, numbers: Mapping[int, int], tokens: int, lineage: Lineage
    ) -> None:
        """An offer was merged. `numbers` maps each of its numbers to the offer that it followed.
        `lineage` is the anchor's by now."""
        keys = [(author, seq) for seq in numbers]
        self._offers.update(
            {(author, seq): Merged(follows, tokens) for seq, follows in numbers.items()}
        )
        self._kept.append(keys)
        self._total += tokens
        if len(self._kept) >= KEPT + AT_A_TIME:
            before = self.superseded_tokens(lineage)
            for _ in range(AT_A_TIME):
                for key in self._kept.popleft():
                    del self._offers[key]
            self._total -= self.superseded_tokens(lineage) - before

    def superseded_tokens(self, lineage: Lineage) -> int:
        """Tokens of this learner that were merged, but are not in this anchor: it belongs to
        another branch."""
        authors = {author for author, _ in self._offers}
        return self._total - sum(
            m.tokens for author in authors for m in self._inside(author, lineage)
        )

    def _inside(self, author: PeerId, lineage: Lineage) -> Iterator[Merged]:
        newest = max(seq for who, seq in self._offers if who == author)
        # The process that wrote a checkpoint may have gone on after it. Its later offers follow
        # the offers known here.
        seq, before = min(lineage.last_merged(author), newest), newest + 1
        # The numbers must fall, or a bad `follows` would make this loop endless.
        while seq < before and (merged := self._offers.get((author, seq))):
            yield merged
            seq, before = merged.follows, seq
