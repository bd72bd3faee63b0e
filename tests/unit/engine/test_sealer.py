from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest

from mend_optim.engine.effects import Advance, Done, Export, Inspect, Install, Merge
from mend_optim.engine.relaying import TRIES
from mend_optim.engine.round import Phase
from mend_optim.engine.seal_checks import SPREAD, flaw_of
from mend_optim.engine.state import TRIAL
from mend_optim.protocol.lineage import MOST_AUTHORS, Claim, Entry, Lineage, PeerId
from mend_optim.protocol.messages import Beat, Call, Offer, Rumor, Seal, State, Want
from mend_optim.protocol.peer_limits import COUNTER_LIMIT
from mend_optim.protocol.refusals import Refused
from mend_optim.protocol.transfer_fault import BROKEN
from tests.support.engines import (
    BASE,
    FOURTH,
    ME,
    PEER,
    THIRD,
    DrivenEngine,
    grown,
    offer_of,
    seal_of,
    sealer_before,
    state_of,
)


def sealer(*peers: PeerId, **options: Any) -> DrivenEngine:
    engine = DrivenEngine(**options)
    for peer in peers:
        engine.beat(peer)
    return engine


def admit(engine: DrivenEngine, offer: Offer) -> None:
    engine.receive(offer)
    for inspect in engine.jobs(Inspect):
        engine.done(inspect)


# The moment of sealing


@pytest.mark.parametrize(
    ("me", "peer", "other", "called"),
    [
        ("finishes", "finishes", "finishes", True),
        ("rests", "rests", "finishes", True),
        ("trains", "finishes", "finishes", False),
        ("rests", "trains", "finishes", False),
        ("finishes", "rests", "trains", False),
    ],
)
def test_a_round_for_the_work_that_is_left_begins_at_once_if_all_rest(
    me: str, peer: str, other: str, called: bool
) -> None:
    """As long as anybody trains, the next round begins an interval after the last. `other` is
    known by hearsay."""
    engine = sealer(PEER, quorum=2)
    engine.offer()
    admit(engine, offer_of(PEER))
    engine.done(engine.merge())
    engine.done(engine.jobs(Advance)[0])
    engine.apply()
    if me != "trains":
        engine.engine.rest(engine.now, finishing=me == "finishes")
    rumor = Rumor(THIRD, "", 1, finishes=other == "finishes")
    beat = next(b for b in engine.engine.state.roster.beats(BASE.genesis))
    told = {"finishes": peer == "finishes", "rests": peer != "trains"}
    engine.receive(replace(beat, count=beat.count + 1, roster=(rumor,), **told))
    left = replace(offer_of(PEER, 2), key=engine.lineage.key, follows=1, due=False)
    admit(engine, left)
    engine.tick(1.0)
    assert (engine.engine.state.rounds[0].phase is Phase.CALLING) is called


def test_all_have_offered_and_the_sealer_merges_exactly_those_in_name_order() -> None:
    engine = sealer(PEER, THIRD, quorum=3)
    engine.offer()
    admit(engine, offer_of(THIRD))
    assert engine.jobs(Merge) == []
    admit(engine, offer_of(PEER))
    merge = engine.merge()
    assert [o.peer for o in merge.offers] == [ME, PEER, THIRD]
    assert sum(merge.weights) == pytest.approx(1.0)


def test_nothing_is_sealed_within_a_beat_of_meeting_somebody() -> None:
    """A new peer may know a better sealer, which has these offers, too: both would seal."""
    engine = sealer(PEER)
    engine.offer()
    engine.engine.met(engine.now, THIRD, "")
    admit(engine, offer_of(PEER))
    engine.tick(0.0)
    assert engine.jobs(Merge) == []
    assert engine.engine.state.wake_at == engine.now + 1.0
    engine.tick(1.0)
    assert [o.peer for o in engine.merge().offers] == [ME, PEER]


@pytest.mark.parametrize(
    ("position", "rounds", "waits"), [(0, 1, False), (0, 0, True), (7, 1, True)]
)
def test_who_began_with_nothing_is_not_waited_for_once_there_were_rounds(
    position: int, rounds: int, waits: bool
) -> None:
    """It seals for nobody; whom it knows besides us had rounds of their own before."""
    engine = sealer(PEER)
    if rounds:
        engine.offer()
        admit(engine, offer_of(PEER))
        engine.done(engine.merge())
        (advance,) = engine.jobs(Advance)
        engine.done(advance)
        engine.apply()
    engine.offer()
    engine.engine.met(engine.now, THIRD, "")
    engine.receive(Beat(peer=THIRD, address="", count=1, position=position))
    admit(engine, replace(offer_of(PEER, rounds + 1), key=engine.lineage.key, follows=rounds))
    engine.tick(0.0)
    assert (engine.jobs(Merge) == []) is waits


@pytest.mark.parametrize(("stays", "resting"), [(True, True), (True, False), (False, True)])
def test_a_sealer_at_rest_loses_nothing_on_the_way_back_where_it_would_offer_that_again(
    stays: bool, resting: bool
) -> None:
    """No later round may come. The weights follow the tokens, as ever."""
    engine = sealer(PEER, residual_in_weights=stays)
    engine.offer()
    if resting:
        engine.engine.rest(engine.now)
    admit(engine, offer_of(PEER, 1, 12))
    merge = engine.merge()
    assert merge.flush is (stays and resting)
    assert merge.weights == (0.25, 0.75)


@pytest.mark.parametrize(("fast", "headway"), [(PEER, 12 / 8.8), (THIRD, 1.0)])
def test_the_anchor_goes_as_far_as_the_fastest_member_of_the_last_round(
    fast: PeerId, headway: float
) -> None:
    """By 12 steps over the mean of 4, 4 and 12, weighed by tokens. THIRD was not in the last round,
    so its steps may be those of several."""
    engine = sealer(PEER, THIRD, quorum=3)
    engine.engine.state.rounds[0].regulars = frozenset({ME, PEER})
    engine.offer()
    for peer in (PEER, THIRD):
        admit(engine, offer_of(peer, 1, 12 if peer == fast else 4))
    merge = engine.merge()
    assert merge.headway == pytest.approx(headway)
    engine.done(merge)
    (advance,) = engine.jobs(Advance)
    engine.done(advance)
    assert engine.engine.state.rounds[0].regulars == {ME, PEER, THIRD}


