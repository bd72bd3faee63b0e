"""One secret for all: every process derives the same authority, and another secret another one."""

from __future__ import annotations

import base64
import builtins
import hashlib
import hmac
import os
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mend_optim import Credentials, UsageError
from mend_optim.transport.security.certificate import certificates_in
from mend_optim.transport.security.shared_secret import BEGINNING, END, new_secret, secret_identity
from tests.support.certificates import secret_in, x509

from mend_optim.transport.security.issuing import Authority  # isort: skip - needs the extra

ORDER = 0xFFFFFFFF00000000FFFFFFFFFFFFFFFFBCE6FAADA7179E84F3B9CAC2FC632551


def number_of(secret: bytes) -> int:
    """The number of the authority's key, by RFC 5869 and FIPS 186-5, step by step."""
    key = hmac.digest(bytes(32), secret, "sha256")
    info = b"mend-optim authority 1"
    first = hmac.digest(key, info + b"\x01", "sha256")
    second = hmac.digest(key, first + info + b"\x02", "sha256")
    return int.from_bytes((first + second)[:48], "big") % (ORDER - 1) + 1


@given(st.binary(min_size=32, max_size=32))
def test_the_key_of_a_secret_is_what_the_standards_say(secret: bytes) -> None:
    authority = Authority.of_secret(secret, BEGINNING, END)
    assert authority._key.private_numbers().private_value == number_of(secret)


def test_every_process_derives_the_same_authority(tmp_path: Path) -> None:
    file = secret_in(tmp_path)
    one, two = (secret_identity("credentials", file, name) for name in "ab")
    keys = [certificates_in(identity.authorities)[0].key for identity in (one, two)]
    assert keys[0] == keys[1]
    assert one.host_of("c") == two.host_of("c")
    assert one.key != two.key
    other = secret_identity("credentials", secret_in(tmp_path, "other"), "a")
    assert certificates_in(other.authorities)[0].key != keys[0]


def test_certificates_of_a_secret_need_no_clock(tmp_path: Path) -> None:
    identity = secret_identity("credentials", secret_in(tmp_path), "a")
    for certificate in (*certificates_in(identity.chain), *certificates_in(identity.authorities)):
        assert certificate.not_before < 10**9
        assert certificate.not_after > 2.5 * 10**11


def test_a_certificate_tells_nothing_of_the_secret(tmp_path: Path) -> None:
    """Beside public keys and their identifiers there is nothing that two secrets' have different,
    but what is random in every certificate."""
    shown = []
    of_keys = x509.SubjectAlternativeName, x509.SubjectKeyIdentifier, x509.AuthorityKeyIdentifier
    for file in ("one", "two"):
        identity = secret_identity("credentials", secret_in(tmp_path, file), "a")
        ca = x509.load_pem_x509_certificate(identity.authorities)
        own = x509.load_pem_x509_certificate(identity.chain)
        extensions = [e for c in (ca, own) for e in c.extensions]
        rest = [e for e in extensions if not isinstance(e.value, of_keys)]
        shown.append((ca.subject, ca.issuer, own.subject, own.issuer, rest))
    assert shown[0] == shown[1]


def test_secrets_are_random_and_long() -> None:
    made = {new_secret() for _ in range(100)}
    assert len(made) == 100
    assert all(len(base64.urlsafe_b64decode(s.strip().partition(":")[2])) == 32 for s in made)


SHORT = base64.urlsafe_b64encode(bytes(31)).decode()


@pytest.mark.parametrize(
    "content",
    [
        "",
        "open sesame",
        "mend-secret-1:",
        f"mend-secret-1:{SHORT}",
        "mend-secret-1:" + "é" * 44,
        "mend-secret-1:!" + "A" * 43,
        base64.urlsafe_b64encode(bytes(32)).decode(),
    ],
)
def test_what_is_no_secret_is_refused_and_not_repeated(tmp_path: Path, content: str) -> None:
    file = secret_in(tmp_path)
    file.write_text(content, encoding="utf-8")
    with pytest.raises(UsageError) as caught:
        secret_identity("MEND_SECRET_FILE", file, "a")
    assert str(caught.value) == (
        f"MEND_SECRET_FILE must be a file with a secret of 32 random bytes, got {file} with"
        " something else; make one in a new file: python -m mend_optim.certs secret FILE"
    )


def test_a_folder_is_no_secret(tmp_path: Path) -> None:
    """Its mode is no fault, and another one would lock everybody out of it."""
    tmp_path.chmod(0o755)
    with pytest.raises(UsageError) as caught:
        secret_identity("credentials", tmp_path, "a")
    assert str(caught.value) == (
        f"credentials must be a file that this process can read, got {tmp_path}: Is a directory"
    )


@pytest.mark.skipif(os.name != "posix", reason="permissions are POSIX's")
def test_a_secret_that_others_may_read_is_refused(tmp_path: Path) -> None:
    file = secret_in(tmp_path)
    file.chmod(0o644)
    with pytest.raises(UsageError, match=r"only its owner may read, got .* mode 644; run chmod"):
        secret_identity("credentials", file, "a")


def test_without_the_extra_the_error_names_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = secret_in(tmp_path)
    importing = builtins.__import__

    def without(name: str, *args: Any) -> Any:
        if name.startswith(("cryptography", "mend_optim.transport.security.issuing")):
            raise ImportError(name)
        return importing(name, *args)

    monkeypatch.delitem(sys.modules, "mend_optim.transport.security.issuing")
    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(UsageError, match=r"run pip install 'mend-optim\[certs\]'$"):
        secret_identity("credentials", file, "a")


def test_a_secret_is_in_no_repr(tmp_path: Path) -> None:
    file = secret_in(tmp_path)
    text = file.read_text(encoding="utf-8").strip()
    assert text not in repr(Credentials.secret(file))
    assert hashlib.sha256(text.encode()).hexdigest() not in repr(Credentials.secret(file))


@pytest.mark.parametrize("path", [None, 5, ""])
def test_what_is_no_path_is_refused(path: Any) -> None:
    with pytest.raises(UsageError, match=r"credentials.file must be a path, got"):
        Credentials.secret(path)
    with pytest.raises(UsageError, match=r"credentials.directory must be a path, got"):
        Credentials.files(path)
