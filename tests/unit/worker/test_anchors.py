from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from mend_optim.codecs.blockwise import Int8
from mend_optim.codecs.buffers import Buffers
from mend_optim.codecs.packing import as_bytes, raw
from mend_optim.codecs.powersgd import PowerSGD
from mend_optim.codecs.registry import Codec, decode_packet, find_codec
from mend_optim.engine.effects import (
    Advance,
    Export,
    Found,
    Inspect,
    Install,
    Job,
    Merge,
    Prepare,
    Reoffer,
)
from mend_optim.engine.policies import WEIGHTINGS, weights
from mend_optim.engine.round import Round
from mend_optim.engine.schedule import Schedule
from mend_optim.model.copies import gather, scatter
from mend_optim.model.layout import Layout
from mend_optim.protocol.lineage import PeerId
from mend_optim.protocol.messages import RATE, SIZES, Offer, Packet, Seal, State
from mend_optim.protocol.tree_digest import short_digest
from mend_optim.worker.anchors import Anchors
from mend_optim.worker.correction import Correction, stack
from mend_optim.worker.moment_means import MomentMeans
from mend_optim.worker.outer import DiLoCoNesterov, Nesterov, Outer
from mend_optim.worker.seal_payload import SealPayload, payload_digest
from tests import reference
from tests.support.engines import BASE, GENESIS
from tests.support.jobs import LoneFragment, Performed, perform
from tests.support.strategies import close, vectors

CLASSIC = DiLoCoNesterov(lr=0.7, momentum=0.9)
STEADY = Nesterov(gain=0.8, momentum=0.9)
policies = st.sampled_from([Nesterov(), CLASSIC, STEADY])


class Learner(LoneFragment):
    """One fragment of one learner, without an engine: its weights, its anchors, and what it does
    with them."""

    def __init__(
        self,
        name: str,
        start: Tensor,
        coding: str | Codec = "none",
        exact: bool = False,
        **policy: Any,
    ) -> None:
        settings = {"outer": Nesterov(), "scheme": "mean", "buffers": Buffers(), **policy}
        anchors = Anchors(
            Layout(["w"], [start], 1),
            [start.flatten().clone()],
            codec=find_codec(coding),
            **settings,
        )
        super().__init__(name, anchors)
        self.exact, self.weights, self.seq = exact, start.flatten(), 0

    @property
    def theta(self) -> Tensor:
        return self.anchors.fragments[0].theta

    def train(self, change: Tensor) -> Learner:
        self.weights = self.weights - change
        return self

    def offer(
        self, tokens: int = 1, steps: int = 1, flush: bool = False, rate: float = 1.0
    ) -> Offer:
        self.seq += 1
        job = Prepare(fragment=0, seq=self.seq, tensor=self.weights.clone(), flush=flush)
        return self.offer_from(job, tokens, steps, rate)

    def nothing(self) -> Offer:
        """The offer of a learner at rest."""
        return Offer(
            peer=self.id,
            fragment=0,
            seq=self.seq,
            tokens=0,
            steps=0,
            genesis=GENESIS,
            key=BASE.key,
            due=False,
        )

    def seal(self, *offers: Offer, weighting: str = "tokens") -> Seal:
        round = Round(0)
        for offer in offers:
            round.add(offer)
        round._on("launch")
        ordered = round.close(0.0, [], "all_present", len(offers))
        w = tuple(weights(weighting, [offer.entry for offer in ordered]))
        return self.seal_from(Merge(fragment=0, base=BASE, offers=ordered, weights=w))

    def receive(
        self, seal: Seal, merged_own_offer: bool = True, sealed_here: bool = False
    ) -> Performed:
        return perform(
            self.anchors,
            Advance(
                seal=seal,
                lineage=BASE,
                merged_own_offer=merged_own_offer,
                replace=self.exact,
                sealed_here=sealed_here,
            ),
        )

    def adopt(self, seal: Seal, merged_own_offer: bool = True) -> Correction:
        done = self.receive(seal, merged_own_offer)
        assert done.fault == ""
        self.apply(*done.corrections)
        return done.corrections[0]

    def apply(self, correction: Correction) -> None:
        self.weights = (
            correction.values.clone() if correction.replace else self.weights + correction.values
        )


def merged(seal: Seal) -> Tensor:
    """The merged delta in a seal, of a fragment that is one vector."""
    (numel,) = {packet.numel for name, packet in seal.sections.items() if name not in (RATE, SIZES)}
    layout = Layout(["w"], [torch.zeros(numel)], 1)
    way_back = SealPayload(find_codec("none"), "mean", layout.fragments[0], Buffers())
    return way_back.merged(seal, True, torch.empty(numel))[0]


def vector(*values: float) -> Tensor:
    return torch.tensor(values, dtype=torch.float32)


def wide(value: float) -> Tensor:
    """Long enough for a codec to save bytes: a shorter tensor travels as it is."""
    return torch.full((40,), float(value))


# One round


@given(vectors(4, 3))
def test_a_round_of_all_leaves_all_on_the_mean(drawn: list[Tensor]) -> None:
    start, *changes = drawn
    learners = [
        Learner(name, start).train(change) for name, change in zip("abc", changes, strict=True)
    ]
    seal = learners[0].seal(*(learner.offer() for learner in learners))
    for learner in learners:
        learner.adopt(seal)
    assert all(close(learner.weights, start - sum(changes) / 3) for learner in learners)


def test_more_tokens_pull_harder() -> None:
    a, b = Learner("a", vector(0)).train(vector(-10)), Learner("b", vector(0))
    seal = a.seal(a.offer(tokens=300, steps=3), b.offer(tokens=100, steps=1))
    a.adopt(seal)
    assert a.weights.item() == 7.5


