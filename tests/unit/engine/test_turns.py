"""A learner that waits in lockstep is called for another fragment."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from mend_optim.engine.accounts import Totals
from mend_optim.engine.effects import Advance
from mend_optim.protocol.lineage import Entry
from mend_optim.protocol.messages import Call, Offer
from tests.support.engines import PEER, DrivenEngine, among_peers, grown, seal_of

H = 4


def call(engine: DrivenEngine, p: int) -> None:
    """The sealer of fragment `p` asks, on the anchor that this learner has."""
    engine.receive(Call(PEER, p, engine.engine.state.fragments[p].lineage.key))


def sealed(engine: DrivenEngine, p: int) -> None:
    """A round of fragment `p` has this learner's pending offer, or another learner's."""
    fragment = engine.engine.state.fragments[p]
    offer = fragment.pending and fragment.pending.offer
    entries: list[Entry] = [offer.entry] if offer else []
    engine.receive(replace(seal_of(fragment.lineage, *entries), fragment=p))
    (advance,) = engine.jobs(Advance)
    engine.done(advance)
    if not engine.engine.boundaries.holds_back(p):
        engine.engine.correction_applied(engine.now, p, False)


def copies(engine: DrivenEngine) -> list[int]:
    """The fragments that are wanted now, of which copies become offers."""
    wanted = engine.engine.boundaries.fragments_to_copy()
    engine.reserve()
    for p in wanted:
        engine.copied(p)
    return wanted


def waiting(ahead: int, adopt_after: int = 0, called: bool = False, **options: Any) -> DrivenEngine:
    """One that has offered fragment 0 at its first boundary, and waits for its anchor. That has had
    `ahead` rounds of others before. `called`: it is called for fragment 1 before it waits."""
    engine = among_peers(adopt_after=adopt_after, fragments=2, sync_every=H, **options)
    engine.step(1)
    for _ in range(ahead):
        sealed(engine, 0)
    if called:
        call(engine, 1)
        assert copies(engine) == []
    engine.step(1)
    assert copies(engine) == [0]
    engine.step(adopt_after)
    assert engine.engine.boundaries.must_wait()
    engine.sent(Offer)
    return engine


@pytest.mark.parametrize("adopt_after", [0, 1])
def test_one_that_waits_for_a_later_round_offers_at_once_and_keeps_its_boundary(
    adopt_after: int,
) -> None:
    engine = waiting(1, adopt_after)
    assert copies(engine) == []
    call(engine, 1)
    assert copies(engine) == [1]
    ((to, early),) = engine.sent(Offer)
    assert (to, early.fragment, early.steps, early.due) == (PEER, 1, 2 + adopt_after, False)
    sealed(engine, 1)
    assert not engine.engine.state.fragments[1].correction_pending  # it is adopted at once
    assert copies(engine) == []
    sealed(engine, 0)
    assert not engine.engine.boundaries.must_wait()
    engine.step(2 - adopt_after)
    assert copies(engine) == [1]
    ((_, offer),) = engine.sent(Offer)
    assert (offer.steps, offer.due) == (2 - adopt_after, True)


def test_a_call_that_comes_before_it_waits_is_answered_then() -> None:
    engine = waiting(1, called=True)
    assert copies(engine) == [1]


@pytest.mark.parametrize("called", [False, True])
def test_one_that_waits_for_an_earlier_round_does_not(called: bool) -> None:
    """As where all learners are aligned: one of them is ahead, and this one's anchor is on its
    way."""
    engine = waiting(0, called=called)
    call(engine, 1)
    assert copies(engine) == []
    assert engine.sent(Offer) == []


def test_one_that_steps_on_does_not() -> None:
    engine = waiting(1)
    call(engine, 1)
    engine.engine.boundaries.waited_out()
    assert copies(engine) == []


def test_a_call_on_another_anchor_is_not_answered_by_the_work_on_this_one() -> None:
    engine = waiting(1)
    lineage = engine.engine.state.fragments[1].lineage
    engine.receive(Call(PEER, 1, grown(lineage).key))
    assert copies(engine) == []


def test_one_without_new_work_takes_part_with_nothing() -> None:
    engine = waiting(3)
    call(engine, 1)
    assert copies(engine) == [1]
    sealed(engine, 1)
    engine.sent(Offer)
    call(engine, 1)
    ((to, nothing),) = engine.sent(Offer)
    assert (to, nothing.fragment, nothing.steps, nothing.seq) == (PEER, 1, 0, 0)


def test_an_added_group_waits_for_its_boundary() -> None:
    """Its versions begin at 0, whenever it is added: aligned learners would offer it early."""
    engine = among_peers(adopt_after=0, fragments=2, sync_every=H)
    state = engine.engine.state
    engine.step(1)
    for p in (0, 0, 1):
        sealed(engine, p)
    state.extend(b"digest", Totals(), (b"", b"", b"added"))
    engine.beat()
    engine.step(1)
    assert copies(engine) == [0]
    call(engine, 2)
    assert engine.engine.boundaries.must_wait()
    assert copies(engine) == []


def test_where_nobody_waits_for_a_round_no_call_is_kept() -> None:
    """Each step would look at them."""
    engine = among_peers(fragments=2, sync_every=H)
    engine.step(1)
    call(engine, 1)
    assert not engine.engine.offers.turns._called_on


def test_buffers_take_turns_as_all_fragments() -> None:
    engine = waiting(1, buffers=True)
    call(engine, 2)
    assert copies(engine) == [2]
