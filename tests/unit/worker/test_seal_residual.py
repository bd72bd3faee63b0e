"""The account of what a sealer's encodings lose: held for its next seal, or given up, and told."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from mend_optim.codecs.blockwise import Int8
from mend_optim.codecs.buffers import Buffers
from mend_optim.codecs.packing import raw
from mend_optim.codecs.powersgd import PowerSGD
from mend_optim.codecs.registry import Codec, codec_name, decode_packet, find_codec
from mend_optim.engine.effects import (
    Advance,
    Done,
    Found,
    Install,
    Job,
    Merge,
    Prepare,
    SealResidual,
)
from mend_optim.model.layout import Fragment, Layout
from mend_optim.protocol.lineage import Key, PeerId
from mend_optim.protocol.messages import Offer, Packet, Seal
from mend_optim.worker.anchors import Anchors
from mend_optim.worker.outer import Nesterov
from mend_optim.worker.seal_payload import SealPayload
from tests.support.engines import BASE, GENESIS
from tests.support.jobs import LoneFragment

SHAPE = (24, 16)
NUMEL = SHAPE[0] * SHAPE[1]
FRAGMENT: Fragment = Layout(["w"], [torch.zeros(SHAPE)], 1).fragments[0]
CODECS: list[Codec] = [Int8(back="same"), PowerSGD(rank=2, min_ratio=1, back="same")]
ENDS = st.sampled_from(["taken", "taken", "void", "given up", "restarted", "another codec"])


def drawn(seed: int) -> Tensor:
    return torch.randn(NUMEL, generator=torch.Generator().manual_seed(seed))


def offer_of(packet: Packet) -> Offer:
    return Offer(
        peer=PeerId("a", 1),
        fragment=0,
        seq=1,
        tokens=1,
        steps=1,
        genesis=GENESIS,
        key=Key(0, 0, b""),
        due=True,
        sections={"delta": packet},
    )


def held_by(payload: SealPayload) -> Tensor:
    residual = payload.feedback.residual if payload.feedback else None
    return torch.zeros(NUMEL) if residual is None else residual.clone()


def restarted(payload: SealPayload, codec: Codec) -> SealPayload:
    """The sealer of another process that goes on from a checkpoint of this one."""
    again = SealPayload(codec, "mean", FRAGMENT, Buffers())
    again.dropped = payload.dropped
    again.restore(payload.feedback.held() if payload.feedback else {})
    return again


@pytest.mark.parametrize("codec", CODECS, ids=codec_name)
@settings(max_examples=30)
@given(st.lists(ENDS, max_size=8))
def test_what_seals_lose_is_held_or_given_up_and_both_are_told(
    codec: Codec, ends: list[str]
) -> None:
    """Σ means = Σ merged decodes + what is held + what was given up, and the lengths of the last
    two are the account."""
    payload = SealPayload(codec, "mean", FRAGMENT, Buffers())
    meant, came, gone, length = (torch.zeros(NUMEL) for _ in range(4))
    for seed, end in enumerate(ends):
        before = held_by(payload)
        if end in ("taken", "void"):
            mean = drawn(seed)
            scratch = torch.empty(NUMEL)
            merged = payload.merge([offer_of(raw(mean))], [1.0], scratch, relay=False)
            if end == "taken":
                payload.commit()
                meant += mean
                came += decode_packet(merged.sections.get("merged", raw(mean)), [SHAPE])
        elif end == "restarted":
            payload = restarted(payload, codec)
        else:
            if end == "given up":
                payload.drop()
            else:
                payload = restarted(restarted(payload, find_codec("none")), codec)
            gone += before
            length += before.norm()
    torch.testing.assert_close(came + held_by(payload) + gone, meant, rtol=0, atol=1e-4)
    assert payload.held == pytest.approx(held_by(payload).norm().item(), rel=1e-5)
    assert payload.dropped == pytest.approx(length[0].item(), rel=1e-5)


class Sealer(LoneFragment):
    """A learner that seals its offer and a peer's, with a codec that encodes the merged delta once
    more."""

    def __init__(self, name: str = "a") -> None:
        anchors = Anchors(
            Layout(["v", "w"], [torch.zeros(SHAPE), torch.zeros(SHAPE)], 2),
            [torch.zeros(NUMEL), torch.zeros(NUMEL)],
            codec=CODECS[0],
            outer=Nesterov(),
            scheme="mean",
            buffers=Buffers(),
        )
        super().__init__(name, anchors)

    def offer(self, seed: int) -> Offer:
        return self.offer_from(Prepare(fragment=0, seq=seed, tensor=drawn(seed)))

    def seal(self, seed: int) -> Seal:
        offers = (self.offer(seed), Sealer("peer").offer(100 + seed))
        return self.seal_from(Merge(fragment=0, base=BASE, offers=offers, weights=(0.5, 0.5)))

    def take(self, seal: Seal, **how: bool) -> Done:
        return self.did(Advance(seal=seal, lineage=BASE, merged_own_offer=True, **how))

    def did(self, job: Job) -> Done:
        done, _ = self.anchors.perform(job)
        assert done.fault == ""
        return done

    @property
    def residual(self) -> float:
        anchor = self.anchors.fragments[0]
        feedback = anchor.payload.feedback  # type: ignore[union-attr]
        return 0.0 if feedback.residual is None else feedback.residual.norm().item()


GIVEN_UP = {
    "installs a whole anchor": lambda sealer: Install(
        states=(sealer.export(),), merged_own_offer=False, replace=True
    ),
    "founds an anchor": lambda sealer: Found((torch.ones(NUMEL), torch.ones(NUMEL))),
    "hears of a later process": lambda sealer: Advance(
        seal=sealer.seal(3), lineage=BASE, merged_own_offer=True, sealed_by_predecessor=True
    ),
    "forgets": lambda sealer: Advance(
        seal=sealer.seal(3), lineage=BASE, merged_own_offer=True, forget=True
    ),
}


@pytest.mark.parametrize("way", GIVEN_UP)
def test_the_engine_hears_what_a_learner_holds_and_gives_up(way: str) -> None:
    sealer = Sealer()
    told = sealer.take(sealer.seal(1), sealed_here=True).seal_residuals[0]
    assert told.held == pytest.approx(sealer.residual, rel=1e-5)
    assert told.held > 0
    assert told.dropped == 0
    gone = sealer.did(GIVEN_UP[way](sealer)).seal_residuals[0]
    assert (gone.held, gone.dropped) == (0, told.held)
    assert sealer.residual == 0


def test_what_waits_while_another_learner_seals_is_still_held() -> None:
    sealer, other = Sealer(), Sealer()
    held = sealer.take(sealer.seal(1), sealed_here=True).seal_residuals[0]
    seal = other.seal(2)
    sealer.offer(2)
    assert sealer.take(seal).seal_residuals[0] == held
    assert sealer.residual == pytest.approx(held.held, rel=1e-5)


def test_the_engine_hears_what_came_with_a_checkpoint() -> None:
    """With the first anchor, of whichever fragment."""
    sealer, again = Sealer(), Sealer()
    held = sealer.take(sealer.seal(1), sealed_here=True).seal_residuals[0]
    again.anchors.load(0, sealer.anchors.save(0))
    other = replace(sealer.seal(2), fragment=1)
    assert again.take(other).seal_residuals == {0: held, 1: SealResidual()}
    assert again.take(Sealer().seal(3)).seal_residuals == {0: held}