@given(policies, vectors(5, 4), st.permutations(range(4)))
def test_anchors_agree_to_the_bit_whatever_each_did_locally_and_offers_arrived_in_any_order(
    policy: Outer, drawn: list[Tensor], order: list[int]
) -> None:
    start, *changes = drawn
    learners = [
        Learner(name, start, outer=policy).train(c) for name, c in zip("abcd", changes, strict=True)
    ]
    offers = [learner.offer(tokens=i + 1) for i, learner in enumerate(learners)]
    seal = learners[0].seal(*offers)
    assert learners[0].seal(*(offers[i] for i in order)) == seal
    for learner in learners:
        learner.train(torch.ones(4)).adopt(seal, merged_own_offer=learner is not learners[3])
    assert all(learner.anchors.genesis() == learners[0].anchors.genesis() for learner in learners)


@given(policies, vectors(4, 3))
def test_law_10_for_a_member_and_for_who_was_left_out(policy: Outer, drawn: list[Tensor]) -> None:
    start, change, during, other = drawn
    member, left_out = (
        Learner("a", start, outer=policy).train(change),
        Learner("b", start, outer=policy).train(other),
    )
    seal = member.seal(member.offer())
    snapshot, unmerged = member.weights, left_out.weights
    member.train(during).adopt(seal)
    left_out.train(during).adopt(seal, merged_own_offer=False)
    assert close(member.weights, snapshot - during + (member.theta - snapshot))
    assert close(left_out.weights, unmerged - during + (left_out.theta - start))


@given(policies, vectors(3, 3))
def test_an_offer_that_was_not_merged_is_as_good_on_the_next_anchor(
    policy: Outer, drawn: list[Tensor]
) -> None:
    start, change, other = drawn
    slow, fast = (
        Learner("a", start, outer=policy).train(change),
        Learner("b", start, outer=policy).train(other),
    )
    before = slow.offer()
    slow.adopt(fast.seal(fast.offer()), merged_own_offer=False)
    assert close(merged(slow.seal(slow.offer())), merged(slow.seal(before)))


@pytest.mark.parametrize("scheme", ["mean", "rda", "trimmed_mean", "median", "centered_clip"])
@pytest.mark.parametrize("weighting", WEIGHTINGS)
def test_a_member_at_rest_changes_nothing_but_the_lineage(scheme: str, weighting: str) -> None:
    a, b, idle = (Learner(name, vector(0, 0), scheme=scheme) for name in "abc")
    offers = [a.train(vector(2, 4)).offer(), b.train(vector(4, 8)).offer()]
    with_it = a.seal(*offers, idle.nothing(), weighting=weighting)
    assert (
        merged(with_it).tolist()
        == merged(a.seal(*offers, weighting=weighting)).tolist()
        == pytest.approx([3, 6])
    )
    assert with_it.weights == (0.5, 0.5, 0)
    assert [entry.peer.name for entry in with_it.members] == ["a", "b", "c"]


def test_an_offer_that_lacks_its_delta_voids_the_merge() -> None:
    a = Learner("a", vector(0))
    done = perform(
        a.anchors,
        Merge(fragment=0, base=BASE, offers=(replace(a.offer(), sections={}),), weights=(1.0,)),
    )
    assert "'delta' is missing" in done.fault


def test_under_synchronous_adoption_members_become_the_anchor_to_the_bit() -> None:
    a, b = (Learner(name, vector(0.1), exact=True) for name in "ab")
    seal = a.seal(a.train(vector(0.3)).offer(), b.train(vector(0.7)).offer())
    a.adopt(seal)
    b.adopt(seal)
    assert as_bytes(a.weights) == as_bytes(b.weights) == as_bytes(a.theta)


def test_what_has_to_be_dropped_is_out_of_the_weights_and_of_the_next_offer() -> None:
    a, twin = (
        Learner("a", wide(0.1), coding="bf16", exact=True),
        Learner("b", wide(0.1), coding="bf16"),
    )
    seal = a.seal(a.train(wide(0.3)).offer())
    twin.train(wide(0.30001)).offer()
    assert twin.anchors.fragments[0].feedback.encoding_error is not None
    twin.exact = True
    twin.adopt(seal, merged_own_offer=False)
    a.adopt(seal)
    assert as_bytes(twin.weights) == as_bytes(twin.theta) == as_bytes(a.theta)
    assert (twin.anchors.fragments[0].progress, twin.anchors.fragments[0].feedback.held()) == (
        None,
        {},
    )


# Trajectories computed by hand


def test_nesterov_over_three_rounds() -> None:
    learner, found = Learner("a", vector(0), outer=CLASSIC), []
    for _ in range(3):
        learner.adopt(learner.seal(learner.train(vector(1)).offer()))
        found.append(learner.theta.item())
    assert found == pytest.approx([-1.33, -3.227, -5.6343])