def test_a_seal_of_another_learner_tells_who_was_there_too() -> None:
    """An empty offer is no work: its sender's next one may be that of two rounds."""
    engine = sealer(PEER, THIRD)
    nothing = Entry(THIRD, 0, 0, 0)
    engine.receive(seal_of(BASE, Entry(PEER, 1, 40, 4), nothing, sealer=PEER))
    (advance,) = engine.jobs(Advance)
    engine.done(advance)
    assert engine.engine.state.rounds[0].regulars == {PEER}


@pytest.mark.parametrize(("steps", "weights"), [(4, (1.0, 0.0)), (0, (0.5, 0.5))])
def test_who_brings_nothing_weighs_where_everybody_closes(
    steps: int, weights: tuple[float, float]
) -> None:
    engine = sealer(PEER, residual_in_weights=True)
    offer = replace(engine.offer(), seq=2, tokens=10 * steps, again=(0, 0) if steps else (40, 4))
    engine.engine.state.rounds[0].add(offer)
    admit(engine, replace(offer_of(PEER, 0, 0), again=(40, 4)))
    assert engine.merge().weights == weights


@pytest.mark.parametrize("behind", [True, False])
def test_nothing_counts_only_on_the_sealers_anchor(behind: bool) -> None:
    """Else a sealer gets on with the word of those that stay behind, and they take no word of
    it."""
    engine = sealer(PEER, residual_in_weights=True)
    engine.receive(seal_of(BASE))
    (advance,) = engine.jobs(Advance)
    engine.done(advance)
    engine.apply()
    engine.beat(PEER, engine.lineage)
    closing = replace(engine.offer(), seq=2, tokens=0, again=(40, 4), key=engine.lineage.key)
    engine.engine.state.rounds[0].add(closing)
    key = BASE.key if behind else engine.lineage.key
    admit(engine, replace(offer_of(PEER, 0, 0), again=(40, 4), key=key))
    assert (PEER in engine.engine.state.rounds[0].inbox) != behind
    assert [merge.weights for merge in engine.jobs(Merge)] == ([] if behind else [(0.5, 0.5)])


def test_the_merged_lineage_is_published_to_who_offered_and_taken() -> None:
    engine = sealer(PEER)
    engine.offer()
    admit(engine, offer_of(PEER))
    merge = engine.merge()
    engine.done(merge)
    ((to, seal),) = engine.sent(Seal)
    assert to == PEER
    assert [(m.peer, m.seq) for m in seal.members] == [(ME, 1), (PEER, 1)]
    assert (seal.base, seal.key) == (BASE.digest, grown(BASE, *seal.members).key)
    (advance,) = engine.jobs(Advance)
    assert (advance.merged_own_offer, advance.sealed_here) == (True, True)


def test_one_seal_whoever_is_not_the_sealer_merges_nothing() -> None:
    engine = sealer(PEER, THIRD, seals=False)
    for peer in (PEER, THIRD):
        admit(engine, offer_of(peer))
    assert len(engine.engine.state.rounds[0].held()) == 2  # quorum: a sealer would seal
    engine.tick(1.0)
    assert engine.jobs(Merge) == []


def test_who_has_not_offered_is_called() -> None:
    engine = sealer(PEER, THIRD, quorum=3)
    engine.offer()
    key = engine.lineage.key
    assert engine.sent(Call) == [(PEER, Call(ME, 0, key)), (THIRD, Call(ME, 0, key))]
    admit(engine, offer_of(PEER))
    engine.beat(THIRD)
    engine.tick(1.0)
    assert engine.sent(Call) == [(THIRD, Call(ME, 0, key))]


def test_suspects_count_for_quorum_until_they_are_evicted() -> None:
    """Else each side of a partition would be a majority of itself."""
    engine = sealer(PEER, THIRD, FOURTH)
    for lost in (THIRD, FOURTH):
        engine.engine.linked(engine.now, lost, False)
    engine.offer(steps=4)
    admit(engine, offer_of(PEER))
    for _ in range(29 - 4):
        engine.tick(1.0)
        engine.beat(PEER)
        assert engine.jobs(Merge) == []
    engine.tick(2.0)
    assert [o.peer for o in engine.merge().offers] == [ME, PEER]


def test_while_a_round_is_merged_no_other_begins() -> None:
    engine = sealer(PEER)
    engine.offer()
    admit(engine, offer_of(PEER))
    merge = engine.merge()
    admit(engine, offer_of(PEER, seq=2))
    engine.tick(100.0)
    assert engine.jobs(Merge) == []
    engine.done(merge)
    assert len(engine.sent(Seal)) == 1


def test_a_sealer_that_is_about_to_decline_begins_no_round() -> None:
    """Its substitute merges these offers; or it does so itself, if it seals on after all."""
    engine = sealer(PEER, THIRD, quorum=3)
    engine.engine.state.roster.place.hands_over = True
    engine.offer()
    for peer in (PEER, THIRD):
        admit(engine, offer_of(peer))
    assert (engine.jobs(Merge), engine.sent(Call)) == ([], [])
    engine.tick(1.0)
    assert not engine.engine.state.roster.place.hands_over
    assert len(engine.merge().offers) == 3


# Merges without a seal


def test_a_merge_on_an_anchor_that_has_moved_is_thrown_away_and_its_offers_kept() -> None:
    engine = sealer(PEER)
    engine.offer()
    admit(engine, offer_of(PEER))
    merge = engine.merge()
    engine.receive(seal_of(BASE))  # two sealers: theirs was faster
    (advance,) = engine.jobs(Advance)
    engine.done(advance)
    engine.done(merge)
    assert engine.sent(Seal) == []
    assert engine.lineage == grown(BASE)
    again = engine.merge()
    assert again.base == grown(BASE)
    assert [o.entry for o in again.offers] == [o.entry for o in merge.offers]


def test_a_merge_that_came_to_nothing_is_named_and_not_tried_again_with_the_same_offers() -> None:
    engine = sealer(PEER)
    engine.offer()
    admit(engine, offer_of(PEER))
    engine.done(engine.merge(), fault="not finite")
    assert ["thrown away" in fault for fault in engine.faults()] == [True]
    assert (engine.jobs(Merge), engine.sent(Seal)) == ([], [])


# Offers


def test_an_offer_is_inspected_before_it_is_held_and_once() -> None:
    engine = sealer(PEER)
    engine.receive(offer_of(PEER))
    engine.receive(offer_of(PEER))
    (inspect,) = engine.jobs(Inspect)
    assert engine.engine.state.rounds[0].held() == ()
    engine.done(inspect)
    assert engine.engine.state.rounds[0].held() == ((PEER, 1),)
    engine.receive(offer_of(PEER))
    assert engine.jobs(Inspect) == []


