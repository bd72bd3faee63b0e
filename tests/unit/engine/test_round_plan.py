"""A sealer's next action, as a function of its view."""

from __future__ import annotations

from collections.abc import Sequence
from copy import deepcopy
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mend_optim.engine.pending import NEVER
from mend_optim.engine.policies import Policies
from mend_optim.engine.quorum import Grace
from mend_optim.engine.round import Phase, Round
from mend_optim.engine.round_plan import Plan, View, plan
from mend_optim.engine.schedule import Schedule
from mend_optim.protocol.lineage import Lineage, PeerId
from mend_optim.protocol.messages import Offer

BASE = Lineage.fresh(b"genesis")
A, B, C = (PeerId(name, 1) for name in "abc")
ALL = (A, B, C)
# H = 10 steps of 2 s: a period, and so an interval between launches, of 20 s.
FREE = Policies(schedule=Schedule(sync_every=10), grace=Grace(max_s=5.0))
LOCKSTEP = Policies(schedule=Schedule(sync_every=10, adopt_after=4), grace=Grace(max_s=5.0))
STEP_S = 2.0


def offer_of(peer: PeerId, steps: int = 5, due: bool = False) -> Offer:
    return Offer(
        peer=peer,
        fragment=0,
        seq=1,
        tokens=10 * steps,
        steps=steps,
        genesis=BASE.genesis,
        key=BASE.key,
        due=due,
    )


def waiting(*offers: Offer, sealed_at: float = 100.0) -> Round:
    """A round that waits; the one before was sealed at `sealed_at`."""
    round = Round(0)
    round.sealed_at = sealed_at
    for offer in offers:
        round.add(offer)
    return round


def calling(
    *offers: Offer, at: float = 100.0, again_at: float = 1000.0, sealed_at: float = -NEVER
) -> Round:
    """A round that has called at `at`."""
    round = waiting(*offers, sealed_at=sealed_at)
    round.launch(at)
    round.called((), 100.0, again_at)
    return round


def view(round: Round, now: float, **facts: Any) -> View:
    given: dict[str, Any] = {
        "expected": ALL,
        "awaited": ALL,
        "needed": 2,
        "period": 10,
        "step_s": STEP_S,
        "known_at": -NEVER,
        "all_rest": False,
        "behind_until": -NEVER,
    }
    return View(now=now, round=round, **{**given, **facts})


def planned(round: Round, now: float, policies: Policies = FREE, **facts: Any) -> Plan:
    return plan(view(round, now, **facts), policies)


# Not yet


def test_nothing_is_done_until_all_learners_know_one_another() -> None:
    round = waiting(*(offer_of(peer, due=True) for peer in ALL))
    assert planned(round, 101.0, known_at=101.5) == Plan(wake_at=101.5)
    assert planned(round, 101.5, known_at=101.5).seal == "all_present"


def test_a_round_that_is_under_way_stands_still_until_all_learners_know_one_another() -> None:
    round = calling(*(offer_of(peer) for peer in ALL), again_at=0.0)
    assert planned(round, 101.0, known_at=101.5) == Plan(wake_at=101.5)


@pytest.mark.parametrize(
    ("offers", "now", "wake_at"),
    [
        ([], 101.0, 120.0),
        ([], 121.0, NEVER),
        ([offer_of(B)], 101.0, 120.0),
        ([offer_of(A, steps=0)], 101.0, 120.0),
        # A learner at rest takes part in a round, and begins none.
        ([offer_of(A, steps=0)], 121.0, NEVER),
    ],
)
def test_a_round_waits_for_the_end_of_the_interval(
    offers: Sequence[Offer], now: float, wake_at: float
) -> None:
    assert planned(waiting(*offers), now) == Plan(wake_at=wake_at)


# Launch


@pytest.mark.parametrize(
    ("offers", "now", "why"),
    [
        ([offer_of(B, due=True)], 101.0, "somebody is due"),
        ([offer_of(B)], 120.0, "the interval has passed"),
        ([offer_of(B), offer_of(C)], 119.9, ""),
    ],
)
def test_a_round_is_launched_when_somebody_is_due_or_the_interval_has_passed(
    offers: Sequence[Offer], now: float, why: str
) -> None:
    found = planned(waiting(*offers), now, needed=3)
    missing = tuple(peer for peer in ALL if peer not in {offer.peer for offer in offers})
    assert (found.launch, found.call) == ((True, missing) if why else (False, None))


