"""How merged results travel back: the same bits for everybody, and no more bytes than needed."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

import mend_optim.worker.seal_payload
from mend_optim.codecs.blockwise import Int8
from mend_optim.codecs.buffers import Buffers
from mend_optim.codecs.packing import raw
from mend_optim.codecs.powersgd import PowerSGD
from mend_optim.codecs.registry import (
    CODECS,
    Codec,
    codec_name,
    decode_packet,
    encode_packet,
    find_codec,
)
from mend_optim.errors import PeerError
from mend_optim.model.layout import Fragment, Layout
from mend_optim.protocol.lineage import Key, PeerId
from mend_optim.protocol.messages import SCALE, Offer, Seal, Sections
from mend_optim.worker.scale import PLAIN, Scale
from mend_optim.worker.seal_payload import RELAYED, SealPayload, payload_digest
from tests import reference

SHAPES = [(48, 40), (100,), (16, 8, 3, 3)]
LAYOUT = Layout([str(s) for s in SHAPES], [torch.zeros(s) for s in SHAPES], 1)
FRAGMENT: Fragment = LAYOUT.fragments[0]
NUMEL = FRAGMENT.numel
SEEDS = st.integers(0, 2**32 - 1)


def drawn(seed: int, n: int) -> list[Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(NUMEL, generator=generator) for _ in range(n)]


def exact(name: str) -> Codec:
    """The codec of that name, whose merged deltas come back without a further loss."""
    how = find_codec(name)
    return replace(how, back="exact") if "back" in vars(how) else how  # type: ignore[type-var]


def offers(how: Codec, deltas: list[Tensor], idle: bool = False) -> tuple[Offer, ...]:
    packets = [encode_packet(how, delta, FRAGMENT.shapes)[0] for delta in deltas]
    made = [
        Offer(
            peer=PeerId(f"p{i}", 1),
            fragment=0,
            seq=1,
            tokens=10,
            steps=1,
            genesis=b"g",
            key=Key(0, 0, b""),
            due=True,
            sections={"delta": packet},
        )
        for i, packet in enumerate(packets)
    ]
    nothing = Offer(
        peer=PeerId("a", 1),
        fragment=0,
        seq=0,
        tokens=0,
        steps=0,
        genesis=b"g",
        key=Key(0, 0, b""),
        due=False,
    )
    return tuple([nothing, *made] if idle else made)


def seal_of(members: tuple[Offer, ...], weights: list[float], sections: Sections) -> Seal:
    entries = tuple(offer.entry for offer in members)
    payload = payload_digest(sections, weights)
    return Seal(
        sealer=PeerId("s", 1),
        fragment=0,
        base=b"",
        key=Key(1, 1, b""),
        members=entries,
        weights=tuple(weights),
        absent=(),
        reason="",
        payload=payload,
        sections=sections,
    )


def sealed(how: Codec, deltas: list[Tensor], weights: list[float], scheme: str = "mean") -> Seal:
    members = offers(how, deltas)
    sections = (
        SealPayload(how, scheme, FRAGMENT, Buffers())
        .merge(members, weights, torch.empty(NUMEL))
        .sections
    )
    return seal_of(members, weights, sections)


def taken(seal: Seal, how: Codec, scheme: str = "mean", trusted: bool = False) -> Tensor:
    return (
        SealPayload(how, scheme, FRAGMENT, Buffers())
        .merged(seal, trusted, torch.full((NUMEL,), math.nan))[0]
        .clone()
    )


@pytest.mark.parametrize("name", CODECS)
@settings(max_examples=20)
@given(SEEDS, st.integers(1, 5))
def test_what_is_relayed_is_to_the_bit_what_the_sealer_would_have_merged(
    name: str, seed: int, n: int
) -> None:
    how, deltas = exact(name), drawn(seed, n)
    weights = [(i + 1) / (n * (n + 1) / 2) for i in range(n)]
    seal = sealed(how, deltas, weights)
    relay = SealPayload(how, "mean", FRAGMENT, Buffers())
    relay.relays = False
    dense = seal_of(
        offers(how, deltas),
        weights,
        relay.merge(offers(how, deltas), weights, torch.empty(NUMEL)).sections,
    )
    assert "merged" in dense.sections
    assert torch.equal(taken(seal, how), taken(dense, how))
    assert torch.equal(taken(seal, how), taken(seal, how, trusted=True))


@pytest.mark.parametrize("own", [None, 1])
def test_a_seal_that_is_not_completed_with_what_was_merged_is_refused(own: int | None) -> None:
    """Its own packet is not sent to a member."""
    how, weights = find_codec("int8"), [0.5, 0.5]
    members, whole = offers(how, drawn(0, 2)), sealed(how, drawn(0, 2), weights)
    sent = whole.without(members[0].peer, members[0].seq)
    assert torch.equal(taken(sent.completed(members[0]), how), taken(whole, how))
    with pytest.raises(PeerError, match="do not match the digest"):
        taken(sent if own is None else sent.completed(members[own]), how)


@pytest.mark.parametrize("name", CODECS)
def test_no_delta_of_a_mean_is_whole_anywhere(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    how, deltas = find_codec(name), drawn(0, 3)
    seal, expected = (
        sealed(how, deltas, [0.5, 0.25, 0.25]),
        taken(sealed(how, deltas, [0.5, 0.25, 0.25]), how),
    )
    buffers = Buffers()
    monkeypatch.setattr(buffers, "take", None)
    monkeypatch.setattr(
        mend_optim.worker.seal_payload,
        "decode_packet",
        None if "merged" not in seal.sections else decode_packet,
    )
    found = SealPayload(how, "mean", FRAGMENT, buffers).merged(seal, False, torch.empty(NUMEL))[0]
    assert torch.equal(found, expected)


@pytest.mark.parametrize("name", CODECS)
@pytest.mark.parametrize("n", [1, 2, 5])
def test_the_smallest_is_sent(name: str, n: int) -> None:
    """To the member with the smallest packet, which is not sent back to it."""
    seal = sealed(exact(name), drawn(1, n), [1 / n] * n)
    sizes = sorted(
        offer.sections["delta"].nbytes for offer in offers(find_codec(name), drawn(1, n))
    )
    found = sorted(packet.nbytes for packet in seal.sections.values())
    assert found == (sizes if sum(sizes[1:]) < 4 * NUMEL else [4 * NUMEL])
    assert ("merged" in seal.sections) == (sum(sizes[1:]) >= 4 * NUMEL)


def test_what_was_not_trained_costs_nothing_on_the_way_back() -> None:
    deltas = drawn(1, 2)
    for delta in deltas:
        delta[100:] = 0
    for scheme in ("mean", "median", "rda"):
        seal = sealed(find_codec("none"), deltas, [0.5, 0.5], scheme)
        assert sum(packet.nbytes for packet in seal.sections.values()) < 4 * 100 * 2
        assert taken(seal, find_codec("none"), scheme)[:100].any()
        assert not taken(seal, find_codec("none"), scheme)[100:].any()


@pytest.mark.parametrize("scheme", ["rda", "median", "trimmed_mean", "centered_clip"])
def test_only_means_are_relayed(scheme: str) -> None:
    """The others take norms and orders, which may differ between machines in the last bit."""
    assert "merged" in sealed(PowerSGD(rank=4), drawn(1, 3), [1 / 3] * 3, scheme).sections


def test_members_at_rest_have_no_packet() -> None:
    how, deltas, weights = PowerSGD(rank=4), drawn(3, 2), [0.0, 0.25, 0.75]
    members = offers(how, deltas, idle=True)
    sections = (
        SealPayload(how, "mean", FRAGMENT, Buffers())
        .merge(members, weights, torch.empty(NUMEL))
        .sections
    )
    seal = seal_of(members, weights, sections)
    assert sorted(seal.sections) == ["1", "2"]
    assert torch.equal(taken(seal, how), taken(sealed(how, deltas, [0.25, 0.75]), how))


# ── encoded once more ─────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    "how", [Int8(back="same"), PowerSGD(back="same")], ids=["int8", "powersgd"]
)
def test_encoded_once_more_it_is_as_small_as_one_offer_and_the_sealer_keeps_the_rest(
    how: Codec,
) -> None:
    """Σ merged decodes + the sealer's residual = Σ means, over seals of which one in three came to
    nothing."""
    way_back, came, meant = (
        SealPayload(how, "mean", FRAGMENT, Buffers()),
        torch.zeros(NUMEL),
        torch.zeros(NUMEL),
    )
    assert way_back.feedback is not None
    for round in range(30):
        deltas = drawn(round, 3)
        members, weights = offers(find_codec("none"), deltas), [0.5, 0.25, 0.25]
        sections = way_back.merge(members, weights, torch.empty(NUMEL)).sections
        assert sections["merged"].nbytes <= offers(how, deltas)[0].sections["delta"].nbytes
        if round % 3:
            seal = seal_of(members, weights, sections)
            way_back.commit()
            assert torch.equal(taken(seal, how), taken(seal, how, trusted=True))
            came += taken(seal, how)
            meant += torch.stack([w * d for w, d in zip(weights, deltas, strict=True)]).sum(0)
    assert way_back.feedback.residual is not None
    assert way_back.feedback.residual.any()
    assert torch.allclose(came + way_back.feedback.residual, meant, atol=1e-4)


LOSSY = [how for how in CODECS.values() if how.back == "auto"]


@pytest.mark.parametrize("how", LOSSY, ids=codec_name)
@pytest.mark.parametrize("n", [1, 2, 3, 8, 32])
def test_no_more_than_one_packet_comes_back_however_many_learners_there_are(
    how: Codec, n: int
) -> None:
    """Two members get each other's packet, of which nothing more is lost."""
    members, weights = offers(how, drawn(1, n)), [1 / n] * n
    packet = max(offer.sections["delta"].nbytes for offer in members)
    seal = seal_of(
        members, weights, merged_by(SealPayload(how, "mean", FRAGMENT, Buffers()), seed=1, n=n)
    )
    for offer in members:
        sent = seal.without(offer.peer, offer.seq)
        assert sum(p.nbytes for p in sent.sections.values()) <= packet
    assert ("merged" in seal.sections) == (n > 2)