def test_an_offer_that_failed_inspection_is_named_and_not_held() -> None:
    engine = sealer(PEER)
    engine.receive(offer_of(PEER))
    (inspect,) = engine.jobs(Inspect)
    engine.done(inspect, fault="not finite")
    assert engine.engine.state.rounds[0].held() == ()
    assert engine.faults() == ["offer 1 of peer refused: not finite"]


def test_an_offer_that_was_merged_while_it_was_inspected_is_not_held() -> None:
    engine = sealer(PEER, THIRD)
    offer = offer_of(PEER)
    engine.receive(offer)
    (inspect,) = engine.jobs(Inspect)
    engine.receive(seal_of(BASE, offer.entry, sealer=THIRD))
    (advance,) = engine.jobs(Advance)
    engine.done(advance)
    engine.done(inspect)
    assert engine.engine.state.rounds[0].held() == ()


def test_offers_that_another_seal_has_merged_are_held_no_more() -> None:
    engine = sealer(PEER, THIRD)
    offer = offer_of(PEER, due=False)
    admit(engine, offer)
    engine.receive(seal_of(BASE, offer.entry, sealer=THIRD))
    (advance,) = engine.jobs(Advance)
    engine.done(advance)
    assert engine.engine.state.rounds[0].held() == ()


def test_who_offers_again_what_was_merged_is_answered_with_the_seal() -> None:
    engine = sealer(PEER)
    engine.offer()
    admit(engine, offer_of(PEER))
    engine.done(engine.merge())
    engine.sent(Seal)
    engine.receive(offer_of(PEER))
    ((to, seal),) = engine.sent(Seal)
    assert (to, seal.base) == (PEER, BASE.digest)
    assert engine.jobs(Inspect) == []


# Branches


def test_a_sealer_that_is_behind_pulls_the_greater_anchor_before_it_seals() -> None:
    engine = sealer(PEER, THIRD)
    engine.offer()
    engine.beat(THIRD, grown(grown(BASE)))
    admit(engine, offer_of(PEER))
    assert engine.jobs(Merge) == []
    ((to, _),) = engine.sent(Want)
    assert to == THIRD
    newest = grown(grown(BASE))
    engine.receive(state_of(newest, peer=THIRD))
    (install,) = engine.jobs(Install)
    engine.done(install)
    engine.beat(PEER)
    engine.tick(1.0)
    assert engine.merge().base == newest


def test_a_sealer_that_falls_behind_while_it_installs_an_anchor_seals_nothing_on_it() -> None:
    """The peers get on meanwhile."""
    engine = sealer(PEER, THIRD, quorum=3)
    engine.tick(1.0)
    engine.offer()
    first = grown(BASE)
    for peer in (PEER, THIRD):
        engine.beat(peer, first)
    engine.receive(state_of(first))
    (install,) = engine.jobs(Install)
    for peer in (PEER, THIRD):
        engine.beat(peer, grown(first))
        engine.receive(offer_of(peer))
        for inspect in engine.jobs(Inspect):
            engine.done(inspect)
    engine.done(install)
    engine.apply()
    assert engine.lineage == first
    assert engine.jobs(Merge) == []
    for peer in (PEER, THIRD):
        engine.beat(peer, first)
    engine.tick(1.0)
    assert [len(merge.offers) for merge in engine.jobs(Merge)] == [3]


def test_a_sealer_that_cannot_get_the_greater_anchor_seals_in_the_end() -> None:
    engine = sealer(PEER, THIRD)
    engine.offer()
    engine.beat(THIRD, grown(grown(BASE)))
    admit(engine, offer_of(PEER))
    patience_s = int(engine.engine.state.policies.timing.round_timeout_s)
    for _ in range(patience_s - 1):
        engine.tick(1.0)
        for peer in (PEER, THIRD):
            engine.beat(peer, grown(grown(BASE)) if peer == THIRD else BASE)
        assert engine.jobs(Merge) == []
    engine.tick(2.0)
    assert len(engine.jobs(Merge)) == 1


def test_no_offer_is_merged_where_one_that_it_follows_is_not() -> None:
    """Else the merged vector would say that both are in the anchor."""
    engine = sealer(PEER)
    admit(engine, replace(offer_of(PEER, seq=2), follows=1))
    assert engine.engine.state.rounds[0].held() == ()
    admit(engine, offer_of(PEER, seq=2))
    assert engine.engine.state.rounds[0].held() == ((PEER, 2),)


def test_no_offer_is_merged_where_some_of_what_it_claims_is() -> None:
    """Whatever it says that it follows."""
    author = PeerId("old", 1)
    engine = sealer(PEER)
    engine.receive(seal_of(BASE, Entry(author, 5, 10, 1)))
    (advance,) = engine.jobs(Advance)
    engine.done(advance)
    for settled, held in ((4, ()), (5, ((PEER, 9),))):
        admit(engine, replace(offer_of(PEER, seq=9, inherited=Claim(author, settled)), follows=5))
        assert engine.engine.state.rounds[0].held() == held


# Offers of those that are gone


def orphaned() -> DrivenEngine:
    """A sealer that held the offer of a peer when that died and another took over the role."""
    engine = DrivenEngine()
    engine.beat(THIRD)
    admit(engine, offer_of(THIRD))
    state = engine.engine.state
    other = sealer_before(state.me)
    engine.beat(other, address="other:1")
    assert state.roster.sealer(0) == other
    engine.sent(Offer)
    return engine


def test_the_offer_of_a_learner_that_is_gone_is_passed_on_to_who_seals_now() -> None:
    engine = orphaned()
    sealer = engine.engine.state.roster.sealer(0)
    engine.tick(0.5)
    assert engine.sent(Offer) == []  # it lives, and offers again by itself
    engine.engine.linked(engine.now, THIRD, False)
    ((to, offer),) = engine.sent(Offer)
    assert (to, offer.peer, offer.seq) == (sealer, THIRD, 1)
    engine.tick(0.5)
    assert engine.sent(Offer) == []  # not all the time


def test_an_offer_that_the_sealer_holds_is_not_passed_on() -> None:
    engine = orphaned()
    sealer = engine.engine.state.roster.sealer(0)
    assert sealer is not None
    engine.beat(sealer, address="other:1", held=((THIRD, 1),))
    engine.engine.linked(engine.now, THIRD, False)
    engine.tick(0.5)
    assert engine.sent(Offer) == []


