"""The lead's plans, beside an engine that is driven by hand."""

from __future__ import annotations

from contextlib import nullcontext
from types import MappingProxyType, SimpleNamespace
from typing import Any

import torch

from mend_optim.engine.effects import Advance
from mend_optim.engine.mode import Mode
from mend_optim.engine.progress import Motion
from mend_optim.protocol.lineage import Entry
from mend_optim.runtime import held_copies
from mend_optim.runtime.held_copies import NOTHING, ROOM, Plan
from mend_optim.worker.correction import Correction
from tests.support.engines import BASE, DrivenEngine, among_peers, seal_of


class Lead:
    """As a `Learner`, as far as `held_copies` knows one."""

    def __init__(self, **schedule: Any) -> None:
        self.driven: DrivenEngine = among_peers(**schedule)
        self.engine = self.driven.engine
        self.mutex = nullcontext()
        self.closed = False
        self.mailbox: dict[int, Correction] = {}
        self.dispatched = 0

    @property
    def worker(self) -> Any:
        return SimpleNamespace(mailbox=self.mailbox, between_jobs=lambda look: look(None))

    def dispatch_effects(self) -> None:
        self.dispatched += 1

    def step(self, count: int = 1) -> None:
        for _ in range(count):
            self.driven.step()

    def seal(self, *members: Entry) -> None:
        """The anchor moves, and a correction comes."""
        self.driven.receive(seal_of(self.driven.lineage, *members))
        (advance,) = self.driven.jobs(Advance)
        self.driven.done(advance)
        older = self.mailbox.get(0)
        self.mailbox[0] = correction() if older is None else correction(older.values + 1)

    def plan(self, sent: Any = MappingProxyType({}), in_passing: bool = True) -> Plan:
        return held_copies.plan(self, sent, 60.0, in_passing=in_passing)  # type: ignore[arg-type]


def correction(values: Any = None, **told: Any) -> Correction:
    values = torch.ones(1) if values is None else values
    return Correction(0, values, **{"replace": False, **told})


def test_a_copy_is_planned_for_the_step_at_which_it_is_due() -> None:
    """The plan is told with one step that is not counted yet, and followed at the end of the
    next."""
    lead = Lead()
    lead.step()
    assert lead.plan() == NOTHING
    lead.step()
    assert lead.plan() == Plan(copy=0)
    assert lead.driven.fragment.motion is Motion.HELD
    assert lead.plan() == NOTHING
    lead.step(2)
    assert held_copies.counted(lead, 0)  # type: ignore[arg-type]
    pending = lead.driven.fragment.pending
    assert pending is not None
    assert pending.steps == 4


def test_where_a_copy_in_passing_was_of_no_use_the_ranks_meet() -> None:
    lead = Lead()
    lead.step(2)
    assert lead.plan(in_passing=False) == Plan(meets=True)
    assert lead.driven.fragment.is_still


def test_a_correction_is_taken_once_and_another_one_of_its_fragment_waits() -> None:
    lead = Lead()
    lead.step()
    lead.seal()
    first = lead.mailbox[0]
    assert lead.plan().correction is first
    assert lead.mailbox == {}
    lead.seal()
    assert lead.plan({0: True}).correction is None
    assert lead.plan().correction is not None


def test_ranks_meet_for_a_replacement() -> None:
    for told in ({"replace": True}, {"resets": True}):
        lead = Lead()
        lead.step(2)
        lead.mailbox[0] = correction(**told)
        assert lead.plan() == Plan(meets=True)
        assert list(lead.mailbox) == [0]
        assert lead.driven.fragment.is_still


def test_ranks_meet_to_found_anchors() -> None:
    lead = Lead()
    lead.step(1)
    lead.engine.state.mode = Mode.FOUNDING
    assert lead.plan() == Plan(meets=True)


def test_a_closed_learner_plans_nothing() -> None:
    lead = Lead()
    lead.step(2)
    lead.closed = True
    assert lead.plan() == NOTHING
    lead.closed = False
    assert lead.plan() == Plan(copy=0)
    lead.closed = True
    assert not held_copies.counted(lead, 0)  # type: ignore[arg-type]


def test_weights_rest_on_the_anchor_once_no_correction_is_left() -> None:
    """Else a copy would be compared with an anchor that is not in it yet."""
    lead = Lead()
    lead.step(3)
    lead.seal()
    assert lead.plan().correction is not None
    lead.seal()
    lead.step(4)
    held_copies.adopted(lead, 0)  # type: ignore[arg-type]
    assert lead.driven.fragment.correction_pending
    assert lead.engine.boundaries.wanted_in(0) is None
    assert lead.plan().correction is not None
    held_copies.adopted(lead, 0)  # type: ignore[arg-type]
    assert not lead.driven.fragment.correction_pending
    assert lead.engine.boundaries.wanted_in(0) == 0


