"""The signer of a statement: the learner whose certificate, issued by an authority, has the key of
the signature. Needs the package `cryptography`, as `issuing.py` does.

TLS checks the certificates of a connection. Those of a signature come from elsewhere: from the
author of an offer that somebody else holds. So they are checked here, and more strictly: a
certificate with a critical extension that is not known here counts for nothing."""

from __future__ import annotations

from functools import lru_cache
from itertools import pairwise
from typing import Any, NamedTuple

from cryptography import x509
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric import ec, padding, rsa
from cryptography.hazmat.primitives.hashes import SHA256

from mend_optim.errors import PeerError
from mend_optim.protocol.proofs import Proof
from mend_optim.transport.limits import check
from mend_optim.transport.security.certificate import day
from mend_optim.transport.security.names import name_in

PublicKey = ec.EllipticCurvePublicKey | rsa.RSAPublicKey
#: How RSA signs.
RSA = padding.PKCS1v15()
#: How elliptic curves sign.
ECDSA = ec.ECDSA(SHA256())
#: What `cryptography` raises of bytes that are no certificate, or none that it can read.
DAMAGED = (
    ValueError,
    TypeError,
    UnsupportedAlgorithm,
    x509.DuplicateExtension,
    x509.ExtensionNotFound,
    x509.InvalidVersion,
    x509.UnsupportedGeneralNameType,
)
#: Statements of this learner, and certificates of others, that are remembered.
REMEMBERED = 1024


class Signer(NamedTuple):
    """The signer of a statement, as its certificate has it."""

    #: The learner's name.
    name: str
    key: PublicKey
    #: SHA-256 of the certificate, in hex.
    sha256: str
    #: When the first of the certificates begins, and when the first one ends, in Unix seconds.
    not_before: float
    not_after: float

    def check_valid(self, at: float, grace_s: float) -> None:
        """Raise `PeerError` unless the certificates were valid at that time, or almost."""
        if not self.not_before - grace_s <= at <= self.not_after + grace_s:
            span = f"from {day(self.not_before)} to {day(self.not_after)}"
            raise PeerError(f"the certificate of {self.name!a} is valid {span}")


class Authorities:
    """Certificates that a learner trusts, in PEM. It remembers the chains that led to them."""

    def __init__(self, pem: bytes) -> None:
        self._trusted = x509.load_pem_x509_certificates(pem)
        self.signer = lru_cache(REMEMBERED)(self._signer)

    def check(self, proof: Proof) -> Signer:
        """Return the signer of a proof, whose certificate may be of any time. Raises `PeerError`
        unless an authority has vouched for it."""
        signer = self.signer(proof.chain)
        if not _is_signed(signer.key, proof.signature, proof.statement):
            raise PeerError(f"the signature of {signer.name!a} is wrong")
        return signer

    def _signer(self, chain: tuple[bytes, ...]) -> Signer:
        try:
            certificates = [x509.load_der_x509_certificate(der) for der in chain]
            if len(certificates) > 1 and certificates[-1] in self._trusted:
                del certificates[-1]  # some put the authority's own at the end
            whole = [*certificates, self._authority_of(certificates)]
            for below, (child, issuer) in enumerate(pairwise(whole)):
                _check_issued(child, issuer, below)
            return _signer_of(whole)
        except DAMAGED as fault:
            raise PeerError(f"the certificate of a signature is damaged: {fault}") from fault

    def _authority_of(self, chain: list[x509.Certificate]) -> x509.Certificate:
        for authority in self._trusted:
            if _has_issued(authority, chain[-1]):
                return authority
        raise PeerError("the certificate of a signature is of an unknown authority")


def _signer_of(whole: list[x509.Certificate]) -> Signer:
    """The learner of the first certificate of a chain."""
    own = whole[0]
    key = own.public_key()
    if not isinstance(key, ec.EllipticCurvePublicKey | rsa.RSAPublicKey):
        raise PeerError("the key of a signature is neither of ECDSA nor of RSA")
    usage = _extension(own, x509.KeyUsage)
    check(usage is None or usage.digital_signature, "a certificate is not for signatures")
    names = own.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    return Signer(
        name_in(names.get_values_for_type(x509.UniformResourceIdentifier)),
        key,
        own.fingerprint(SHA256()).hex(),
        max(certificate.not_valid_before_utc.timestamp() for certificate in whole),
        min(certificate.not_valid_after_utc.timestamp() for certificate in whole),
    )


def _has_issued(issuer: x509.Certificate, child: x509.Certificate) -> bool:
    try:
        child.verify_directly_issued_by(issuer)
    except (InvalidSignature, ValueError, TypeError, UnsupportedAlgorithm):
        return False
    return True


def _check_issued(child: x509.Certificate, issuer: x509.Certificate, below: int) -> None:
    """Raise `PeerError` unless `issuer` may issue certificates, with so many authorities below it,
    and has issued this one."""
    check(_has_issued(issuer, child), "a certificate was not issued by the next one")
    limits = _extension(issuer, x509.BasicConstraints)
    check(limits is not None and limits.ca, "a certificate was issued by one of no authority")
    longest = limits.path_length
    check(longest is None or below <= longest, "an authority is too far from a certificate")
    usage = _extension(issuer, x509.KeyUsage)
    check(usage is None or usage.key_cert_sign, "an authority may not issue certificates")
    for certificate in (child, issuer):
        for extension in certificate.extensions:
            # Each of these narrows down what a certificate is for, and is not understood here.
            strange = isinstance(extension.value, x509.UnrecognizedExtension | x509.NameConstraints)
            check(not (extension.critical and strange), "a certificate has a critical extension")


def _extension(certificate: x509.Certificate, kind: type[Any]) -> Any:
    """The extension of that kind; None if there is none."""
    try:
        return certificate.extensions.get_extension_for_class(kind).value
    except x509.ExtensionNotFound:
        return None


def _is_signed(key: PublicKey, signature: bytes, statement: bytes) -> bool:
    try:
        if isinstance(key, ec.EllipticCurvePublicKey):
            key.verify(signature, statement, ECDSA)
        else:
            key.verify(signature, statement, RSA, SHA256())
    except InvalidSignature:
        return False
    return True