def passed_on_once() -> tuple[DrivenEngine, PeerId]:
    """An engine whose orphaned offer has reached the sealer once, and that sealer."""
    engine = orphaned()
    sealer = engine.engine.state.roster.sealer(0)
    assert sealer is not None
    engine.engine.linked(engine.now, THIRD, False)
    ((_, offer),) = engine.sent(Offer)
    engine.engine.delivered(engine.now, sealer, offer)
    return engine, sealer


def kept_alive(engine: DrivenEngine, sealer: PeerId, seconds: float) -> list[tuple[float, Offer]]:
    """The offers that the sealer gets in this time, and when. It beats, and keeps nothing."""
    sent = []
    for _ in range(int(2 * seconds)):
        engine.tick(0.5)
        engine.beat(sealer, address=f"{sealer.name}:1")
        passed = [offer for to, offer in engine.sent(Offer) if to == sealer]
        sent += [(engine.now, offer) for offer in passed]
        for offer in passed:
            engine.engine.delivered(engine.now, sealer, offer)
    return sent


def test_an_offer_that_the_sealer_does_not_keep_is_passed_on_ever_more_rarely_and_given_up() -> (
    None
):
    engine, sealer = passed_on_once()
    times = [at for at, _ in kept_alive(engine, sealer, 400.0)]
    gaps = [later - earlier for earlier, later in pairwise(times)]
    assert len(times) == TRIES - 1
    assert THIRD not in engine.engine.state.rounds[0].inbox
    assert all(longer >= 1.5 * gap for gap, longer in pairwise(gaps))
    (told,) = engine.faults()
    assert told.startswith(f"offer 1 of {THIRD.name}, which is gone, given up: {sealer.name} did")


def passed_on_while(does_fail: bool) -> tuple[DrivenEngine, int]:
    """An engine that passes an orphaned offer on to a sealer that keeps beating, for 100 s, and how
    often. The transport says that it fails, or nothing."""
    engine = orphaned()
    sealer = engine.engine.state.roster.sealer(0)
    assert sealer is not None
    engine.engine.linked(engine.now, THIRD, False)
    times = 0
    for _ in range(200):
        for to, offer in engine.sent(Offer):
            times += 1
            if does_fail:
                engine.engine.undelivered(engine.now, to, offer, BROKEN)
        engine.tick(0.5)
        engine.beat(sealer, address="other:1")
    return engine, times


def test_an_offer_that_did_not_arrive_is_passed_on_until_it_does() -> None:
    engine, times = passed_on_while(does_fail=True)
    assert times > 2 * TRIES
    assert THIRD in engine.engine.state.rounds[0].inbox
    assert engine.faults() == []


def test_an_offer_that_is_still_on_its_way_is_not_passed_on_again() -> None:
    """The transport would begin anew with it, and on a slow link never come to its end."""
    engine, times = passed_on_while(does_fail=False)
    assert times == 1
    assert THIRD in engine.engine.state.rounds[0].inbox


def test_another_sealer_gets_the_offer_as_often() -> None:
    engine, first = passed_on_once()
    times = [at for at, _ in kept_alive(engine, first, 30.0)]
    assert 1 < len(times) < TRIES - 1
    other = sealer_before(first)
    engine.beat(other, address=f"{other.name}:1")
    assert len(kept_alive(engine, other, 400.0)) == TRIES


def test_phantoms_are_counted_for_no_quorum() -> None:
    """A caller that says hello in many names stops no round."""
    engine = sealer(PEER)
    for i in range(10):
        engine.engine.met(engine.now, PeerId(f"phantom-{i}", 1), "")
    engine.tick(1.0)
    engine.offer()
    admit(engine, offer_of(PEER))
    assert len(engine.merge().offers) == 2


def test_lockstep_waits_for_no_phantom() -> None:
    engine = sealer(PEER, adopt_after=0, grace_s=100.0)
    engine.engine.met(engine.now, THIRD, "")
    engine.tick(1.0)
    engine.offer()
    admit(engine, offer_of(PEER))
    assert len(engine.merge().offers) == 2


def test_no_offer_makes_an_anchor_that_nobody_can_tell_of() -> None:
    engine = sealer(PEER, THIRD)
    admit(engine, replace(offer_of(PEER), tokens=COUNTER_LIMIT))
    assert PEER in engine.engine.state.rounds[0].inbox
    follows = replace(offer_of(THIRD), tokens=COUNTER_LIMIT)
    assert not engine.engine.state.rounds[0].fresh(follows, grown(BASE))
    assert engine.engine.state.rounds[0].fresh(
        replace(follows, tokens=COUNTER_LIMIT - 10), grown(BASE)
    )


def test_an_offer_whose_tokens_would_outweigh_all_others_is_refused_and_the_rest_merged() -> None:
    engine = sealer(PEER, THIRD, FOURTH, quorum=3)
    engine.offer()
    admit(engine, replace(offer_of(FOURTH), tokens=4 * 10 * SPREAD + 1))
    admit(engine, offer_of(THIRD))
    admit(engine, offer_of(PEER))
    assert [offer.peer for offer in engine.merge().offers] == [ME, PEER, THIRD]
    assert ["offer 1 of fourth refused" in fault for fault in engine.faults()] == [True]
    assert FOURTH not in engine.engine.state.rounds[0].inbox


def test_offers_that_others_pass_on_make_no_peer_an_outlier() -> None:
    """Whoever passes them on may have made them up, with as few tokens as it likes."""
    engine = sealer(PEER, quorum=2, grace_s=100.0)
    for gone in (THIRD, FOURTH):
        orphan = replace(offer_of(gone), tokens=1)
        engine.engine.passed_on(engine.now, orphan, PEER)
        (inspect,) = engine.jobs(Inspect)
        engine.done(inspect)
    engine.offer()
    admit(engine, replace(offer_of(PEER), tokens=4 * 9 * SPREAD))
    members = [offer.peer for offer in engine.merge().offers]
    assert {ME, PEER} <= set(members)
    assert len(members) == 3
    assert ["of fourth refused" in fault for fault in engine.faults()] == [True]


def test_a_learner_that_starts_again_and_again_makes_no_other_an_outlier() -> None:
    """Of one name, the newest process alone speaks about rates."""
    engine = sealer(PEER, THIRD, quorum=3, grace_s=100.0)
    for more in range(3):
        process = PeerId(THIRD.name, THIRD.incarnation + more)
        engine.beat(process)
        admit(engine, replace(offer_of(process), tokens=1, steps=10**6))
    admit(engine, offer_of(PEER))
    engine.offer()
    members = [offer.peer for offer in engine.merge().offers]
    assert {ME, PEER, process} < set(members)
    assert len(members) == 4
    assert ["of third refused" in fault for fault in engine.faults()] == [True]


