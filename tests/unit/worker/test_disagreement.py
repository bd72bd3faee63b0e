"""Late adoption with a gain, and offers of a share: a learner's weights are its anchor, less its
disagreement and its own work, whatever happens; and nobody else sees anything of a disagreement."""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import NamedTuple

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from mend_optim.codecs.buffers import Buffers
from mend_optim.codecs.powersgd import PowerSGD
from mend_optim.codecs.registry import Codec, find_codec
from mend_optim.engine.effects import Advance, Agree, Found, Install, Job, Merge, Prepare, Reoffer
from mend_optim.model.layout import Layout
from mend_optim.protocol.messages import SCALE, Offer, Seal
from mend_optim.worker.anchors import Anchors
from mend_optim.worker.fragment_anchor import FragmentAnchor
from mend_optim.worker.outer import DiLoCoNesterov, Nesterov, Outer, offered, with_rest
from tests import reference
from tests.support.depth import many
from tests.support.engines import BASE
from tests.support.jobs import LoneFragment, perform

SHAPE = (6, 8)
NUMEL = 48
CODECS: dict[str, Codec] = {
    "none": find_codec("none"),
    "int8": find_codec("int8"),
    "powersgd": PowerSGD(rank=1, min_ratio=1),
}
#: Of one to three members. Sums of these are exact in float32.
WEIGHTS = ((1.0,), (0.5, 0.5), (0.5, 0.25, 0.25))
MEMBERS = ("seal", "whole anchor")


class Learner(LoneFragment):
    """One fragment of one learner: its weights, and the work in them that no anchor has."""

    def __init__(
        self, name: str, codec: Codec, outer: Outer = Nesterov(), scheme: str = "mean"
    ) -> None:
        start = torch.zeros(SHAPE)
        anchors = Anchors(
            Layout(["w"], [start], 1),
            [start.flatten().clone()],
            codec=codec,
            outer=outer,
            scheme=scheme,
            buffers=Buffers(),
        )
        super().__init__(name, anchors)
        self.weights = start.flatten()
        self.offered, self.later = torch.zeros(NUMEL), torch.zeros(NUMEL)
        self.pending: Offer | None = None
        self.share = 1.0

    @property
    def fragment(self) -> FragmentAnchor:
        return self.anchors.fragments[0]

    @property
    def disagreement(self) -> Tensor:
        held = self.fragment.disagreement
        return torch.zeros(NUMEL) if held is None else held

    @property
    def stays(self) -> Tensor:
        """The residual of the codec in the weights."""
        held = self.fragment.feedback.weights_residual
        return torch.zeros(NUMEL) if held is None else held

    def train(self, change: Tensor) -> None:
        self.weights = self.weights - change
        self.later = self.later + change

    def offer(self, flush: bool = False, share: float = 1.0) -> Offer:
        """The pending offer, or a new one of this share of all work."""
        if self.pending is None:
            copy, self.share = self.weights.clone(), share
            job = Prepare(fragment=0, seq=1, tensor=copy, flush=flush, share=share)
            self.pending = self.offer_from(job)
            self.offered, self.later = self.later, torch.zeros(NUMEL)
        return self.pending

    def jump(self, change: Tensor) -> None:
        """The user loads other weights, and drops the work that no offer holds."""
        self.weights = self.weights + change
        self.fragment.begin_anew(self.weights.clone(), keeps_offer=self.pending is not None)
        self.later = torch.zeros(NUMEL)
        # The rest of what was offered is in the weights no more.
        self.offered, self.share = self.share * self.offered, 1.0

    def take(self, job: Job) -> None:
        done = perform(self.anchors, job)
        assert done.fault == ""
        (correction,) = done.corrections
        assert not correction.replace
        self.weights = self.weights + correction.values

    def merged(self) -> None:
        self.pending, self.offered = None, torch.zeros(NUMEL)

    def adopt(self, seal: Seal, *, merged: bool, gain: float = 1.0, forget: bool = False) -> None:
        if forget and self.pending:
            # It came with a checkpoint, and others have merged it. The offer takes it out.
            self.offered = self.offered + self.stays
        job = Advance(seal=seal, lineage=BASE, merged_own_offer=merged, gain=gain, forget=forget)
        self.take(job)
        if merged:
            self.merged()

    def pull(self, source: Learner, *, merged: bool, gain: float = 1.0) -> None:
        states = (source.export(),)
        self.take(Install(states=states, merged_own_offer=merged, replace=False, gain=gain))
        if merged:
            self.merged()

    def check(self) -> None:
        """θ = Θ − R − unmerged work − the residual in the weights."""
        rest = self.disagreement + self.offered + self.later + self.stays
        torch.testing.assert_close(self.weights, self.fragment.theta - rest, rtol=0, atol=2e-3)