def test_a_round_that_has_all_offers_is_launched_and_sealed_at_once() -> None:
    round = waiting(*(offer_of(peer) for peer in ALL))
    assert planned(round, 101.0) == Plan(launch=True, call=(), collects=True, seal="all_present")


def test_learners_that_are_not_awaited_are_called_too() -> None:
    """A round does not wait for a slow learner, but takes what it offers in time."""
    round = waiting(offer_of(A), offer_of(B))
    found = planned(round, 101.0, awaited=(A, B))
    assert (found.launch, found.call, found.seal) == (True, (C,), "all_present")


def test_in_lockstep_there_is_no_interval() -> None:
    round = waiting(offer_of(B))
    assert not planned(round, 101.0).launch
    assert planned(round, 101.0, LOCKSTEP).launch
    # Nor is a seal held back that leaves somebody out.
    round = calling(offer_of(A), offer_of(B), at=100.0, sealed_at=100.0)
    round.note_quorum(100.0, 2)
    assert planned(round, 105.0, LOCKSTEP).seal == "grace_expired"
    assert planned(round, 105.0).seal == ""


def test_there_is_no_interval_while_all_learners_rest() -> None:
    """Before, a learner whose last work was left out of a round waited for as long as H steps took,
    and so did all others."""
    round = waiting(offer_of(B))
    assert not planned(round, 101.0).launch
    assert planned(round, 101.0, all_rest=True).launch
    round = calling(offer_of(A), offer_of(B), at=100.0, sealed_at=100.0)
    round.note_quorum(100.0, 2)
    assert planned(round, 105.0, all_rest=True).seal == "grace_expired"


# Call


@pytest.mark.parametrize(("now", "call"), [(100.9, None), (101.0, (A, C)), (250.0, (A, C))])
def test_learners_that_have_not_offered_are_called_again_after_a_beat(
    now: float, call: tuple[PeerId, ...] | None
) -> None:
    found = planned(calling(offer_of(B), again_at=101.0), now)
    assert (found.launch, found.call) == (False, call)


# A greater anchor


def test_nothing_is_sealed_while_a_greater_anchor_is_waited_for() -> None:
    round = waiting(*(offer_of(peer) for peer in ALL))
    assert planned(round, 101.0, behind_until=130.0) == Plan(launch=True, call=(), wake_at=130.0)
    assert planned(round, 130.0, behind_until=130.0).seal == "all_present"


# Decide


def test_of_no_work_nothing_is_sealed() -> None:
    round = calling(*(offer_of(peer, steps=0) for peer in ALL))
    assert planned(round, 100.5) == Plan()


def test_below_quorum_nothing_is_sealed_but_the_time_of_quorum_counts() -> None:
    round = calling(offer_of(A))
    assert planned(round, 999.0) == Plan(collects=True)


def test_quorum_waits_for_the_others_until_grace_has_expired() -> None:
    round = calling(offer_of(A), offer_of(B))
    assert planned(round, 103.0) == Plan(collects=True, wake_at=108.0)
    round.note_quorum(103.0, 2)
    assert planned(round, 107.9) == Plan(collects=True, wake_at=108.0)
    assert planned(round, 108.0) == Plan(collects=True, seal="grace_expired")


def test_a_seal_that_leaves_somebody_out_waits_for_the_interval_since_the_last() -> None:
    round = calling(offer_of(A), offer_of(B), at=100.0, sealed_at=100.0)
    round.note_quorum(100.0, 2)
    assert planned(round, 110.0) == Plan(collects=True, wake_at=120.0)
    assert planned(round, 120.0) == Plan(collects=True, seal="grace_expired")
    round.add(offer_of(C))
    assert planned(round, 110.0).seal == "all_present"


