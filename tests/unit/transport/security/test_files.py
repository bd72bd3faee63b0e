"""The files of a learner: what is wrong with them is said when they are read, with the remedy."""

from __future__ import annotations

import copy
import os
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from mend_optim import Credentials, UsageError
from mend_optim.transport.security import files
from mend_optim.transport.security.files import name_of_files, read_identity
from mend_optim.transport.security.identity import Identity
from mend_optim.transport.security.names import ANY_LEARNER, uri_of
from tests.support.certificates import (
    BOTH,
    CLIENT,
    DAY,
    SERVER,
    files_of,
    issue,
    load_identity,
    middle,
    new_authority,
    root,
    secret_in,
    write,
)

OURS, OTHERS = new_authority(), new_authority()
ISSUE = "python -m mend_optim.certs issue"


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    return tmp_path / "pki"


def error_of(directory: Path, name: str = "a") -> str:
    with pytest.raises(UsageError) as caught:
        read_identity("credentials", directory, name)
    return str(caught.value)


@pytest.mark.parametrize("key", ["P-256", "RSA"])
@pytest.mark.parametrize("usage", [BOTH, None])
def test_right_files_are_taken(directory: Path, key: str, usage: Any) -> None:
    files_of(directory, OURS, "a", key=key, usage=usage)
    identity = read_identity("credentials", directory, "a")
    assert identity.name == "a"
    assert identity.authorities == (directory / "ca.pem").read_bytes()
    assert identity.chain == (directory / "cert.pem").read_bytes()
    assert identity.key == (directory / "key.pem").read_bytes()
    assert identity.denied == frozenset()


def test_names_of_any_kind_are_taken(directory: Path) -> None:
    name = "ä ☃/" * 20
    files_of(directory, OURS, name)
    assert read_identity("credentials", directory, name).name == name


def test_while_authorities_change_the_first_decides_on_hosts(directory: Path) -> None:
    old = issue(OURS, "a")
    write(directory, OURS.pem + OTHERS.pem, *old)
    assert read_identity("credentials", directory, "a").host_of("b") == read_identity(
        "credentials", files_of(directory, OURS, "a"), "a"
    ).host_of("b")


WRONG: dict[str, tuple[dict[str, Any], str]] = {
    "Ed25519": (
        {"key": "Ed25519"},
        "credentials must have a key of ECDSA P-256 or RSA, got Ed25519 or Ed448 in {cert}, which"
        f" gRPC refuses at every handshake; issue it anew: {ISSUE}",
    ),
    "expired": (
        {"begin": -9 * DAY, "end": -DAY},
        "credentials must be valid now, got {cert}, which expired on ",
    ),
    "not yet valid": (
        {"begin": DAY},
        "credentials must be valid now, got {cert}, which is valid from ",
    ),
    "no server": (
        {"usage": [CLIENT]},
        "credentials must allow both serverAuth and clientAuth, got {cert}, whose extended key"
        f" usage does not; issue it again: {ISSUE}",
    ),
    "no client": (
        {"usage": [SERVER]},
        "credentials must allow both serverAuth and clientAuth, got {cert}, whose extended key"
        f" usage does not; issue it again: {ISSUE}",
    ),
    "no URI": (
        {"uris": []},
        f"credentials must be the certificate of 'a', with the one URI {uri_of('a')}, got {{cert}}"
        " with none; ",
    ),
    "two URIs": (
        {"uris": [uri_of("a"), "spiffe://there/a"]},
        f"credentials must be the certificate of 'a', with the one URI {uri_of('a')}, got {{cert}}"
        f" with ['{uri_of('a')}', 'spiffe://there/a']; ",
    ),
    "another's host": (
        {"hosts": ["nabc.mend-optim.invalid", ANY_LEARNER]},
        "credentials must have the DNS names n",
    ),
    "no common host": (
        {"hosts": ["nabc.mend-optim.invalid"]},
        "credentials must have the DNS names n",
    ),
    "an encrypted key": (
        {"password": b"open sesame"},
        "credentials must be a certificate and its key in PEM, the key not encrypted, got {cert}",
    ),
}


@pytest.mark.parametrize("wrong", WRONG)
def test_a_wrong_certificate_is_refused_with_the_reason(directory: Path, wrong: str) -> None:
    told, message = WRONG[wrong]
    files_of(directory, OURS, "a", **told)
    said = error_of(directory)
    assert said.startswith(message.replace("{cert}", str(directory / "cert.pem")))
    assert "; " in said or "password" in told