class Turn(NamedTuple):
    """The part of one learner in one round."""

    #: "seal": a member that takes the seal; "whole anchor": one that takes the anchor instead;
    #: "missed": its offer is not merged; "idle": it makes none.
    part: str
    gain: float
    #: Whether a learner that is not a member takes the whole anchor.
    pulls: bool
    #: The share of a new offer.
    share: float = 1.0
    #: Whether a learner that is not a member gives up the codec's residual.
    forgets: bool = False


turns = st.builds(
    Turn,
    part=st.sampled_from([*MEMBERS, "missed", "idle"]),
    gain=st.sampled_from([1.0, 0.5, 0.25]),
    pulls=st.booleans(),
    share=st.sampled_from([1.0, 0.5, 0.25]),
    forgets=st.booleans(),
)
# The first learner always is a member that takes the seal.
firsts = turns.map(lambda turn: turn._replace(part="seal"))
scripts = st.lists(st.tuples(firsts, turns, turns, st.booleans()), min_size=1, max_size=5)


class Play:
    """Three learners that play a script, with its gains or without any."""

    def __init__(self, codec: Codec, seed: int, gains: bool = True) -> None:
        self.learners = [Learner(name, codec) for name in "abc"]
        self.random, self.gains = torch.Generator().manual_seed(seed), gains
        self.flushes = codec.residual_in_weights
        #: Copies of all offers' bytes and of all anchors.
        self.seen: list[bytes] = []

    def work(self) -> None:
        for learner in self.learners:
            change = torch.randint(-4, 5, (NUMEL,), generator=self.random)
            learner.train(change.float())

    def round(self, turns: tuple[Turn, ...]) -> None:
        self.work()
        pairs = list(zip(self.learners, turns, strict=True))
        offers = [learner.offer(share=turn.share) for learner, turn in pairs if turn.part != "idle"]
        copies = [bytes(offer.sections["delta"].data) for offer in offers]
        members = tuple(learner.offer() for learner, turn in pairs if turn.part in MEMBERS)
        seal = seal_of(self.learners[0], members)
        self.work()
        for learner, turn in pairs:
            merged, gain = turn.part in MEMBERS, turn.gain if self.gains else 1.0
            if turn.part == "whole anchor" or (turn.pulls and not merged):
                learner.pull(self.learners[0], merged=merged)
            else:
                forgets = turn.forgets and not merged
                learner.adopt(seal, merged=merged, gain=gain if merged else 1.0, forget=forgets)
            learner.check()
        assert [bytes(offer.sections["delta"].data) for offer in offers] == copies
        self.seen += [*copies, *(theta.numpy().tobytes() for theta in self.anchors)]

    def agree(self) -> None:
        for learner in self.learners:
            learner.take(Agree(0))
            learner.check()

    def rest(self) -> None:
        """Two rounds of all: the first one may merge offers that were pending."""
        for _ in range(2):
            offers = tuple(learner.offer(flush=self.flushes) for learner in self.learners)
            seal = seal_of(self.learners[0], offers)
            for learner in self.learners:
                learner.adopt(seal, merged=True)
        self.agree()

    @property
    def anchors(self) -> list[Tensor]:
        return [learner.fragment.theta for learner in self.learners]


def seal_of(sealer: Learner, offers: tuple[Offer, ...]) -> Seal:
    weights = WEIGHTS[len(offers) - 1]
    return sealer.seal_from(Merge(fragment=0, base=BASE, offers=offers, weights=weights))


