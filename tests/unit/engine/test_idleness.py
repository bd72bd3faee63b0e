"""A learner whose training thread stands still for long takes part in rounds with nothing."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from mend_optim.engine.idleness import PAUSE_STEPS, Idleness
from mend_optim.engine.mode import Change
from mend_optim.engine.policies import Policies
from mend_optim.engine.quorum import Grace
from mend_optim.engine.schedule import Schedule
from mend_optim.engine.state import EngineState
from mend_optim.protocol.messages import Call, Offer
from mend_optim.protocol.timing import Timing
from tests.support.engines import ME, PEER, DrivenEngine, among_peers

PATIENCE_S = Timing().evict_after_s


def pause(engine: DrivenEngine, seconds: float) -> None:
    """The training thread does something else, beside a peer that lives."""
    for _ in range(int(seconds)):
        engine.tick(1.0)
        engine.beat()


def answers(engine: DrivenEngine) -> list[int]:
    """The sealer calls; returns the steps in every offer that it is sent."""
    engine.receive(Call(PEER, 0))
    return [offer.steps for to, offer in engine.sent(Offer) if to == PEER]


def test_a_learner_that_stands_still_answers_calls_with_nothing() -> None:
    engine = among_peers()
    engine.step()
    pause(engine, PATIENCE_S - 2)
    assert answers(engine) == []  # the call waits for the end of the inner step
    pause(engine, 4)
    assert answers(engine) == [0]
    assert answers(engine) == [0]


def test_with_its_next_step_it_makes_the_offer_that_was_asked_for() -> None:
    engine = among_peers()
    engine.step()
    pause(engine, PATIENCE_S + 2)
    assert answers(engine) == [0]
    engine.step()
    engine.reserve()
    engine.copied()
    ((to, offer),) = engine.sent(Offer)
    assert (to, offer.steps) == (PEER, 2)


def test_an_offer_that_it_has_is_sent_and_not_an_empty_one() -> None:
    engine = among_peers()
    offer = engine.offer()
    pause(engine, PATIENCE_S + 2)
    engine.sent(Offer)
    engine.fragment.pending.sent(engine.now, None, delivered=False)  # type: ignore[union-attr]
    assert answers(engine) == [offer.steps]


def test_in_lockstep_it_answers_too() -> None:
    engine = among_peers(adopt_after=0)
    engine.step()
    pause(engine, PATIENCE_S + 2)
    assert answers(engine) == [0]


def test_a_sealer_does_not_wait_for_its_own_training_thread() -> None:
    engine = DrivenEngine(quorum=1, grace_s=100.0)
    engine.beat()
    engine.step()
    pause(engine, 2)
    engine.engine.state.loopback.append(Call(ME, 0))
    engine.engine.drain(engine.now)
    assert ME not in engine.engine.state.rounds[0].inbox
    pause(engine, 102)
    engine.engine.state.loopback.append(Call(ME, 0))
    engine.engine.drain(engine.now)
    assert engine.engine.state.rounds[0].inbox[ME].steps == 0


def test_it_is_told_once_in_each_pause() -> None:
    engine = among_peers()
    for _ in range(2):
        engine.step()
        pause(engine, 3 * PATIENCE_S)
        (event,) = engine.events("idle")
        assert event.text == (
            "no step for 30 s: rounds go on without this learner's work until it steps again; "
            "close() the optimizer if its training has ended"
        )


def test_a_rest_that_was_asked_for_is_not_reported() -> None:
    engine = among_peers()
    engine.step()
    engine.engine.rest(engine.now)
    pause(engine, 3 * PATIENCE_S)
    assert engine.events("idle") == []


def test_nobody_is_idle_before_it_has_joined() -> None:
    state = EngineState(ME, "", (), Policies(schedule=Schedule()))
    idleness = Idleness(state)
    for now in range(100):
        idleness.look(float(now))
    assert not idleness.idle
    state.change(Change.BEGUN)
    state.change(Change.JOINED_ALONE)
    for now in range(100, 99 + int(PATIENCE_S)):
        idleness.look(float(now))
        assert not idleness.idle
    idleness.look(99.0 + PATIENCE_S)
    assert idleness.idle


@given(
    evict_s=st.floats(4.0, 100.0),
    grace_s=st.floats(0.0, 200.0),
    step_s=st.floats(0.0, 100.0),
    gaps=st.lists(st.floats(0.01, 50.0), min_size=1, max_size=60),
    steps=st.sets(st.integers(0, 59)),
)
def test_idle_is_who_has_not_stepped_for_its_patience(
    evict_s: float, grace_s: float, step_s: float, gaps: list[float], steps: set[int]
) -> None:
    """At every look: idle if, and only if, all looks of that long have seen the same step."""
    policies = Policies(
        schedule=Schedule(), timing=Timing(evict_after_s=evict_s), grace=Grace(max_s=grace_s)
    )
    state = EngineState(ME, "", (), policies)
    state.change(Change.BEGUN)
    state.change(Change.JOINED_ALONE)
    state.step_s = step_s
    idleness = Idleness(state)
    patience = max(evict_s, grace_s, PAUSE_STEPS * step_s)
    now = since = 0.0
    idleness.look(now)
    for i, gap in enumerate(gaps):
        now += gap
        if i in steps:
            state.totals.step += 1
            since = now
            assert not idleness.idle
        idleness.look(now)
        assert idleness.idle == (now - since >= patience)
