"""A rollback: the user of one learner goes back to an earlier anchor of all fragments, because what
was merged since has ruined the model in a way that no check saw.

The earlier anchors become another model, whose genesis tells the number of the rollback and the
learner. A model with more rollbacks behind it is the greater one, whatever it has of tokens. So all
other learners take it by the rule for two clusters that meet: whole, in one piece, and with nothing
of their own. Offers and seals of the former model fit no more, however late they come.

The learner itself takes its anchors by the same rule, as if a peer had sent them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from mend_optim.engine.adoption import Adopter
from mend_optim.engine.ledger import Event, RoundRecord, given_up
from mend_optim.engine.mode import Change, Mode
from mend_optim.engine.state import EngineState, Switch
from mend_optim.errors import UsageError, require
from mend_optim.protocol.lineage import MOST_ROLLBACKS, Lineage, Rollback, rollbacks
from mend_optim.protocol.messages import Sections, State

#: Why a rollback is refused if a peer has added groups that this learner has not.
LACKS = (
    "rollback() must be called with all parameter groups of the run, and {name} has {missing} more "
    "than this learner; add them here and take a checkpoint that has them, or call it there"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class EarlierAnchor:
    """An anchor to go back to, as a whole anchor for a peer would be."""

    lineage: Lineage
    #: The digest of the sections' bytes.
    content: bytes
    sections: Sections


class Rollbacks:
    """Begins rollbacks."""

    def __init__(self, state: EngineState, adoption: Adopter) -> None:
        self.state = state
        self.adoption = adoption

    def may_begin(self, fragments: int) -> bool:
        """Whether a rollback of so many fragments may begin now: not while copies of the weights
        found an anchor, or a group is being added."""
        state = self.state
        is_free = state.joined and state.mode not in (Mode.COPYING, Mode.CLOSED)
        return is_free and len(state.fragments) == fragments

    def begin(self, anchors: Sequence[EarlierAnchor]) -> int:
        """Go back to these anchors, of all fragments. Returns the number of the rollback.

        Raises:
            UsageError: the run has been rolled back as often as its genesis can tell, or a peer has
                an added group that this learner has not.
        """
        state = self.state
        self._check_groups(len(anchors))
        rollback = Rollback(self._next_number(anchors), state.me.name)
        former = (anchor.lineage.digest for anchor in anchors)
        genesis = rollback.genesis(state.genesis, repr(state.me).encode(), *former)
        switch = Switch(state.me, genesis, len(anchors), state.begun)
        for p, anchor in enumerate(anchors):
            switch.states[p] = State(
                peer=state.me,
                fragment=p,
                lineage=anchor.lineage.rolled_back(genesis),
                content=anchor.content,
                period=0 if p else state.schedule.sync_every,
                sections=anchor.sections,
            )
        self._make_way()
        state.begin_switch(switch)
        self.adoption.finish_switch()
        return rollback.number

    def _check_groups(self, count: int) -> None:
        """A group that only others have would go on from the model that is given up."""
        state = self.state
        beats = (beat for beat in state.live_beats() if beat.genesis == state.genesis)
        most, name = max(((len(b.reports), b.peer.name) for b in beats), default=(0, ""))
        if most > count:
            raise UsageError(LACKS.format(name=name, missing=most - count))

    def _next_number(self, anchors: Sequence[EarlierAnchor]) -> int:
        """One more than any model has behind it that this learner knows of."""
        state = self.state
        known = [state.genesis, *(beat.genesis for beat in state.beats())]
        known += [anchor.lineage.genesis for anchor in anchors]
        number = 1 + max(map(rollbacks, known))
        require(
            number <= MOST_ROLLBACKS,
            "the number of rollbacks of one run",
            number,
            f"at most {MOST_ROLLBACKS}",
            "start the run anew from a checkpoint",
        )
        return number

    def _make_way(self) -> None:
        """No other model is to be fetched any more, nor an anchor to be founded."""
        state = self.state
        if state.mode.switching:
            state.end_switch()
        elif state.mode is Mode.FOUNDING:
            state.change(Change.NOTHING_TO_FOUND)

    @property
    def count(self) -> int:
        """How many rollbacks led to this learner's model."""
        return rollbacks(self.state.genesis)

    def is_over(self, number: int) -> bool:
        """Whether the rollback of that number has ended, well or not."""
        switch = self.state.switch
        waits = switch is not None and rollbacks(switch.genesis) == number
        return not waits and not any(f.is_moving for f in self.state.fragments)


def rolled_back(former: bytes, genesis: bytes) -> Rollback | None:
    """The rollback that led from the model of one genesis to that of another, if one did."""
    return Rollback.told_by(genesis) if rollbacks(genesis) > rollbacks(former) else None


def rollback_event(rollback: Rollback, records: Sequence[RoundRecord]) -> Event:
    """The news that this learner has gone back, by the records of its fragments. It tells of the
    one in which the learner gives up the most."""
    most = max(records, key=given_up)
    text = (
        f"{rollback.by} has rolled the run back to an anchor of {most.tokens:,} tokens "
        f"(rollback {rollback.number}): {given_up(most):,} tokens of this learner's work are "
        "given up"
    )
    facts = {
        "by": rollback.by,
        "number": rollback.number,
        "tokens": most.tokens,
        "dropped_tokens": most.dropped_tokens,
        "superseded_tokens": most.superseded_tokens,
    }
    return Event("rolled_back", text, facts)