def relayed_beside_one_of_great_rate(steps: int) -> DrivenEngine:
    """The offers of two, and of a third one in another's name; the sealer has trained so many steps
    that are in none of them."""
    engine = sealer(PEER, THIRD, quorum=3, grace_s=0.0)
    if steps:
        engine.step(steps)
    engine.engine.passed_on(engine.now, offer_of(FOURTH), PEER)
    for inspect in engine.jobs(Inspect):
        engine.done(inspect)
    admit(engine, offer_of(PEER))
    admit(engine, replace(offer_of(THIRD), tokens=40 * 9 * SPREAD))
    engine.tick(1.0)
    return engine


def test_where_two_disagree_about_rates_the_sealers_own_work_tells_who_is_alone() -> None:
    alone = relayed_beside_one_of_great_rate(steps=0)
    (fault,) = alone.faults()
    assert "of fourth refused" in fault
    assert fault.endswith("; peer has passed it on")
    (fault,) = relayed_beside_one_of_great_rate(steps=2).faults()
    assert "of third refused" in fault
    assert "passed" not in fault


def test_the_sealers_own_work_tells_so_beside_its_own_offer() -> None:
    engine = sealer(PEER, THIRD, quorum=3, grace_s=0.0)
    engine.engine.passed_on(engine.now, offer_of(FOURTH), PEER)
    for inspect in engine.jobs(Inspect):
        engine.done(inspect)
    engine.offer()
    admit(engine, replace(offer_of(THIRD), tokens=40 * 9 * SPREAD))
    assert ["of third refused" in fault for fault in engine.faults()] == [True]


def test_without_an_offer_that_is_refused_there_may_be_no_quorum() -> None:
    engine = sealer(PEER, THIRD, quorum=3)
    engine.offer()
    admit(engine, offer_of(PEER))
    admit(engine, replace(offer_of(THIRD), tokens=COUNTER_LIMIT))
    assert engine.jobs(Merge) == []
    admit(engine, replace(offer_of(THIRD, 2), inherited=Claim(THIRD, 0)))
    assert [offer.seq for offer in engine.merge().offers] == [1, 1, 2]


def test_two_offers_that_make_an_anchor_which_nobody_can_tell_of_are_not_merged_together() -> None:
    engine = sealer(PEER)
    fragment = engine.engine.state.fragments[0]
    fragment.lineage = replace(fragment.lineage, tokens=COUNTER_LIMIT - 45)
    engine.offer()
    admit(engine, replace(offer_of(PEER), tokens=41))
    assert ["too many" in fault for fault in engine.faults()] == [True]
    assert list(engine.engine.state.rounds[0].inbox) == [ME]


def test_a_claim_to_a_residual_where_encodings_leave_none_counts_for_nothing() -> None:
    """All would refuse the seal, and the next one of the same offers."""
    engine = sealer(PEER)
    engine.offer()
    admit(engine, replace(offer_of(PEER), again=(120, 4)))
    engine.done(engine.merge())
    ((_, seal),) = engine.sent(Seal)
    assert seal.shares == ()
    assert not flaw_of(seal, BASE, engine.engine.state.policies, False)
    assert engine.faults() == []


def test_a_seal_tells_the_residuals_that_it_weighs_by() -> None:
    """So all can compute its weights."""
    engine = sealer(PEER, residual_in_weights=True)
    offer = replace(engine.offer(), seq=2, tokens=0, again=(40, 4))
    engine.engine.state.rounds[0].add(offer)
    admit(engine, replace(offer_of(PEER, 0, 0), again=(120, 4)))
    engine.done(engine.merge())
    ((_, seal),) = engine.sent(Seal)
    assert (seal.weights, seal.shares) == ((0.25, 0.75), ((40, 4), (120, 4)))
    assert flaw_of(seal, BASE, engine.engine.state.policies, is_buffers=False) == ""
    plain = replace(engine.engine.state.policies, residual_in_weights=False)
    assert "residuals" in flaw_of(seal, BASE, plain, is_buffers=False)


def test_all_that_want_an_anchor_share_one_copy() -> None:
    """Each copy takes the worker as long as a merge: thousands of wants stopped all rounds."""
    engine = sealer(PEER, THIRD)
    for have in (b"x", b"y", b"z"):
        for peer in (PEER, THIRD):
            engine.receive(Want(peer, 0, have))
    (job,) = engine.jobs(Export)
    engine.done(job)
    assert [to for to, _ in engine.sent(State)] == [PEER, THIRD]
    engine.receive(Want(PEER, 0, b"x"))
    assert len(engine.jobs(Export)) == 1


def test_an_offer_for_another_model_asks_for_no_anchor() -> None:
    """Its key counts the tokens of that model, and says nothing about an anchor of ours."""
    engine = sealer(PEER)
    greater = replace(offer_of(PEER), key=grown(BASE).key)
    engine.receive(replace(greater, genesis=b"another"))
    assert engine.sent(Want) == []
    engine.receive(greater)
    assert [to for to, _ in engine.sent(Want)] == [PEER]


@pytest.mark.parametrize("steps", [0, 4])
def test_nobody_else_offers_in_our_name(steps: int) -> None:
    engine = DrivenEngine()
    engine.beat(PEER)
    engine.engine.receive(engine.now, offer_of(ME, steps=steps))
    engine.engine.passed_on(engine.now, offer_of(ME, steps=steps), PEER)
    assert engine.jobs(Inspect) == []
    assert engine.engine.state.rounds[0].inbox == {}


def test_the_offer_of_a_learner_that_lives_is_not_taken_from_another() -> None:
    engine = DrivenEngine()
    engine.beat(THIRD)
    engine.engine.linked(engine.now, THIRD, True)
    engine.engine.passed_on(engine.now, offer_of(THIRD), PEER)
    assert engine.jobs(Inspect) == []
    engine.engine.linked(engine.now, THIRD, False)
    engine.engine.passed_on(engine.now, offer_of(THIRD), PEER)
    (job,) = engine.jobs(Inspect)
    assert (job.offer.peer, job.offer.passed_by) == (THIRD, PEER)


@pytest.mark.parametrize("signed", [False, True])
def test_an_offer_of_nothing_has_bytes_where_offers_are_signed(signed: bool) -> None:
    engine = DrivenEngine()
    engine.beat(PEER)
    state = engine.engine.state
    state.policies = replace(state.policies, signed=signed)
    engine.engine.receive(engine.now, replace(offer_of(PEER, seq=0, steps=0), tokens=0))
    assert [job.offer.peer for job in engine.jobs(Inspect)] == [PEER] * signed
    assert (PEER in state.rounds[0].inbox) is not signed


