"""Rounds in which one offer is far larger than the others: the worker's side."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from mend_optim import DiLoCoNesterov, Guard, Nesterov
from mend_optim.codecs.blockwise import Int8
from mend_optim.codecs.buffers import Buffers
from mend_optim.codecs.packing import MOST, raw
from mend_optim.codecs.registry import CODECS, find_codec
from mend_optim.engine.effects import Advance, Install, Merge, Outsize, Prepare, Retake
from mend_optim.model.layout import Layout
from mend_optim.protocol.messages import MERGED, SIZES, Offer, Seal
from mend_optim.worker.anchors import Anchors
from mend_optim.worker.merge import MERGES, merge
from mend_optim.worker.offer_sizes import HUGEST
from mend_optim.worker.seal_payload import payload_digest
from tests.support.engines import BASE
from tests.support.jobs import LoneFragment, perform
from tests.support.strategies import contributions

NUMEL = 4096
SHAPE = (64, 64)


def lone(name: str, **policy: Any) -> LoneFragment:
    settings = {"outer": Nesterov(), "scheme": "mean", "guard": Guard(), "codec": "none", **policy}
    codec = find_codec(settings.pop("codec"))
    start = torch.zeros(NUMEL)
    layout = Layout(["w"], [start.view(SHAPE)], 1)
    return LoneFragment(name, Anchors(layout, [start], codec=codec, buffers=Buffers(), **settings))


def noise(seed: int, size: float = 1.0) -> Tensor:
    """A delta of this RMS, or nearly."""
    return size * torch.randn(NUMEL, generator=torch.Generator().manual_seed(seed))


class Trio:
    """Three learners of one fragment. The first one seals."""

    def __init__(self, **policy: Any) -> None:
        self.learners = [lone(name, **policy) for name in "abc"]
        self.rounds = 0

    def offers(self, deltas: Sequence[Tensor]) -> tuple[Offer, ...]:
        """Offers of these deltas on the present anchor."""
        self.rounds += 1
        return tuple(
            learner.offer_from(
                Prepare(
                    fragment=0,
                    seq=self.rounds,
                    tensor=learner.anchors.fragments[0].theta - delta,
                ),
                tokens=10,
                steps=4,
            )
            for learner, delta in zip(self.learners, deltas, strict=True)
        )

    def merge(self, offers: tuple[Offer, ...], **told: Any) -> Merge:
        w = tuple(1.0 if offer.steps else 0.0 for offer in offers)
        weights = tuple(one / (sum(w) or 1.0) for one in w)
        return Merge(fragment=0, base=BASE, offers=offers, weights=weights, **told)

    def take(self, seal: Seal) -> list[dict[int, Outsize]]:
        """All take the seal. Returns what each reports."""
        found = []
        for learner in self.learners:
            mine = any(e.peer == learner.id and e.steps for e in seal.members)
            job = Advance(
                seal=seal,
                lineage=BASE,
                merged_own_offer=mine,
                sealed_here=learner is self.learners[0],
            )
            done, _ = learner.anchors.perform(job)
            assert not done.fault
            found.append(dict(done.outsized))
        return found

    def train(self, rounds: int = 2) -> None:
        for k in range(rounds):
            offers = self.offers([noise(10 * k + i) for i in range(3)])
            self.take(self.learners[0].seal_from(self.merge(offers)))

    @property
    def anchors(self) -> list[Tensor]:
        return [learner.anchors.fragments[0].theta for learner in self.learners]

    @property
    def histories(self) -> list[list[Any]]:
        return [list(learner.anchors.fragments[0].sizes.sizes) for learner in self.learners]  # type: ignore[union-attr]


def test_layers_may_be_frozen_for_a_while() -> None:
    """They offer what is rounded, and later what is trained."""
    trio = Trio()
    trio.train(rounds=1)
    for k in range(4):
        offers = trio.offers([noise(100 + 10 * k + i, 2.0**-26) for i in range(3)])
        trio.take(trio.learners[0].seal_from(trio.merge(offers)))
    assert [len(history) for history in trio.histories] == [3, 3, 3]
    offers = trio.offers([noise(200), noise(201, 2.0**-26), noise(202, 2.0**-26)])
    done, _ = trio.learners[0].anchors.perform(trio.merge(offers))
    assert not done.outsized


@pytest.mark.parametrize(("size", "told"), [(2.0**-26, 0), (2.0**-20, 3)])
def test_rounding_errors_are_told_from_small_steps_by_the_rms_of_the_weights(
    size: float, told: int
) -> None:
    trio = Trio()
    trio.train(rounds=1)
    offers = trio.offers([noise(100 + i, size) for i in range(3)])
    trio.take(trio.learners[0].seal_from(trio.merge(offers)))
    assert [len(history) for history in trio.histories] == [3 + told] * 3


def accident(size: float = 1000.0) -> list[Tensor]:
    return [noise(1), noise(2), noise(3, size)]


@pytest.mark.parametrize("scheme", MERGES)
@pytest.mark.parametrize("codec", CODECS)
def test_it_is_refused_whatever_the_merge_and_the_codec_are(scheme: str, codec: str) -> None:
    trio = Trio(scheme=scheme, codec=codec)
    trio.train(3)
    before = [anchor.clone() for anchor in trio.anchors]
    done, corrections = trio.learners[0].anchors.perform(trio.merge(trio.offers(accident())))
    assert (done.sections, corrections, set(done.outsized)) == ({}, (), {2})
    assert 300 < done.outsized[2].times < 3000
    assert all(map(torch.equal, trio.anchors, before))


@pytest.mark.parametrize("scheme", MERGES)
@pytest.mark.parametrize("size", [1e17, 1e22, 1e35])
def test_it_is_refused_however_large_it_is(scheme: str, size: float) -> None:
    """From 1e17 on, its squares are beyond float32. A fault would have the same offers come again,
    and so stop merging for everybody."""
    trio = Trio(scheme=scheme)
    trio.train()
    done, _ = trio.learners[0].anchors.perform(trio.merge(trio.offers(accident(size))))
    assert (done.fault, set(done.outsized)) == ("", {2})


def test_the_round_goes_on_with_the_others_and_tells_everybody() -> None:
    trio = Trio()
    trio.train()
    offers = trio.offers(accident())
    outsized = perform(trio.learners[0].anchors, trio.merge(offers))
    assert not outsized.sections
    found = {2: Outsize(1000.0, 1000.0)}
    nothing = replace(offers[2], seq=0, tokens=0, steps=0, sections={})
    seal = trio.learners[0].seal_from(trio.merge((*offers[:2], nothing), outsized=found))
    assert trio.take(seal) == [found] * 3
    assert all(anchor.abs().max() < 20 for anchor in trio.anchors)
    assert trio.histories[0] == trio.histories[1] == trio.histories[2]
    assert len(trio.histories[0]) == 8


def test_a_round_may_be_of_nothing_but_refused_offers() -> None:
    trio = Trio()
    trio.train()
    before = [anchor.clone() for anchor in trio.anchors]
    offers = trio.offers(accident())
    nothing = tuple(replace(o, seq=0, tokens=0, steps=0, sections={}) for o in offers)
    found = dict.fromkeys(range(3), Outsize(1000.0, 1000.0))
    seal = trio.learners[0].seal_from(trio.merge(nothing, outsized=found))
    assert trio.take(seal) == [found] * 3
    assert all(map(torch.equal, trio.anchors, before))


@pytest.mark.parametrize("codec", ["none", "int8"])
@pytest.mark.parametrize("size", [1e6, 1e18, 1e25, 1e33, 1e36])
def test_a_clipped_offer_is_merged_at_the_bound(codec: str, size: float) -> None:
    trio = Trio(guard=Guard(clip=True), codec=codec)
    trio.train()
    before = trio.anchors[1].clone()
    offers = trio.offers(accident(size))
    seal = trio.learners[0].seal_from(trio.merge(offers))
    assert set(seal.sections) == {MERGED, SIZES}
    assert [set(found) for found in trio.take(seal)] == [{2}] * 3
    step = (trio.anchors[1] - before).square().mean().sqrt().item()
    assert step == pytest.approx(8 / 3, rel=0.1)
    assert torch.equal(trio.anchors[1], trio.anchors[2])


def test_the_packet_of_a_clipped_offer_does_not_come_back() -> None:
    """Not even if it is the only one: its author has signed another."""
    trio = Trio(guard=Guard(clip=True), codec=Int8(back="exact"))
    trio.train()
    *others, last = trio.offers(accident(1e6))
    nothing = [replace(offer, seq=0, tokens=0, steps=0, sections={}) for offer in others]
    seal = trio.learners[0].seal_from(trio.merge((*nothing, last)))
    assert set(seal.sections) == {MERGED, SIZES}


def test_learners_of_other_sizes_are_merged_without_a_guard() -> None:
    trio = Trio(guard=None)
    trio.train()
    seal = trio.learners[0].seal_from(trio.merge(trio.offers(accident())))
    assert trio.take(seal) == [{}] * 3
    done = perform(trio.learners[0].anchors, trio.merge(trio.offers(accident(2 * HUGEST))))
    assert not done.sections


@given(contributions(), st.sampled_from(MERGES))
def test_a_merged_step_is_no_longer_than_its_offers(
    drawn: tuple[list[Tensor], list[float]], scheme: str
) -> None:
    """So a bound on the offers bounds the step: √M times the longest, and for a mean the longest
    itself. A norm-preserving mean is at most as long as its members are on average."""
    deltas, w = drawn
    out = torch.empty_like(deltas[0])
    merge(scheme, deltas, w, out, [0, out.numel()])
    longest = max(delta.double().norm().item() for delta in deltas)
    most = len(deltas) ** 0.5 if scheme in ("median", "trimmed_mean") else 1.0
    assert out.double().norm().item() <= most * longest * (1 + 1e-5) + 1e-30


# ── what travels with an anchor ───────────────────────────────────────────────────────────────────


def test_a_newcomer_knows_the_usual_size() -> None:
    trio = Trio()
    trio.train()
    new = lone("d")
    state = trio.learners[1].export()
    job = Install(states=(state,), merged_own_offer=False, replace=True)
    assert not perform(new.anchors, job).fault
    fragment = new.anchors.fragments[0]
    assert list(fragment.sizes.sizes) == trio.histories[0]  # type: ignore[union-attr]


def test_a_checkpoint_has_the_usual_size() -> None:
    trio = Trio()
    trio.train()
    new = lone("d")
    new.anchors.load(0, trio.learners[1].anchors.save(0))
    assert list(new.anchors.fragments[0].sizes.sizes) == trio.histories[0]  # type: ignore[union-attr]


@pytest.mark.parametrize("what", ["sizes", "history"])
def test_damaged_sizes_change_no_bit(what: str) -> None:
    trio = Trio()
    trio.train()
    bad = {SIZES: raw(torch.full((3,), torch.nan))}
    if what == "sizes":
        seal = trio.learners[0].seal_from(trio.merge(trio.offers([noise(i) for i in range(3)])))
        sections = {**seal.sections, **bad}
        seal = replace(seal, sections=sections, payload=payload_digest(sections, seal.weights))
        job: Any = Advance(seal=seal, lineage=BASE, merged_own_offer=True)
    else:
        other = Trio()
        other.train(3)
        state = other.learners[1].export()
        sections = {**state.sections, **bad}
        hashing = trio.learners[1].anchors.fragments[0].hashing
        content = hashing.short(*(sections[name].data for name in sorted(sections)))
        job = Install(
            states=(replace(state, sections=sections, content=content),),
            merged_own_offer=False,
            replace=True,
        )
    before, history = trio.anchors[1].clone(), trio.histories[1]
    assert perform(trio.learners[1].anchors, job).fault.startswith("Sizes of ")
    assert torch.equal(trio.anchors[1], before)
    assert trio.histories[1] == history


# ── anchors stay finite ───────────────────────────────────────────────────────────────────────────


def test_a_merge_that_leads_to_no_finite_anchor_is_given_up() -> None:
    trio = Trio(outer=DiLoCoNesterov(), guard=None)
    trio.train()
    fragment = trio.learners[0].anchors.fragments[0]
    far = {
        "anchor": torch.full_like(fragment.theta, -MOST / 2),
        "velocity": torch.full_like(fragment.theta, MOST),
    }
    fragment.load({**fragment.save(), **far})
    done = perform(trio.learners[0].anchors, trio.merge(trio.offers([noise(i) for i in range(3)])))
    assert done.fault == "the anchor that the merged delta leads to would not be finite"


@pytest.mark.parametrize("factor", [1.0, torch.nan])
def test_a_seal_that_leads_to_no_finite_anchor_changes_no_bit(factor: float) -> None:
    trio = Trio(guard=None)
    trio.train()
    seal = trio.learners[0].seal_from(trio.merge(trio.offers([noise(i) for i in range(3)])))
    fragment = trio.learners[1].anchors.fragments[0]
    before = fragment.theta.clone()
    before[3] = factor * 1.5 * MOST
    fragment.load({**fragment.save(), "anchor": before})
    job = Advance(seal=seal, lineage=BASE, merged_own_offer=True)
    done = perform(trio.learners[1].anchors, job)
    assert "would not be finite" in done.fault
    assert torch.equal(fragment.theta.nan_to_num(7.0), before.nan_to_num(7.0))


# ── the author goes on ────────────────────────────────────────────────────────────────────────────


def test_a_learner_that_retakes_the_anchor_has_nothing_left() -> None:
    trio = Trio(codec="powersgd")
    trio.train()
    learner = trio.learners[2]
    trio.offers(accident())
    (correction,) = perform(learner.anchors, Retake(0, "ruined")).corrections
    assert correction.replace
    assert correction.resets
    assert torch.equal(correction.values, trio.anchors[2])
    assert correction.values.data_ptr() != trio.anchors[2].data_ptr()
    saved = learner.anchors.save(0)
    assert not {"delta", "disagreement", "residual", "stayed", "lost"} & set(saved)


def test_an_anchor_that_is_not_finite_is_not_retaken() -> None:
    learner = lone("a")
    learner.anchors.fragments[0].theta[0] = torch.inf
    done = perform(learner.anchors, Retake(0, "ruined"))
    assert "not finite" in done.fault
    assert not done.corrections