def played(codec: str, script: list[tuple[Turn, Turn, Turn, bool]], seed: int, gains: bool) -> Play:
    play = Play(CODECS[codec], seed, gains)
    for *turns, agrees in script:
        play.round(tuple(turns))
        if agrees:
            play.agree()
    return play


SEEDS = st.integers(0, 2**32 - 1)


@pytest.mark.parametrize("codec", CODECS)
@settings(max_examples=many(8, 20))  # of each codec
@given(script=scripts, seed=SEEDS)
def test_weights_are_the_anchor_less_the_disagreement_and_unmerged_work(
    codec: str, script: list[tuple[Turn, Turn, Turn, bool]], seed: int
) -> None:
    """After each round, and after rest they are the anchor."""
    play = played(codec, script, seed, gains=True)
    play.rest()
    for learner in play.learners:
        assert learner.fragment.disagreement is None
        torch.testing.assert_close(learner.weights, play.anchors[0], rtol=0, atol=2e-3)


@settings(max_examples=many(25, 40))
@given(script=scripts, seed=SEEDS)
def test_offers_and_anchors_are_the_same_to_the_bit_whatever_the_gains(
    script: list[tuple[Turn, Turn, Turn, bool]], seed: int
) -> None:
    """The work is in small integers and the gains are powers of 2, so that no sum is rounded."""
    play = played("none", script, seed, gains=True)
    assert play.seen == played("none", script, seed, gains=False).seen
    play.rest()
    assert all(torch.equal(learner.weights, play.anchors[0]) for learner in play.learners)


@pytest.mark.parametrize("codec", CODECS)
@settings(max_examples=many(8, 20))  # of each codec
@given(script=scripts, seed=SEEDS, jumps=st.lists(st.integers(0, 2), min_size=1, max_size=5))
def test_other_weights_are_a_disagreement_whatever_is_on_its_way(
    codec: str, script: list[tuple[Turn, Turn, Turn, bool]], seed: int, jumps: list[int]
) -> None:
    """Its twin drops the same work and stays where it is. So no anchor has anything of a jump:
    without a codec that rounds, to the bit."""
    far = torch.full((NUMEL,), 1024.0)
    found = []
    for change in (far, torch.zeros(NUMEL)):
        play = Play(CODECS[codec], seed)
        for (*turns, _), who in zip(script, itertools.cycle(jumps), strict=False):
            play.round(tuple(turns))
            play.learners[who].jump(change)
            play.learners[who].check()
        play.rest()
        found.append(play.anchors[0].clone())
        for learner in play.learners:
            assert learner.fragment.disagreement is None
            torch.testing.assert_close(learner.weights, play.anchors[0], rtol=0, atol=4e-3)
    assert codec != "none" or torch.equal(*found)
    assert all(anchor.abs().max() < 200 for anchor in found)


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("gain", [1.0, 0.25])
def test_a_residual_that_is_given_up_was_in_the_offer_on_its_way(codec: str, gain: float) -> None:
    """The rest of the delta is a disagreement once the offer is merged, and the residual no part of
    it."""
    member = Turn("seal", gain=gain, pulls=False)
    forgetful = Turn("missed", gain=gain, pulls=False, share=0.25, forgets=True)
    script = [(member, turn, member, False) for turn in (member, forgetful, member)]
    play = played(codec, script, seed=1, gains=True)
    play.rest()
    for learner in play.learners:
        torch.testing.assert_close(learner.weights, play.anchors[0], rtol=0, atol=2e-3)


# One step at a time


def vector(value: float) -> Tensor:
    return torch.full((NUMEL,), value)


def late(gain: float = 0.25) -> tuple[Learner, Learner]:
    """Two learners after a round of 2 and 6 that the first adopted by this gain."""
    a, b = (Learner(name, CODECS["none"]) for name in "ab")
    a.train(vector(2.0))
    b.train(vector(6.0))
    seal = seal_of(b, (a.offer(), b.offer()))
    a.adopt(seal, merged=True, gain=gain)
    b.adopt(seal, merged=True)
    return a, b


