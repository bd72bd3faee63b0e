from __future__ import annotations

from dataclasses import replace

import pytest

from mend_optim.engine.effects import Advance, Install
from mend_optim.protocol.lineage import Entry, Lineage, PeerId
from mend_optim.protocol.messages import Call, Goodbye, Offer, Packet, Want
from mend_optim.protocol.transfer_fault import BROKEN
from tests.support.engines import (
    BASE,
    FOURTH,
    ME,
    OTHER,
    PEER,
    THIRD,
    DrivenEngine,
    among_peers,
    grown,
    seal_of,
    state_of,
)


def test_what_was_not_delivered_is_offered_again_with_the_same_number_and_content() -> None:
    engine = among_peers()
    engine.offer()
    ((to, first),) = engine.sent(Offer)
    engine.step(2)
    for _ in range(3):
        engine.engine.undelivered(engine.now, PEER, first, BROKEN)
        engine.beat()
        engine.tick(1.0)
        ((to, again),) = engine.sent(Offer)
        assert (to, again) == (PEER, first)
        assert again.sections is first.sections


def test_nothing_is_sent_again_while_a_long_seal_comes_down_a_slow_link() -> None:
    engine = among_peers()
    engine.offer()
    ((_, offer),) = engine.sent(Offer)
    engine.engine.delivered(engine.now, PEER, offer)
    for _ in range(30):
        engine.engine.heard(engine.now, PEER, 0)
        engine.beat(PEER, grown(BASE))  # it has sealed, and holds no offer any more
        engine.tick(1.0)
    assert engine.sent(Offer) == engine.sent(Want) == []
    for _ in range(5):
        engine.beat(PEER, grown(BASE))
        engine.tick(1.0)
    assert engine.sent(Want) == [(PEER, Want(ME, 0, BASE.digest))]
    assert engine.sent(Offer)[-1][1].seq == offer.seq


@pytest.mark.parametrize("took_s", [0.0, 5.0])
def test_a_seal_is_waited_for_behind_those_of_other_fragments_but_not_without_end(
    took_s: float,
) -> None:
    """A go-between sends seals of others all the time. One that has let an offer go, because it is
    a few rounds ahead, was waited for until the end of the run."""
    engine = among_peers()
    engine.offer()
    ((_, offer),) = engine.sent(Offer)
    engine.now += took_s
    engine.engine.delivered(engine.now, PEER, offer)
    seal_s = engine.fragment.pending.seal_s
    waited_s = 0.0
    while not engine.sent(Want) and waited_s < 300.0:
        engine.engine.heard(engine.now, PEER, 1)
        engine.beat(PEER, grown(BASE))
        engine.tick(1.0)
        waited_s += 1.0
    suspect_after_s = engine.engine.state.policies.timing.suspect_after_s
    longest_s = suspect_after_s + seal_s * engine.engine.state.roster.size
    patience_s = suspect_after_s + seal_s
    assert longest_s <= waited_s <= longest_s + patience_s + 2.0


def test_patience_grows_with_the_time_of_the_offers_transfer_and_the_size_of_the_seal() -> None:
    """Frames that are still on their way are not heard."""
    engine = among_peers()
    engine.offer()
    ((_, offer),) = engine.sent(Offer)
    quarter = replace(offer, sections={"delta": Packet("packed", 100, memoryview(bytes(100)))})
    engine.engine.state.fragments[0].pending.offer = quarter
    engine.now += 2.0
    engine.engine.delivered(engine.now, PEER, offer)
    for _ in range(10):  # four times two seconds, and three
        engine.beat(PEER)
        engine.tick(1.0)
        assert engine.sent(Offer) == []
    engine.beat(PEER)
    engine.tick(1.5)
    assert [sent.seq for _, sent in engine.sent(Offer)] == [offer.seq]


def test_an_offer_is_the_same_on_another_anchor_and_due_no_more() -> None:
    engine = among_peers()
    engine.offer()
    ((_, first),) = engine.sent(Offer)
    engine.receive(seal_of(BASE))
    (advance,) = engine.jobs(Advance)
    engine.done(advance)
    engine.apply()
    engine.step(4)
    assert engine.engine.boundaries.fragments_to_copy() == []  # one at a time
    engine.receive(Call(THIRD, 0))
    engine.engine.undelivered(engine.now, PEER, first, BROKEN)
    engine.beat(PEER, grown(BASE))
    engine.tick(1.0)
    again = engine.sent(Offer)[-1][1]
    assert (again.seq, again.claim, again.tokens, again.key) == (
        1,
        first.claim,
        40,
        grown(BASE).key,
    )
    assert (first.due, again.due) == (True, False)


