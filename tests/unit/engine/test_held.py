"""Fragments whose copy is decided on before it is made, and counted afterwards."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mend_optim.engine.effects import Advance, Prepare
from mend_optim.engine.mode import Change, Mode
from mend_optim.engine.progress import Motion
from mend_optim.protocol.messages import Goodbye
from tests.support.engines import BASE, PEER, DrivenEngine, among_peers, seal_of

UNTIL = 50.0


def held(steps: int = 2) -> DrivenEngine:
    """A learner that has decided so many steps before the boundary to copy its fragment there."""
    driven = among_peers()
    for _ in range(4 - steps):
        driven.step()
    boundaries = driven.engine.boundaries
    assert boundaries.wanted_in(steps) == 0
    boundaries.hold(0, UNTIL)
    return driven


def take(driven: DrivenEngine) -> bool:
    return driven.engine.outcomes.take_held(driven.now, 0)


def test_a_copy_is_counted_with_the_steps_that_are_in_it() -> None:
    driven = held(steps=2)
    driven.step()
    driven.step()
    assert driven.engine.boundaries.fragments_to_copy() == []
    assert take(driven)
    pending = driven.fragment.pending
    assert pending is not None
    assert (pending.step, pending.steps, pending.due) == (4, 4, True)
    driven.engine.boundaries.snapshot(0, None)
    (prepare,) = driven.jobs(Prepare)
    assert prepare.seq == pending.seq


def test_an_anchor_that_is_held_stands_still_and_takes_the_news_when_it_is_let_go() -> None:
    driven = held()
    driven.receive(seal_of(BASE))
    assert driven.jobs(Advance) == []
    assert driven.fragment.deferred_news is not None
    driven.engine.outcomes.let_go(driven.now, 0)
    assert len(driven.jobs(Advance)) == 1


def test_nothing_else_is_done_with_a_fragment_that_is_held() -> None:
    driven = held()
    assert driven.engine.boundaries.wanted_in(0) is None
    assert driven.engine.boundaries.wanted_in(5) is None
    with pytest.raises(KeyError):
        driven.fragment.move()


def test_an_anchor_is_held_no_longer_than_it_was_told() -> None:
    """Training may pause for hours, and the peers wait for this learner's anchor."""
    driven = held()
    driven.receive(seal_of(BASE))
    driven.engine.tick(UNTIL - 0.1)
    assert driven.fragment.motion is Motion.HELD
    driven.engine.tick(UNTIL)
    assert driven.fragment.motion is not Motion.HELD
    assert len(driven.jobs(Advance)) == 1
    assert not take(driven)
    assert driven.fragment.pending is None


def test_a_copy_that_was_let_go_is_no_offer_even_if_nothing_has_moved() -> None:
    driven = held()
    driven.engine.outcomes.let_go(driven.now, 0)
    driven.step()
    driven.step()
    assert not take(driven)
    assert driven.engine.boundaries.fragments_to_copy() == [0]


def test_a_copy_for_peers_that_have_left_is_no_offer() -> None:
    driven = held()
    driven.receive(Goodbye(PEER))
    driven.engine.tick(driven.now)
    assert driven.engine.state.mode is Mode.SOLO
    assert not take(driven)
    assert driven.fragment.is_still


def test_a_closed_learner_lets_go() -> None:
    driven = held()
    driven.engine.state.change(Change.LEFT)
    assert not take(driven)
    assert driven.fragment.is_still


@given(
    fragments=st.integers(1, 3),
    taken=st.integers(1, 9),
    steps=st.integers(0, 6),
    asked=st.lists(st.integers(0, 2), max_size=2),
    busy=st.lists(st.integers(0, 2), max_size=2),
    gone=st.booleans(),
)
def test_a_decision_ahead_is_the_one_that_would_be_made_then(
    fragments: int, taken: int, steps: int, asked: list[int], busy: list[int], gone: bool
) -> None:
    driven = among_peers(fragments=fragments, sync_every=6)
    for _ in range(taken):
        driven.step()
    for p in asked:
        driven.engine.state.fragments[p % fragments].request_offer()
    for p in set(busy):
        fragment = driven.engine.state.fragments[p % fragments]
        if fragment.is_still:
            fragment.move()
    if gone:
        driven.receive(Goodbye(PEER))
        driven.engine.tick(driven.now)
    boundaries = driven.engine.boundaries
    decided = boundaries.wanted_in(steps)
    # The slow twin: take the steps, and look.
    for _ in range(steps):
        boundaries.stepped(1, None)
    wanted = boundaries.fragments_to_copy()
    starts = {p: (driven.engine.state.fragments[p].cycle_start, p) for p in wanted}
    assert decided == min(starts, key=starts.__getitem__, default=None)
