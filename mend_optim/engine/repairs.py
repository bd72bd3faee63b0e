"""Taking an anchor anew, where most learners attest something else under its key.

Honest learners have the same bytes under one key. But an insider may have handed other bytes over
before enough learners attested the true ones. The deceived learner would train on beside the others
for good, because seals only add to what it has.

    more than half of all learners attest the same,     ask one of them for the whole anchor
    and this learner was handed something else over

    it comes, under our key and with our lineage        take it, once more than half of all learners
                                                        attest its bytes

    a greater one comes                                 take it as any other, if it is believed

Until it comes, or the peer has had its time, no seal is taken or made here: the true bytes of an
anchor are of no use on the one after it. Work is neither lost nor doubled. The weights move by the
difference of the two anchors, and the lineage, which tells what is merged, stays as it is.

A peer that attests the true bytes may hand over others, and some machines never compute the same
bits as the others. So each try asks another peer, if there is one, and waits twice as long as the
one before."""

from __future__ import annotations

from dataclasses import dataclass

from mend_optim.engine.attestations import Attestations
from mend_optim.engine.ledger import Event
from mend_optim.engine.progress import Progress
from mend_optim.engine.pulling import Pulling
from mend_optim.engine.round import Phase
from mend_optim.engine.state import EngineState
from mend_optim.protocol.lineage import PeerId
from mend_optim.protocol.messages import State

OUTVOTED = (
    "most learners have something else in their anchors of fragment {} than this one, under the "
    "same key: asks {} for theirs"
)


@dataclass(slots=True)
class _Tries:
    """The tries to mend one fragment."""

    count: int = 0
    #: When the next one may be.
    due_at: float = 0.0

    def last(self, now: float, pause_s: float) -> None:
        """The last try has not ended yet."""
        self.due_at = now + 2 ** (self.count - 1) * pause_s


class Repairs:
    """Asks for the anchors that most learners have, where this learner has others."""

    def __init__(self, state: EngineState, pulling: Pulling, attestations: Attestations) -> None:
        self.state = state
        self.pulling = pulling
        self.attestations = attestations
        self._tries: dict[int, _Tries] = {}

    def look(self, now: float) -> None:
        """Time passed, or a beat was heard."""
        for fragment in self.state.fragments:
            p = fragment.fragment
            tries = self._tries.setdefault(p, _Tries())
            peers = [] if self._is_busy(fragment) or now < tries.due_at else self._peers(fragment)
            if peers:
                self._ask(now, fragment, peers[tries.count % len(peers)])
                tries.count += 1
            if self.is_mending(p):
                tries.last(now, self.state.policies.timing.evict_after_s)

    def _is_busy(self, fragment: Progress) -> bool:
        """Whether another anchor is on its way: one under this key would come too late."""
        p, state = fragment.fragment, self.state
        is_merging = state.rounds[p].phase is Phase.MERGING
        return p in state.wants or is_merging or fragment.is_about_to_move

    def _peers(self, fragment: Progress) -> list[PeerId]:
        doubts = self.state.claims.doubts
        return [id for id in self.attestations.outvoted_by(fragment) if not doubts(id)]

    def _ask(self, now: float, fragment: Progress, peer: PeerId) -> None:
        p = fragment.fragment
        self.pulling.want(now, fragment, peer, fragment.lineage.key, whole=True, mends=True)
        facts = {"peer": peer.name, "incarnation": peer.incarnation, "fragment": p}
        self.state.emit(Event("outvoted", OUTVOTED.format(p, peer.name), facts))

    def is_mending(self, p: int) -> bool:
        """Whether the anchor of a fragment is wrong, and another one has been asked for."""
        return p in self.state.wants and self.state.wants[p].mends

    def is_mended_by(self, anchor: State, fragment: Progress) -> bool:
        """Whether an anchor is what was asked for, under our key."""
        wanted = self.state.wants.get(anchor.fragment)
        asked = wanted is not None and wanted.mends and wanted.peer == anchor.peer
        return asked and anchor.lineage == fragment.lineage

    def may_take(self, anchor: State, fragment: Progress) -> bool:
        """Whether such an anchor may replace ours now. If not, it is kept: the beats that attest
        its bytes come later, or the fragment is being copied."""
        if fragment.is_still and self.attestations.is_of_most(anchor):
            return True
        self.state.wants[anchor.fragment].held = anchor
        return False
