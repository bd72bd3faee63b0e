"""A learner whose weights are ruined, and the rounds that refuse what it offers."""

from __future__ import annotations

from dataclasses import replace

import pytest

from mend_optim.engine.effects import Advance, Inspect, Install, Merge, Outsize, Prepare, Retake
from mend_optim.protocol.messages import Offer, Seal
from tests.support.engines import (
    ME,
    PEER,
    THIRD,
    DrivenEngine,
    among_peers,
    grown,
    offer_of,
    seal_of,
    sealer_before,
    state_of,
)

TOO_LARGE = Outsize(rms=100.0, times=50.0)


def ruined(engine: DrivenEngine, p: int = 0) -> Retake:
    """The worker finds that the copy of fragment `p` is not finite."""
    engine.step(4)
    engine.reserve()
    engine.engine.boundaries.snapshot(p, None)
    (prepare,) = engine.jobs(Prepare)
    engine.done(prepare, fault="its parameters are not finite")
    return engine.jobs(Retake)[0]


# ── weights that are not finite ───────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("adopt_after", [None, 0, 2])
def test_it_goes_on_from_the_anchor_and_counts_what_it_dropped(adopt_after: int | None) -> None:
    engine = among_peers(adopt_after=adopt_after)
    job = ruined(engine)
    assert engine.fragment.is_moving
    engine.done(job)
    (healed,) = engine.events("healed")
    assert healed.facts == {
        "fragment": 0,
        "reason": "its parameters are not finite",
        "dropped_tokens": 40,
    }
    engine.step()
    engine.engine.correction_applied(engine.now, 0, True)
    assert engine.fragment.dropped_tokens == 50
    assert engine.fragment.unmerged(engine.engine.state.totals).tokens == 0
    (record,) = (e.facts["round"] for e in engine.events("round"))
    assert (record.reason, record.dropped_tokens) == ("healed", 40)
    assert engine.engine.state.adopted_rounds == 0


def test_the_sealer_gets_an_empty_offer_so_that_no_round_waits() -> None:
    engine = among_peers()
    ruined(engine)
    ((to, offer),) = engine.sent(Offer)
    assert (to, offer.steps, offer.seq) == (PEER, 0, 0)


def test_its_next_boundary_is_where_it_would_have_been() -> None:
    engine = among_peers(adopt_after=2)
    job = ruined(engine)
    engine.step()
    engine.done(job)
    engine.step()
    engine.engine.correction_applied(engine.now, 0, True)
    assert engine.fragment.cycle_start == 4
    engine.step(2)
    assert engine.engine.boundaries.fragments_to_copy() == [0]


def test_without_a_finite_anchor_it_says_so_and_tries_again() -> None:
    engine = among_peers()
    engine.done(ruined(engine), fault="its parameters are not finite")
    (told,) = engine.faults()
    assert not engine.events("healed")
    assert "its anchor is not finite either" in told
    assert engine.fragment.is_still
    assert isinstance(ruined(engine), Retake)


def test_it_says_that_once_until_it_was_healed() -> None:
    engine, told = among_peers(), []
    for fault in ("not finite", "not finite", "", "not finite"):
        engine.done(ruined(engine), fault=fault)
        told += engine.faults()
        if not fault:
            engine.step()
            engine.engine.correction_applied(engine.now, 0, True)
    assert len(told) == 2


def test_all_fragments_are_given_up_each_as_soon_as_it_stands_still() -> None:
    engine = among_peers(fragments=2)
    busy = engine.engine.state.fragments[1]
    busy.move()
    engine.step(2)
    engine.reserve()
    engine.engine.boundaries.snapshot(0, None)
    (prepare,) = engine.jobs(Prepare)
    engine.done(prepare, fault="its parameters are not finite")
    assert [job.fragment for job in engine.jobs(Retake)] == [0]
    busy.move_refused()
    engine.engine.outcomes.go_on(engine.now, 1)
    assert [job.fragment for job in engine.jobs(Retake)] == [1]
    assert busy.is_moving


