"""The user hears once of every peer that comes, falls silent, dies, returns or leaves; and the
all-clear names the news that it lifts."""

from __future__ import annotations

import pytest

from mend_optim.engine import presence
from mend_optim.engine.effects import Found
from mend_optim.engine.ledger import Event
from mend_optim.protocol.lineage import PeerId
from mend_optim.protocol.messages import Beat, Goodbye, Rumor
from mend_optim.protocol.unreached import Unreached
from tests.support.engines import ME, OTHER, PEER, THIRD, DrivenEngine

KINDS = ("met", "left", "suspected", "evicted", "returned", "together")


def news(engine: DrivenEngine) -> list[tuple[str, str]]:
    """What was told since: the texts, and what they lift."""
    return [(event.text, event.lifts) for event in engine.events(*KINDS)]


def linked(*peers: PeerId) -> DrivenEngine:
    engine = DrivenEngine()
    for peer in peers:
        engine.beat(peer)
        engine.engine.linked(engine.now, peer, True)
    engine.tick(1.0)
    engine.events(*KINDS)
    return engine


def pass_beats(engine: DrivenEngine, count: int, *alive: PeerId) -> None:
    for _ in range(count):
        for peer in alive:
            engine.beat(peer)
        engine.tick(1.0)


def test_a_broken_link_is_told_once_it_lasts_for_a_beat() -> None:
    engine = linked(PEER, THIRD)
    engine.engine.linked(engine.now, PEER, False)
    pass_beats(engine, 1, THIRD)
    assert news(engine) == []
    pass_beats(engine, 5, THIRD)
    text = "peer is suspected to be gone (its connection broke): no round waits for it"
    assert news(engine) == [(text, "")]


def test_a_link_that_is_back_at_once_is_no_news() -> None:
    engine = linked(PEER)
    for _ in range(5):
        engine.engine.linked(engine.now, PEER, False)
        engine.tick(1.0)
        engine.engine.linked(engine.now, PEER, True)
        pass_beats(engine, 1, PEER)
    assert news(engine) == []


def test_silence_and_deafness_are_told_as_such() -> None:
    engine = linked(PEER)
    pass_beats(engine, 4)
    ((text, _),) = news(engine)
    assert text.startswith("peer is suspected to be gone (silent for ")
    deaf = linked(PEER)
    deaf.engine.state.roster.peers["peer"].deaf = True
    deaf.tick(1.0)
    deaf.tick(0.9)
    deaf.tick(0.1)
    ((text, _),) = news(deaf)
    assert "(it does not hear this learner)" in text


def test_a_suspect_that_returns_lifts_the_suspicion() -> None:
    engine = linked(PEER)
    pass_beats(engine, 4)
    engine.events(*KINDS)
    pass_beats(engine, 1, PEER)
    assert news(engine) == [("peer is back", "suspected")]


def test_a_death_is_told_and_that_nobody_is_left() -> None:
    engine = linked(PEER, THIRD)
    pass_beats(engine, 31, THIRD)
    (_, (text, _)) = news(engine)
    assert text == "peer evicted: nothing was heard of it for 30 s"
    pass_beats(engine, 31)
    assert news(engine)[-1][0] == (
        "third evicted: nothing was heard of it for 30 s; nobody else is here: training alone "
        "until somebody comes"
    )


def test_a_learner_that_is_left_alone_is_told_what_it_finds_at_its_addresses() -> None:
    """The others may have shut it out, and it would hear of that nowhere else."""
    engine = linked(PEER)
    engine.engine.state.seeds.found = {"peer:1": PEER, "third:1": None}
    pass_beats(engine, 20)
    for address in ("peer:1", "third:1"):
        engine.engine.unreached(engine.now, address, Unreached.DECLINED)
    pass_beats(engine, 11)
    (_, (text, _)) = news(engine)
    assert text.endswith(
        "nobody else is here: training alone until somebody comes; still looking at peer:1, third:1"
        " (it declines this learner's certificate)"
    )


def test_a_learner_that_waits_for_its_end_alone_looks_for_nobody() -> None:
    engine = linked(PEER)
    engine.engine.state.seeds.found = {"peer:1": PEER}
    engine.engine.rest(engine.now, finishing=True)
    engine.engine.unreached(engine.now, "peer:1", Unreached.REFUSED)
    pass_beats(engine, 31)
    assert news(engine)[-1][0].endswith("; nobody else is here")


@pytest.mark.parametrize("incarnation", [1, 2])
def test_an_evicted_peer_that_is_met_again_is_back(incarnation: int) -> None:
    engine = linked(PEER, THIRD)
    pass_beats(engine, 31, THIRD)
    engine.events(*KINDS)
    engine.engine.met(engine.now, PeerId("peer", incarnation), "")
    assert news(engine) == [("peer is back", "evicted")]
    pass_beats(engine, 2, PEER, THIRD)
    assert news(engine) == []


