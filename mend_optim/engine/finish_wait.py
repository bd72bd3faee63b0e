"""What a learner that finishes says of those it waits for: `finish()` returns when all have
agreed, and a training loop that stands still may never call it."""

from __future__ import annotations

from mend_optim.engine.idleness import patience_s
from mend_optim.engine.ledger import Event
from mend_optim.engine.state import EngineState
from mend_optim.membership.peer import Peer
from mend_optim.protocol.lineage import PeerId

#: At least so long between two lines of one wait, in seconds.
EVERY_S = 30.0
#: Learners that one line names.
NAMED = 8

_HELD_UP = (
    "finish() is held up: {names} took no step for {for_s:.0f} s and has not called finish(); "
    "close() the optimizer there if its training has ended, or give finish() a timeout"
)


class FinishWait:
    """Tells the user whom `finish()` waits for: a beat after the call, and then every 30 s. A
    learner that stands still is a warning of its own."""

    def __init__(self, state: EngineState) -> None:
        self.state = state
        #: When the next line is due; None while this learner does not finish.
        self._due_at: float | None = None
        #: When it looked last.
        self._looked_at = float("inf")
        #: The last step of each peer that trains on, and when it was first seen; as much later as
        #: this learner was stopped since.
        self._steps: dict[PeerId, tuple[int, float]] = {}
        #: The learners that stand still, of which the user was told.
        self._held_up_by: frozenset[str] = frozenset()

    def review(self, now: float) -> None:
        """Time passed: look again, and tell what is due."""
        state = self.state
        passed_s, self._looked_at = now - self._looked_at, now
        if not state.finishes or state.ended:
            self._begin_anew()
            return
        if passed_s > state.policies.timing.suspect_after_s:
            self._slept(passed_s)
        self._look(now)
        if self._due_at is None:
            self._due_at = now + state.policies.timing.beat_s
        elif now >= self._due_at:
            self._due_at = now + EVERY_S
            self._tell()
        self._tell_held_up(now)

    def causes(self) -> dict[str, str]:
        """By name, why the end does not come yet."""
        peers = sorted(self.state.roster, key=lambda peer: peer.id)
        return {peer.id.name: why for peer in peers if (why := self._why(peer))}

    def _begin_anew(self) -> None:
        self._due_at = None
        self._steps.clear()
        self._held_up_by = frozenset()

    def _slept(self, seconds: float) -> None:
        """This learner was stopped for so long, and heard of no step: nobody stood still."""
        self._steps = {id: (step, since + seconds) for id, (step, since) in self._steps.items()}

    def _look(self, now: float) -> None:
        """Note how far those are that train on."""
        steps = {p.id: p.beat.step for p in self.state.roster if _trains_on(p) and p.beat}
        before = self._steps
        self._steps = {
            id: before[id] if id in before and before[id][0] == step else (step, now)
            for id, step in steps.items()
        }

    def _tell(self) -> None:
        causes = self.causes()
        if not causes:
            return
        named = [f"{name} ({why})" for name, why in list(causes.items())[:NAMED]]
        rest = f" and {len(causes) - NAMED} more" if len(causes) > NAMED else ""
        text = f"finish() waits for {', '.join(named)}{rest}"
        self.state.emit(Event("finishing", text, {"causes": causes}))

    def _tell_held_up(self, now: float) -> None:
        still = self._standing_still(now)
        names = frozenset(still)
        if names - self._held_up_by:
            for_s = min(still.values())
            text = _HELD_UP.format(names=", ".join(sorted(names)), for_s=for_s)
            self.state.emit(Event("held_up", text, {"peers": sorted(names), "for_s": for_s}))
        elif self._held_up_by and not names:
            text = "finish() is held up no longer"
            self.state.emit(Event("finishing", text, {"causes": self.causes()}, lifts="held_up"))
        self._held_up_by = names

    def _standing_still(self, now: float) -> dict[str, float]:
        """By name, for how many seconds those have stood still that are idle by their own pace."""
        still = {}
        for peer in self.state.roster:
            if peer.beat and peer.id in self._steps:
                for_s = now - self._steps[peer.id][1]
                if for_s >= patience_s(self.state.policies, peer.beat.seconds_per_step):
                    still[peer.id.name] = for_s
        return still

    def _why(self, peer: Peer) -> str:
        if peer.word is None:
            return "not heard yet"
        if not peer.word.finishes:
            where = f", at step {peer.beat.step}" if peer.beat else ""
            return f"has not called finish(){where}"
        ready = self.state.ready
        return "" if ready and peer.word.ready == ready else "merges what is left"


def _trains_on(peer: Peer) -> bool:
    return peer.word is not None and not peer.word.finishes