def test_an_offer_that_was_passed_on_is_refused_of_the_peer_that_did_so() -> None:
    engine = DrivenEngine()
    engine.beat(PEER)
    engine.engine.passed_on(engine.now, offer_of(THIRD), PEER)
    (job,) = engine.jobs(Inspect)
    engine.engine.finished(engine.now, job, Done(fault="its signature is not over this offer"))
    refused = Refused(PEER.name, "offer refused: its signature is not over this offer", 1)
    assert engine.engine.state.refusals.counted() == (refused,)


# Slow peers


def judging(*slower: tuple[PeerId, float], quorum: int | None = None) -> DrivenEngine:
    """A sealer among peers that are so many times slower than they were, and have said so for a
    while."""
    engine = sealer(*(peer for peer, _ in slower), quorum=quorum, grace_s=100.0)
    listen(engine, *slower)
    return engine


def listen(engine: DrivenEngine, *slower: tuple[PeerId, float]) -> None:
    for _ in range(4):
        for peer, factor in slower:
            engine.beat(peer, slower=factor)
        engine.tick(1.0)


def test_who_fails_slow_is_called_and_not_waited_for() -> None:
    engine = judging((PEER, 1.0), (THIRD, 3.0), quorum=2)
    (event,) = engine.events("slow")
    assert event.facts["peer"] == THIRD.name
    assert event.facts["ratio"] == pytest.approx(3.0)
    engine.offer()
    assert {to for to, _ in engine.sent(Call)} == {PEER, THIRD}
    admit(engine, offer_of(PEER))
    merge = engine.merge()
    assert [o.peer for o in merge.offers] == [ME, PEER]
    engine.done(merge)
    ((_, seal),) = engine.sent(Seal)
    assert (seal.reason, seal.absent) == ("slow_left_out", (THIRD.name,))


def live_on(engine: DrivenEngine, seconds: int, *others: PeerId) -> None:
    """So much time passes, and both peers are alive, and so are the others."""
    for _ in range(seconds):
        engine.tick(1.0)
        for peer in (PEER, THIRD, *others):
            engine.beat(peer)


def adopt(engine: DrivenEngine) -> None:
    """The round is merged, and training takes its anchor."""
    engine.done(engine.merge())
    (advance,) = engine.jobs(Advance)
    engine.done(advance)
    engine.apply()


def a_round_with_late(engine: DrivenEngine, n: int, late_s: int) -> None:
    """Round `n` of three learners, of which one offers so long after the others."""
    engine.offer()
    admit(engine, replace(offer_of(PEER, n), key=engine.lineage.key, follows=n - 1))
    live_on(engine, late_s)
    admit(engine, replace(offer_of(THIRD, n), key=engine.lineage.key, follows=n - 1))
    adopt(engine)


def rounds_with_late(**options: Any) -> DrivenEngine:
    """A sealer of three learners, which waits for the third. In two rounds that one was late."""
    engine = sealer(PEER, THIRD, quorum=2, grace_s=100.0, **options)
    for n, late_s in enumerate((0, 5, 5)):
        a_round_with_late(engine, n + 1, late_s)
    engine.sent(Call)
    engine.offer()
    admit(engine, replace(offer_of(PEER, 4), key=engine.lineage.key, follows=3))
    return engine


def test_a_learner_that_always_offers_late_is_called_and_not_waited_for() -> None:
    engine = rounds_with_late()
    assert THIRD in {to for to, _ in engine.sent(Call)}
    assert [o.peer for o in engine.merge().offers] == [ME, PEER]


def test_a_new_sealer_does_not_wait_for_those_that_were_late_before() -> None:
    """Before, each sealer waited for the whole grace in two rounds, and a newcomer could be taken
    for one with a weak link."""
    engine = sealer(PEER, THIRD, quorum=2, grace_s=100.0)
    for n in (1, 2):
        members = [offer_of(peer, n).entry for peer in (PEER, FOURTH)]
        seal = replace(seal_of(engine.lineage, *members), absent=(ME.name, THIRD.name))
        engine.receive(seal)
        (advance,) = engine.jobs(Advance)
        engine.done(advance)
        engine.apply()
    assert engine.engine.state.rounds[0].lateness.late(engine.now, 0.0) == {THIRD}
    engine.offer()
    admit(engine, replace(offer_of(PEER, 3), key=engine.lineage.key, follows=2))
    assert [o.peer for o in engine.merge().offers] == [ME, PEER]


def test_a_learner_that_never_answers_is_waited_for_in_two_rounds() -> None:
    engine = sealer(PEER, THIRD, quorum=2, grace_s=10.0)
    a_round_with_late(engine, 1, 0)
    for n in (2, 3):
        engine.offer()
        admit(engine, replace(offer_of(PEER, n), key=engine.lineage.key, follows=n - 1))
        assert engine.jobs(Merge) == []
        live_on(engine, 11)
        adopt(engine)
    engine.offer()
    admit(engine, replace(offer_of(PEER, 4), key=engine.lineage.key, follows=3))
    assert [o.peer for o in engine.merge().offers] == [ME, PEER]


def newcomer_is_called(**options: Any) -> DrivenEngine:
    """A sealer of three learners and of a fourth, which has just joined and has not offered yet."""
    engine = sealer(PEER, THIRD, quorum=2, grace_s=100.0, **options)
    a_round_with_late(engine, 1, 0)
    engine.beat(FOURTH)
    engine.offer()
    for peer in (PEER, THIRD):
        admit(engine, replace(offer_of(peer, 2), key=engine.lineage.key, follows=1))
    assert engine.jobs(Merge) == []
    return engine


def test_a_newcomer_that_does_not_answer_soon_is_not_waited_for() -> None:
    """Before, rounds waited for all of their grace, and twice."""
    engine = newcomer_is_called()
    limit_s = engine.engine.stragglers.late_after_s(engine.engine.state.rounds[0])
    engine.tick(0.0)
    assert engine.engine.state.wake_at == engine.now + limit_s
    live_on(engine, int(limit_s) - 1, FOURTH)
    assert engine.jobs(Merge) == []
    engine.tick(limit_s % 1.0 or 1.0)
    assert [o.peer for o in engine.merge().offers] == [ME, PEER, THIRD]


