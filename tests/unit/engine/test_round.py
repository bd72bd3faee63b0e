from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mend_optim.engine.quorum import Decision, decide
from mend_optim.engine.round import Phase, Round
from mend_optim.protocol.lineage import MOST_AUTHORS, Claim, Entry, Lineage, PeerId
from mend_optim.protocol.messages import Offer

BASE = Lineage.fresh(b"genesis")
ALL = [PeerId(name, 1) for name in "abc"]
NEXT = {
    ("waiting", "launch"): "calling",
    ("calling", "seal"): "merging",
    ("merging", "sealed"): "waiting",
    ("merging", "void"): "waiting",
    ("calling", "void"): "waiting",
    ("waiting", "void"): "waiting",
}


def offer(name: str, seq: int = 1, steps: int = 5, incarnation: int = 1, **facts: Any) -> Offer:
    given: dict[str, Any] = {"tokens": 10 * steps, "genesis": BASE.genesis, "due": False, **facts}
    return Offer(
        peer=PeerId(name, incarnation), fragment=0, seq=seq, steps=steps, key=BASE.key, **given
    )


def holding(*offers: Offer) -> Round:
    round = Round(0)
    for each in offers:
        round.add(each)
    return round


def decided(
    round: Round,
    now: float,
    expected: Sequence[PeerId],
    needed: int,
    grace_s: float,
    interval_s: float,
) -> Decision:
    """The decision about the inbox, which a sealer looks at again and again."""
    if not round.has_work:
        return Decision(False, "nothing_offered")
    since = round.quorum_since(now, needed)
    round.note_quorum(now, needed)
    return decide(
        now,
        present=round.inbox,
        expected=expected,
        needed=needed,
        grace_s=grace_s,
        quorum_at=since,
        not_before=round.sealed_at + interval_s,
    )


def merged(*offers: Offer) -> Lineage:
    return BASE.seal([each.entry for each in offers], b"payload")


# Phases


@pytest.mark.parametrize("phase", [phase.value for phase in Phase])
@pytest.mark.parametrize("event", ["launch", "seal", "sealed", "void"])
def test_the_table_of_phases(phase: str, event: str) -> None:
    round = Round(0)
    round.phase = Phase(phase)
    if (phase, event) in NEXT:
        round._on(event)
        assert round.phase.value == NEXT[phase, event]
    else:
        with pytest.raises(KeyError):
            round._on(event)
        assert round.phase.value == phase


def test_a_round_from_launch_to_seal() -> None:
    round = holding(offer("b"), offer("a"))
    round._on("launch")
    assert decided(round, 5, ALL[:2], 2, 10, 60).reason == "all_present"
    members = round.close(0.0, ALL, "all_present", 9)
    assert [o.peer.name for o in members] == ["a", "b"]
    assert (round.members, round.absent, round.reason) == (members, ("c",), "slow_left_out")
    round.sealed(5)
    assert (round.phase, round.sealed_at, round.members, round.quorum_at) == (
        Phase.WAITING,
        5,
        (),
        None,
    )


def test_a_round_that_leaves_nobody_out_says_so() -> None:
    round = holding(offer("b"), offer("a"))
    round._on("launch")
    round.close(0.0, ALL[:2], "all_present", 9)
    assert (round.absent, round.reason) == ((), "all_present")


def test_how_long_quorum_took_is_remembered() -> None:
    """From launch, once for each time that it was met."""
    round = holding(offer("b"))
    round._on("launch")
    round.launched_at = 3.0
    decided(round, 4, ALL, 2, 10, 0)
    assert round.delays.quorum_s is None
    round.add(offer("a"))
    decided(round, 5, ALL, 2, 10, 0)
    decided(round, 9, ALL, 2, 10, 0)
    assert round.delays.quorum_s == 2.0


def test_a_seal_cannot_be_closed_before_it_was_launched() -> None:
    with pytest.raises(KeyError):
        holding(offer("a"), offer("b")).close(0.0, ALL, "all_present", 9)


def test_a_voided_round_keeps_its_offers() -> None:
    round = holding(offer("a"), offer("b"))
    round._on("launch")
    round.close(0.0, ALL, "all_present", 9)
    round.void()
    assert round.phase is Phase.WAITING
    assert round.members == ()
    assert [peer.name for peer, _ in round.held()] == ["a", "b"]


