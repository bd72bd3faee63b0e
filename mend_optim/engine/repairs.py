"""Taking an anchor anew, where most learners attest something else under its key.

Honest learners have the same bytes under one key. But an insider may have handed other bytes over
before enough learners attested the true ones. The deceived learner would train on beside the others
for good, because seals only add to what it has.

    more than half of all learners attest the same,     ask one of them for the whole anchor, and
    and this learner was handed something else over     take it, also if its key is no greater

Work is neither lost nor doubled: the weights move by the difference of the two anchors, and all
that is not merged yet stays in them. A peer that attests the true bytes may hand over others, so
each try asks another one, and waits twice as long as the one before."""

from __future__ import annotations

from dataclasses import dataclass

from mend_optim.engine.attestations import Attestations
from mend_optim.engine.ledger import Event
from mend_optim.engine.progress import Progress
from mend_optim.engine.pulling import Pulling
from mend_optim.engine.state import EngineState
from mend_optim.protocol.lineage import PeerId

OUTVOTED = (
    "most learners have something else in their anchors of fragment {} than this one, under the "
    "same key: takes that of {}"
)


@dataclass(slots=True)
class _Tries:
    """The tries to mend one fragment."""

    count: int = 0
    #: When the next one may be.
    due_at: float = 0.0


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
            doubts = self.state.claims.doubts
            peers = [id for id in self.attestations.outvoted_by(fragment) if not doubts(id)]
            tries = self._tries.setdefault(fragment.fragment, _Tries())
            if peers and now >= tries.due_at and fragment.fragment not in self.state.wants:
                self._ask(now, fragment, peers[tries.count % len(peers)])
                tries.due_at = now + 2**tries.count * self.state.policies.timing.evict_after_s
                tries.count += 1

    def _ask(self, now: float, fragment: Progress, peer: PeerId) -> None:
        p = fragment.fragment
        key = dict(self.state.shown(p)).get(peer)
        if key is None:
            return
        self.pulling.want(now, fragment, peer, key, whole=True, gives_way=True)
        facts = {"peer": peer.name, "incarnation": peer.incarnation, "fragment": p}
        self.state.emit(Event("outvoted", OUTVOTED.format(p, peer.name), facts))
