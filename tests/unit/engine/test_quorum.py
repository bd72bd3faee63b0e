from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mend_optim.engine.quorum import Decision, Delays, Grace, Quorum, decide
from mend_optim.errors import UsageError
from mend_optim.protocol.lineage import PeerId
from tests import reference

A, B, C = (PeerId(name, 1) for name in "abc")
NEVER = float("-inf")


def ask(now: float, present: str, **given: Any) -> Decision:
    """A round of a, b and c that needs two and met quorum at 0, unless given otherwise."""
    settings = {
        "expected": [A, B, C],
        "needed": 2,
        "grace_s": 10.0,
        "quorum_at": 0.0,
        "not_before": NEVER,
        **given,
    }
    return decide(now, present=[PeerId(name, 1) for name in present], **settings)


def test_below_quorum_nothing_is_sealed_however_late() -> None:
    assert ask(1e9, "a", quorum_at=None) == Decision(False, "below_quorum", None)
    assert ask(1e9, "ab", needed=3) == Decision(False, "below_quorum", None)


def test_all_present_seals_at_once() -> None:
    assert ask(0, "abc", not_before=100) == Decision(True, "all_present")


def test_quorum_waits_for_the_others_until_grace_runs_out() -> None:
    assert ask(9.99, "ab") == Decision(False, "waiting", 10.0)
    assert ask(10.0, "ab") == Decision(True, "grace_expired")


def test_grace_runs_from_the_moment_quorum_was_met() -> None:
    assert ask(12, "ab", quorum_at=5.0) == Decision(False, "waiting", 15.0)
    assert ask(12, "ab", quorum_at=None) == Decision(False, "waiting", 22.0)


def test_without_grace_quorum_seals() -> None:
    assert ask(0, "ab", grace_s=0) == Decision(True, "grace_expired")


def test_a_seal_that_leaves_somebody_out_waits_for_the_launch_interval() -> None:
    assert ask(12, "ab", not_before=20) == Decision(False, "waiting", 20)
    assert ask(20, "ab", not_before=20) == Decision(True, "grace_expired")


def test_losing_the_last_awaited_learner_seals_at_once() -> None:
    assert ask(0, "ab").reason == "waiting"
    assert ask(0, "ab", expected=[A, B]) == Decision(True, "all_present")


def test_who_is_not_expected_counts_for_quorum_but_replaces_nobody() -> None:
    assert ask(0, "ad", expected=[A, B]).reason == "waiting"
    assert ask(10, "ad", expected=[A, B]).reason == "grace_expired"


peers = st.sets(st.integers(0, 5).map(lambda i: PeerId("abcdef"[i], 1)))
seconds = st.floats(0, 100)
situations = st.fixed_dictionaries(
    {
        "expected": peers,
        "needed": st.integers(1, 6),
        "grace_s": seconds,
        "quorum_at": seconds,
        "not_before": st.one_of(st.just(NEVER), seconds),
    }
)


@given(seconds, peers, situations)
def test_never_below_needed(now: float, present: set[PeerId], situation: dict[str, Any]) -> None:
    assert not decide(now, present=present, **situation).seal or len(present) >= situation["needed"]


@given(seconds, seconds, peers, peers, situations)
def test_time_and_offers_never_undo_a_decision_to_seal(
    now: float, later: float, present: set[PeerId], more: set[PeerId], situation: dict[str, Any]
) -> None:
    if decide(now, present=present, **situation).seal:
        assert decide(now + later, present=present | more, **situation).seal


@settings(max_examples=500)  # of which some thirty wait
@given(seconds, peers, situations)
def test_asked_again_when_it_says_a_waiting_round_seals(
    now: float, present: set[PeerId], situation: dict[str, Any]
) -> None:
    decision = decide(now, present=present, **situation)
    assert (decision.wake_at is not None) == (decision.reason == "waiting")
    if decision.wake_at is not None:
        assert decision.wake_at > now
        assert decide(decision.wake_at, present=present, **situation).seal


@pytest.mark.parametrize(("roster", "needed"), [(1, 2), (2, 2), (3, 2), (4, 3), (5, 3), (10, 6)])
def test_by_default_more_than_half_and_at_least_two(roster: int, needed: int) -> None:
    assert Quorum().needed(roster) == needed


