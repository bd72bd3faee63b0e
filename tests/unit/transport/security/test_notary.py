"""Signatures with the keys of certificates: right ones count, and each kind of wrong is refused."""

from __future__ import annotations

import builtins
import pickle
import sys
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from mend_optim import Credentials, UsageError
from mend_optim.errors import PeerError
from mend_optim.protocol.proofs import PROOF_LIMIT, Proof
from mend_optim.transport.security.certificate import certificates_in
from mend_optim.transport.security.channels import MutualTls
from mend_optim.transport.security.identity import Identity
from mend_optim.transport.security.issuing import Authority
from mend_optim.transport.security.names import ANY_LEARNER, host_of_name, uri_of

from mend_optim.transport.security.signers import REMEMBERED  # isort: skip
from tests.support.certificates import (
    DAY,
    Encoding,
    files_of,
    issue,
    load_identity,
    middle,
    new_authority,
    root,
    write,
    x509,
)

from mend_optim.transport.security.notary import CertificateNotary  # isort: skip - needs the extra

HOUR = timedelta(hours=1)
AUTHORITY = new_authority()
TOLD = b"what the author of an offer signs"


def identity(
    name: str = "a",
    authority: Authority = AUTHORITY,
    denied: frozenset[str] = frozenset(),
    **k: Any,
) -> Identity:
    chain, key = issue(authority, name, **k)
    return Identity(name=name, authorities=authority.pem, chain=chain, key=key, denied=denied)


def notary(shown: Identity | None = None, **k: Any) -> CertificateNotary:
    shown = shown or identity(**k)
    return CertificateNotary(lambda: shown)


def check(proof: Proof, merged: bool = False, by: CertificateNotary | None = None) -> str:
    return (by or notary(name="me")).check(proof, merged=merged)


@pytest.mark.parametrize("key", ["P-256", "RSA"])
def test_a_signature_tells_its_signer(key: str) -> None:
    proof = notary(name="ä b", key=key).sign(TOLD)
    assert check(proof) == check(proof, merged=True) == "ä b"
    assert Proof.unpacked(proof.packed()) == proof
    assert len(proof.packed()) < PROOF_LIMIT / 4


@pytest.mark.parametrize("key", ["P-256", "RSA"])
def test_what_was_not_signed_is_refused(key: str) -> None:
    proof = notary(key=key).sign(TOLD)
    for changed in (
        proof._replace(statement=TOLD + b"!"),
        proof._replace(signature=proof.signature[:-1] + bytes([proof.signature[-1] ^ 1])),
        proof._replace(signature=b""),
        proof._replace(chain=notary(name="b", key=key).sign(TOLD).chain),
    ):
        with pytest.raises(PeerError, match=r"the signature of '[ab]' is wrong"):
            check(changed)


def test_the_same_statement_has_the_same_signature() -> None:
    """ECDSA would find another one each time."""
    own = notary()
    assert own.sign(TOLD) == own.sign(TOLD) != own.sign(TOLD + b"!")


def test_ones_own_signatures_are_known_as_long_as_there_is_room() -> None:
    """They count without a look at the certificate, which may have expired meanwhile."""
    late = notary(begin=-3 * DAY, end=-DAY)
    proof = late.sign(TOLD)
    assert late.check(proof, merged=True) == "a"
    with pytest.raises(PeerError, match=r"wrong|valid from"):
        late.check(proof._replace(signature=b""), merged=True)
    for i in range(REMEMBERED):
        late.sign(b"%d" % i)
    with pytest.raises(PeerError, match="'a' is valid from"):
        late.check(proof, merged=True)


def test_a_key_of_another_kind_neither_signs_nor_counts() -> None:
    """Peers could not check what it signs."""
    other = identity(key="Ed25519")
    with pytest.raises(PeerError, match="neither of ECDSA nor of RSA"):
        notary(other).sign(TOLD)
    (der,) = (c.public_bytes(Encoding.DER) for c in x509.load_pem_x509_certificates(other.chain))
    with pytest.raises(PeerError, match="neither of ECDSA nor of RSA"):
        check(notary().sign(TOLD)._replace(chain=(der,)))


# ── certificates ──────────────────────────────────────────────────────────────────────────────────


def test_another_authority_vouches_for_nobody() -> None:
    """It has the same name."""
    proof = notary(authority=new_authority()).sign(TOLD)
    with pytest.raises(PeerError, match="is of an unknown authority"):
        check(proof)


def test_either_of_two_authorities_vouches() -> None:
    other = new_authority()
    shown = identity("me")
    both = Identity(
        name="me", authorities=other.pem + AUTHORITY.pem, chain=shown.chain, key=shown.key
    )
    for authority in (AUTHORITY, other):
        assert check(notary(authority=authority).sign(TOLD), by=notary(both)) == "a"


@pytest.mark.parametrize("garbage", [b"", b"garbage"])
def test_a_certificate_that_is_none_is_refused(garbage: bytes) -> None:
    with pytest.raises(PeerError, match="the certificate of a signature is damaged"):
        check(notary().sign(TOLD)._replace(chain=(garbage,)))


