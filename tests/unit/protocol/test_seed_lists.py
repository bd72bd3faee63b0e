"""The seeds that are wanted, from those given and from lists that change."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from mend_optim.protocol.seed_lists import UNREAD, Listing, SeedLists

seeds = st.lists(st.sampled_from("abcdef"), max_size=4)
lists = st.sampled_from(["file:x", "file:y", "env://"])
listings = st.builds(
    lambda found, awaited: Listing(seeds=tuple(found), awaited=awaited),
    seeds,
    st.sampled_from(["", "rank 1"]),
)


@given(seeds, st.lists(st.tuples(lists, listings), max_size=12))
def test_a_seed_is_wanted_while_anybody_names_it(given_seeds, readings):
    names = ["file:x", "file:y", "env://"]
    kept = SeedLists(given_seeds)
    for name in names:
        kept.take(name, UNREAD)
    for count, (source, listing) in enumerate(readings, 1):
        kept.take(source, listing)
        last = {name: [one for at, one in readings[:count] if at == name][-1:] for name in names}
        named = {seed for found in last.values() for one in found for seed in one.seeds}
        assert sorted(kept.wanted()) == sorted({*given_seeds, *named})
        awaited = {name for name, found in last.items() if not found or found[0].awaited}
        assert set(kept.awaited()) == awaited
        assert set(kept.naming()) == {n for n, found in last.items() if found and found[0].seeds}


def test_the_order_is_that_of_the_user():
    kept = SeedLists(["c", "a"])
    kept.take("file:x", UNREAD)
    assert kept.awaited() == {"file:x": "not read yet"}
    kept.take("file:x", Listing(seeds=("b", "a")))
    assert kept.wanted() == ["c", "a", "b"]
