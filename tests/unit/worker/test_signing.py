"""Signatures around the jobs of a worker: they are checked with the bytes, and change none."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from mend_optim.codecs.buffers import Buffers
from mend_optim.codecs.registry import find_codec
from mend_optim.engine.effects import Advance, Inspect, Merge, Prepare, Reoffer
from mend_optim.engine.round import Round
from mend_optim.model.layout import Layout
from mend_optim.protocol.lineage import Entry
from mend_optim.protocol.messages import PROOFS, SIGNATURE, Offer, Packet, Seal
from mend_optim.protocol.proofs import Proof, proofs_in, signed
from mend_optim.protocol.statement import content_of, decode
from mend_optim.worker.anchors import Anchors
from mend_optim.worker.offer_sizes import Guard
from mend_optim.worker.outer import Nesterov
from mend_optim.worker.signing import Signing
from tests.support.engines import BASE
from tests.support.jobs import LoneFragment, Performed, perform
from tests.support.notaries import HashNotary


class Learner(LoneFragment):
    """One fragment of 64 elements, with a notary or without."""

    def __init__(self, name: str, coding: str = "none", signs: bool = True) -> None:
        start = torch.arange(64.0)
        anchors = Anchors(
            Layout(["w"], [start], 1),
            [start.clone()],
            codec=find_codec(coding),
            outer=Nesterov(),
            scheme="mean",
            buffers=Buffers(),
            guard=Guard(),
        )
        self.notary = HashNotary(name)
        anchors.signing = Signing(self.notary, anchors.hashing) if signs else None
        super().__init__(name, anchors)

    def offer(self, change: float = 1.0) -> Offer:
        """The offer of a learner that has trained, as it lies there before it is sent."""
        tensor = torch.arange(64.0) - change
        job = Prepare(fragment=0, seq=1, tensor=tensor)
        offer = self.offer_from(job, tokens=10)
        return replace(offer, content=content_of(offer.sections))

    def sent(self, change: float = 1.0) -> Offer:
        return signed(self.offer(change), self.notary)

    def seal(self, *offers: Offer) -> Seal:
        weights = tuple(1 / len(offers) for _ in offers)
        return self.seal_from(Merge(fragment=0, base=BASE, offers=offers, weights=weights))

    def advance(self, seal: Seal, **fields: Any) -> Performed:
        lineage = BASE.seal(seal.members, seal.payload)
        told = {"base": BASE, "merged_own_offer": False, **fields}
        return perform(self.anchors, Advance(seal=seal, lineage=lineage, **told))

    @property
    def theta(self) -> list[float]:
        theta: list[float] = self.anchors.fragments[0].theta.tolist()
        return theta


def test_a_prepared_offer_brings_the_digest_that_is_signed() -> None:
    learner = Learner("a")
    done = perform(learner.anchors, Prepare(fragment=0, seq=1, tensor=torch.arange(64.0) - 1))
    assert done.digest == content_of(done.sections) != b""
    assert perform(learner.anchors, Reoffer(0, 1)).digest == done.digest
    unsigned = Learner("a", signs=False)
    job = Prepare(fragment=0, seq=1, tensor=torch.arange(64.0))
    assert perform(unsigned.anchors, job).digest == b""


def test_an_offer_is_inspected_with_its_signature() -> None:
    a, b = Learner("a"), Learner("b")
    offer = a.sent()
    assert perform(b.anchors, Inspect(offer)).fault == ""
    other = replace(offer, sections={**offer.sections, "delta": a.offer(2.0).sections["delta"]})
    assert perform(b.anchors, Inspect(other)).fault == "its signature is not over this offer"
    assert perform(b.anchors, Inspect(a.offer())).fault == "section 'signature' is missing"
    short = Packet("signed", 0, memoryview(b"\0"))
    garbage = replace(offer, sections={**offer.sections, SIGNATURE: short})
    assert "parts or fewer" in perform(b.anchors, Inspect(garbage)).fault


def test_the_bytes_of_a_signed_offer_are_inspected_too() -> None:
    a, b = Learner("a"), Learner("b")
    bad = replace(a.offer(), sections={"delta": Packet("none", 1, memoryview(bytes(4)))})
    bad = signed(replace(bad, content=content_of(bad.sections)), a.notary)
    assert perform(b.anchors, Inspect(bad)).fault.startswith("Packet has 1 elements in 4 bytes")


def test_an_offer_of_nothing_has_only_a_signature_to_inspect() -> None:
    a, b = Learner("a"), Learner("b")
    nothing = replace(a.offer(), seq=0, tokens=0, steps=0, sections={}, content=b"")
    assert perform(b.anchors, Inspect(signed(nothing, a.notary))).fault == ""
    assert perform(b.anchors, Inspect(nothing)).fault == "section 'signature' is missing"


def test_a_seal_brings_the_proofs_of_its_members_and_the_same_bytes() -> None:
    a, b = Learner("a"), Learner("b")
    seal = b.seal(a.sent(), b.offer(3.0))
    told = [decode(p.statement) for p in proofs_in(seal.sections[PROOFS].data, 2)]
    assert [statement.sender for statement in told] == [a.id, b.id]
    plain = Learner("b", signs=False).seal(a.sent(), b.offer(3.0))
    assert seal.payload == plain.payload
    assert set(seal.sections) - set(plain.sections) == {PROOFS}


def test_an_offer_that_was_refused_is_proven_by_its_sender_alone() -> None:
    """The sealer holds it as one of nothing, with the signature that came with it."""
    a, b, c = Learner("a"), Learner("b"), Learner("c")
    round = Round(0)
    for offer in (a.sent(), b.offer()):
        round.add(offer)
    round._on("launch")
    round.members = round.candidates([], 2)
    round._on("seal")
    round.refuse({0: object()})  # type: ignore[dict-item]
    offers = round.candidates([], 2)
    assert [offer.steps for offer in offers] == [0, 1]
    merge = Merge(fragment=0, base=BASE, offers=offers, weights=(0.0, 1.0))
    assert c.advance(b.seal_from(merge)).fault == ""


def test_a_merge_that_refuses_an_offer_signs_nothing() -> None:
    b = Learner("b")
    huge = b.offer(1e30)
    done = perform(b.anchors, Merge(fragment=0, base=BASE, offers=(huge,), weights=(1.0,)))
    assert done.sections == {}


@pytest.mark.parametrize("coding", ["none", "int8"])
def test_all_take_a_seal_that_is_proven(coding: str) -> None:
    a, b, c = (Learner(name, coding) for name in "abc")
    seal = b.seal(a.sent(), b.offer(3.0))
    assert ("0" in seal.sections) is (coding == "int8")  # packets come back
    assert c.advance(seal).fault == ""
    assert c.notary.checked == [("a", True), ("b", True)]
    assert b.advance(seal, sealed_here=True).fault == ""
    assert b.theta == c.theta != a.theta


def forged(seal: Seal, *members: Entry) -> Seal:
    return replace(seal, members=members)


def test_a_seal_with_a_changed_member_is_refused_and_changes_nothing() -> None:
    a, b, c = (Learner(name) for name in "abc")
    seal = b.seal(a.sent(), b.offer(3.0))
    first, second = seal.members
    before = c.theta
    lie = forged(seal, first._replace(tokens=11), second)
    assert c.advance(lie).fault == "its member 'a' is not proven: it has signed something else"
    unsigned = replace(seal, sections={k: v for k, v in seal.sections.items() if k != PROOFS})
    assert c.advance(unsigned).fault == "section 'proofs' is missing"
    assert c.theta == before
    assert c.advance(seal).fault == ""


def test_a_proof_of_garbage_is_blamed_on_the_sealer() -> None:
    b, c = Learner("b"), Learner("c")
    seal = b.seal(b.offer())
    (proof,) = proofs_in(seal.sections[PROOFS].data, 1)
    bad = Proof(proof.statement, proof.signature, (b"\xff",)).packed()
    data = len(bad).to_bytes(4, "big") + bad
    packet = replace(seal.sections[PROOFS], data=memoryview(data))
    fault = c.advance(replace(seal, sections={**seal.sections, PROOFS: packet})).fault
    assert fault.startswith("UnicodeDecodeError")


def test_where_nothing_is_signed_nothing_is_checked() -> None:
    a, b, c = (Learner(name, signs=False) for name in "abc")
    seal = b.seal(a.offer(), b.offer(3.0))
    assert PROOFS not in seal.sections
    assert perform(b.anchors, Inspect(a.offer())).fault == ""
    assert c.advance(seal, base=None).fault == ""
