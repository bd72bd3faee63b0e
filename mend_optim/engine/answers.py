"""A learner's answers to peers that want one of its anchors."""

from __future__ import annotations

from mend_optim.engine.effects import PULL, Export, Send
from mend_optim.engine.passed_seals import PassedSeals
from mend_optim.engine.state import EngineState
from mend_optim.protocol.lineage import Key, Lineage
from mend_optim.protocol.messages import Seal, State, Want


class Answers:
    """Keeps the wants of peers until the anchor stands still, and answers them then."""

    def __init__(self, state: EngineState, passed_seals: PassedSeals) -> None:
        self.state = state
        self.passed_seals = passed_seals
        # By fragment, the anchor that the worker copies out for all who want it.
        self._exporting: dict[int, Key] = {}

    def asked(self, want: Want) -> None:
        """A peer wants an anchor of ours. Its newest want counts, and those of peers that are gone
        count no more."""
        unanswered, find = self.state.unanswered, self.state.roster.find
        same = (want.peer, want.fragment)
        unanswered[:] = [w for w in unanswered if (w.peer, w.fragment) != same and find(w.peer)]
        unanswered.append(want)
        self.answer(want.fragment)

    def answer(self, p: int) -> None:
        """Answer the wants for fragment `p`, once its anchor stands still: by the seal on the
        peer's anchor if it is at hand, else by our whole anchor."""
        state, fragment = self.state, self.state.fragments[p]
        asked = [want for want in state.unanswered if want.fragment == p]
        if not asked or not state.mode.may_adopt or fragment.is_moving:
            return
        for want in asked:
            seal = self._seal_for(want)
            if seal:
                state.unanswered.remove(want)
                state.emit(Send(want.peer, seal, PULL))
        lineage = fragment.lineage
        left = [want for want in state.unanswered if want.fragment == p]
        wanted = not all(self._waits_for_more(want, lineage) for want in left)
        if wanted and self._exporting.get(p) != lineage.key:
            self._exporting[p] = lineage.key
            state.work(Export(p, fragment.lineage))

    def _seal_for(self, want: Want) -> Seal | None:
        """The seal that the asker lacks: one of ours, or of a sealer that it does not reach."""
        own = self.state.fragments[want.fragment].lineage.key
        made = self.state.seals[want.fragment].on(want.have, own)
        return made or self.passed_seals.answer_to(want)

    def _waits_for_more(self, want: Want, lineage: Lineage) -> bool:
        """Whether we show more than this anchor of ours to an asker that has it, or has sent no
        beat yet. A newcomer may ask before its beat, in which we learn of it. What we have trained
        alone is in no anchor yet: it gets the one that is founded then, with the moments in it."""
        state = self.state
        asker, shown = state.roster.find(want.peer), state.key(state.fragments[want.fragment])
        is_heard = asker is not None and asker.heard
        return shown > lineage.key and (want.have == lineage.digest or not is_heard)

    def exported(self, job: Export, content: State) -> None:
        """The worker has copied the anchor out, for every peer that still lacks it."""
        state = self.state
        if self._exporting.get(job.fragment) == job.lineage.key:
            del self._exporting[job.fragment]
        for want in [w for w in state.unanswered if w.fragment == job.fragment]:
            if self._waits_for_more(want, job.lineage):
                continue
            state.unanswered.remove(want)
            if want.have != job.lineage.digest:
                state.emit(Send(want.peer, content, PULL))