def test_a_late_member_goes_by_its_gain_towards_the_mean_and_keeps_the_rest() -> None:
    a, b = late(0.25)
    assert torch.equal(a.disagreement, 0.75 * vector(2.0 - 4.0))
    assert (a.weights.unique().item(), b.weights.unique().item()) == (-2.5, -4.0)
    assert (a.fragment.theta.unique().item(), b.fragment.disagreement) == (-4.0, None)


@pytest.mark.parametrize("pulls", [False, True])
def test_a_late_member_disagrees_with_the_mean_times_the_headway(pulls: bool) -> None:
    """The anchor moves by ρ = 1.25 times the mean of 8 and 2. So the fast member is ahead of it by
    8 − 6.25, not by 8 − 5; also if it takes the whole anchor."""
    a, b = (Learner(name, CODECS["none"], scheme="norm_preserving") for name in "ab")
    a.train(vector(8.0))
    b.train(vector(2.0))
    job = Merge(fragment=0, base=BASE, offers=(a.offer(), b.offer()), weights=(0.5, 0.5))
    seal = b.seal_from(replace(job, headway=1.25))
    b.adopt(seal, merged=True)
    if pulls:
        a.pull(b, merged=True, gain=0.25)
    else:
        a.adopt(seal, merged=True, gain=0.25)
    assert a.fragment.theta.unique().item() == -6.25
    assert a.disagreement.unique().item() == 0.75 * (8 - 6.25)
    a.check()


def test_the_next_round_draws_the_rest_of_the_disagreement_too() -> None:
    """D = Δ + R = 8 − 1.5, and the mean is 6."""
    a, b = late(0.25)
    a.train(vector(8.0))
    b.train(vector(4.0))
    a.adopt(seal_of(b, (a.offer(), b.offer())), merged=True, gain=0.5)
    rest, given_up = reference.kept([6.5], [6.0], 0.5)
    assert a.disagreement.unique().tolist() == rest == [0.25]
    assert a.weights.unique().item() == -2.5 - 8 - 6 + given_up[0] == -10.25


def test_with_outer_momentum_a_late_member_stays_behind_the_step_of_the_anchor() -> None:
    """θ ← θ + U + D − (1 − α) (D + U), with U = Θ_new − Θ_old."""
    outer = DiLoCoNesterov(lr=0.5, momentum=0.5)
    a, b = Learner("a", CODECS["none"], outer), Learner("b", CODECS["none"], outer)
    a.train(vector(2.0))
    b.train(vector(6.0))
    a.adopt(seal_of(b, (a.offer(), b.offer())), merged=True, gain=0.25)
    assert a.fragment.theta.unique().item() == -0.5 * (4 + 0.5 * 4)
    assert a.weights.unique().item() == -2 + (-3 + 2) - 0.75 * (2 - 3)
    a.check()


def test_the_rest_of_a_share_is_in_no_offer_and_is_given_up_with_the_merge() -> None:
    a, b = (Learner(name, CODECS["none"]) for name in "ab")
    a.train(vector(8.0))
    b.train(vector(2.0))
    seal = seal_of(b, (a.offer(share=0.25), b.offer()))
    a.train(vector(1.0))
    a.adopt(seal, merged=True)
    assert a.fragment.theta.unique().item() == -(0.25 * 8 + 2) / 2
    assert a.fragment.disagreement is None
    assert a.weights.unique().item() == -2 - 1


def test_of_the_rest_of_a_share_a_late_member_gives_up_its_gain() -> None:
    """D is the whole delta of 8: R = (1 − α) (8 − 2)."""
    a, b = (Learner(name, CODECS["none"]) for name in "ab")
    a.train(vector(8.0))
    b.train(vector(2.0))
    a.adopt(seal_of(b, (a.offer(share=0.25), b.offer())), merged=True, gain=0.5)
    rest, _ = reference.kept([8.0], [2.0], 0.5)
    assert a.disagreement.unique().tolist() == rest == [3.0]
    a.check()