@pytest.mark.parametrize("options", [{"adopt_after": 2}, {"failslow": None}])
def test_all_wait_for_a_newcomer_where_rounds_repeat_or_nobody_is_judged(
    options: dict[str, Any],
) -> None:
    engine = newcomer_is_called(**options)
    live_on(engine, 50, FOURTH)
    assert engine.jobs(Merge) == []


def test_an_offer_that_came_late_is_the_first_of_the_next_round() -> None:
    engine = rounds_with_late()
    admit(engine, replace(offer_of(THIRD, 4), key=engine.lineage.key, follows=3))
    adopt(engine)
    engine.offer()
    admit(engine, replace(offer_of(PEER, 5), key=engine.lineage.key, follows=4))
    assert [o.peer for o in engine.merge().offers] == [ME, PEER, THIRD]


@pytest.mark.parametrize("options", [{"adopt_after": 2}, {"failslow": None}])
def test_all_wait_where_rounds_repeat_or_nobody_is_judged(options: dict[str, Any]) -> None:
    engine = rounds_with_late(**options)
    assert engine.jobs(Merge) == []
    admit(engine, replace(offer_of(THIRD, 4), key=engine.lineage.key, follows=3))
    assert [o.peer for o in engine.merge().offers] == [ME, PEER, THIRD]


def test_what_the_slow_one_offers_in_time_counts() -> None:
    engine = judging((PEER, 1.0), (THIRD, 3.0), quorum=2)
    admit(engine, offer_of(THIRD, due=False))
    engine.offer()
    admit(engine, offer_of(PEER))
    assert [o.peer for o in engine.merge().offers] == [ME, PEER, THIRD]


def test_rounds_wait_for_the_least_slow_where_quorum_needs_them() -> None:
    """Law 6: exclusion never shrinks the expected set below quorum."""
    fifth = PeerId("fifth", 1)
    engine = judging((PEER, 1.0), (fifth, 1.0), (THIRD, 3.0), (FOURTH, 5.0), quorum=4)
    assert set(engine.engine.stragglers.failing) == {THIRD, FOURTH}
    engine.offer()
    for peer in (PEER, fifth):
        admit(engine, offer_of(peer))
    assert engine.jobs(Merge) == []
    admit(engine, offer_of(THIRD))
    assert [o.peer for o in engine.merge().offers] == [fifth, ME, PEER, THIRD]


def test_whom_rounds_wait_for_are_never_fewer_than_quorum() -> None:
    """Also where somebody slower has offered: it is not whom they wait for."""
    fifth = PeerId("fifth", 1)
    engine = judging((PEER, 1.0), (fifth, 1.0), (THIRD, 3.0), (FOURTH, 5.0), quorum=4)
    engine.offer()
    for peer in (PEER, fifth, FOURTH):
        admit(engine, offer_of(peer))
    assert engine.jobs(Merge) == []
    admit(engine, offer_of(THIRD))
    assert [o.peer for o in engine.merge().offers] == [fifth, FOURTH, ME, PEER, THIRD]


def test_who_recovers_is_waited_for_again() -> None:
    engine = judging((PEER, 1.0), (THIRD, 3.0), quorum=2)
    listen(engine, (PEER, 1.0), (THIRD, 1.0))
    assert [event.facts["peer"] for event in engine.events("recovered")] == [THIRD.name]
    engine.offer()
    admit(engine, offer_of(PEER))
    assert engine.jobs(Merge) == []
    admit(engine, offer_of(THIRD))
    assert [o.peer for o in engine.merge().offers] == [ME, PEER, THIRD]


def test_without_failslow_all_are_waited_for() -> None:
    engine = sealer(PEER, THIRD, quorum=2, failslow=None, grace_s=100.0)
    listen(engine, (PEER, 1.0), (THIRD, 3.0))
    assert engine.events("slow") == []
    engine.offer()
    admit(engine, offer_of(PEER))
    assert engine.jobs(Merge) == []


# Offers on an anchor that this learner is about to have


def sealed(*peers: PeerId) -> tuple[DrivenEngine, Advance, Lineage]:
    """A sealer that has published a seal, and has not taken it itself yet: its worker is busy.
    Returns it, with the job and the lineage that the peers may have by now."""
    engine = sealer(*peers, quorum=1 + len(peers))
    engine.offer()
    for peer in peers:
        admit(engine, offer_of(peer))
    engine.done(engine.merge())
    (advance,) = engine.jobs(Advance)
    return engine, advance, advance.lineage


def test_an_offer_that_is_ahead_of_a_busy_sealer_is_held_once_that_has_the_anchor() -> None:
    """Its learner was told that the offer has arrived. If it were lost, the next round would wait
    until some beats have not mentioned it."""
    engine, advance, ahead = sealed(PEER, THIRD)
    for peer in (PEER, THIRD):
        engine.receive(replace(offer_of(peer, seq=2), key=ahead.key, follows=1))
    assert (engine.jobs(Inspect), engine.sent(Want)) == ([], [])
    engine.done(advance)
    inspects = engine.jobs(Inspect)
    for inspect in inspects:
        engine.done(inspect)
    assert engine.engine.state.rounds[0].held() == ((PEER, 2), (THIRD, 2))
    assert len(inspects) == 2


def test_so_it_is_while_the_sealer_copies_its_weights_and_has_not_begun_to_move() -> None:
    """Its own offer is in no seal then: the round had a quorum without it."""
    engine = sealer(PEER, THIRD)
    for peer in (PEER, THIRD):
        admit(engine, offer_of(peer))
    engine.tick(1.0)
    merge = engine.merge()
    engine.step(4)
    engine.reserve()
    engine.done(merge)
    (_, seal), *_ = engine.sent(Seal)
    engine.receive(replace(offer_of(PEER, seq=2), key=seal.key, follows=1))
    assert (engine.jobs(Advance), engine.jobs(Inspect)) == ([], [])
    assert engine.sent(Want) == []
    engine.copied()
    (advance,) = engine.jobs(Advance)
    assert engine.jobs(Inspect) == []
    engine.done(advance)
    (inspect,) = engine.jobs(Inspect)
    assert (inspect.offer.peer, inspect.offer.seq) == (PEER, 2)


def test_of_early_offers_the_newest_of_each_sender_is_kept_and_once() -> None:
    engine, advance, ahead = sealed(PEER)
    early = replace(offer_of(PEER, seq=2), key=ahead.key, follows=1)
    engine.receive(early)
    engine.receive(replace(early, seq=3))
    engine.done(advance)
    (inspect,) = engine.jobs(Inspect)
    engine.done(inspect)
    assert engine.engine.state.rounds[0].held() == ((PEER, 3),)
    engine.tick(1.0)
    assert engine.jobs(Inspect) == []


