"""Signs a learner's offers with the key of its certificate, and checks those of others by the
authorities that it knows. Needs the package `cryptography`, as `issuing.py` does.

ECDSA takes a new random number for each signature, so what was signed is remembered: an offer that
is sent again has the same bytes, and a learner's own signature needs no check."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import NoReturn

from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import Encoding, load_pem_private_key

from mend_optim.errors import PeerError, UsageError
from mend_optim.protocol.proofs import MOST_CERTIFICATES, PROOF_LIMIT, STATEMENT_LIMIT, Proof
from mend_optim.transport.limits import check
from mend_optim.transport.security.channels import EXPIRY_GRACE_S
from mend_optim.transport.security.identity import Identity
from mend_optim.transport.security.signers import ECDSA, REMEMBERED, RSA, Authorities


class _Keys:
    """An identity, ready to sign and to check."""

    def __init__(self, identity: Identity) -> None:
        self.identity = identity
        self.authorities = Authorities(identity.authorities)
        key = load_pem_private_key(identity.key, None)
        if not isinstance(key, ec.EllipticCurvePrivateKey | rsa.RSAPrivateKey):
            raise PeerError("the key is neither of ECDSA nor of RSA")
        self._key = key
        own = x509.load_pem_x509_certificates(identity.chain)
        self._chain = tuple(certificate.public_bytes(Encoding.DER) for certificate in own)
        self._signed: dict[bytes, Proof] = {}

    def sign(self, statement: bytes) -> Proof:
        known = self._signed.get(statement)
        if known is not None:
            return known
        # A new dict is one step, whatever another thread does meanwhile.
        proof = self._sign(statement)
        if len(self._signed) < REMEMBERED:
            self._signed[statement] = proof
        else:
            self._signed = {statement: proof}
        return proof

    def has_signed(self, proof: Proof) -> bool:
        """Whether it is one of the last proofs that were made here."""
        return self._signed.get(proof.statement) == proof

    def _sign(self, statement: bytes) -> Proof:
        if isinstance(self._key, ec.EllipticCurvePrivateKey):
            signature = self._key.sign(statement, ECDSA)
        else:
            signature = self._key.sign(statement, RSA, SHA256())
        return Proof(statement, signature, self._chain)

    def __reduce_ex__(self, protocol: object) -> NoReturn:
        raise TypeError("it holds a private key, so it is never pickled or copied")


def check_signs(source: str, identity: Identity) -> None:
    """Raise `UsageError` if peers could not check the signatures of a learner that shows this."""
    try:
        notary = CertificateNotary(lambda: identity)
        proof = notary.sign(b"")
        notary.forget()
        size = len(proof.packed())
        check(len(proof.chain) <= MOST_CERTIFICATES, f"there are {len(proof.chain)} certificates")
        check(size <= PROOF_LIMIT - STATEMENT_LIMIT, f"the certificates have {size} bytes")
        notary.check(proof, merged=True)
    except PeerError as fault:
        raise UsageError(
            f"{source} must be certificates that signatures can be checked by, got {fault}; issue"
            " them again, or leave signed out"
        ) from None


class CertificateNotary:
    """The notary of a learner with a certificate of its own.

    Args:
        identity: Returns what the learner shows at present.
    """

    def __init__(self, identity: Callable[[], Identity]) -> None:
        self._identity = identity
        self._keys = _Keys(identity())

    def sign(self, statement: bytes) -> Proof:
        return self._present().sign(statement)

    def check(self, proof: Proof, *, merged: bool) -> str:
        own = self._present()
        if own.has_signed(proof):
            return own.identity.name
        signer = own.authorities.check(proof)
        # A sealer takes an offer for a shorter time than the others take its seal, so that no seal
        # of an honest sealer is refused because a certificate ends meanwhile.
        grace_s = 2 * EXPIRY_GRACE_S if merged else EXPIRY_GRACE_S
        signer.check_valid(time.time(), grace_s)
        denied = self._identity().denied
        is_denied = not merged and not denied.isdisjoint((signer.name, signer.sha256))
        check(not is_denied, f"{signer.name!a} is denied here")
        return signer.name

    def forget(self) -> None:
        """Forget what was signed, so that it is checked like the proofs of others."""
        self._keys = _Keys(self._identity())

    def _present(self) -> _Keys:
        """The keys of the present identity: its files may have changed."""
        identity = self._identity()
        if self._keys.identity.shown != identity.shown:
            self._keys = _Keys(identity)
        return self._keys