def test_two_staggered_fragments_of_weights_that_fall_by_two_a_step() -> None:
    schedule, parameters = Schedule(sync_every=6, fragments=2), [vector(1), vector(1)]
    layout = Layout(["v", "w"], parameters, 2)
    anchors = Anchors(
        layout,
        [vector(1), vector(1)],
        codec=find_codec("none"),
        outer=Nesterov(gain=2.0),
        scheme="mean",
        buffers=Buffers(),
    )
    marks, found = [schedule.first_cycle_start(p) for p in range(2)], []
    for step in range(1, 13):
        for parameter in parameters:
            parameter.sub_(2)
        for p in [p for p in range(2) if schedule.due(step, marks[p])]:
            snapshot, marks[p] = torch.empty(1), step
            gather(layout.fragments[p], parameters, snapshot)
            sections = perform(anchors, Prepare(fragment=p, seq=step, tensor=snapshot)).sections
            offer = Offer(
                peer=PeerId("a", 1),
                fragment=p,
                seq=step,
                tokens=1,
                steps=1,
                genesis=b"",
                key=BASE.key,
                due=True,
                sections=sections,
            )
            done = perform(anchors, Merge(fragment=p, base=BASE, offers=(offer,), weights=(1.0,)))
            seal = Seal(
                sealer=offer.peer,
                fragment=p,
                base=b"",
                key=BASE.key,
                members=(offer.entry,),
                weights=(1.0,),
                absent=(),
                reason="",
                payload=done.digest,
                sections=done.sections,
            )
            (correction,) = perform(
                anchors, Advance(seal=seal, lineage=BASE, merged_own_offer=True)
            ).corrections
            scatter(layout.fragments[p], correction.values, parameters, correction.replace)
            found.append((p, step, parameters[p].item()))
    assert found == [(0, 3, -11), (1, 6, -23), (0, 9, -35), (1, 12, -47)]


def twin_of(policy: Outer, start: Tensor, changes: list[Tensor]) -> Iterator[list[float]]:
    """The anchors after rounds of one offer, of one step at the learning rate 1."""
    deltas = [change.tolist() for change in changes]
    if isinstance(policy, DiLoCoNesterov):
        return reference.nesterov(policy.lr, policy.momentum, start.tolist(), deltas)
    rounds = [(1.0, policy.momentum)] * len(deltas)
    return reference.gain_normalised(policy.gain, start.tolist(), deltas, rounds)


@given(policies, vectors(6, 2))
def test_several_rounds_follow_the_textbook(policy: Outer, drawn: list[Tensor]) -> None:
    start, *changes = drawn
    learner = Learner("a", start, outer=policy)
    twin = twin_of(policy, start, changes)
    for change, expected in zip(changes, twin, strict=True):
        learner.adopt(learner.seal(learner.train(change).offer()))
        assert learner.theta.tolist() == pytest.approx(expected, rel=1e-5, abs=0.1)
        assert close(learner.weights, learner.theta)


# The norm-preserving mean


def across(first: float, second: float) -> list[Learner]:
    """Two learners of two tensors: in the first one they go across each other, in the second one
    the same way."""
    learners = []
    for name in "ab":
        anchors = Anchors(
            Layout(["v", "w"], [torch.zeros(2), torch.zeros(1)], 1),
            [torch.zeros(3)],
            codec=find_codec("none"),
            outer=Nesterov(),
            scheme="norm_preserving",
            buffers=Buffers(),
        )
        learner = Learner(name, torch.zeros(3))
        learner.anchors = anchors
        learners.append(learner)
    learners[0].train(vector(first, 0, 5))
    learners[1].train(vector(0, second, 5))
    return learners


def test_an_anchor_moves_as_far_as_its_members_did() -> None:
    a, b = across(2.0, 2.0)
    seal = b.seal(a.offer(), b.offer())
    a.adopt(seal)
    b.apply(*b.receive(seal, sealed_here=True).corrections)
    assert a.theta.tolist() == pytest.approx([-math.sqrt(2), -math.sqrt(2), -5])
    assert as_bytes(a.theta) == as_bytes(b.theta)
    assert close(a.weights, a.theta)
    assert close(b.weights, a.theta)


@pytest.mark.parametrize("gain", [0.25, 1.0])
def test_a_member_is_drawn_to_the_mean_itself_and_goes_the_anchors_step_in_full(
    gain: float,
) -> None:
    """θ ← θ + α (D − Δ̄) + (Δ̄ + Θ_new − Θ_old)."""
    a, b = across(2.0, 2.0)
    seal = b.seal(a.offer(), b.offer())
    job = Advance(seal=seal, lineage=BASE, merged_own_offer=True, gain=gain)
    before, own, mean = a.weights, vector(2, 0, 5), vector(1, 1, 5)
    a.apply(*perform(a.anchors, job).corrections)
    assert close(a.weights, before + gain * (own - mean) + (mean + a.theta))


def test_a_seal_with_a_scale_out_of_its_bounds_changes_nothing() -> None:
    a, b = across(2.0, 2.0)
    seal = b.seal(a.offer(), b.offer())
    sections = {**seal.sections, "scale": raw(vector(1.5, 1.0, 1.0))}
    forged = replace(seal, sections=sections, payload=payload_digest(sections, seal.weights))
    assert "it must be in [1, 1.41421]" in a.receive(forged).fault
    assert not a.theta.any()
    assert a.anchors.fragments[0].progress is not None


# Error feedback


def residual(learner: Learner) -> Tensor:
    held = learner.anchors.fragments[0].feedback.residual
    return torch.zeros_like(learner.theta) if held is None else held


@given(vectors(5, 40), st.lists(st.booleans(), min_size=4, max_size=4))
def test_what_was_merged_plus_the_residual_is_all_that_was_trained(
    drawn: list[Tensor], fates: list[bool]
) -> None:
    """Σ merged decodes + residual = Σ deltas, over rounds that merge the learner's offer or leave
    it out."""
    start, *changes = drawn
    learner, decoded, settled, pending = (
        Learner("a", start, "bf16"),
        torch.zeros(40),
        torch.zeros(40),
        torch.zeros(40),
    )
    other = Learner("b", start, "bf16")
    for change, merged_own_offer in zip(changes, fates, strict=True):
        offer, pending = learner.train(change).offer(), pending + change
        seal = other.seal(offer if merged_own_offer else other.offer())
        learner.adopt(seal, merged_own_offer)
        if merged_own_offer:
            decoded, settled, pending = decoded + merged(seal), settled + pending, torch.zeros(40)
    assert close(decoded + residual(learner), settled)


