"""Learners that go on training another model beside this one.

Two models of one run, or two branches of one, are an accident: learners have trained for long
before anybody was between them. A learner takes the greater one if most learners have it, or if its
own rounds have stopped. Where neither is so, both go on, and each learner's work is merged into one
of the two. No round fails then, so nothing else would tell the user."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from mend_optim.engine.ledger import Event
from mend_optim.engine.majority import models
from mend_optim.engine.progress import Progress
from mend_optim.engine.state import EngineState
from mend_optim.protocol.lineage import Key
from mend_optim.protocol.messages import Beat

PARTED = (
    "{}: these learners have trained another model than this learner for {:.0f} s, so no round "
    "merges their work with this learner's; to have one model, restart the learners of the lesser "
    "one, which is {}"
)
AGREED = "no learner trains another model than this one any more"


class _Apart(NamedTuple):
    """A peer that shows another model."""

    since: float
    #: The anchors that it showed first.
    shown: tuple[Key, ...]


class OtherModels:
    """Tells the user of peers that go on with another model."""

    def __init__(self, state: EngineState) -> None:
        self.state = state
        self._own = b""
        #: By name.
        self._apart: dict[str, _Apart] = {}
        #: Whether the user was told, and there is still such a peer.
        self._is_told = False

    def look(self, now: float) -> None:
        """At every beat: compare the models that the peers show with this learner's."""
        if self._own != self.state.genesis:
            self._own, self._apart = self.state.genesis, {}
        others = [beat for beat in self.state.live_beats() if self._is_other(beat)]
        self._apart = {b.peer.name: self._apart.get(b.peer.name, _seen(now, b)) for b in others}
        since = now - self.state.policies.timing.round_timeout_s
        lasting = [beat for beat in others if self._goes_on(beat, since)]
        if lasting and not self._is_told:
            self._tell(now, lasting)
        if self._is_told and not others:
            self.state.emit(Event("agreed", AGREED, lifts="parted"))
        self._is_told = bool(lasting) or (self._is_told and bool(others))

    def _is_other(self, beat: Beat) -> bool:
        """Whether a peer trains another model. One that starts may be about to take ours."""
        state = self.state
        if not (state.joined and beat.step and beat.genesis):
            return False
        if beat.genesis != state.genesis:
            return True
        pairs = zip(state.fragments, beat.reports, strict=False)
        return any(_is_of_a_branch(fragment, report.key) for fragment, report in pairs)

    def _goes_on(self, beat: Beat, since: float) -> bool:
        """Whether a peer has been apart since then, and gets on. One that stands still is at rest,
        or cut off, and takes ours."""
        apart = self._apart[beat.peer.name]
        return apart.since <= since and apart.shown != _shown(beat)

    def _tell(self, now: float, lasting: Sequence[Beat]) -> None:
        names = sorted(beat.peer.name for beat in lasting)
        for_s = max(now - self._apart[name].since for name in names)
        pairs = (models(self.state, beat) for beat in lasting)
        is_greater = any(theirs > ours for theirs, ours in pairs)
        lesser = "this learner's" if is_greater else "theirs"
        facts = {"peers": names, "for_s": for_s, "greater": is_greater}
        self.state.emit(Event("parted", PARTED.format(", ".join(names), for_s, lesser), facts))


def _seen(now: float, beat: Beat) -> _Apart:
    return _Apart(now, _shown(beat))


def _shown(beat: Beat) -> tuple[Key, ...]:
    return tuple(report.key for report in beat.reports)


def _is_of_a_branch(fragment: Progress, key: Key) -> bool:
    """Whether an anchor is of a lesser branch: this learner never had it. A greater one may be
    about to come."""
    return key < fragment.lineage.key and not fragment.has_had(key.digest)
