"""Standoffs: two learners that each take the other for the sealer of a fragment.

A learner chooses the sealer from those that it hears itself. If two learners cannot reach each
other, or a hostile one shows itself to some of the others alone, then rosters differ for good:

    roster of a: a, b, c    sealer b    a offers to b, and waits for a seal
    roster of b: a, b       sealer a    b offers to a, and waits for a seal

A learner that holds an offer of its sealer, while its anchor stands still, runs the rounds itself.
The sealer takes the seal, because its offer is with this learner. Of the two, the one whose name is
the lesser begins, and the other only if the first one does not. They wait for as long as rosters
may take to become equal where all learners hear one another."""

from __future__ import annotations

from dataclasses import dataclass

from mend_optim.engine.state import EngineState
from mend_optim.protocol.lineage import PeerId
from mend_optim.protocol.messages import Beat


@dataclass(frozen=True, slots=True)
class _Standoff:
    """A sealer whose offer is here, and an anchor that stands still."""

    sealer: PeerId
    anchor: bytes
    #: Since when. This learner's stops don't count: what the sealer told meanwhile comes later.
    since: float


class Standoffs:
    """Ends standoffs: decides for which fragments this learner stands in for their sealer."""

    def __init__(self, state: EngineState) -> None:
        self.state = state
        self._standing: dict[int, _Standoff] = {}
        #: By fragment, the last beat of its sealer, and whether it shows an offer of its own there.
        self._seen: dict[int, tuple[Beat, bool]] = {}

    def look(self, now: float, p: int, sealer: PeerId | None) -> PeerId | None:
        """Time passed, or an offer came. `sealer` is that by the roster. Returns the learner that
        runs the rounds, as `EngineState.sealer` does."""
        state = self.state
        state.former_sealers.look(p, sealer, state.fragments[p].lineage.digest)
        if sealer is None or sealer == state.me or self._seals(p, sealer):
            self._end(p)
            return sealer
        anchor = state.fragments[p].lineage.digest
        if state.stands_in.get(p) == sealer and self._got_on_by_itself(p, anchor):
            return state.me
        state.stands_in.pop(p, None)
        offer = state.rounds[p].inbox.get(sealer)
        if offer is None or not offer.steps:
            self._standing.pop(p, None)
            return sealer
        known, awake_s = self._standing.get(p), state.stops.awake_s(now)
        if known is None or (known.sealer, known.anchor) != (sealer, anchor):
            self._standing[p] = known = _Standoff(sealer, anchor, awake_s)
        if awake_s < known.since + self._patience_s(sealer):
            return sealer
        state.stands_in[p] = sealer
        return state.me

    def _got_on_by_itself(self, p: int, anchor: bytes) -> bool:
        """Whether the anchor is still the one at which this learner stood in, or came by its own
        seal. Else another learner seals, and stands in as well."""
        standing, last = self._standing.get(p), self.state.seals[p].last
        stands = standing is not None and standing.anchor == anchor
        return stands or (last is not None and last.key.digest == anchor)

    def called(self, p: int, peer: PeerId) -> None:
        """A peer calls for offers: it runs the rounds itself."""
        if peer == self.state.roster.sealer(p):
            self._end(p)

    def _seals(self, p: int, sealer: PeerId) -> bool:
        """Whether the sealer has an offer of its own, by its last beat."""
        peer = self.state.roster.find(sealer)
        beat = peer.beat if peer else None
        if beat is None or p >= len(beat.reports):
            return False
        seen, seals = self._seen.get(p, (None, False))
        if seen is not beat:  # it may tell of thousands of offers, so it is looked at once
            seals = sealer in dict(beat.reports[p].held)
            self._seen[p] = beat, seals
        return seals

    def _end(self, p: int) -> None:
        self._standing.pop(p, None)
        self.state.stands_in.pop(p, None)

    def _patience_s(self, sealer: PeerId) -> float:
        is_first = self.state.me.name < sealer.name
        return self.state.policies.timing.evict_after_s * (1 if is_first else 2)
