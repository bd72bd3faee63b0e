"""Which learners reach each other, as their beats tell."""

from __future__ import annotations

from mend_optim.membership.roster import Roster
from mend_optim.protocol.lineage import PeerId


def are_apart(roster: Roster, author: PeerId, sealer: PeerId) -> bool:
    """Whether a sealer that this learner reaches, and an author, do not reach each other. A sealer
    that does not even say that it reaches us does not tell whom it reaches."""
    one, other = roster.find(author), roster.find(sealer)
    if one is None or other is None or author == sealer:
        return False
    apart = author not in other.reaches and sealer not in one.reaches
    return apart and other.linked and roster.me in other.reaches
