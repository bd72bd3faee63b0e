"""Which peer a greater model is fetched from, when some peers lack a group of this learner's."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from mend_optim.engine.effects import Install, Retake
from mend_optim.engine.model_parts import MEETING_BEATS
from mend_optim.membership.seeds import Seeds
from mend_optim.protocol.lineage import Lineage, PeerId, Rollback
from mend_optim.protocol.messages import Want
from mend_optim.protocol.transfer_fault import BROKEN
from tests.support.engines import (
    BASE,
    FOURTH,
    ME,
    OTHER,
    PEER,
    THIRD,
    DrivenEngine,
    among_peers,
    grown,
    state_of,
)

MUCH = Lineage(tokens=10**6, version=9, digest=OTHER, genesis=OTHER)


def rolled(number: int = 1) -> Lineage:
    return grown(BASE).rolled_back(Rollback(number, "third").genesis())


def show(engine: DrivenEngine, peer: PeerId, lineage: Lineage, fragments: int) -> None:
    engine.beat(peer, *[lineage] * fragments, genesis=lineage.genesis)


def asked(engine: DrivenEngine) -> set[PeerId]:
    return {to for to, _ in engine.sent(Want)}


def met(engine: DrivenEngine) -> None:
    """A learner is there, and has said nothing yet."""
    engine.engine.met(engine.now, THIRD, "third:1")


def cut_off(engine: DrivenEngine) -> None:
    """A learner that this one has heard is suspected: it may have another model by now."""
    show(engine, THIRD, BASE, 1)
    engine.engine.linked(engine.now, THIRD, False)


def sought(engine: DrivenEngine) -> None:
    """Nobody has been met yet at an address that the user gave."""
    engine.engine.state.seeds = Seeds(("third:1",))


def behind(engine: DrivenEngine) -> None:
    """A learner with the group has not shown yet that it follows the rollback, or began it."""
    show(engine, THIRD, BASE, 2)


UNHEARD = pytest.mark.parametrize("unheard", [met, cut_off, sought, behind])


@UNHEARD
def test_a_part_of_a_model_after_a_rollback_is_left_until_another_learner_shows_all(
    unheard: Callable[[DrivenEngine], None],
) -> None:
    """Else a group that the rollback took back would go on from where it was here."""
    engine = among_peers(fragments=2)
    unheard(engine)
    show(engine, PEER, rolled(), 1)
    assert asked(engine) == set()
    show(engine, THIRD, rolled(), 2)
    assert asked(engine) == {THIRD}


@UNHEARD
def test_it_is_fetched_after_some_beats_if_nobody_shows_more(
    unheard: Callable[[DrivenEngine], None],
) -> None:
    engine = among_peers(fragments=2)
    unheard(engine)
    begun, beat_s = engine.now, engine.engine.state.policies.timing.beat_s
    while not asked(engine):
        assert engine.now <= begun + MEETING_BEATS * beat_s
        engine.tick(beat_s)
        show(engine, PEER, rolled(), 1)
    assert engine.now > begun + MEETING_BEATS * beat_s


def test_a_stop_takes_nothing_from_the_wait_for_more() -> None:
    engine = among_peers(fragments=2)
    met(engine)
    show(engine, PEER, rolled(), 1)
    engine.tick(1.0)
    engine.now += 1000.0
    engine.engine.tick(engine.now)
    show(engine, PEER, rolled(), 1)
    assert asked(engine) == set()


def test_it_is_fetched_at_once_if_no_other_learner_has_the_group() -> None:
    engine = DrivenEngine(seals=False, fragments=2)
    show(engine, THIRD, BASE, 1)
    show(engine, PEER, rolled(), 1)
    assert asked(engine) == {PEER}


def test_a_learner_with_the_model_of_another_rollback_is_not_awaited() -> None:
    """It is not about to show this one because of a rollback that it has yet to hear of."""
    engine = DrivenEngine(seals=False, fragments=2)
    greater = MUCH.rolled_back(Rollback(1, "fourth").genesis())
    show(engine, THIRD, rolled(), 2)
    assert asked(engine) == {THIRD}
    engine.engine.undelivered(engine.now, THIRD, Want(ME, 0, b""), BROKEN)
    show(engine, PEER, greater, 1)
    assert asked(engine) == {PEER}


def test_nobody_is_awaited_for_all_of_a_model() -> None:
    engine = among_peers(fragments=2)
    met(engine)
    show(engine, PEER, rolled(), 2)
    assert asked(engine) == {PEER}


def test_nobody_is_awaited_for_another_model_without_a_rollback() -> None:
    """No work was given up for it."""
    engine = DrivenEngine(seals=False, fragments=2)
    met(engine)
    show(engine, PEER, MUCH, 1)
    assert asked(engine) == {PEER}


def test_for_a_second_rollback_it_waits_again() -> None:
    engine = among_peers(fragments=2)
    met(engine)
    show(engine, PEER, rolled(), 1)
    for _ in range(MEETING_BEATS + 1):
        engine.tick(engine.engine.state.policies.timing.beat_s)
    show(engine, PEER, rolled(), 1)
    assert engine.sent(Want) == [(PEER, Want(ME, 0, b""))]
    engine.receive(state_of(rolled()))
    (install,) = engine.jobs(Install)
    engine.done(install)
    (retake,) = engine.jobs(Retake)
    engine.done(retake)
    engine.engine.met(engine.now, FOURTH, "fourth:1")
    show(engine, PEER, rolled(2), 1)
    assert asked(engine) == set()
    for _ in range(MEETING_BEATS):
        engine.tick(engine.engine.state.policies.timing.beat_s)
    show(engine, PEER, rolled(2), 1)
    assert asked(engine) == {PEER}
