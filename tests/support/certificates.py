"""Authorities, and certificates that they issue for tests: right ones, and each kind of wrong."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("cryptography", reason="make test installs the extra `certs`")

from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    NoEncryption,
    PrivateFormat,
)
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from mend_optim import Credentials
from mend_optim.transport.security.certificate import certificates_in
from mend_optim.transport.security.identity import Identity
from mend_optim.transport.security.issuing import Authority, identified
from mend_optim.transport.security.loading import CredentialFiles
from mend_optim.transport.security.names import ANY_LEARNER, host_of_name, uri_of
from mend_optim.transport.security.shared_secret import new_secret


def now() -> datetime:
    return datetime.now(timezone.utc).replace(tzinfo=None, microsecond=0)


#: When the tests began.
NOW = now()
DAY = timedelta(days=1)
SERVER, CLIENT = ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH
BOTH = (SERVER, CLIENT)
KEYS: dict[str, Any] = {
    "P-256": lambda: ec.generate_private_key(ec.SECP256R1()),
    "RSA": lambda: rsa.generate_private_key(65537, 2048),
    "Ed25519": ed25519.Ed25519PrivateKey.generate,
}


def new_authority(begin: timedelta = -DAY, end: timedelta = 3650 * DAY) -> Authority:
    """An authority of ten years, from yesterday on. All have one name, as an impostor's would."""
    key = ec.generate_private_key(ec.SECP256R1())
    return Authority.new(key, "the authority", NOW + begin, NOW + end)


def root(path_length: int | None) -> Authority:
    """An authority that may have others below it."""
    made = new_authority()
    certificate = x509.load_pem_x509_certificate(made.pem)
    builder = (
        x509.CertificateBuilder()
        .subject_name(certificate.subject)
        .issuer_name(certificate.subject)
        .public_key(made._key.public_key())
        .serial_number(1)
        .not_valid_before(NOW - DAY)
        .not_valid_after(NOW + DAY)
        .add_extension(x509.BasicConstraints(True, path_length), critical=True)
    )
    made.pem = builder.sign(made._key, SHA256()).public_bytes(Encoding.PEM)
    return made


def middle(
    authority: Authority, *, begin: timedelta = -DAY, end: timedelta = DAY, **limits: Any
) -> tuple[Authority, bytes]:
    """An authority that another one has issued, and its certificate in PEM."""
    key = ec.generate_private_key(ec.SECP256R1())
    serial = x509.random_serial_number()
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, f"middle {serial}")])
    builder = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(authority._subject())
        .public_key(key.public_key())
        .serial_number(serial)
        .not_valid_before(NOW + begin)
        .not_valid_after(NOW + end)
    )
    if "ca" in limits:
        length = limits.get("path_length")
        builder = builder.add_extension(x509.BasicConstraints(limits["ca"], length), critical=True)
    for extension in limits.get("extensions", ()):
        builder = builder.add_extension(extension, critical=True)
    pem = builder.sign(authority._key, SHA256()).public_bytes(Encoding.PEM)
    return Authority(key, pem), pem


def issue(
    authority: Authority,
    name: str,
    *,
    key: str = "P-256",
    begin: timedelta = -DAY,
    end: timedelta = 30 * DAY,
    uris: Sequence[str] | None = None,
    hosts: Sequence[str] | None = None,
    usage: Sequence[Any] | None = BOTH,
    extensions: Sequence[x509.ExtensionType] = (),
    password: bytes = b"",
) -> tuple[bytes, bytes]:
    """A certificate and its key, in PEM, wrong in whatever is given. It begins and ends that much
    after now: a session of tests may take longer than a certificate is granted."""
    private = KEYS[key]()
    if uris is None:
        uris = [uri_of(name)]
    if hosts is None:
        hosts = [host_of_name(name, certificates_in(authority.pem)[0].key), ANY_LEARNER]
    names: list[Any] = [x509.UniformResourceIdentifier(uri) for uri in uris]
    names += [x509.DNSName(host) for host in hosts]
    builder = (
        x509.CertificateBuilder()
        .subject_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "x")]))
        .issuer_name(authority._subject())
        .public_key(private.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now() + begin)
        .not_valid_after(now() + end)
    )
    builder = identified(builder, private.public_key(), authority.identifier())
    if names:
        builder = builder.add_extension(x509.SubjectAlternativeName(names), critical=False)
    if usage is not None:
        builder = builder.add_extension(x509.ExtendedKeyUsage(usage), critical=False)
    for extension in extensions:
        builder = builder.add_extension(extension, critical=True)
    cipher = BestAvailableEncryption(password) if password else NoEncryption()
    return (
        builder.sign(authority._key, SHA256()).public_bytes(Encoding.PEM),
        private.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, cipher),
    )


def write(directory: Path, authorities: bytes, chain: bytes, key: bytes) -> Path:
    """The files of `Credentials.files`."""
    directory.mkdir(exist_ok=True)
    for file, content in (("ca.pem", authorities), ("cert.pem", chain), ("key.pem", key)):
        (directory / file).write_bytes(content)
    (directory / "key.pem").chmod(0o600)
    return directory


def files_of(directory: Path, authority: Authority, name: str, **wrong: Any) -> Path:
    """The files of a learner."""
    return write(directory, authority.pem, *issue(authority, name, **wrong))


def load_identity(source: str, credentials: Credentials, name: str) -> Identity:
    """What a learner reads when it is made."""
    return CredentialFiles(source, credentials, name).read()


def secret_in(directory: Path, file: str = "cluster.secret") -> Path:
    """The file of a new secret."""
    path = directory / file
    path.write_text(new_secret(), encoding="utf-8")
    path.chmod(0o600)
    return path
