"""Learners that train another model: beside this one, or until this learner takes it over."""

from __future__ import annotations

from dataclasses import replace

import pytest

from mend_optim.engine.effects import Advance, Install
from mend_optim.engine.ledger import Event, RoundRecord, whole_anchor_record
from mend_optim.engine.other_models import Branches, OtherModels
from mend_optim.engine.state import Switch
from mend_optim.protocol.lineage import STEPPED, Lineage, PeerId, Rollback
from mend_optim.protocol.timing import Timing
from tests.support.engines import (
    BASE,
    FOURTH,
    GENESIS,
    OTHER,
    PEER,
    THIRD,
    DrivenEngine,
    grown,
    seal_of,
    state_of,
)
from tests.unit.engine.test_majority import advance_all, experienced

PATIENCE_S = Timing().round_timeout_s
#: Less than it takes until a silent peer is suspected.
PAUSE_S = 2.0


def theirs(tokens: int, version: int = 1, genesis: bytes = OTHER) -> Lineage:
    """Its digest is that of no other time."""
    digest = b"%d %d" % (tokens, version)
    return Lineage(tokens=tokens, version=version, digest=digest, genesis=genesis)


def parted(
    seconds: float,
    *others: PeerId,
    engine: DrivenEngine | None = None,
    tokens: int = 10**6,
    genesis: bytes = OTHER,
    gets_on: bool = True,
) -> DrivenEngine:
    """A learner that trains with one peer, while others train another model for so long."""
    engine = engine or experienced(PEER)
    until = engine.now + seconds
    while engine.now < until:
        advance_all(engine, (PEER,))
        for other in others:
            shown = theirs(tokens, int(gets_on and engine.now), genesis)
            engine.beat(other, shown, step=3, genesis=genesis)
        engine.tick(min(PAUSE_S, until - engine.now))
    return engine


def told(engine: DrivenEngine) -> list[Event]:
    return engine.events("parted", "agreed")


@pytest.mark.parametrize(
    ("others", "tokens", "is_greater"), [((THIRD,), 10**6, True), ((THIRD, FOURTH), 1, False)]
)
def test_those_who_train_another_model_are_named_once(
    others: tuple[PeerId, ...], tokens: int, is_greater: bool
) -> None:
    engine = parted(PATIENCE_S + 2 * PAUSE_S, *others, tokens=tokens)
    (event,) = told(engine)
    assert event.facts["peers"] == sorted(other.name for other in others)
    assert event.facts["for_s"] >= PATIENCE_S
    assert event.facts["greater"] is is_greater
    assert ("is this learner's" in event.text) is is_greater
    assert told(parted(2 * PATIENCE_S, *others, engine=engine, tokens=tokens)) == []


def test_a_branch_of_this_learners_own_model_is_another_one() -> None:
    (event,) = told(parted(PATIENCE_S + 2 * PAUSE_S, THIRD, tokens=1, genesis=GENESIS))
    assert (event.facts["peers"], event.facts["greater"]) == ([THIRD.name], False)


def test_a_greater_anchor_of_this_learners_model_may_be_about_to_come() -> None:
    assert told(parted(2 * PATIENCE_S, THIRD, genesis=GENESIS)) == []


@pytest.mark.parametrize("genesis", [OTHER, GENESIS])
def test_who_stands_still_is_at_rest_or_cut_off(genesis: bytes) -> None:
    engine = parted(2 * PATIENCE_S, THIRD, tokens=1, genesis=genesis, gets_on=False)
    assert told(engine) == []


def test_a_slow_peer_shows_what_this_learner_had() -> None:
    engine = experienced(PEER)
    for _ in range(int(2 * PATIENCE_S / PAUSE_S)):
        before = engine.lineage
        advance_all(engine, (PEER,))
        engine.beat(THIRD, before, step=3)
        engine.tick(PAUSE_S)
    assert told(engine) == []


def test_for_a_while_learners_may_differ() -> None:
    assert told(parted(PATIENCE_S - PAUSE_S, THIRD)) == []


def test_it_lasts_only_while_the_same_peer_differs() -> None:
    """Peers that start one after the other each take the model in a moment."""
    engine = parted(PATIENCE_S - PAUSE_S, THIRD)
    engine.beat(THIRD, engine.lineage, step=3)
    assert told(parted(PATIENCE_S - PAUSE_S, FOURTH, engine=engine)) == []


def test_an_end_of_it_is_told_once_and_a_return_is_news() -> None:
    engine = parted(PATIENCE_S + 2 * PAUSE_S, THIRD)
    told(engine)
    for _ in range(2):
        engine.beat(THIRD, engine.lineage, step=3)
        engine.tick(1.0)
    (event,) = told(engine)
    assert (event.kind, event.lifts) == ("agreed", "parted")
    assert [e.kind for e in told(parted(PATIENCE_S + 2 * PAUSE_S, THIRD, engine=engine))] == [
        "parted"
    ]


def test_a_peer_of_another_model_that_is_gone_parts_nobody() -> None:
    engine = parted(PATIENCE_S + 2 * PAUSE_S, THIRD)
    told(engine)
    parted(Timing().evict_after_s, engine=engine)
    assert [event.kind for event in told(engine)] == ["agreed"]


def test_one_that_has_not_trained_may_be_about_to_take_ours() -> None:
    engine = experienced(PEER)
    while engine.now < 2 * PATIENCE_S:
        advance_all(engine, (PEER,))
        engine.beat(THIRD, theirs(0, int(engine.now)), step=0, genesis=OTHER)
        engine.beat(FOURTH, step=3, genesis=b"")
        engine.tick(PAUSE_S)
    assert told(engine) == []


