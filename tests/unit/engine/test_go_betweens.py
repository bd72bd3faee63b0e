"""Offers and seals between a learner and a sealer that do not reach each other.

author ──offer──▶ go-between ──▶ sealer
       ◀──seal───            ◀──
"""

from __future__ import annotations

from dataclasses import replace

import pytest

from mend_optim.engine.detours import PATIENCE
from mend_optim.engine.effects import (
    EXCHANGE,
    PASS_ON,
    PULL,
    Advance,
    Export,
    Inspect,
    Install,
    Merge,
    Send,
)
from mend_optim.engine.relaying import TRIES
from mend_optim.engine.seal_chain import MOST_SEALS
from mend_optim.engine.state import TRIAL
from mend_optim.protocol.lineage import PeerId
from mend_optim.protocol.messages import Offer, Rumor, Seal, State, Want
from mend_optim.protocol.transfer_fault import BROKEN
from tests.support.engines import BASE, ME, DrivenEngine, grown, offer_of, seal_of, state_of

FAR, BETWEEN, AUTHOR, GIVER = (PeerId(name, 1) for name in ("far", "between", "author", "giver"))


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


@pytest.mark.parametrize(("name", "is_peer"), [("newcomer", True), ("between", False)])
def test_a_newcomer_that_does_not_reach_all_seals_nothing_before_an_anchor_has_its_work(
    name: str, is_peer: bool
) -> None:
    """Those that it does not reach don't choose it before either. Else it would seal with those
    that it reaches, and the others without them, side by side. `is_peer`: whether the peer is the
    newcomer, or this learner."""
    engine, peer = DrivenEngine(), PeerId(name, 1)
    newcomer, other = (peer, ME) if is_peer else (ME, peer)
    known = {other}
    engine.engine.state.roster.go_betweens.believes_in = known.__contains__
    meet(engine, peer, "peer:1", ME)
    assert engine.engine.state.sealer(0) == newcomer
    engine.engine.state.roster.gossip(engine.now, [Rumor(FAR, "far:1", 1)])
    engine.beat(peer, address="peer:1", reaches=(ME,), far={FAR: 2})
    assert engine.engine.state.sealer(0) == other
    known.add(newcomer)
    assert engine.engine.state.sealer(0) == newcomer


def test_somebody_seals_if_the_anchors_have_work_of_nobody_that_is_here() -> None:
    engine = author()
    engine.engine.state.roster.gossip(engine.now, [Rumor(FAR, "far:1", 1)])
    engine.beat(BETWEEN, address="between:1", reaches=(ME,), far={FAR: 2})
    assert engine.engine.state.sealer(0) == BETWEEN


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
    assert believes_in(PeerId(FAR.name, 2))  # it has restarted
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


def test_a_seal_of_a_learner_that_nobody_knows_comes_from_nobody() -> None:
    """A peer may say that it reaches a learner, and forge its seals."""
    engine = author(FAR)
    ghost = PeerId("ghost", 1)
    meet(engine, BETWEEN, "between:1", ME, FAR, ghost)
    for sealer, taken in ((ghost, 0), (FAR, 1)):
        seal = seal_of(engine.lineage, offer_of(AUTHOR).entry, sealer=sealer)
        engine.receive(replace(seal, passed_by=BETWEEN))
        assert len(engine.jobs(Advance)) == taken


def behind(*others: PeerId) -> DrivenEngine:
    """An author whose offer is with the go-between, while that one is a round ahead of it and of
    these. It has a few anchors, so that it has something to lose."""
    engine = author(FAR)
    for seq in range(1, TRIAL + 1):
        engine.receive(seal_of(engine.lineage, offer_of(FAR, seq).entry, sealer=BETWEEN))
        engine.done(engine.jobs(Advance)[0])
        engine.apply()
    engine.offer()
    for peer in others:
        engine.beat(peer, engine.lineage, address="", reaches=(ME,))
    engine.beat(
        BETWEEN, grown(engine.lineage), address="between:1", reaches=(ME, FAR), held=((ME, 1),)
    )
    return engine


