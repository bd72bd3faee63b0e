"""Which peers this learner believes about their anchors.

A learner that sees a greater anchor asks for it, and holds its own rounds back meanwhile. A peer
may show an anchor that it never hands over: because of a broken link, or to hold up the rounds of
others. So after a failure this learner asks that peer for no anchor for a while, and no round waits
for what the peer shows. The first such pause is one beat, as anybody's link may break once. The
second is as long as the learner had waited, and each further one is twice as long:

    pause after failure 1 = beat_s
    pause after failure n = max(beat_s, waited) · 2ⁿ⁻², at most an hour

So a peer that hands nothing over holds up rounds for an ever smaller share of the time. A whole
anchor that comes from the peer ends all that."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from mend_optim.protocol.lineage import PeerId

#: The longest pause.
LONGEST_S = 3600.0
#: Doublings of a pause. More would not matter.
MOST_DOUBLINGS = 20


@dataclass(slots=True)
class _Doubt:
    """A peer whose anchors did not come."""

    #: Failures since it last handed one over.
    failures: int
    #: When it is believed again.
    until: float


class Claims:
    """The peers whose anchors did not come, by name: a process that starts anew is the same peer
    here."""

    def __init__(self) -> None:
        self._doubts: dict[str, _Doubt] = {}
        #: The last time that this was told of.
        self._now = 0.0

    def failed(self, now: float, peer: PeerId, waited_s: float, beat_s: float) -> float:
        """An anchor that `peer` shows did not come, and this learner has waited for so long.
        Returns until when the peer is not believed. Anchors of several fragments that fail together
        are one failure."""
        self._now = now
        doubt = self._doubts.setdefault(peer.name, _Doubt(0, now))
        if now < doubt.until:
            return doubt.until
        doubt.failures += 1
        pause_s = beat_s
        if doubt.failures > 1:
            doubled = 2 ** min(doubt.failures - 2, MOST_DOUBLINGS)
            pause_s = max(beat_s, waited_s) * doubled
        doubt.until = now + min(pause_s, LONGEST_S)
        return doubt.until

    def count_in(self, peer: PeerId, other: Claims) -> None:
        """Count a peer's failures as those of `other`, if these are more."""
        doubt, known = self._doubts.get(peer.name), other._doubts.get(peer.name)
        if known and (doubt is None or doubt.failures < known.failures):
            until = doubt.until if doubt else self._now
            self._doubts[peer.name] = _Doubt(known.failures, until)

    def kept(self, peer: PeerId) -> None:
        """A whole anchor of `peer` came."""
        self._doubts.pop(peer.name, None)

    def doubts(self, peer: PeerId) -> bool:
        """Whether this learner does not believe the peer now."""
        doubt = self._doubts.get(peer.name)
        return doubt is not None and self._now < doubt.until

    def expire(self, now: float, here: Collection[str]) -> None:
        """Time passed. Of a name that is not on the roster, nothing is remembered beyond its
        pause."""
        self._now = now
        over = [name for name, doubt in self._doubts.items() if doubt.until <= now]
        for name in set(over).difference(here):
            del self._doubts[name]
