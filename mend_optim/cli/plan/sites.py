"""Packets of a sync of the whole model, on the links of learners and on those between sites.

The unit is the *packet*: an offer of the whole model, or a merged delta of it, which are as large.
Learners of one site are in one zone (`membership/zones.py`), or in none, to compare:

    zone=    offers of a site cross      seals of another site's anchor cross
    ───────  ──────────────────────      ────────────────────────────────────
    set      as one, or each by itself   once, to the relay
    not set  each by itself              once for each learner

A relay joins the offers of its zone where nothing is lost by that (`engine/joint_offers.py`). All
functions are told whether it does so, `joined`.

Sealers and relays are chosen by hashes of names, which a plan does not know. All learners seal as
many fragments, but for one. So a sum between sites is the mean over all names, and it is exact
where the fragments are a multiple of the learners. The busiest link is one that no names exceed."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Crossing:
    """Packets that one site sends to the others, and receives from them."""

    sent: float
    received: float


def crossing(sites: Sequence[int], place: int, *, zoned: bool, joined: bool = False) -> Crossing:
    """The packets that cross at one site, as a mean over all names.

    Args:
        sites: how many learners each site has.
        place: the site's index.
        zoned: whether the sites are zones.
        joined: whether relays join the offers of their zones.
    """
    learners, inside = sum(sites), sites[place]
    others, outside = len(sites) - 1, learners - inside
    seals = inside / learners  # the share of the fragments it seals
    receivers, takers = (others, 1) if zoned else (outside, inside)
    return Crossing(
        sent=(1 - seals) * _offers(inside, 1, joined) + seals * receivers,
        received=seals * _offers(outside, others, joined) + (1 - seals) * takers,
    )


def _offers(apart: int, together: int, joined: bool) -> int:
    """Offers that cross: so many one by one, or so many that are joined."""
    return together if joined else apart


def left_with_zones(sites: Sequence[int], joined: bool = False) -> float:
    """The share of the bytes between the sites that is left with zones."""
    places = range(len(sites))
    zoned = sum(crossing(sites, place, zoned=True, joined=joined).sent for place in places)
    flat = sum(crossing(sites, place, zoned=False).sent for place in places)
    return zoned / flat


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """A stage of a round, which begins where the former one ends.

    Attributes:
        own: packets in the busier direction of the busiest learner's link.
        site: packets in the busier direction of the busiest site's link.
    """

    own: float
    site: float = 0.0


def stages(
    sites: Sequence[int], fragments: int, *, zoned: bool, joined: bool = False
) -> list[Stage]:
    """The stages of a round: with zones, offers go to relays, and on to sealers; seals go to
    relays, and on to their neighbours. Without, both go straight.

    Args:
        sites: how many learners each site has.
        fragments: of the model. Their rounds run side by side.
        zoned: whether the sites are zones.
        joined: whether relays join the offers of their zones.
    """
    loads = _loads(sites, fragments, zoned, joined)
    hop = Stage(own=max(load.relayed * (load.inside - 1) for load in loads) / fragments)
    to_sealers = Stage(
        own=max(load.offers for load in loads) / fragments,
        site=max(load.site_offers for load in loads) / fragments,
    )
    from_sealers = Stage(
        own=max(load.seals for load in loads) / fragments,
        site=max(load.site_seals for load in loads) / fragments,
    )
    return [hop, to_sealers, from_sealers, hop] if zoned else [to_sealers, from_sealers]


def busiest_link(
    sites: Sequence[int], fragments: int, *, zoned: bool, joined: bool = False
) -> float:
    """The packets of a sync in the busier direction of the busiest learner's link."""
    return max(load.link for load in _loads(sites, fragments, zoned, joined)) / fragments