def wants(engine: DrivenEngine) -> list[tuple[PeerId, bool]]:
    """Who is asked, and whether for a seal on our anchor."""
    return [(to, want.have == engine.lineage.digest) for to, want in engine.sent(Want)]


def passed(seal: Seal, by: PeerId) -> Seal:
    return replace(seal, passed_by=by)


def test_a_seal_that_did_not_come_is_asked_for_at_the_go_between() -> None:
    """Its whole anchor is the word of one of two learners, so it would not be taken for long."""
    engine = behind(AUTHOR)
    assert wants(engine) == [(BETWEEN, True)]
    engine.receive(passed(seal_of(engine.lineage, sealer=FAR), BETWEEN))
    assert len(engine.jobs(Advance)) == 1


def test_the_whole_anchor_of_a_go_between_that_has_no_such_seal_is_not_taken() -> None:
    engine = behind(AUTHOR)
    engine.receive(state_of(grown(engine.lineage), peer=BETWEEN))
    wanted = engine.engine.state.wants[0]
    assert wanted.seal_only
    assert wanted.held


@pytest.mark.parametrize("why", ["another has our offer", "the sealer is reached"])
def test_a_seal_is_asked_for_at_no_other_peer_than_that_go_between(why: str) -> None:
    engine = behind(AUTHOR)
    engine.engine.state.wants.clear()
    wants(engine)
    pending, ahead = engine.fragment.pending, grown(engine.lineage)
    assert pending
    if why == "another has our offer":
        pending.sent(engine.now, AUTHOR, delivered=True)
    else:
        meet(engine, FAR, "far:1", ME)
    engine.beat(BETWEEN, ahead, address="between:1", reaches=(ME, FAR))
    assert BETWEEN not in [to for to, _ in wants(engine)]


def at_rest() -> DrivenEngine:
    """An author that has nothing to offer, while the go-between is a round ahead."""
    engine = behind(AUTHOR)
    engine.receive(passed(seal_of(engine.lineage, engine.fragment.pending.offer.entry), BETWEEN))
    engine.engine.state.wants.clear()
    engine.done(engine.jobs(Advance)[0])
    engine.apply()
    assert engine.fragment.pending is None
    for _ in range(5):
        engine.tick(1.0)
        engine.beat(AUTHOR, engine.lineage, address="", reaches=(ME,))
        meet(engine, BETWEEN, "between:1", ME, FAR)
    wants(engine)
    engine.beat(BETWEEN, grown(engine.lineage), address="between:1", reaches=(ME, FAR))
    return engine


def test_a_learner_without_an_offer_asks_the_go_between_that_would_get_it() -> None:
    """A learner in `finish()` has none. It waited for `evict_after_s` to believe that one."""
    engine = at_rest()
    assert wants(engine) == [(BETWEEN, True)]
    engine.receive(passed(seal_of(engine.lineage, sealer=FAR), BETWEEN))
    assert len(engine.jobs(Advance)) == 1


def test_after_long_the_newest_anchor_of_a_go_between_is_fetched_and_not_the_kept_one() -> None:
    """With the kept one, this learner would lack more seals than a go-between keeps."""
    engine = behind(AUTHOR)
    kept_one = grown(engine.lineage)
    newest = grown(grown(grown(grown(kept_one))))
    asked: list[tuple[PeerId, bool]] = []
    for _ in range(100):
        if wants(engine):
            engine.receive(state_of(kept_one, peer=BETWEEN))
        engine.tick(1.0)
        engine.beat(AUTHOR, engine.lineage, address="", reaches=(ME,))
        engine.beat(BETWEEN, newest, address="between:1", reaches=(ME, FAR))
        asked = [want for want in wants(engine) if not want[1]]
        if asked:
            break
    assert asked == [(BETWEEN, False)]
    assert engine.jobs(Install) == []
    engine.receive(state_of(newest, peer=BETWEEN))
    (install,) = engine.jobs(Install)
    assert install.states[0].lineage == newest