# Receipt


def test_an_offer_is_fresh_once() -> None:
    round = Round(0)
    assert round.fresh(offer("a"), BASE)
    round.add(offer("a"))
    assert not round.fresh(offer("a"), BASE)


def test_an_older_offer_is_not_fresh_and_a_newer_one_replaces() -> None:
    round = holding(offer("a", seq=5))
    assert not round.fresh(offer("a", seq=4), BASE)
    assert round.fresh(offer("a", seq=6), BASE)
    round.add(offer("a", seq=6))
    assert round.held() == ((ALL[0], 6),)


RELAY = PeerId("relay", 1)


@pytest.mark.parametrize("told", [{"seq": 1}, {"seq": 9}, {"tokens": 7}, {"steps": 4}])
def test_what_others_tell_gives_way_to_the_sender_itself_and_not_the_other_way_round(
    told: dict[str, Any],
) -> None:
    """Another peer may have made it up, with the greatest of all numbers."""
    own = offer("a", seq=5)
    passed_on = replace(own, **told, passed_by=RELAY)
    assert holding(passed_on).fresh(own, BASE)
    assert not holding(own).fresh(passed_on, BASE)
    assert not holding(passed_on).fresh(own, merged(own))


def test_an_offer_that_others_have_told_of_truly_is_not_fresh() -> None:
    """It may be a part of a joint one, which would be lost with it."""
    own = offer("a", seq=5)
    passed_on = replace(own, passed_by=RELAY)
    assert not holding(passed_on).fresh(own, BASE)
    assert not holding(passed_on).fresh(replace(passed_on, passed_by=PeerId("other", 1)), BASE)
    assert holding(passed_on).fresh(replace(own, follows=1), merged(offer("a", seq=1)))
    assert holding(passed_on).fresh(replace(passed_on, seq=6), BASE)


def test_a_merged_offer_is_a_replay() -> None:
    lineage = merged(offer("a", seq=5))
    assert not Round(0).fresh(offer("a", seq=5), lineage)
    assert not Round(0).fresh(offer("a", seq=4), lineage)
    assert Round(0).fresh(offer("a", seq=6, follows=5), lineage)
    assert Round(0).fresh(offer("b", seq=5), lineage)


def test_an_offer_is_not_taken_where_what_it_follows_is_not() -> None:
    """Else a lineage that names an offer would lack one before it, and nobody could tell."""
    assert not Round(0).fresh(offer("a", seq=6, follows=5), BASE)
    assert not Round(0).fresh(offer("a", seq=6, follows=4), merged(offer("a", seq=3)))
    assert not Round(0).fresh(offer("a", seq=6, follows=6), merged(offer("a", seq=6)))


@pytest.mark.parametrize(
    "claim", [{"seq": 1}, {"tokens": 9}, {"inherited": Claim(PeerId("b", 1), 0)}]
)
def test_an_offer_of_nothing_claims_nothing(claim: dict[str, Any]) -> None:
    """Two entries of one author would make a seal that everybody refuses."""
    nothing = {"seq": 0, "steps": 0, "tokens": 0}
    assert Round(0).fresh(offer("a", **nothing), BASE)
    assert not Round(0).fresh(offer("a", **{**nothing, **claim}), BASE)


def test_a_full_anchor_takes_no_offer_of_a_new_author() -> None:
    known = {PeerId(str(i), 1): 1 for i in range(MOST_AUTHORS)}
    assert not Round(0).fresh(offer("a"), replace(BASE, merged=known))
    assert Round(0).fresh(offer("a", seq=2, follows=1), replace(BASE, merged={**known, ALL[0]: 1}))


def test_an_offer_of_another_model_is_not_fresh() -> None:
    assert not Round(0).fresh(offer("a", genesis=b"another"), BASE)
    assert not Round(0).fresh(offer("a", steps=0, genesis=b"another"), BASE)


def test_tokens_without_a_step_are_not_taken() -> None:
    """Nobody inspects an offer of nothing, and its tokens would count in the lineage."""
    assert not Round(0).fresh(offer("a", steps=0, tokens=10**9), BASE)


