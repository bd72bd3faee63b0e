"""The proofs that the members of a seal made the offers that it merges.

A *proof* is a statement about an offer, its author's signature, and the author's certificates. It
travels in the section "signature" of the offer. The sealer puts the proofs of all members into the
section "proofs" of the seal, in their order. Every learner checks them before it takes the seal:

    rule                                      without it, a sealer could
    ────────────────────────────────────────  ────────────────────────────────────────────────────
    one proof for each member, of one sender  count a learner twice, or one that was not there
    the signature is its sender's             invent a member
    genesis and fragment are the seal's       show an offer again that was made for another anchor
    number, tokens, steps are the entry's     change what a member did
    it follows the author's last offer        show a merged offer again, or leave one out
    its author has its sender's name          merge an offer that claims another learner's work
    its share is one that it claims           weigh a member by a residual that it does not have
    its packet is the one that was signed     change a packet that comes back as it was

A seal that brings the merged delta alone does not prove that this is the sum of the offers.

Nothing here computes a signature: a `Notary` does."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple, Protocol

from mend_optim.errors import PeerError
from mend_optim.protocol.lineage import Entry, Lineage, PeerId
from mend_optim.protocol.messages import PROOFS, SIGNATURE, YOURS, Offer, Packet, Seal, section
from mend_optim.protocol.statement import (
    Statement,
    decode,
    encode,
    encode_goodbye,
    pack,
    packet_digest,
    statement_of,
    unpack,
)

#: The codec of a section that holds proofs.
SIGNED = "signed"
#: Bytes of one proof. A certificate of ECDSA P-256 has about 700, one of RSA about 1500.
PROOF_LIMIT = 8192
#: Bytes of a statement and a signature at most: two names, a genesis and numbers.
STATEMENT_LIMIT = 2048
#: Certificates of one author: its own, and those between it and an authority.
MOST_CERTIFICATES = 4


class Proof(NamedTuple):
    """A statement that its author has signed."""

    #: The encoded `Statement`.
    statement: bytes
    #: The signature over it.
    signature: bytes
    #: The author's certificate, and those between it and an authority, as DER.
    chain: tuple[bytes, ...]

    def packed(self) -> bytes:
        """The proof as bytes."""
        return pack([self.statement, self.signature, *self.chain])

    @classmethod
    def unpacked(cls, data: bytes | memoryview) -> Proof:
        """The inverse of `packed`. Raises `PeerError`."""
        if len(data) > PROOF_LIMIT:
            raise PeerError(f"a proof has {len(data)} bytes; the limit is {PROOF_LIMIT}")
        parts = unpack(data, 2 + MOST_CERTIFICATES)
        if len(parts) < 3:
            raise PeerError("a proof has no certificate")
        statement, signature, *chain = parts
        return cls(statement, signature, tuple(chain))


class Notary(Protocol):
    """Signs in this learner's name, and knows the authorities of its peers. It may be called on any
    thread."""

    def sign(self, statement: bytes) -> Proof:
        """Sign a statement of this learner."""

    def check(self, proof: Proof, *, merged: bool) -> str:
        """Return the name of the learner that signed it. Raise `PeerError` if that is not proven.

        Args:
            proof: the proof.
            merged: whether it is of a member of a seal. Then its certificate counts for longer, and
                it does not matter who is denied here: learners must not differ about a round.
        """


# ── offers ────────────────────────────────────────────────────────────────────────────────────────


def proof_of(offer: Offer, notary: Notary) -> bytes:
    """The packed proof of an offer: the one that came with it, or a new one of this learner's own
    offer."""
    if SIGNATURE in offer.sections:
        return bytes(offer.sections[SIGNATURE].data)
    return notary.sign(encode(statement_of(offer, offer.content))).packed()


def signed(offer: Offer, notary: Notary) -> Offer:
    """The offer with its proof."""
    packet = _packet(proof_of(offer, notary))
    return replace(offer, sections={**offer.sections, SIGNATURE: packet})


def check_offer(offer: Offer, content: bytes, notary: Notary) -> None:
    """Raise `PeerError` unless a received offer with this `content_of` its sections was signed by
    the learner that it names."""
    proof = Proof.unpacked(section(offer.sections, SIGNATURE).data)
    told = statement_of(offer, content)
    if proof.statement != encode(told):
        raise PeerError("its signature is not over this offer")
    _check_author(told)
    _check_signer(proof, told, notary, merged=False)


def _check_author(told: Statement) -> None:
    author, sender = told.claim.author.name, told.sender.name
    if author != sender:
        raise PeerError(f"it has the work of {author!a}, and is signed by {sender!a}")


def _check_signer(proof: Proof, told: Statement, notary: Notary, *, merged: bool) -> None:
    name = notary.check(proof, merged=merged)
    if name != told.sender.name:
        raise PeerError(f"an offer of {told.sender.name!a} is signed by {name!a}")


# ── goodbyes ──────────────────────────────────────────────────────────────────────────────────────


def goodbye_proof(me: PeerId, notary: Notary) -> bytes:
    """The packed proof that this learner leaves."""
    return notary.sign(encode_goodbye(me)).packed()


def check_goodbye(peer: PeerId, proof: bytes, notary: Notary) -> None:
    """Raise `PeerError` unless the peer has signed that it leaves."""
    told = Proof.unpacked(proof)
    if told.statement != encode_goodbye(peer):
        raise PeerError("the signature is not over this goodbye")
    # It counts for as long as the rumors of it go round.
    name = notary.check(told, merged=True)
    if name != peer.name:
        raise PeerError(f"the goodbye of {peer.name!a} is signed by {name!a}")


# ── seals ─────────────────────────────────────────────────────────────────────────────────────────


def proofs_packet(offers: Sequence[Offer], notary: Notary) -> Packet:
    """The section of a seal of these offers."""
    return _packet(pack(proof_of(offer, notary) for offer in offers))


def proofs_nbytes(members: int) -> int:
    """The largest section of proofs, in bytes."""
    return members * len(pack([bytes(PROOF_LIMIT)]))


def proofs_in(data: bytes | memoryview, most: int) -> list[Proof]:
    """The proofs in the bytes of that section, at most so many. Raises `PeerError`."""
    return [Proof.unpacked(packed) for packed in unpack(data, most)]


def check_proofs(seal: Seal, base: Lineage, notary: Notary) -> None:
    """Raise `PeerError` unless every member of a seal on `base` is proven."""
    proofs = proofs_in(section(seal.sections, PROOFS).data, len(seal.members))
    if len(proofs) != len(seal.members):
        raise PeerError(f"it has {len(seal.members)} members and {len(proofs)} proofs")
    told = [decode(proof.statement) for proof in proofs]
    if len({statement.sender for statement in told}) < len(told):
        raise PeerError("it has two members of one learner")
    shares = seal.shares or ((0, 0),) * len(seal.members)
    for entry, share, statement in zip(seal.members, shares, told, strict=True):
        flaw = _flaw_of(entry, share, statement, seal.fragment, base)
        if flaw:
            raise PeerError(f"its member {entry.peer.name!a} is not proven: {flaw}")
    _check_packets(seal, told)
    for proof, statement in zip(proofs, told, strict=True):
        _check_signer(proof, statement, notary, merged=True)


def _flaw_of(
    entry: Entry, share: tuple[int, int], told: Statement, fragment: int, base: Lineage
) -> str:
    """Why a statement does not prove a member of a seal on `base`; empty if it does."""
    if (told.genesis, told.fragment) != (base.genesis, fragment):
        return "its offer was made for another anchor"
    if share not in ((0, 0), told.again):
        return "it does not claim that share"
    in_turn = base.last_merged(told.claim.author) == told.follows <= told.claim.settled
    if entry.steps and not in_turn:
        return "its offer does not follow its last one"
    return difference(entry, told)


def difference(entry: Entry, told: Statement) -> str:
    """How a member differs from what its statement says; empty if it does not."""
    if not entry.steps:
        # An offer that is refused counts as if its sender had offered nothing.
        is_there = (told.sender, 0, 0) == (entry.peer, entry.seq, entry.tokens)
        return "" if is_there else "another learner has signed that"
    if entry != Entry(told.claim.author, told.seq, told.tokens, told.steps):
        return "it has signed something else"
    is_own = told.claim.author.name == told.sender.name
    return "" if is_own else f"{told.sender.name!a} has signed that"


def _check_packets(seal: Seal, told: Sequence[Statement]) -> None:
    """Raise `PeerError` unless the packets that came back are those that were signed."""
    for i, statement in enumerate(told):
        packet = seal.sections.get(str(i))
        if packet is None or packet.codec == YOURS:
            continue
        if packet_digest(packet) != statement.delta:
            raise PeerError(
                f"the packet of {seal.members[i].peer.name!a} is not the one it offered"
            )


def _packet(data: bytes) -> Packet:
    return Packet(SIGNED, 0, memoryview(data))
