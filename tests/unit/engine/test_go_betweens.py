"""Offers and seals between a learner and a sealer that do not reach each other.

author ──offer──▶ go-between ──▶ sealer
       ◀──seal───            ◀──
"""

from __future__ import annotations

from dataclasses import replace

import pytest

from mend_optim.engine.detours import PATIENCE
from mend_optim.engine.effects import EXCHANGE, PASS_ON, Advance, Inspect, Merge, Send
from mend_optim.engine.state import TRIAL
from mend_optim.protocol.lineage import PeerId
from mend_optim.protocol.messages import Offer, Seal
from tests.support.engines import ME, DrivenEngine, offer_of, seal_of

FAR, BETWEEN, AUTHOR = (PeerId(name, 1) for name in ("far", "between", "author"))


def meet(engine: DrivenEngine, peer: PeerId, address: str = "", *reaches: PeerId) -> None:
    """A peer that this learner reaches."""
    engine.beat(peer, address=address, reaches=reaches)
    if not engine.engine.state.roster.peers[peer.name].linked:
        engine.engine.linked(engine.now, peer, True)


def author(*anchors_have_work_of: PeerId) -> DrivenEngine:
    """A learner that reaches nobody but a go-between. Of that and `FAR`, the latter seals."""
    engine = DrivenEngine(seals=False)
    known = set(anchors_have_work_of)
    engine.engine.state.roster.go_betweens.believes_in = known.__contains__
    meet(engine, BETWEEN, "between:1", ME, FAR)
    return engine


def sends(engine: DrivenEngine, kind: type[Offer] | type[Seal]) -> list[tuple[PeerId, str]]:
    taken = engine._take(lambda e: isinstance(e, Send) and isinstance(e.message, kind))
    return [(effect.to, effect.reply) for effect in taken]


# ── the author ────────────────────────────────────────────────────────────────────────────────────


def test_an_offer_for_a_sealer_that_is_not_reached_goes_to_a_go_between() -> None:
    engine = author(FAR)
    engine.offer()
    assert sends(engine, Offer) == [(BETWEEN, "")]


def test_a_learner_that_nobody_knows_by_its_work_seals_nothing() -> None:
    assert author(FAR).engine.state.sealer(0) == FAR
    assert author().engine.state.sealer(0) == BETWEEN


def test_the_work_in_an_anchor_tells_that_a_learner_is_real() -> None:
    engine = DrivenEngine(seals=False)
    believes_in = engine.engine.state.roster.go_betweens.believes_in
    assert believes_in(FAR)
    assert believes_in(AUTHOR)  # in a new run, no anchor can have work of anybody
    meet(engine, BETWEEN, "between:1", ME, FAR)
    for seq in range(1, TRIAL + 1):
        engine.receive(seal_of(engine.lineage, offer_of(FAR, seq).entry, sealer=BETWEEN))
        engine.done(engine.jobs(Advance)[0])
        engine.apply()
    assert believes_in(FAR)
    assert not believes_in(AUTHOR)


@pytest.mark.parametrize("by", [BETWEEN, AUTHOR])
def test_a_seal_comes_from_the_go_between_that_has_the_offer(by: PeerId) -> None:
    engine = author(FAR)
    meet(engine, AUTHOR, "", ME)
    offer = engine.offer()
    seal = seal_of(engine.lineage, offer.entry, sealer=FAR)
    engine.receive(replace(seal, passed_by=by))
    assert len(engine.jobs(Advance)) == (by == BETWEEN)
    assert engine.faults() == []  # it may know better than we do who reaches whom


def test_a_seal_of_a_sealer_that_is_reached_comes_from_nobody_else() -> None:
    engine = author(FAR)
    offer = engine.offer()
    meet(engine, FAR, "far:1", ME)
    meet(engine, BETWEEN, "between:1", ME)
    engine.receive(replace(seal_of(engine.lineage, offer.entry, sealer=FAR), passed_by=BETWEEN))
    assert engine.jobs(Advance) == []
    assert engine.faults() == [f"seal of {BETWEEN.name} refused: it is one of {FAR.name}"]


def wait(engine: DrivenEngine, seconds: float) -> None:
    """The go-between says all the time that it reaches the sealer."""
    until = engine.now + seconds
    while engine.now < until:
        engine.tick(min(1.0, until - engine.now))
        meet(engine, BETWEEN, "between:1", ME, FAR)


def test_a_go_between_with_which_nothing_comes_is_doubted() -> None:
    engine = author(FAR)
    engine.offer()
    ((_, sent),) = engine.sent(Offer)
    engine.engine.delivered(engine.now, BETWEEN, sent)
    patience_s = PATIENCE * engine.engine.state.policies.timing.evict_after_s
    wait(engine, patience_s - 5.0)
    assert engine.engine.state.sealer(0) == FAR
    assert engine.faults() == []
    wait(engine, 10.0)
    assert engine.engine.state.sealer(0) == BETWEEN
    (told,) = engine.faults()
    assert told.startswith(f"passing on of offers of fragment 0 of {BETWEEN.name} refused: no anc")
    wait(engine, patience_s)
    assert engine.engine.state.sealer(0) == FAR


