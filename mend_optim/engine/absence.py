"""How much of its work a learner offers after it has missed rounds.

A round weighs its members by the work that they bring to it. A learner that has missed rounds
brings the work of many to one, so it outweighs all others there. And its work was done beside
theirs, not after it: the first things that all learn, such as the frequent letters, are in the
anchor by then. Merged in full, they would be learned twice, and the anchor would overshoot. The
learner therefore offers the share

    s = (c + t) / (c + (n + 1) t)

of its delta. n rounds were missed, in which others brought t tokens each, on average, and c are its
own tokens. A further t is expected in the round that merges the offer. There the offer weighs
c / (c + t). So s makes of this c / (c + (n + 1) t), which is what the work would have weighed in
one round with all that was done beside it. That holds where batches are equal: lineages count
tokens, and nothing of batches.

Only rounds beside which the learner has worked count: a learner that comes later, or rests, works
on the anchor that they made. The rest of the delta is in no offer. With the merge it becomes a part
of the learner's disagreement (`late_adoption.py`), so the learner gives it up then, or soon
after."""

from __future__ import annotations

from dataclasses import dataclass

from mend_optim.protocol.lineage import Lineage
from mend_optim.protocol.peer_limits import COUNTER_LIMIT

#: No offer has less of its delta, whatever a peer says of the rounds that were missed.
LEAST_SHARE = 1e-6


@dataclass(frozen=True, slots=True)
class Absence:
    """The rounds that a learner has missed while it did the work of one offer.

    Example:
        >>> Absence(rounds=9, tokens=18).share(tokens=12)
        0.4375
    """

    rounds: int = 0
    #: Tokens that others brought to these rounds.
    tokens: int = 0

    def __add__(self, other: Absence) -> Absence:
        return Absence(
            min(self.rounds + other.rounds, COUNTER_LIMIT),
            min(self.tokens + other.tokens, COUNTER_LIMIT),
        )

    def share(self, tokens: int) -> float:
        """s, in [`LEAST_SHARE`, 1], of an offer with so many tokens; 1 if no round was missed."""
        if not self.rounds or not self.tokens:
            return 1.0
        per_round = self.tokens / self.rounds
        share = (tokens + per_round) / (tokens + per_round + self.tokens)
        return max(LEAST_SHARE, share)


#: No round was missed.
PRESENT = Absence()


def missed(old: Lineage, new: Lineage, own: int | None) -> Absence:
    """The rounds between two anchors in which a learner took no part. After a partition the new
    anchor may be of another branch. Then they are estimated: by how many more rounds and tokens it
    has.

    Args:
        old: the anchor that the learner had.
        new: the anchor that it has now.
        own: the tokens of its offer, if one of these rounds merged it; else None. Others are taken
            to have brought as many tokens to that round as to any other.
    """
    rounds, tokens = new.version - old.version, max(0, new.tokens - old.tokens - (own or 0))
    others = rounds if own is None else rounds - 1
    return Absence(others, tokens * others // rounds) if others > 0 else PRESENT
