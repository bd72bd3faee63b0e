"""A learner's own share of an anchor, beside a twin that keeps the whole content of all anchors."""

from __future__ import annotations

from threading import Thread

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mend_optim.engine.superseded import AT_A_TIME, KEPT, SupersededAccount
from mend_optim.protocol.lineage import Entry, Lineage, PeerId
from tests.unit.engine.test_round import BASE

ME, OLD = PeerId("me", 2), PeerId("me", 1)


def grown(lineage: Lineage, author: PeerId, seq: int, tokens: int) -> Lineage:
    return lineage.seal([Entry(author, seq, tokens, 1)], b"payload")


def test_what_is_merged_in_a_row_is_all_inside() -> None:
    share, lineage = SupersededAccount(), BASE
    for seq in range(1, 6):
        lineage = grown(lineage, ME, seq, 10)
        share.add(ME, {seq: seq - 1}, 10, lineage)
    assert share.superseded_tokens(lineage) == 0
    assert share.superseded_tokens(grown(BASE, ME, 2, 10)) == 30
    assert share.superseded_tokens(BASE) == 50


def test_another_model_holds_nothing_of_ours() -> None:
    share = SupersededAccount()
    share.add(ME, {1: 0}, 10, BASE)
    assert share.superseded_tokens(Lineage.fresh(b"another")) == 10


def test_what_the_author_of_a_checkpoint_did_after_it_holds_what_was_before() -> None:
    share = SupersededAccount()
    share.add(OLD, {3: 2}, 10, BASE)
    share.add(ME, {1: 0}, 5, BASE)
    assert share.superseded_tokens(grown(grown(BASE, OLD, 4, 7), ME, 1, 5)) == 0


def test_an_offer_that_waited_on_two_branches_counts_once_on_either() -> None:
    share = SupersededAccount()
    share.add(ME, {1: 0}, 10, BASE)
    share.add(ME, {2: 1, 3: 0}, 5, BASE)
    assert share.superseded_tokens(grown(grown(BASE, ME, 1, 10), ME, 2, 5)) == 0
    assert share.superseded_tokens(grown(BASE, ME, 3, 5)) == 10
    assert share.superseded_tokens(BASE) == 15


@pytest.mark.parametrize("numbers", [{3: 3}, {3: 5, 5: 3}])
def test_the_account_ends_whatever_is_added(numbers: dict[int, int]) -> None:
    """It is taken with the mutex held."""
    share = SupersededAccount()
    share.add(ME, numbers, 10, BASE)
    asked = Thread(target=share.superseded_tokens, args=(grown(BASE, ME, 5, 10),), daemon=True)
    asked.start()
    asked.join(5.0)
    assert not asked.is_alive()


def test_the_account_does_not_grow_for_ever() -> None:
    share, lineage = SupersededAccount(), BASE
    for seq in range(1, 2 * KEPT):
        lineage = grown(BASE, ME, seq, 10)
        share.add(ME, {seq: seq - 1}, 10, lineage)
    assert share.superseded_tokens(lineage) == 0
    assert 10 * KEPT <= share.superseded_tokens(BASE) < 10 * (KEPT + AT_A_TIME)


def test_what_was_superseded_is_counted_for_good() -> None:
    """However many rounds follow, on the branch that the learner went over to."""
    share, other = SupersededAccount(), BASE
    share.add(ME, {1: 0}, 7, grown(BASE, ME, 1, 7))
    for seq in range(2, 3 * KEPT):
        follows = other.last_merged(ME)
        other = grown(BASE, ME, seq, 10)
        share.add(ME, {seq: follows}, 10, other)
        assert share.superseded_tokens(other) == 7


@given(st.lists(st.tuples(st.integers(0, 10**6), st.integers(0, 100)), max_size=40))
def test_whatever_branches_there_are_the_account_knows_what_each_lacks(
    rounds: list[tuple[int, int]],
) -> None:
    """Every offer extends some anchor there is; the twin holds, of each anchor, all the offers in
    it."""
    share = SupersededAccount()
    anchors: list[tuple[Lineage, frozenset[int]]] = [(BASE, frozenset())]
    tokens = {seq: t for seq, (_, t) in enumerate(rounds, 1)}
    for seq, (choice, _) in enumerate(rounds, 1):
        base, inside = anchors[choice % len(anchors)]
        lineage = grown(base, ME, seq, tokens[seq])
        share.add(ME, {seq: base.last_merged(ME)}, tokens[seq], lineage)
        anchors.append((lineage, inside | {seq}))
        for lineage, content in anchors:
            lacking = [t for s, t in tokens.items() if s <= seq and s not in content]
            assert share.superseded_tokens(lineage) == sum(lacking)