def test_the_hosts_that_are_missing_are_named(directory: Path) -> None:
    files_of(directory, OURS, "a", hosts=["there"])
    said = error_of(directory)
    assert ANY_LEARNER in said.partition("without")[2]
    own = said.split()[6]
    files_of(directory, OURS, "a", hosts=[own])
    assert f"without {ANY_LEARNER};" in error_of(directory)
    files_of(directory, OURS, "a", hosts=[ANY_LEARNER])
    assert f"without {own};" in error_of(directory)


def test_the_certificate_of_another_learner_is_refused(directory: Path) -> None:
    files_of(directory, OURS, "b")
    assert "must be the certificate of 'a'" in error_of(directory)


def test_the_certificate_of_another_authority_is_refused(directory: Path) -> None:
    write(directory, OTHERS.pem, *issue(OURS, "a"))
    said = error_of(directory)
    ca, cert = directory / "ca.pem", directory / "cert.pem"
    assert said.startswith(f"credentials must be signed by an authority of {ca}, got {cert}: ")
    assert "copy the authority's ca.pem" in said


@pytest.mark.parametrize("read", [read_identity, lambda *where: name_of_files(*where[:2])])
@pytest.mark.parametrize("wrong", ["expired", "not yet valid"])
def test_the_dates_are_said_also_where_the_name_is_not_known(
    directory: Path, wrong: str, read: Callable[..., Any]
) -> None:
    told, message = WRONG[wrong]
    files_of(directory, OURS, "a", **told)
    with pytest.raises(UsageError) as caught:
        read("credentials", directory, "a")
    said = str(caught.value)
    assert said.startswith(message.replace("{cert}", str(directory / "cert.pem")))
    assert said.endswith("set this machine's clock right")


@pytest.mark.parametrize(
    ("begin", "end", "when", "remedy"),
    [
        (
            -9 * DAY,
            -DAY,
            "which expired on ",
            "; make another one in a new folder (python -m mend_optim.certs init), issue all"
            " certificates there, or set this machine's clock right",
        ),
        (DAY, 9 * DAY, "which is valid from ", " UTC; set this machine's clock right"),
    ],
)
def test_an_authority_whose_time_it_is_not_is_named(
    directory: Path, begin: Any, end: Any, when: str, remedy: str
) -> None:
    """A certificate that is issued again by it would be as wrong, and a copy of `ca.pem`, too."""
    files_of(directory, new_authority(begin, end), "a")
    said = error_of(directory)
    assert said.startswith(
        "credentials must have authorities that are valid now, got one of"
        f" {directory / 'ca.pem'}, {when}"
    )
    assert said.endswith(remedy)


def test_a_certificate_between_whose_time_it_is_not_is_named(directory: Path) -> None:
    top = root(1)
    below, pem = middle(top, ca=True, begin=-9 * DAY, end=-DAY)
    own, key = issue(below, "a")
    write(directory, top.pem, own + pem, key)
    said = error_of(directory)
    cert = directory / "cert.pem"
    assert said.startswith(
        f"credentials must be valid now, got a certificate of {cert}, which expired on "
    )
    assert said.endswith(f"; issue it again ({ISSUE}), or set this machine's clock right")


def test_an_authority_that_has_expired_beside_a_valid_one_is_no_fault(directory: Path) -> None:
    old = new_authority(-9 * DAY, -DAY)
    write(directory, OURS.pem + old.pem, *issue(OURS, "a"))
    assert read_identity("credentials", directory, "a").name == "a"


def test_the_key_of_another_certificate_is_refused(directory: Path) -> None:
    write(directory, OURS.pem, issue(OURS, "a")[0], issue(OURS, "a")[1])
    said = error_of(directory)
    assert said.startswith(
        f"credentials must have the key of its certificate, got {directory / 'key.pem'}, which is"
    )


@pytest.mark.parametrize("file", ["ca.pem", "cert.pem", "key.pem"])
def test_a_missing_file_is_named(directory: Path, file: str) -> None:
    (files_of(directory, OURS, "a") / file).unlink()
    assert error_of(directory) == (
        f"credentials must be a file that this process can read, got {directory / file}:"
        " No such file or directory"
    )


def test_a_file_is_no_directory_of_credentials(tmp_path: Path) -> None:
    file = secret_in(tmp_path)
    with pytest.raises(UsageError) as caught:
        load_identity("credentials", Credentials.files(file), "a")
    assert str(caught.value) == (
        f"credentials must be a file that this process can read, got {file / 'key.pem'}:"
        " Not a directory"
    )


