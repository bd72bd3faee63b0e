"""How much of its work a learner offers that has missed rounds.

A round weighs its members by the tokens that they bring to it. A learner that has missed rounds
brings the work of many to one, so it outweighs all others there. And its work was done beside
theirs, not after it: what all learn first, such as the frequent letters, is in the anchor by then.
Merged in full, it would be learned twice, and the anchor overshoots. The learner therefore offers
the share

    s = (c + t) / (c + (n + 1) t)

of its delta. n rounds were missed, in which others brought t tokens each, on average, and c are its
own tokens. A further t is expected in the round that merges the offer. There the offer weighs
c / (c + t). So s makes of this c / (c + (n + 1) t), which is what the work would have weighed in
one round with all that was done beside it.

The rest of the delta is in no offer. With the merge it becomes a part of the learner's disagreement
(`late_adoption.py`), so the learner gives it up then, or soon after."""

from __future__ import annotations

from dataclasses import dataclass

from mend_optim.protocol.lineage import Lineage


@dataclass(frozen=True, slots=True)
class Absence:
    """The rounds that a learner has missed since the last snapshot of a fragment.

    Example:
        >>> Absence(rounds=9, tokens=18).share(tokens=12)
        0.4375
    """

    rounds: int = 0
    #: Those that others brought to these rounds.
    tokens: int = 0

    def __add__(self, other: Absence) -> Absence:
        return Absence(self.rounds + other.rounds, self.tokens + other.tokens)

    def share(self, tokens: int) -> float:
        """s, in (0, 1], of an offer with so many tokens; 1 if no round was missed."""
        if not self.rounds or not self.tokens:
            return 1.0
        per_round = self.tokens / self.rounds
        return (tokens + per_round) / (tokens + per_round + self.tokens)


#: No round was missed.
PRESENT = Absence()


def missed(old: Lineage, new: Lineage, own: int | None) -> Absence:
    """The rounds between two anchors of one branch in which a learner took no part.

    Args:
        old: the anchor that the learner had.
        new: the anchor that it has now.
        own: the tokens of its offer, if one of these rounds merged it; else None. How many others
            brought to that round is not known: as many as to any other.
    """
    rounds, tokens = new.version - old.version, max(0, new.tokens - old.tokens - (own or 0))
    others = rounds if own is None else rounds - 1
    return Absence(others, tokens * others // rounds) if others > 0 else PRESENT
