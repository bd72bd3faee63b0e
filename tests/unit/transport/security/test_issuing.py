"""Strict checks take the certificates that the library issues."""

from __future__ import annotations

import ssl
from collections.abc import Callable
from datetime import datetime
from pathlib import Path

import pytest

pytest.importorskip("cryptography", reason="needs the extra 'certs'")

from cryptography import x509  # isort: skip - needs the extra
from cryptography.hazmat.primitives.asymmetric import ec  # isort: skip - needs the extra
from cryptography.hazmat.primitives.hashes import SHA256  # isort: skip - needs the extra
from cryptography.hazmat.primitives.serialization import Encoding  # isort: skip - needs the extra
from tests.support.certificates import DAY, NOW, write  # isort: skip - needs the extra
from mend_optim.transport.security.issuing import (  # isort: skip - needs the extra
    Authority,
    _builder,
    _named,
    _usage,
)
from mend_optim.transport.security.names import ANY_LEARNER  # isort: skip - needs the extra


def strict(directory: Path, protocol: int) -> ssl.SSLContext:
    """A side that refuses what RFC 5280 does not allow. Python 3.13 makes such by default."""
    context = ssl.SSLContext(protocol)
    context.verify_mode = ssl.CERT_REQUIRED
    context.verify_flags |= ssl.VERIFY_X509_STRICT
    context.load_verify_locations(directory / "ca.pem")
    context.load_cert_chain(directory / "cert.pem", directory / "key.pem")
    return context


def shake_hands(client: ssl.SSLContext, server: ssl.SSLContext) -> None:
    """A handshake in memory. Raises `ssl.SSLError` if a side refuses the other."""
    up, down = ssl.MemoryBIO(), ssl.MemoryBIO()
    sides = [
        client.wrap_bio(down, up, server_hostname=ANY_LEARNER),
        server.wrap_bio(up, down, server_side=True),
    ]
    while sides:
        left = []
        for side in sides:
            try:
                side.do_handshake()
            except ssl.SSLWantReadError:
                left.append(side)
        sides = left


def bought(begin: datetime, end: datetime) -> Authority:
    """An authority that another program has made, and which tells its key by other bytes."""
    key = ec.generate_private_key(ec.SECP256R1())
    own = _builder(_named("bought"), _named("bought"), key.public_key(), begin, end)
    certificate = (
        own.add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_usage(signs_certificates=True), critical=True)
        .add_extension(x509.SubjectKeyIdentifier(b"in another way"), critical=False)
        .sign(key, SHA256())
    )
    return Authority(key, certificate.public_bytes(Encoding.PEM))


def of_a_secret(begin: datetime, end: datetime) -> Authority:
    return Authority.of_secret(b"a secret", begin, end)


@pytest.mark.parametrize("made", [Authority.random, of_a_secret, bought])
def test_strict_checks_take_them(
    made: Callable[[datetime, datetime], Authority], tmp_path: Path
) -> None:
    begin, end = NOW - DAY, NOW + DAY
    authority = made(begin, end)
    one, two = (
        write(tmp_path / name, authority.pem, *authority.issue(name, begin, end)) for name in "ab"
    )
    client, server = strict(one, ssl.PROTOCOL_TLS_CLIENT), strict(two, ssl.PROTOCOL_TLS_SERVER)
    shake_hands(client, server)