def test_an_offer_of_nothing_gives_way_to_work_but_not_the_other_way_round() -> None:
    round = Round(0)
    nothing = offer("a", seq=0, steps=0)
    assert round.fresh(nothing, BASE)
    round.add(nothing)
    assert not round.fresh(nothing, BASE)
    assert round.fresh(offer("a", seq=3), BASE)
    round.add(offer("a", seq=3))
    assert not round.fresh(nothing, BASE)


def test_purging_drops_what_was_merged_and_offers_of_nothing() -> None:
    b = offer("b", seq=2, follows=1)
    round = holding(offer("a", seq=2), b, offer("c", steps=0), offer("d", genesis=b"another"))
    round.purge(merged(offer("a", seq=2), offer("b", seq=1)))
    assert round.held() == ((ALL[1], 2),)


arrivals = st.lists(
    st.tuples(st.sampled_from("abc"), st.integers(1, 4), st.integers(0, 2)), max_size=30
)


@given(arrivals, st.data())
def test_no_offer_is_ever_merged_twice(
    arrivals: list[tuple[str, int, int]], data: st.DataObject
) -> None:
    """However often and in whatever order offers come, and whenever a seal closes."""
    round, lineage = Round(0), BASE
    times: Counter[tuple[PeerId, int]] = Counter()
    for name, seq, steps in arrivals:
        arrived = offer(
            name,
            seq,
            steps,
            follows=data.draw(st.sampled_from([0, lineage.last_merged(PeerId(name, 1))])),
        )
        if round.fresh(arrived, lineage):
            round.add(arrived)
        if any(o.steps for o in round.inbox.values()) and data.draw(st.booleans()):
            round._on("launch")
            members = round.close(0.0, ALL, "all_present", 9)
            round.sealed(0)
            before, lineage = lineage, lineage.seal([o.entry for o in members], b"payload")
            round.purge(lineage)
            times.update((o.peer, o.seq) for o in members if o.steps)
            assert all(lineage.last_merged(peer) >= seq for peer, seq in before.merged.items())
    assert not times or max(times.values()) == 1


# Launching


def test_nothing_launches_without_work() -> None:
    assert not Round(0).launch_due(1e9, [], 0)
    assert not holding(offer("a", steps=0, due=True)).launch_due(1e9, ALL[:1], 0)


def test_a_due_offer_launches() -> None:
    round = holding(offer("a", due=True))
    round.sealed_at = 0
    assert round.launch_due(1, ALL, 60)


def test_when_all_are_in_the_round_launches() -> None:
    round = holding(offer("a"), offer("b"), offer("c", steps=0))
    round.sealed_at = 0
    assert round.launch_due(1, ALL, 60)


def test_an_offer_that_missed_its_round_launches_after_the_interval() -> None:
    round = holding(offer("a"))
    round.sealed_at = 10
    assert not round.launch_due(69, ALL, 60)
    assert round.launch_due(70, ALL, 60)


@pytest.mark.parametrize("phase", [Phase.CALLING, Phase.MERGING])
def test_a_round_that_is_under_way_is_not_launched_again(phase: Phase) -> None:
    round = holding(offer("a", due=True))
    round.phase = phase
    assert not round.launch_due(1e9, ALL, 0)


def test_the_missing_are_those_expected_that_have_not_offered() -> None:
    assert [peer.name for peer in holding(offer("b"), offer("z")).missing(ALL)] == ["a", "c"]


# Deciding


def test_grace_runs_from_when_quorum_was_met_and_again_if_it_is_lost() -> None:
    round = holding(offer("a"))
    assert decided(round, 0, ALL, 2, 10, 0).reason == "below_quorum"
    round.add(offer("b"))
    assert decided(round, 5, ALL, 2, 10, 0).wake_at == 15
    assert decided(round, 9, ALL, 2, 10, 0).wake_at == 15
    assert decided(round, 9, ALL, 3, 10, 0).reason == "below_quorum"
    assert decided(round, 12, ALL, 2, 10, 0).wake_at == 22
    assert decided(round, 22, ALL, 2, 10, 0).reason == "grace_expired"


