"""Learners that train another model than this one: beside it, or until this one takes it over.

Two models of one run, or two branches of one, are an accident: learners have trained for long
before anybody was between them. A learner takes the greater one if most learners have it, or if its
own rounds have stopped. Where neither is so, both go on, and each learner's work is merged into one
of the two. No round fails then, so nothing else would tell the user.

Two runs of one script that come to dial each other are two models of one shape, too. Those of the
lesser one take over the greater one, and their own work is lost: the user is told of that."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence, Set

from mend_optim.engine.ledger import Event, RoundRecord, describe, given_up
from mend_optim.engine.majority import GETS_ON, MODEL, Apart, OwnModel
from mend_optim.engine.state import EngineState
from mend_optim.protocol.lineage import Key, PeerId
from mend_optim.protocol.messages import Beat

PARTED = (
    "{}: these learners have trained another model than this learner for {:.0f} s, so no round "
    "merges their work with this learner's; to have one model, restart the learners of the lesser "
    "one, which is {}"
)
AGREED = "no learner trains another model than this one any more"
SWITCHED = (
    "has another model, with {:,} tokens in it, which this learner takes over: {:,} tokens of this "
    "learner's work are given up; if that is another run, keep the addresses of the two apart"
)
BRANCH = (
    "has another branch of this model, with {:,} tokens in it, which this learner takes over: {:,} "
    "tokens of this learner's merged work are given up; learners that merge apart, after a cut or "
    "from checkpoints of different runs, lose the lesser branch"
)
#: A peer, and a fragment that it has otherwise; or `MODEL`.
Place = tuple[PeerId, int]


class OtherModels:
    """Tells the user of peers that go on with another model."""

    def __init__(self, state: EngineState) -> None:
        self.state = state
        self._own = b""
        self._apart: dict[Place, Apart] = {}
        #: Whether the user was told, and there is still such a peer.
        self._is_told = False

    def look(self, now: float) -> None:
        """At every beat: compare the models that the peers show with this learner's."""
        state = self.state
        if state.switch or not state.joined or self._own != state.genesis:
            # It is about to take another model, or has just done so.
            self._own, self._apart = state.genesis, {}
        shown = dict(self._shown())
        before = self._apart
        self._apart = {at: before.get(at, Apart(now, digest)) for at, digest in shown.items()}
        for place, digest in shown.items():
            self._apart[place].look(digest)
        lasting = self._lasting(now)
        if lasting and not self._is_told:
            self._tell(lasting)
        if self._is_told and not shown:
            state.emit(Event("agreed", AGREED, lifts="parted"))
        self._is_told = bool(lasting) or (self._is_told and bool(shown))

    def _shown(self) -> Iterator[tuple[Place, object]]:
        """The digests of anchors, or of all in another model, that live peers show and that are
        none of this learner's. A peer without a step may be about to take ours."""
        state = self.state
        own = [fragment.lineage.key for fragment in state.fragments]
        for beat in state.live_beats():
            if beat.step and beat.genesis == state.genesis:
                yield from self._branches(own, beat)
            elif beat.step and beat.genesis:
                # Digests alone: the tokens of a learner that is alone grow as it steps.
                yield (beat.peer, MODEL), tuple(report.key.digest for report in beat.reports)

    def _branches(self, own: Sequence[Key], beat: Beat) -> Iterator[tuple[Place, object]]:
        """Anchors of a lesser branch: this learner never had them. Greater ones may be about to
        come."""
        for p, (key, report) in enumerate(zip(own, beat.reports, strict=False)):
            digest = report.key.digest
            if report.key < key and not self.state.fragments[p].has_had(digest):
                yield (beat.peer, p), digest

    def _lasting(self, now: float) -> Mapping[PeerId, float]:
        """The peers that have been apart for long, and get on, and for how long. One that stands
        still is at rest, or cut off, and takes ours."""
        patience_s = self.state.policies.timing.round_timeout_s
        return {
            peer: now - apart.since
            for (peer, _), apart in self._apart.items()
            if now - apart.since >= patience_s and apart.moves >= GETS_ON
        }

    def _tell(self, lasting: Mapping[PeerId, float]) -> None:
        names = sorted(peer.name for peer in lasting)
        for_s = max(lasting.values())
        is_greater = self._is_any_greater(lasting.keys())
        lesser = "this learner's" if is_greater else "theirs"
        facts = {"peers": names, "for_s": for_s, "greater": is_greater}
        self.state.emit(Event("parted", PARTED.format(", ".join(names), for_s, lesser), facts))

    def _is_any_greater(self, peers: Set[PeerId]) -> bool:
        beats = (beat for beat in self.state.live_beats() if beat.peer in peers)
        return any(theirs > ours for theirs, ours in map(OwnModel(self.state).beside, beats))


def switched_event(peer: PeerId, records: Sequence[RoundRecord]) -> Event | None:
    """The news that this learner has taken over the model of a peer, by the records of its
    fragments; None if no work is given up for it, as by a newcomer. It tells of the fragment in
    which the learner gives up the most."""
    most = max(records, key=given_up)
    if given_up(most) <= 0:
        return None
    return _taken_over(peer, most, SWITCHED.format(most.tokens, given_up(most)))


class Branches:
    """Tells that this learner has taken over a peer's branch of the model that both have. Two runs
    of one script and one seed begin with one model, so a checkpoint of the other run is a branch of
    this one.

    Args:
        patience_s: for so long after an event, no other one is told. The fragments of a branch may
            come one by one.
    """

    def __init__(self, patience_s: float) -> None:
        self._patience_s = patience_s
        self._told_at = -math.inf

    def event(self, now: float, peer: PeerId, records: Sequence[RoundRecord]) -> Event | None:
        """The news of anchors that came whole, by their records. None if all that this learner had
        merged is in them, or if it has yielded, of which another event tells."""
        taken = [record for record in records if record.reason == "pulled"]
        most = max(taken, key=lambda record: record.superseded_tokens, default=None)
        if most is None or most.superseded_tokens <= 0 or now < self._told_at + self._patience_s:
            return None
        self._told_at = now
        return _taken_over(peer, most, BRANCH.format(most.tokens, most.superseded_tokens))


def _taken_over(peer: PeerId, record: RoundRecord, text: str) -> Event:
    return describe(
        peer,
        "switched",
        text,
        tokens=record.tokens,
        dropped_tokens=record.dropped_tokens,
        superseded_tokens=record.superseded_tokens,
    )
