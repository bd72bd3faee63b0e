"""A learner that hears of another process of its name: it takes a later incarnation, waits for one
that may be dead, or is refused."""

from __future__ import annotations

from typing import Any

import pytest

from mend_optim.engine.effects import Advance
from mend_optim.engine.engine import Engine
from mend_optim.engine.ledger import Event
from mend_optim.engine.policies import Policies
from mend_optim.engine.schedule import Schedule
from mend_optim.protocol.handshake import Life, Namesake
from mend_optim.protocol.lineage import INCARNATIONS, Claim, PeerId
from mend_optim.protocol.messages import Beat, Offer
from tests.support.engines import (
    BASE,
    GENESIS,
    ME,
    PEER,
    THIRD,
    DrivenEngine,
    among_peers,
    offer_of,
    pass_until,
)

SEED = "peer:1"
LATER = PeerId("me", 10**18)
NEW = ME.beyond(LATER.incarnation)
GONE, SUSPECTED, ALIVE = (Namesake(LATER, life) for life in (Life.GONE, Life.SUSPECTED, Life.ALIVE))
STARTED = "2001-09-09 01:46:40 UTC"


def engine() -> Engine:
    return Engine(ME, "me:1", (SEED,), Policies(schedule=Schedule(sync_every=4)), 0.0)


def begun() -> Engine:
    made = engine()
    made.begin(0.0, GENESIS, (b"",))
    return made


def told(one: Engine, now: float, *kinds: str) -> list[Event]:
    return [e for e in one.drain(now) if isinstance(e, Event) and e.kind in kinds]


def hear(one: DrivenEngine, **facts: Any) -> None:
    one.receive(Beat(peer=PEER, address=SEED, count=100, **facts))


# Gone: it takes an incarnation beyond it


@pytest.mark.parametrize("made", [engine, begun])
def test_it_counts_as_started_after_a_process_that_is_gone(made: Any) -> None:
    one = made()
    assert one.outranked(1.0, SEED, GONE)
    assert one.state.me == one.state.roster.me == NEW
    (event,) = told(one, 1.0, "renewed")
    assert event.facts == {"address": SEED, "before": 1, "after": NEW.incarnation}
    assert SEED in event.text
    assert STARTED in event.text


def test_it_waits_from_the_start_for_those_that_will_let_it_in_now() -> None:
    one = begun()
    one.outranked(1.0, SEED, SUSPECTED)
    pass_until(one, 34.0)
    one.outranked(34.0, SEED, GONE)
    pass_until(one, 63.9)
    assert not one.state.joined
    pass_until(one, 64.1)
    assert one.state.joined


def test_it_goes_beyond_the_latest_that_anybody_tells() -> None:
    one = engine()
    one.outranked(1.0, SEED, GONE)
    assert not one.outranked(1.0, "third:1", Namesake(PeerId("me", 10**17), Life.GONE))
    assert one.state.me == NEW
    latest = PeerId("me", 2 * 10**18)
    assert one.outranked(1.0, "third:1", Namesake(latest, Life.GONE))
    assert one.state.me == NEW.beyond(latest.incarnation)


def test_a_goodbye_of_its_own_incarnation_is_exceeded_too() -> None:
    assert engine().outranked(1.0, SEED, Namesake(ME, Life.GONE))


@pytest.mark.parametrize("life", [Life.ALIVE, Life.SUSPECTED])
def test_an_answer_that_comes_late_is_not_about_another_process(life: Life) -> None:
    """It answers a hello of the former incarnation, after the peer has met the present one."""
    one = begun()
    one.outranked(1.0, SEED, GONE)
    assert not one.outranked(1.1, SEED, Namesake(NEW, life))
    assert told(one, 1.1, "refused") == []
    assert not one.state.seeds.held


def test_another_name_is_none_of_its_business() -> None:
    assert not engine().outranked(1.0, SEED, Namesake(PeerId("you", 10**18), Life.GONE))


def test_there_is_nothing_beyond_the_greatest_incarnation() -> None:
    one = engine()
    assert not one.outranked(1.0, SEED, Namesake(PeerId("me", INCARNATIONS - 1), Life.GONE))
    assert one.state.me == ME


def test_a_learner_that_has_left_stays_what_it_was() -> None:
    one = engine()
    one.leave(0.5)
    assert not one.outranked(1.0, SEED, GONE)


# After training


def test_an_offer_on_its_way_and_work_after_it_stay_those_of_the_former_incarnation() -> None:
    one = among_peers()
    before = one.offer()
    one.step(2)
    one.engine.outranked(one.now, SEED, GONE)
    assert one.fragment.pending
    assert one.fragment.pending.offer
    again = one.fragment.pending.offer
    assert (again.peer, again.seq, again.claim) == (NEW, before.seq, before.claim)
    assert again.sections == before.sections
    assert one.fragment.claim == Claim(ME, before.seq)
    one.sent(Offer)
    one.beat()
    one.tick(1.0)
    assert one.sent(Offer)[-1][1].peer == NEW


