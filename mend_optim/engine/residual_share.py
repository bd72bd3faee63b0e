"""The weight of the residual of an encoding: no other module decides it.

With some codecs (PowerSGD), the *residual* of an encoding, which is the part that it lost, stays in
the learner's weights. At rest the learner sends that residual, too: such an offer is a *flush*. A
residual belongs to the work that left it, so it has to weigh as much as that work did. The share of
a learner is therefore the (tokens, steps) of its last merged offer, and these rules follow:

    1. After a round with the learner, its share is what its offer brought. A flush that was itself
       weighed by the share leaves the share as it is.
    2. After a round without the learner, it has no share if it holds no residual and no offer is on
       its way: it lost nothing in that round.
    3. A flush claims the share if that is more than the work it travels with. An empty offer claims
       the share wherever residuals stay in weights, because an empty offer has its part in the
       mean.
    4. The sealer weighs an offer by its claim if the offer has steps, or if nobody in the round
       brings any tokens. An empty offer has no claim if its sender missed the last round.
    5. The seal tells the claims that it weighs by, so that all learners can compute its
       weights."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from mend_optim.protocol.lineage import Entry
from mend_optim.protocol.messages import Offer

Share = tuple[int, int]
"""(tokens, steps)"""

NO_SHARE: Share = (0, 0)


@dataclass(slots=True)
class Residual:
    """The residual of this learner's encodings of one fragment. Only its methods write it."""

    #: The (tokens, steps) that the residual weighs by.
    share: Share = NO_SHARE
    #: Whether it is in the weights, and in no offer.
    unsent: bool = False

    def claim(self, work: Share, flush: bool) -> Share:
        """Rule 3: an offer of this work is made. Returns the share that it claims."""
        claims = flush and self.unsent and self.share > work
        if flush:
            self.unsent = False
        return self.share if claims else NO_SHARE

    def withdrawn(self, flush: bool) -> None:
        """That offer did not come about."""
        self.unsent = self.unsent or flush

    def merged(self, brought: Share, claimed: Share, flush: bool) -> None:
        """Rule 1: a round has merged that offer. Every encoding but a flush leaves a residual."""
        self.unsent = not flush
        if not any(claimed):
            self.share = brought

    def missed_round(self, pending: bool) -> None:
        """Rule 2: a round has gone on without this learner, whose offer may be on its way."""
        if not (self.unsent or pending):
            self.share = NO_SHARE

    def forget(self) -> None:
        """The weights hold no residual any more: an anchor has it, or it is given up."""
        self.unsent = False


def is_all_residual(offers: Sequence[Offer]) -> bool:
    """Whether nobody in a round brings more than the residuals of encodings."""
    return not any(offer.tokens for offer in offers)


def weighed(offer: Offer, all_residual: bool) -> Entry:
    """Rule 4: the entry by which an offer is weighed; `all_residual`: nobody brings any tokens."""
    if any(offer.again) and (all_residual or offer.steps > 0):
        tokens, steps = offer.again
        return offer.entry._replace(tokens=tokens, steps=steps)
    return offer.entry


def weighed_entries(offers: Sequence[Offer], base_tokens: int) -> list[Entry]:
    """Rule 4 for a round on an anchor of so many tokens. A sender that had an older anchor did not
    take part in the last round."""
    alone = is_all_residual(offers)
    return [weighed(offer, alone and offer.key.tokens >= base_tokens) for offer in offers]


def shares_of(members: Sequence[Entry], entries: Sequence[Entry]) -> tuple[Share, ...]:
    """Rule 5: for each member, the share by which its entry is weighed, or `NO_SHARE`; empty if no
    member is weighed by one."""
    shares = tuple(
        NO_SHARE if entry == member else (entry.tokens, entry.steps)
        for member, entry in zip(members, entries, strict=True)
    )
    return shares if any(map(any, shares)) else ()


def entries_by(members: Sequence[Entry], shares: Sequence[Share]) -> list[Entry]:
    """The entries by which the members of a seal are weighed: the inverse of `shares_of`."""
    if not shares:
        return list(members)
    return [
        member._replace(tokens=share[0], steps=share[1]) if any(share) else member
        for member, share in zip(members, shares, strict=True)
    ]
