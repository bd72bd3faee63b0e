from __future__ import annotations

from dataclasses import FrozenInstanceError
from datetime import datetime, timedelta, timezone

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mend_optim.protocol.lineage import (
    DIGEST_BYTES,
    FEW_AUTHORS,
    FORGOTTEN,
    INCARNATIONS,
    MOST_AUTHOR_NBYTES,
    MOST_AUTHORS,
    PROCESSES,
    Claim,
    Entry,
    Lineage,
    PeerId,
    content_digest,
)
from tests.support.strategies import digests, entries, lineages, peers

ME = PeerId("me", 1)
incarnations = st.integers(0, INCARNATIONS - 1)


@given(incarnations)
def test_a_start_is_told_as_a_date(incarnation: int) -> None:
    since = timedelta(seconds=incarnation // 10**9)
    started = datetime(1970, 1, 1, tzinfo=timezone.utc) + since
    assert PeerId("me", incarnation).started == f"{started:%Y-%m-%d %H:%M:%S} UTC"


@given(incarnations, incarnations)
def test_an_incarnation_beyond_another_is_near_it(mine: int, known: int) -> None:
    later = PeerId("me", mine).beyond(known)
    assert later.name == "me"
    assert known < later.incarnation <= known + 2**32


def test_two_processes_that_must_exceed_the_same_one_don_t_become_one() -> None:
    later = {PeerId("me", mine).beyond(7 * 10**17) for mine in range(10_000)}
    assert len(later) == 10_000


@given(lineages, entries(), digests, st.randoms(use_true_random=False))
def test_a_seal_does_not_depend_on_the_order_of_its_members(
    base: Lineage, members: list[Entry], payload: bytes, random: object
) -> None:
    shuffled = list(members)
    random.shuffle(shuffled)  # type: ignore[attr-defined]
    assert base.seal(shuffled, payload) == base.seal(members, payload)


@given(lineages, entries(), digests)
def test_a_seal_counts_tokens_and_version_and_keeps_the_genesis(
    base: Lineage, members: list[Entry], payload: bytes
) -> None:
    sealed = base.seal(members, payload)
    assert sealed.tokens == base.tokens + sum(m.tokens for m in members)
    assert sealed.version == base.version + 1
    assert sealed.genesis == base.genesis


@given(lineages, entries(least=0), digests)
def test_a_seal_is_greater_than_its_base(
    base: Lineage, members: list[Entry], payload: bytes
) -> None:
    """Even one that merged no tokens: so a learner with the seal is ahead of one without it."""
    assert base.seal(members, payload).key > base.key


@given(lineages, entries(), digests)
def test_merged_is_the_greatest_sequence_number_of_each_peer(
    base: Lineage, members: list[Entry], payload: bytes
) -> None:
    sealed = base.seal(members, payload)
    for peer in {*base.merged, *(m.peer for m in members)}:
        offered = [m.seq for m in members if m.peer == peer]
        assert sealed.last_merged(peer) == max([base.last_merged(peer), *offered])


def test_a_peer_that_takes_part_with_nothing_takes_back_no_sequence_number() -> None:
    base = Lineage.fresh(b"g").seal([Entry(ME, 7, 10, 1)], b"p")
    assert base.seal([Entry(ME, 3, 0, 0)], b"p").last_merged(ME) == 7


@given(lineages, entries(), digests, st.data())
def test_the_digest_changes_with_any_change_of_base_member_or_payload(
    base: Lineage, members: list[Entry], payload: bytes, data: st.DataObject
) -> None:
    one = data.draw(st.integers(0, len(members) - 1))
    peer, seq, tokens, steps = members[one]
    other_peer = PeerId(peer.name, peer.incarnation + 10)
    others = [
        Entry(other_peer, seq, tokens, steps),
        Entry(peer, seq + 1, tokens, steps),
        Entry(peer, seq, tokens + 1, steps),
        Entry(peer, seq, tokens, steps + 1),
    ]
    histories = [
        base.seal([*members[:one], other, *members[one + 1 :]], payload) for other in others
    ]
    histories += [
        base.seal(members[:one] + members[one + 1 :], payload),
        base.seal(members, content_digest(payload)),
    ]
    histories += [
        Lineage(
            tokens=base.tokens,
            version=base.version,
            digest=content_digest(base.digest),
            genesis=base.genesis,
        ).seal(members, payload)
    ]
    assert base.seal(members, payload).digest not in {h.digest for h in histories}
    assert len({h.digest for h in histories}) == len(histories)


@given(lineages, lineages)
def test_lineages_are_ordered_by_tokens_then_version_then_digest(a: Lineage, b: Lineage) -> None:
    assert (a.key < b.key) == ((a.tokens, a.version, a.digest) < (b.tokens, b.version, b.digest))
    assert (a.key == b.key) == (not a.key < b.key and not b.key < a.key)


@given(lineages.filter(lambda lineage: lineage.tokens > 0), digests)
def test_a_fresh_model_never_overwrites_a_trained_one(trained: Lineage, genesis: bytes) -> None:
    assert Lineage.fresh(genesis).key == (0, 0, genesis)
    assert Lineage.fresh(genesis).key < trained.key


@given(digests, digests, peers, st.integers(0, 10**6))
def test_all_fragments_of_a_founder_have_the_same_key(
    genesis: bytes, model: bytes, founder: PeerId, tokens: int
) -> None:
    """Whatever their digests were: so that two founders are ordered alike in every fragment."""
    one = Lineage.fresh(genesis).seal([], b"one").found({founder: 1}, tokens, model)
    two = Lineage.fresh(genesis).seal([], b"two").found({founder: 1}, tokens, model)
    assert one.key == two.key
    assert one.last_merged(founder) == 1


def test_founders_of_different_weights_have_different_digests() -> None:
    base = Lineage.fresh(b"g")
    assert base.found({ME: 1}, 5, b"one").digest != base.found({ME: 1}, 5, b"two").digest
    assert (
        base.found({ME: 1}, 5, b"one").digest
        != Lineage.fresh(b"h").found({ME: 1}, 5, b"one").digest
    )


def test_a_lineage_cannot_be_changed() -> None:
    merged = {ME: 1}
    lineage = Lineage(tokens=1, version=1, digest=b"d", genesis=b"g", merged=merged)
    merged[ME] = 2
    assert lineage.last_merged(ME) == 1
    with pytest.raises(TypeError):
        lineage.merged[ME] = 3  # type: ignore[index]
    with pytest.raises(FrozenInstanceError):
        lineage.tokens = 2  # type: ignore[misc]


@given(lineages, entries(), digests)
def test_sealing_leaves_the_base_as_it_was(
    base: Lineage, members: list[Entry], payload: bytes
) -> None:
    before = (base.key, dict(base.merged))
    base.seal(members, payload)
    assert (base.key, dict(base.merged)) == before


def test_a_new_incarnation_has_merged_nothing() -> None:
    lineage = Lineage.fresh(b"g").seal([Entry(ME, 9, 1, 1)], b"p")
    assert lineage.last_merged(PeerId("me", 2)) == 0


@pytest.mark.parametrize(("settled", "admitted"), [(0, False), (8, False), (9, True), (10, True)])
def test_a_claim_is_admitted_where_nothing_after_it_is_merged(settled: int, admitted: bool) -> None:
    lineage = Lineage.fresh(b"g").seal([Entry(ME, 9, 1, 1)], b"p")
    assert lineage.admits(Claim(ME, settled)) is admitted
    assert lineage.admits(Claim(PeerId("me", 2), settled))


def test_a_content_digest_depends_on_the_order_of_parts() -> None:
    assert content_digest(b"a", b"b") != content_digest(b"b", b"a")
    assert len(content_digest()) == DIGEST_BYTES


def test_a_peer_is_written_as_name_and_incarnation() -> None:
    assert str(PeerId("berlin", 255)) == "berlin#ff"


# Authors that are forgotten


@given(
    st.integers(0, 80).flatmap(
        lambda n: st.lists(
            st.tuples(st.sampled_from("ab"), st.integers(1, 30)), min_size=n, max_size=n
        )
    )
)
def test_an_anchor_remembers_the_newest_processes_of_each_name(
    starts: list[tuple[str, int]],
) -> None:
    """The order in which they were merged does not matter."""
    lineage = Lineage.fresh(b"g")
    for seq, (name, incarnation) in enumerate(starts, start=1):
        if lineage.last_merged(PeerId(name, incarnation)) < seq:
            lineage = lineage.seal([Entry(PeerId(name, incarnation), seq, 1, 1)], b"p")
    for name in "ab":
        known = sorted({p.incarnation for p in lineage.merged if p.name == name})
        merged = sorted({incarnation for who, incarnation in starts if who == name})
        assert known == merged[-PROCESSES:]
        for incarnation in range(1, known[0] if len(known) == PROCESSES else 1):
            gone = PeerId(name, incarnation)
            assert lineage.last_merged(gone) == FORGOTTEN
            assert not lineage.admits(Claim(gone, FORGOTTEN - 1))


def test_a_founding_forgets_as_a_seal_does() -> None:
    processes = {PeerId("b", i): 1 for i in range(1, PROCESSES + 3)}
    founded = Lineage.fresh(b"g").found(processes, 1, b"model")
    assert len(founded.merged) == PROCESSES
    assert founded.last_merged(PeerId("b", 2)) == FORGOTTEN
    assert founded.last_merged(PeerId("b", 3)) == 1
    # One that was not merged yet, and is not as old.
    assert founded.last_merged(PeerId("b", 99)) == 0
    assert founded.last_merged(PeerId("c", 1)) == 0


def test_a_member_without_work_is_no_author() -> None:
    lineage = Lineage.fresh(b"g").seal([Entry(ME, 0, 0, 0)], b"p")
    assert not lineage.merged


@pytest.mark.parametrize(
    ("count", "name_nbytes", "is_full"),
    [
        (MOST_AUTHORS - 1, 10, False),
        (MOST_AUTHORS, 10, True),
        (MOST_AUTHOR_NBYTES // 232, 200, False),
        (MOST_AUTHOR_NBYTES // 232 + 1, 200, True),
    ],
)
def test_a_full_anchor_takes_no_new_author(count: int, name_nbytes: int, is_full: bool) -> None:
    merged = {PeerId(str(i).rjust(name_nbytes), 1): 1 for i in range(count)}
    full = Lineage(tokens=1, version=1, digest=b"d", genesis=b"g", merged=merged)
    assert full.has_room_for(ME) is not is_full
    assert full.has_room_for(next(iter(merged)))


def test_fewer_authors_are_never_too_many_bytes() -> None:
    assert FEW_AUTHORS * (256 + 32) <= MOST_AUTHOR_NBYTES
