"""Certificates that the library issues, for whoever checks them strictly."""

from __future__ import annotations

import ssl
from collections.abc import Callable
from pathlib import Path

import pytest

pytest.importorskip("cryptography", reason="needs the extra 'certs'")

from tests.support.certificates import DAY, NOW, write  # isort: skip - needs the extra
from mend_optim.transport.security.issuing import Authority  # isort: skip - needs the extra
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


@pytest.mark.parametrize(
    "made",
    [Authority.random, lambda begin, end: Authority.of_secret(b"a secret", begin, end)],
    ids=["random", "of a secret"],
)
def test_strict_checks_take_them(made: Callable[..., Authority], tmp_path: Path) -> None:
    begin, end = NOW - DAY, NOW + DAY
    authority = made(begin, end)
    one, two = (
        write(tmp_path / name, authority.pem, *authority.issue(name, begin, end)) for name in "ab"
    )
    client, server = strict(one, ssl.PROTOCOL_TLS_CLIENT), strict(two, ssl.PROTOCOL_TLS_SERVER)
    shake_hands(client, server)
