"""The front door of an engine: its immediate answers and effects when something happens."""

from __future__ import annotations

from typing import Any

import pytest

from mend_optim.engine.effects import Install, Send
from mend_optim.engine.engine import Engine
from mend_optim.engine.ledger import Event
from mend_optim.engine.mode import Mode
from mend_optim.engine.pending import NEVER
from mend_optim.engine.policies import Policies
from mend_optim.engine.schedule import Schedule
from mend_optim.protocol.lineage import PeerId
from mend_optim.protocol.messages import Beat, Call, Goodbye, Message, Offer, Report, Want
from mend_optim.protocol.transfer_fault import BROKEN
from tests.support.engines import (
    BASE,
    GENESIS,
    ME,
    OTHER,
    PEER,
    THIRD,
    DrivenEngine,
    among_peers,
    grown,
    offer_of,
    pass_until,
    seal_of,
    state_of,
)

SEED = "peer:1"


def engine(*seeds: str, begun: bool = False) -> Engine:
    made = Engine(ME, "me:1", seeds, Policies(schedule=Schedule(sync_every=4)), 0.0)
    if begun:
        made.begin(0.0, GENESIS, (b"",))
        made.drain(0.0)
    return made


def beat(peer: PeerId = PEER, count: int = 1, **facts: Any) -> Beat:
    given: dict[str, Any] = {"genesis": GENESIS, "reports": (Report(BASE.key),), **facts}
    return Beat(peer=peer, address=SEED, count=count, **given)


def sent(engine: Engine, now: float = 0.0) -> list[tuple[PeerId, type[Message]]]:
    return [(e.to, type(e.message)) for e in engine.drain(now) if isinstance(e, Send)]


def told(engine: Engine, now: float = 0.0) -> list[str]:
    return [e.kind for e in engine.drain(now) if isinstance(e, Event)]


# Peers


def test_a_peer_is_told_of_once_and_hears_of_us_at_the_next_tick() -> None:
    one = engine()
    one.tick(0.0)
    assert one.wake_at() == 1.0
    assert one.met(0.5, PEER, SEED)
    (event,) = one.drain(0.5)
    assert isinstance(event, Event)
    assert (event.kind, event.facts["peer"], event.facts["address"]) == ("met", "peer", SEED)
    assert one.wake_at() == 0.5
    one.tick(0.5)
    assert sent(one, 0.5) == [(PEER, Beat)]
    assert one.met(0.6, PEER, SEED)
    assert one.drain(0.6) == []


def test_a_past_incarnation_is_not_met() -> None:
    one = engine()
    assert one.met(0.0, PeerId("peer", 2), SEED)
    one.drain(0.0)
    assert not one.met(0.0, PEER, SEED)
    assert one.drain(0.0) == []


@pytest.mark.parametrize("dialled", [True, False])
def test_a_seed_is_found_whichever_of_the_two_dialled(dialled: bool) -> None:
    one = engine(SEED)
    one.met(0.0, PEER, "" if dialled else SEED, SEED if dialled else "")
    assert one.state.seeds.missing == []


def test_a_peer_gets_a_beat_as_soon_as_its_link_is_up() -> None:
    one = engine()
    one.met(0.0, PEER, SEED)
    one.drain(0.0)
    one.linked(0.1, PEER, True)
    assert sent(one, 0.1) == [(PEER, Beat)]
    one.linked(0.2, PEER, False)
    assert sent(one, 0.2) == []
    assert one.state.roster.alive() == []


def test_a_peer_is_suspected_and_evicted_in_time() -> None:
    one = engine()
    one.met(0.0, PEER, SEED)
    one.drain(0.0)
    for now in range(1, round(one.state.policies.timing.evict_after_s)):
        one.tick(now)
    assert told(one) == ["suspected"]
    assert one.state.roster.alive() == []
    one.tick(one.state.policies.timing.evict_after_s)
    assert told(one) == ["evicted"]


def test_a_learner_that_was_stopped_takes_nobody_for_silent() -> None:
    """It could hear nobody. If two were stopped at a time, each would evict the other."""
    one = engine()
    timing = one.state.policies.timing
    one.met(0.0, PEER, SEED)
    one.tick(1.0)
    one.tick(1000.0)
    assert one.state.roster.alive() == [PEER]
    for passed in range(1, round(timing.evict_after_s) - 1):
        one.tick(1000.0 + passed)
    assert told(one) == ["met", "suspected"]
    assert one.state.roster.alive() == []
    one.tick(1000.0 + timing.evict_after_s)
    assert told(one) == ["evicted"]
    assert one.state.roster.has_lost(PEER)


def test_while_a_learner_is_stopped_it_waits_for_no_anchor() -> None:
    """Else it would doubt the peer, the next time for as long as it had been stopped."""
    driven = DrivenEngine()
    for _ in range(3):
        driven.beat(PEER, grown(BASE, offer_of(THIRD).entry))
        driven.tick(1.0)
    (wanted,) = driven.engine.state.wants.values()
    before = wanted.since, wanted.until
    driven.now += 600.0
    driven.engine.tick(driven.now)
    (wanted,) = driven.engine.state.wants.values()
    assert (wanted.since - before[0], wanted.until - before[1]) == (600.0, 600.0)
    assert not driven.engine.state.claims.doubts(PEER)


