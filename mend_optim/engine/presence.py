"""What the user hears of the peers: who comes, falls silent, dies, returns and leaves, and whether
this learner is alone. Each change is one event, however it became known."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from mend_optim.engine.late_beats import LateBeats
from mend_optim.engine.ledger import Event, describe
from mend_optim.engine.other_models import OtherModels
from mend_optim.engine.state import EngineState
from mend_optim.engine.token_rates import TokenRates
from mend_optim.membership.peer import Peer
from mend_optim.membership.seeds import grouped
from mend_optim.protocol.lineage import PeerId

#: Names of peers that are gone which are kept, to tell their return; the oldest go first.
GONE = 1024

_ALONE = "; nobody else is here"
_UNDIALLED = (
    "nobody dials this learner at {}, although it reaches {}: it seals no rounds from here on;"
    " open that port in firewalls, pass the address that leads here as advertise=, or leave out"
    " listen"
)
_BROKE = "its connection broke"
_TRAINS_ON = ": training alone until somebody comes"
_LOOKS = "; still looking at {}"


class Doubt(NamedTuple):
    """The beat since which a peer is suspected, and why at first."""

    since: float
    why: str


class Presence:
    """Compares the roster with what the user was told."""

    def __init__(self, state: EngineState) -> None:
        self.state = state
        #: The peers on the roster whose coming was told.
        self._met: set[PeerId] = set()
        #: The peers that were suspected at the last beat. A link that breaks and is back within a
        #: beat is no news.
        self._doubts: dict[PeerId, Doubt] = {}
        #: By name, the event by which the user learned that a peer is gone: "suspected", "evicted"
        #: or "left".
        self._gone: dict[str, str] = {}
        #: The event by which the user learned that this learner is alone; empty if it is not, or
        #: if that was never told.
        self._alone = ""
        self._token_rates = TokenRates(state)
        self._late_beats = LateBeats(state)
        self._other_models = OtherModels(state)

    def met(self, peer: Peer) -> None:
        """A peer agreed to train with this learner. It may have been heard of before, and it may do
        so again after each broken link."""
        if peer.id in self._met:
            return
        former = {id for id in self._met if id.name == peer.id.name}
        self._met = self._met - former | {peer.id}
        lifts = self._gone.pop(peer.id.name, "")
        text = "is back" if lifts or former else "met"
        self.state.emit(describe(peer.id, "met", text, lifts=lifts, address=peer.address))

    def left(self, id: PeerId) -> None:
        """A peer said goodbye."""
        self._lost(id, "left", "left")

    def expire(self, now: float) -> list[PeerId]:
        """Time passed. Return the peers that were silent for so long that the roster forgets them.
        While this learner itself was stopped, it could hear nobody."""
        stopped_s = self.state.stops.look(now)
        if stopped_s:
            self._slept(now, stopped_s)
        silent = self.state.roster.expire(now)
        for id in silent:
            after_s = self.state.policies.timing.evict_after_s
            text = f"evicted: nothing was heard of it for {after_s:g} s"
            self._lost(id, "evicted", text)
        return silent

    def _slept(self, now: float, seconds: float) -> None:
        """This learner was stopped for so long: it asks what the others have by now."""
        self.state.roster.slept(now, seconds)
        for wanted in self.state.wants.values():
            wanted.slept(seconds)
        for fragment in self.state.fragments:
            fragment.slept(now, seconds)
        for round in self.state.rounds:
            round.slept(now, seconds)
        self.state.question.begin()

    def left_out(self, id: PeerId) -> None:
        """The run ends without a peer that came late."""
        self._lost(id, "evicted", "evicted: others were ready to end when it came")

    def alone(self, event: Event) -> None:
        """Tell the user that this learner has found nobody."""
        self._alone = event.kind
        self.state.emit(event)

    def undialled(self, address: str, reached: Sequence[PeerId]) -> None:
        """Nobody dials this learner, although it reaches some."""
        names = sorted(id.name for id in reached)
        text = _UNDIALLED.format(address, ", ".join(names))
        self.state.emit(Event("undialled", text, {"address": address, "peers": names}))

    def dialled(self, address: str) -> None:
        """Somebody dials this learner, after all."""
        text = "others dial this learner: it may seal rounds again"
        self.state.emit(Event("dialled", text, {"address": address}, lifts="undialled"))

    def review(self, now: float) -> None:
        """At every beat: tell what has changed since the last one."""
        state = self.state
        late: dict[str, float] = {}
        for peer in state.roster:
            name = peer.id.name
            if not peer.suspected and name in self._gone:
                doubt = self._doubts.get(peer.id)
                if doubt and doubt.why != _BROKE:
                    late[name] = doubt.since
                back = describe(peer.id, "returned", "is back", lifts=self._gone.pop(name))
                state.emit(back)
            elif peer.suspected and peer.id in self._doubts and name not in self._gone:
                self._gone[name] = "suspected"
                text = (
                    f"is suspected to be gone ({self._doubts[peer.id].why}): no round waits for it"
                )
                state.emit(describe(peer.id, "suspected", text))
        suspects = [peer for peer in state.roster if peer.suspected]
        doubts = {p.id: Doubt(now, self._doubt(now, p)) for p in suspects}
        self._doubts = {id: self._doubts.get(id, doubt) for id, doubt in doubts.items()}
        self._tell_company()
        self._token_rates.look()
        self._other_models.look(now)
        self._late_beats.look(now, late)

    def _doubt(self, now: float, peer: Peer) -> str:
        """Why a peer is suspected."""
        if not peer.silent:
            return "it does not hear this learner"
        silent_s = now - peer.heard_at
        if silent_s < self.state.policies.timing.suspect_after_s:
            return _BROKE
        return f"silent for {silent_s:.0f} s"

    def _lost(self, id: PeerId, kind: str, text: str) -> None:
        self._met.discard(id)
        before = self._gone.pop(id.name, None)
        self._gone[id.name] = kind
        if len(self._gone) > GONE:
            del self._gone[next(iter(self._gone))]
        alone = self.state.joined and self.state.roster.alone
        # A process that was frozen evicts peers before it reads their last words, which were
        # waiting. Peers that died meanwhile then come to the roster once more, and go again.
        is_known = kind == before and (not alone or bool(self._alone))
        if alone:
            self._alone = kind
        if not is_known:
            text += _ALONE * alone + _TRAINS_ON * (alone and not self.state.finishes)
            if alone and kind == "evicted":
                text += self._looks()
            self.state.emit(describe(id, kind, text))

    def _looks(self) -> str:
        """Where this learner goes on looking for others, and what it finds there: perhaps they have
        shut it out."""
        found = ", ".join(grouped(self.state.seeds.failed()))
        return _LOOKS.format(found) if found and not self.state.finishes else ""

    def _tell_company(self) -> None:
        """Lift the news that this learner is alone."""
        state = self.state
        here = state.roster.alive()
        if self._alone and state.joined and not state.alone and here:
            names = ", ".join(id.name for id in here)
            facts = {"peers": [id.name for id in here]}
            text = f"no longer alone: trains with {names}"
            state.emit(Event("together", text, facts, lifts=self._alone))
            self._alone = ""