def test_an_early_offer_of_the_past_drives_no_newer_one_out() -> None:
    engine, advance, ahead = sealed(PEER)
    early = replace(offer_of(PEER, seq=3), key=ahead.key, follows=1)
    engine.receive(early)
    engine.receive(replace(early, seq=2))
    engine.engine.passed_on(engine.now, replace(early, seq=4), THIRD)
    engine.done(advance)
    (inspect,) = engine.jobs(Inspect)
    assert inspect.offer.seq == 3


def test_early_offers_of_invented_learners_are_not_kept() -> None:
    engine, _, ahead = sealed(PEER)
    for i in range(3):
        early = replace(offer_of(PeerId(f"x-{i}", 1), seq=2), key=ahead.key, follows=1)
        engine.engine.passed_on(engine.now, early, PEER)
    assert engine.engine.sealer.early.take(0) == []


def test_offers_of_unknown_learners_are_few() -> None:
    """Anybody may pass such offers on, and invent their authors."""
    engine = sealer(PEER)
    few = engine.engine.state.policies.limits.learners
    for i in range(few + 3):
        engine.engine.passed_on(engine.now, offer_of(PeerId(f"x-{i}", 1)), PEER)
        for inspect in engine.jobs(Inspect):
            engine.done(inspect)
    held = engine.engine.state.rounds[0].held()
    assert len(held) == few
    newer = replace(offer_of(held[0][0], seq=2), follows=0)
    engine.engine.passed_on(engine.now, newer, PEER)  # of one that is known by now
    assert len(engine.jobs(Inspect)) == 1


def test_news_that_came_during_a_copy_is_taken_if_that_is_interrupted() -> None:
    engine = sealer(PEER, THIRD)
    engine.step(4)
    engine.reserve()
    ahead = grown(engine.lineage, offer_of(PEER).entry)
    for peer in (PEER, THIRD):
        engine.beat(peer, ahead)
    engine.receive(state_of(ahead, peer=engine.sent(Want)[0][0]))
    assert engine.jobs(Install) == []
    engine.engine.boundaries.release([0])
    engine.tick(1.0)
    assert len(engine.jobs(Install)) == 1


def test_a_sealer_that_pulls_an_anchor_keeps_the_offers_on_it() -> None:
    engine = sealer(PEER, THIRD)
    newest = grown(grown(BASE), Entry(PEER, 1, 10, 1))
    for peer in (PEER, THIRD):
        engine.beat(peer, newest)
    engine.receive(replace(offer_of(PEER, seq=2), key=newest.key, follows=1))
    engine.receive(state_of(newest, peer=engine.sent(Want)[0][0]))
    (install,) = engine.jobs(Install)
    assert engine.jobs(Inspect) == []
    engine.done(install)
    (inspect,) = engine.jobs(Inspect)
    assert (inspect.offer.peer, inspect.offer.seq) == (PEER, 2)


def test_what_a_busy_sealer_has_merged_is_answered_once() -> None:
    """An offer on the anchor that is left is merged, or its learner offers it anew."""
    engine, advance, _ = sealed(PEER)
    engine.sent(Seal)
    engine.receive(offer_of(PEER))
    assert len(engine.sent(Seal)) == 1
    engine.done(advance)
    assert engine.sent(Seal) == []


def test_an_offer_on_an_anchor_that_is_not_believed_is_not_kept() -> None:
    """It would take up memory for as long as this learner's anchor stands still."""
    engine = sealer(PEER, THIRD, FOURTH)
    for _ in range(TRIAL):
        engine.receive(seal_of(engine.lineage, sealer=THIRD))
        (advance,) = engine.jobs(Advance)
        engine.done(advance)
    for peer in (PEER, THIRD, FOURTH):
        engine.beat(peer, engine.lineage)
    seal = seal_of(engine.lineage, offer_of(PEER).entry, sealer=THIRD)
    engine.receive(replace(offer_of(PEER, seq=2), key=seal.key, follows=1))
    for peer in (THIRD, FOURTH):
        engine.beat(peer, grown(engine.lineage, *seal.members))
    engine.receive(seal)
    (advance,) = engine.jobs(Advance)
    engine.done(advance)
    assert engine.lineage.key == seal.key
    assert engine.jobs(Inspect) == []


# Offers that come faster than they can be checked


def test_of_one_senders_offers_one_is_checked_at_a_time_and_the_newest_next() -> None:
    """Each holds its bytes while it waits in the worker's queue."""
    engine = sealer(PEER, THIRD)
    for seq in (1, 2, 3, 4):
        engine.receive(offer_of(PEER, seq=seq))
    engine.receive(offer_of(THIRD))
    jobs = engine.jobs(Inspect)
    assert [(job.offer.peer, job.offer.seq) for job in jobs] == [(PEER, 1), (THIRD, 1)]
    engine.done(jobs[0])
    assert engine.engine.state.rounds[0].inbox[PEER].seq == 1
    (newest,) = engine.jobs(Inspect)
    assert newest.offer.seq == 4
    engine.done(newest)
    assert engine.engine.state.rounds[0].inbox[PEER].seq == 4
    assert engine.jobs(Inspect) == []


def test_an_offer_that_is_sent_again_while_it_is_checked_is_checked_once() -> None:
    engine = sealer(PEER)
    for _ in range(3):
        engine.receive(offer_of(PEER))
    (job,) = engine.jobs(Inspect)
    engine.done(job)
    assert engine.jobs(Inspect) == []


def test_what_was_refused_is_counted_by_peer_and_reason() -> None:
    engine = sealer(PEER)
    for seq in (1, 2):
        engine.receive(offer_of(PEER, seq=seq))
        (job,) = engine.jobs(Inspect)
        engine.done(job, fault=f"section 'delta {seq}' is missing")
    counted = engine.engine.state.refusals.counted()
    assert counted == (Refused("peer", "offer refused: section … is missing", 2),)


def test_where_an_anchor_has_no_room_for_one_more_author_the_author_is_told() -> None:
    engine = sealer(PEER)
    known = {PeerId(str(i), 1): 1 for i in range(MOST_AUTHORS)}
    fragment = engine.engine.state.fragments[0]
    fragment.lineage = replace(fragment.lineage, merged=known)
    engine.receive(offer_of(PEER))
    assert engine.jobs(Inspect) == []
    (counted,) = engine.engine.state.refusals.counted()
    assert (counted.peer, "the anchor has work of as many" in counted.reason) == ("peer", True)
