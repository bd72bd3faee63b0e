"""The proofs of a seal's members, and the certificates that come with them: they are read by every
learner, and by everybody that checks a ledger."""

from __future__ import annotations

import base64
from collections.abc import Iterator
from functools import cache
from typing import Any

from mend_optim.errors import PeerError
from mend_optim.protocol.proofs import Proof, proofs_in
from mend_optim.protocol.statement import decode, encode, pack, statement_of
from tests.fuzz.target import Target, same
from tests.support.engines import PEER, THIRD, offer_of

#: An authority, and two certificates of a learner, in DER as base64.
AUTHORITY = """
MIIBWDCB/qADAgECAhRTcAF/BFxeX9znh3S5qQXVkpwp7TAKBggqhkjOPQQDAjAYMRYwFAYDVQQDDA10aGUgYXV0aG9yaXR5
MB4XDTI2MTEyMzExMTQ0NloXDTM2MTEyMTExMTQ0NlowGDEWMBQGA1UEAwwNdGhlIGF1dGhvcml0eTBZMBMGByqGSM49AgEG
CCqGSM49AwEHA0IABErDVRxvopnBYYfBen60UMHgOdJOzZUmc1jN/6nKx3LeJ1vzwUYhm2fafB/bN89GCMladXCo9cOPmCZV
JP+8l7+jJjAkMBIGA1UdEwEB/wQIMAYBAf8CAQAwDgYDVR0PAQH/BAQDAgEGMAoGCCqGSM49BAMCA0kAMEYCIQCuMWosq3DD
kN1hEQsrxchBtuPe2jBEhwwvCBhJh/KM/QIhAPvVSFNbn0wRnGt9PrXIMvwjW4IKmFzYURz5BHG1bq1s
"""
LEARNER = """
MIIByTCCAW+gAwIBAgIUFvNqQo7G3ix6ry4MPEeoU4kMWcEwCgYIKoZIzj0EAwIwGDEWMBQGA1UEAwwNdGhlIGF1dGhvcml0
eTAeFw0yNjExMjMxMTE0NDZaFw0yNjEyMjQxMTE0NDZaMAwxCjAIBgNVBAMMAXgwWTATBgcqhkjOPQIBBggqhkjOPQMBBwNC
AAQqnq23fqquKIkp4cuopaYzPuN4KMKLT65XCwjXeOziGT97qNNuwt5yRTCafCUpQZfxFc4PyWymVWydt66OAYH0o4GiMIGf
MH4GA1UdEQR3MHWGDW1lbmQtb3B0aW06WVGCSG5ob2o1dmJwMzcyY2RuZnAzMnNvbm1rYmFhYm52Y2VtZG5qMzNzdmt1NHBu
dHU3dHFjYXZhLm1lbmQtb3B0aW0uaW52YWxpZIIabGVhcm5lci5tZW5kLW9wdGltLmludmFsaWQwHQYDVR0lBBYwFAYIKwYB
BQUHAwEGCCsGAQUFBwMCMAoGCCqGSM49BAMCA0gAMEUCIFy6Yn2WA7e3HNybE/WQt0u2cLH8VCjgB9aNDWTsL/itAiEAilX3
p1KB2h2dds4J15rMEw+TcmmY3Pd8sFR0D5ptr/U=
"""
OTHER = """
MIIByTCCAW+gAwIBAgIUJhoYO7UpGm/CA5eaD47A3mowhJgwCgYIKoZIzj0EAwIwGDEWMBQGA1UEAwwNdGhlIGF1dGhvcml0
eTAeFw0yNjExMjMxMTE0NDZaFw0yNjEyMjQxMTE0NDZaMAwxCjAIBgNVBAMMAXgwWTATBgcqhkjOPQIBBggqhkjOPQMBBwNC
AAT3IyjD1jL+leVKhULpQsdw9ln47aLLueUWU6UiaOa1nUX9iqZe+Pm/3isgj0M4kxCzfFanGh1JCH0VvvDsoNFeo4GiMIGf
MH4GA1UdEQR3MHWGDW1lbmQtb3B0aW06WVGCSG5ob2o1dmJwMzcyY2RuZnAzMnNvbm1rYmFhYm52Y2VtZG5qMzNzdmt1NHBu
dHU3dHFjYXZhLm1lbmQtb3B0aW0uaW52YWxpZIIabGVhcm5lci5tZW5kLW9wdGltLmludmFsaWQwHQYDVR0lBBYwFAYIKwYB
BQUHAwEGCCsGAQUFBwMCMAoGCCqGSM49BAMCA0gAMEUCIEPNFksyBqf3p4YNbNBnzVkY4whp0K7q1rHu/3OGRkoNAiEArDRp
Luw9DsWpwpkEZKCaXHUQMmjcmPudp+mzWzdCNlM=
"""


def proofs(data: bytes) -> bool:
    """The section "proofs" of a seal."""
    try:
        found = proofs_in(data, 4)
        told = [decode(proof.statement) for proof in found]
    except PeerError:
        return False
    same(pack(proof.packed() for proof in found), data, "proofs there and back")
    for statement, proof in zip(told, found, strict=True):
        same(encode(statement), proof.statement, "a statement there and back")
    return bool(found)


def proof_seeds() -> Iterator[bytes]:
    made = [
        Proof(encode(statement_of(offer_of(peer), bytes(64))), b"signature", (b"certificate",))
        for peer in (PEER, THIRD)
    ]
    yield pack([made[0].packed()])
    yield pack(proof.packed() for proof in made)


@cache
def authorities() -> Any:
    from mend_optim.transport.security.signers import Authorities

    pem = "-----BEGIN CERTIFICATE-----{}-----END CERTIFICATE-----\n"
    return Authorities(pem.format(AUTHORITY).encode())


def signer(data: bytes) -> bool:
    """The certificate of a signature."""
    try:
        # Not from its memory, where the fuzzer would see nothing of what a certificate takes.
        found = authorities().signer.__wrapped__((data,))
    except PeerError:
        return False
    same(found.name, "a", "nobody else has a certificate of this authority")
    return True


def signer_seeds() -> Iterator[bytes]:
    yield base64.b64decode(LEARNER)
    yield base64.b64decode(OTHER)


TARGETS = (
    Target("proofs", proofs, proof_seeds),
    Target("signer", signer, signer_seeds),
)