def test_work_of_which_nothing_was_offered_is_offered_in_the_former_name() -> None:
    one = among_peers()
    one.step(2)
    one.engine.outranked(one.now, SEED, GONE)
    offer = one.offer(2)
    assert (offer.peer, offer.claim, offer.steps) == (NEW, Claim(ME, 0), 4)
    assert offer.seq >= NEW.incarnation


def test_what_is_trained_later_is_its_own() -> None:
    one = among_peers()
    one.engine.outranked(one.now, SEED, GONE)
    offer = one.offer()
    assert (offer.peer, offer.claim, offer.seq) == (NEW, Claim(NEW, 0), 1)


def test_at_its_own_rounds_it_counts_once() -> None:
    one = DrivenEngine(quorum=2)
    one.beat()
    one.offer()
    one.sent(Offer)
    assert list(one.engine.state.rounds[0].inbox) == [ME]
    one.engine.outranked(one.now, SEED, GONE)
    one.tick(1.0)
    one.sent(Offer)
    assert list(one.engine.state.rounds[0].inbox) == [NEW]


def test_a_seal_that_it_made_before_is_its_own() -> None:
    one = DrivenEngine(quorum=2)
    one.beat()
    one.offer()
    one.receive(offer_of(PEER))
    for inspect in one.jobs(object):
        one.done(inspect)
    merge = one.merge()
    one.reserve()
    one.fragment.motion = type(one.fragment.motion).SNAPSHOT
    one.done(merge)
    assert one.jobs(Advance) == []
    one.engine.outranked(one.now, SEED, GONE)
    one.fragment.copied()
    one.engine.outcomes.go_on(one.now, 0)
    (advance,) = one.jobs(Advance)
    assert advance.sealed_here
    assert not advance.sealed_by_predecessor


# Suspected: it waits


def test_before_its_first_step_it_waits_for_the_eviction_and_says_so() -> None:
    one = engine()
    one.outranked(0.0, SEED, SUSPECTED)
    one.begin(10.0, GENESIS, (b"",))
    (event,) = told(one, 10.0, "waiting", "refused")
    cause = f"this learner's earlier process, started {STARTED}, is not yet given up there"
    assert event.text == f"waiting up to 30 s for {SEED} ({cause})"


def test_it_waits_longer_than_for_learners_that_may_never_come() -> None:
    one = begun()
    pass_until(one, 25.0)
    one.outranked(25.0, SEED, SUSPECTED)
    pass_until(one, 40.0)
    pass_until(one, 50.0)
    one.outranked(50.0, SEED, SUSPECTED)
    assert not one.state.joined
    pass_until(one, 25.0 + one.state.policies.timing.evict_after_s + 3.9)
    assert not one.state.joined
    pass_until(one, 25.0 + one.state.policies.timing.evict_after_s + 4.1)
    assert one.state.joined


def test_a_peer_that_lets_it_in_is_waited_for_no_more() -> None:
    one = begun()
    pass_until(one, 25.0)
    one.outranked(25.0, SEED, SUSPECTED)
    one.met(26.0, PEER, SEED, SEED)
    pass_until(one, 30.5)
    assert not one.state.joined
    one.linked(30.6, PEER, True)
    pass_until(one, 31.0)
    assert one.state.joined


# Alive: it is refused, and both hear of it


def test_the_one_that_is_turned_away_hears_of_it_once() -> None:
    one = begun()
    one.outranked(1.0, SEED, ALIVE)
    one.outranked(3.0, SEED, ALIVE)
    (event,) = told(one, 3.0, "refused")
    assert event.facts == {"address": SEED, "reason": ALIVE.reason(ME)}
    assert not one.state.joined
    pass_until(one, 30.0)
    (event,) = told(one, 30.0, "alone")
    assert f"{SEED} (another process of this name, started {STARTED}, is alive)" in event.text
    assert "end that process" in event.text


def test_the_living_one_hears_of_it_once() -> None:
    one = DrivenEngine()
    one.beat()
    early = PeerId("me", 0)
    others = (PeerId("you", 0), LATER, ME)
    hear(one, turned_away=(*others, early))
    hear(one, turned_away=(early,))
    (event,) = one.events("refused")
    assert event.facts == {"address": SEED, "reason": Namesake(ME, Life.ALIVE).reason(early)}


def test_it_does_not_hear_of_itself() -> None:
    """A peer turned it away before it took another incarnation."""
    one = DrivenEngine()
    one.engine.outranked(one.now, SEED, GONE)
    one.beat()
    hear(one, turned_away=(ME,))
    assert one.events("refused") == []


def test_a_learner_tells_in_its_beats_whom_it_turns_away() -> None:
    one = DrivenEngine()
    one.beat(PeerId("peer", 2))
    one.beat(THIRD)
    assert not one.engine.met(one.now, PEER, "")
    one.sent(Beat)
    one.tick(1.0)
    beats = [beat for _, beat in one.sent(Beat)]
    assert {beat.turned_away for beat in beats} == {(PEER,)}
    assert BASE.tokens == 0
