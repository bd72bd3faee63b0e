"""In lockstep, offers before their boundary: so learners never wait for one another crosswise.

Learners whose steps are aligned reach the boundaries of several fragments in the same order. One
that joins later, or that went on without an anchor, may wait for the others in the round of one
fragment, while they wait for it in that of another. None of these rounds gets on before a timeout.

So fragments have an order that all learners know: by the version of the anchor, then by number. A
learner that is called for a fragment, and waits only for fragments that come later in this order,
offers at once. So of all rounds that wait, the first one in the order gets all its offers, then the
next one.

Aligned learners wait for the first one. So they never offer early, and their run is the same again,
as long as no fragment has had more rounds than one with a smaller number: docs/protocol.md says
where that ends."""

from __future__ import annotations

from mend_optim.engine.progress import Progress
from mend_optim.engine.state import EngineState
from mend_optim.protocol.lineage import Key
from mend_optim.protocol.messages import Call


class Turns:
    """The fragments that this learner waits for, and those for which it is called."""

    def __init__(self, state: EngineState) -> None:
        self.state = state
        #: By fragment, the anchor on which its round last called for our offer. The call may come
        #: before this learner waits anywhere.
        self._called_on: dict[int, Key] = {}

    def called(self, call: Call) -> None:
        """A sealer has asked for our offer. Without `adopt_after`, nobody waits anywhere."""
        if self.state.schedule.lockstep:
            self._called_on[call.fragment] = call.key

    def awaited(self) -> list[Progress]:
        """Under `adopt_after`: the fragments whose anchor is due by now and has not come."""
        state, overlap = self.state, self.state.schedule.adopt_after
        if overlap is None or state.alone or state.resting:
            return []
        return [fragment for fragment in state.fragments if self._is_overdue(fragment, overlap)]

    def _is_overdue(self, fragment: Progress, overlap: int) -> bool:
        pending = fragment.pending
        if pending is None or pending.missed or self.state.totals.step < pending.step + overlap:
            return False
        return self.is_shared(fragment)

    def is_shared(self, fragment: Progress) -> bool:
        """Whether any peer has the fragment: a group that nobody else has added is merged with
        nobody."""
        return any(peer.has(fragment.fragment) for peer in self.state.roster.peers.values())

    def early(self) -> set[int]:
        """The fragments to offer before their boundary: their rounds have called, and are before
        all rounds that this learner waits for."""
        awaited = self.awaited() if self._called_on else []
        if not awaited:
            return set()
        called = [self.state.fragments[p] for p in self._called_on if self._is_called(p)]
        first = min(map(_turn, awaited))
        return {fragment.fragment for fragment in called if _turn(fragment) < first}

    def _is_called(self, p: int) -> bool:
        """Whether the last call is for an offer on our anchor. A group that was added later has
        fewer rounds, so its version does not tell its turn."""
        state = self.state
        return p < state.shared and self._called_on[p] == state.fragments[p].lineage.key


def _turn(fragment: Progress) -> tuple[int, int]:
    """A fragment's place in the order."""
    return fragment.lineage.version, fragment.fragment