def test_who_is_at_rest_counts_for_quorum() -> None:
    assert (
        decided(holding(offer("a"), offer("b", steps=0)), 0, ALL[:2], 2, 10, 0).reason
        == "all_present"
    )


def test_of_nothing_nothing_is_sealed() -> None:
    round = holding(*(offer(name, steps=0) for name in "abc"))
    assert decided(round, 1e9, ALL, 2, 0, 0) == (decision := decided(round, 0, ALL, 2, 0, 0))
    assert (decision.seal, decision.reason) == (False, "nothing_offered")


def test_a_seal_that_leaves_somebody_out_waits_for_the_interval_since_the_last() -> None:
    round = holding(offer("a"), offer("b"))
    round.sealed_at = 0
    assert decided(round, 30, ALL, 2, 0, 60).wake_at == 60
    round.add(offer("c"))
    assert decided(round, 30, ALL, 2, 0, 60).reason == "all_present"


@given(st.permutations("abcde"))
def test_members_are_in_name_order_however_they_arrived(order: list[str]) -> None:
    round = holding(*(offer(name) for name in order))
    round._on("launch")
    assert [o.peer.name for o in round.close(0.0, ALL, "all_present", 9)] == [
        "a",
        "b",
        "c",
        "d",
        "e",
    ]


# Work that came with a checkpoint


AUTHOR = PeerId("old", 1)


def inherited(name: str, seq: int, settled: int = 4, **facts: Any) -> Offer:
    return offer(name, seq, inherited=Claim(AUTHOR, settled), **facts)


def closed(round: Round) -> tuple[Offer, ...]:
    round._on("launch")
    return round.close(0.0, ALL, "all_present", 9)


def test_of_two_offers_of_one_authors_work_the_earlier_counts_and_the_other_is_nothing() -> None:
    first, second = inherited("c", seq=5), inherited("b", seq=900)
    a, b, c = closed(holding(second, offer("a"), first))
    assert (a, c) == (offer("a"), first)
    assert (b.peer, b.steps, b.tokens, b.seq, b.claim.author) == (second.peer, 0, 0, 0, second.peer)
    assert not b.sections
    lineage = BASE.seal([a.entry, b.entry, c.entry], b"payload")
    assert lineage.tokens == a.tokens + c.tokens
    assert lineage.last_merged(AUTHOR) == 5
    assert lineage.last_merged(second.peer) == 0


def test_of_equal_offers_the_first_by_name_counts() -> None:
    """Two processes with one checkpoint offer the same bytes."""
    for order in ([0, 1], [1, 0]):
        twins = [inherited("b", seq=5), inherited("c", seq=5)]
        b, c = closed(holding(*(twins[i] for i in order)))
        assert (b.steps, c.steps) == (5, 0)


def test_the_author_itself_is_before_whoever_inherited() -> None:
    own = Offer(
        peer=AUTHOR,
        fragment=0,
        seq=5,
        tokens=50,
        steps=5,
        genesis=BASE.genesis,
        key=BASE.key,
        due=False,
    )
    heir, author = closed(holding(own, inherited("b", seq=900)))
    assert (heir.steps, author) == (0, own)


def test_whoever_lost_its_offer_still_counts_for_quorum_and_is_not_absent() -> None:
    round = holding(inherited("a", seq=5), inherited("b", seq=6), inherited("c", seq=7))
    assert decided(round, 0, ALL, 3, 10, 0).seal
    assert [o.steps for o in closed(round)] == [5, 0, 0]
    assert round.absent == ()


def test_what_lost_is_no_longer_held_after_the_seal() -> None:
    round = holding(inherited("a", seq=5), inherited("b", seq=900), offer("c"))
    lineage = BASE.seal([o.entry for o in closed(round)], b"payload")
    round.sealed(0)
    round.purge(lineage)
    assert round.held() == ()
    assert not round.fresh(inherited("b", seq=900), lineage)
    assert round.fresh(offer("b", seq=1), lineage)


