"""A learner that has no anchors to seal on leaves its place as a sealer to others."""

from __future__ import annotations

from dataclasses import replace

import pytest

from mend_optim.engine.effects import Send
from mend_optim.engine.engine import Engine
from mend_optim.engine.mode import Mode
from mend_optim.engine.policies import Policies
from mend_optim.engine.schedule import Schedule
from mend_optim.protocol.lineage import Lineage, PeerId
from mend_optim.protocol.messages import Beat, Report
from tests.support.engines import BASE, FOURTH, GENESIS, ME, PEER, THIRD, DrivenEngine, grown


def tells(engine: Engine, now: float) -> bool:
    """Whether the beat of this moment says that the learner declines."""
    engine.beats.due_at = now
    engine.tick(now)
    sent = [each.message for each in engine.state.out if isinstance(each, Send)]
    return [message.declines for message in sent if isinstance(message, Beat)][-1]


def test_a_learner_declines_until_it_has_joined() -> None:
    """A seal of the learner that took its place may still be on its way."""
    engine = Engine(ME, "me:1", ("peer:1",), Policies(schedule=Schedule()), 0.0)
    engine.met(0.0, PEER, "peer:1")
    engine.linked(0.0, PEER, True)
    assert tells(engine, 1.0)
    engine.begin(1.0, GENESIS, (b"",))
    assert not engine.state.joined
    assert tells(engine, 2.0)
    beat = Beat(
        peer=PEER,
        address="peer:1",
        count=1,
        training=True,
        step=1,
        genesis=GENESIS,
        reports=(Report(BASE.key),),
    )
    engine.receive(2.5, beat)
    assert engine.state.joined
    assert not tells(engine, 3.0)
    assert engine.state.roster.may_seal(0, PEER)
    assert engine.state.roster.may_seal(0, ME)


AHEAD = grown(grown(grown(BASE)))


def beats_later(engine: DrivenEngine, lineage: Lineage, **how: bool) -> bool:
    """A beat later, in which a peer has shown this anchor, and this learner fetches it in this way:
    whether it declines."""
    engine.beat(PEER, lineage)
    wants = engine.engine.state.wants
    if how:
        wants[0] = replace(wants[0], **how)
    engine.tick(engine.engine.state.policies.timing.beat_s)
    return engine.engine.state.roster.declines_to_seal(ME)


@pytest.mark.parametrize(
    ("how", "declines"),
    [({}, True), ({"whole": False}, False), ({"mends": True}, False), ({"gives_way": True}, False)],
)
def test_one_that_fetches_whole_anchors_for_long_declines(
    how: dict[str, bool], declines: bool
) -> None:
    """Until it has them all. Every learner may fetch one for a moment, or an odd one."""
    engine = DrivenEngine()
    assert not beats_later(engine, BASE)
    for _ in range(2):
        assert not any(beats_later(engine, AHEAD, **how) for _ in range(3))
        assert beats_later(engine, AHEAD, **how) is declines
        engine.engine.state.wants.clear()
        assert not beats_later(engine, BASE)


@pytest.mark.parametrize(("ahead", "declines"), [(1, False), (2, False), (3, True)])
def test_one_that_asks_for_what_few_have_does_not_decline(ahead: int, declines: bool) -> None:
    """An insider may claim an anchor that nobody has, and hand nothing over. All that ask for it
    would leave their places to it."""
    engine, peers = DrivenEngine(), (PEER, THIRD, FOURTH, PeerId("fifth", 1))
    for _ in range(9):
        for i, peer in enumerate(peers):
            engine.beat(peer, AHEAD if i < ahead else BASE)
        assert engine.engine.state.wants
        engine.tick(engine.engine.state.policies.timing.beat_s)
    assert engine.engine.state.roster.declines_to_seal(ME) is declines


def test_one_that_has_joined_declines_until_it_has_caught_up() -> None:
    engine = DrivenEngine()
    state, review = engine.engine.state, engine.engine.beats.declining.review
    engine.beat(PEER, AHEAD)
    state.mode = Mode.SWITCHING_JOINING
    review(engine.now)
    state.mode = Mode.TRAINING
    review(engine.now)
    assert state.roster.declines_to_seal(ME)
    state.wants.clear()
    review(engine.now)
    assert state.roster.declines_to_seal(ME)  # the seals since the whole anchor are to come
    engine.beat(PEER, grown(BASE))
    state.wants.clear()
    assert review(engine.now)
    assert not state.roster.declines_to_seal(ME)


@pytest.mark.parametrize("mode", Mode)
def test_who_has_no_anchors_to_seal_on_lacks_the_model(mode: Mode) -> None:
    """A learner that founds a model is about to have them."""
    lacking = {Mode.NEW, Mode.JOINING}
    assert mode.lacks_model is (mode in lacking or mode.switching)


def test_a_learner_that_fetches_another_model_declines() -> None:
    engine = DrivenEngine()
    roster = engine.engine.state.roster
    assert not roster.declines_to_seal(ME)
    other = replace(BASE, tokens=10**6, version=9, digest=b"other", genesis=b"z other")
    engine.beat(PEER, other, genesis=other.genesis)
    assert engine.engine.state.switch
    assert roster.declines_to_seal(ME)
    engine.engine.state.end_switch()
    assert not roster.declines_to_seal(ME)
