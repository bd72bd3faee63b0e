"""Which learners reach each other, as their beats tell."""

from __future__ import annotations

from collections.abc import Iterable

from mend_optim.membership.roster import Roster
from mend_optim.protocol.lineage import PeerId

#: Beats after which two learners that this one hears should have met, if they reach each other.
BEATS = 3


def are_apart(roster: Roster, author: PeerId, sealer: PeerId) -> bool:
    """Whether a sealer that this learner reaches, and an author, do not reach each other. A sealer
    that does not even say that it reaches us does not tell whom it reaches."""
    one, other = roster.find(author), roster.find(sealer)
    if one is None or other is None or author == sealer:
        return False
    apart = author not in other.reaches and sealer not in one.reaches
    return apart and other.linked and roster.me in other.reaches


def is_far_behind(roster: Roster, giver: PeerId, sealer: PeerId, hop: PeerId) -> bool:
    """Whether the offers that a peer gives to this learner get no further by themselves: this one
    does not reach the sealer, and has a go-between as the next hop, and the giver reaches neither
    of the two."""
    one = roster.find(giver)
    if one is None or not one.linked or sealer == hop or giver in (sealer, hop):
        return False
    return sealer not in one.reaches and hop not in one.reaches


def connected(
    roster: Roster, fragment: int, authors: Iterable[PeerId], sealer: PeerId
) -> set[PeerId]:
    """Those authors whose offers for a fragment come to the sealer by this learner, and seals come
    back: it reaches the sealer, or a go-between to it, and they reach none of these."""
    hop = roster.go_betweens.choose(fragment, sealer, zone=roster.zone)
    if hop is None:
        return {author for author in authors if are_apart(roster, author, sealer)}
    return {author for author in authors if is_far_behind(roster, author, sealer, hop)}


def stay_apart(roster: Roster, one: PeerId, other: PeerId) -> bool:
    """Whether `are_apart` holds of two learners that have had the time to meet."""
    peers = [peer for peer in map(roster.find, (one, other)) if peer]
    known_s = min((peer.heard_at - peer.met_at for peer in peers), default=0.0)
    return known_s >= BEATS * roster.timing.beat_s and are_apart(roster, one, other)