def merged_by(way_back: SealPayload, *, seed: int, n: int, flush: bool = False) -> Sections:
    members = offers(way_back.codec, drawn(seed, n))
    return way_back.merge(members, [1 / n] * n, torch.empty(NUMEL), flush).sections


@pytest.mark.parametrize("how", LOSSY, ids=codec_name)
@settings(max_examples=15)
@given(st.lists(st.tuples(st.integers(1, 4), st.booleans(), st.booleans()), max_size=8))
def test_nothing_is_lost_on_the_way_back_whoever_takes_part(
    how: Codec, rounds: list[tuple[int, bool, bool]]
) -> None:
    """Σ merged decodes + the sealer's residual = Σ means, over rounds of any members, flushes among
    them, and seals that came to nothing."""
    way_back = SealPayload(how, "mean", FRAGMENT, Buffers())
    came, meant = torch.zeros(NUMEL), torch.zeros(NUMEL)
    for seed, (n, flush, is_taken) in enumerate(rounds):
        members, weights = offers(how, drawn(seed, n)), [1 / n] * n
        sections = merged_by(way_back, seed=seed, n=n, flush=flush)
        if is_taken:
            way_back.commit()
            came += taken(seal_of(members, weights, sections), how)
            meant += taken(sealed_exactly(members, weights), how)
    assert way_back.feedback is not None
    residual = way_back.feedback.residual
    kept = torch.zeros(NUMEL) if residual is None else residual
    assert torch.allclose(came + kept, meant, atol=1e-4)