def test_what_goes_back_is_added_to_what_has_come_since() -> None:
    lead = Lead()
    sent = [correction(torch.full((1,), 2.0))]
    held_copies.give_back(lead, sent)  # type: ignore[arg-type]
    assert lead.mailbox[0].values.tolist() == [2.0]
    lead.mailbox[0] = correction(torch.full((1,), 5.0))
    held_copies.give_back(lead, [correction(torch.full((1,), 2.0))])  # type: ignore[arg-type]
    assert lead.mailbox[0].values.tolist() == [7.0]
    lead.mailbox[0] = correction(torch.full((1,), 5.0), replace=True)
    held_copies.give_back(lead, [correction(torch.full((1,), 2.0))])  # type: ignore[arg-type]
    assert lead.mailbox[0].values.tolist() == [5.0]


def test_a_plan_that_is_not_followed_lets_go() -> None:
    lead = Lead()
    lead.step(2)
    lead.plan()
    lead.driven.receive(seal_of(BASE))
    held_copies.let_go(lead, 0)  # type: ignore[arg-type]
    assert len(lead.driven.jobs(Advance)) == 1
    assert lead.dispatched


def test_in_lockstep_ranks_meet_for_copies_and_for_anchors_at_their_steps() -> None:
    """A period of 4 steps; an anchor is adopted 2 steps after its copy."""
    lead = Lead(sync_every=4, adopt_after=2)

    def due(steps: int) -> bool:
        return held_copies.falls_due(lead, steps)  # type: ignore[arg-type]

    assert [due(steps) for steps in range(1, 6)] == [False, False, False, True, True]
    offer = lead.driven.offer()
    # The offer is on its way, and nobody need look before its anchor is due.
    assert [due(steps) for steps in range(1, 4)] == [False, True, True]
    lead.step()
    lead.seal(offer.entry)
    assert lead.driven.fragment.adopt_at == 6
    assert [due(0), due(1)] == [False, True]


def test_in_lockstep_ranks_meet_for_an_anchor_that_came_late() -> None:
    lead = Lead(sync_every=4, adopt_after=2)
    offer = lead.driven.offer()
    lead.step(2)
    lead.engine.boundaries.waited_out()
    assert not held_copies.falls_due(lead, 1)  # type: ignore[arg-type]
    lead.seal(offer.entry)
    assert held_copies.falls_due(lead, 1)  # type: ignore[arg-type]


def test_in_lockstep_ranks_meet_to_found_anchors() -> None:
    lead = Lead(sync_every=4, adopt_after=2)
    assert not held_copies.falls_due(lead, 1)  # type: ignore[arg-type]
    lead.engine.state.mode = Mode.FOUNDING
    assert held_copies.falls_due(lead, 1)  # type: ignore[arg-type]


def test_in_lockstep_a_copy_is_made_in_passing_if_its_anchor_is_not_due_soon() -> None:
    lead = Lead(sync_every=8, adopt_after=ROOM)
    lead.step(5)
    assert lead.plan() == NOTHING
    lead.step()
    assert lead.plan(in_passing=False) == Plan(meets=True)
    assert lead.plan() == Plan(copy=0)
    assert lead.plan() == NOTHING
    lead.step()
    assert lead.plan() == NOTHING
    lead.step()
    assert held_copies.counted(lead, 0)  # type: ignore[arg-type]
    pending = lead.driven.fragment.pending
    assert pending is not None
    assert pending.step == 8
    lead.step()
    assert lead.plan() == NOTHING
    lead.step()
    assert lead.plan() == Plan(meets=True)


def test_in_lockstep_ranks_meet_for_a_copy_whose_anchor_is_due_soon() -> None:
    lead = Lead(sync_every=8, adopt_after=ROOM - 1)
    lead.step(6)
    assert lead.plan() == Plan(meets=True)
    assert lead.driven.fragment.is_still


def test_in_lockstep_a_correction_is_brought_before_its_step() -> None:
    lead = Lead(sync_every=8, adopt_after=6)
    offer = lead.driven.offer(8)
    lead.step()
    lead.seal(offer.entry)
    brought = lead.mailbox[0]
    assert lead.plan() == Plan(correction=brought, due=14)
    lead.step(2)
    assert lead.plan({0: False}) == NOTHING
    lead.step()
    # Not all ranks have it at the step before.
    assert lead.plan({0: False}) == Plan(meets=True)
    assert lead.plan({0: True}) == NOTHING


def test_in_lockstep_ranks_meet_at_once_for_what_came_while_another_correction_was_sent() -> None:
    lead = Lead(sync_every=8, adopt_after=6)
    offer = lead.driven.offer(8)
    lead.seal(offer.entry)
    assert lead.plan().correction is not None
    lead.mailbox[0] = correction(replace=True)
    assert lead.plan({0: True}) == Plan(meets=True)