@pytest.mark.parametrize("file", ["ca.pem", "cert.pem", "key.pem"])
def test_garbage_in_a_file_is_named(directory: Path, file: str) -> None:
    (files_of(directory, OURS, "a") / file).write_text("garbage")
    said = error_of(directory)
    assert said.startswith("credentials must ")
    assert str(directory / file) in said


@pytest.mark.skipif(os.name != "posix", reason="permissions are POSIX's")
@pytest.mark.parametrize("mode", [0o640, 0o604, 0o620, 0o601, 0o644])
def test_a_key_that_others_may_use_is_refused(directory: Path, mode: int) -> None:
    key = files_of(directory, OURS, "a") / "key.pem"
    key.chmod(mode)
    assert error_of(directory) == (
        f"credentials must be a file that only its owner may read, got {key} with mode {mode:o};"
        f" run chmod 600 {key}"
    )
    key.chmod(0o400)
    read_identity("credentials", directory, "a")


def test_files_that_change_meanwhile_are_refused(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files_of(directory, OURS, "a")
    shake: Callable[..., Any] = files._shake_hands

    def rotated(source: str, where: Path) -> Any:
        shown = shake(source, where)
        files_of(directory, OURS, "a")
        return shown

    monkeypatch.setattr(files, "_shake_hands", rotated)
    assert "must be files that stand still" in error_of(directory)


def test_the_denied_are_read_in_any_spelling(directory: Path) -> None:
    files_of(directory, OURS, "a")
    digest = "0a" * 32
    colons = ":".join(["0A"] * 32)
    text = f"# gone since March\nb\n\n  the other \n{colons}\n"
    (directory / "deny.txt").write_text(text, encoding="utf-8")
    denied = read_identity("credentials", directory, "a").denied
    assert denied == {"b", "the other", digest}


def test_the_denied_are_read_in_any_form_of_unicode(directory: Path) -> None:
    files_of(directory, OURS, "a")
    (directory / "deny.txt").write_text("\ufeffmallory\nbob\ncafe\u0301\n", encoding="utf-8")
    denied = read_identity("credentials", directory, "a").denied
    assert denied == {"mallory", "bob", "caf\u00e9"}


@pytest.mark.parametrize(
    ("entry", "fault"),
    [
        ("mal\u200blory", r"name 'mal\u200blory' is not printable text in NFC"),
        ("\ufeffmallory", r"name '\ufeffmallory' is not printable text in NFC"),
        ("m\0a\0l\0", r"name 'm\x00a\x00l\x00' is not printable text in NFC"),
        ("x" * 257, "name is 257 bytes; the limit is 256"),
        (f"SHA-256  {'0a' * 32}", "a SHA-256 must stand on its line alone, without its label"),
        (
            f"sha256 Fingerprint={':'.join(['0A'] * 32)}",
            "a SHA-256 must stand on its line alone, without its label",
        ),
    ],
    ids=["a-zero-width-space", "a-second-mark", "utf-16", "too-long", "as-shown", "of-openssl"],
)
def test_an_entry_that_would_shut_nobody_out_is_refused(
    directory: Path, entry: str, fault: str
) -> None:
    path = files_of(directory, OURS, "a") / "deny.txt"
    path.write_text(f"# gone\nbob\n{entry}\n", encoding="utf-8")
    assert error_of(directory) == (
        "credentials must have a learner's name or a certificate's SHA-256 on each line of"
        f" {path}, got another text on line 3: {fault}"
    )


def test_errors_name_where_the_path_came_from(directory: Path) -> None:
    with pytest.raises(UsageError, match=r"^MEND_CREDENTIALS must be a file"):
        load_identity("MEND_CREDENTIALS", Credentials.files(directory), "a")


# Secrets stay in their process.


def identities(directory: Path) -> list[Identity]:
    files_of(directory, OURS, "a")
    secret = Credentials.secret(secret_in(directory))
    return [
        load_identity("credentials", credentials, "a")
        for credentials in (Credentials.files(directory), secret)
    ]


def test_no_key_is_shown_pickled_or_copied(directory: Path) -> None:
    for identity in identities(directory):
        shown = f"{identity!r} {identity} {identity.described()}"
        assert "PRIVATE" not in shown
        assert identity.key.decode().splitlines()[1] not in shown
        for escape in (pickle.dumps, copy.copy, copy.deepcopy):
            with pytest.raises(TypeError, match="never pickled or copied"):
                escape(identity)