def test_a_certificate_of_no_version_is_refused() -> None:
    """The package `cryptography` raises an error of its own there, which is no `ValueError`."""
    proof = notary().sign(TOLD)
    version = bytes.fromhex("a003020102")
    assert version in proof.chain[0]
    with pytest.raises(PeerError, match="the certificate of a signature is damaged"):
        check(proof._replace(chain=(proof.chain[0].replace(version, version[:-1] + b"t"),)))


@pytest.mark.parametrize("uris", [[], ["https://a"], [uri_of("a"), uri_of("b")]])
def test_a_certificate_without_one_name_is_refused(uris: list[str]) -> None:
    with pytest.raises(PeerError, match="URI"):
        check(notary(uris=uris).sign(TOLD))


def test_a_certificate_without_names_at_all_is_refused() -> None:
    with pytest.raises(PeerError, match="certificate of a signature is damaged"):
        check(notary(uris=[], hosts=[]).sign(TOLD))


@pytest.mark.parametrize(
    ("begin", "end", "counts", "counts_in_seal"),
    [
        (-DAY, DAY, True, True),
        (-2 * DAY, -HOUR / 2, True, True),
        (-2 * DAY, -3 * HOUR / 2, False, True),
        (-2 * DAY, -5 * HOUR / 2, False, False),
        (HOUR / 2, DAY, True, True),
        (3 * HOUR / 2, DAY, False, True),
        (5 * HOUR / 2, DAY, False, False),
    ],
)
def test_a_certificate_counts_a_little_longer_and_in_a_seal_longer_still(
    begin: timedelta, end: timedelta, counts: bool, counts_in_seal: bool
) -> None:
    proof = notary(begin=begin, end=end).sign(TOLD)
    for merged, good in ((False, counts), (True, counts_in_seal)):
        if good:
            assert check(proof, merged) == "a"
        else:
            with pytest.raises(PeerError, match="the certificate of 'a' is valid from 20"):
                check(proof, merged)


def test_who_is_denied_offers_nothing_but_ends_no_round() -> None:
    signer = identity()
    proof = notary(signer).sign(TOLD)
    for entry in ("a", signer.certificate.sha256):
        own = notary(name="me", denied=frozenset((entry,)))
        with pytest.raises(PeerError, match="'a' is denied here"):
            check(proof, by=own)
        assert check(proof, merged=True, by=own) == "a"
    assert check(proof, by=notary(name="me", denied=frozenset(("b",)))) == "a"


def through(*between: tuple[Authority, bytes], authorities: bytes) -> tuple[Proof, bytes]:
    """A proof whose certificate the last of these has issued, and its chain in PEM."""
    own, key = issue(between[-1][0], "a")
    chain = own + b"".join(pem for _, pem in reversed(between))
    shown = Identity(name="a", authorities=authorities, chain=chain, key=key)
    return notary(shown).sign(TOLD), chain


def by_root(top: Authority) -> CertificateNotary:
    return notary(identity("me", top))


def test_a_chain_of_authorities_vouches() -> None:
    top = root(1)
    first = middle(top, ca=True)
    proof, _ = through(first, authorities=top.pem)
    assert len(proof.chain) == 2
    assert check(proof, by=by_root(top)) == "a"
    whole = proof._replace(
        chain=(*proof.chain, x509.load_pem_x509_certificate(top.pem).public_bytes(Encoding.DER))
    )
    assert check(whole, by=by_root(top)) == "a"
    second = middle(first[0], ca=True)
    farther, _ = through(first, second, authorities=top.pem)
    with pytest.raises(PeerError, match="an authority is too far from a certificate"):
        check(farther, by=by_root(top))
    other = through(middle(root(1), ca=True), authorities=top.pem)[0].chain[1]
    with pytest.raises(PeerError, match="is of an unknown authority"):
        check(proof._replace(chain=(proof.chain[0], other)), by=by_root(top))
    with pytest.raises(PeerError, match="a certificate was not issued by the next one"):
        check(proof._replace(chain=(farther.chain[0], proof.chain[1])), by=by_root(top))


NARROW = x509.NameConstraints(
    permitted_subtrees=[x509.DNSName("example.org")], excluded_subtrees=None
)
ANYWHERE = x509.NameConstraints(permitted_subtrees=None, excluded_subtrees=[x509.DNSName("b.c")])
STRANGE = x509.UnrecognizedExtension(x509.ObjectIdentifier("1.2.3.4"), b"x")
NO_ISSUING = x509.KeyUsage(True, False, False, False, False, False, False, False, False)
ENCIPHERS = x509.KeyUsage(False, False, True, False, False, False, False, False, False)