def test_a_learner_that_is_late_by_less_than_makes_a_suspect_was_not_stopped() -> None:
    one = engine()
    one.met(0.0, PEER, SEED)
    one.tick(one.state.policies.timing.suspect_after_s)
    assert one.state.roster.alive() == []


def test_a_goodbye_is_told_of_once() -> None:
    one = engine(begun=True)
    one.met(0.0, PEER, SEED)
    one.drain(0.0)
    one.receive(0.0, Goodbye(PEER))
    assert told(one) == ["left"]
    one.receive(0.0, Goodbye(PEER))
    assert told(one) == []


# Seeds, and joining


def test_a_learner_waits_for_its_seeds_and_joins_alone_where_they_refuse_it() -> None:
    one = engine(SEED, begun=True)
    assert not one.state.joined
    one.refused(1.0, SEED, "codec: here none, there bf16")
    one.refused_at(1.0, SEED, "codec: here none, there bf16")
    events = [e for e in one.drain(1.0) if isinstance(e, Event)]
    assert [e.kind for e in events] == ["refused", "alone"]
    assert events[0].facts == {"address": SEED, "reason": "codec: here none, there bf16"}
    assert one.state.mode is Mode.SOLO


def test_a_refusal_by_a_caller_that_tells_the_address_of_a_seed_ends_no_wait() -> None:
    """Anybody can tell any address. The seed is dialled, and answers for itself."""
    one = engine(SEED, begun=True)
    one.refused(1.0, SEED, "go away")
    assert told(one, 1.0) == ["refused"]
    assert not one.state.joined
    assert one.state.seeds.missing == [SEED]


def test_a_learner_does_not_wait_for_itself() -> None:
    one = engine(SEED, begun=True)
    one.itself(SEED)
    one.tick(0.5)
    assert told(one, 0.5) == ["joined"]


def test_a_learner_joins_with_a_seed_that_has_the_same_first_weights() -> None:
    one = engine(SEED, begun=True)
    one.met(0.0, PEER, SEED, SEED)
    one.receive(0.0, beat())
    assert one.state.mode is Mode.TRAINING
    assert told(one) == ["met", "joined"]


def test_a_want_that_cannot_be_delivered_holds_up_nobodys_joining() -> None:
    one = engine(SEED, begun=True)
    one.met(0.0, PEER, SEED, SEED)
    one.receive(0.0, beat(training=True, reports=(Report(grown(BASE).key),)))
    want = Want(ME, 0, BASE.digest)
    assert (PEER, Want) in sent(one)
    assert not one.state.joined
    pass_until(one, one.state.policies.timing.join_timeout_s - 1)
    one.undelivered(one.state.policies.timing.join_timeout_s, PEER, want, BROKEN)
    assert one.state.wants == {}
    assert one.state.joined


def test_an_installed_anchor_is_shown_to_peers_at_once() -> None:
    driven = among_peers()
    driven.receive(state_of(grown(BASE)))
    (install,) = driven.jobs(Install)
    driven.sent(Beat)
    driven.done(install)
    ((to, shown),) = driven.sent(Beat)
    assert (to, shown.reports[0].key) == (PEER, grown(BASE).key)


# Before the first step, and after the last


MESSAGES: list[Message] = [
    Call(PEER, 0),
    offer_of(PEER),
    seal_of(BASE),
    state_of(grown(BASE)),
    Want(PEER, 0, b""),
]


@pytest.mark.parametrize("message", MESSAGES, ids=lambda message: type(message).__name__)
def test_before_it_has_begun_a_learner_ignores_all_but_beats_and_goodbyes(
    message: Message,
) -> None:
    one = engine()
    one.met(0.0, PEER, SEED)
    one.drain(0.0)
    one.receive(0.0, message)
    assert one.drain(0.0) == []


@pytest.mark.parametrize("message", MESSAGES, ids=lambda message: type(message).__name__)
def test_after_it_has_left_a_learner_ignores_all_but_beats_and_goodbyes(message: Message) -> None:
    driven = DrivenEngine()
    driven.beat()
    driven.engine.leave(driven.now)
    assert driven.sent(Goodbye) == [(PEER, Goodbye(ME))]
    driven.engine.drain(driven.now)
    driven.receive(message)
    assert driven.engine.drain(driven.now) == []


def test_what_a_peer_said_before_we_began_is_compared_when_we_begin() -> None:
    one = engine(SEED)
    one.met(0.0, PEER, SEED, SEED)
    one.receive(0.0, beat(training=True, reports=(Report(grown(BASE).key),)))
    assert Want not in [kind for _, kind in sent(one)]
    one.begin(1.0, GENESIS, (b"",))
    assert (PEER, Want) in sent(one, 1.0)