def test_who_is_called_offers_after_one_step_and_whoever_has_offered_sends_that() -> None:
    engine = among_peers()
    engine.receive(Call(PEER, 0))
    assert engine.engine.boundaries.fragments_to_copy() == []
    engine.offer(steps=1)
    ((to, first),) = engine.sent(Offer)
    assert (to, first.seq, first.tokens, first.due) == (PEER, 1, 10, False)
    engine.beat(THIRD)
    engine.sent(Offer)
    engine.receive(Call(THIRD, 0))
    assert engine.sent(Offer) == [(THIRD, first)]


def test_only_who_was_asked_has_answered_and_nothing_is_kept_of_who_came_and_went() -> None:
    engine = among_peers()
    for life in range(1, 9):
        guest = PeerId("guest", life)
        engine.beat(guest)
        engine.receive(Goodbye(guest))
    state = engine.engine.state
    assert not state.question.answered
    engine.engine.rest(engine.now)
    engine.beat(pong=state.question.number)
    assert state.question.answered == {PEER}


def test_at_rest_with_nothing_unmerged_a_call_is_answered_with_nothing() -> None:
    engine = among_peers()
    engine.engine.rest(engine.now)
    engine.receive(Call(PEER, 0))
    ((to, offer),) = engine.sent(Offer)
    assert (to, offer.peer, offer.seq, offer.tokens, offer.steps) == (PEER, ME, 0, 0, 0)


def test_it_is_answered_once_this_learner_has_the_callers_anchor() -> None:
    engine = among_peers()
    engine.engine.rest(engine.now)
    engine.receive(Call(PEER, 0, grown(BASE).key))
    assert engine.sent(Offer) == []
    engine.receive(seal_of(BASE))
    assert engine.sent(Offer) == []
    (advance,) = engine.jobs(Advance)
    engine.done(advance)
    ((to, offer),) = engine.sent(Offer)
    assert (to, offer.steps, offer.key) == (PEER, 0, grown(BASE).key)
    engine.receive(Call(PEER, 0, engine.lineage.key))
    assert len(engine.sent(Offer)) == 1


@pytest.mark.parametrize("why", ["it trains on", "another one seals"])
def test_it_is_not_answered_any_more_if(why: str) -> None:
    engine = among_peers()
    engine.engine.rest(engine.now)
    engine.receive(Call(PEER, 0, grown(BASE).key))
    if why == "it trains on":
        engine.step()
    else:
        engine.receive(Goodbye(PEER))
        engine.beat(THIRD)
    engine.receive(seal_of(BASE, sealer=engine.engine.state.roster.sealer(0) or PEER))
    (advance,) = engine.jobs(Advance)
    engine.done(advance)
    assert engine.sent(Offer) == []


def merged(engine: DrivenEngine, entry: Entry) -> None:
    """The peer seals it, and the anchor is taken."""
    engine.receive(seal_of(engine.lineage, entry))
    (advance,) = engine.jobs(Advance)
    engine.done(advance)
    engine.apply()


def test_who_brings_nothing_says_what_its_last_offer_weighed_if_encodings_leave_something() -> None:
    for stays in (False, True):
        engine = among_peers(residual_in_weights=stays)
        offer = engine.offer()
        engine.sent(Offer)
        merged(engine, offer.entry)
        engine.beat(PEER, engine.lineage)
        engine.engine.rest(engine.now)
        assert engine.engine.boundaries.fragments_to_copy() == ([0] if stays else [])
        if stays:  # what the offer lost goes first
            engine.receive(Call(PEER, 0))
            assert engine.sent(Offer) == []
            engine.reserve()
            engine.copied()
            ((_, closing),) = engine.sent(Offer)
            assert (closing.tokens, closing.steps, closing.again) == (0, 4, (40, 4))
            assert not engine.engine.boundaries.settled()
            merged(engine, closing.entry)
        engine.receive(Call(PEER, 0))
        ((_, nothing),) = engine.sent(Offer)
        assert (nothing.tokens, nothing.steps, nothing.again) == (
            0,
            0,
            (40, 4) if stays else (0, 0),
        )