def sealed_exactly(members: tuple[Offer, ...], weights: list[float]) -> Seal:
    exact = SealPayload(find_codec("none"), "mean", FRAGMENT, Buffers())
    return seal_of(members, weights, exact.merge(members, weights, torch.empty(NUMEL)).sections)


@pytest.mark.parametrize("how", LOSSY, ids=codec_name)
def test_a_residual_goes_with_the_next_seal_even_if_packets_could_come_back(how: Codec) -> None:
    way_back = SealPayload(how, "mean", FRAGMENT, Buffers())
    assert sorted(merged_by(way_back, seed=0, n=2)) == ["0", "1"]
    merged_by(way_back, seed=1, n=3)
    way_back.commit()
    assert sorted(merged_by(way_back, seed=2, n=2)) == ["merged"]


@pytest.mark.parametrize("how", LOSSY, ids=codec_name)
def test_at_rest_nothing_more_is_lost_unless_earlier_seals_left_a_residual(how: Codec) -> None:
    way_back = SealPayload(how, "mean", FRAGMENT, Buffers())
    members, weights = offers(how, drawn(0, 4)), [0.25] * 4
    seal = seal_of(members, weights, merged_by(way_back, seed=0, n=4, flush=True))
    assert torch.equal(taken(seal, how), taken(sealed_exactly(members, weights), how))
    way_back.commit()
    assert way_back.feedback is not None
    assert way_back.feedback.residual is None


