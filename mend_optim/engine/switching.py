"""Another model on its way: all of its anchors are taken, in one piece, once all have come.

    a greater model is shown ──fetch──▶ its anchors are asked for, of all peers that show it
                                            │ collect, one after the other
                                            ▼
                                        all are here ──take──▶ installed, if it is still greater

If a peer does not hand over its part, the others are asked for that. The switch is given up once no
peer is left that was asked, or if `Switch.peer` has another model by now, or a lesser one."""

from __future__ import annotations

from mend_optim.engine.first_weights import FirstWeights
from mend_optim.engine.majority import Majority
from mend_optim.engine.mode import Change, Mode
from mend_optim.engine.model_parts import ModelParts
from mend_optim.engine.pulling import Pulling
from mend_optim.engine.state import EngineState, Switch
from mend_optim.protocol.lineage import model_key
from mend_optim.protocol.messages import Beat, State


class Switching:
    """Fetches models of another genesis than this learner's."""

    def __init__(
        self,
        state: EngineState,
        majority: Majority,
        pulling: Pulling,
        first_weights: FirstWeights,
    ) -> None:
        self.state = state
        self.majority = majority
        self.pulling = pulling
        self.first_weights = first_weights
        self.parts = ModelParts(state)

    def check(self, beat: Beat, is_lesser: bool) -> None:
        """The model on its way is wanted no more if its learner took another one itself, or if we
        have trained past it."""
        switch = self.state.switch
        is_lesser = is_lesser and not (switch and switch.gives_way)
        if switch and switch.peer == beat.peer and (switch.genesis != beat.genesis or is_lesser):
            self.state.end_switch()
            self.state.wants.clear()

    def is_part(self, beat: Beat) -> bool:
        """Whether a beat shows the model on its way."""
        return self.state.switch is not None and self.state.switch.genesis == beat.genesis

    def meet(self, now: float, beat: Beat) -> None:
        """A beat shows a greater model: fetch all of it, unless our own copies are being made, or
        an anchor of ours moves."""
        if self.state.claims.doubts(beat.peer) or not self.parts.may_fetch(now, beat):
            return
        is_believed = self.majority.believes_model(beat, self.majority.camps())
        if is_believed and self.first_weights.may_fetch(now, beat):
            self.fetch(now, beat)

    def fetch(self, now: float, beat: Beat, *, gives_way: bool = False) -> None:
        """Begin to fetch the model of a beat."""
        state = self.state
        if state.mode is Mode.FOUNDING:
            state.change(Change.NOTHING_TO_FOUND)
        if not state.mode.may_adopt or any(f.is_moving for f in state.fragments):
            return
        shared = min(len(state.fragments), len(beat.reports))
        state.begin_switch(Switch(beat.peer, beat.genesis, shared, beat.begun, gives_way))
        state.wants.clear()
        self.ask(now, beat)

    def ask(self, now: float, beat: Beat) -> None:
        """Ask the sender of a beat for a part of the model on its way that nobody was asked for
        yet."""
        switch = self.state.switch
        if switch is None:
            return
        parts = zip(self.state.fragments[: switch.fragments], beat.reports, strict=False)
        for fragment, report in parts:
            if fragment.fragment not in switch.states:
                self.pulling.want(now, fragment, beat.peer, report.key, whole=True)
        self.pulling.overtake(now, beat.peer)

    def collect(self, now: float, anchor: State) -> None:
        """An anchor has come: keep it until all are here."""
        switch = self.state.switch
        if switch is None or anchor.lineage.genesis != switch.genesis:
            return
        if anchor.fragment >= switch.fragments:
            return
        switch.states[anchor.fragment] = anchor
        self.state.wants.pop(anchor.fragment, None)
        if switch.complete and not switch.gives_way and not self._is_greater(switch):
            self.state.end_switch()
            self.pulling.doubt(now, switch.peer, now)

    def _is_greater(self, switch: Switch) -> bool:
        """Whether the model that has arrived is greater than ours. A learner that was alone may
        hand over less than it has shown."""
        state = self.state
        keys = [anchor.lineage.key for anchor in switch.states.values()]
        own_keys = map(state.key, state.fragments[: switch.fragments])
        ours = model_key(own_keys, state.genesis, state.begun)
        return model_key(keys, switch.genesis, switch.begun) > ours

    def take(self) -> tuple[State, ...]:
        """The anchors of the other model, once all of it is here and every fragment stands still;
        else none."""
        switch = self.state.switch
        if switch is None or not switch.complete:
            return ()
        if not all(fragment.is_still for fragment in self.state.fragments):
            return ()
        self.state.end_switch()
        return tuple(switch.states[p] for p in sorted(switch.states))
