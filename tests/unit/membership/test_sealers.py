"""Which learner seals which fragment."""

from __future__ import annotations

import hashlib
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mend_optim.membership import sealers as sealers_room
from mend_optim.membership.sealers import AT_ONCE, choose, sealer_of
from mend_optim.protocol.lineage import PeerId
from tests import reference

names = st.lists(st.text("bcdefg", min_size=1, max_size=4), min_size=1, max_size=8, unique=True)


def sealers(fragments: int, learners: list[str]) -> list[str]:
    return [sealer_of(fragment, learners) for fragment in range(fragments)]


@given(names, st.integers(1, 40), st.randoms())
def test_it_is_the_reference_in_any_order_of_names(learners, fragments, r) -> None:  # type: ignore[no-untyped-def]
    expected = reference.sealers(fragments, learners)
    r.shuffle(learners)
    assert sealers(fragments, learners) == expected


@given(names, st.integers(1, 40))
def test_nobody_seals_more_than_its_share(learners: list[str], fragments: int) -> None:
    sealed = Counter(dict.fromkeys(learners, 0))
    sealed.update(sealers(fragments, learners))
    assert max(sealed.values()) == -(-fragments // len(learners))
    assert max(sealed.values()) - min(sealed.values()) <= 1


def test_whoever_chooses_its_name_seals_no_more_than_others() -> None:
    """A name that wins every hash among the first learners still seals its share only."""
    honest = [f"honest-{i}" for i in range(3)]
    tries = (f"liar-{i}" for i in range(10_000))
    liar = next(name for name in tries if _wins(name, honest, fragments=4))
    assert Counter(sealers(8, [*honest, liar]))[liar] == 2


def _wins(name: str, others: list[str], fragments: int) -> bool:
    """Whether it has the greatest hash of each of so many fragments."""
    return all(
        max([name, *others], key=lambda each: _hash(fragment, each)) == name
        for fragment in range(fragments)
    )


def _hash(fragment: int, name: str) -> bytes:
    return hashlib.blake2b(f"{fragment}/{name}".encode(), digest_size=16).digest()


@given(names)
def test_the_first_role_moves_by_the_hash_alone(learners: list[str]) -> None:
    """So where there is one fragment, losing another learner moves nothing, and a newcomer takes
    the role or leaves it."""
    before = sealer_of(0, learners)
    for gone in learners:
        left = [name for name in learners if name != gone]
        assert gone == before or sealer_of(0, left) == before
    assert sealer_of(0, [*learners, "new"]) in (before, "new")


def test_about_twice_the_roles_of_a_learner_move_when_it_goes() -> None:
    moved = 0
    for run in range(100):
        learners = [f"learner-{run}-{i}" for i in range(8)]
        before, after = sealers(8, learners), sealers(8, learners[:-1])
        moved += sum(one != other for one, other in zip(before, after, strict=True))
    assert 1 / 8 < moved / (100 * 8) < 3 / 8  # seven of eight would move if the order were drawn


@pytest.mark.parametrize("learners", [AT_ONCE - 1, AT_ONCE, AT_ONCE + 1, 3 * AT_ONCE])
def test_a_row_is_the_same_however_much_of_it_is_asked_for(learners: int) -> None:
    everyone = [f"learner-{i}" for i in range(learners)]
    row = sealers(2 * learners, everyone)
    assert sorted(row[:learners]) == sorted(row[learners:]) == sorted(everyone)
    assert row == reference.sealers(2 * learners, everyone)


@given(names, st.integers(0, 40), st.sets(st.integers(0, 7)))
def test_of_learners_that_decline_each_moves_its_own_fragments(
    learners: list[str], fragment: int, weak: set[int]
) -> None:
    """A learner in the place of one that declines keeps it when another one declines."""
    ids = [PeerId(name, 1) for name in learners]
    declining = [id for i, id in enumerate(ids) if i in weak]
    for i, id in enumerate(declining):
        before, after = declining[:i], declining[: i + 1]
        sealer = choose(fragment, ids, before.__contains__)
        if len(after) < len(ids) and sealer != id:
            assert choose(fragment, ids, after.__contains__) == sealer


@given(names, st.integers(0, 40), st.sets(st.integers(0, 7)))
def test_whoever_declines_seals_only_if_all_do(
    learners: list[str], fragment: int, weak: set[int]
) -> None:
    ids = [PeerId(name, 1) for name in learners]
    declining = {id for i, id in enumerate(ids) if i in weak}
    sealer = choose(fragment, ids, declining.__contains__)
    assert sealer
    if declining.issuperset(ids):
        assert sealer.name == sealer_of(fragment, learners)
    else:
        assert sealer not in declining


@given(names, st.integers(0, 40), st.sets(st.integers(0, 7)))
def test_the_sealer_is_sought_without_those_that_decline_one_after_the_other(
    learners: list[str], fragment: int, weak: set[int]
) -> None:
    declining = {name for i, name in enumerate(learners) if i in weak}
    left = list(learners)
    while (expected := sealer_of(fragment, left)) in declining < set(learners):
        left.remove(expected)
    found = choose(
        fragment, (PeerId(name, 1) for name in learners), lambda id: id.name in declining
    )
    assert found == PeerId(expected, 1)


def test_where_nearly_all_decline_few_hashes_are_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    """Hundreds of learners join a new run. Before, each of them cost as many hashes as the first,
    and minutes went by with the mutex held."""
    hashed: list[str] = []
    rendezvous = sealers_room._rendezvous
    monkeypatch.setattr(
        sealers_room, "_rendezvous", lambda p, name: hashed.append(name) or rendezvous(p, name)
    )
    ids = [PeerId(f"joins-{i}", 1) for i in range(200)]
    first = sealer_of(3, [id.name for id in ids])
    hashed.clear()
    for sealer in [id for id in ids if id.name != first][-3:]:
        assert choose(3, ids, lambda id, sealer=sealer: id != sealer) == sealer  # type: ignore[misc]
    assert len(hashed) == 4 * len(ids)


def test_where_there_is_nobody_nobody_seals() -> None:
    assert choose(0, (), lambda id: False) is None