def test_what_bf16_lost_travels_in_the_next_offer() -> None:
    learner = Learner("a", wide(0), "bf16")
    learner.adopt(learner.seal(learner.train(wide(1 + 2**-9)).offer()))
    assert learner.theta.unique().tolist() == [-1]
    assert residual(learner).unique().tolist() == [2**-9]
    assert learner.anchors.fragments[0].feedback.encoding_error is None
    assert merged(learner.seal(learner.train(wide(2**-9)).offer())).unique().tolist() == [2**-8]


def test_an_offer_that_was_left_out_commits_no_residual() -> None:
    learner, other = Learner("a", wide(0), "bf16"), Learner("b", wide(0), "bf16")
    learner.adopt(learner.seal(learner.train(wide(1 + 2**-9)).offer()))
    before = residual(learner).clone()
    learner.train(wide(math.pi)).offer()
    learner.adopt(other.seal(other.train(wide(1)).offer()), merged_own_offer=False)
    assert torch.equal(residual(learner), before)


def test_a_residual_that_came_with_a_checkpoint_is_offered_by_an_exact_codec_too() -> None:
    """It was saved with a codec that loses, and is gone on from with one that does not."""
    learner = Learner("a", vector(0, 0))
    learner.anchors.load(0, {"anchor": vector(0, 0), "residual": vector(1, 2)})
    seal = learner.seal(learner.train(vector(3, 4)).offer())
    assert merged(seal).tolist() == [4, 6]
    learner.adopt(seal)
    assert not residual(learner).any()
    assert merged(learner.seal(learner.train(vector(5, 6)).offer())).tolist() == [5, 6]


def test_who_encodes_the_merged_once_more_keeps_what_that_lost_if_its_own_seal_was_taken() -> None:
    how = PowerSGD(rank=1, min_ratio=1, back="same")
    sealer, other = (Learner(name, torch.zeros(12, 12), how) for name in "ab")
    changes = torch.randn(2, 144, generator=torch.Generator().manual_seed(3))
    for learner, change in zip((sealer, other), changes, strict=True):
        learner.train(change)
    lost = sealer.anchors.fragments[0].payload.feedback
    assert lost is not None
    theirs = other.seal(other.offer())
    sealer.seal(sealer.offer(), other.offer())  # and nothing comes of it
    sealer.adopt(theirs, merged_own_offer=False)
    assert lost.residual is None
    other.adopt(theirs)
    seal = sealer.seal(sealer.offer(), other.train(changes[1]).offer())
    assert sealer.receive(seal, sealed_here=True).fault == ""
    assert lost.residual is not None
    assert lost.residual.any()
    assert "returned" in sealer.anchors.save(0)
    other.anchors.load(0, sealer.anchors.save(0))
    back = other.anchors.fragments[0].payload.feedback
    assert back is not None
    assert back.residual is not None
    assert torch.equal(back.residual, lost.residual)


@pytest.mark.parametrize(
    "how", [Int8(back="same"), PowerSGD(rank=2, min_ratio=1, back="same")], ids=repr
)
def test_a_restored_sealer_goes_on_with_the_same_bytes(how: Codec) -> None:
    """All that its encodings depend on is in a checkpoint, of either way."""
    old, again = (Learner("a", torch.zeros(12, 12), how) for _ in range(2))
    *before, change = torch.randn(4, 144, generator=torch.Generator().manual_seed(5))
    for earlier in before:
        old.apply(*old.receive(old.seal(old.train(earlier).offer()), sealed_here=True).corrections)
    again.anchors.load(0, old.anchors.save(0))
    again.weights = old.weights.clone()
    seals = [learner.seal(learner.train(change).offer()) for learner in (old, again)]
    assert seals[0].payload == seals[1].payload


def superseding(old: Learner, other: Learner, change: Tensor, *, whole: bool, forget: bool) -> Job:
    """The job that moves an heir of `old` on: to the whole anchor of `old`, which `other` has, or
    by a seal of what `other` trained."""
    if whole:
        other.anchors.load(0, old.anchors.save(0))
        return Install(
            states=(other.export(),), merged_own_offer=False, replace=False, forget=forget
        )
    return Advance(
        seal=other.seal(other.train(change).offer()),
        lineage=BASE,
        merged_own_offer=False,
        forget=forget,
    )


@pytest.mark.parametrize("whole", [False, True], ids=["by a seal", "by an anchor"])
def test_what_an_outlived_checkpoints_encodings_lost_is_forgotten(whole: bool) -> None:
    """Its process went on, and offered that itself."""
    old, other = Learner("a", wide(0), "bf16"), Learner("b", wide(0), "bf16")
    old.adopt(old.seal(old.train(wide(1 + 2**-9)).offer()))
    heir = Learner("a", wide(0), "bf16")
    for forget in (False, True):
        heir.anchors.load(0, old.anchors.save(0))
        assert residual(heir).any()
        job = superseding(old, other, wide(1), whole=whole, forget=forget)
        assert perform(heir.anchors, job).fault == ""
        assert residual(heir).any() == (not forget)


FACTORS = PowerSGD(rank=1, min_ratio=1)  # what it loses stays in the weights


def stayed(learner: Learner) -> Tensor:
    held = learner.anchors.fragments[0].feedback.weights_residual
    return torch.zeros_like(learner.theta) if held is None else held