def test_a_learner_that_takes_another_model_counts_anew() -> None:
    engine = parted(PATIENCE_S - PAUSE_S, THIRD, tokens=1)
    engine.engine.state.genesis = b"a third"
    for seconds in range(8):
        engine.beat(THIRD, theirs(1, seconds), step=3, genesis=OTHER)
        engine.tick(1.0)
    assert told(engine) == []


def test_while_another_model_is_on_its_way_nothing_is_told() -> None:
    """To restart then would throw the download away."""
    engine = parted(PATIENCE_S - PAUSE_S, THIRD)
    engine.engine.state.begin_switch(Switch(THIRD, OTHER, 1, STEPPED))
    looked = OtherModels(engine.engine.state)
    for turn in range(4):
        engine.beat(THIRD, theirs(10**6, turn), step=3, genesis=OTHER)
        looked.look(engine.now + turn * PATIENCE_S)
    assert told(engine) == []


def test_one_fragment_that_lags_parts_nobody() -> None:
    """This learner took a later anchor whole, and never had that one. The peer gets on in the other
    fragment."""
    engine = DrivenEngine(fragments=2)
    first, second = engine.engine.state.fragments
    first.lineage = grown(BASE)
    engine.beat(THIRD)  # else this learner would be alone
    looked = OtherModels(engine.engine.state)
    lagging = replace(BASE, digest=b"never had")
    for turn in range(6):
        now = engine.now + turn * PATIENCE_S
        second.lineage = grown(second.lineage)
        engine.beat(THIRD, lagging, second.lineage, step=3)
        looked.look(now)
    assert told(engine) == []


def test_a_process_that_starts_anew_has_not_got_on() -> None:
    engine = experienced(PEER)
    looked = OtherModels(engine.engine.state)
    for turn in range(6):
        other = THIRD._replace(incarnation=turn // 2 + 1)
        engine.beat(other, theirs(1, turn), step=3, genesis=OTHER)
        looked.look(engine.now + turn * PATIENCE_S)
    assert told(engine) == []


# ── a model that is taken over ────────────────────────────────────────────────────────────────────


def take(engine: DrivenEngine, anchor: Lineage) -> list[Event]:
    """A peer shows a whole anchor, and hands it over; returns what the user is told of it."""
    engine.beat(PEER, anchor, genesis=anchor.genesis)
    engine.receive(state_of(anchor))
    (install,) = engine.jobs(Install)
    engine.done(install)
    return engine.events("switched", "rolled_back")


def merged() -> DrivenEngine:
    """40 tokens of this learner are in its anchor, and 10 are not yet."""
    engine = DrivenEngine(seals=False)
    engine.beat()
    offer = engine.offer(steps=4)
    engine.receive(seal_of(BASE, offer.entry))
    (advance,) = engine.jobs(Advance)
    engine.done(advance)
    engine.apply()
    engine.step()
    return engine


def test_a_learner_that_takes_over_a_branch_tells_what_it_had_merged() -> None:
    """What no anchor had stays in its weights, and travels in its next offer."""
    engine = merged()
    (event,) = take(engine, replace(BASE, tokens=10**6, version=9, digest=b"branch"))
    assert event.facts == {
        "peer": PEER.name,
        "incarnation": PEER.incarnation,
        "tokens": 10**6,
        "dropped_tokens": 0,
        "superseded_tokens": 40,
    }


def test_the_fragments_of_a_branch_are_told_of_once() -> None:
    branches, record = Branches(30.0), branch_record()
    assert branches.event(1.0, PEER, [record])
    assert branches.event(2.0, PEER, [record]) is None
    assert branches.event(31.0, PEER, [record])


def test_a_learner_that_yields_is_told_so_and_of_no_greater_branch() -> None:
    branches = Branches(30.0)
    assert branches.event(1.0, PEER, [replace(branch_record(), reason="yielded")]) is None
    assert branches.event(1.0, PEER, [branch_record()])


def branch_record() -> RoundRecord:
    greater = replace(BASE, tokens=BASE.tokens + 100, version=BASE.version + 1, digest=b"branch")
    return replace(whole_anchor_record(0, BASE, greater, "pulled"), superseded_tokens=40)


def test_an_anchor_that_goes_on_from_this_one_gives_nothing_up() -> None:
    engine = merged()
    assert take(engine, grown(engine.lineage)) == []


def test_a_learner_that_takes_over_another_model_tells_what_it_gives_up() -> None:
    engine = merged()
    (event,) = take(engine, theirs(10**6))
    assert event.facts == {
        "peer": PEER.name,
        "incarnation": PEER.incarnation,
        "tokens": 10**6,
        "superseded_tokens": 40,
        "dropped_tokens": 10,
    }
    assert "1,000,000 tokens in it" in event.text
    assert ": 50 tokens of this learner's work are given up" in event.text


def test_a_newcomer_that_takes_over_the_model_of_a_run_tells_of_no_loss() -> None:
    engine = DrivenEngine(seals=False)
    engine.beat()
    assert take(engine, theirs(10**6)) == []


@pytest.mark.parametrize(
    ("anchor", "kinds"),
    [(grown(BASE), []), (BASE.rolled_back(Rollback(1, "b").genesis()), ["rolled_back"])],
)
def test_a_branch_of_its_own_model_is_no_other_one(anchor: Lineage, kinds: list[str]) -> None:
    engine = DrivenEngine(seals=False)
    engine.beat()
    engine.step()
    assert [event.kind for event in take(engine, anchor)] == kinds