def sent_by_all(sites: Sequence[int], *, zoned: bool, joined: bool = False) -> float:
    """The packets that all learners send for a sync: those that a relay passes on go twice."""
    learners = sum(sites)
    again = 0.0
    if zoned:
        # Of a fragment, all go twice but those of the sealer's site and those of relays.
        again = sum(n / learners * (learners - n - (len(sites) - 1)) for n in sites)
    return 2 * (learners - 1) + (0 if joined else again)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Load:
    """Fragments and packets of one site and of its busiest learner, at most: no names exceed them.

    Attributes:
        inside, learners: how many learners the site has, and all sites.
        fragments: of the model.
        receivers: how many of other sites a sealer of this one sends its seal to.
        takers: how many of this site take a seal from another one.
        leaving: packets of offers that leave the site, of a fragment that another one seals.
        arriving: packets of offers that come from other sites, of a fragment that this one seals.
        zoned: whether the sites are zones.
    """

    inside: int
    learners: int
    fragments: int
    receivers: int
    takers: int
    leaving: int
    arriving: int
    zoned: bool

    @property
    def sealed(self) -> int:
        """Fragments that one learner seals."""
        return math.ceil(self.fragments / self.learners)

    @property
    def site_sealed(self) -> int:
        """Fragments that the site seals."""
        rows, rest = divmod(self.fragments, self.learners)
        return rows * self.inside + min(rest, self.inside)

    @property
    def sealed_outside(self) -> int:
        """Fragments that other sites seal."""
        rows, rest = divmod(self.fragments, self.learners)
        outside = self.learners - self.inside
        return rows * outside + min(rest, outside)

    @property
    def relayed(self) -> int:
        """Fragments that one learner relays. A learner that is alone relays only its own offers."""
        each = min(math.ceil(self.fragments / self.inside), self.sealed_outside)
        return each if self.zoned and self.inside > 1 else 0

    @property
    def direct(self) -> int:
        """Fragments of which a relay sends its own offers straight to sealers of its site, and has
        the seals straight from them."""
        return min(self.site_sealed, self.fragments - self.relayed)

    @property
    def seals_sent(self) -> int:
        """Packets that a sealer sends, of a fragment."""
        return self.inside - 1 + self.receivers

    @property
    def offers(self) -> int:
        """Packets of the busiest learner while offers go to sealers."""
        passed_on = self.relayed * self.leaving + self.direct if self.relayed else 0
        return max(self.sealed * self.offers_taken, passed_on)

    @property
    def offers_taken(self) -> int:
        """Packets that a sealer takes, of a fragment."""
        return self.inside - 1 + self.arriving

    @property
    def seals(self) -> int:
        """Packets of the busiest learner while seals come from sealers."""
        taken = self.fragments - self.fragments // self.learners
        if self.relayed:  # the others come through a neighbour, in the last stage
            taken = self.relayed + self.direct
        return max(self.sealed * self.seals_sent, taken)

    @property
    def site_offers(self) -> int:
        """Packets of the site's link while offers go to sealers."""
        return max(self.site_sealed * self.arriving, self.sealed_outside * self.leaving)

    @property
    def site_seals(self) -> int:
        """Packets of the site's link while seals come from sealers."""
        return max(self.site_sealed * self.receivers, self.sealed_outside * self.takers)

    @property
    def link(self) -> int:
        """Packets of the busiest learner's link in a whole round, in its busier direction."""
        return max(self._link(self.sealed), self._link(self.fragments // self.learners))

    def _link(self, sealed: int) -> int:
        relayed = min(self.relayed, self.fragments - sealed)
        hops = relayed * (self.inside - 1)
        own = self.fragments - sealed - relayed
        sent = sealed * self.seals_sent + hops + relayed * self.leaving + own
        received = sealed * self.offers_taken + hops + self.fragments - sealed
        return max(sent, received)


def _loads(sites: Sequence[int], fragments: int, zoned: bool, joined: bool) -> list[_Load]:
    learners, others = sum(sites), len(sites) - 1
    return [
        _Load(
            inside=inside,
            learners=learners,
            fragments=fragments,
            receivers=others if zoned else learners - inside,
            takers=1 if zoned else inside,
            leaving=_offers(inside, 1, joined),
            arriving=_offers(learners - inside, others, joined),
            zoned=zoned,
        )
        for inside in sorted(set(sites))
    ]
