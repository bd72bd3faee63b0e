"""A sealer that is stopped in a round: others may have merged the offers that it holds."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from mend_optim.engine.effects import Inspect, Merge
from mend_optim.engine.engine import Engine
from mend_optim.engine.policies import Policies
from mend_optim.engine.round import Phase
from mend_optim.engine.schedule import Schedule
from mend_optim.engine.state import TRIAL
from mend_optim.engine.waiting import UNRESOLVED
from mend_optim.membership.broadcasts import FANOUT
from mend_optim.membership.stops import Stops
from mend_optim.protocol.lineage import PeerId
from mend_optim.protocol.messages import Beat, Offer, Seal, Want
from mend_optim.protocol.timing import Timing
from mend_optim.protocol.transfer_fault import BROKEN
from mend_optim.protocol.unreached import Unreached
from tests.support.engines import (
    GENESIS,
    ME,
    PEER,
    THIRD,
    DrivenEngine,
    grown,
    offer_of,
    pass_until,
)

STOP_S = 100.0


def sealer(*offered: PeerId) -> DrivenEngine:
    """A sealer of three learners. It has its own offer, and those of these peers."""
    engine = DrivenEngine(quorum=3)
    for peer in (PEER, THIRD):
        engine.beat(peer)
        engine.engine.linked(engine.now, peer, True)
    engine.offer()
    for peer in offered:
        admit(engine, offer_of(peer))
    return engine


def admit(engine: DrivenEngine, offer: Offer) -> None:
    engine.receive(offer)
    for inspect in engine.jobs(Inspect):
        engine.done(inspect)


def merges(engine: DrivenEngine) -> list[list[PeerId]]:
    return [[offer.peer for offer in job.offers] for job in engine.jobs(Merge)]


def answer(engine: DrivenEngine, *peers: PeerId) -> None:
    for peer in peers or (PEER, THIRD):
        engine.beat(peer, engine.lineage, pong=engine.engine.state.question.number)


def stopped_in_a_merge(looks: bool) -> DrivenEngine:
    """The worker is the first to go on, or the network loop is."""
    engine = sealer(PEER, THIRD)
    merge = engine.merge()
    engine.now += STOP_S
    if looks:
        engine.engine.tick(engine.now)
    engine.done(merge)
    return engine


@pytest.mark.parametrize("looks", [True, False])
def test_what_a_stopped_learner_has_merged_is_no_seal(looks: bool) -> None:
    engine = stopped_in_a_merge(looks)
    assert engine.sent(Seal) == []
    assert engine.engine.state.rounds[0].phase is not Phase.MERGING
    engine.engine.tick(engine.now)
    assert merges(engine) == []


@pytest.mark.parametrize("looks", [True, False])
def test_it_merges_again_once_the_peers_have_said_that_nobody_else_did(looks: bool) -> None:
    engine = stopped_in_a_merge(looks)
    engine.engine.tick(engine.now)
    engine.beat(PEER)  # it was on its way when the learner was stopped
    answer(engine, THIRD)
    assert merges(engine) == []
    answer(engine, PEER)
    engine.done(engine.merge())
    assert engine.sent(Seal)


def test_it_waits_for_the_anchor_of_those_that_merged_without_it() -> None:
    engine = stopped_in_a_merge(looks=True)
    newer = grown(engine.lineage, offer_of(PEER).entry, offer_of(THIRD).entry)
    engine.engine.state.adopted_since_rollback = TRIAL  # one peer alone is not believed
    for peer in (PEER, THIRD):
        engine.beat(peer, newer, pong=engine.engine.state.question.number)
        assert merges(engine) == []
    engine.tick(1.0)
    assert merges(engine) == []


def test_while_a_sealer_is_stopped_it_waits_for_no_greater_anchor() -> None:
    """It has a while left to pull it."""
    engine = sealer(PEER)
    shown = {PEER: grown(grown(engine.lineage)), THIRD: engine.lineage}
    engine.beat(PEER, shown[PEER])
    engine.now += STOP_S
    engine.engine.tick(engine.now)
    for peer, lineage in shown.items():
        engine.beat(peer, lineage, pong=engine.engine.state.question.number)
    admit(engine, offer_of(THIRD))
    assert merges(engine) == []
    for _ in range(round(engine.engine.state.policies.timing.round_timeout_s) + 1):
        engine.tick(1.0)
        for peer, lineage in shown.items():
            engine.beat(peer, lineage)
    assert merges(engine) == [[ME, PEER, THIRD]]


def test_it_does_not_wait_for_an_answer_for_ever() -> None:
    engine = stopped_in_a_merge(looks=True)
    evict_after_s = engine.engine.state.policies.timing.evict_after_s
    for _ in range(round(evict_after_s) - 1):
        engine.tick(1.0)
        for peer in (PEER, THIRD):
            engine.beat(peer)
    assert merges(engine) == []
    engine.tick(1.0)
    assert merges(engine) == [[ME, PEER, THIRD]]


def test_after_a_wait_without_an_answer_it_asks_again_at_the_next_stop() -> None:
    engine = sealer(PEER)
    engine.now += STOP_S
    timing = engine.engine.state.policies.timing
    for _ in range(round(timing.evict_after_s) + 5):
        engine.tick(1.0)
        for peer in (PEER, THIRD):
            engine.beat(peer)
    asked(engine)
    engine.now += 2 * timing.suspect_after_s
    engine.engine.tick(engine.now)
    ping = engine.engine.state.question.number
    assert asked(engine) == {PEER: ping, THIRD: ping}
    admit(engine, offer_of(THIRD))
    assert merges(engine) == []
    answer(engine)
    assert merges(engine) == [[ME, PEER, THIRD]]


def test_a_merge_that_stops_its_learner_each_time_is_a_seal_after_all() -> None:
    """Else there would be no round at all."""
    engine = stopped_in_a_merge(looks=False)
    engine.engine.tick(engine.now)
    answer(engine)
    merge = engine.merge()
    engine.now += STOP_S
    engine.done(merge)
    assert engine.sent(Seal)


@pytest.mark.parametrize("looks", [True, False])
def test_a_learner_that_was_stopped_before_it_merges_asks_first(looks: bool) -> None:
    """The last offer comes as it goes on."""
    engine = sealer(PEER)
    engine.now += STOP_S
    if looks:
        engine.engine.tick(engine.now)
    admit(engine, offer_of(THIRD))
    engine.engine.tick(engine.now)
    assert merges(engine) == []
    answer(engine)
    assert merges(engine) == [[ME, PEER, THIRD]]


def test_an_answer_from_before_the_stop_does_not_count() -> None:
    engine = sealer(PEER)
    engine.engine.beats.ask_all()
    answer(engine)
    former = engine.engine.state.question.number
    engine.now += STOP_S
    engine.engine.tick(engine.now)
    admit(engine, offer_of(THIRD))
    for peer in (PEER, THIRD):
        engine.beat(peer, pong=former)
    assert merges(engine) == []


def test_where_all_links_broke_it_waits_until_one_is_back() -> None:
    engine = stopped_in_a_merge(looks=True)
    for peer in (PEER, THIRD):
        engine.engine.linked(engine.now, peer, False)
    engine.tick(1.0)
    assert merges(engine) == []
    for peer in (PEER, THIRD):
        engine.engine.linked(engine.now, peer, True)
    assert merges(engine) == []
    answer(engine)
    assert merges(engine) == [[ME, PEER, THIRD]]


def show_more(engine: DrivenEngine, pong: int = 0) -> None:
    for peer in (PEER, THIRD):
        engine.beat(peer, grown(engine.lineage), pong=pong)


def break_links(engine: DrivenEngine) -> None:
    """Both peers are suspected."""
    for peer in (PEER, THIRD):
        engine.engine.linked(engine.now, peer, False)


def fail(engine: DrivenEngine) -> None:
    """Nobody hands the anchor over that both peers show, so both are doubted."""
    show_more(engine)
    while wants := engine.sent(Want):
        for peer, want in wants:
            engine.engine.undelivered(engine.now, peer, want, BROKEN)
        show_more(engine)


@pytest.mark.parametrize("accident", [break_links, fail])
def test_it_waits_for_a_while_for_what_it_was_shown(
    accident: Callable[[DrivenEngine], None],
) -> None:
    """The others have evicted it, and hang up as it goes on."""
    engine = sealer(PEER)
    engine.engine.state.adopted_since_rollback = TRIAL
    evict_after_s = engine.engine.state.policies.timing.evict_after_s
    engine.now += evict_after_s
    engine.engine.tick(engine.now)
    show_more(engine, pong=engine.engine.state.question.number)
    accident(engine)
    admit(engine, offer_of(THIRD))
    for _ in range(round(evict_after_s) - 1):
        engine.tick(1.0)
        accident(engine)
        assert merges(engine) == []
    engine.tick(1.0)
    accident(engine)
    assert merges(engine) == [[ME, PEER, THIRD]]


def test_it_does_not_wait_for_what_one_of_two_peers_alone_has_shown() -> None:
    engine = sealer(PEER)
    engine.engine.state.adopted_since_rollback = TRIAL
    engine.now += STOP_S
    engine.engine.tick(engine.now)
    engine.beat(THIRD, engine.lineage, pong=engine.engine.state.question.number)
    engine.beat(PEER, grown(engine.lineage), pong=engine.engine.state.question.number)
    admit(engine, offer_of(THIRD))
    assert merges(engine) == [[ME, PEER, THIRD]]


def asked(engine: DrivenEngine) -> dict[PeerId, int]:
    """By peer, the question in the last beat to it."""
    return {to: beat.ping for to, beat in engine.sent(Beat)}


def test_peers_are_asked_with_every_beat_until_they_have_answered() -> None:
    engine = sealer()
    engine.tick(1.0)
    assert asked(engine) == {PEER: 0, THIRD: 0}
    engine.now += STOP_S
    engine.engine.tick(engine.now)
    ping = engine.engine.state.question.number
    assert asked(engine) == {PEER: ping, THIRD: ping} != {PEER: 0, THIRD: 0}
    engine.tick(1.0)
    assert asked(engine) == {PEER: ping, THIRD: ping}
    answer(engine, PEER)
    engine.beat(THIRD)
    engine.tick(1.0)
    assert asked(engine) == {PEER: 0, THIRD: ping}
    answer(engine, THIRD)
    engine.tick(1.0)
    assert asked(engine) == {PEER: 0, THIRD: 0}


def test_in_a_big_roster_all_linked_peers_are_asked_in_one_beat() -> None:
    """The other beats go to a part of it each."""
    engine, peers = DrivenEngine(), [PeerId(f"peer-{i:02}", 1) for i in range(3 * FANOUT)]
    for peer in peers:
        engine.beat(peer)
        engine.engine.linked(engine.now, peer, True)
    engine.tick(1.0)
    engine.now += STOP_S
    engine.engine.tick(engine.now)
    ping = engine.engine.state.question.number
    assert {to for to, number in asked(engine).items() if number == ping} == set(peers)
    first, *others = peers
    answer(engine, *others)
    asked(engine)
    engine.tick(1.0)
    assert asked(engine)[first] == ping
    answer(engine, first)
    asked(engine)
    engine.tick(1.0)
    assert len(asked(engine)) == FANOUT


def test_the_offers_of_a_stop_that_was_none_are_merged_at_once() -> None:
    """It was late by less than makes a suspect."""
    engine = sealer(PEER)
    engine.now += engine.engine.state.policies.timing.suspect_after_s
    admit(engine, offer_of(THIRD))
    engine.done(engine.merge())
    assert engine.sent(Seal)


def test_a_stop_takes_nothing_from_the_wait_for_others() -> None:
    """A laptop may be suspended while its learner joins. The first seconds of a stop count."""
    one = Engine(ME, "me:1", ("peer:1",), Policies(schedule=Schedule(sync_every=4)), 0.0)
    one.begin(0.0, GENESIS, (b"",))
    pass_until(one, 2.0)
    one.unreached(3600.0, "peer:1", Unreached.ROUTE)
    one.tick(3601.0)
    timing = one.state.policies.timing
    ends = 3601.0 + timing.join_timeout_s - timing.suspect_after_s
    pass_until(one, ends - 3)
    assert not one.state.joined
    pass_until(one, ends)
    assert one.state.joined


@pytest.mark.parametrize(("failed", "ends"), [(True, 3601.0), (False, 3602.0)])
def test_a_stop_makes_no_name_a_wrong_one(failed: bool, ends: float) -> None:
    """A machine that wakes up has no network for a moment, so no name resolves. The name may have
    `failed` before; then the failure after the stop is told before the network loop looks."""
    one = Engine(ME, "", ("peer:1",), Policies(schedule=Schedule(sync_every=4)), 0.0)
    one.begin(0.0, GENESIS, (b"",))
    if failed:
        one.unreached(0.5, "peer:1", Unreached.NAME)
    pass_until(one, 2.0)
    if not failed:
        one.tick(3602.0)
    one.unreached(3602.0, "peer:1", Unreached.NAME)
    one.tick(3602.0)
    timing = one.state.policies.timing
    patience_s = UNRESOLVED * timing.join_timeout_s - failed * timing.suspect_after_s
    pass_until(one, ends - 1.0 + patience_s)
    assert not one.state.joined
    pass_until(one, ends + patience_s)
    assert one.state.joined


def test_a_stop_is_no_time_without_a_quorum() -> None:
    engine = DrivenEngine(quorum=3)
    engine.beat()
    engine.offer()
    engine.tick(1.0)
    engine.now += 3600.0
    engine.engine.tick(engine.now)
    timing = engine.engine.state.policies.timing
    for _ in range(int(timing.round_timeout_s - timing.suspect_after_s) - 3):
        engine.beat()
        engine.tick(1.0)
    assert engine.events("below_quorum") == []
    for _ in range(4):
        engine.beat()
        engine.tick(1.0)
    assert len(engine.events("below_quorum")) == 1


def test_a_loop_that_is_always_late_makes_nobody_wait_for_ever() -> None:
    """Training may hold Python's lock for seconds, again and again."""
    one = Engine(ME, "me:1", ("peer:1",), Policies(schedule=Schedule(sync_every=4)), 0.0)
    one.begin(0.0, GENESIS, (b"",))
    timing = one.state.policies.timing
    late_s, now = 2 * timing.suspect_after_s, 0.0
    while now < 3 * timing.join_timeout_s:
        now += late_s
        one.tick(now)
    assert one.state.joined