def drawn_matrices(count: int) -> list[Tensor]:
    return list(torch.randn(count, 48, generator=torch.Generator().manual_seed(count)))


@given(st.lists(st.booleans(), min_size=1, max_size=6))
def test_what_stays_in_the_weights_is_the_rest_of_what_was_trained(fates: list[bool]) -> None:
    """Σ merged decodes + what stays = Σ deltas of merged offers; Θ − θ is what stays, and what is
    not merged yet."""
    learner, other = (
        Learner("a", torch.zeros(6, 8), FACTORS),
        Learner("b", torch.zeros(6, 8), FACTORS),
    )
    decoded = settled = pending = torch.zeros(48)
    for change, merged_own_offer in zip(drawn_matrices(len(fates)), fates, strict=True):
        offer, pending = learner.train(change).offer(), pending + change
        seal = other.seal(offer if merged_own_offer else other.train(change).offer())
        learner.adopt(seal, merged_own_offer)
        if merged_own_offer:
            decode = learner.anchors.fragments[0].payload.merged(seal, True, torch.empty(48))[0]
            decoded, settled, pending = decoded + decode, settled + pending, torch.zeros(48)
        assert close(decoded + stayed(learner), settled)
        assert close(learner.theta - learner.weights, stayed(learner) + pending)
    assert residual(learner).any() == 0
    assert stayed(learner).any() == any(fates)


@pytest.mark.parametrize("exact", [False, True])
def test_a_closing_offer_brings_what_was_lost_and_leaves_the_weights_on_the_anchor(
    exact: bool,
) -> None:
    learner = Learner("a", torch.zeros(6, 8), FACTORS, exact=exact)
    for change in drawn_matrices(3):
        learner.adopt(learner.seal(learner.train(change).offer()))
    lost = stayed(learner) + residual(learner)
    before = learner.theta.clone()
    seal = learner.seal(learner.offer(tokens=0, flush=True))
    learner.adopt(seal)
    assert lost.norm() > 1
    assert (learner.theta - (before - lost)).norm() <= 0.02 * lost.norm()
    assert close(learner.weights, learner.theta)
    assert not stayed(learner).any()
    assert close(learner.theta - residual(learner), before - lost)


def test_a_closing_offer_that_came_with_a_checkpoint_has_the_same_bytes() -> None:
    old, heir = (Learner("a", torch.zeros(6, 8), FACTORS) for _ in range(2))
    for change in drawn_matrices(3):
        old.adopt(old.seal(old.train(change).offer()))
    sent = old.offer(flush=True).sections["delta"]
    heir.anchors.load(0, old.anchors.save(0))
    again = perform(heir.anchors, Reoffer(0, old.seq, flush=True)).sections["delta"]
    assert (again.codec, bytes(again.data)) == (sent.codec, bytes(sent.data))
    for learner in (old, heir):
        learner.anchors.fragments[0].feedback.commit()
    assert torch.equal(residual(old), residual(heir))
    assert not stayed(heir).any()


def test_weights_that_are_replaced_become_the_anchor_but_for_what_stays() -> None:
    learner = Learner("a", torch.zeros(6, 8), FACTORS, exact=True)
    for change in drawn_matrices(3):
        learner.adopt(learner.seal(learner.train(change).offer()))
        assert stayed(learner).any()
        assert torch.equal(learner.weights, learner.theta - stayed(learner))
    learner.adopt(
        learner.seal(Learner("b", torch.zeros(6, 8), FACTORS).train(change).offer()),
        merged_own_offer=False,
    )
    assert torch.equal(learner.weights, learner.theta)
    assert not stayed(learner).any()


@pytest.mark.parametrize("whole", [False, True], ids=["by a seal", "by an anchor"])
@pytest.mark.parametrize("pending", [False, True])
def test_what_stayed_of_an_outlived_checkpoint_leaves_the_weights_unless_it_is_offered(
    whole: bool, pending: bool
) -> None:
    changes = drawn_matrices(3)
    old, other = Learner("a", torch.zeros(6, 8), FACTORS), Learner("b", torch.zeros(6, 8), FACTORS)
    old.adopt(old.seal(old.train(changes[0]).offer()))
    heir = Learner("a", torch.zeros(6, 8), FACTORS)
    heir.anchors.load(0, old.anchors.save(0))
    heir.weights = old.weights - changes[1]  # trained since
    rest = stayed(heir).clone()
    if pending:
        heir.offer()
    job = superseding(old, other, changes[2], whole=whole, forget=True)
    heir.apply(*perform(heir.anchors, job).corrections)
    assert not stayed(heir).any()
    assert rest.any()
    assert close(heir.theta - heir.weights, changes[1] + rest if pending else changes[1])


def test_a_seal_of_our_former_process_without_its_offer_leaves_what_its_encodings_lost() -> None:
    """That is in nobody's offer; but what its seals had lost is in this one."""
    how = Int8(back="same")
    old, other = Learner("a", torch.zeros(6, 8), how), Learner("b", torch.zeros(6, 8), how)
    first, second, third = drawn_matrices(3)
    seal = old.seal(old.train(first).offer())
    assert old.receive(seal, sealed_here=True).fault == ""
    heir = Learner("a", torch.zeros(6, 8), how)
    heir.anchors.load(0, old.anchors.save(0))
    rest, back = residual(heir).clone(), heir.anchors.fragments[0].payload.feedback
    assert rest.any()
    assert back is not None
    assert back.residual is not None
    seal = old.seal(other.train(second + third).offer())
    assert (
        perform(
            heir.anchors,
            Advance(seal=seal, lineage=BASE, merged_own_offer=False, sealed_by_predecessor=True),
        ).fault
        == ""
    )
    assert torch.equal(residual(heir), rest)
    assert back.residual is None


