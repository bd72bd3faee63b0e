"""Peers that are suspected in turns and come back show that beats are too frequent."""

from __future__ import annotations

import pytest

from mend_optim.engine.late_beats import FEWEST_RETURNS, LateBeats
from mend_optim.engine.ledger import Event
from mend_optim.engine.policies import Policies
from mend_optim.engine.schedule import Schedule
from mend_optim.engine.state import EngineState
from mend_optim.protocol.lineage import PeerId
from mend_optim.protocol.messages import Goodbye
from mend_optim.protocol.timing import Timing
from tests.support.engines import ME, PEER, DrivenEngine

PEERS = [PeerId(f"peer{i}", 1) for i in range(8)]
AWAY = 5  # beats for which a late peer is silent


def run_of(*peers: PeerId) -> DrivenEngine:
    engine = DrivenEngine()
    for peer in peers:
        engine.beat(peer)
        engine.engine.linked(engine.now, peer, True)
    engine.tick(1.0)
    engine.events("late_beats")
    return engine


def pass_beats(engine: DrivenEngine, count: int, *alive: PeerId) -> list[Event]:
    for _ in range(count):
        for peer in alive:
            engine.beat(peer)
        engine.tick(1.0)
    return engine.events("late_beats")


def in_turns(
    engine: DrivenEngine, peers: list[PeerId], turns: int, all_peers: list[PeerId] = PEERS
) -> list[Event]:
    """In each turn, another one of these is silent for so long that it is suspected, and back."""
    said = []
    for turn in range(turns):
        late = peers[turn % len(peers)]
        others = [peer for peer in all_peers if peer != late]
        said += pass_beats(engine, AWAY, *others)
        said += pass_beats(engine, 1, *all_peers)
    return said


def test_beats_that_come_late_are_told_once() -> None:
    engine = run_of(*PEERS)
    assert in_turns(engine, PEERS, FEWEST_RETURNS - 1) == []
    engine.now += 1.5  # one beat of this learner is late itself
    (event,) = in_turns(engine, PEERS[-1:], 1)
    assert event.facts == {"n": 8, "peers": 8, "own_s": 1.0}
    assert event.text == (
        "in the last 51 beats, peers were suspected and came back (8 of 8): beats come later than "
        "timing.beat_s=1 allows, and rounds go on without those peers; this learner's own beats "
        "were 1 s apart; pass a greater beat_s to all learners, or let fewer share a machine"
    )
    assert in_turns(engine, PEERS, 3 * FEWEST_RETURNS) == []


def test_long_beats_are_told_in_plain_figures() -> None:
    policies = Policies(schedule=Schedule(), timing=Timing(beat_s=100.0, evict_after_s=1000.0))
    state = EngineState(ME, "", (), policies)
    state.roster.meet(0.0, PEER, "peer:1")
    late = LateBeats(state)
    for beat in range(FEWEST_RETURNS):
        late.look(123.4 * beat, {PEER.name: 123.4 * (beat - 1)})
    (event,) = state.out
    assert isinstance(event, Event)
    assert "timing.beat_s=100 allows" in event.text
    assert "own beats were 123 s apart" in event.text


@pytest.mark.parametrize("count", [2, 3, 4, 8])
def test_one_peer_that_is_stopped_again_and_again_is_no_sign(count: int) -> None:
    peers = PEERS[:count]
    engine = run_of(*peers)
    assert in_turns(engine, peers[:1], 3 * FEWEST_RETURNS, peers) == []
    assert in_turns(engine, peers[:2], FEWEST_RETURNS, peers)


def test_few_of_many_are_no_sign() -> None:
    many = [PeerId(f"peer{i:02}", 1) for i in range(12)]
    engine = run_of(*many)
    assert in_turns(engine, many[:2], 2 * FEWEST_RETURNS, many) == []
    assert in_turns(engine, many[:3], FEWEST_RETURNS, many)


def test_of_one_peer_alone_it_cannot_be_told_apart() -> None:
    assert in_turns(run_of(PEERS[0]), PEERS[:1], FEWEST_RETURNS, PEERS[:1])


def test_a_net_that_was_parted_once_is_no_sign() -> None:
    engine = run_of(*PEERS)
    for _ in range(3):
        assert pass_beats(engine, AWAY) == []
        assert pass_beats(engine, 1, *PEERS) == []


def test_peers_that_return_one_by_one_to_a_net_that_was_parted_once_are_no_sign() -> None:
    """Links are dialled anew with pauses, so that it takes a while until all are back."""
    engine = run_of(*PEERS)
    assert pass_beats(engine, AWAY) == []
    for back in range(len(PEERS)):
        assert pass_beats(engine, 1, *PEERS[: back + 1]) == []
    assert len(engine.events("returned")) == len(PEERS) >= FEWEST_RETURNS


def test_peers_that_fall_silent_one_by_one_and_return_at_once_are_no_sign() -> None:
    engine = run_of(*PEERS)
    for gone in range(len(PEERS)):
        assert pass_beats(engine, 1, *PEERS[gone + 1 :]) == []
    assert pass_beats(engine, AWAY) == []
    assert pass_beats(engine, 1, *PEERS) == []
    assert len(engine.events("returned")) == len(PEERS)


def test_where_all_have_left_there_is_no_sign() -> None:
    engine = run_of(*PEERS)
    assert in_turns(engine, PEERS[:1], 2 * FEWEST_RETURNS) == []
    for peer in PEERS:
        engine.receive(Goodbye(peer))
    assert pass_beats(engine, 3) == []


def test_a_peer_that_has_left_is_no_sign() -> None:
    engine = run_of(*PEERS)
    in_turns(engine, PEERS[:7], FEWEST_RETURNS - 1)
    for peer in PEERS[:7]:
        engine.receive(Goodbye(peer))
    assert pass_beats(engine, AWAY) == []
    (event,) = pass_beats(engine, 1, PEERS[7])
    assert (event.facts["n"], event.facts["peers"]) == (1, 1)


def test_suspicions_of_long_ago_do_not_count() -> None:
    engine = run_of(*PEERS)
    for turn in range(3 * FEWEST_RETURNS):
        assert in_turns(engine, PEERS[turn % len(PEERS) :][:1], 1) == []
        assert pass_beats(engine, 10, *PEERS) == []


@pytest.mark.parametrize("breaks", [True, False])
def test_links_that_break_are_no_sign(breaks: bool) -> None:
    """A greater beat_s does not mend them."""
    engine, said = run_of(*PEERS), []
    for turn in range(2 * FEWEST_RETURNS):
        late = PEERS[turn % len(PEERS)]
        others = [peer for peer in PEERS if peer != late]
        if breaks:
            engine.engine.linked(engine.now, late, False)
        said += pass_beats(engine, 2 if breaks else AWAY, *others)
        if breaks:
            engine.engine.linked(engine.now, late, True)
        said += pass_beats(engine, 1, *PEERS)
    assert bool(said) is not breaks
