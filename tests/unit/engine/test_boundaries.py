from __future__ import annotations

import pytest

from mend_optim.engine.adoption import Adopter
from mend_optim.engine.boundaries import Boundaries
from mend_optim.engine.effects import Advance
from mend_optim.engine.mode import Mode
from mend_optim.engine.policies import Policies
from mend_optim.engine.progress import Progress
from mend_optim.engine.schedule import Schedule
from mend_optim.engine.state import EngineState
from mend_optim.engine.stragglers import Stragglers
from mend_optim.protocol.lineage import Lineage, PeerId
from tests.support.engines import BASE, PEER, DrivenEngine, among_peers, seal_of


def test_a_copy_that_was_broken_off_is_wanted_again() -> None:
    """Ctrl-C between reserving and copying: a fragment that stayed reserved would never be offered
    again."""
    state = EngineState(PeerId("a", 1), "", [], Policies(schedule=Schedule(sync_every=2)))
    state.fragments = [Progress(PeerId("me", 1), 0, Lineage.fresh(b"genesis"), cycle_start=0)]
    state.mode = Mode.TRAINING
    training = Boundaries(state, Adopter(state), Stragglers(state))
    for _ in range(2):
        training.stepped(5, 1.0)
    assert training.fragments_to_copy() == [0]
    training.reserve(0)
    assert training.fragments_to_copy() == []
    training.release([0])
    assert training.fragments_to_copy() == [0]
    assert state.fragments[0].unmerged(state.totals).tokens == 10


def offered(adopt_after: int | None) -> DrivenEngine:
    """A learner that has just offered to a peer that runs the rounds."""
    engine = among_peers(adopt_after=adopt_after)
    engine.offer()
    return engine


def sealed(engine: DrivenEngine) -> DrivenEngine:
    pending = engine.fragment.pending
    assert pending is not None
    assert pending.offer is not None
    engine.receive(seal_of(BASE, pending.offer.entry))
    (advance,) = engine.jobs(Advance)
    engine.done(advance)
    return engine


def test_nobody_waits_for_an_anchor_unless_asked_to() -> None:
    engine = offered(None)
    for _ in range(10):
        assert not engine.engine.boundaries.must_wait()
        engine.step()


@pytest.mark.parametrize("overlap", [0, 1, 3])
def test_under_a_fixed_overlap_an_anchor_is_waited_for_at_its_step_until_it_comes(
    overlap: int,
) -> None:
    engine = offered(overlap)
    for _ in range(overlap):
        assert not engine.engine.boundaries.must_wait()
        engine.step()
    assert engine.engine.boundaries.must_wait()
    assert not sealed(engine).engine.boundaries.must_wait()


def test_once_training_steps_on_an_anchor_is_added_and_replaces_nothing() -> None:
    """After a rest or a restart nobody waits for the pending offer: the anchor may come between the
    call of `step()` and its end."""
    engine = offered(0)
    assert not engine.engine.boundaries.steps_on()
    pending = engine.fragment.pending
    assert pending is not None
    assert pending.offer is not None
    engine.receive(seal_of(BASE, pending.offer.entry))
    (advance,) = engine.jobs(Advance)
    assert (advance.merged_own_offer, advance.replace) == (True, False)


def test_training_steps_on_when_no_anchor_that_replaces_its_weights_is_moving() -> None:
    engine = offered(0)
    pending = engine.fragment.pending
    assert pending is not None
    assert pending.offer is not None
    engine.receive(seal_of(BASE, pending.offer.entry))
    (advance,) = engine.jobs(Advance)
    assert advance.replace
    assert engine.engine.boundaries.steps_on()
    engine.done(advance)
    assert not engine.engine.boundaries.steps_on()


@pytest.mark.parametrize("overlap", [None, 1])
def test_training_that_never_replaces_weights_steps_on_at_once(overlap: int | None) -> None:
    engine = offered(overlap)
    assert not engine.engine.boundaries.steps_on()
    pending = engine.fragment.pending
    assert pending is not None
    assert not pending.missed


def test_an_anchor_that_does_not_come_is_waited_for_once() -> None:
    engine = offered(0)
    assert engine.engine.boundaries.must_wait()
    engine.engine.boundaries.waited_out()
    for _ in range(10):
        assert not engine.engine.boundaries.must_wait()
        engine.step()


def test_under_a_fixed_overlap_an_anchor_that_comes_early_is_held_back() -> None:
    engine = sealed(offered(2))
    for _ in range(2):
        assert engine.engine.boundaries.holds_back(0)
        engine.step()
    assert not engine.engine.boundaries.holds_back(0)


def test_otherwise_an_anchor_is_taken_when_it_is_there() -> None:
    assert not sealed(offered(None)).engine.boundaries.holds_back(0)


def test_anchors_are_founded_from_what_was_trained_and_from_nothing_else() -> None:
    """The lesser model that has shown up takes ours; without a step there is nothing that it has
    not."""
    engine = DrivenEngine()
    engine.beat(PEER, genesis=b"a", step=0)
    engine.engine.state.mode = Mode.FOUNDING
    assert engine.engine.boundaries.fragments_to_copy() == []
    assert engine.engine.state.mode is Mode.SOLO
    engine.step()
    engine.beat(PEER, genesis=b"a", step=0)
    assert engine.engine.state.mode is Mode.FOUNDING
    assert engine.engine.boundaries.fragments_to_copy() == [0]
