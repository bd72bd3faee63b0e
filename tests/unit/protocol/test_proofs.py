"""The proofs of a seal's members: honest ones pass, and each rule refuses what breaks it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mend_optim.errors import PeerError
from mend_optim.protocol.lineage import Claim, Entry, Lineage, PeerId
from mend_optim.protocol.messages import PROOFS, SIGNATURE, YOURS, Offer, Packet, Seal
from mend_optim.protocol.proofs import (
    MOST_CERTIFICATES,
    PROOF_LIMIT,
    Proof,
    check_offer,
    check_proofs,
    proof_of,
    proofs_in,
    proofs_nbytes,
)
from mend_optim.protocol.statement import content_of, decode, encode, pack
from tests.support.engines import BASE, FOURTH, ME, PEER, THIRD, grown, offer_of, seal_of
from tests.support.notaries import HashNotary, signed_offer, signed_seal


def packet_of(data: bytes) -> Packet:
    return Packet("none", len(data), memoryview(data))


def offered(peer: PeerId, data: bytes = b"delta", **fields: Any) -> Offer:
    """An offer, not signed yet."""
    return replace(offer_of(peer), sections={"delta": packet_of(data)}, **fields)


def nothing(peer: PeerId) -> Offer:
    return replace(offered(peer), seq=0, tokens=0, steps=0, sections={})


def check(offer: Offer, notary: HashNotary | None = None) -> None:
    check_offer(offer, content_of(offer.sections), notary or HashNotary("me"))


# ── offers ────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("offer", [offered(PEER), nothing(PEER)])
def test_a_signed_offer_is_believed(offer: Offer) -> None:
    notary = HashNotary("me")
    check(signed_offer(offer), notary)
    assert notary.checked == [("peer", False)]
    check(replace(signed_offer(offer), due=False, key=offer.key._replace(tokens=7)))


CHANGES: dict[str, Callable[[Offer], Offer]] = {
    "tokens": lambda o: replace(o, tokens=o.tokens + 1),
    "steps": lambda o: replace(o, steps=o.steps + 1),
    "number": lambda o: replace(o, seq=o.seq + 1),
    "follows": lambda o: replace(o, follows=o.follows + 1),
    "genesis": lambda o: replace(o, genesis=b"other"),
    "fragment": lambda o: replace(o, fragment=1),
    "share": lambda o: replace(o, again=(1, 1)),
    "rate": lambda o: replace(o, rate=0.5),
    "incarnation": lambda o: replace(o, peer=o.peer._replace(incarnation=9)),
    "claim": lambda o: replace(o, inherited=Claim(o.peer._replace(incarnation=9), 0)),
    "bytes": lambda o: replace(o, sections={**o.sections, "delta": packet_of(b"other")}),
    "moment": lambda o: replace(o, sections={**o.sections, "moment.m": packet_of(b"other")}),
}


@pytest.mark.parametrize("change", CHANGES)
def test_an_offer_that_was_changed_is_refused(change: str) -> None:
    with pytest.raises(PeerError, match="its signature is not over this offer"):
        check(CHANGES[change](signed_offer(offered(PEER))))


def test_an_offer_without_a_signature_is_refused() -> None:
    with pytest.raises(PeerError, match="section 'signature' is missing"):
        check(offered(PEER))


def test_nobody_signs_in_the_name_of_another() -> None:
    with pytest.raises(PeerError, match="an offer of 'peer' is signed by 'third'"):
        check(signed_offer(offered(PEER), by="third"))


def test_nobody_else_offers_a_learners_work() -> None:
    claimed = offered(PEER, inherited=Claim(THIRD, 0))
    with pytest.raises(PeerError, match="it has the work of 'third', and is signed by 'peer'"):
        check(signed_offer(claimed))
    check(signed_offer(offered(PEER, inherited=Claim(PEER._replace(incarnation=0), 0))))


def test_a_signature_that_is_wrong_is_refused() -> None:
    offer = signed_offer(offered(PEER))
    proof = Proof.unpacked(offer.sections[SIGNATURE].data)._replace(signature=b"wrong")
    packet = replace(offer.sections[SIGNATURE], data=memoryview(proof.packed()))
    with pytest.raises(PeerError, match="the signature of peer is wrong"):
        check(replace(offer, sections={**offer.sections, SIGNATURE: packet}))


# ── proofs as bytes ───────────────────────────────────────────────────────────────────────────────


@given(st.binary(), st.binary(), st.lists(st.binary(), min_size=1, max_size=MOST_CERTIFICATES))
def test_a_proof_comes_back_from_its_bytes(told: bytes, by: bytes, chain: list[bytes]) -> None:
    proof = Proof(told, by, tuple(chain))
    assert Proof.unpacked(proof.packed()) == proof


@pytest.mark.parametrize(
    ("parts", "why"),
    [
        ([b"statement", b"signature"], "has no certificate"),
        ([b"", b"", *[b""] * (MOST_CERTIFICATES + 1)], "are not 6 parts or fewer"),
        ([b"", b"", bytes(PROOF_LIMIT)], f"a proof has {PROOF_LIMIT + 12} bytes; the limit is"),
    ],
)
def test_what_is_no_proof_is_refused(parts: list[bytes], why: str) -> None:
    with pytest.raises(PeerError, match=why):
        Proof.unpacked(pack(parts))


def test_the_largest_proofs_fit_into_their_section() -> None:
    room = PROOF_LIMIT - len(Proof(b"", b"", (b"",)).packed())
    largest = Proof(bytes(room), b"", (b"",)).packed()
    assert len(largest) == PROOF_LIMIT
    assert len(pack([largest] * 3)) == proofs_nbytes(3)
    assert len(proofs_in(pack([largest] * 3), 3)) == 3


# ── seals ─────────────────────────────────────────────────────────────────────────────────────────

EARLIER = Entry(THIRD, 1, 40, 4)
ANCHOR = grown(BASE, EARLIER)
OFFERS = (
    signed_offer(offered(PEER, b"first")),
    signed_offer(offered(THIRD, b"second", seq=2, follows=1)),
    signed_offer(nothing(FOURTH)),
)


def sealed(*offers: Offer, base: Lineage = ANCHOR) -> Seal:
    return signed_seal(seal_of(base), offers, base)


GOOD = sealed(*OFFERS)


def flaw(seal: Seal, base: Lineage = ANCHOR) -> str:
    try:
        check_proofs(seal, base, HashNotary("me"))
    except PeerError as fault:
        return str(fault)
    return ""


def test_a_seal_of_signed_offers_is_believed() -> None:
    notary = HashNotary("me")
    check_proofs(GOOD, ANCHOR, notary)
    assert notary.checked == [("peer", True), ("third", True), ("fourth", True)]


def test_the_sealer_signs_its_own_offer_and_hands_on_those_of_others() -> None:
    own = offered(ME)
    proof = Proof.unpacked(proof_of(replace(own, content=b"c"), HashNotary("me")))
    assert (decode(proof.statement).sender, decode(proof.statement).content) == (ME, b"c")
    assert proof_of(OFFERS[0], HashNotary("me")) == OFFERS[0].sections[SIGNATURE].data


def test_a_refused_offer_shows_that_its_sender_is_there() -> None:
    refused = replace(OFFERS[0], seq=0, tokens=0, steps=0, inherited=None, follows=0, again=(0, 0))
    assert flaw(sealed(refused, OFFERS[1])) == ""


def test_offers_of_two_processes_of_one_learner_are_two_members() -> None:
    heir = PEER._replace(incarnation=2)
    inherited = signed_offer(offered(heir, inherited=Claim(PEER, 0)))
    assert flaw(sealed(inherited, signed_offer(nothing(PEER)))) == ""


def with_members(*members: Entry) -> Seal:
    return replace(GOOD, members=members)


FIRST, SECOND, IDLE = GOOD.members


@pytest.mark.parametrize(
    ("seal", "why"),
    [
        (replace(GOOD, sections={}), "section 'proofs' is missing"),
        (with_members(*GOOD.members, IDLE), "it has 4 members and 3 proofs"),
        (with_members(FIRST, SECOND), "are not 2 parts or fewer"),
        (with_members(FIRST._replace(tokens=41), SECOND, IDLE), "has signed something else"),
        (with_members(FIRST._replace(steps=5), SECOND, IDLE), "has signed something else"),
        (with_members(FIRST._replace(seq=2), SECOND, IDLE), "has signed something else"),
        (with_members(FIRST._replace(peer=ME), SECOND, IDLE), "member 'me' is not proven"),
        (with_members(SECOND, FIRST, IDLE), "member 'third' is not proven"),
        (with_members(FIRST, SECOND, Entry(ME, 0, 0, 0)), "another learner has signed that"),
        (with_members(FIRST, SECOND, IDLE._replace(seq=1)), "another learner has signed that"),
        (with_members(FIRST, SECOND, IDLE._replace(tokens=1)), "another learner has signed that"),
        (
            replace(GOOD, shares=((0, 0), (9, 1), (0, 0))),
            "'third' is not proven: it does not claim",
        ),
        (
            replace(GOOD, shares=((0, 0), (0, 0), (9, 1))),
            "'fourth' is not proven: it does not claim",
        ),
        (sealed(OFFERS[0], OFFERS[0]), "it has two members of one learner"),
        (sealed(OFFERS[2], OFFERS[2]), "it has two members of one learner"),
        (
            sealed(signed_offer(offered(PEER), by="third")),
            "an offer of 'peer' is signed by 'third'",
        ),
        (sealed(signed_offer(offered(PEER, genesis=b"other"))), "was made for another anchor"),
        (sealed(signed_offer(offered(PEER, fragment=1))), "was made for another anchor"),
        (sealed(signed_offer(offered(THIRD, seq=2))), "does not follow its last one"),
        (sealed(signed_offer(offered(THIRD, seq=3, follows=2))), "does not follow its last one"),
        (sealed(signed_offer(offered(PEER, inherited=Claim(ME, 0)))), "'peer' has signed that"),
    ],
)
def test_a_seal_whose_members_are_not_proven_is_refused(seal: Seal, why: str) -> None:
    assert why in flaw(seal)


def test_an_offer_that_claims_settled_work_proves_nothing() -> None:
    gap = signed_offer(offered(THIRD, seq=2, follows=1, inherited=Claim(THIRD, 0)))
    assert "does not follow its last one" in flaw(sealed(gap))


def test_a_share_is_the_one_that_its_member_claims() -> None:
    flush = signed_offer(offered(PEER, again=(9, 1)))
    assert flaw(replace(sealed(flush), shares=((9, 1),))) == ""
    assert flaw(sealed(flush)) == ""
    assert "does not claim that share" in flaw(replace(sealed(flush), shares=((9, 2),)))


def test_a_merged_offer_cannot_be_shown_again() -> None:
    assert flaw(GOOD) == ""
    after = ANCHOR.seal(GOOD.members, b"")
    assert "does not follow its last one" in flaw(sealed(*OFFERS, base=after), after)


@given(st.sets(st.integers(0, 15)), st.integers(1, 16))
def test_the_signature_of_each_member_is_checked(forged: set[int], count: int) -> None:
    """Some are of somebody else."""
    peers = [PeerId(f"p{i}", 1) for i in range(count)]
    seal = sealed(
        *(signed_offer(nothing(p), by="mallory" * (i in forged)) for i, p in enumerate(peers))
    )
    is_forged = any(i in forged for i in range(count))
    assert ("is signed by 'mallory'" in flaw(seal)) is is_forged
    assert (flaw(seal) == "") is not is_forged


@given(st.data())
def test_no_byte_of_the_proofs_can_be_changed(data: st.DataObject) -> None:
    whole = bytearray(GOOD.sections[PROOFS].data)
    whole[data.draw(st.integers(0, len(whole) - 1))] ^= data.draw(st.integers(1, 255))
    packet = replace(GOOD.sections[PROOFS], data=memoryview(bytes(whole)))
    seal = replace(GOOD, sections={PROOFS: packet})
    try:
        check_proofs(seal, ANCHOR, HashNotary("me"))
    except (PeerError, UnicodeDecodeError):
        return
    raise AssertionError("a changed proof was believed")


def relayed(*packets: Packet) -> Seal:
    sections = {str(i): packet for i, packet in enumerate(packets)}
    return replace(GOOD, sections={**GOOD.sections, **sections})


def test_packets_that_come_back_are_those_that_were_offered() -> None:
    first, second = (offer.sections["delta"] for offer in OFFERS[:2])
    left_out = Packet(YOURS, 6, memoryview(b""))
    assert flaw(relayed(first, second)) == ""
    assert flaw(relayed(left_out, second)) == ""
    assert flaw(relayed(second, first)) == "the packet of 'peer' is not the one it offered"
    assert flaw(relayed(first, first)) == "the packet of 'third' is not the one it offered"
    other = replace(first, codec="packed")
    assert flaw(relayed(other, second)) == "the packet of 'peer' is not the one it offered"
    idle = flaw(relayed(first, second, first))
    assert idle == "the packet of 'fourth' is not the one it offered"


def test_a_statement_of_a_proof_must_be_one() -> None:
    proofs = proofs_in(GOOD.sections[PROOFS].data, 3)
    told = decode(proofs[0].statement)._replace(tokens=1)
    changed = HashNotary("peer").sign(encode(told) + b"x")
    packet = replace(
        GOOD.sections[PROOFS],
        data=memoryview(pack(proof.packed() for proof in (changed, *proofs[1:]))),
    )
    assert "not a statement" in flaw(replace(GOOD, sections={PROOFS: packet})) or "parts" in flaw(
        replace(GOOD, sections={PROOFS: packet})
    )