def test_a_learner_says_goodbye_once_and_no_beat_after_it() -> None:
    one = engine(begun=True)
    one.met(0.0, PEER, SEED)
    one.met(0.0, THIRD, "third:1")
    one.drain(0.0)
    one.leave(0.0)
    assert sent(one) == [(PEER, Goodbye), (THIRD, Goodbye)]
    one.leave(0.0)
    one.tick(5.0)
    one.linked(5.0, PEER, True)
    one.receive(5.0, beat(training=True, reports=(Report(grown(BASE).key),)))
    assert sent(one, 5.0) == []
    assert one.state.mode is Mode.CLOSED


# Beats


def test_a_question_is_answered_with_its_number() -> None:
    one = engine(begun=True)
    one.met(0.0, PEER, SEED)
    one.drain(0.0)
    one.receive(0.0, beat(ping=7))
    answers = [e.message for e in one.drain(0.0) if isinstance(e, Send) and e.to == PEER]
    assert [m.pong for m in answers if isinstance(m, Beat) and m.pong] == [7]


def pings(one: Engine, now: float) -> dict[PeerId, int]:
    """By peer, the question in the last beat to it."""
    sent = [e for e in one.drain(now) if isinstance(e, Send) and isinstance(e.message, Beat)]
    return {e.to: e.message.ping for e in sent if isinstance(e.message, Beat)}


def test_at_rest_only_a_peer_that_has_not_answered_is_asked_again() -> None:
    """In a big roster every question costs each learner a whole beat in answer."""
    one = engine(begun=True)
    for peer in (PEER, THIRD):
        one.met(0.0, peer, SEED)
        one.receive(0.0, beat(peer=peer))
    one.drain(0.0)
    one.rest(0.0)
    asked = one.state.question.number
    assert pings(one, 0.0) == {PEER: asked, THIRD: asked}
    one.receive(0.1, beat(peer=PEER, count=2, pong=asked))
    one.tick(1.0)
    assert pings(one, 1.0) == {PEER: 0, THIRD: asked}
    one.receive(1.1, beat(peer=THIRD, count=2, pong=asked))
    one.tick(2.0)
    assert pings(one, 2.0) == {PEER: 0, THIRD: 0}


def test_an_old_beat_changes_nothing() -> None:
    one = engine(begun=True)
    one.met(0.0, PEER, SEED)
    one.receive(0.0, beat(count=5))
    one.drain(0.0)
    one.receive(0.0, beat(count=4, training=True, reports=(Report(grown(BASE).key),)))
    assert one.drain(0.0) == []


def test_a_beat_without_reports_is_no_model() -> None:
    one = engine(begun=True)
    one.met(0.0, PEER, SEED)
    one.drain(0.0)
    one.receive(0.0, beat(genesis=OTHER, reports=(), tokens=10**9, step=10**6))
    assert one.state.mode is Mode.SOLO
    assert one.state.switch is None


# Deliveries


def test_only_the_pending_offer_as_it_was_sent_last_counts_as_delivered() -> None:
    driven = among_peers()
    driven.offer()
    ((to, offer),) = driven.sent(Offer)
    pending = driven.fragment.pending
    assert pending is not None
    driven.engine.delivered(driven.now, THIRD, offer)
    assert not pending.delivered
    driven.engine.delivered(driven.now, to, offer_of(ME, seq=9))
    assert not pending.delivered
    driven.engine.delivered(driven.now, to, offer)
    assert pending.delivered
    driven.engine.undelivered(driven.now, to, offer, BROKEN)
    assert not pending.delivered
    assert pending.resend_at == driven.now + driven.engine.state.policies.timing.beat_s


# Time


def test_an_engine_wakes_for_its_next_beat_or_for_what_comes_before() -> None:
    one = engine(begun=True)
    assert one.wake_at() == 1.0
    one.state.wake_by(0.25)
    assert one.wake_at() == 0.25
    one.tick(0.3)
    assert one.wake_at() == 1.0
    one.tick(1.0)
    assert (one.wake_at(), one.state.wake_at) == (2.0, NEVER)


def test_a_learner_that_has_left_tells_of_no_refusal() -> None:
    """It goes on as another incarnation, and its last hello may come after that one's first."""
    engine = DrivenEngine()
    engine.engine.refused(engine.now, "peer:1", "it stays")
    engine.engine.leave(engine.now)
    engine.engine.refused(engine.now, "peer:1", "a later process of this name is alive")
    assert [event.facts["reason"] for event in engine.events("refused")] == ["it stays"]


def test_effects_are_taken_once_and_messages_to_ourselves_never_leave() -> None:
    driven = DrivenEngine()
    driven.beat()
    driven.offer()
    effects = driven.engine.drain(driven.now)
    assert not [e for e in effects if isinstance(e, Send) and e.to == ME]
    assert ME in driven.engine.state.rounds[0].inbox
    assert driven.engine.drain(driven.now) == []
