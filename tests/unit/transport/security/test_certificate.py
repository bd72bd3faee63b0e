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


PLACES = st.integers(0, 255)


@given(st.lists(st.tuples(PLACES, PLACES), min_size=1, max_size=4), st.none() | PLACES)
def test_damage_is_never_more_than_a_wrong_value(
    changes: list[tuple[int, int]], cut: int | None
) -> None:
    pem, _ = issue(AUTHORITY, "a")
    der = bytearray(base64.b64decode(b"".join(pem.splitlines()[1:-1])))
    for place, byte in changes:
        der[place] = byte
    block = b"-----BEGIN CERTIFICATE-----\n%b\n-----END CERTIFICATE-----\n"
    with suppress(ValueError):
        certificates_in(block % base64.b64encode(der[:cut]))


def test_a_moment_is_told_to_the_minute() -> None:
    moment = datetime(2026, 3, 1, 12, 30, tzinfo=timezone.utc).timestamp()
    assert day(moment) == "2026-03-01 12:30 UTC"