def test_an_evicted_peer_whose_beats_come_again_is_back() -> None:
    """Its link never broke, so nobody says hello."""
    engine = linked(PEER, THIRD)
    pass_beats(engine, 31, THIRD)
    engine.events(*KINDS)
    late = Beat(peer=PEER, address="", count=900, genesis=b"genesis")
    engine.receive(late)
    pass_beats(engine, 1, THIRD)
    assert news(engine) == [("peer is back", "evicted")]


@pytest.mark.parametrize("others", [(), (THIRD,)])
def test_last_words_that_come_after_the_eviction_are_no_second_death(
    others: tuple[PeerId, ...],
) -> None:
    """This process was frozen, and the peer died meanwhile: its beats were still waiting."""
    engine = linked(PEER, *others)
    pass_beats(engine, 31, *others)
    assert "peer evicted" in news(engine)[-1][0]
    engine.receive(Beat(peer=PEER, address="", count=900, genesis=b"genesis"))
    engine.engine.linked(engine.now, PEER, False)
    assert engine.engine.state.roster.find(PEER)
    pass_beats(engine, 31, *others)
    assert engine.engine.state.roster.find(PEER) is None
    assert news(engine) == []


def test_a_second_death_is_told_if_it_leaves_nobody() -> None:
    engine = linked(PEER, THIRD)
    pass_beats(engine, 31, THIRD)
    engine.receive(Beat(peer=PEER, address="", count=900, genesis=b"genesis"))
    engine.engine.linked(engine.now, PEER, False)
    engine.receive(Goodbye(THIRD))
    engine.events(*KINDS)
    pass_beats(engine, 31)
    ((text, _),) = news(engine)
    assert text.endswith("nobody else is here: training alone until somebody comes")


def test_a_new_process_of_a_name_is_back_though_nobody_missed_the_old_one() -> None:
    engine = linked(PEER)
    engine.engine.met(engine.now, PeerId("peer", 2), "")
    assert news(engine) == [("peer is back", "")]


def test_a_peer_is_met_once_though_gossip_was_faster() -> None:
    engine = linked(PEER)
    rumor = Rumor(THIRD, "third:1", 4)
    engine.receive(Beat(peer=PEER, address="", count=50, genesis=b"genesis", roster=(rumor,)))
    assert engine.engine.state.roster.find(THIRD)
    assert news(engine) == []
    for _ in range(2):
        engine.engine.met(engine.now, THIRD, "third:1")
    assert news(engine) == [("third met", "")]


def test_a_goodbye_is_told_once_though_others_pass_it_on() -> None:
    engine = linked(PEER, THIRD)
    gone = Rumor(THIRD, "", 2**62, left=True)
    engine.receive(Beat(peer=PEER, address="", count=50, genesis=b"genesis", roster=(gone,)))
    engine.receive(Goodbye(THIRD))
    assert news(engine) == [("third left", "")]


def test_the_last_goodbye_says_that_nobody_is_left_and_company_lifts_it() -> None:
    engine = linked(PEER)
    engine.receive(Goodbye(PEER))
    text = "peer left; nobody else is here: training alone until somebody comes"
    assert news(engine) == [(text, "")]
    engine.tick(1.0)
    assert engine.engine.state.alone
    engine.beat(THIRD)
    engine.tick(1.0)
    assert news(engine) == [("third met", ""), ("no longer alone: trains with third", "left")]


def test_a_learner_that_has_trained_to_its_end_is_not_said_to_train_on() -> None:
    engine = linked(PEER)
    engine.engine.rest(engine.now, finishing=True)
    engine.receive(Goodbye(PEER))
    assert news(engine) == [("peer left; nobody else is here", "")]


def test_company_of_another_model_lifts_it_once_there_is_one_model() -> None:
    engine = DrivenEngine()
    engine.engine.presence.alone(Event("alone", "nobody"))
    engine.step(3)
    engine.beat(PEER, genesis=OTHER)
    engine.tick(1.0)
    assert [text for text, _ in news(engine)] == ["peer met"]
    engine.engine.boundaries.reserve_all()
    engine.engine.boundaries.found((None,), ())
    (found,) = engine.jobs(Found)
    engine.done(found)
    assert news(engine) == [("no longer alone: trains with peer", "alone")]
    engine.tick(1.0)
    assert news(engine) == []


def test_names_that_are_gone_are_not_kept_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(presence, "GONE", 3)
    engine = linked(PEER)
    for n in range(9):
        passing = PeerId(f"passing-{n}", 1)
        engine.beat(passing)
        engine.receive(Goodbye(passing))
    assert len(engine.engine.presence._gone) == 3
    assert len(engine.engine.presence._met) == 1
    assert ME not in engine.engine.presence._met
