"""The fields of certificates, as another library reads them."""

from __future__ import annotations

import base64
from contextlib import suppress
from datetime import datetime, timedelta, timezone

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mend_optim.transport.security.certificate import certificates_in, day
from tests.support.certificates import (
    DAY,
    KEYS,
    SHA256,
    Encoding,
    issue,
    new_authority,
    x509,
)

from cryptography.hazmat.primitives.serialization import PublicFormat  # isort: skip

AUTHORITY = new_authority()


@pytest.mark.parametrize("key", KEYS)
@pytest.mark.parametrize("end", [DAY, 365 * 40 * DAY])
def test_fields_are_those_that_another_library_reads(key: str, end: timedelta) -> None:
    pem, _ = issue(AUTHORITY, "a", key=key, begin=-365 * 30 * DAY, end=end)
    (read,) = certificates_in(pem)
    known = x509.load_pem_x509_certificate(pem)
    assert read.sha256 == known.fingerprint(SHA256()).hex()
    assert read.key == known.public_key().public_bytes(
        Encoding.DER, PublicFormat.SubjectPublicKeyInfo
    )
    assert read.not_before == known.not_valid_before_utc.timestamp()
    assert read.not_after == known.not_valid_after_utc.timestamp()
    assert read.has_edwards_key == (key == "Ed25519")


def test_all_certificates_of_a_file_are_read_and_nothing_else() -> None:
    chain, key = issue(AUTHORITY, "a")
    both = certificates_in(b"a comment\n" + chain + key + AUTHORITY.pem)
    assert both == [*certificates_in(chain), *certificates_in(AUTHORITY.pem)]
    assert certificates_in(key) == []


def pem_of(der: bytes) -> bytes:
    block = b"-----BEGIN CERTIFICATE-----\n%b\n-----END CERTIFICATE-----\n"
    return block % base64.b64encode(der)


def der_of(pem: bytes) -> bytes:
    return base64.b64decode(b"".join(pem.splitlines()[1:-1]))


def test_a_certificate_that_was_cut_short_is_refused() -> None:
    """Its last bytes are the signature, which is not among the fields."""
    whole = der_of(AUTHORITY.pem)
    assert len(certificates_in(pem_of(whole))) == 1
    with pytest.raises(ValueError, match="ends within a field"):
        certificates_in(pem_of(whole[:-1]))


def test_a_text_is_no_time() -> None:
    pem, _ = issue(AUTHORITY, "a", end=365 * 40 * DAY)
    whole = der_of(pem)
    generalized, text = b"\x18\x0f20", b"\x13\x0f20"
    assert whole.count(generalized) == 1
    with pytest.raises(ValueError, match="tag 19 is no time"):
        certificates_in(pem_of(whole.replace(generalized, text)))


PLACES = st.integers(0, 255)


@given(st.lists(st.tuples(PLACES, PLACES), min_size=1, max_size=4), st.none() | PLACES)
def test_damage_is_never_more_than_a_wrong_value(
    changes: list[tuple[int, int]], cut: int | None
) -> None:
    pem, _ = issue(AUTHORITY, "a")
    der = bytearray(der_of(pem))
    for place, byte in changes:
        der[place] = byte
    with suppress(ValueError):
        certificates_in(pem_of(bytes(der[:cut])))


def test_a_moment_is_told_to_the_minute() -> None:
    moment = datetime(2026, 3, 1, 12, 30, tzinfo=timezone.utc).timestamp()
    assert day(moment) == "2026-03-01 12:30 UTC"
