"""The memory of a round is that of its fragment: all that the worker takes from the pool, with the
bytes of peers' messages, for any codec."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TypeVar

import pytest
import torch

from mend_optim.codecs.registry import find_codec
from mend_optim.engine.effects import Advance, Inspect, Job, Merge, Prepare
from mend_optim.model.layout import Layout
from mend_optim.protocol.lineage import PeerId
from mend_optim.protocol.messages import Offer, Packet, Seal, Sections
from mend_optim.worker.anchors import Anchors
from mend_optim.worker.correction import Correction
from mend_optim.worker.outer import Nesterov
from tests.support.counted_buffers import CountedBuffers
from tests.support.engines import BASE, GENESIS

TENSORS, SIDE = 8, 256
NUMEL = TENSORS * SIDE * SIDE
CODECS = ("none", "bf16", "int8", "int4", "sparse", "powersgd")
#: Those that encode a merged delta of four once more, so their sealer has a residual, too.
TWICE = ("bf16", "int8", "int4", "powersgd")

M = TypeVar("M", Offer, Seal)


class Learner:
    """All fragments of one learner, without an engine. It holds nothing but its weights and its
    anchors between two rounds."""

    def __init__(self, name: str, codec: str, fragments: int) -> None:
        self.id = PeerId(name, 1)
        self.pool = CountedBuffers()
        names = [f"w{i}" for i in range(TENSORS)]
        self.layout = Layout(names, [torch.zeros(SIDE, SIDE) for _ in names], fragments)
        self.weights = [torch.zeros(fragment.numel) for fragment in self.layout.fragments]
        self.anchors = Anchors(
            self.layout,
            [weights.clone() for weights in self.weights],
            codec=find_codec(codec),
            outer=Nesterov(),
            scheme="norm_preserving",
            buffers=self.pool,
        )
        self.draws = torch.Generator().manual_seed(ord(name))
        self.seq = 0

    def do(self, job: Job) -> tuple[Sections, bytes, tuple[Correction, ...]]:
        done, corrections = self.anchors.perform(job)
        assert done.fault == ""
        return done.sections, done.digest, corrections

    def offer(self, p: int) -> Offer:
        self.seq += 1
        weights = self.weights[p]
        weights.add_(torch.randn(weights.shape, generator=self.draws))
        copy = self.pool.take(weights.numel()).copy_(weights)
        sections, _, _ = self.do(Prepare(fragment=p, seq=self.seq, tensor=copy))
        return Offer(
            peer=self.id,
            fragment=p,
            seq=self.seq,
            tokens=1,
            steps=1,
            genesis=GENESIS,
            key=BASE.key,
            due=True,
            sections=sections,
        )

    def received(self, message: M) -> M:
        """A peer's message, in memory of this learner."""
        sections = {}
        for name, packet in message.sections.items():
            data = self.pool.take_bytes(packet.nbytes)
            data[:] = packet.data.cast("B")
            sections[name] = Packet(packet.codec, packet.numel, data)
        return replace(message, sections=sections)

    def seal(self, offers: tuple[Offer, ...]) -> Seal:
        p = offers[0].fragment
        for offer in offers:
            self.do(Inspect(offer))
        weights = (1 / len(offers),) * len(offers)
        merge = Merge(fragment=p, base=BASE, offers=offers, weights=weights)
        sections, digest, _ = self.do(merge)
        members = tuple(offer.entry for offer in offers)
        return Seal(
            sealer=self.id,
            fragment=p,
            base=BASE.digest,
            key=BASE.seal(members, digest).key,
            members=members,
            weights=weights,
            absent=(),
            reason="all_present",
            payload=digest,
            sections=sections,
        )

    def adopt(self, seal: Seal) -> None:
        sealed_here = seal.sealer == self.id
        advance = Advance(seal=seal, lineage=BASE, merged_own_offer=True, sealed_here=sealed_here)
        _, _, (correction,) = self.do(advance)
        self.weights[correction.fragment].add_(correction.values)


def play_rounds(learners: Sequence[Learner]) -> None:
    """A round of each fragment, one after another; the learners take turns as its sealer."""
    for fragment in learners[0].layout.fragments:
        sealer = learners[fragment.index % len(learners)]
        own = [learner.offer(fragment.index) for learner in learners]
        offers = [o if o.peer == sealer.id else sealer.received(o) for o in own]
        del own
        seal = sealer.seal(tuple(offers))
        del offers
        for learner in learners:
            learner.adopt(seal if learner is sealer else learner.received(seal))


def memory(codec: str, members: int, fragments: int) -> tuple[float, float]:
    """Bytes per parameter, of the learner that takes the most: those in use between two rounds,
    and those that a round takes beside them."""
    learners = [Learner(name, codec, fragments) for name in "abcd"[:members]]
    play_rounds(learners)
    between = [learner.pool.in_use for learner in learners]
    for learner in learners:
        learner.pool.peak = 0
    play_rounds(learners)
    assert [learner.pool.in_use for learner in learners] == between
    peaks = [learner.pool.peak - rest for learner, rest in zip(learners, between, strict=True)]
    return max(between) / NUMEL, max(peaks) / NUMEL


@pytest.mark.parametrize("members", [2, 4])
@pytest.mark.parametrize("codec", CODECS)
def test_of_eight_fragments_one_takes_an_eighth_of_the_memory_of_a_round(
    codec: str, members: int
) -> None:
    _, whole = memory(codec, members, 1)
    _, share = memory(codec, members, 8)
    assert 0 < share <= whole / 8


@pytest.mark.parametrize("members", [2, 4])
@pytest.mark.parametrize("codec", CODECS)
def test_between_two_rounds_there_are_the_residuals_alone(codec: str, members: int) -> None:
    """Four bytes of a learner's own encodings; and four for its share of the fragments that it
    seals, where the merged delta is encoded once more."""
    own = 0 if codec == "none" else 4
    for fragments, share in ((1, 1.0), (8, 1 / members)):
        sealers = 4 * share if members > 2 and codec in TWICE else 0
        between, _ = memory(codec, members, fragments)
        assert between == own + sealers