def test_after_a_seal_on_an_anchor_that_we_lack_the_go_between_is_asked_for_ours() -> None:
    engine = behind(AUTHOR)
    engine.engine.state.wants.clear()
    wants(engine)
    later = seal_of(grown(engine.lineage), sealer=FAR)
    engine.receive(passed(later, BETWEEN))
    assert wants(engine) == [(BETWEEN, True)]


def asked_between() -> DrivenEngine:
    """An author whose offer is with another go-between, which is doubted, and which has asked this
    one for the anchor that both have."""
    engine = behind()
    engine.engine.state.wants.clear()
    wants(engine)
    pending, ahead = engine.fragment.pending, grown(engine.lineage)
    assert pending
    meet(engine, AUTHOR, "author:1", ME, FAR)
    pending.sent(engine.now, AUTHOR, delivered=False)
    engine.beat(AUTHOR, ahead, address="author:1", reaches=(ME, FAR))
    engine.engine.pulling.in_vain(engine.now, AUTHOR, 0)
    wants(engine)
    engine.beat(BETWEEN, ahead, address="between:1", reaches=(ME, FAR))
    assert wants(engine) == [(BETWEEN, True)]
    return engine


def test_any_peer_may_answer_with_a_seal_to_an_anchor_that_most_learners_have() -> None:
    engine = asked_between()
    engine.receive(passed(seal_of(engine.lineage, sealer=FAR), BETWEEN))
    assert len(engine.jobs(Advance)) == 1


@pytest.mark.parametrize("wrong", ["asker", "anchor"])
def test_a_seal_of_another_sealer_that_is_no_such_answer_is_not_taken(wrong: str) -> None:
    """And the peer that was asked is waited for no more. It is asked anew after a pause: else it
    could make this learner fetch one such seal with each beat."""
    engine = asked_between()
    seal = seal_of(engine.lineage, sealer=FAR)
    if wrong == "asker":
        engine.receive(passed(seal, PeerId("fourth", 1)))
    else:
        made_up = seal_of(engine.lineage, offer_of(FAR, 9, steps=40).entry, sealer=FAR)
        engine.receive(passed(made_up, BETWEEN))
    assert engine.jobs(Advance) == []
    assert list(engine.engine.state.wants) == ([0] if wrong == "asker" else [])
    assert engine.engine.state.claims.doubts(BETWEEN) == (wrong == "anchor")


def test_what_is_held_of_a_peer_stays_as_a_seal_of_it_is_not_taken() -> None:
    engine = asked_between()
    held = state_of(grown(grown(engine.lineage)), peer=BETWEEN)
    engine.receive(held)
    made_up = seal_of(engine.lineage, offer_of(FAR, 9, steps=40).entry, sealer=FAR)
    engine.receive(passed(made_up, BETWEEN))
    assert engine.jobs(Advance) == []
    assert engine.engine.state.wants[0].held == held


def test_an_answer_that_is_not_believed_is_not_kept_while_the_anchor_moves() -> None:
    """It would drive out the seal that most learners have."""
    engine = asked_between()
    engine.fragment.move()
    made_up = seal_of(engine.lineage, offer_of(FAR, 9, steps=40).entry, sealer=FAR)
    engine.receive(passed(made_up, BETWEEN))
    assert engine.fragment.deferred_news is None
    assert engine.engine.state.claims.doubts(BETWEEN)


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


def missed(rounds: int, *, apart: bool = True) -> DrivenEngine:
    """A go-between that has had so many rounds of the sealer's, while an author has had none."""
    engine = DrivenEngine(seals=False)
    reaches = (ME,) if apart else (ME, AUTHOR)
    for version in range(rounds + 1):
        engine.beat(FAR, engine.lineage, address="far:1", reaches=reaches)
        engine.engine.linked(engine.now, FAR, True)
        meet(engine, AUTHOR, "", ME)
        if version < rounds:
            engine.receive(seal_of(engine.lineage, sealer=FAR))
            engine.done(engine.jobs(Advance)[0])
            engine.apply()
    sends(engine, Seal)
    return engine