@pytest.mark.parametrize("how", LOSSY, ids=codec_name)
def test_at_rest_a_residual_comes_back_too(how: Codec) -> None:
    way_back = SealPayload(how, "mean", FRAGMENT, Buffers())
    assert way_back.feedback is not None
    merged_by(way_back, seed=0, n=3)
    way_back.commit()
    residual = way_back.feedback.residual
    assert residual is not None
    before = residual.clone()
    members, weights = offers(how, drawn(1, 3)), [1 / 3] * 3
    seal = seal_of(members, weights, merged_by(way_back, seed=1, n=3, flush=True))
    way_back.commit()
    mean = taken(sealed_exactly(members, weights), how)
    assert not torch.equal(taken(seal, how), mean)
    left = way_back.feedback.residual
    came = taken(seal, how) + (torch.zeros(NUMEL) if left is None else left)
    assert torch.allclose(came, mean + before, atol=1e-5)


# ── the norm-preserving mean ──────────────────────────────────────────────────────────────────────

NORM = "norm_preserving"


def scale_of(seal: Seal, how: Codec) -> Scale:
    return SealPayload(how, NORM, FRAGMENT, Buffers()).scale(seal)


def sections_of(how: Codec, deltas: list[Tensor], weights: list[float], **more: Any) -> Sections:
    return (
        SealPayload(how, NORM, FRAGMENT, Buffers())
        .merge(offers(how, deltas), weights, torch.empty(NUMEL), **more)
        .sections
    )


@pytest.mark.parametrize("name", CODECS)
@settings(max_examples=10)
@given(SEEDS, st.integers(2, 5))
def test_a_seal_scales_the_mean_of_its_members_by_the_twins_factors(
    name: str, seed: int, n: int
) -> None:
    """They are of the members' deltas as decoded. The mean itself is that of "mean", to the bit."""
    how, deltas = find_codec(name), drawn(seed, n)
    weights = [(i + 1) / (n * (n + 1) / 2) for i in range(n)]
    seal = sealed(how, deltas, weights, NORM)
    assert torch.equal(taken(seal, how, NORM), taken(sealed(how, deltas, weights), how))
    packets = [offer.sections["delta"] for offer in offers(how, deltas)]
    decodes = [decode_packet(packet, FRAGMENT.shapes) for packet in packets]
    expected = [
        reference.factor([decode[start:stop].tolist() for decode in decodes], weights)
        for start, stop in itertools.pairwise(FRAGMENT.offsets)
    ]
    assert scale_of(seal, how).factors == pytest.approx(expected, rel=1e-4)
    assert scale_of(seal, how).headway == 1
    assert max(expected) > 1.1


def test_members_packets_and_the_merged_delta_have_the_same_scale() -> None:
    how, deltas = PowerSGD(rank=4, back="exact"), drawn(1, 3)
    weights = [0.5, 0.25, 0.25]
    whole = SealPayload(how, NORM, FRAGMENT, Buffers())
    whole.relays = False
    dense = whole.merge(offers(how, deltas), weights, torch.empty(NUMEL)).sections
    relay = sections_of(how, deltas, weights)
    assert (sorted(dense), sorted(relay)) == (["merged", SCALE], ["0", "1", "2", SCALE])
    assert bytes(dense[SCALE].data) == bytes(relay[SCALE].data)
    members = offers(how, deltas)
    one, other = (seal_of(members, weights, sections) for sections in (dense, relay))
    assert torch.equal(taken(one, how, NORM), taken(other, how, NORM))


def test_encoded_once_more_a_mean_has_the_scale_of_what_was_merged() -> None:
    """The codec's loss is made good later, so it does not count as shorter."""
    deltas, weights = drawn(1, 2), [0.5, 0.5]
    again = sections_of(Int8(back="same"), deltas, weights)
    exact = sections_of(Int8(), deltas, weights)
    assert again["merged"].nbytes < 2 * NUMEL
    assert bytes(again[SCALE].data) == bytes(exact[SCALE].data)


@pytest.mark.parametrize("how", [PowerSGD(rank=4), find_codec("none")], ids=repr)
def test_nothing_is_scaled_on_a_flush_or_with_one_member_or_among_equals(how: Codec) -> None:
    deltas = drawn(1, 2)
    assert SCALE in sections_of(how, deltas, [0.5, 0.5])
    assert SCALE not in sections_of(how, deltas, [0.5, 0.5], flush=True)
    assert SCALE not in sections_of(how, deltas[:1], [1.0])
    assert SCALE not in sections_of(how, deltas[:1] * 2, [0.5, 0.5])
    assert scale_of(sealed(how, deltas[:1], [1.0], NORM), how) == PLAIN