@pytest.mark.parametrize(
    ("adopt_after", "seconds"), [(None, 0.5 * (20 - 3 - 1)), (4, 0.5 * (8 - 3 - 1)), (0, 50.0)]
)
def test_grace_is_a_part_of_what_the_overlap_hides(adopt_after: int | None, seconds: float) -> None:
    """A whole period of 20 s unless `adopt_after` is given; all of `max_s` where nothing is
    hidden."""
    policies = Policies(
        schedule=Schedule(sync_every=10, adopt_after=adopt_after),
        grace=Grace(max_s=50.0, fraction=0.5),
    )
    round = calling(offer_of(A), offer_of(B))
    round.delays.quorum_took(3.0)
    round.delays.sync_took(1.0)
    assert planned(round, 103.0, policies).wake_at == 103.0 + seconds


# Properties


@st.composite
def rounds(draw: st.DrawFn) -> Round:
    offers = [
        offer_of(peer, draw(st.integers(0, 3)), draw(st.booleans()))
        for peer in draw(st.lists(st.sampled_from(ALL), unique=True))
    ]
    round = waiting(*offers, sealed_at=draw(st.sampled_from([-NEVER, 0.0, 90.0, 100.0])))
    if draw(st.booleans()):
        round.launch(100.0)
        round.called((), 100.0, draw(st.sampled_from([100.5, 101.0, 105.0])))
    if draw(st.booleans()):
        round.note_quorum(100.0, 2)
    return round


times = st.sampled_from([100.0, 101.0, 104.0, 110.0, 121.0, 300.0])


@st.composite
def views(draw: st.DrawFn) -> View:
    return view(
        draw(rounds()),
        draw(times),
        awaited=draw(st.sampled_from([ALL, (A, B), (A,)])),
        needed=draw(st.integers(1, 3)),
        step_s=draw(st.sampled_from([0.0, 0.1, STEP_S])),
        known_at=draw(st.sampled_from([-NEVER, 101.0])),
        behind_until=draw(st.sampled_from([-NEVER, 104.0])),
    )


policies = st.sampled_from([FREE, LOCKSTEP])


def content(round: Round) -> dict[str, Any]:
    return {name: deepcopy(value) for name, value in vars(round).items()}


@given(views(), policies)
def test_planning_changes_nothing_and_is_repeatable(seen: View, rules: Policies) -> None:
    before = content(seen.round)
    first = plan(seen, rules)
    assert content(seen.round) == before
    assert plan(seen, rules) == first


@given(views(), policies)
def test_a_plan_holds_together(seen: View, rules: Policies) -> None:
    """A round that is sealed has quorum and work, and has been launched; a peer that is called has
    not offered."""
    found, round = plan(seen, rules), seen.round
    if found.launch:
        assert round.phase is Phase.WAITING
        assert found.call is not None
    if round.phase is Phase.WAITING and not found.launch:
        assert (found.call, found.collects, found.seal) == (None, False, "")
    if found.call is not None:
        assert found.call == tuple(peer for peer in ALL if peer not in round.inbox)
    if found.seal:
        assert found.collects
        assert round.has_work
        assert len(round.inbox) >= seen.needed
        assert seen.now >= max(seen.known_at, seen.behind_until)
        assert found.seal == (
            "all_present" if set(seen.awaited) <= set(round.inbox) else "grace_expired"
        )
    assert found.wake_at > seen.now


@settings(max_examples=1000)  # of which some forty have to look again
@given(views(), policies)
def test_a_sealer_that_looks_again_when_the_plan_says_so_finds_something_to_do(
    seen: View, rules: Policies
) -> None:
    """Each look either ends the wait or names a later time, so that a sealer never spins; and
    nothing is missed before."""
    found = plan(seen, rules)
    if found.launch or found.call or found.seal or found.wake_at == NEVER:
        return
    if found.collects:
        seen.round.note_quorum(seen.now, seen.needed)
    facts = {
        "awaited": seen.awaited,
        "needed": seen.needed,
        "step_s": seen.step_s,
        "known_at": seen.known_at,
        "behind_until": seen.behind_until,
    }
    between = planned(seen.round, (seen.now + found.wake_at) / 2, rules, **facts)
    assert not between.seal
    assert not between.launch
    later = planned(seen.round, found.wake_at, rules, **facts)
    assert later.launch or later.seal or later.wake_at > found.wake_at
