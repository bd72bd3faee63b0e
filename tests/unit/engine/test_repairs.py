"""A learner that has something else in its anchor than most others takes theirs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mend_optim.engine.effects import Advance, Attest, Inspect, Install, Merge
from mend_optim.engine.held import Held
from mend_optim.engine.ledger import RoundRecord
from mend_optim.engine.pulling import MENDING
from mend_optim.engine.state import TRIAL
from mend_optim.protocol.lineage import Entry, Key, Lineage, PeerId
from mend_optim.protocol.messages import Content, Want
from mend_optim.protocol.peer_limits import Limits
from mend_optim.protocol.timing import Timing
from tests import reference
from tests.support.engines import (
    FOURTH,
    PEER,
    THIRD,
    DrivenEngine,
    grown,
    offer_of,
    seal_of,
    state_of,
)

FIFTH = PeerId("fifth", 1)
PEERS = (PEER, THIRD, FOURTH, FIFTH)
OURS, TRUE, FALSE = b"ours", b"true", b"false"


def beside(count: int, *, handed_over: bool = True) -> DrivenEngine:
    """A learner with so many peers that is past its trial, and attests its anchor. A peer has
    handed that over, or one before it."""
    engine = DrivenEngine(seals=False)
    for peer in PEERS[:count]:
        engine.beat(peer)
    if handed_over:
        ahead = grown(grown(engine.lineage))
        engine.beat(PEER, ahead)
        engine.receive(state_of(ahead))
        (job,) = engine.jobs(Install)
        engine.done(job)
        engine.apply()
        engine.sent(Want)
    for _ in range(TRIAL):
        advance(engine)
    for peer in PEERS[:count]:
        engine.beat(peer, engine.lineage, step=3)
    return engine


def advance(engine: DrivenEngine) -> None:
    engine.now += 1.0
    sealer = engine.engine.state.roster.sealer(0)
    assert sealer
    engine.receive(seal_of(engine.lineage, sealer=sealer))
    (job,) = engine.jobs(Advance)
    engine.done(job)
    for attest in engine.jobs(Attest):
        engine.done(attest, digest=OURS)
    engine.apply()


def attest(
    engine: DrivenEngine, peer: PeerId, digest: bytes, key: Key | None = None, step: int = 3
) -> None:
    content = Content(key or engine.lineage.key, digest)
    engine.beat(peer, engine.lineage, step=step, content=content)


def asked(engine: DrivenEngine) -> list[PeerId]:
    """The peers of which the whole anchor was asked for."""
    return [to for to, want in engine.sent(Want) if not want.have]


CASES: dict[str, tuple[int, Mapping[PeerId, bytes], bool]] = {
    "nobody": (2, {}, False),
    "the only other one": (1, {PEER: TRUE}, False),
    "one of two others": (2, {PEER: TRUE}, False),
    "both of two others": (2, {PEER: TRUE, THIRD: TRUE}, True),
    "two others that differ": (2, {PEER: TRUE, THIRD: FALSE}, False),
    "two of three others, which is half of all": (3, {PEER: TRUE, THIRD: TRUE}, False),
    "two against one that differs, too": (3, {PEER: TRUE, THIRD: TRUE, FOURTH: FALSE}, False),
    "three of three others": (3, {PEER: TRUE, THIRD: TRUE, FOURTH: TRUE}, True),
    "two of four that agree on a lie": (4, {PEER: FALSE, THIRD: FALSE}, False),
    "three of four others": (4, {PEER: TRUE, THIRD: TRUE, FOURTH: TRUE, FIFTH: OURS}, True),
    "all have the same": (3, {PEER: OURS, THIRD: OURS, FOURTH: OURS}, False),
}


@pytest.mark.parametrize("case", CASES)
def test_an_anchor_is_wrong_if_more_than_half_of_all_learners_have_another(case: str) -> None:
    count, said, wrong = CASES[case]
    engine = beside(count)
    for peer, digest in said.items():
        attest(engine, peer, digest)
    engine.tick(0.1)
    assert len(asked(engine)) == wrong
    assert len(engine.events("outvoted")) == wrong


@given(st.lists(st.sampled_from([OURS, TRUE, FALSE, b""]), min_size=1, max_size=4))
def test_votes_are_counted_as_by_the_twin(said: list[bytes]) -> None:
    engine = beside(len(said))
    for peer, digest in zip(PEERS, said, strict=False):
        if digest:
            attest(engine, peer, digest)
    engine.tick(0.1)
    wrong = reference.outvoted(OURS, said)
    assert bool(asked(engine)) == wrong
    (outvoted,) = [engine.engine.adoption.attestations.outvoted_by(engine.fragment)]
    have = [peer for peer, digest in zip(PEERS, said, strict=False) if said.count(digest) > 1]
    assert outvoted == (sorted(p for p in have if said[PEERS.index(p)] != OURS) if wrong else [])


def outvoted(count: int = 2) -> DrivenEngine:
    engine = beside(count)
    for peer in PEERS[:count]:
        attest(engine, peer, TRUE)
    return engine


def repair(engine: DrivenEngine, anchor: Lineage) -> Install:
    """The peer that was asked hands this anchor over."""
    engine.tick(0.1)
    (to,) = asked(engine)
    engine.receive(state_of(anchor, peer=to))
    (job,) = engine.jobs(Install)
    engine.done(job)
    return job


def records(engine: DrivenEngine) -> list[RoundRecord]:
    return [event.facts["round"] for event in engine.events("round")]


def test_the_same_anchor_is_taken_with_the_bytes_of_most() -> None:
    engine = outvoted()
    records(engine)
    before = engine.lineage
    job = repair(engine, before)
    assert not job.replace
    assert not job.merged_own_offer
    assert job.contents == (TRUE,)
    assert engine.lineage == before
    (record,) = records(engine)
    assert (record.reason, record.dropped_tokens, record.superseded_tokens) == ("mended", 0, 0)


def test_a_greater_anchor_is_taken_if_it_is_believed() -> None:
    engine = outvoted()
    engine.tick(0.1)
    (to,) = asked(engine)
    ahead = grown(engine.lineage)
    engine.beat(to, ahead, step=3)
    engine.receive(state_of(ahead, peer=to))
    assert engine.jobs(Install) == []
    for peer in PEERS[:2]:
        engine.beat(peer, ahead, step=3)
    (job,) = engine.jobs(Install)
    engine.done(job)
    assert engine.lineage == ahead


def test_nothing_is_asked_for_while_the_anchor_moves_on() -> None:
    """The answer would be of an anchor that is left by then, and the next try is long after."""
    engine = outvoted()
    engine.receive(seal_of(engine.lineage, sealer=engine.engine.state.sealer(0)))
    (job,) = engine.jobs(Advance)
    engine.tick(0.1)
    assert asked(engine) == []
    engine.done(job)
    for peer in PEERS[:2]:
        attest(engine, peer, TRUE)
    for job in engine.jobs(Attest):
        engine.done(job, digest=OURS)
    for peer in PEERS[:2]:
        attest(engine, peer, TRUE)
    engine.tick(0.1)
    assert len(asked(engine)) == 1


FORGED = Entry(PeerId("me", 1), 5, 10, 1)


@pytest.mark.parametrize("how", ["older", "with other members"])
def test_no_other_anchor_is_taken(how: str) -> None:
    """Its members could make this learner drop its work, or have it merged twice."""
    engine = beside(2)
    former = engine.lineage
    advance(engine)
    for peer in PEERS[:2]:
        engine.beat(peer, engine.lineage, step=3)
        attest(engine, peer, TRUE)
    engine.tick(0.1)
    (to,) = asked(engine)
    forged = replace(engine.lineage, merged={**engine.lineage.merged, FORGED.peer: FORGED.seq})
    engine.receive(state_of(former if how == "older" else forged, peer=to))
    assert engine.jobs(Install) == []


def asking_a_round_later() -> tuple[DrivenEngine, PeerId]:
    """A learner that was outvoted by one anchor, and asks for the next; and the peer it asks."""
    engine = beside(2)
    former = engine.lineage.key
    advance(engine)
    for peer in PEERS[:2]:
        attest(engine, peer, TRUE, former)
    engine.tick(0.1)
    (to,) = asked(engine)
    return engine, to


def test_it_is_taken_once_most_attest_its_bytes() -> None:
    engine, to = asking_a_round_later()
    before = engine.lineage
    engine.receive(state_of(before, peer=to))
    attest(engine, PEER, TRUE)
    assert engine.jobs(Install) == []
    attest(engine, THIRD, TRUE)
    (job,) = engine.jobs(Install)
    assert (job.states[0].lineage, job.contents) == (before, (TRUE,))


def test_if_the_others_go_on_before_that_a_later_one_is_asked_for() -> None:
    engine, to = asking_a_round_later()
    engine.receive(state_of(engine.lineage, peer=to))
    ahead = grown(engine.lineage)
    for peer in PEERS[:2]:
        engine.beat(peer, ahead, step=3)
    assert asked(engine) == [to]
    assert engine.engine.adoption.repairs.is_mending(0)
    engine.receive(state_of(ahead, peer=to))
    (job,) = engine.jobs(Install)
    assert job.states[0].lineage == ahead


def test_until_it_comes_seals_wait_and_nothing_is_sealed_here() -> None:
    engine = outvoted()
    engine.tick(0.1)
    (to,) = asked(engine)
    sealer = engine.engine.state.roster.sealer(0)
    assert sealer
    before = engine.lineage
    seal = seal_of(before, sealer=sealer)
    engine.receive(seal)
    assert engine.jobs(Advance) == []
    engine.receive(state_of(before, peer=to))
    (job,) = engine.jobs(Install)
    engine.done(job)
    (advance_,) = engine.jobs(Advance)
    engine.done(advance_)
    assert engine.lineage.key == seal.key


def test_if_it_does_not_come_rounds_go_on() -> None:
    engine = outvoted()
    engine.tick(0.1)
    (to,) = asked(engine)
    sealer = engine.engine.state.roster.sealer(0)
    assert sealer
    engine.receive(seal_of(engine.lineage, sealer=sealer))
    engine.engine.pulling.unreachable(engine.now, to, 0, "")
    engine.tick(0.1)
    (job,) = engine.jobs(Advance)
    engine.done(job)


def test_rounds_wait_for_a_limited_time_however_many_bytes_come() -> None:
    engine = outvoted()
    engine.tick(0.1)
    (to,) = asked(engine)
    limit_s = MENDING * Timing().round_timeout_s
    mending = []
    for _ in range(int(limit_s) + 2):
        engine.tick(1.0)
        for peer in PEERS[:2]:
            attest(engine, peer, TRUE)
        engine.engine.pulling.heard(engine.now, to, 0)
        mending.append(engine.engine.adoption.repairs.is_mending(0))
    assert mending.count(True) == pytest.approx(limit_s, abs=2)
    assert not mending[-1]


def test_no_round_ends_here_while_the_anchor_is_wrong() -> None:
    engine = DrivenEngine()
    engine.beat(PEER)
    engine.beat(THIRD)
    engine.fragment.held.begin_anew(handed_over=True)
    engine.fragment.held.note(engine.lineage.key, OURS)
    for peer in (PEER, THIRD):
        attest(engine, peer, TRUE)
    engine.tick(0.1)
    (to,) = asked(engine)
    engine.step(4)
    engine.offer()
    for peer in (PEER, THIRD):
        engine.receive(offer_of(peer))
    for job in engine.jobs(Inspect):
        engine.done(job)
    engine.tick(0.1)
    assert engine.jobs(Merge) == []
    engine.engine.pulling.unreachable(engine.now, to, 0, "")
    engine.tick(0.1)
    assert engine.jobs(Merge)


def test_work_stays_in_the_weights_and_the_offer_is_sent_again() -> None:
    engine = outvoted()
    engine.step(4)
    offer = engine.offer(0)
    totals = engine.fragment.unmerged(engine.engine.state.totals)
    repair(engine, engine.lineage)
    assert engine.fragment.pending
    assert engine.fragment.pending.seq == offer.seq
    assert engine.fragment.unmerged(engine.engine.state.totals) == totals
    assert engine.fragment.dropped_tokens == 0


def test_a_mended_anchor_is_asked_for_no_more() -> None:
    engine = outvoted()
    repair(engine, engine.lineage)
    engine.apply()
    engine.tick(10 * Timing().beat_s)
    for peer in PEERS[:2]:
        attest(engine, peer, TRUE)
    for job in engine.jobs(Attest):
        engine.done(job, digest=TRUE)
    for _ in range(80):
        engine.tick(Timing().beat_s)
        for peer in PEERS[:2]:
            attest(engine, peer, TRUE)
    assert engine.now > 2 * Timing().evict_after_s
    assert asked(engine) == []


def test_each_try_waits_twice_as_long_as_the_last_and_asks_another_one() -> None:
    """Some machines never compute the same bits as others."""
    engine, times, peers = outvoted(3), [], []
    began = engine.now
    for _ in range(200):
        engine.tick(1.0)
        for peer in PEERS[:3]:
            attest(engine, peer, TRUE)
        for peer in asked(engine):
            times.append(round(engine.now - began))
            peers.append(peer)
            engine.receive(state_of(engine.lineage, peer=peer))
            (job,) = engine.jobs(Install)
            engine.done(job)
            engine.apply()
        for job in engine.jobs(Attest):
            engine.done(job, digest=OURS)
    pauses = [after - before for before, after in pairwise(times)]
    least = Timing().evict_after_s
    assert len(pauses) == 2
    assert pauses[0] == pytest.approx(least, abs=8)
    assert pauses[1] == pytest.approx(2 * least, abs=8)
    assert sorted(peers) == sorted(PEERS[:3])


def test_a_peer_that_hands_nothing_over_is_not_asked_again_at_once() -> None:
    engine = outvoted()
    engine.tick(0.1)
    (to,) = asked(engine)
    engine.engine.pulling.unreachable(engine.now, to, 0, "")
    engine.tick(Timing().beat_s)
    assert asked(engine) == []


def test_a_peer_that_is_doubted_is_not_asked() -> None:
    engine = outvoted()
    first, second = sorted(PEERS[:2])
    engine.engine.state.claims.failed(engine.now, first, 10.0, Timing().beat_s)
    engine.tick(0.1)
    assert asked(engine) == [second]


def test_in_lockstep_the_round_of_the_offer_is_still_waited_for() -> None:
    """No round was missed."""
    engine = outvoted()
    state = engine.engine.state
    state.schedule = replace(state.schedule, adopt_after=0)
    engine.step(4)
    engine.offer(0)
    assert engine.engine.boundaries.must_wait()
    repair(engine, engine.lineage)
    engine.apply()
    assert engine.engine.boundaries.must_wait()


@pytest.mark.parametrize("why", ["one word is enough", "they have not trained", "of an old anchor"])
def test_words_that_do_not_count(why: str) -> None:
    engine = beside(2)
    state = engine.engine.state
    key = None
    if why == "one word is enough":
        state.policies = replace(state.policies, limits=Limits(majority=False))
    if why == "of an old anchor":
        key = engine.lineage.key._replace(digest=b"other branch")
    for peer in PEERS[:2]:
        attest(engine, peer, TRUE, key, step=0 if why == "they have not trained" else 3)
    engine.tick(0.1)
    assert asked(engine) == []


def test_those_that_have_gone_have_no_word_any_more() -> None:
    engine = beside(2)
    attest(engine, PEER, TRUE)
    engine.tick(Timing().suspect_after_s + 1)
    attest(engine, THIRD, TRUE)
    engine.tick(0.1)
    assert asked(engine) == []


def test_an_anchor_that_nobody_asked_for_is_not_taken_in_place_of_the_same() -> None:
    engine = beside(2)
    engine.receive(state_of(engine.lineage, peer=PEER))
    assert engine.jobs(Install) == []


def confirmed(count: int, said: Mapping[PeerId, bytes], *, handed_over: bool = True) -> bool:
    """Whether a learner whose anchor these have attested keeps it once all attest another one."""
    engine = beside(count, handed_over=handed_over)
    for peer, digest in said.items():
        attest(engine, peer, digest)
    advance(engine)
    for peer in PEERS[:count]:
        attest(engine, peer, TRUE)
    engine.tick(0.1)
    return asked(engine) == []


@pytest.mark.parametrize(
    ("count", "said", "is_confirmed"),
    [
        (2, {}, False),
        (2, {PEER: OURS}, True),
        (3, {PEER: OURS}, False),
        (3, {PEER: OURS, THIRD: OURS}, True),
        (4, {PEER: OURS, THIRD: OURS}, True),
        (4, {PEER: OURS, THIRD: b"another"}, False),
    ],
)
def test_an_anchor_that_most_have_attested_is_kept(
    count: int, said: Mapping[PeerId, bytes], is_confirmed: bool
) -> None:
    """If one of three deceives another, these two are not to deceive the third."""
    assert confirmed(count, said) == is_confirmed


def test_a_learner_that_came_to_its_anchor_by_seals_keeps_it() -> None:
    assert confirmed(3, {}, handed_over=False)


def test_an_anchor_that_is_handed_over_anew_is_in_question_again() -> None:
    engine = beside(2)
    for peer in PEERS[:2]:
        attest(engine, peer, OURS)
    assert not engine.fragment.held.is_in_question
    ahead = grown(grown(engine.lineage))
    for peer in PEERS[:2]:
        engine.beat(peer, ahead, step=3)
    engine.receive(state_of(ahead))
    (job,) = engine.jobs(Install)
    engine.done(job)
    assert engine.fragment.held.is_in_question


def test_nothing_is_settled_for_good_while_the_learner_is_new() -> None:
    """It may hear only the one that has deceived it."""
    engine = beside(2)
    engine.engine.state.adopted_since_rollback = 0
    assert engine.engine.state.is_young
    attest(engine, PEER, OURS)
    assert engine.fragment.held.is_in_question


def test_an_anchor_is_wrong_no_more_when_most_have_it() -> None:
    engine = outvoted(3)
    for peer in (PEER, THIRD):
        attest(engine, peer, OURS)
    assert not engine.fragment.held.is_in_question
    engine.tick(0.1)
    assert asked(engine) == []


def test_the_last_word_of_most_counts_more_than_an_earlier_one() -> None:
    engine = outvoted()
    advance(engine)
    for peer in PEERS[:2]:
        attest(engine, peer, OURS)
    assert not engine.fragment.held.is_in_question
    engine.tick(0.1)
    assert asked(engine) == []


def test_a_mended_anchor_is_not_wrong_although_its_digest_is_not_known_yet() -> None:
    engine = outvoted()
    repair(engine, engine.lineage)
    engine.apply()
    for _ in range(80):
        engine.tick(Timing().beat_s)
        for peer in PEERS[:2]:
            attest(engine, peer, TRUE)
    assert engine.fragment.held.is_in_question
    assert asked(engine) == []


def test_a_majority_that_is_none_any_more_is_counted_again() -> None:
    engine = outvoted(2)
    for peer in (FOURTH, FIFTH):
        engine.beat(peer, engine.lineage, step=3)
    engine.tick(0.1)
    assert asked(engine) == []


def installed(*, own: bool = False, first_weights: bool = False) -> bool:
    """Whether a whole anchor is in question after it was installed."""
    engine = DrivenEngine(seals=False)
    engine.beat(PEER)
    lineage = Lineage.fresh(b"0" * 7) if first_weights else grown(engine.lineage)
    peer = engine.engine.state.me if own else PEER
    engine.fragment.move()
    anchors = (state_of(lineage, peer=peer),)
    job = Install(states=anchors, merged_own_offer=False, replace=True)
    engine.done(job)
    assert engine.lineage == lineage
    return engine.fragment.held.is_in_question


def test_an_anchor_of_ones_own_and_first_weights_are_not_in_question() -> None:
    """After a rollback, a learner takes what it has saved itself. The key of first weights is their
    digest."""
    assert installed()
    assert not installed(own=True)
    assert not installed(first_weights=True)


def test_an_anchor_that_is_founded_is_not_in_question() -> None:
    held = Held()
    held.begin_anew(handed_over=True)
    held.begin_anew(handed_over=False)
    assert not held.is_in_question


def test_an_anchor_that_comes_during_a_copy_mends_ours_after_it() -> None:
    engine = outvoted()
    engine.tick(0.1)
    (to,) = asked(engine)
    before = engine.lineage
    engine.step(4)
    engine.reserve()
    engine.receive(state_of(before, peer=to))
    seal = seal_of(before, sealer=engine.engine.state.roster.sealer(0) or PEER)
    engine.receive(seal)
    assert engine.jobs(Install) == []
    engine.copied()
    attest(engine, PEER, TRUE)
    (job,) = engine.jobs(Install)
    assert job.states[0].lineage == before
    engine.done(job)
    (advance_,) = engine.jobs(Advance)
    assert advance_.seal.key == seal.key


def test_a_greater_anchor_that_comes_is_taken_before_one_that_is_greater_still() -> None:
    """Else a peer could have it ask again and again."""
    engine = outvoted(3)
    engine.tick(0.1)
    (to,) = asked(engine)
    ahead = grown(engine.lineage)
    engine.receive(state_of(ahead, peer=to))
    assert engine.jobs(Install) == []
    for peer in sorted(PEERS[:3], key=lambda peer: peer != to):
        engine.beat(peer, grown(ahead), step=3)
    assert asked(engine) == []
    (job,) = engine.jobs(Install)
    assert job.states[0].lineage == ahead


def test_a_later_anchor_that_is_asked_for_gets_no_more_time() -> None:
    engine, to = asking_a_round_later()
    first = engine.engine.state.wants[0]
    engine.receive(state_of(engine.lineage, peer=to))
    engine.now += 1.0
    for peer in PEERS[:2]:
        engine.beat(peer, grown(engine.lineage), step=3)
    second = engine.engine.state.wants[0]
    assert second is not first
    assert second.since == first.since


@pytest.mark.parametrize("members", ["the same", "others"])
def test_only_the_peer_that_was_asked_mends(members: str) -> None:
    engine = outvoted()
    engine.tick(0.1)
    (to,) = asked(engine)
    (other,) = set(PEERS[:2]) - {to}
    forged = replace(engine.lineage, merged={**engine.lineage.merged, FORGED.peer: FORGED.seq})
    anchor = engine.lineage if members == "the same" else forged
    engine.receive(state_of(anchor, peer=other))
    assert engine.jobs(Install) == []
    engine.receive(state_of(engine.lineage, peer=to))
    assert len(engine.jobs(Install)) == 1


def test_nobody_ends_while_a_true_anchor_is_on_its_way() -> None:
    """The keys are equal, so all would agree."""
    engine = outvoted()
    engine.engine.rest(engine.now, finishing=False)
    engine.tick(0.1)
    (to,) = asked(engine)
    ping = engine.engine.state.question.number
    for peer in PEERS[:2]:
        engine.beat(peer, engine.lineage, step=3, pong=ping)
    assert not engine.engine.boundaries.settled()
    engine.receive(state_of(engine.lineage, peer=to))
    (job,) = engine.jobs(Install)
    engine.done(job)
    engine.apply()
    assert engine.engine.boundaries.settled()


def test_offers_for_others_are_passed_on_meanwhile() -> None:
    engine = outvoted()
    engine.tick(0.1)
    assert asked(engine)
    looked: list[int] = []
    sealer = engine.engine.sealer
    stand_down = sealer._stand_down
    sealer._stand_down = lambda now, round: (looked.append(round.fragment), stand_down(now, round))  # type: ignore[method-assign,assignment]
    sealer.poll(engine.now, 0)
    assert looked == [0]