@pytest.mark.parametrize("is_done", [True, False])
def test_what_two_fragments_find_is_given_up_once(is_done: bool) -> None:
    """Whether the worker has taken the first one's anchor by the time of the second one's find."""
    engine = among_peers(fragments=2)
    engine.step(4)
    for p in engine.engine.boundaries.fragments_to_copy():
        engine.engine.boundaries.reserve(p)
        engine.engine.boundaries.snapshot(p, None)
    first, second = engine.jobs(Prepare)
    engine.done(first, fault="its parameters are not finite")
    (retake,) = engine.jobs(Retake)
    jobs = [] if is_done else [retake]
    if is_done:
        engine.done(retake)
    engine.done(second, fault="its parameters are not finite")
    while jobs := [*jobs, *engine.jobs(Retake)]:
        engine.done(jobs.pop(0))
    assert sorted(event.facts["fragment"] for event in engine.events("healed")) == [0, 1]
    for p in range(2):
        engine.engine.correction_applied(engine.now, p, True)
    assert isinstance(ruined(engine), Retake), "a later accident is another one"


def test_a_copy_that_is_being_encoded_meanwhile_is_not_offered() -> None:
    engine = among_peers(fragments=2)
    engine.step(2)
    engine.reserve()
    engine.engine.boundaries.snapshot(0, None)
    engine.step(2)
    engine.reserve()
    engine.engine.boundaries.snapshot(1, None)
    first, second = engine.jobs(Prepare)
    engine.done(first, fault="its parameters are not finite")
    engine.done(second)
    assert [offer.steps for _, offer in engine.sent(Offer)] == [0, 0]
    assert [job.fragment for job in engine.jobs(Retake)] == [0, 1]


# ── offers that are too large ─────────────────────────────────────────────────────────────────────


def sealing(*others: Offer) -> tuple[DrivenEngine, Merge]:
    """A sealer that merges its own offer and these."""
    engine = DrivenEngine(grace_s=100.0)
    for offer in others:
        engine.beat(offer.peer)
    engine.offer()
    for offer in others:
        engine.receive(offer)
        (inspect,) = engine.jobs(Inspect)
        engine.done(inspect)
    engine.tick(0.5)
    return engine, engine.merge()


def test_of_the_refused_offer_of_a_former_process_the_sealer_tells() -> None:
    """Its author has started anew, and is a member as that: the seal does not name the former."""
    engine, merge = sealing(offer_of(PEER), offer_of(THIRD))
    place = [offer.peer for offer in merge.offers].index(PEER)
    engine.done(merge, outsized={place: TOO_LARGE})
    engine.jobs(Merge)
    engine.engine.state.rounds[0].void()  # another learner was the sealer for a moment
    younger = PEER._replace(incarnation=PEER.incarnation + 1)
    engine.beat(younger)
    engine.receive(replace(offer_of(younger, 0, 0), tokens=0))
    engine.tick(1.5)
    again = engine.merge()
    assert PEER not in {offer.peer for offer in again.offers}
    assert engine.events("outsized") == []
    engine.done(again)
    (event,) = engine.events("outsized")
    assert (event.facts["incarnation"], event.facts["refused"]) == (PEER.incarnation, True)


def refused_in_vain(by: str) -> DrivenEngine:
    """A sealer that refused an offer, and then sealed nothing: another learner seals now, or it has
    sealed."""
    engine, merge = sealing(offer_of(PEER), offer_of(THIRD))
    place = [offer.peer for offer in merge.offers].index(PEER)
    engine.done(merge, outsized={place: TOO_LARGE})
    again = engine.merge()
    base, state = engine.lineage, engine.engine.state
    if by == "another sealer":
        other = sealer_before(ME)
        engine.beat(other, address="other:1")
        assert state.roster.sealer(0) == other
        state.rounds[0].void()
        engine.tick(0.1)
    else:
        newer = grown(base)
        engine.beat(THIRD, newer)
        engine.receive(state_of(newer, peer=THIRD))
        engine.done(engine.jobs(Install)[0])
        engine.done(again)
    return engine


@pytest.mark.parametrize("by", ["another sealer", "another seal"])
def test_of_an_offer_that_is_refused_in_vain_the_sealer_tells_once(by: str) -> None:
    """No seal of its own will say so. If the author is gone, nobody else can."""
    engine = refused_in_vain(by)
    (event,) = engine.events("outsized")
    assert (event.facts["peer"], event.facts["refused"]) == (PEER.name, True)
    engine.tick(0.5)
    assert engine.events("outsized") == []
    assert engine.engine.state.outsized == 1