def test_an_offer_of_a_share_that_is_not_merged_takes_nothing_from_the_next_one() -> None:
    """Only a merge gives the rest up."""
    a, b = (Learner(name, CODECS["none"]) for name in "ab")
    a.train(vector(8.0))
    assert a.offer(share=0.25).sections["delta"].data
    a.pending, a.later, a.offered = None, a.offered, vector(0.0)
    b.train(vector(2.0))
    a.adopt(seal_of(b, (b.offer(), a.offer())), merged=True)
    assert a.fragment.theta.unique().item() == -(8 + 2) / 2


def test_an_offer_of_a_share_that_came_with_a_checkpoint_leaves_no_rest() -> None:
    a, b, heir = (Learner(name, CODECS["none"]) for name in "aba")
    a.train(vector(8.0))
    b.train(vector(2.0))
    offer = a.offer(share=0.25)
    heir.anchors.load(0, a.anchors.save(0))
    heir.weights = a.weights.clone()
    assert perform(heir.anchors, Reoffer(0, 1, share=0.25)).sections == offer.sections
    heir.adopt(seal_of(b, (offer, b.offer())), merged=True)
    assert heir.fragment.disagreement is None
    assert torch.equal(heir.weights, heir.fragment.theta)


def test_weights_that_the_user_replaces_meanwhile_hold_no_rest_of_a_share() -> None:
    """The seal may be on its way already: its merge takes out what the offer has, and no more."""
    a, b = (Learner(name, CODECS["none"]) for name in "ab")
    a.train(vector(8.0))
    b.train(vector(2.0))
    seal = seal_of(b, (a.offer(share=0.25), b.offer()))
    a.jump(vector(100.0))
    a.adopt(seal, merged=True)
    assert a.fragment.disagreement is None
    assert torch.equal(a.weights, a.fragment.theta)


def test_the_residual_of_former_offers_is_offered_in_full() -> None:
    """It is no work beside the missed rounds."""
    residual = vector(3.0)
    part = offered(vector(11.0), vector(2.0), residual, 0.25)
    assert part.unique().item() == 0.25 * (11 - 2 - 3) + 3
    rest = with_rest(None, part, residual, 0.25)
    assert rest is not None
    assert rest.unique().item() == 0.75 * (11 - 2 - 3)


@pytest.mark.parametrize("relayed", [False, True])
def test_a_whole_anchor_leaves_the_same_disagreement_as_its_seal_to_the_bit(relayed: bool) -> None:
    """Also one that was handed on by a learner that took it whole itself."""
    random = torch.Generator().manual_seed(0)
    changes = [torch.randn(NUMEL, generator=random) for _ in range(2)]
    one, other, sealer, third = (
        Learner(name, CODECS["none"], scheme="norm_preserving") for name in "aabc"
    )
    for learner, change in ((one, changes[0]), (other, changes[0]), (sealer, changes[1])):
        learner.train(change)
    offers = (one.offer(), sealer.offer())
    assert other.offer() == offers[0]
    seal = seal_of(sealer, offers)
    assert SCALE in seal.sections
    sealer.adopt(seal, merged=True)
    one.adopt(seal, merged=True, gain=0.25)
    third.pull(sealer, merged=False)
    other.pull(third if relayed else sealer, merged=True, gain=0.25)
    assert torch.equal(one.disagreement, other.disagreement)
    assert torch.equal(one.weights, other.weights)
    assert other.disagreement.any()
    other.check()


@pytest.mark.parametrize("scheme", ["mean", "norm_preserving"])
@settings(max_examples=many(8, 20))  # of each scheme
@given(seed=SEEDS, gain=st.sampled_from([0.0, 0.3, 0.5]), rounds=st.integers(1, 4))
def test_the_disagreements_of_members_with_one_gain_sum_to_zero(
    scheme: str, seed: int, gain: float, rounds: int
) -> None:
    """Σ wᵢ Rᵢ = 0: late adoption is exact in the sum over the members."""
    random = torch.Generator().manual_seed(seed)
    learners = [Learner(name, CODECS["none"], scheme=scheme) for name in "abc"]
    for _ in range(rounds):
        for learner in learners:
            learner.train(torch.randint(-4, 5, (NUMEL,), generator=random).float())
        seal = seal_of(learners[0], tuple(learner.offer() for learner in learners))
        for learner in learners:
            learner.adopt(seal, merged=True, gain=gain)
            learner.check()
        held = [w * x.disagreement for w, x in zip(WEIGHTS[2], learners, strict=True)]
        torch.testing.assert_close(sum(held), torch.zeros(NUMEL), rtol=0, atol=1e-4)
    assert any(bool(learner.disagreement.any()) for learner in learners)


