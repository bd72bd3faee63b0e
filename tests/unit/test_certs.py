"""The commands that make credentials: what they write, learners can use, and nobody else can
read."""

from __future__ import annotations

import base64
import builtins
import os
import resource
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from mend_optim import Credentials
from mend_optim.certs import EXTRA, main
from mend_optim.transport.security.certificate import certificates_in
from mend_optim.transport.security.files import read_identity
from tests.support.certificates import DAY, files_of, issue, load_identity, new_authority, write


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Any:
    def run(*arguments: Any) -> tuple[int, str, str]:
        status = main([str(argument) for argument in arguments])
        said = capsys.readouterr()
        return status, said.out, said.err

    return run


def mode_of(path: Path) -> int:
    return path.stat().st_mode & 0o777


@pytest.fixture
def pki(tmp_path: Path, run: Any) -> Path:
    assert run("init", tmp_path / "pki")[0] == 0
    return tmp_path / "pki"


def test_what_is_issued_a_learner_can_use(pki: Path, run: Any) -> None:
    for name in ("alpha", "beta"):
        status, said, error = run("issue", pki, name)
        assert (status, error) == (0, "")
        assert said.startswith(f"wrote {pki / name}: the files of {name}, valid until 20")
        identity = load_identity("credentials", Credentials.files(pki / name), name)
        assert identity.authorities == (pki / "ca.pem").read_bytes()
    assert run("check", pki / "alpha")[0] == 0
    assert run("check", pki / "alpha", "--name", "alpha")[0] == 0


