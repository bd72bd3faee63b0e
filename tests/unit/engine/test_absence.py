"""What a learner offers that has missed rounds."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mend_optim.engine.absence import LEAST_SHARE, PRESENT, Absence, missed
from mend_optim.protocol.lineage import Entry, Lineage, PeerId
from mend_optim.protocol.peer_limits import COUNTER_LIMIT
from tests import reference

ME, OTHER = PeerId("me", 1), PeerId("other", 1)
BASE = Lineage.fresh(b"genesis")
COUNTS = st.integers(1, 10**9)


def later(lineage: Lineage, *rounds: dict[PeerId, int]) -> Lineage:
    """The anchor after these rounds, by member how many tokens it brought."""
    for brought in rounds:
        entries = [Entry(peer, lineage.version + 1, n, 1) for peer, n in brought.items()]
        lineage = lineage.seal(entries, b"payload")
    return lineage


@given(st.lists(COUNTS, min_size=1, max_size=20), COUNTS)
def test_an_offer_weighs_what_its_work_would_in_one_round_with_all_that_was_done_beside_it(
    brought: list[int], own: int
) -> None:
    """If the round that merges it has as much of others as the missed ones had."""
    absence = Absence(len(brought), sum(brought))
    due = reference.weight_due(own, brought)
    usual = sum(brought) / len(brought)
    assert absence.share(own) * own / (own + usual) == pytest.approx(due)


@given(COUNTS, COUNTS, st.integers(0, 10**9))
def test_a_share_is_never_0_and_never_more_than_all(rounds: int, tokens: int, own: int) -> None:
    assert LEAST_SHARE <= Absence(rounds, tokens).share(own) <= 1


@given(st.integers(1, 10**3), st.integers(1, 10**3), COUNTS, COUNTS)
def test_the_more_rounds_were_missed_the_less_is_offered(
    rounds: int, more: int, tokens: int, own: int
) -> None:
    few, many = Absence(rounds, rounds * tokens), Absence(rounds + more, (rounds + more) * tokens)
    assert many.share(own) < few.share(own) <= 1


def test_a_peer_that_lies_about_rounds_leaves_something_of_an_offer() -> None:
    most = Absence(COUNTER_LIMIT, COUNTER_LIMIT)
    assert most + most == most
    assert most.share(1) == LEAST_SHARE


@given(st.integers(0, 10**9), st.integers(0, 100))
def test_all_is_offered_if_nothing_was_done_meanwhile(own: int, rounds: int) -> None:
    assert PRESENT.share(own) == Absence(rounds, 0).share(own) == 1


@given(st.lists(COUNTS, min_size=1, max_size=9))
def test_rounds_without_a_learner_are_all_missed(brought: list[int]) -> None:
    after = later(BASE, *({OTHER: n} for n in brought))
    assert missed(BASE, after, own=None) == Absence(len(brought), sum(brought))


@given(COUNTS, st.integers(0, 10**9))
def test_the_round_that_merges_the_offer_is_not_missed(others: int, own: int) -> None:
    """Nor does an offer without tokens miss it."""
    assert missed(BASE, later(BASE, {OTHER: others, ME: own}), own) == PRESENT


def test_of_several_rounds_that_one_brought_as_much_as_any_other() -> None:
    after = later(BASE, {OTHER: 4}, {OTHER: 5, ME: 8}, {OTHER: 6})
    assert missed(BASE, after, own=8) == Absence(rounds=2, tokens=10)


def test_another_branch_with_fewer_rounds_or_tokens_counts_as_none_missed() -> None:
    longer = later(BASE, {OTHER: 1}, {OTHER: 1})
    shorter = later(BASE, {OTHER: 9})
    assert missed(longer, shorter, own=None) == PRESENT
    assert missed(later(BASE, {OTHER: 3}), longer, own=None) == Absence(rounds=1, tokens=0)


def test_absences_add_up() -> None:
    assert Absence(2, 30) + Absence(1, 5) + PRESENT == Absence(3, 35)
