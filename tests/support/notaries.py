"""Notaries for tests of what is signed: signatures that only their signer makes, without
certificates and without the package `cryptography`; and offers and seals that are signed so."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import replace

from mend_optim.engine.policies import weights
from mend_optim.errors import PeerError
from mend_optim.protocol.lineage import Lineage
from mend_optim.protocol.messages import PROOFS, Offer, Packet, Seal
from mend_optim.protocol.proofs import Proof, proofs_packet, signed
from mend_optim.protocol.statement import content_of


class HashNotary:
    """Whose signature is a hash of the name and the statement, and whose certificate is its name.

    Nobody in a test computes that hash in another's name."""

    def __init__(self, name: str) -> None:
        self.name = name
        #: For each check: whose signature, and whether it was of a member of a seal.
        self.checked: list[tuple[str, bool]] = []

    def sign(self, statement: bytes) -> Proof:
        return Proof(statement, _signature(self.name, statement), (self.name.encode(),))

    def check(self, proof: Proof, *, merged: bool) -> str:
        name = proof.chain[0].decode()
        self.checked.append((name, merged))
        if proof.signature != _signature(name, proof.statement):
            raise PeerError(f"the signature of {name} is wrong")
        return name


def _signature(name: str, statement: bytes) -> bytes:
    return hashlib.sha256(name.encode() + b"\0" + statement).digest()


def signed_offer(offer: Offer, by: str = "") -> Offer:
    """The offer with the signature of its sender, or of somebody else."""
    whole = replace(offer, content=content_of(offer.sections))
    return signed(whole, HashNotary(by or offer.peer.name))


def signed_seal(seal: Seal, offers: Sequence[Offer], base: Lineage, scheme: str = "tokens") -> Seal:
    """A seal of these signed offers on `base`."""
    members = tuple(offer.entry for offer in offers)
    proofs: Packet = proofs_packet(offers, HashNotary("nobody"))
    return replace(
        seal,
        base=base.digest,
        key=base.seal(members, seal.payload).key,
        members=members,
        weights=tuple(weights(scheme, members)),
        sections={**seal.sections, PROOFS: proofs},
    )