def test_an_offer_of_nothing_has_no_number() -> None:
    """It would say that an anchor of another branch has what we offered under that number."""
    engine = rebased_and_merged()
    engine.engine.rest(engine.now)
    engine.receive(Call(PEER, 0))
    ((_, nothing),) = engine.sent(Offer)
    assert (nothing.seq, nothing.steps) == (0, 0)


def test_in_lockstep_a_call_brings_no_offer_off_the_boundary() -> None:
    engine = among_peers(adopt_after=1)
    engine.step()
    engine.receive(Call(PEER, 0))
    assert engine.engine.boundaries.fragments_to_copy() == []


def rebased() -> tuple[DrivenEngine, Offer, Offer]:
    """A learner whose second offer follows its first, and then an anchor of another branch came,
    which has neither."""
    engine = among_peers()
    engine.offer()
    ((_, first),) = engine.sent(Offer)
    engine.receive(seal_of(BASE, first.entry))
    (advance,) = engine.jobs(Advance)
    engine.done(advance)
    engine.apply()
    engine.offer()
    ((_, second),) = engine.sent(Offer)
    assert (first.follows, second.seq, second.follows) == (0, 2, 1)
    engine.engine.delivered(engine.now, PEER, second)
    other = beyond(BASE, engine.lineage)
    engine.receive(state_of(other))
    (install,) = engine.jobs(Install)
    engine.done(install)
    engine.apply()
    engine.beat(PEER, other)
    return engine, first, second


def rebased_and_merged() -> DrivenEngine:
    """The same, and what it then offered is merged."""
    engine, _, _ = rebased()
    engine.tick(0.1)
    ((_, again),) = engine.sent(Offer)
    engine.receive(seal_of(engine.lineage, again.entry))
    (advance,) = engine.jobs(Advance)
    engine.done(advance)
    engine.apply()
    return engine


def beyond(base: Lineage, least: Lineage) -> Lineage:
    """A successor of `base` that is greater than `least`."""
    while base.key <= least.key:
        base = grown(base)
    return base


def test_on_another_branch_the_same_work_is_offered_again_and_follows_what_is_merged_there() -> (
    None
):
    engine, _, second = rebased()
    engine.tick(0.1)
    ((_, again),) = engine.sent(Offer)
    assert (again.seq, again.tokens, again.follows) == (3, second.tokens, 0)
    assert again.claim == second.claim
    assert again.sections is second.sections


def test_an_anchor_of_the_former_branch_with_the_offer_under_its_former_number_is_no_doubt() -> (
    None
):
    engine, first, second = rebased()
    both = BASE.seal([first.entry], b"payload").seal([second.entry], b"payload")
    engine.receive(state_of(beyond(both, engine.lineage)))
    (install,) = engine.jobs(Install)
    assert (install.merged_own_offer, install.replace) == (True, False)
    engine.done(install)
    assert engine.fragment.pending is None
    assert engine.fragment.unmerged(engine.engine.state.totals).tokens == 0


def test_the_other_number_is_used_up_like_any() -> None:
    engine = rebased_and_merged()
    later = engine.offer()
    assert (later.seq, later.follows, later.claim.settled) == (4, 3, 3)


def test_as_long_as_the_anchor_is_of_the_same_branch_the_number_stays() -> None:
    engine = among_peers()
    number = engine.offer().seq
    for _ in range(3):
        engine.receive(state_of(grown(engine.lineage)))
        (install,) = engine.jobs(Install)
        engine.done(install)
        engine.apply()
    pending = engine.fragment.pending
    assert pending is not None
    assert pending.offer is not None
    assert (pending.seq, pending.offer.seq, pending.earlier) == (number, number, ())


# A sealer that came back


AGAIN = PeerId(PEER.name, 2)


def restarted() -> tuple[DrivenEngine, Offer]:
    """The sealer came back with first weights of its own, and our offer went to it at once."""
    engine = among_peers()
    offer = engine.offer()
    engine.sent(Offer)
    engine.beat(AGAIN, Lineage.fresh(OTHER), step=0, genesis=OTHER)
    engine.tick(0.1)
    assert engine.sent(Offer) == [(AGAIN, offer)]
    engine.engine.delivered(engine.now, AGAIN, offer)
    return engine, offer


