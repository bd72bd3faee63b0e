"""The few fields of an X.509 certificate (RFC 5280) that Python's `ssl` does not show, or shows
only of a certificate that it trusts. The certificates read here are the user's own, or have been
verified by TLS."""

from __future__ import annotations

import base64
import hashlib
import re
from dataclasses import dataclass
from datetime import datetime, timezone

_PEM = re.compile(rb"-----BEGIN CERTIFICATE-----\s+(.+?)-----END CERTIFICATE-----", re.DOTALL)
# Tags of DER.
_SEQUENCE = 0x30
_EXPLICIT_VERSION = 0xA0
_UTC_TIME = 0x17
_GENERALIZED_TIME = 0x18
#: The object identifiers 1.3.101.112 and 1.3.101.113, of keys that gRPC takes no certificate of.
_EDWARDS_KEYS = (bytes.fromhex("06032b6570"), bytes.fromhex("06032b6571"))


@dataclass(frozen=True, slots=True, kw_only=True)
class Certificate:
    """The fields of one certificate."""

    #: SHA-256 of the whole certificate, in hex.
    sha256: str
    #: The public key, as the DER encoding of a SubjectPublicKeyInfo.
    key: bytes
    #: The first moment at which it is valid, in Unix seconds.
    not_before: float
    #: The last one.
    not_after: float

    @property
    def has_edwards_key(self) -> bool:
        """Whether its key is of Ed25519 or Ed448."""
        return any(oid in self.key[:16] for oid in _EDWARDS_KEYS)


def day(seconds: float) -> str:
    """Return a moment as people read it. A certificate may outlive what `datetime` can show."""
    return datetime.fromtimestamp(seconds, timezone.utc).strftime("%Y-%m-%d %H:%M UTC")


def certificates_in(pem: bytes) -> list[Certificate]:
    """Return the certificates of a PEM file, in their order.

    Raises:
        ValueError: One of them is not a certificate.
    """
    return [_read(base64.b64decode(block)) for block in _PEM.findall(pem)]


def _read(der: bytes) -> Certificate:
    try:
        _, whole, _ = _element(der)
        _, signed, _ = _element(whole)
        fields = _elements(signed)
        if fields[0][0] == _EXPLICIT_VERSION:
            fields = fields[1:]
        # serial number, signature algorithm, issuer, validity, subject, key
        begin, end = _elements(fields[3][1])
        return Certificate(
            sha256=hashlib.sha256(der).hexdigest(),
            key=fields[5][2],
            not_before=_moment(*begin[:2]),
            not_after=_moment(*end[:2]),
        )
    except IndexError as fault:
        raise ValueError("it ends within a field") from fault


def _elements(data: bytes) -> list[tuple[int, bytes, bytes]]:
    """Return (tag, content, whole encoding) of each element."""
    found = []
    while data:
        tag, content, rest = _element(data)
        found.append((tag, content, data[: len(data) - len(rest)]))
        data = rest
    return found


def _element(data: bytes) -> tuple[int, bytes, bytes]:
    """Return the first element's tag and content, and what follows it."""
    tag, size, at = data[0], data[1], 2
    if size >= 0x80:
        at += size - 0x80
        size = int.from_bytes(data[2:at], "big")
    if len(data) < at + size:
        raise ValueError("it ends within a field")
    return tag, data[at : at + size], data[at + size :]


def _moment(tag: int, content: bytes) -> float:
    text = content.decode("ascii")
    if tag == _UTC_TIME:
        # RFC 5280: years from 50 on are of the last century
        text = ("19" if text[:2] >= "50" else "20") + text
    elif tag != _GENERALIZED_TIME:
        raise ValueError(f"tag {tag} is no time")
    return datetime.strptime(text, "%Y%m%d%H%M%SZ").replace(tzinfo=timezone.utc).timestamp()
