"""Joint offers: several learners' offers in one packet are merged as they would be one by one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from mend_optim import Nesterov
from mend_optim.codecs.buffers import Buffers
from mend_optim.codecs.packing import raw
from mend_optim.codecs.registry import encode_packet, find_codec
from mend_optim.engine.effects import Inspect
from mend_optim.engine.policies import WEIGHTINGS, weights
from mend_optim.errors import PeerError
from mend_optim.model.layout import Fragment, Layout
from mend_optim.protocol.lineage import Key, PeerId
from mend_optim.protocol.messages import NORMS, SCALE, Offer
from mend_optim.worker.anchors import Anchors
from mend_optim.worker.joint import ROUNDING, check_joint, combined, read_norms
from mend_optim.worker.scale import read_scale
from mend_optim.worker.seal_payload import SealPayload

SHAPES = [(7, 5), (11,), (2, 3, 4)]
LAYOUT = Layout([str(s) for s in SHAPES], [torch.zeros(s) for s in SHAPES], 1)
FRAGMENT: Fragment = LAYOUT.fragments[0]
WORK = st.lists(st.tuples(st.integers(0, 99), st.integers(1, 9)), min_size=3, max_size=6)


def offers_of(work: Sequence[tuple[int, int]], seed: int) -> list[Offer]:
    draws = torch.Generator().manual_seed(seed)
    return [
        Offer(
            peer=PeerId(f"p{i}", 1),
            fragment=0,
            seq=1,
            tokens=tokens,
            steps=steps,
            genesis=b"g",
            key=Key(0, 0, b""),
            due=True,
            sections={"delta": raw(torch.randn(FRAGMENT.numel, generator=draws))},
        )
        for i, (tokens, steps) in enumerate(work)
    ]


def joint_of(offers: Sequence[Offer], weighting: str, relay: int = 0) -> Offer:
    """The joint offer of these, by one of them."""
    ordered = [offers[relay], *(offer for offer in offers if offer is not offers[relay])]
    w = weights(weighting, [offer.entry for offer in ordered])
    sections = combined(ordered, w, FRAGMENT, Buffers())
    others = tuple(replace(other, sections={}) for other in ordered[1:])
    return replace(ordered[0], sections=sections, others=others)


def merged(offers: Sequence[Offer], weighting: str) -> tuple[Tensor, dict[int, float], list[float]]:
    payload = SealPayload(find_codec("none"), "norm_preserving", FRAGMENT, Buffers())
    w = weights(weighting, [offer.entry for offer in offers])
    found = payload.merge(offers, w, torch.empty(FRAGMENT.numel))
    scale = [1.0] * len(SHAPES)
    if SCALE in found.sections:
        scale = read_scale(found.sections[SCALE], len(SHAPES), float("inf")).products()
    return found.delta.clone(), found.rms, scale


@given(WORK, st.integers(0, 99), st.sampled_from(WEIGHTINGS), st.data())
def test_a_joint_offer_merges_as_its_members_would_one_by_one(
    work: list[tuple[int, int]], seed: int, weighting: str, data: st.DataObject
) -> None:
    flat = offers_of(work, seed)
    inside = sorted(data.draw(st.sets(st.sampled_from(range(len(flat))), min_size=2)))
    joint = joint_of(
        [flat[i] for i in inside], weighting, data.draw(st.sampled_from(range(len(inside))))
    )
    check_joint(joint, FRAGMENT)
    outside = [offer for i, offer in enumerate(flat) if i not in inside]
    zoned = sorted([*outside, *joint.together], key=lambda offer: offer.peer)
    for one, other in zip(merged(flat, weighting), merged(zoned, weighting), strict=True):
        if isinstance(one, dict):
            assert isinstance(other, dict)
            assert one == pytest.approx(other, rel=1e-5)
        else:
            torch.testing.assert_close(
                torch.as_tensor(one), torch.as_tensor(other), rtol=1e-4, atol=1e-5
            )


def test_a_relay_cannot_hide_a_large_delta() -> None:
    joint = joint_of(offers_of([(1, 1), (1, 1), (1, 1)], 0), "tokens")
    told = read_norms(joint, len(SHAPES))
    largest = max(norms[1] for norms in told)
    low = torch.tensor(told)
    low[:, 1] = 0.1 * largest
    with pytest.raises(PeerError, match="tensor 1 has norm"):
        check_joint(
            replace(joint, sections={**joint.sections, NORMS: raw(low.flatten())}), FRAGMENT
        )


def test_the_delta_may_be_as_long_as_its_longest_member() -> None:
    alike = offers_of([(1, 1)], 0) * 2
    alike = [alike[0], replace(alike[1], peer=PeerId("q", 1))]
    check_joint(joint_of(alike, "tokens"), FRAGMENT)
    assert ROUNDING < 0.01


@pytest.mark.parametrize(
    "norms",
    [
        torch.zeros(2 * len(SHAPES) - 1),
        torch.zeros(2 * len(SHAPES) + 1),
        torch.full((2 * len(SHAPES),), -1.0),
        torch.full((2 * len(SHAPES),), torch.inf),
        torch.full((2 * len(SHAPES),), torch.nan),
    ],
    ids=["few", "many", "negative", "infinite", "nan"],
)
def test_norms_that_are_none_are_refused(norms: Tensor) -> None:
    joint = joint_of(offers_of([(1, 1), (1, 1)], 0), "tokens")
    with pytest.raises(PeerError, match="Norms of a joint offer"):
        check_joint(replace(joint, sections={**joint.sections, NORMS: raw(norms)}), FRAGMENT)
    with pytest.raises(PeerError, match="missing"):
        check_joint(replace(joint, sections={"delta": joint.sections["delta"]}), FRAGMENT)


def test_a_joint_offer_is_checked_as_it_arrives() -> None:
    start = torch.zeros(FRAGMENT.numel)
    anchors = Anchors(
        LAYOUT,
        [start],
        codec=find_codec("none"),
        outer=Nesterov(),
        scheme="mean",
        buffers=Buffers(),
    )
    joint = joint_of(offers_of([(1, 1), (1, 1)], 0), "tokens")
    assert not anchors.perform(Inspect(joint))[0].fault
    none = raw(torch.zeros(2 * len(SHAPES)))
    lying = replace(joint, sections={**joint.sections, NORMS: none})
    assert "has norm" in anchors.perform(Inspect(lying))[0].fault


def test_the_packets_of_joint_offers_do_not_come_back() -> None:
    """Two of them take fewer bytes than the merged delta."""
    offers = offers_of([(1, 1), (1, 1), (1, 1)], 0)
    small = {"delta": encode_packet(find_codec("int4"), torch.ones(FRAGMENT.numel), SHAPES)[0]}
    first, *rest = (replace(offer, sections=small) for offer in offers)
    joint = joint_of(offers[1:], "tokens")
    codec = replace(find_codec("int4"), back="exact")  # type: ignore[type-var]
    payload = SealPayload(codec, "mean", FRAGMENT, Buffers())

    def names(members: Sequence[Offer]) -> set[str]:
        return set(payload.merge(members, [1 / 3] * 3, torch.empty(FRAGMENT.numel)).sections)

    assert names([first, *rest]) == {"0", "1", "2"}
    held = replace(joint, sections={**joint.sections, **small})
    assert names([first, *held.together]) == {"merged"}


def test_a_joint_delta_must_be_finite() -> None:
    offers = offers_of([(1, 1), (1, 1)], 0)
    huge = raw(torch.full((FRAGMENT.numel,), 3e38))
    grown = [replace(offer, sections={"delta": huge}) for offer in offers]
    combined(grown, [0.5, 0.5], FRAGMENT, Buffers())
    with pytest.raises(PeerError, match="not finite"):
        combined(grown, [1.0, 1.0], FRAGMENT, Buffers())