def test_the_time_in_which_this_learner_was_stopped_does_not_count() -> None:
    engine = author(FAR)
    engine.offer()
    ((_, sent),) = engine.sent(Offer)
    engine.engine.delivered(engine.now, BETWEEN, sent)
    wait(engine, 5.0)
    engine.now += 10_000.0
    wait(engine, 20.0)
    assert engine.faults() == []


# ── the go-between ────────────────────────────────────────────────────────────────────────────────


def between(far_reaches: tuple[PeerId, ...], author_reaches: tuple[PeerId, ...]) -> DrivenEngine:
    """A learner that has the offer of an author, and reaches the sealer."""
    engine = DrivenEngine(seals=False)
    meet(engine, FAR, "far:1", *far_reaches)
    meet(engine, AUTHOR, "", *author_reaches)
    engine.receive(offer_of(AUTHOR))
    engine.done(engine.jobs(Inspect)[0])
    return engine


APART = ((ME,), (ME,))


@pytest.mark.parametrize(
    ("reaches", "passes"),
    [
        (APART, True),
        (((ME, AUTHOR), (ME, FAR)), False),
        (((ME,), (ME, FAR)), False),  # the two have just met
        (((), ()), False),  # older versions do not say
    ],
)
def test_it_passes_on_what_the_sealer_does_not_get_itself(
    reaches: tuple[tuple[PeerId, ...], tuple[PeerId, ...]], passes: bool
) -> None:
    engine = between(*reaches)
    assert sends(engine, Offer) == ([(FAR, PASS_ON)] if passes else [])
    engine.receive(seal_of(engine.lineage, offer_of(AUTHOR).entry, sealer=FAR))
    engine.done(engine.jobs(Advance)[0])
    assert sends(engine, Seal) == ([(AUTHOR, EXCHANGE)] if passes else [])


def test_the_offer_of_the_sealer_itself_stays() -> None:
    engine = between(*APART)
    sends(engine, Offer)
    engine.receive(offer_of(FAR))
    assert sends(engine, Offer) == []


def test_nothing_is_passed_on_to_a_sealer_that_is_not_reached() -> None:
    engine = between(*APART)
    engine.engine.linked(engine.now, FAR, False)
    sends(engine, Offer)
    for _ in range(20):  # others tell that it lives
        engine.tick(1.0)
        engine.engine.state.roster.touch(engine.now, FAR)
        meet(engine, AUTHOR, "", ME)
    assert engine.engine.state.sealer(0) == FAR
    assert sends(engine, Offer) == []


# ── the sealer ────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("reached", [True, False])
def test_a_sealer_takes_the_offer_of_an_author_that_it_does_not_reach(reached: bool) -> None:
    engine = DrivenEngine()
    meet(engine, BETWEEN, "between:1", ME, AUTHOR)
    if reached:
        meet(engine, AUTHOR, "", ME)
    else:
        engine.beat(AUTHOR)
    engine.engine.passed_on(engine.now, offer_of(AUTHOR), BETWEEN)
    assert len(engine.jobs(Inspect)) == (not reached)


def hand_over(engine: DrivenEngine, author: PeerId, seq: int) -> None:
    """The offer of a learner comes, by a go-between or from itself, and is checked."""
    offer = replace(offer_of(author, seq), key=engine.lineage.key, follows=seq - 1)
    if author == AUTHOR:
        engine.engine.passed_on(engine.now, offer, BETWEEN)
    else:
        engine.receive(offer)
    engine.done(engine.jobs(Inspect)[0])


def test_a_sealer_waits_for_authors_whose_offers_came_by_a_go_between() -> None:
    """They would miss every other round: their offers come later than those of others."""
    engine = DrivenEngine(grace_s=100.0)
    engine.engine.state.roster.go_betweens.believes_in = lambda id: True
    meet(engine, BETWEEN, "between:1", ME, AUTHOR)
    hand_over(engine, AUTHOR, 1)
    hand_over(engine, BETWEEN, 1)
    engine.offer()
    first = engine.merge()
    assert {offer.peer for offer in first.offers} == {ME, BETWEEN, AUTHOR}
    engine.done(first)
    engine.done(engine.jobs(Advance)[0])
    engine.apply()
    meet(engine, BETWEEN, "between:1", ME, AUTHOR)
    hand_over(engine, BETWEEN, 2)
    engine.offer()
    assert engine.jobs(Merge) == []
    hand_over(engine, AUTHOR, 2)
    assert {offer.peer for offer in engine.merge().offers} == {ME, BETWEEN, AUTHOR}