def test_what_was_beside_the_weights_is_offered_once_it_is_to_stay_in_them() -> None:
    """A checkpoint of another codec."""
    learner, (change, rest) = Learner("a", torch.zeros(6, 8), FACTORS), drawn_matrices(2)
    learner.anchors.load(0, {"anchor": torch.zeros(48), "residual": rest})
    seal = learner.seal(learner.train(change).offer())
    decoded = learner.anchors.fragments[0].payload.merged(seal, True, torch.empty(48))[0]
    learner.adopt(seal)
    assert not residual(learner).any()
    assert close(decoded + stayed(learner), change + rest)
    assert close(learner.theta - learner.weights, stayed(learner))


def test_what_a_seal_lost_is_dropped_where_others_went_on_without_us() -> None:
    how = PowerSGD(rank=1, min_ratio=1, back="same")
    sealer, other = (Learner(name, torch.zeros(12, 12), how) for name in "ab")
    sealer.train(torch.randn(144, generator=torch.Generator().manual_seed(3)))
    assert sealer.receive(sealer.seal(sealer.offer()), sealed_here=True).fault == ""
    lost = sealer.anchors.fragments[0].payload.feedback
    assert lost is not None
    assert lost.residual is not None
    perform(
        sealer.anchors, Install(states=(other.export(),), merged_own_offer=False, replace=False)
    )
    assert lost.residual is None


def test_an_exact_codec_keeps_no_residual() -> None:
    learner = Learner("a", vector(0))
    learner.adopt(learner.seal(learner.train(vector(math.pi)).offer()))
    assert not learner.anchors.fragments[0].feedback.held()


# Whole anchors


@given(policies, vectors(5, 3))
def test_a_pulled_anchor_is_the_one_that_was_sealed(policy: Outer, drawn: list[Tensor]) -> None:
    """Velocity included: the next seal takes both to the same bits."""
    start, change, again, own, elsewhere = drawn
    source, joiner = (
        Learner("a", start, outer=policy),
        Learner("b", elsewhere, outer=policy).train(own),
    )
    source.adopt(source.seal(source.train(change).offer()))
    before = joiner.weights
    (correction,) = perform(
        joiner.anchors, Install(states=(source.export(),), merged_own_offer=False, replace=False)
    ).corrections
    joiner.apply(correction)
    assert torch.equal(joiner.theta, source.theta)
    assert close(joiner.weights, before + (source.theta - elsewhere))
    seal = source.seal(source.train(again).offer())
    source.adopt(seal)
    joiner.adopt(seal, merged_own_offer=False)
    assert torch.equal(joiner.theta, source.theta)


@given(vectors(4, 3))
def test_a_pulled_anchor_that_merged_the_pending_offer_keeps_only_what_came_after(
    drawn: list[Tensor],
) -> None:
    start, change, later, other = drawn
    source, learner = Learner("a", start).train(other), Learner("b", start).train(change)
    source.adopt(source.seal(source.offer(), learner.offer()))
    learner.train(later)
    (correction,) = perform(
        learner.anchors, Install(states=(source.export(),), merged_own_offer=True, replace=False)
    ).corrections
    learner.apply(correction)
    assert close(learner.weights, source.theta - later)
    assert learner.anchors.fragments[0].progress is None


def test_replacement_drops_progress_and_residual() -> None:
    source, learner = Learner("a", wide(5), "bf16"), Learner("b", wide(0), "bf16")
    learner.adopt(learner.seal(learner.train(wide(1 + 2**-9)).offer()))
    learner.train(wide(math.pi)).offer()
    (correction,) = perform(
        learner.anchors, Install(states=(source.export(),), merged_own_offer=False, replace=True)
    ).corrections
    learner.apply(correction)
    anchors = learner.anchors
    assert learner.weights.unique().tolist() == [5]
    assert (anchors.fragments[0].progress, anchors.fragments[0].feedback.held()) == (None, {})


def test_a_seal_in_doubt_replaces_the_weights_and_drops_progress_and_residual() -> None:
    source, learner = Learner("a", wide(0)), Learner("b", wide(0), "bf16", exact=True)
    learner.adopt(learner.seal(learner.train(wide(1 + 2**-9)).offer()))
    learner.train(wide(math.pi)).offer()
    before = learner.theta.clone()
    (correction,) = learner.receive(
        source.seal(source.train(wide(3)).offer()), merged_own_offer=False
    ).corrections
    learner.apply(correction)
    anchors = learner.anchors
    assert correction.replace
    assert torch.equal(learner.weights, before - 3)
    assert torch.equal(learner.theta, learner.weights)
    assert (anchors.fragments[0].progress, anchors.fragments[0].feedback.held()) == (None, {})


def test_an_export_is_a_copy() -> None:
    learner = Learner("a", vector(0))
    state = learner.export()
    learner.adopt(learner.seal(learner.train(vector(1)).offer()))
    assert decode_packet(state.sections["anchor"], [(1,)]).item() == 0


def test_the_weights_of_a_lone_learner_become_its_anchor() -> None:
    learner = Learner("a", wide(0), "bf16")
    learner.adopt(learner.seal(learner.train(wide(1 + 2**-9)).offer()))
    done = perform(learner.anchors, Found((wide(3),)))
    assert learner.theta.unique().tolist() == [3]
    assert done.digest == Learner("b", wide(3)).anchors.digest()
    assert not learner.anchors.fragments[0].feedback.held()


