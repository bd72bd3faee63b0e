"""The seals of others that a go-between keeps for the learners that their sealers do not reach.

    sealer ──seal──▶ go-between ──seal──▶ author        down the stream that its offer came up
                         ▲ └──seal──▶ author that missed it, and asks
                         └──want────────┘

A learner that misses a seal asks its sealer for it. If it does not reach that one, nobody but a
go-between has the seal, and the go-between's whole anchor is the word of one learner. Of two
learners that missed the same seal, neither would believe it for long.

A seal is as large as what was merged. So a go-between keeps the last few of a fragment, as their
sealer does. With each beat it lets those go that all such learners have gone past."""

from __future__ import annotations

from collections.abc import Collection

from mend_optim.engine.state import EngineState
from mend_optim.membership.reach import connected
from mend_optim.protocol.lineage import Key, PeerId
from mend_optim.protocol.messages import Seal, Want


class PassedSeals:
    """Keeps seals of others, and finds those that answer a want."""

    def __init__(self, state: EngineState) -> None:
        self.state = state

    def keep(self, seal: Seal) -> None:
        """This learner has the anchor of a seal of another one."""
        chain = self.state.passed_seals[seal.fragment]
        lacking = self._lacking(seal, {seal.sealer, *chain.sealers})
        if lacking:
            chain.add(seal, lacking)

    def review(self) -> None:
        """Let go of what no learner lacks any more."""
        for chain in self.state.passed_seals:
            if chain.last:
                chain.let_go(self._lacking(chain.last, chain.sealers))

    def answer_to(self, want: Want) -> Seal | None:
        """The seal that the asker lacks, if it does not reach its sealer."""
        state, p = self.state, want.fragment
        seal = state.passed_seals[p].on(want.have, state.fragments[p].lineage.key)
        is_on_way = seal and connected(state.roster, p, [want.peer], seal.sealer)
        return seal if is_on_way else None

    def _lacking(self, last: Seal, sealers: Collection[PeerId]) -> list[Key]:
        """The anchors before that of the last seal that learners show which one of the sealers does
        not reach."""
        p, roster = last.fragment, self.state.roster
        behind = {id: key for id, key in self.state.shown(p) if key < last.key}
        far = {id for sealer in sealers for id in connected(roster, p, behind, sealer)}
        return [key for id, key in behind.items() if id in far]
