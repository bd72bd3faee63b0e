"""Watches whether anything comes of the offers that go through go-betweens.

A go-between may be hostile, or mistaken, and say that it reaches a learner which is dead: see
`membership/go_betweens.py`. If a fragment's anchor stands still for long while such a peer has the
offer, it is doubted, and this learner chooses the sealer anew."""

from __future__ import annotations

from dataclasses import dataclass

from mend_optim.engine.progress import Progress
from mend_optim.engine.state import EngineState
from mend_optim.protocol.lineage import PeerId

#: An anchor may stand still for so many times `evict_after_s`: stragglers hold up rounds, too, and
#: a go-between that lacks an anchor itself may have to wait for long until it is stuck.
PATIENCE = 16
#: Between two looks, at most so many beats count: this learner may have been stopped meanwhile.
BEATS = 2


@dataclass(slots=True)
class _Detour:
    """An offer that a go-between has, and an anchor that stands still."""

    via: PeerId
    anchor: bytes
    #: When it was looked at last, and for how long it has stood still.
    looked_at: float
    waited_s: float = 0.0


class Detours:
    """Doubts go-betweens that keep offers."""

    def __init__(self, state: EngineState) -> None:
        self.state = state
        self._detours: dict[int, _Detour] = {}

    def look(self, now: float, fragment: Progress) -> None:
        """Doubt the go-between that has the pending offer, if nothing has come of it for long."""
        state, p, via = self.state, fragment.fragment, self._go_between(fragment)
        known = self._detours.pop(p, None)
        if via is None:
            return
        anchor, timing = fragment.lineage.digest, state.policies.timing
        if known is None or (known.via, known.anchor) != (via, anchor):
            known = _Detour(via, anchor, now)
        known.waited_s += min(now - known.looked_at, BEATS * timing.beat_s)
        known.looked_at = now
        patience_s = PATIENCE * timing.evict_after_s
        if known.waited_s < patience_s:
            self._detours[p] = known
            return
        state.roster.go_betweens.doubt(now, via, patience_s)
        why = f"no anchor has come for {known.waited_s:.0f} s"
        state.refuse(via, f"passing on of offers of fragment {p}", why)

    def _go_between(self, fragment: Progress) -> PeerId | None:
        """The go-between that was sent the pending offer."""
        pending, sealer = fragment.pending, self.state.roster.sealer(fragment.fragment)
        if pending is None or sealer is None:
            return None
        roster = self.state.roster
        via = roster.go_betweens.choose(fragment.fragment, sealer, zone=roster.zone)
        return via if via == pending.sent_to else None