def on_the_way(author_reaches: tuple[PeerId, ...]) -> DrivenEngine:
    """The first of two go-betweens between an author and the sealer, with the author's offer. It
    has asked the second one for a seal that it did not get."""
    engine = author(FAR)
    meet(engine, AUTHOR, "", *author_reaches)
    engine.receive(offer_of(AUTHOR))
    engine.done(engine.jobs(Inspect)[0])
    sends(engine, Offer)
    engine.beat(BETWEEN, grown(BASE), address="between:1", reaches=(ME, FAR))
    engine.receive(passed(seal_of(engine.lineage, offer_of(AUTHOR).entry, sealer=FAR), BETWEEN))
    engine.done(engine.jobs(Advance)[0])
    engine.apply()
    return engine


@pytest.mark.parametrize(
    ("author_reaches", "hands"), [((ME,), True), ((ME, FAR), False), ((ME, BETWEEN), False)]
)
def test_where_ways_are_long_a_seal_goes_from_one_go_between_to_the_next(
    author_reaches: tuple[PeerId, ...], hands: bool
) -> None:
    """Before, it ended at the last one that reaches the sealer. Learners further off believed the
    anchor only after theirs had stood still for long."""
    engine = on_the_way(author_reaches)
    assert sends(engine, Seal) == ([(AUTHOR, EXCHANGE)] if hands else [])
    assert kept(engine) == hands
    engine.receive(Want(AUTHOR, 0, BASE.digest))
    assert sends(engine, Seal) == ([(AUTHOR, PULL)] if hands else [])


def kept(engine: DrivenEngine) -> int:
    return len(engine.engine.state.passed_seals[0]._seals)


def test_a_go_between_hands_the_seal_of_another_to_the_author_that_missed_it() -> None:
    engine = missed(2)
    has = BASE
    for _ in range(2):
        engine.receive(Want(AUTHOR, 0, has.digest))
        ((to, seal),) = engine.sent(Seal)
        assert (to, seal.sealer, seal.base) == (AUTHOR, FAR, has.digest)
        has = has.seal(seal.members, seal.payload)
    assert has == engine.lineage
    assert engine.engine.state.unanswered == []


def test_the_answer_goes_down_the_stream_of_the_want() -> None:
    engine = missed(1)
    engine.receive(Want(AUTHOR, 0, BASE.digest))
    assert sends(engine, Seal) == [(AUTHOR, PULL)]


@pytest.mark.parametrize("asker", [FAR, PeerId("stranger", 1)])
def test_others_get_the_whole_anchor(asker: PeerId) -> None:
    """They reach the sealer, as far as is known."""
    engine = missed(1)
    engine.receive(Want(asker, 0, BASE.digest))
    engine.done(engine.jobs(Export)[0])
    assert engine.sent(Seal) == []
    assert [to for to, _ in engine.sent(State)] == [asker]


def test_seals_are_kept_only_for_learners_that_the_sealer_does_not_reach() -> None:
    assert kept(missed(2)) == 2
    assert kept(missed(2, apart=False)) == 0


def test_a_go_between_keeps_a_few_seals_however_old_an_anchor_is_shown() -> None:
    engine = missed(MOST_SEALS + 3)
    assert kept(engine) == MOST_SEALS


@pytest.mark.parametrize("how", ["shown", "met", "gone", "our seal"])
def test_a_seal_that_nobody_lacks_any_more_is_let_go(how: str) -> None:
    engine = missed(2)
    if how == "shown":
        engine.beat(AUTHOR, engine.lineage, address="", reaches=(ME,))
    elif how == "met":
        engine.beat(AUTHOR, BASE, address="", reaches=(ME, FAR))
    elif how == "gone":
        engine.engine.state.roster.leave(AUTHOR)
    else:
        engine.engine.state.fragments[0].lineage = grown(engine.lineage)
        engine.engine.state.moved(0)
        assert kept(engine) == 0
    engine.tick(2.0)
    assert kept(engine) == 0