def test_its_own_offer_that_was_refused_in_vain_the_sealer_offers_again() -> None:
    """So that the next round tells it, and it gives up what is ruined. Else its work would be with
    nobody, and never merged."""
    engine, merge = sealing(offer_of(PEER), offer_of(THIRD))
    place = [offer.peer for offer in merge.offers].index(ME)
    engine.done(merge, outsized={place: TOO_LARGE})
    again = engine.merge()
    newer = grown(engine.lineage)
    engine.beat(THIRD, newer)
    engine.receive(state_of(newer, peer=THIRD))
    engine.done(engine.jobs(Install)[0])
    engine.done(again)
    engine.tick(0.1)
    engine.jobs(Inspect)
    engine.tick(0.1)
    held = engine.engine.state.rounds[0].inbox
    assert ME in held
    assert held[ME].steps == 4


def test_of_a_refused_offer_in_its_seal_the_sealer_tells_once() -> None:
    engine, merge = sealing(offer_of(PEER), offer_of(THIRD))
    place = [offer.peer for offer in merge.offers].index(PEER)
    engine.done(merge, outsized={place: TOO_LARGE})
    engine.done(engine.merge())
    (advance,) = engine.jobs(Advance)
    engine.done(advance, outsized={place: TOO_LARGE})
    engine.tick(0.5)
    assert len(engine.events("outsized")) == 1


def test_a_refused_offer_takes_part_as_an_empty_one() -> None:
    engine, merge = sealing(offer_of(PEER), offer_of(THIRD))
    place = [offer.peer for offer in merge.offers].index(PEER)
    engine.done(merge, outsized={place: TOO_LARGE})
    again = engine.merge()
    assert [offer.peer for offer in again.offers] == [offer.peer for offer in merge.offers]
    assert [bool(offer.steps) for offer in again.offers] == [o.peer != PEER for o in merge.offers]
    assert again.weights[place] == 0
    assert sum(again.weights) == pytest.approx(1)
    assert again.outsized == {place: TOO_LARGE}
    engine.done(again)
    sent = engine.sent(Seal)
    assert {to for to, _ in sent} == {PEER, THIRD}
    assert (PEER, 0, 0, 0) in sent[0][1].members


def test_a_round_of_which_nothing_is_left_tells_its_author() -> None:
    engine, merge = sealing(offer_of(PEER))
    engine.done(merge, outsized=dict.fromkeys(range(2), TOO_LARGE))
    again = engine.merge()
    assert not any(offer.steps for offer in again.offers)
    assert set(again.weights) == {0.0}
    engine.done(again)
    assert engine.jobs(Advance)


def told(*rows: int, pending: bool = True) -> DrivenEngine:
    """A learner that has taken a seal in which the offers of these members were too large."""
    engine = among_peers()
    if pending:
        engine.offer()
    nothing = offer_of(ME, seq=0, steps=0).entry
    seal = seal_of(engine.lineage, nothing, offer_of(PEER).entry)
    engine.receive(seal)
    (advance,) = engine.jobs(Advance)
    engine.done(advance, outsized=dict.fromkeys(rows, TOO_LARGE))
    return engine


def test_the_author_gives_up_the_refused_offer_and_all_that_followed() -> None:
    engine = told(0)
    (event,) = engine.events("outsized")
    assert event.text == "refused own offer in fragment 0: 50 times the usual size"
    assert event.facts["refused"]
    (job,) = engine.jobs(Retake)
    assert job.reason == "its offer was 50 times the usual size"
    engine.done(job)
    assert engine.fragment.pending is None
    engine.engine.correction_applied(engine.now, 0, True)
    assert engine.fragment.dropped_tokens == 40
    assert engine.engine.state.outsized == 1


def test_others_are_told_and_keep_their_work() -> None:
    engine = told(1)
    (event,) = engine.events("outsized")
    assert event.text == "scaled down offer of peer in fragment 0: 50 times the usual size"
    assert (event.facts["peer"], event.facts["refused"]) == ("peer", False)
    assert not engine.jobs(Retake)
    assert engine.fragment.pending


def test_a_refused_offer_is_not_passed_on() -> None:
    engine = among_peers()
    engine.beat(THIRD)
    engine.engine.state.rounds[0].add(offer_of(THIRD))
    seal = seal_of(engine.lineage, offer_of(THIRD, seq=0, steps=0).entry, offer_of(PEER).entry)
    engine.receive(seal)
    (advance,) = engine.jobs(Advance)
    engine.done(advance, outsized={0: TOO_LARGE})
    assert THIRD not in engine.engine.state.rounds[0].inbox