@given(st.integers(2, 1000))
def test_two_default_quorums_of_one_roster_always_overlap(roster: int) -> None:
    assert 2 * Quorum().needed(roster) > roster


def test_a_given_minimum_is_taken_as_it_is() -> None:
    assert Quorum(minimum=3).needed(100) == 3


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: Quorum(minimum=0), "quorum.minimum must be None or an int >= 1, got 0"),
        (lambda: Quorum(minimum=True), "quorum.minimum .* got True"),
        (
            lambda: Grace(fraction=1.5),
            r"grace.fraction must be None or a number in \[0, 1\], got 1.5",
        ),
        (lambda: Grace(fraction=float("nan")), "grace.fraction .* got nan"),
        (lambda: Grace(max_s=-1), "grace.max_s must be a number of seconds >= 0, got -1"),
        (lambda: Grace(max_s=float("nan")), "grace.max_s .* got nan"),
        (lambda: Grace(max_s="5"), "grace.max_s .* got '5'"),  # type: ignore[arg-type]
    ],
)
def test_a_wrong_policy_is_named(make: Any, words: str) -> None:
    with pytest.raises(UsageError, match=words):
        make()


# Adaptive grace

SECONDS = st.integers(1, 9999).map(float) | st.floats(0, 1e4)
#: Often less than the overlap.
SOME_SECONDS = st.integers(1, 999).map(float) | st.floats(0, 1e4)
PARTS = st.sampled_from([0.25, 0.5, 1.0]) | st.floats(0, 1)


def known(quorum_s: float, sync_s: float) -> Delays:
    return Delays(quorum_s, sync_s)


@given(SECONDS, SOME_SECONDS, SOME_SECONDS, PARTS, SECONDS)
def test_adaptive_grace_is_a_part_of_what_the_overlap_hides(
    cap: float, quorum_s: float, sync_s: float, fraction: float, overlap_s: float
) -> None:
    grace = Grace(max_s=cap, fraction=fraction)
    found = grace.seconds(overlap_s, known(quorum_s, sync_s))
    assert found == reference.grace_s(cap, fraction, overlap_s, quorum_s, sync_s)
    assert 0 <= found <= cap


@given(SECONDS, st.floats(0, 1), SECONDS, st.floats(0, 100), st.floats(0, 100), st.floats(0, 100))
def test_adaptive_grace_never_grows_with_what_quorum_and_sync_take(
    cap: float, fraction: float, overlap_s: float, quorum_s: float, sync_s: float, more: float
) -> None:
    grace = Grace(max_s=cap, fraction=fraction)
    found = grace.seconds(overlap_s, known(quorum_s, sync_s))
    assert grace.seconds(overlap_s, known(quorum_s + more, sync_s)) <= found
    assert grace.seconds(overlap_s, known(quorum_s, sync_s + more)) <= found


def test_adaptive_grace_is_none_once_the_overlap_is_used_up() -> None:
    assert Grace(fraction=0.5).seconds(3.0, known(2.0, 1.0)) == 0.0
    assert Grace(fraction=0.5).seconds(4.0, known(2.0, 1.0)) == 0.5


@pytest.mark.parametrize(
    ("fraction", "overlap_s", "delays"),
    [
        (None, 4.0, Delays(1.0, 1.0)),
        (0.5, 4.0, Delays()),
        (0.5, 4.0, Delays(1.0)),
        (0.5, 0.0, Delays(1.0, 1.0)),
    ],
)
def test_without_estimates_or_overlap_or_fraction_grace_is_the_cap(
    fraction: float | None, overlap_s: float, delays: Delays
) -> None:
    assert Grace(max_s=7.0, fraction=fraction).seconds(overlap_s, delays) == 7.0


@given(st.lists(st.floats(0, 100), min_size=1, max_size=30))
def test_estimates_follow_what_was_seen(seen: list[float]) -> None:
    """e ← e + 0.2 (x − e), from the first on."""
    delays, slow = Delays(), seen[0]
    for x in seen:
        delays.quorum_took(x)
        delays.sync_took(x)
    for x in seen[1:]:
        slow = 0.8 * slow + 0.2 * x
    assert delays.quorum_s == delays.sync_s == pytest.approx(slow)
    assert min(seen) - 1e-9 <= slow <= max(seen) + 1e-9