def test_the_genesis_depends_on_every_fragment() -> None:
    def genesis(*values: float) -> bytes:
        start = [vector(v) for v in values]
        return Anchors(
            Layout(["v", "w"], start, 2),
            start,
            codec=find_codec("none"),
            outer=CLASSIC,
            scheme="mean",
            buffers=Buffers(),
        ).genesis()

    assert genesis(1, 2) == genesis(1, 2)
    assert len({genesis(1, 2), genesis(1, 3), genesis(0, 2), genesis(2, 1)}) == 4


def test_a_model_of_empty_tensors_has_anchors_too() -> None:
    learner = Learner("a", torch.empty(0), outer=CLASSIC)
    learner.adopt(learner.seal(learner.offer()))
    assert (
        perform(
            learner.anchors,
            Install(states=(learner.export(),), merged_own_offer=False, replace=True),
        ).fault
        == ""
    )


# Garbage


def seal_with(values: Tensor, payload: bytes | None = None) -> Seal:
    """A seal of these merged bytes, with the digest that fits them unless told otherwise."""
    packet = raw(values)
    digest = payload or short_digest(packet.data)
    return Seal(
        sealer=PeerId("x", 1),
        fragment=0,
        base=BASE.digest,
        key=BASE.key,
        members=(),
        weights=(),
        absent=(),
        reason="",
        payload=digest,
        sections={"merged": packet},
    )


def test_a_merge_that_overflows_is_void() -> None:
    learners = [Learner(name, vector(0, 0)) for name in "ab"]
    offers = tuple(x.train(vector(-8e37, 0)).offer() for x in learners)
    done = perform(
        learners[0].anchors, Merge(fragment=0, base=BASE, offers=offers, weights=(4.0, 4.0))
    )
    assert done.fault == "Merged delta is not finite"


SEALS = {
    "another digest": lambda: seal_with(vector(1, 2), payload=b"another"),
    "nan": lambda: seal_with(vector(1, math.nan)),
    "infinity": lambda: seal_with(vector(math.inf, 1)),
    "too long": lambda: seal_with(vector(1, 2, 3)),
    "too short": lambda: seal_with(vector(1)),
    "nothing": lambda: replace(seal_with(vector(1, 2)), sections={}),
    "another codec": lambda: replace(
        seal_with(vector(1, 2)), sections={"merged": Packet("zip", 2, memoryview(bytes(8)))}
    ),
}


def contents(learner: Learner) -> list[bytes]:
    held: list[Tensor | None] = []
    for part in learner.anchors.fragments:
        held += [part.theta, part.velocity.b, part.progress, *part.feedback.held().values()]
    return [b"" if tensor is None else bytes(as_bytes(tensor)) for tensor in held]


def test_an_honest_seal_is_taken() -> None:
    """So that the refusals below are for the reason they name."""
    learner = Learner("a", vector(0, 0))
    assert learner.receive(seal_with(vector(1, 2)), merged_own_offer=False).fault == ""
    assert learner.theta.tolist() == [-1, -2]


@pytest.mark.parametrize("kind", SEALS)
def test_a_refused_seal_changes_no_bit(kind: str) -> None:
    learner = Learner("a", vector(0, 0), outer=CLASSIC).train(vector(1, math.pi))
    learner.offer()
    before = contents(learner)
    done = learner.receive(SEALS[kind]())
    assert done.fault != ""
    assert done.corrections == ()
    assert contents(learner) == before


def missed(*_: object) -> None:
    raise RuntimeError("size 8256 beside 17")


