from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mend_optim.engine.lateness import (
    LATE_ANSWERS,
    LATE_S,
    LATE_STEPS,
    Lateness,
    awaited,
    limit_s,
)
from mend_optim.engine.pending import NEVER
from mend_optim.engine.quorum import Delays
from mend_optim.protocol.lineage import PeerId
from tests import reference

A, B, C, D = ALL = tuple(PeerId(name, 1) for name in "abcd")
LIMIT_S = 3.0


def after(*rounds: float, peer: PeerId = B) -> Lateness:
    """After rounds in which the learner was called and answered after so many seconds."""
    lateness = Lateness()
    for at, seconds in enumerate(rounds):
        lateness.called(100.0 * at, [peer])
        lateness.came(100.0 * at + seconds, peer, LIMIT_S)
    return lateness


def late(lateness: Lateness) -> frozenset[PeerId]:
    """By the verdicts alone: nobody was called so early."""
    return lateness.late(0.0, LIMIT_S)


def test_a_learner_that_answers_too_late_again_and_again_is_not_waited_for() -> None:
    assert late(after(*[4.0] * (LATE_ANSWERS - 1))) == frozenset()
    assert late(after(*[4.0] * LATE_ANSWERS)) == {B}


def test_as_many_answers_in_time_are_enough_to_be_waited_for_again() -> None:
    """One may have been on its way before the call."""
    assert late(after(*[4.0] * 10, 3.0)) == {B}
    assert late(after(*[4.0] * 10, 3.0, 4.0)) == {B}
    assert late(after(*[4.0] * 10, *[3.0] * LATE_ANSWERS)) == frozenset()
    assert late(after(*[4.0] * 10, *[3.0] * LATE_ANSWERS, 4.0)) == frozenset()


def test_a_call_is_as_old_as_when_it_came_first() -> None:
    lateness = after(4.0)
    for now in (100.0, 101.0, 102.0, 103.0):
        lateness.called(now, [B])
    lateness.came(103.5, B, LIMIT_S)
    assert late(lateness) == {B}


def test_an_offer_that_nobody_called_for_says_nothing() -> None:
    lateness = after(4.0, 4.0)
    lateness.came(1000.0, B, LIMIT_S)
    assert late(lateness) == {B}


def test_each_round_without_an_answer_counts() -> None:
    lateness = Lateness()
    lateness.called(0.0, [B])
    lateness.sealed(10.0, "b", ALL, LIMIT_S)
    assert late(lateness) == frozenset()
    lateness.sealed(20.0, "b", ALL, LIMIT_S)
    assert late(lateness) == {B}


def test_a_pause_of_one_round_counts_once() -> None:
    """The answer that a round has missed comes before the next one ends."""
    lateness = Lateness()
    lateness.called(0.0, [B])
    lateness.sealed(10.0, "b", ALL, LIMIT_S)
    lateness.came(11.0, B, LIMIT_S)
    assert late(lateness) == frozenset()


def test_a_round_that_is_sealed_at_once_misses_nobody() -> None:
    lateness = Lateness()
    for now in range(10):
        lateness.called(100.0 * now, [B])
        lateness.sealed(100.0 * now + 1.0, "b", ALL, LIMIT_S)
        lateness.came(100.0 * now + 2.0, B, LIMIT_S)
    assert late(lateness) == frozenset()


def test_a_learner_that_takes_no_part_in_a_round_is_late_still() -> None:
    """It may be suspected for a moment, because its beats wait behind an offer."""
    lateness = after(4.0, 4.0)
    lateness.called(500.0, [B])
    lateness.sealed(510.0, "c", ALL, LIMIT_S)
    assert late(lateness) == {B}
    lateness.came(520.0, B, LIMIT_S)  # nobody has called since
    assert late(lateness) == {B}


def test_a_learner_that_is_gone_is_forgotten() -> None:
    lateness = after(4.0, 4.0)
    lateness.sealed(510.0, "", [A, C], LIMIT_S)
    assert late(lateness) == frozenset()
    lateness.called(600.0, [B])
    lateness.came(604.0, B, LIMIT_S)
    assert late(lateness) == frozenset()


def test_a_newcomer_is_waited_for_only_as_long_as_an_answer_in_time_takes() -> None:
    lateness = Lateness()
    for at in (100.0, 200.0):
        lateness.called(at, [B])
        due = at + LIMIT_S
        assert lateness.late(due - 0.1, LIMIT_S) == frozenset()
        assert lateness.wake_at(due - 0.1, LIMIT_S) == due
        assert lateness.late(due, LIMIT_S) == {B}
        assert lateness.wake_at(due, LIMIT_S) == NEVER
        lateness.came(due + 0.1, B, LIMIT_S)
        assert lateness.late(due + 0.1, LIMIT_S) == late(lateness)


def test_rounds_look_again_as_the_first_answer_of_the_next_newcomer_is_due() -> None:
    lateness = Lateness()
    for at, peer in ((1.0, C), (0.0, B), (2.0, D)):
        lateness.called(at, [peer])
    assert lateness.wake_at(0.0, LIMIT_S) == LIMIT_S
    assert lateness.wake_at(LIMIT_S, LIMIT_S) == LIMIT_S + 1
    assert lateness.late(LIMIT_S + 1, LIMIT_S) == {B, C}