def test_a_seal_has_the_headway_of_its_round() -> None:
    """Also if the members agree, but not on a flush, or with one member."""
    how, deltas = find_codec("none"), drawn(1, 1) * 2
    told = sections_of(how, deltas, [0.5, 0.5], headway=1.25)
    seal = seal_of(offers(how, deltas), [0.5, 0.5], told)
    assert scale_of(seal, how) == Scale((pytest.approx(1),) * len(FRAGMENT.shapes), 1.25)
    assert SCALE not in sections_of(how, deltas, [0.5, 0.5], flush=True, headway=1.25)
    assert SCALE not in sections_of(how, deltas[:1], [1.0], headway=1.25)


def sealed_by(sealer: SealPayload, how: Codec, deltas: list[Tensor]) -> Seal:
    weights = [1 / len(deltas)] * len(deltas)
    members = offers(how, deltas)
    seal = seal_of(members, weights, sealer.merge(members, weights, torch.empty(NUMEL)).sections)
    sealer.sealed(seal.payload)
    return seal


@pytest.mark.parametrize("name", CODECS)
def test_the_sealer_keeps_the_mean_that_it_measured_until_it_advances(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    how, sealer = find_codec(name), SealPayload(find_codec(name), NORM, FRAGMENT, Buffers())
    seal = sealed_by(sealer, how, drawn(1, 2))
    expected, merges = taken(seal, how, NORM), []
    merge = sealer._merge
    monkeypatch.setattr(sealer, "_merge", lambda *rest: merges.append(rest) or merge(*rest))
    first = sealer.merged(seal, True, torch.empty(NUMEL))[0].clone()
    assert merges == []
    again = sealer.merged(seal, True, torch.empty(NUMEL))[0]
    assert len(merges) == ("merged" not in seal.sections), "it is kept for one advance"
    assert torch.equal(first, expected)
    assert torch.equal(again, expected)


def test_a_mean_that_was_measured_stands_for_no_other_seal() -> None:
    how = PowerSGD(rank=4)
    sealer = SealPayload(how, NORM, FRAGMENT, Buffers())
    sealed_by(sealer, how, drawn(1, 2))
    another = sealed(how, drawn(2, 2), [0.5, 0.5], NORM)
    found = sealer.merged(another, True, torch.empty(NUMEL))[0]
    assert torch.equal(found, taken(another, how, NORM))
    # Nor for one of the same digest whose bytes are to be checked.
    seal = sealed_by(sealer, how, drawn(1, 2))
    with pytest.raises(PeerError, match="do not match the digest"):
        sealer.merged(replace(seal, sections=another.sections), False, torch.empty(NUMEL))


def test_no_other_merge_is_scaled() -> None:
    for scheme in ("mean", "rda", "median", "trimmed_mean", "centered_clip"):
        assert SCALE not in sealed(find_codec("none"), drawn(1, 2), [0.5, 0.5], scheme).sections


def test_members_at_rest_have_no_part_in_the_scale() -> None:
    how, deltas, weights = PowerSGD(rank=4), drawn(3, 2), [0.0, 0.25, 0.75]
    members = offers(how, deltas, idle=True)
    sections = (
        SealPayload(how, NORM, FRAGMENT, Buffers())
        .merge(members, weights, torch.empty(NUMEL))
        .sections
    )
    alone = sealed(how, deltas, [0.25, 0.75], NORM)
    assert sorted(sections) == ["1", "2", SCALE]
    assert bytes(sections[SCALE].data) == bytes(alone.sections[SCALE].data)
    assert scale_of(seal_of(members, weights, sections), how) == scale_of(alone, how)


def rescaled(seal: Seal, *values: float) -> Seal:
    return replace(seal, sections={**seal.sections, SCALE: raw(torch.tensor(values))})


def test_a_seal_whose_scale_was_changed_or_removed_or_added_is_refused() -> None:
    how = PowerSGD(rank=4)
    seal = relayed(NORM)
    (first, *others), headway = scale_of(seal, how)
    taken(seal, how, NORM)
    without = {name: packet for name, packet in seal.sections.items() if name != SCALE}
    for changed in (
        rescaled(seal, first - 0.01, *others, headway),
        rescaled(seal, first, *others, headway + 0.01),
        replace(seal, sections=without),
        rescaled(relayed(), 1.1, 1.1, 1.1, 1.0),
    ):
        with pytest.raises(PeerError, match="do not match the digest"):
            taken(changed, how, NORM)


@pytest.mark.parametrize(
    ("values", "fault"),
    [
        ((1.1, 1.1, 1.1), "not 4 float32: one for each of 3 tensors"),
        ((1.1, 1.1, 1.5, 1.0), r"is 1.1 to 1.5, times 1; it must be in \[1, 1.41421\]"),
        ((1.1, 1.1, 0.5, 1.0), r"is 0.5 to 1.1, times 1; it must be in \[1, 1.41421\]"),
        ((1.1, 1.2, 1.1, 1.2), r"is 1.1 to 1.2, times 1.2; it must be in \[1, 1.41421\]"),
        ((1.1, 1.1, 1.1, math.nan), "times nan"),
    ],
)
def test_a_scale_out_of_its_bounds_is_refused_even_if_the_digest_is_right(
    values: tuple[float, ...], fault: str
) -> None:
    with pytest.raises(PeerError, match=fault):
        scale_of(with_digest(rescaled(relayed(NORM), *values)), PowerSGD(rank=4))


# ── what a sealer may send ────────────────────────────────────────────────────────────────────────


def relayed(scheme: str = "mean") -> Seal:
    seal = sealed(PowerSGD(rank=4), drawn(1, 2), [0.5, 0.5], scheme)
    assert sorted(set(seal.sections) - {SCALE}) == ["0", "1"]
    return seal


def with_digest(seal: Seal) -> Seal:
    """A seal that a broken but consistent sealer would send."""
    return replace(seal, payload=payload_digest(seal.sections, seal.weights))


BAD = {
    "another weight": (lambda seal: replace(seal, weights=(0.4, 0.6)), "digest"),
    "members' packets exchanged": (
        lambda seal: replace(seal, sections={"0": seal.sections["1"], "1": seal.sections["0"]}),
        "digest",
    ),
    "a packet less": (
        lambda seal: with_digest(replace(seal, sections={"0": seal.sections["0"]})),
        "'1' is missing",
    ),
    "nothing": (lambda seal: with_digest(replace(seal, sections={})), "'0' is missing"),
    "another size": (
        lambda seal: with_digest(
            replace(seal, sections={**seal.sections, "1": raw(torch.zeros(3))})
        ),
        "3 elements",
    ),
    "not a number": (
        lambda seal: with_digest(
            replace(seal, sections={**seal.sections, "1": raw(torch.full((NUMEL,), math.nan))})
        ),
        "not finite",
    ),
    "weights that overflow": (
        lambda seal: with_digest(replace(seal, weights=(1e300, 1.0))),
        "not finite",
    ),
}


@pytest.mark.parametrize("what", BAD)
def test_a_bad_seal_is_refused(what: str) -> None:
    change, fault = BAD[what]
    taken(relayed(), PowerSGD(rank=4))
    with pytest.raises(PeerError, match=fault):
        taken(change(relayed()), PowerSGD(rank=4))


def test_what_is_not_asked_for_is_not_read() -> None:
    """A later version may send more."""
    seal = relayed()
    more = replace(seal, sections={**seal.sections, "exp_avg": raw(torch.zeros(7))})
    assert torch.equal(taken(more, PowerSGD(rank=4)), taken(seal, PowerSGD(rank=4)))


def test_a_seal_of_nothing_is_refused() -> None:
    seal = relayed()
    idle = tuple(entry._replace(steps=0) for entry in seal.members)
    with pytest.raises(PeerError, match="Seal has no packet to merge"):
        taken(with_digest(replace(seal, members=idle, sections={})), PowerSGD(rank=4))


def test_no_more_packets_are_relayed_than_a_message_has_sections() -> None:
    members = offers(PowerSGD(rank=4), drawn(1, 1)) * (RELAYED + 1)
    large = Layout(["w"], [torch.zeros(2048, 1024)], 1).fragments[0]
    packet, _ = encode_packet(PowerSGD(rank=1), torch.ones(large.numel), large.shapes)
    members = tuple(replace(offer, sections={"delta": packet}) for offer in members)
    way_back = SealPayload(PowerSGD(rank=1, back="exact"), "mean", large, Buffers())
    for n, sections in ((RELAYED, RELAYED), (RELAYED + 1, 1)):
        assert n * packet.nbytes < 4 * large.numel
        assert (
            len(way_back.merge(members[:n], [1 / n] * n, torch.empty(large.numel)).sections)
            == sections
        )
