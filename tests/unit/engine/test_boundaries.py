from __future__ import annotations

import pytest

from mend_optim.engine.adoption import Adopting
from mend_optim.engine.boundaries import Training
from mend_optim.engine.effects import Advance
from mend_optim.engine.policies import Policies
from mend_optim.engine.progress import Progress
from mend_optim.engine.schedule import Schedule
from mend_optim.engine.state import Books
from mend_optim.engine.stragglers import Watching
from mend_optim.protocol.lineage import Lineage, PeerId
from tests.support.engines import BASE, PEER, Engine, seal_of


def test_a_copy_that_was_broken_off_is_wanted_again() -> None:
    """Ctrl-C between reserving and copying: a fragment that stayed reserved would never be offered
    again."""
    books = Books(PeerId("a", 1), "", [], Policies(schedule=Schedule(sync_every=2)))
    books.fragments = [Progress(PeerId("me", 1), 0, Lineage.fresh(b"genesis"), mark=0)]
    books.joined, books.solo = True, False
    training = Training(books, Adopting(books), Watching(books))
    for _ in range(2):
        training.stepped(5, 1.0)
    assert training.wanted() == [0]
    training.reserve(0)
    assert training.wanted() == []
    training.release([0])
    assert training.wanted() == [0]
    assert books.fragments[0].unmerged(books.totals).tokens == 10


def offered(adopt_after: int | None) -> Engine:
    """A learner that has just offered to a peer that runs the rounds."""
    engine = Engine(seals=False, adopt_after=adopt_after)
    engine.beat()
    engine.offer()
    return engine


def sealed(engine: Engine) -> Engine:
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
        assert not engine.syncer.training.must_wait()
        engine.step()


@pytest.mark.parametrize("overlap", [0, 1, 3])
def test_under_a_fixed_overlap_an_anchor_is_waited_for_at_its_step_until_it_comes(
    overlap: int,
) -> None:
    engine = offered(overlap)
    for _ in range(overlap):
        assert not engine.syncer.training.must_wait()
        engine.step()
    assert engine.syncer.training.must_wait()
    assert not sealed(engine).syncer.training.must_wait()


def test_an_anchor_that_does_not_come_is_waited_for_once() -> None:
    engine = offered(0)
    assert engine.syncer.training.must_wait()
    engine.syncer.training.waited_out()
    for _ in range(10):
        assert not engine.syncer.training.must_wait()
        engine.step()


def test_under_a_fixed_overlap_an_anchor_that_comes_early_is_held_back() -> None:
    engine = sealed(offered(2))
    for _ in range(2):
        assert engine.syncer.training.holds_back(0)
        engine.step()
    assert not engine.syncer.training.holds_back(0)


def test_otherwise_an_anchor_is_taken_when_it_is_there() -> None:
    assert not sealed(offered(None)).syncer.training.holds_back(0)


def test_anchors_are_founded_from_what_was_trained_and_from_nothing_else() -> None:
    """The lesser model that has shown up takes ours; without a step there is nothing that it has
    not."""
    engine = Engine()
    engine.beat(PEER, genesis=b"a", step=0)
    engine.syncer.books.founding = "due"
    assert (engine.syncer.training.wanted(), engine.syncer.books.founding) == ([], "")
    engine.step()
    engine.beat(PEER, genesis=b"a", step=0)
    assert engine.syncer.books.founding == "due"
    assert engine.syncer.training.wanted() == [0]
