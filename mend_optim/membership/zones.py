"""Zones: groups of learners that are near one another, as their users say. The offers of a zone go
through one of its learners, its *relay*, to a sealer in another zone, and one seal comes back.

    zone "b"                                zone "a"
    x ──offer──▶ ┌───────┐ ──one of x, y and r─────▶ ┌────────┐
    y ──offer──▶ │   r   │                           │ sealer │
      ◀──seal─── └───────┘ ◀───────one seal───────── └────────┘

The relay is chosen as sealers are: with the same roster, all learners of a zone agree without a
word, and each of them is the relay of about as many fragments. If they disagree, or a relay dies,
nothing is lost: an offer that has gone astray is sent again.

A zone is a learner's own word. So its learners trust one another: without signed offers, a relay
could pass on what no other learner of its zone has made."""

from __future__ import annotations

from collections.abc import Collection

from mend_optim.membership.peer import Peer
from mend_optim.membership.reach import stay_apart
from mend_optim.membership.roster import Roster
from mend_optim.membership.sealers import choose
from mend_optim.protocol.lineage import PeerId


def zone_of(roster: Roster, id: PeerId) -> str:
    """Return the zone of a learner; empty if it has none, or is not known."""
    if id == roster.me:
        return roster.zone
    peer = roster.find(id)
    return peer.beat.zone if peer and peer.beat else ""


def are_neighbours(roster: Roster, id: PeerId, other: PeerId) -> bool:
    """Return whether two learners are in one zone."""
    zone = zone_of(roster, id)
    return zone != "" and zone == zone_of(roster, other)


def first_hop(
    roster: Roster, fragment: int, to: PeerId, without: Collection[PeerId] = ()
) -> PeerId:
    """Return the first learner on an offer's way from this one to a sealer: a go-between, if this
    learner does not reach it; the relay of its zone, which it may be itself; or the sealer, if they
    are in one zone, or if nobody can relay.

    Args:
        roster: This learner's.
        fragment: The fragment.
        to: The sealer.
        without: Peers that must not relay.
    """
    between = roster.go_betweens.choose(fragment, to, without, roster.zone)
    if between:
        return between
    if not roster.zone or to == roster.me or are_neighbours(roster, roster.me, to):
        return to
    able = [p for p in roster if p.id not in without and _can_relay(roster, p, fragment, to)]
    ids = [peer.id for peer in able] + ([roster.me] if roster.address else [])
    return choose(fragment, ids, roster.declines_to_seal) or to


def _can_relay(roster: Roster, peer: Peer, fragment: int, to: PeerId) -> bool:
    is_here = are_neighbours(roster, roster.me, peer.id) and peer.has(fragment)
    is_able = bool(peer.address) and peer.training and not peer.suspected
    return is_here and is_able and not stay_apart(roster, peer.id, to)
