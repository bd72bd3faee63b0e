"""Issues certificates for learners. Needs the package `cryptography`, which the extra `certs`
installs; a learner with files runs without."""

from __future__ import annotations

import secrets
from contextlib import suppress
from datetime import datetime

from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.types import CertificatePublicKeyTypes
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
    load_pem_private_key,
)
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from mend_optim.errors import PeerError
from mend_optim.transport.security.certificate import certificates_in
from mend_optim.transport.security.names import ANY_LEARNER, host_of_name, name_in, uri_of

_PURPOSE = b"mend-optim authority 1"
#: Bytes that the key of a secret's authority is made of: 16 more than it has, so that all keys are
#: as likely (FIPS 186-5, appendix A.2.1).
_KEY_BYTES = 48
#: The order of the group of P-256 (FIPS 186-5).
_ORDER = 0xFFFFFFFF00000000FFFFFFFFFFFFFFFFBCE6FAADA7179E84F3B9CAC2FC632551
# Nobody reads these names: a learner's is in its certificate's URI.
_AUTHORITY = "mend-optim authority"
_LEARNER = "mend-optim learner"


class Authority:
    """An authority that issues certificates for learners.

    Args:
        key: Its private key.
        pem: Its certificate, in PEM. While authorities change, those of the others follow, and the
            first is the one that dials go by; this authority may be any of them.
    """

    def __init__(self, key: ec.EllipticCurvePrivateKey, pem: bytes) -> None:
        self._key = key
        self.pem = pem

    @classmethod
    def new(
        cls, key: ec.EllipticCurvePrivateKey, name: str, begin: datetime, end: datetime
    ) -> Authority:
        """Return an authority with this key, which has signed its own certificate. TLS looks for an
        authority by its name, so two that a learner knows need two names."""
        own, public = _named(name), key.public_key()
        certificate = (
            identified(_builder(own, own, public, begin, end), public, _identifier(public))
            .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
            .add_extension(_usage(signs_certificates=True), critical=True)
            .sign(key, SHA256())
        )
        return cls(key, certificate.public_bytes(Encoding.PEM))

    @classmethod
    def random(cls, begin: datetime, end: datetime) -> Authority:
        """Return an authority with a new key."""
        name = f"{_AUTHORITY} {secrets.token_hex(8)}"
        return cls.new(ec.generate_private_key(ec.SECP256R1()), name, begin, end)

    @classmethod
    def of_secret(cls, secret: bytes, begin: datetime, end: datetime) -> Authority:
        """Return the authority of a secret. Its key is the same in every process."""
        material = HKDF(SHA256(), _KEY_BYTES, salt=None, info=_PURPOSE).derive(secret)
        number = int.from_bytes(material, "big") % (_ORDER - 1) + 1
        return cls.new(ec.derive_private_key(number, ec.SECP256R1()), _AUTHORITY, begin, end)

    @classmethod
    def load(cls, key_pem: bytes, pem: bytes) -> Authority:
        """Return the authority of files. Raises `ValueError` if the key is not that of one of its
        certificates."""
        key = load_pem_private_key(key_pem, None)
        if not isinstance(key, ec.EllipticCurvePrivateKey):
            raise ValueError("the key of the authority is not an elliptic curve's")
        own = key.public_key().public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
        if own not in [certificate.key for certificate in certificates_in(pem)]:
            raise ValueError("the key of the authority is that of none of its certificates")
        return cls(key, pem)

    def key_pem(self) -> bytes:
        """Return its private key, in PEM."""
        return _private_pem(self._key)

    def issue(self, name: str, begin: datetime, end: datetime) -> tuple[bytes, bytes]:
        """Return a new certificate for the learner of this name, and its key, both in PEM."""
        key = ec.generate_private_key(ec.SECP256R1())
        hosts = [host_of_name(name, authority.key) for authority in certificates_in(self.pem)]
        names: list[x509.GeneralName] = [x509.UniformResourceIdentifier(uri_of(name))]
        names += [x509.DNSName(host) for host in [*hosts, ANY_LEARNER]]
        both = [ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH]
        public = key.public_key()
        builder = _builder(_named(_LEARNER), self._subject(), public, begin, end)
        certificate = (
            identified(builder, public, self.identifier())
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(_usage(signs_certificates=False), critical=True)
            .add_extension(x509.ExtendedKeyUsage(both), critical=False)
            .add_extension(x509.SubjectAlternativeName(names), critical=False)
            .sign(self._key, SHA256())
        )
        return certificate.public_bytes(Encoding.PEM), _private_pem(key)

    def end(self) -> datetime:
        """Return the last moment at which it is valid, in UTC, without a zone."""
        return self._certificate().not_valid_after_utc.replace(tzinfo=None)

    def identifier(self) -> x509.AuthorityKeyIdentifier:
        """Return the identifier of its key, as its certificate has it: others make them in other
        ways. One without any was issued before this library wrote them."""
        own = self._certificate().extensions
        try:
            told = own.get_extension_for_class(x509.SubjectKeyIdentifier).value
        except x509.ExtensionNotFound:
            return _identifier(self._key.public_key())
        return x509.AuthorityKeyIdentifier.from_issuer_subject_key_identifier(told)

    def _subject(self) -> x509.Name:
        return self._certificate().subject

    def _certificate(self) -> x509.Certificate:
        own = self._key.public_key()
        for certificate in x509.load_pem_x509_certificates(self.pem):
            if certificate.public_key() == own:
                return certificate
        raise AssertionError("an authority has a certificate of its own")


def names_in(pem: bytes) -> list[list[str]]:
    """Return the names in each certificate of a PEM file: a learner's name, and all others as they
    are written. Raises `ValueError` if there is no certificate."""
    return [_names(certificate) for certificate in x509.load_pem_x509_certificates(pem)]


def _names(certificate: x509.Certificate) -> list[str]:
    try:
        found = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except x509.ExtensionNotFound:
        return [certificate.subject.rfc4514_string()]
    uris = found.get_values_for_type(x509.UniformResourceIdentifier)
    hosts = found.get_values_for_type(x509.DNSName)
    with suppress(PeerError):
        uris = [name_in(uris)]
    return [*uris, *hosts]


def _named(text: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text)])


def _builder(
    subject: x509.Name,
    issuer: x509.Name,
    key: ec.EllipticCurvePublicKey,
    begin: datetime,
    end: datetime,
) -> x509.CertificateBuilder:
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(begin)
        .not_valid_after(end)
    )


def identified(
    builder: x509.CertificateBuilder,
    key: CertificatePublicKeyTypes,
    issuer: x509.AuthorityKeyIdentifier,
) -> x509.CertificateBuilder:
    """Return the builder with the identifiers of its key and of its issuer's. Strict checks refuse
    a certificate without them (RFC 5280, section 4.2.1), and Python 3.13 checks strictly unless it
    is told otherwise."""
    own = x509.SubjectKeyIdentifier.from_public_key(key)
    return builder.add_extension(own, critical=False).add_extension(issuer, critical=False)


def _identifier(key: ec.EllipticCurvePublicKey) -> x509.AuthorityKeyIdentifier:
    return x509.AuthorityKeyIdentifier.from_issuer_public_key(key)


def _usage(*, signs_certificates: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not signs_certificates,
        key_cert_sign=signs_certificates,
        crl_sign=signs_certificates,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )


def _private_pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    pem: bytes = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    return pem