def test_stops_that_follow_one_another_are_one() -> None:
    timing = Timing()
    stops, blocked_s = Stops(timing), timing.suspect_after_s + 1
    stops.look(0.0)
    for i in range(1, 20):
        stops.look(i * blocked_s)
        assert stops.began_at(i * blocked_s) == blocked_s
    evicted = 19 * blocked_s + timing.evict_after_s
    assert stops.began_at(evicted) == evicted
    stops.look(evicted)
    now = evicted
    while now < evicted + timing.evict_after_s:
        now += 1.0
        stops.look(now)
    assert stops.began_at(now) == evicted
    assert stops.began_at(now + blocked_s) == now + blocked_s


def test_after_a_stop_nobody_asks_why_there_was_no_step() -> None:
    engine = sealer(PEER)
    engine.step(1)
    engine.tick(1.0)
    engine.now += 10_000.0
    engine.engine.tick(engine.now)
    assert engine.events("idle") == []
    for _ in range(100):
        engine.beat(PEER)
        engine.tick(1.0)
    (event,) = engine.events("idle")
    assert event.facts["for_s"] < 100


@pytest.mark.parametrize("met", [False, True])
def test_a_stop_is_no_time_of_a_round(met: bool) -> None:
    """Else a round would take an hour to its quorum, by which the next ones have no grace."""
    engine = sealer(*(PEER, THIRD) if met else (PEER,))
    engine.engine.tick(engine.now)
    round = engine.engine.state.rounds[0]
    assert (round.quorum_at is not None) == met
    began_at, quorum_at = round.launched_at, round.quorum_at
    engine.now += STOP_S
    engine.engine.tick(engine.now)
    assert round.launched_at == began_at + STOP_S
    assert round.quorum_at == (quorum_at + STOP_S if quorum_at is not None else None)