def test_what_one_learner_still_lacks_is_kept() -> None:
    engine = missed(2)
    first = BASE.seal(seal_of(BASE).members, seal_of(BASE).payload)
    engine.beat(AUTHOR, first, address="", reaches=(ME,))
    engine.tick(1.5)
    assert kept(engine) == 1
    engine.receive(Want(AUTHOR, 0, first.digest))
    assert len(engine.sent(Seal)) == 1


def test_the_seals_of_a_former_sealer_are_kept_for_its_learners_too() -> None:
    """The next sealer is of the other room. It reaches the author, but has no seal of the other
    sealer's."""
    engine = missed(1)
    second = PeerId("second", 1)
    engine.beat(second, engine.lineage, address="second:1", reaches=(ME, AUTHOR))
    engine.engine.linked(engine.now, second, True)
    engine.beat(AUTHOR, BASE, address="", reaches=(ME, second))
    engine.receive(seal_of(engine.lineage, sealer=second))
    engine.engine.state.wants.clear()
    (advance,) = engine.jobs(Advance)
    engine.done(advance)
    assert kept(engine) == 2
    engine.receive(Want(AUTHOR, 0, BASE.digest))
    assert [(to, seal.sealer) for to, seal in engine.sent(Seal)] == [(AUTHOR, FAR)]


def test_the_offer_of_the_sealer_itself_stays() -> None:
    engine = between(*APART)
    sends(engine, Offer)
    engine.receive(offer_of(FAR))
    assert sends(engine, Offer) == []


def test_nothing_is_passed_on_to_a_sealer_that_is_not_reached() -> None:
    engine = between(*APART)
    ((_, sent),) = engine.sent(Offer)
    engine.engine.linked(engine.now, FAR, False)
    engine.engine.undelivered(engine.now, FAR, sent, BROKEN)
    for _ in range(20):  # others tell that it lives
        engine.tick(1.0)
        engine.engine.state.roster.touch(engine.now, FAR)
        meet(engine, AUTHOR, "", ME)
    assert engine.engine.state.sealer(0) == FAR
    assert sends(engine, Offer) == []


def test_the_offer_of_a_learner_that_is_gone_goes_to_a_sealer_by_a_go_between() -> None:
    """Nobody else has a copy of its work, and this learner does not reach the sealer itself."""
    engine = author(FAR)
    meet(engine, AUTHOR, "", ME, BETWEEN)
    engine.receive(offer_of(AUTHOR))
    engine.done(engine.jobs(Inspect)[0])
    assert sends(engine, Offer) == []  # it lives, and finds its own way
    engine.engine.linked(engine.now, AUTHOR, False)
    ((to, offer),) = engine.sent(Offer)
    assert to == BETWEEN
    engine.engine.delivered(engine.now, BETWEEN, offer)
    wait(engine, 5.0)
    ((to, again),) = engine.sent(Offer)  # it says that it does not hold it
    assert (to, again) == (BETWEEN, offer)
    engine.engine.delivered(engine.now, BETWEEN, again)
    for _ in range(10):
        engine.beat(BETWEEN, address="between:1", reaches=(ME, FAR), held=((AUTHOR, 1),))
        engine.tick(1.0)
    assert sends(engine, Offer) == []


@pytest.mark.parametrize(
    ("author_reaches", "passes"),
    [((ME,), True), ((ME, FAR), False), ((ME, BETWEEN), False)],
)
def test_where_ways_are_long_an_offer_goes_from_one_go_between_to_the_next(
    author_reaches: tuple[PeerId, ...], passes: bool
) -> None:
    """The author does not reach the next one, so it may take this learner for the sealer."""
    engine = author(FAR)
    meet(engine, AUTHOR, "", *author_reaches)
    engine.receive(offer_of(AUTHOR))
    engine.done(engine.jobs(Inspect)[0])
    assert sends(engine, Offer) == ([(BETWEEN, PASS_ON)] if passes else [])