@pytest.mark.skipif(os.name != "posix", reason="permissions are POSIX's")
def test_only_the_owner_reads_keys_and_secrets(pki: Path, run: Any, tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        run("init", tmp_path / "open")
        run("issue", tmp_path / "open", "a")
        run("secret", tmp_path / "secret")
    finally:
        os.umask(before)
    for path in ("open/ca-key.pem", "open/a/key.pem", "secret"):
        assert mode_of(tmp_path / path) == 0o600
    assert mode_of(tmp_path / "open/a/cert.pem") == 0o644


def test_a_certificate_ends_when_it_was_told_to(pki: Path, run: Any) -> None:
    run("issue", pki, "a", "--days", 3)
    (own,) = certificates_in((pki / "a" / "cert.pem").read_bytes())
    assert own.not_after - own.not_before == 4 * DAY.total_seconds()
    (authority,) = certificates_in((pki / "ca.pem").read_bytes())
    assert authority.not_after - authority.not_before == 3651 * DAY.total_seconds()


@pytest.mark.parametrize("days", [3650, 10**6, 10**12])
def test_no_certificate_outlives_its_authority(pki: Path, run: Any, days: int) -> None:
    status, said, error = run("issue", pki, "a", "--days", days)
    assert (status, said) == (1, "")
    assert error.startswith(f"--days must be an int from 1 to 3649, because {pki / 'ca.pem'} ends ")
    assert f", got {days}; or make another authority: python -m mend_optim.certs init" in error
    assert not (pki / "a").exists()
    assert run("issue", pki, "a", "--days", 3649)[0] == 0


@pytest.mark.parametrize(("end", "status"), [(-DAY, 1), (DAY / 2, 1), (1.5 * DAY, 0)])
def test_an_authority_that_ends_issues_nothing(
    tmp_path: Path, run: Any, end: Any, status: int
) -> None:
    authority = new_authority(-9 * DAY, end)
    (tmp_path / "ca.pem").write_bytes(authority.pem)
    (tmp_path / "ca-key.pem").write_bytes(authority.key_pem())
    (tmp_path / "ca-key.pem").chmod(0o600)
    refused, _, error = run("issue", tmp_path, "a", "--days", 1)
    assert refused == status
    assert ("must have an authority that is valid for a day or longer, got" in error) == status


def test_a_certificate_is_issued_again_in_its_place(pki: Path, run: Any) -> None:
    run("issue", pki, "a")
    first = read_identity("credentials", pki / "a", "a")
    assert run("issue", pki, "a")[0] == 0
    second = read_identity("credentials", pki / "a", "a")
    assert first.certificate.sha256 != second.certificate.sha256
    assert sorted(path.name for path in (pki / "a").iterdir()) == ["ca.pem", "cert.pem", "key.pem"]


def test_a_name_that_is_no_folders_goes_where_it_is_told(pki: Path, run: Any) -> None:
    for name in ("../b", "rack 7/ä", ".b"):
        status, _, error = run("issue", pki, name)
        assert (status, "say with --out where its files go" in error) == (1, True)
        assert run("issue", pki, name, "--out", pki / "out")[0] == 0
        assert read_identity("credentials", pki / "out", name).name == name
    assert sorted(path.name for path in pki.iterdir()) == ["ca-key.pem", "ca.pem", "out"]


@pytest.mark.parametrize(
    ("command", "words"),
    [
        ("init", "DIR must be a folder without an authority's ca.pem, got "),
        ("secret", "must be a new file: File exists"),
    ],
)
def test_nothing_is_overwritten(command: str, words: str, tmp_path: Path, run: Any) -> None:
    path = tmp_path / "there"
    assert run(command, path)[0] == 0
    files = [path] if path.is_file() else list(path.iterdir())
    before = {file: file.read_bytes() for file in files}
    status, _, error = run(command, path)
    assert (status, words in error) == (1, True)
    assert {file: file.read_bytes() for file in files} == before


@pytest.mark.parametrize("is_lost", [False, True], ids=["a-file", "a-link-to-nothing"])
def test_an_authority_whose_key_is_elsewhere_stays(pki: Path, run: Any, is_lost: bool) -> None:
    (pki / "ca-key.pem").unlink()
    if is_lost:
        (pki / "ca.pem").unlink()
        (pki / "ca.pem").symlink_to(pki / "elsewhere.pem")
    before = {path.name: path.lstat().st_ino for path in pki.iterdir()}
    assert run("init", pki) == (
        1,
        "",
        f"DIR must be a folder without an authority's ca.pem, got {str(pki)!r}; name a new folder,"
        " or put ca-key.pem back to issue more certificates\n",
    )
    assert {path.name: path.lstat().st_ino for path in pki.iterdir()} == before


def test_an_authority_is_not_made_beside_a_key(pki: Path, run: Any) -> None:
    (pki / "ca.pem").unlink()
    status, _, error = run("init", pki)
    assert (status, "ca-key.pem must be a new file: File exists" in error) == (1, True)
    assert [path.name for path in pki.iterdir()] == ["ca-key.pem"]


@contextmanager
def full_disk() -> Iterator[None]:
    """No file takes a byte."""
    former = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, former[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, former)


def test_a_full_disk_is_named_and_keeps_no_half_of_a_file(tmp_path: Path, run: Any) -> None:
    for command in (["secret", tmp_path / "secret"], ["init", tmp_path / "pki"]):
        with full_disk():
            status, _, error = run(*command)
        assert status == 1
        assert "must be a file with room on its disk: File too large" in error
        assert run(*command)[0] == 0


def test_an_authority_without_a_certificate_leaves_no_key(tmp_path: Path, run: Any) -> None:
    obstacle = tmp_path / "pki" / "ca.pem.new"
    obstacle.mkdir(parents=True)
    status, _, error = run("init", tmp_path / "pki")
    assert status == 1
    assert f"{obstacle} must be a file that you may replace: Is a directory" in error
    obstacle.rmdir()
    assert run("init", tmp_path / "pki")[0] == 0


@pytest.mark.parametrize("at", ["cert.pem.new", "ca.pem.new"])
def test_a_certificate_that_cannot_be_written_leaves_the_former_one(
    at: str, pki: Path, run: Any
) -> None:
    """A new key beside the former certificate would be of use to nobody."""
    run("issue", pki, "alpha")
    folder = pki / "alpha"
    former = {path.name: path.read_bytes() for path in folder.iterdir()}
    (folder / at).mkdir()
    status, _, error = run("issue", pki, "alpha")
    assert status == 1
    assert f"{folder / at} must be a file that you may replace: Is a directory" in error
    (folder / at).rmdir()
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == former


def test_a_secret_is_one(tmp_path: Path, run: Any) -> None:
    file = tmp_path / "cluster.secret"
    status, said, _ = run("secret", file)
    assert status == 0
    text = file.read_text(encoding="utf-8").strip()
    assert text not in said
    assert len(base64.urlsafe_b64decode(text.partition(":")[2])) == 32
    assert load_identity("credentials", Credentials.secret(file), "a").name == "a"


def test_certificates_are_shown(pki: Path, run: Any) -> None:
    run("issue", pki, "alpha")
    (own,) = certificates_in((pki / "alpha" / "cert.pem").read_bytes())
    status, said, _ = run("show", pki / "alpha" / "cert.pem")
    assert status == 0
    assert said.startswith(f"SHA-256  {own.sha256}\nvalid    20")
    assert "\nname     alpha\n" in said
    assert "name     learner.mend-optim.invalid" in said
    assert "CN=mend-optim authority " in run("show", pki / "ca.pem")[1]
    for wrong in (pki / "ca-key.pem", pki / "nowhere.pem"):
        status, _, error = run("show", wrong)
        assert (status, error.startswith("FILE must")) == (1, True)


def test_a_check_says_what_construction_would(tmp_path: Path, run: Any) -> None:
    authority = new_authority()
    expired = files_of(tmp_path / "a", authority, "a", begin=-9 * DAY, end=-DAY)
    status, said, error = run("check", expired, "--name", "a")
    assert (status, said) == (1, "")
    assert error.startswith("DIR must be valid now, got ")
    stranger = write(tmp_path / "b", new_authority().pem, *issue(authority, "b"))
    assert "must be signed by an authority of" in run("check", stranger)[2]
    nobody = files_of(tmp_path / "c", authority, "c", uris=[])
    assert "must have the certificate of a learner" in run("check", nobody)[2]
    assert (
        "must be the certificate of 'x'"
        in run("check", files_of(tmp_path / "d", authority, "d"), "--name", "x")[2]
    )


@pytest.mark.parametrize("missing", ["cert.pem", "key.pem", "ca.pem"])
def test_a_check_names_the_file_that_is_missing(missing: str, tmp_path: Path, run: Any) -> None:
    files = files_of(tmp_path / "a", new_authority(), "a")
    (files / missing).unlink()
    status, said, error = run("check", files)
    assert (status, said) == (1, "")
    assert error.startswith(f"DIR must be a file that this process can read, got {files / missing}")


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        (["--days", "0"], "--days must be an int >= 1, got 0"),
        (["--days", "-5"], "--days must be an int >= 1, got -5"),
    ],
)
def test_wrong_arguments_are_refused(pki: Path, run: Any, arguments: Any, error: str) -> None:
    assert run("issue", pki, "a", *arguments) == (1, "", f"{error}\n")