def test_the_whole_correction_ends_a_disagreement() -> None:
    a, b = late()
    a.train(vector(1.0))
    a.adopt(seal_of(b, (a.offer(),)), merged=True, gain=1.0)
    assert a.fragment.disagreement is None
    assert torch.equal(a.weights, a.fragment.theta)


def test_a_seal_without_our_offer_leaves_the_disagreement() -> None:
    a, b = late()
    before = a.disagreement.clone()
    b.train(vector(1.0))
    a.adopt(seal_of(b, (b.offer(),)), merged=False)
    assert torch.equal(a.disagreement, before)
    a.check()


def test_a_disagreement_is_given_up_once() -> None:
    a, b = late()
    a.take(Agree(0))
    assert torch.equal(a.weights, b.fragment.theta)
    a.take(Agree(0))
    assert torch.equal(a.weights, b.fragment.theta)


def test_a_disagreement_in_no_fragment_gives_a_correction_of_zero() -> None:
    a, _ = late(1.0)
    (correction,) = perform(a.anchors, Agree(0)).corrections
    assert not correction.values.any()


def test_weights_that_are_founded_are_taken_without_the_disagreement() -> None:
    """It stays in the weights, and the anchor has the work alone."""
    a, _ = late(0.25)
    a.train(vector(1.0))
    before = a.disagreement.clone()
    assert perform(a.anchors, Found((a.weights.clone(),), ())).fault == ""
    a.later = vector(0.0)
    assert a.fragment.theta.unique().item() == -4.0 - 1.0
    assert torch.equal(a.disagreement, before)
    a.check()


@pytest.mark.parametrize("whole", [False, True], ids=["by a seal", "by an anchor"])
@pytest.mark.parametrize("merged", [False, True])
def test_weights_that_are_replaced_hold_no_disagreement(whole: bool, merged: bool) -> None:
    a, b = late()
    a.train(vector(1.0))
    seal = seal_of(b, (a.offer(),))
    b.adopt(seal, merged=False)
    job: Job = Advance(seal=seal, lineage=BASE, merged_own_offer=merged, replace=True)
    if whole:
        job = Install(states=(b.export(),), merged_own_offer=merged, replace=True)
    (correction,) = perform(a.anchors, job).corrections
    assert correction.replace
    assert torch.equal(correction.values, b.fragment.theta)
    assert a.fragment.disagreement is None


def test_a_checkpoint_keeps_a_copy_of_the_disagreement() -> None:
    a, b = late()
    saved = a.anchors.save(0)
    b.anchors.load(0, saved)
    expected = a.disagreement.clone()
    a.fragment.disagreement = None
    saved["disagreement"].zero_()
    assert torch.equal(b.disagreement, expected)
    b.anchors.load(0, {"anchor": vector(0.0)})
    assert b.fragment.disagreement is None


def test_a_refused_seal_changes_no_disagreement() -> None:
    a, b = late()
    a.train(vector(1.0))
    offer = a.offer()
    seal = seal_of(b, (offer,))
    before, anchor = a.disagreement.clone(), a.fragment.theta.clone()
    sections = {name: Learner("c", CODECS["none"]).offer().sections["delta"] for name in "0"}
    forged = replace(seal, sections=sections)
    done = perform(a.anchors, Advance(seal=forged, lineage=BASE, merged_own_offer=True, gain=0.5))
    assert "digest" in done.fault
    assert torch.equal(a.disagreement, before)
    assert torch.equal(a.fragment.theta, anchor)
    assert a.fragment.progress is not None
