"""Makes and checks credentials: `mend certs`, or `python -m mend_optim.certs`.

init DIR            an authority: DIR/ca.pem, and DIR/ca-key.pem, which stays there
issue DIR NAME      files for the learner NAME: DIR/NAME/{ca,cert,key}.pem
show FILE           the certificates in a file
secret FILE         one secret for all learners, which takes the place of all the above
check DIR           whether a learner could use the files there
"""

from __future__ import annotations

import argparse
import os
import re
import sys
import unicodedata
from collections.abc import Sequence
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import TYPE_CHECKING

from mend_optim.errors import UsageError, require
from mend_optim.protocol.peer_limits import is_plain
from mend_optim.transport.security.certificate import certificates_in, day
from mend_optim.transport.security.files import (
    CA,
    CERT,
    INIT,
    KEY,
    name_of_files,
    read_file,
    read_identity,
    refuse_open_key,
)
from mend_optim.transport.security.shared_secret import new_secret

if TYPE_CHECKING:
    from mend_optim.transport.security.issuing import Authority

CA_KEY = "ca-key.pem"
DAY = timedelta(days=1)
AUTHORITY_DAYS = 3650
LEARNER_DAYS = 365
_FILE_NAME = re.compile(r"\w[\w.-]*")
EXTRA = "certs must have the package cryptography; run pip install 'mend-optim[certs]'"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command. Returns the exit status: 1 if it was refused."""
    parser = argparse.ArgumentParser(prog="python -m mend_optim.certs")
    configure(parser)
    return run(parser.parse_args(arguments))


def run(given: argparse.Namespace) -> int:
    """Run the command that was parsed. Returns the exit status: 1 if it was refused."""
    try:
        print(given.what(given))
    except UsageError as error:
        print(error, file=sys.stderr)
        return 1
    except ImportError:
        print(EXTRA, file=sys.stderr)
        return 1
    return 0


def configure(parser: argparse.ArgumentParser) -> None:
    """Give a parser the commands."""
    parser.description = "Make and check credentials of learners."
    parser.set_defaults(run=run)
    commands = parser.add_subparsers(required=True, metavar="COMMAND")

    init = commands.add_parser("init", help="make an authority")
    init.add_argument("directory", type=Path, metavar="DIR")
    init.set_defaults(what=_init)

    issue = commands.add_parser("issue", help="issue a certificate for a learner")
    issue.add_argument("directory", type=Path, metavar="DIR", help="that of the authority")
    issue.add_argument("name", metavar="NAME", help="the learner's name")
    issue.add_argument("--days", type=int, default=LEARNER_DAYS, help="how long it is valid")
    issue.add_argument("--out", type=Path, help="where the files go; default: DIR/NAME")
    issue.set_defaults(what=_issue)

    show = commands.add_parser("show", help="show the certificates in a file")
    show.add_argument("file", type=Path, metavar="FILE")
    show.set_defaults(what=_show)

    secret = commands.add_parser("secret", help="make a secret for all learners")
    secret.add_argument("file", type=Path, metavar="FILE")
    secret.set_defaults(what=_secret)

    check = commands.add_parser("check", help="check the files of a learner")
    check.add_argument("directory", type=Path, metavar="DIR")
    check.add_argument("--name", help="the learner's name; default: the one in the certificate")
    check.set_defaults(what=_check)


def _init(given: argparse.Namespace) -> str:
    from mend_optim.transport.security.issuing import Authority

    folder = given.directory
    # Its key may be kept elsewhere, so that the key alone would not show that there is one.
    is_free = not os.path.lexists(folder / CA)
    remedy = f"name a new folder, or put {CA_KEY} back to issue more certificates"
    require(is_free, "DIR", str(folder), f"a folder without an authority's {CA}", remedy)
    begin, end = _validity(AUTHORITY_DAYS)
    authority = Authority.random(begin, end)
    _make_folder(folder)
    _write_new(folder / CA_KEY, authority.key_pem(), 0o600)
    try:
        _write((folder / CA, authority.pem, 0o644))
    except UsageError:
        (folder / CA_KEY).unlink()  # else the next attempt would find the key of no authority
        raise
    return f"wrote {folder / CA}, and {folder / CA_KEY}: keep that key off the learners' machines"


def _issue(given: argparse.Namespace) -> str:
    require(given.days >= 1, "--days", given.days, "an int >= 1")
    good = given.name.isprintable() and 0 < len(given.name.encode()) <= 200
    require(good, "NAME", given.name, "a printable text of 1 to 200 bytes")
    if not is_plain(given.name):
        composed = unicodedata.normalize("NFC", given.name)
        raise UsageError(
            "NAME must be in the composed form of Unicode (NFC), as learners have their names, got"
            f" {given.name!a}; copy it from here: {composed}"
        )
    is_file = bool(_FILE_NAME.fullmatch(given.name))
    remedy = "say with --out where its files go"
    require(is_file or given.out is not None, "NAME", given.name, "a name of a folder", remedy)
    authority = _authority(given.directory)
    _check_end(given.directory / CA, authority.end(), given.days)
    begin, end = _validity(given.days)
    chain, key = authority.issue(given.name, begin, end)
    folder = given.out or given.directory / given.name
    _make_folder(folder)
    # The key first: whoever reads a new certificate finds its key.
    _write(
        (folder / KEY, key, 0o600),
        (folder / CERT, chain, 0o644),
        (folder / CA, authority.pem, 0o644),
    )
    until = day(certificates_in(chain)[0].not_after)
    return f"wrote {folder}: the files of {given.name}, valid until {until}"


def _authority(directory: Path) -> Authority:
    from mend_optim.transport.security.issuing import Authority

    refuse_open_key("DIR", directory / CA_KEY)
    key, pem = read_file("DIR", directory / CA_KEY), read_file("DIR", directory / CA)
    try:
        return Authority.load(key, pem)
    except ValueError as error:
        raise UsageError(f"DIR must be the directory of an authority: {error}") from None


def _check_end(path: Path, end: datetime, days: int) -> None:
    """Raise `UsageError` unless an authority lives as long as a certificate that it is to issue: no
    certificate is taken after the end of its authority."""
    most = (end - _now()) // DAY
    when = day(end.replace(tzinfo=timezone.utc).timestamp())
    if most < 1:
        raise UsageError(
            f"DIR must have an authority that is valid for a day or longer, got {path}, which ends"
            f" on {when}; make another one in a new folder: {INIT}"
        )
    bound = f"an int from 1 to {most}, because {path} ends on {when}"
    require(days <= most, "--days", days, bound, f"or make another authority: {INIT}")


def _show(given: argparse.Namespace) -> str:
    from mend_optim.transport.security.issuing import names_in

    pem = read_file("FILE", given.file)
    try:
        found = list(zip(certificates_in(pem), names_in(pem), strict=True))
    except ValueError as error:
        raise UsageError(f"FILE must hold certificates in PEM: {error}") from None
    require(bool(found), "FILE", str(given.file), "a file with a certificate in PEM")
    lines = []
    for certificate, names in found:
        lines += [f"SHA-256  {certificate.sha256}"]
        lines += [f"valid    {day(certificate.not_before)} to {day(certificate.not_after)}"]
        lines += [f"name     {name}" for name in names]
    return "\n".join(lines)


def _secret(given: argparse.Namespace) -> str:
    _write_new(given.file, new_secret().encode(), 0o600)
    return f"wrote {given.file}: copy it to every learner's machine, over a safe channel"


def _check(given: argparse.Namespace) -> str:
    name = given.name
    if name is None:
        name = name_of_files("DIR", given.directory)
    identity = read_identity("DIR", given.directory, name)
    return f"{name} can use {given.directory}: {identity.described()}"


def _validity(days: int) -> tuple[datetime, datetime]:
    """From yesterday on, so that a clock that is behind takes it."""
    now = _now()
    return now - DAY, now + days * DAY


def _now() -> datetime:
    return datetime.now(timezone.utc).replace(tzinfo=None)


def _make_folder(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(f"{folder} must be a folder: {error.strerror}") from None


def _write_new(path: Path, content: bytes, mode: int) -> None:
    """Write a file that must not be there: a key that is overwritten is lost."""
    try:
        opened = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
    except OSError as error:
        raise UsageError(f"{path} must be a new file: {error.strerror}") from None
    try:
        with os.fdopen(opened, "wb") as file:
            file.write(content)
    except OSError as error:
        path.unlink()  # half a key is none, and would be in the way of the next attempt
        raise UsageError(f"{path} must be a file with room on its disk: {error.strerror}") from None


def _write(*files: tuple[Path, bytes, int]) -> None:
    """Write files, or replace them. Each is replaced in one go, so that nobody reads half of it;
    and none is before all are on the disk, so that a full one leaves no key beside the certificate
    of another."""
    ready: list[Path] = []
    try:
        for path, content, mode in files:
            new = path.with_name(path.name + ".new")
            new.unlink(missing_ok=True)
            _write_new(new, content, mode)
            ready.append(new)
        for path, _, _ in files:
            ready[0].replace(path)
            del ready[0]
    except OSError as error:
        at = error.filename2 or error.filename
        raise UsageError(f"{at} must be a file that you may replace: {error.strerror}") from None
    finally:
        for new in ready:
            new.unlink()


if __name__ == "__main__":
    sys.exit(main())