def test_a_sealer_that_takes_our_model_over_gets_the_offer_again_at_once_and_once() -> None:
    """It did not keep the offer when that first reached it."""
    engine, offer = restarted()
    engine.beat(AGAIN, BASE)
    assert engine.sent(Offer) == [(AGAIN, offer)]
    engine.engine.delivered(engine.now, AGAIN, offer)
    for _ in range(2):
        engine.tick(0.1)
        engine.beat(AGAIN, BASE)
        assert engine.sent(Offer) == []


def test_as_long_as_it_has_another_model_its_beats_bring_no_offer() -> None:
    engine, _ = restarted()
    for _ in range(2):
        engine.beat(AGAIN, Lineage.fresh(OTHER), step=0, genesis=OTHER)
        assert engine.sent(Offer) == []


def test_a_sealer_that_has_kept_the_offer_does_not_get_it_again() -> None:
    engine, offer = restarted()
    engine.beat(AGAIN, held=((ME, offer.seq),))
    assert engine.sent(Offer) == []


def test_whoever_else_takes_our_model_over_gets_no_offer() -> None:
    engine, _ = restarted()
    engine.beat(THIRD, Lineage.fresh(OTHER), step=0, genesis=OTHER)
    engine.beat(THIRD, BASE)
    assert [to for to, _ in engine.sent(Offer)] == []


# Calls of peers that are not the sealer


def called(engine: DrivenEngine, *callers: PeerId, p: int = 0) -> list[PeerId]:
    """Those of these callers that were answered, at rest: with an empty offer, each time."""
    engine.sent(Offer)
    for caller in callers:
        engine.receive(Call(caller, p))
    return [to for to, _ in engine.sent(Offer)]


def among_two(**schedule: int | None) -> tuple[DrivenEngine, PeerId, PeerId]:
    """A learner at rest that knows two peers; the sealer of fragment 0, and the other one."""
    engine = among_peers(**schedule)
    engine.beat(THIRD)
    engine.step()
    engine.reserve()
    engine.engine.begin_anew(engine.now)  # nothing of its own is left to offer
    engine.engine.rest(engine.now)
    sealer = engine.engine.state.roster.sealer(0)
    assert sealer in (PEER, THIRD)
    return engine, sealer, THIRD if sealer == PEER else PEER


def test_the_sealer_is_always_answered() -> None:
    engine, sealer, _ = among_two()
    assert called(engine, sealer, sealer, sealer) == [sealer] * 3


def test_another_caller_is_answered_once_in_a_period() -> None:
    """It may know better who seals. But anybody could call, again and again."""
    engine, sealer, other = among_two(sync_every=4)
    period_s = 4 * engine.engine.state.step_s
    assert period_s == 4.0
    assert called(engine, other, other, sealer, other) == [other, sealer]
    engine.now += period_s - 0.1
    assert called(engine, other) == []
    engine.now += 0.1
    assert called(engine, other, other) == [other]


def test_callers_do_not_take_each_others_turn_and_fragments_have_their_own() -> None:
    engine, _, other = among_two(sync_every=4, fragments=2)
    engine.beat(FOURTH)
    strangers = [peer for peer in (other, FOURTH) if peer != engine.engine.state.roster.sealer(0)]
    assert called(engine, *strangers, *strangers) == strangers
    (stranger, *_) = [peer for peer in strangers if peer != engine.engine.state.roster.sealer(1)]
    assert called(engine, stranger, p=1) == [stranger]


def test_before_its_first_step_a_learner_answers_another_caller_once_in_a_beat() -> None:
    engine = among_peers()
    engine.beat(THIRD)
    sealer = engine.engine.state.roster.sealer(0)
    other = THIRD if sealer == PEER else PEER
    engine.engine.rest(engine.now)
    assert engine.engine.state.step_s == 0.0
    assert called(engine, other, other) == [other]
    engine.now += engine.engine.state.policies.timing.beat_s
    assert called(engine, other) == [other]


def test_nothing_is_kept_of_callers_of_past_periods() -> None:
    engine, _, _ = among_two(sync_every=4)
    for life in range(50):
        engine.receive(Call(PeerId(f"stranger-{life}", 1), 0))
        engine.now += 1.0
    assert len(engine.engine.offers._answered) <= 4
