"""The other learners at one moment, beside which this one looks at many fragments.

A learner that was away lacks something in every fragment. There may be dozens of these, and
hundreds of learners: so what a look needs of all learners is found out once for all fragments, and
only if any of them needs it."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property

from mend_optim.engine.state import EngineState
from mend_optim.protocol.lineage import Key, PeerId
from mend_optim.protocol.messages import Beat


class Others:
    """The others as this learner knows them now. It is used at once, and not kept."""

    def __init__(self, state: EngineState) -> None:
        self._state = state
        self._shown: dict[int, dict[PeerId, Key]] = {}

    @cached_property
    def _trained(self) -> list[Beat]:
        return [beat for beat in self._state.live_beats() if beat.step > 0]

    def voters(self, p: int) -> list[Beat]:
        """The last beats of the live peers that have trained, and have fragment `p`."""
        return [beat for beat in self._trained if p < len(beat.reports)]

    def shown(self, p: int) -> Mapping[PeerId, Key]:
        """The anchors of fragment `p` that the voters with our model show."""
        if p not in self._shown:
            ours = self._state.genesis
            voters = self.voters(p)
            self._shown[p] = {b.peer: b.reports[p].key for b in voters if b.genesis == ours}
        return self._shown[p]

    @cached_property
    def _sealers(self) -> list[PeerId | None]:
        return self._state.roster.sealers(len(self._state.fragments))

    def sealer(self, p: int) -> PeerId | None:
        """The sealer of fragment `p` by the roster, perhaps this learner."""
        return self._sealers[p]