def test_an_inherited_offer_is_fresh_by_what_was_merged_of_its_author() -> None:
    assert Round(0).fresh(inherited("a", seq=5, settled=4), BASE)
    merged_before = BASE.seal([Entry(AUTHOR, 4, 10, 1)], b"payload")
    assert Round(0).fresh(inherited("a", seq=900, settled=4, follows=4), merged_before)
    merged_since = BASE.seal([Entry(AUTHOR, 5, 10, 1)], b"payload")
    assert not Round(0).fresh(inherited("a", seq=5, settled=4), merged_since)
    assert not Round(0).fresh(inherited("a", seq=900, settled=4), merged_since)


def test_what_a_sender_inherited_comes_before_its_own_work() -> None:
    """Whatever the numbers are: an inherited one may be greater than any of its own."""
    own, older = offer("a", seq=1), inherited("a", seq=10**18)
    assert own.order > older.order
    assert holding(older).fresh(own, BASE)
    assert not holding(own).fresh(older, BASE)


claims = st.tuples(
    st.sampled_from("abc"), st.integers(1, 4), st.none() | st.sampled_from("xy"), st.integers(0, 3)
)


@given(st.lists(claims, max_size=30), st.data())
def test_no_authors_work_is_ever_merged_twice(arrivals: list[Any], data: st.DataObject) -> None:
    """In whatever way its heirs, and the author itself, offer it: each seal merges work that starts
    where the last one ended."""
    round, lineage = Round(0), BASE
    settled: Counter[PeerId] = Counter()
    for name, seq, restored_from, start in arrivals:
        claim = Claim(PeerId(restored_from, 1), min(start, seq - 1)) if restored_from else None
        author = claim.author if claim else PeerId(name, 1)
        follows = data.draw(st.sampled_from([0, lineage.last_merged(author)]))
        arrived = offer(name, seq, inherited=claim, follows=follows)
        if round.fresh(arrived, lineage):
            round.add(arrived)
        if data.draw(st.booleans()) and round.inbox:
            members = closed(round)
            round.sealed(0)
            worked = [o for o in members if o.steps]
            assert len({o.claim.author for o in worked}) == len(worked)
            for o in worked:
                assert o.claim.settled >= o.follows == settled[o.claim.author]
                settled[o.claim.author] = o.seq
            lineage = lineage.seal([o.entry for o in members], b"payload")
            round.purge(lineage)


def test_a_process_under_two_incarnations_counts_once() -> None:
    """It sends its offer again, in the name of the work's author."""
    first, again = offer("a"), offer("a", incarnation=2, inherited=Claim(PeerId("a", 1), 0))
    empty, later = offer("b", seq=0, steps=0), offer("b", seq=0, steps=0, incarnation=2)
    round = holding(first, empty)
    assert round.fresh(again, BASE)
    assert round.fresh(later, BASE)
    round.add(again)
    round.add(later)
    assert sorted(round.inbox) == [PeerId("a", 2), PeerId("b", 2)]
    assert not round.fresh(first, BASE)
    assert not round.fresh(empty, BASE)


def test_other_work_of_an_earlier_incarnation_is_kept() -> None:
    """It died, and had offered more than its checkpoint holds."""
    first, again = offer("a", 2), offer("a", 9, incarnation=2, inherited=Claim(PeerId("a", 1), 1))
    round = holding(first)
    assert round.fresh(again, BASE)
    round.add(again)
    assert sorted(round.inbox) == [PeerId("a", 1), PeerId("a", 2)]


# Too many offers


def test_of_more_offers_than_a_seal_may_have_those_of_expected_learners_come_first() -> None:
    round = holding(*(offer(name) for name in "zyxcba"))
    round._on("launch")
    assert [o.peer.name for o in round.close(0.0, ALL, "all_present", 4)] == ["a", "b", "c", "x"]
    assert {peer.name for peer in round.inbox} == set("abcxyz")


def test_an_offer_that_is_left_out_is_held_no_more() -> None:
    round = holding(offer("a"), offer("b"))
    round.leave_out(offer("a"))
    assert [peer.name for peer in round.inbox] == ["b"]


def test_of_two_offers_with_one_number_the_authors_own_counts() -> None:
    """Another process may offer anything in its name."""
    own = offer("c", 5)
    copy = offer("b", 5, inherited=Claim(own.peer, 4))
    b, c = closed(holding(copy, own))
    assert (b.steps, c) == (0, own)
