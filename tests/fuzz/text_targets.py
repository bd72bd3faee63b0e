"""Texts: addresses that peers tell, and certificates."""

from __future__ import annotations

import base64
import ipaddress
import textwrap
from collections.abc import Iterator

from mend_optim.errors import PeerError, UsageError
from mend_optim.transport.address import (
    format_address,
    host_of,
    parse_address,
    parse_dialable,
    seen_from,
)
from mend_optim.transport.security.certificate import certificates_in, day
from mend_optim.transport.security.names import name_in, uri_of
from tests.fuzz.target import Target, joined, parted, same

HOSTS = ("10.0.0.5", "127.0.0.1", "fd00::5", "")
ADDRESSES = (
    "10.0.0.5:29600",
    "trainer.example:1",
    "[fd00::5%eth0]:65535",
    "localhost:29600",
    ":29600",
    "[fd5%eth0]:65535",
    "[::ffff:127.0.0.1]:1",
    "ipv4:10.0.0.5:40312",
    "ipv6:%5B::ffff:10.0.0.5%5D:40312",
)
#: A certificate that the project's own tool might issue, in base64.
CERTIFICATE = (
    "MIIBzzCCAXSgAwIBAgIUE+spT/3Hu9gvZxhOafuNrrGiNbcwCgYIKoZIzj0EAwIwGDEWMBQGA1UEAwwNdGhlIGF1dG"
    "hvcml0eTAeFw0yNjExMjMwMjIxNDhaFw0yNjEyMjQwMjIxNDhaMAwxCjAIBgNVBAMMAXgwWTATBgcqhkjOPQIBBggq"
    "hkjOPQMBBwNCAASAxlcpJyJRCkPqYfEuQw3bpMvIDCYzvfiJb9OhKEQu0ncbMZrJebC57zDwbbPcH3oGIJ4Osv9bLy"
    "fE0kgHyXKJo4GnMIGkMIGCBgNVHREEezB5hhFtZW5kLW9wdGltOnc2a2dZZ4JIbnpsdG1rdmJvd2NyZ2RxbHJqbXRs"
    "dXF4eTNhcXA3bXlyaWtocGk2N2xvcmp5NTYyeXNoanEubWVuZC1vcHRpbS5pbnZhbGlkghpsZWFybmVyLm1lbmQtb3"
    "B0aW0uaW52YWxpZDAdBgNVHSUEFjAUBggrBgEFBQcDAQYIKwYBBQUHAwIwCgYIKoZIzj0EAwIDSQAwRgIhAJ3WqrOV"
    "+ef5FQB9oA+j/8FPZRpVmXC5XIAazE7k5XbTAiEA4hLVP1/RXAAekhshpO4L6V5Rxlj3EDE53Zi9Wkkx6bc="
)


def is_this_machine(host: str) -> bool:
    """Whether a dialled host leads back to the one that dials."""
    if host.lower() in ("localhost", "localhost."):
        return True
    try:
        ip = ipaddress.ip_address(host)
    except ValueError:
        return False
    inner = getattr(ip, "ipv4_mapped", None) or ip
    return bool(inner.is_loopback or inner.is_unspecified)


def address(data: bytes) -> bool:
    """What a peer says of where it is dialled, and what gRPC says of where it called from."""
    text = data.decode(errors="replace")
    assert "\n" not in host_of(text)
    for host in HOSTS:
        dialled = seen_from(text, host)
        if dialled:
            there, port = parse_dialable("peer", dialled)
            same(format_address(there, port), dialled, "there and back")
            same(seen_from(dialled, host), dialled, "it is told once more")
            assert host == "127.0.0.1" or not is_this_machine(there), "it is the peer's own"
    try:
        parse_address("peers", text)
    except UsageError:
        return False
    return True


def learner_uris(data: bytes) -> bool:
    """The URIs of a certificate that an authority has issued."""
    uris = [part.decode(errors="replace") for part in parted(data)]
    try:
        name = name_in(uris)
    except PeerError as error:
        same(str(error).isprintable(), True, "a line of a log")
        return False
    same([uri_of(name)], uris, "one name has one spelling")
    return True


def certificates(data: bytes) -> bool:
    """A file of certificates; the first bytes may be the DER of one, without a PEM's frame."""
    pem = data
    if data[:1] == b"\x30":
        pem = b"-----BEGIN CERTIFICATE-----\n%s\n-----END CERTIFICATE-----" % base64.b64encode(data)
    try:
        found = certificates_in(pem)
    except ValueError:
        return False
    for certificate in found:
        assert day(certificate.not_before).endswith("UTC")
        assert day(certificate.not_after).endswith("UTC")
    return bool(found)


def certificate_seeds() -> Iterator[bytes]:
    der = base64.b64decode(CERTIFICATE)
    yield der
    lines = "\n".join(textwrap.wrap(CERTIFICATE, 64))
    yield f"-----BEGIN CERTIFICATE-----\n{lines}\n-----END CERTIFICATE-----\n".encode()


TARGETS = (
    Target("address", address, lambda: (text.encode() for text in ADDRESSES)),
    Target(
        "uris", learner_uris, lambda: (joined([uri_of(name).encode()]) for name in ("a", "é b"))
    ),
    Target("certificates", certificates, certificate_seeds),
)