@pytest.mark.parametrize(
    ("limits", "why"),
    [
        ({}, "issued by one of no authority"),
        ({"ca": False}, "issued by one of no authority"),
        ({"ca": True, "extensions": [NARROW]}, "has a critical extension"),
        ({"ca": True, "extensions": [STRANGE]}, "has a critical extension"),
        ({"ca": True, "extensions": [NO_ISSUING]}, "may not issue certificates"),
    ],
)
def test_no_learner_and_no_limited_authority_issues_certificates(
    limits: dict[str, Any], why: str
) -> None:
    top = root(None)
    proof, _ = through(middle(top, **limits), authorities=top.pem)
    with pytest.raises(PeerError, match=why):
        check(proof, by=by_root(top))


def test_a_key_that_is_not_for_signatures_signs_nothing() -> None:
    for usage, is_for_signatures in ((NO_ISSUING, True), (ENCIPHERS, False)):
        proof = notary(extensions=[usage]).sign(TOLD)
        if is_for_signatures:
            assert check(proof) == "a"
        else:
            with pytest.raises(PeerError, match="a certificate is not for signatures"):
                check(proof)


# ── credentials ───────────────────────────────────────────────────────────────────────────────────


def test_a_new_certificate_signs_from_then_on() -> None:
    shown = [identity()]
    own = CertificateNotary(lambda: shown[0])
    former = own.sign(TOLD)
    shown[0] = identity()
    assert own.sign(TOLD).chain != former.chain
    assert check(own.sign(TOLD)) == check(former) == "a"
    other = new_authority()
    shown[0] = identity(authority=other)
    with pytest.raises(PeerError, match="unknown authority"):
        own.check(former, merged=True)


def test_credentials_make_a_notary_if_they_are_to(tmp_path: Path) -> None:
    directory = files_of(tmp_path / "a", AUTHORITY, "a")
    for signed in (False, True):
        credentials = Credentials.files(directory, signed=signed)
        shown = load_identity("credentials", credentials, "a")
        secured = MutualTls(shown, "files", notary=CertificateNotary if signed else None)
        assert (secured.notary is not None) is signed
        assert secured.described().endswith(", offers signed") is signed
        assert repr(credentials) == f"Credentials.files({str(directory)!r}" + (
            ", signed=True)" if signed else ")"
        )


def test_signed_is_a_bool() -> None:
    with pytest.raises(UsageError, match=r"credentials\.signed must be True or False, got 1"):
        Credentials.files("a", signed=1)  # type: ignore[arg-type]


def test_a_chain_that_no_peer_would_check_is_refused_at_the_start(tmp_path: Path) -> None:
    """TLS would take all of them."""
    top = root(None)
    made = [middle(top, ca=True)]
    for _ in range(3):
        made.append(middle(made[-1][0], ca=True))
    for between, why in (
        (made, "got there are 5 certificates; issue them again, or leave signed out"),
        ([middle(top, ca=True, extensions=[ANYWHERE])], "got a certificate has a critical ext"),
    ):
        hosts = [host_of_name("a", certificates_in(top.pem)[0].key), ANY_LEARNER]
        own, key = issue(between[-1][0], "a", hosts=hosts)
        chain = own + b"".join(pem for _, pem in reversed(between))
        directory = write(tmp_path / "a", top.pem, chain, key)
        load_identity("credentials", Credentials.files(directory), "a")
        with pytest.raises(UsageError, match=f"must be certificates that signatures .*, {why}"):
            load_identity("credentials", Credentials.files(directory, signed=True), "a")


def test_a_certificate_that_fits_into_no_proof_is_refused_at_the_start(tmp_path: Path) -> None:
    hosts = [host_of_name("a", certificates_in(AUTHORITY.pem)[0].key), ANY_LEARNER]
    for others, fits in ((10, True), (200, False)):
        more = [f"a-host-of-this-learner-{i}.example.org" for i in range(others)]
        directory = files_of(tmp_path / "a", AUTHORITY, "a", hosts=[*hosts, *more])
        credentials = Credentials.files(directory, signed=True)
        if fits:
            load_identity("credentials", credentials, "a")
        else:
            with pytest.raises(UsageError, match="got the certificates have"):
                load_identity("credentials", credentials, "a")


def test_without_the_extra_the_error_names_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    directory = files_of(tmp_path / "a", AUTHORITY, "a")
    importing = builtins.__import__

    def without(name: str, *args: Any) -> Any:
        if name.startswith(("cryptography", "mend_optim.transport.security.notary")):
            raise ImportError(name)
        return importing(name, *args)

    monkeypatch.delitem(sys.modules, "mend_optim.transport.security.notary")
    monkeypatch.setattr(builtins, "__import__", without)
    load_identity("credentials", Credentials.files(directory), "a")
    with pytest.raises(UsageError) as caught:
        load_identity("credentials", Credentials.files(directory, signed=True), "a")
    assert str(caught.value) == (
        "credentials.signed must be False without the package cryptography, got True; run pip"
        " install 'mend-optim[certs]'"
    )


def test_no_key_leaves_a_notary() -> None:
    shown = identity()
    own = notary(shown)
    own.sign(TOLD)
    assert shown.key.splitlines()[1].decode() not in repr(vars(own)) + repr(vars(own._keys))
    with pytest.raises(Exception, match="pickle"):
        pickle.dumps(own._keys)