def relayed_on(giver_reaches: tuple[PeerId, ...], giver: PeerId = GIVER) -> DrivenEngine:
    """A learner with the offer of an author that it does not reach: the `giver` has passed it on.
    The sealer is two links away, by the go-between."""
    engine = author(FAR)
    engine.beat(BETWEEN, address="between:1", reaches=(ME,), far={FAR: 2})
    if giver != BETWEEN:
        meet(engine, giver, "", *giver_reaches)
    engine.engine.state.roster.gossip(engine.now, [Rumor(AUTHOR, "", 1)])
    engine.engine.passed_on(engine.now, offer_of(AUTHOR), giver)
    engine.done(engine.jobs(Inspect)[0])
    return engine


@pytest.mark.parametrize(
    ("giver_reaches", "passes"), [((ME,), True), ((ME, FAR), False), ((ME, BETWEEN), False)]
)
def test_an_offer_that_was_passed_on_goes_further(
    giver_reaches: tuple[PeerId, ...], passes: bool
) -> None:
    """Before, it came no further than to the second go-between: that one does not hear the
    author."""
    engine = relayed_on(giver_reaches)
    assert engine.engine.state.sealer(0) == FAR
    assert sends(engine, Offer) == ([(BETWEEN, PASS_ON)] if passes else [])


def test_an_offer_does_not_go_back_to_the_go_between_that_it_came_from() -> None:
    """Each of the two may take the other for the way, after a link behind them broke."""
    engine = relayed_on((), giver=BETWEEN)
    assert engine.engine.state.sealer(0) == FAR
    assert sends(engine, Offer) == []


def test_the_offer_of_a_learner_that_is_gone_does_not_go_back_either() -> None:
    """Its go-between had it, and may hold it no more because the sealer did not keep it."""
    engine = relayed_on((), giver=BETWEEN)
    engine.engine.state.roster.leave(AUTHOR)
    wait(engine, 3.0)
    assert (AUTHOR, 1) in engine.engine.state.rounds[0].held()
    assert sends(engine, Offer) == []


def test_a_relay_does_not_send_its_neighbour_the_offer_that_came_from_there() -> None:
    """The neighbour took it for the relay before their link to the sealer broke. Now the way to the
    sealer is by the neighbour. Before, that one got its own offer, again and again."""
    engine = author(FAR)
    engine.engine.state.roster.zone = "here"
    engine.beat(BETWEEN, address="between:1", reaches=(ME, FAR), zone="here")
    engine.receive(offer_of(BETWEEN))
    engine.done(engine.jobs(Inspect)[0])
    wait(engine, 3.0)
    assert engine.engine.state.sealer(0) == FAR
    assert (BETWEEN, 1) in engine.engine.state.rounds[0].held()
    assert sends(engine, Offer) == []


def test_such_an_offer_is_not_given_up_because_a_go_between_does_not_keep_it() -> None:
    """There its author may still be on the roster."""
    engine = author(FAR)
    meet(engine, AUTHOR, "", ME)
    engine.receive(offer_of(AUTHOR))
    engine.done(engine.jobs(Inspect)[0])
    engine.engine.linked(engine.now, AUTHOR, False)
    tries = 0
    for _ in range(60):
        for to, offer in engine.sent(Offer):
            tries += 1
            engine.engine.delivered(engine.now, to, offer)
        wait(engine, 10.0)
    assert tries > TRIES
    assert engine.faults() == []
    assert (AUTHOR, 1) in engine.engine.state.rounds[0].held()


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


@pytest.mark.parametrize("finishes", [False, True])
def test_a_sealer_waits_for_authors_whose_offers_came_by_a_go_between(finishes: bool) -> None:
    """They would miss every other round: their offers come later than those of others. An author
    that finishes may have nothing left, and cannot be called to say so."""
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
    news = Rumor(AUTHOR, "", 99, finishes=finishes, reached=True)
    engine.engine.state.roster.gossip(engine.now, [news])
    hand_over(engine, BETWEEN, 2)
    engine.offer()
    if finishes:
        assert {offer.peer for offer in engine.merge().offers} == {ME, BETWEEN}
        return
    assert engine.jobs(Merge) == []
    hand_over(engine, AUTHOR, 2)
    assert {offer.peer for offer in engine.merge().offers} == {ME, BETWEEN, AUTHOR}
