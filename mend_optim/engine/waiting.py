"""The causes for which a learner that joins still waits, in words: it holds the training loop up
meanwhile."""

from __future__ import annotations

from collections.abc import Collection, Iterable

from mend_optim.engine.ledger import Event
from mend_optim.engine.pending import NEVER
from mend_optim.engine.state import EngineState
from mend_optim.membership.seeds import grouped
from mend_optim.protocol.lineage import PeerId

#: A name that has not resolved for this part of `join_timeout_s` is taken for a wrong one. Less
#: would be wrong where a name resolves only once its machine, or its container, has started.
UNRESOLVED = 1 / 3

_NO_ANSWER_YET = "no answer yet"
_NOT_BEGUN = "{} is there, before its first step"
_GONE = "{} was there, and is gone"
#: Of lone learners that take no step now: their weights are the model.
_WITH_ITS_STEP = "the weights of {}, which come with its next step"


class Waiting:
    """Tells the user whom a learner waits for before its first step, and why: at once, and again
    when that changes, but once a beat at most. Of many learners that start together, one comes
    after the other."""

    def __init__(self, state: EngineState) -> None:
        self.state = state
        #: Until when causes that explain themselves a moment later are not told.
        self._hold_until = NEVER
        #: When the next text may come.
        self._next_at = 0.0
        #: The last text, without its seconds; empty if there was none.
        self._told = ""
        #: Lone learners that took no step while this one waited for their weights. `Joining` alone
        #: writes it.
        self.pausing: Collection[PeerId] = frozenset()

    @property
    def told(self) -> bool:
        """Whether the user was told, so that the end is told as loudly."""
        return bool(self._told)

    def begin(self, now: float) -> None:
        """The wait begins."""
        self._hold_until = now + self.state.policies.timing.beat_s

    def tell(self, now: float, join_by: float) -> None:
        """The wait goes on until `join_by` at most."""
        if now < self._next_at:
            return
        causes = self.causes()
        open_causes = [why for address, why in causes.items() if not self._failed(address)]
        if now < self._hold_until and (open_causes or not causes):
            return
        what = self.what()
        if what == self._told:
            return
        self._told = what
        self._next_at = now + self.state.policies.timing.beat_s
        left = max(0.0, join_by - now)
        is_timed = causes or self.pausing
        text = f"waiting up to {left:.0f} s for {what}" if is_timed else f"waiting for {what}"
        self.state.emit(Event("waiting", text, {"causes": causes, "for_s": left}))

    def is_in_vain(self, now: float) -> bool:
        """Whether nobody can come any more: nobody can dial this learner, nobody is known, and each
        address has refused it or has a name that does not exist."""
        state = self.state
        if state.roster.address or state.roster.peers or not state.seeds.found:
            return False
        if state.seeds.awaited():
            return False
        patience_s = UNRESOLVED * state.policies.timing.join_timeout_s
        unresolved = state.seeds.unresolved(state.stops.awake_s(now), patience_s)
        return all(at in unresolved or state.seeds.is_closed(at) for at in state.seeds.found)

    def causes(self) -> dict[str, str]:
        """By address, why this learner still waits for the one there."""
        seeds = self.state.seeds
        at = {
            address: why
            for address in seeds.found
            if not seeds.is_closed(address) and (why := self._why(address))
        }
        return {**at, **seeds.awaited()}

    def _failed(self, address: str) -> bool:
        seeds = self.state.seeds
        failed = seeds.found.get(address) is None and address in seeds.unreached
        return failed or address in seeds.held

    def _why(self, address: str) -> str:
        """Why this learner still waits for the one at an address; empty if it does not."""
        state = self.state
        if address in state.seeds.held or address in state.seeds.refused:
            return state.seeds.cause(address)
        peer = state.seeds.found[address]
        if peer is None:
            failure = state.seeds.unreached.get(address)
            return failure[0].value if failure else _NO_ANSWER_YET
        known = state.roster.find(peer)
        if known is None or known.suspected:
            return _GONE.format(peer.name)
        return "" if known.beat and known.beat.genesis else _NOT_BEGUN.format(peer.name)

    def what(self) -> str:
        """The things that this learner waits for: addresses with causes, or weights."""
        causes = self.causes()
        if causes:
            return ", ".join(grouped(causes))
        if self.pausing:
            return _WITH_ITS_STEP.format(_names(self.pausing))
        sources = {wanted.peer for wanted in self.state.wants.values()} or self._ahead()
        if sources:
            return f"the weights of {_names(sources)}"
        return "the other learners to take the weights to begin with"

    def _ahead(self) -> set[PeerId]:
        """The peers that have a greater anchor of this learner's model. None is asked for it while
        its seal may be about to come, for an offer from a checkpoint."""
        state = self.state
        return {
            beat.peer
            for beat in state.live_beats()
            if beat.genesis == state.genesis
            and any(
                report.key > state.key(fragment)
                for fragment, report in zip(state.fragments, beat.reports, strict=False)
            )
        }


def _names(peers: Iterable[PeerId]) -> str:
    return ", ".join(sorted(peer.name for peer in peers))