def test_after_one_answer_in_time_a_learner_is_a_newcomer_no_more() -> None:
    lateness = after(3.0)
    lateness.called(200.0, [B])
    assert lateness.late(300.0, LIMIT_S) == frozenset()
    assert lateness.wake_at(200.0, LIMIT_S) == NEVER


def test_a_sealer_knows_from_the_seals_of_the_former_one_who_is_late() -> None:
    lateness = Lateness()
    for _ in range(LATE_ANSWERS):
        assert late(lateness) == frozenset()
        lateness.followed([A], "b", ALL)
    assert late(lateness) == {B}
    lateness.followed([A, B], "", ALL)
    assert late(lateness) == {B}
    lateness.followed([A, B], "", ALL)
    assert late(lateness) == frozenset()


def test_a_sealer_knows_from_the_seals_of_the_former_one_who_is_no_newcomer() -> None:
    lateness = Lateness()
    lateness.followed([A], "b", ALL)
    lateness.called(0.0, ALL)
    assert lateness.late(100.0, LIMIT_S) == {B, C, D}


def test_in_the_seals_of_another_sealer_those_that_are_gone_are_forgotten() -> None:
    lateness = after(4.0, 4.0)
    lateness.followed([A], "", [A, C])
    lateness.called(600.0, [B])
    assert late(lateness) == frozenset()


def test_a_learner_that_was_gone_is_a_newcomer_again() -> None:
    lateness = after(3.0)
    lateness.sealed(110.0, "", [A, C], LIMIT_S)
    lateness.called(200.0, [B])
    assert lateness.late(300.0, LIMIT_S) == {B}


seconds = st.floats(0, 100)


@given(seconds, seconds, seconds, seconds)
def test_an_answer_is_late_if_the_round_takes_twice_as_long_and_longer_than_its_period(
    quorum: float, sync: float, step: float, period: float
) -> None:
    delays = Delays()
    delays.quorum_took(quorum)
    assert limit_s(delays, NEVER, step, period) == NEVER
    delays.sync_took(sync)
    longest = max(quorum + sync, LATE_STEPS * step, LATE_S, period)
    assert limit_s(delays, NEVER, step, period) == quorum + longest


@given(seconds, seconds, seconds)
def test_before_its_first_round_a_sealer_goes_by_the_rounds_of_the_others(
    usual: float, step: float, period: float
) -> None:
    delays = Delays()
    longest = max(usual, LATE_STEPS * step, LATE_S, period)
    assert limit_s(delays, usual, step, period) == usual + longest
    delays.quorum_took(50.0)
    assert limit_s(delays, usual, step, period) == usual + longest


KINDS = ["call", "come", "seal", "void", "member", "absent"]
events = st.lists(st.tuples(st.sampled_from(KINDS), st.sampled_from([0.5, 2.0, 4.0])), max_size=40)


@given(events)
def test_it_judges_as_its_slow_twin_does(happened: list[tuple[str, float]]) -> None:
    lateness, now, told = Lateness(), 0.0, []
    for what, passed in happened:
        now += passed
        told.append((what, now))
        match what:
            case "call":
                lateness.called(now, [B])
            case "come":
                lateness.came(now, B, LIMIT_S)
            case "seal":
                lateness.sealed(now, "b", ALL, LIMIT_S)
            case "void":
                lateness.void()
            case "member":
                lateness.followed([A, B], "c", ALL)
            case "absent":
                lateness.followed([A, C], "b", ALL)
        assert (B in lateness.late(now, LIMIT_S)) is reference.is_late(told, LIMIT_S, LATE_ANSWERS)


some = st.sets(st.sampled_from(ALL))


@given(some, st.integers(1, 5), st.dictionaries(st.sampled_from(ALL), st.floats(1.1, 9)), some)
def test_a_round_waits_for_all_that_it_has_to(
    expected: set[PeerId], needed: int, failing: dict[PeerId, float], late: set[PeerId]
) -> None:
    found = awaited(sorted(expected), needed, failing, frozenset(late))
    assert len(set(found)) == len(found)
    prompt = expected - failing.keys() - late
    assert prompt <= set(found) <= expected
    assert len(found) == min(len(expected), max(needed, len(prompt)))


@pytest.mark.parametrize(
    ("needed", "found"), [(1, [A]), (2, [A, C]), (3, [A, C, D]), (4, [A, C, D, B])]
)
def test_where_quorum_needs_them_the_late_go_before_the_failing(
    needed: int, found: list[PeerId]
) -> None:
    assert awaited(ALL, needed, {B: 3.0, D: 2.0}, frozenset({C})) == found


def test_where_quorum_needs_one_of_them_an_offer_that_is_here_goes_first() -> None:
    assert awaited(ALL, 3, {}, {C, D}, present=[A, D]) == [A, B, D]
    assert awaited(ALL, 2, {B: 3.0, C: 2.0}, {D}, present=[B]) == [A, D]


def test_one_round_that_took_long_excuses_nobody() -> None:
    """The first one may wait for somebody that compiles its model."""
    delays = Delays()
    for quorum in (600.0, 1.0, 1.0):
        delays.quorum_took(quorum)
        delays.sync_took(1.0)
    assert limit_s(delays, NEVER, 0.0, 0.0) == 1.0 + 2.0
