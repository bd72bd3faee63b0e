"""Other processes that have this learner's name.

A process starts with the time as its incarnation. If the machine's clock was set back since the
start before, or is behind the clock of a machine that had the name, then the peers know a greater
incarnation of that name, and turn this process away.

    the other process, as a peer knows it    this learner
    ─────────────────────────────────────    ──────────────────────────────────────────────────────
    gone: evicted, or said goodbye           takes an incarnation beyond that one, and says hello
                                             again
    suspected: will be evicted, or return    waits: before its first step, until it knows which
    alive                                    is refused; both processes tell their users

It may have trained before it meets a peer that knows the other process. Its unmerged work then
stays the work of the incarnation that it was done under, as if it had come with a checkpoint. So
that work is merged once, whichever of the two incarnations has offered it."""

from __future__ import annotations

from mend_optim.engine.ledger import Event
from mend_optim.engine.mode import Mode
from mend_optim.engine.state import EngineState
from mend_optim.protocol.handshake import Life, Namesake
from mend_optim.protocol.lineage import INCARNATIONS, PeerId
from mend_optim.protocol.messages import Beat

_RENEWED = (
    "started {} by this machine's clock, which is behind: {} knows a process of this name that "
    "started {} and is gone; this one counts as started after it"
)


class Namesakes:
    """Decides what this learner does about other processes of its name."""

    def __init__(self, state: EngineState) -> None:
        self.state = state
        #: The processes of which the user was told that they are alive.
        self._told: set[PeerId] = set()

    def known(self, now: float, address: str, namesake: Namesake) -> bool:
        """The learner at an address knows a process of this name with a later start. Returns
        whether this learner has another incarnation now."""
        state, me = self.state, self.state.me
        other = namesake.id
        if other.name != me.name or other < me or state.mode is Mode.CLOSED:
            return False
        if other == me and namesake.life is not Life.GONE:
            # A hello of its former incarnation was answered late.
            return False
        later = me.beyond(other.incarnation)
        if namesake.life is Life.GONE and later.incarnation < INCARNATIONS:
            state.rename(later)
            text = _RENEWED.format(me.started, address, other.started)
            facts = {"address": address, "before": me.incarnation, "after": later.incarnation}
            state.emit(Event("renewed", text, facts))
            return True
        state.seeds.hold(now, address, namesake)
        if namesake.life is Life.ALIVE:
            self._tell(other, address, namesake.reason(me))
        return False

    def heard(self, beat: Beat) -> None:
        """A peer tells whom it turns away: perhaps another process of this name."""
        me = self.state.me
        for other in beat.turned_away:
            if other.name == me.name and other < me and not self.state.is_me(other):
                reason = Namesake(me, Life.ALIVE).reason(other)
                self._tell(other, beat.address or beat.peer.name, reason)

    def _tell(self, other: PeerId, address: str, reason: str) -> None:
        """Tell the user of another process, once."""
        if other not in self._told:
            self._told.add(other)
            facts = {"address": address, "reason": reason}
            self.state.emit(Event("refused", f"{address} refused: {reason}", facts))