@pytest.mark.parametrize("name", ["", "a\nb", "ä" * 101, "b\udcfc"])
def test_names_that_no_learner_may_have_are_refused(pki: Path, run: Any, name: str) -> None:
    status, _, error = run("issue", pki, name, "--out", pki / "out")
    assert (status, error.startswith("NAME must be a printable text of 1 to 200")) == (1, True)


def test_a_name_that_no_peer_takes_is_refused(pki: Path, run: Any) -> None:
    """A learner has the composed form of its name, and peers take no other one."""
    status, said, error = run("issue", pki, "cafe\u0301", "--out", pki / "out")
    assert (status, said) == (1, "")
    assert error == (
        "NAME must be in the composed form of Unicode (NFC), as learners have their names, got"
        " 'cafe\\u0301'; copy it from here: caf\u00e9\n"
    )
    assert not (pki / "out").exists()
    assert run("issue", pki, "caf\u00e9", "--out", pki / "out")[0] == 0
    assert run("check", pki / "out", "--name", "caf\u00e9")[0] == 0


def test_the_authority_must_have_its_own_key(pki: Path, run: Any, tmp_path: Path) -> None:
    assert run("issue", tmp_path, "a")[2].startswith("DIR must be a file that this process can")
    (pki / "ca.pem").write_bytes(new_authority().pem)
    status, _, error = run("issue", pki, "a")
    assert (status, "that of none of its certificates" in error) == (1, True)
    (pki / "ca-key.pem").write_text("garbage", encoding="utf-8")
    assert run("issue", pki, "a")[2].startswith("DIR must be the directory of an authority: ")


def test_while_authorities_change_both_kinds_of_certificates_work(
    pki: Path, run: Any, tmp_path: Path
) -> None:
    run("issue", pki, "a")
    new = tmp_path / "new"
    run("init", new)
    both = (pki / "ca.pem").read_bytes() + (new / "ca.pem").read_bytes()
    for path in (pki / "a" / "ca.pem", new / "ca.pem"):
        path.write_bytes(both)
    assert run("issue", new, "b")[0] == 0
    a = read_identity("credentials", pki / "a", "a")
    b = read_identity("credentials", new / "b", "b")
    assert (a.host_of("b"), a.host_of("a")) == (b.host_of("b"), b.host_of("a"))
    (new / "b" / "ca.pem").write_bytes(certificate_of(new, both))
    assert read_identity("credentials", new / "b", "b").host_of("b") != b.host_of("b")


def certificate_of(new: Path, both: bytes) -> bytes:
    """The second of two certificates."""
    end = b"-----END CERTIFICATE-----\n"
    return both.split(end)[1] + end


def test_without_the_extra_the_error_names_it(
    run: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    importing = builtins.__import__

    def without(name: str, *args: Any) -> Any:
        if name.startswith(("cryptography", "mend_optim.transport.security.issuing")):
            raise ImportError(name)
        return importing(name, *args)

    monkeypatch.delitem(sys.modules, "mend_optim.transport.security.issuing")
    monkeypatch.setattr(builtins, "__import__", without)
    assert run("init", tmp_path / "pki") == (1, "", f"{EXTRA}\n")
    assert run("secret", tmp_path / "secret")[0] == 0  # needs nothing
