"""Refusals are counted by peer and reason, and peers cannot make up ever more of either."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from mend_optim.protocol.lineage import PeerId
from mend_optim.protocol.refusals import KINDS, OTHERS, Refusals, Refused


@given(st.lists(st.tuples(st.text(max_size=5), st.text(max_size=300)), max_size=300))
def test_all_are_counted_and_the_kinds_are_bounded(refused: list[tuple[str, str]]) -> None:
    refusals = Refusals()
    for peer, reason in refused:
        refusals.add(peer, reason)
    found = refusals.counted()
    assert sum(kind.times for kind in found) == len(refused)
    assert len(found) <= KINDS + 1
    assert all(len(kind.reason) <= 100 for kind in found)


def test_numbers_and_the_words_of_a_peer_make_no_kinds() -> None:
    refusals = Refusals()
    for n in range(5 * KINDS):
        refusals.add("b", f"offer {n} is {n} bytes; peer name 'evil {n}' is not printable")
    expected = Refused("b", "offer N is N bytes; peer name … is not printable", 5 * KINDS)
    assert refusals.counted() == (expected,)


def test_an_incarnation_is_a_number() -> None:
    refusals = Refusals()
    for n in (0x17A, 10**18):
        refusals.add("b", f"peer {PeerId('c', n)} must say hello first")
    assert refusals.counted() == (Refused("b", "peer c#N must say hello first", 2),)


def test_what_is_beyond_the_bound_counts_as_others() -> None:
    refusals = Refusals()
    for n in range(KINDS + 7):
        refusals.add(f"peer {n}", "why")
    assert refusals.counted()[0] == Refused(OTHERS, OTHERS, 7)