@pytest.mark.parametrize("kind", ["inspect", "merge", "advance", "install"])
def test_what_the_checks_miss_is_a_fault_and_ends_no_thread(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The moments' checks stand for any."""
    learner, other = (Learner(name, vector(0, 0)) for name in "ab")
    offer, seal, anchor = other.offer(), seal_with(vector(1, 2)), other.export()
    before = contents(learner)
    for check in ("check", "average"):
        monkeypatch.setattr(MomentMeans, check, missed)
    jobs = {
        "inspect": Inspect(offer),
        "merge": Merge(fragment=0, base=BASE, offers=(offer,), weights=(1.0,)),
        "install": Install(states=(anchor,), merged_own_offer=False, replace=True),
    }
    done = (
        learner.receive(seal, False) if kind == "advance" else perform(learner.anchors, jobs[kind])
    )
    assert done.fault == "RuntimeError: size 8256 beside 17"
    assert contents(learner) == before


@pytest.mark.parametrize(
    ("rate", "words"),
    [
        (None, "section 'rate' is missing"),
        (vector(-1, 1), "Rate of the round is -1.0"),
        (vector(1, 2), "Decay of the velocity is 2.0"),
    ],
)
def test_a_seal_without_good_rates_is_refused(rate: Tensor | None, words: str) -> None:
    learner, sealer = (Learner(name, vector(0, 0), outer=STEADY) for name in "ab")
    seal = sealer.seal(sealer.train(vector(1, 2)).offer())
    sections = {name: packet for name, packet in seal.sections.items() if name not in (RATE, SIZES)}
    if rate is not None:
        sections[RATE] = raw(rate)
    before = contents(learner)
    payload = payload_digest(sections, seal.weights)
    done = learner.receive(replace(seal, sections=sections, payload=payload), False)
    assert words in done.fault
    assert contents(learner) == before
    assert learner.anchors.fragments[0].velocity.s == 0


def test_the_payload_has_the_rates_in_it() -> None:
    learner, sealer = (Learner(name, vector(0, 0), outer=STEADY) for name in "ab")
    seal = sealer.seal(sealer.train(vector(1, 2)).offer())
    other = replace(seal, sections={**seal.sections, RATE: raw(vector(1, 0.5))})
    assert "do not match the digest" in learner.receive(other, False).fault
    assert learner.receive(seal, False).fault == ""


@pytest.mark.parametrize("policy", [CLASSIC, STEADY])
def test_a_founded_anchor_begins_its_velocity_anew(policy: Outer) -> None:
    learner = Learner("a", vector(0, 0), outer=policy)
    learner.adopt(learner.seal(learner.train(vector(1, 2)).offer()))
    velocity = learner.anchors.fragments[0].velocity
    assert velocity.b is not None
    assert velocity.b.tolist() == [1, 2]
    assert perform(learner.anchors, Found((vector(3, 4),))).fault == ""
    assert (velocity.b.tolist(), velocity.s) == ([0, 0], 0)


def changed(state: State, name: str, tensor: Tensor | None) -> State:
    """Another tensor in one section, with a digest that fits: a broken but consistent peer would
    send this."""
    sections = {key: packet for key, packet in state.sections.items() if key != name}
    if tensor is not None:
        sections[name] = raw(tensor)
    content = short_digest(*(packet.data for _, packet in sorted(sections.items())))
    return replace(state, sections=sections, content=content)


STATES = {
    "another digest": lambda state: replace(state, content=b"another"),
    "nan": lambda state: changed(state, "anchor", vector(1, math.nan)),
    "nan velocity": lambda state: changed(state, "velocity", vector(1, math.nan)),
    "too long": lambda state: changed(state, "anchor", vector(1, 2, 3)),
    "no velocity": lambda state: changed(state, "velocity", None),
    "no anchor": lambda state: changed(state, "anchor", None),
    "no rate": lambda state: changed(state, "velocity_rate", None),
    "nan rate": lambda state: changed(state, "velocity_rate", vector(math.nan)),
}


def test_a_state_with_a_section_changed_consistently_is_taken() -> None:
    """So that the refusals below are for the reason they name."""
    learner = Learner("a", vector(0, 0), outer=CLASSIC)
    state = changed(learner.export(), "anchor", vector(7, 8))
    assert (
        perform(
            learner.anchors, Install(states=(state,), merged_own_offer=False, replace=False)
        ).fault
        == ""
    )
    assert learner.theta.tolist() == [7, 8]


@pytest.mark.parametrize("kind", STATES)
@pytest.mark.parametrize("replacing", [False, True])
def test_a_refused_state_changes_no_bit(kind: str, replacing: bool) -> None:
    learner, source = (
        Learner(name, vector(0, 0), outer=STEADY).train(vector(1, 2)) for name in "ab"
    )
    learner.offer()
    source.adopt(source.seal(source.offer()))
    before = contents(learner)
    done = perform(
        learner.anchors,
        Install(
            states=(STATES[kind](source.export()),),
            merged_own_offer=not replacing,
            replace=replacing,
        ),
    )
    assert done.fault != ""
    assert contents(learner) == before


def test_of_several_states_none_is_taken_if_one_is_refused() -> None:
    def anchors(*values: float) -> Anchors:
        start = [vector(v) for v in values]
        return Anchors(
            Layout(["v", "w"], start, 2),
            start,
            codec=find_codec("none"),
            outer=Nesterov(),
            scheme="mean",
            buffers=Buffers(),
        )

    source, learner = anchors(1, 2), anchors(0, 0)
    copies = [perform(source, Export(p, BASE)) for p in range(2)]
    states = [
        State(peer=PeerId("a", 1), fragment=p, lineage=BASE, content=d.digest, sections=d.sections)
        for p, d in enumerate(copies)
    ]
    bad = replace(states[1], content=b"no")
    done, _ = learner.perform(
        Install(states=(states[0], bad), merged_own_offer=False, replace=True)
    )
    assert done.fault == "Anchor's bytes do not match the digest that came with them"
    assert done.refused == 1
    assert [part.theta.item() for part in learner.fragments] == [0, 0]


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_weights_that_are_not_finite_are_neither_offered_nor_founded(value: float) -> None:
    learner = Learner("a", vector(0))
    before = contents(learner)
    assert (
        perform(learner.anchors, Prepare(fragment=0, seq=1, tensor=vector(value))).fault
        == "its parameters are not finite"
    )
    assert (
        perform(learner.anchors, Found((vector(value),))).fault == "its parameters are not finite"
    )
    assert contents(learner) == before


@pytest.mark.parametrize(
    ("values", "fault"),
    [
        (vector(1, 2), ""),
        (vector(1, math.nan), "Values are not finite, or too large to be merged"),
        (vector(-math.inf, 1), "Values are not finite, or too large to be merged"),
        (vector(1), "Packet has 1 elements in 4 bytes; 2 elements in at most 8 bytes are needed"),
    ],
)
def test_inspection_of_an_offer(values: Tensor, fault: str) -> None:
    learner = Learner("a", vector(0, 0))
    offer = replace(learner.nothing(), sections={"delta": raw(values)})
    assert perform(learner.anchors, Inspect(offer)).fault == fault


# Corrections that wait for the training thread


@given(vectors(3, 3), st.booleans(), st.booleans())
def test_stacked_corrections_do_what_both_would_have_done(
    drawn: list[Tensor], first: bool, second: bool
) -> None:
    weights, older, newer = drawn
    one, two = Learner("a", weights), Learner("b", weights)
    corrections = [Correction(0, older.clone(), first), Correction(0, newer.clone(), second)]
    for correction in corrections:
        one.apply(correction)
    two.apply(stack(stack(None, corrections[0]), corrections[1]))
    assert close(one.weights, two.weights)
    assert stack(*corrections).replace == (first or second)
