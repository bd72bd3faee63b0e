"""Reads credentials from files, and checks them before gRPC sees them: gRPC takes garbage without a
word, and then says only that a socket was closed."""

from __future__ import annotations

import os
import re
import ssl
import time
import unicodedata
from contextlib import suppress
from pathlib import Path

from mend_optim.errors import PeerError, UsageError
from mend_optim.transport.limits import check, checked_name
from mend_optim.transport.security.certificate import Certificate, certificates_in, day
from mend_optim.transport.security.identity import Identity
from mend_optim.transport.security.names import ANY_LEARNER, host_of_name, name_in, uri_of

CA, CERT, KEY, DENY = "ca.pem", "cert.pem", "key.pem", "deny.txt"
ISSUE = "python -m mend_optim.certs issue"
INIT = "python -m mend_optim.certs init"
#: Permissions that let somebody else than the owner use a file.
OTHERS = 0o077
#: OpenSSL's number of the error that a certificate must not be used for this.
_PURPOSE = 26
#: Those of the errors that a certificate is not valid yet, and that it has expired.
_DATES = (9, 10)
#: Turns that a handshake takes at most.
_FLIGHTS = 4
_SHA256 = re.compile(r"[0-9a-f]{64}")


def read_identity(source: str, directory: Path, name: str) -> Identity:
    """Read the files of a learner, and check that TLS will take them.

    Args:
        source: What the user calls the credentials, for errors.
        directory: Where the files are.
        name: The learner's name.

    Raises:
        UsageError: A file is missing or unreadable, others may read the key, or the files don't fit
            each other, the name or the present time.
    """
    refuse_open_key(source, directory / KEY)
    authorities, chain, key = _content(source, directory)
    identity = Identity(
        name=name,
        authorities=authorities,
        chain=chain,
        key=key,
        denied=_read_denied(source, directory / DENY),
    )
    own = _first(source, directory / CERT, chain)
    _check_key(source, directory / CERT, own)
    _loaded(source, directory, ssl.PROTOCOL_TLS_SERVER)
    _check_dates(source, directory / CERT, own)
    shown = _shake_hands(source, directory)
    authority = _first(source, directory / CA, authorities)
    _check_names(source, directory / CERT, shown, name, host_of_name(name, authority.key))
    if (authorities, chain, key) != _content(source, directory):
        raise UsageError(f"{source} must be files that stand still, got {directory}: try again")
    return identity


def name_of_files(source: str, directory: Path) -> str:
    """Return the name in a learner's certificate, which must be valid. Raises `UsageError`."""
    # The ssl module says of a missing file neither that it is one of credentials nor its name, and
    # of a certificate that has expired neither whose it is nor since when.
    _, chain, _ = _content(source, directory)
    _check_dates(source, directory / CERT, _first(source, directory / CERT, chain))
    shown = _shake_hands(source, directory)
    try:
        return name_in([value for kind, value in shown if kind == "URI"])
    except PeerError as fault:
        raise UsageError(
            f"{source} must have the certificate of a learner, got {directory / CERT}: {fault}"
        ) from None


def read_file(source: str, path: Path) -> bytes:
    """Read one file of credentials. Raises `UsageError`."""
    try:
        return path.read_bytes()
    except OSError as error:
        raise UsageError(
            f"{source} must be a file that this process can read, got {path}: {error.strerror}"
        ) from None


def refuse_open_key(source: str, path: Path) -> None:
    """Raise `UsageError` if others than its owner may use a file with a secret in it."""
    try:
        mode = path.stat().st_mode & 0o777
    except OSError as error:
        raise UsageError(
            f"{source} must be a file that this process can read, got {path}: {error.strerror}"
        ) from None
    # It is open to others for a reason, and without that nobody could look into it.
    if path.is_dir():
        raise UsageError(
            f"{source} must be a file that this process can read, got {path}: Is a directory"
        )
    if os.name == "posix" and mode & OTHERS:
        raise UsageError(
            f"{source} must be a file that only its owner may read, got {path} with mode {mode:o};"
            f" run chmod 600 {path}"
        )


def _content(source: str, directory: Path) -> tuple[bytes, bytes, bytes]:
    authorities, chain, key = (read_file(source, directory / file) for file in (CA, CERT, KEY))
    return authorities, chain, key


def _first(source: str, path: Path, pem: bytes) -> Certificate:
    try:
        return certificates_in(pem)[0]
    except (ValueError, IndexError):
        raise UsageError(f"{source} must hold a certificate in PEM, got {path}") from None


def _read_denied(source: str, path: Path) -> frozenset[str]:
    """Read the names and SHA-256s of `deny.txt`: one a line; `#` begins a comment line. An entry
    that fits nobody is refused: it would leave somebody in who is to be shut out."""
    if not path.exists():
        return frozenset()
    try:
        # Some editors put a byte-order mark before the first entry.
        lines = read_file(source, path).decode("utf-8-sig").splitlines()
    except UnicodeDecodeError:
        raise UsageError(f"{source} must be text in UTF-8, got {path}") from None
    denied = set()
    for number, line in enumerate(lines, 1):
        entry = line.strip()
        if not entry or line.startswith("#"):
            continue
        try:
            denied.add(_entry(entry))
        except PeerError as fault:
            raise UsageError(
                f"{source} must have a learner's name or a certificate's SHA-256 on each line of"
                f" {path}, got another text on line {number}: {fault}"
            ) from None
    return frozenset(denied)


def _entry(entry: str) -> str:
    """A SHA-256, which tools print in several ways, in one form; a name in the form that learners
    have. Raises `PeerError` if it is neither."""
    plain = entry.replace(":", "").lower()
    if _SHA256.fullmatch(plain):
        return plain
    check(not _SHA256.search(plain), "a SHA-256 must stand on its line alone, without its label")
    return checked_name("name", unicodedata.normalize("NFC", entry))


def _check_key(source: str, path: Path, own: Certificate) -> None:
    if own.has_edwards_key:
        raise UsageError(
            f"{source} must have a key of ECDSA P-256 or RSA, got Ed25519 or Ed448 in {path}, which"
            f" gRPC refuses at every handshake; issue it anew: {ISSUE}"
        )


def _loaded(source: str, directory: Path, protocol: int) -> ssl.SSLContext:
    """A context with the learner's certificate. It trusts the learner's authorities alone."""
    context = ssl.SSLContext(protocol)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_REQUIRED
    # Without the callback, an encrypted key would make OpenSSL ask for a password at the terminal.
    try:
        context.load_cert_chain(directory / CERT, directory / KEY, password=lambda: "")
    except ssl.SSLError as error:
        if error.reason == "KEY_VALUES_MISMATCH":
            raise UsageError(
                f"{source} must have the key of its certificate, got {directory / KEY}, which is"
                f" another's; issue both again: {ISSUE}"
            ) from None
        raise UsageError(
            f"{source} must be a certificate and its key in PEM, the key not encrypted, got"
            f" {directory / CERT} and {directory / KEY}: {error.reason or error}"
        ) from None
    try:
        context.load_verify_locations(directory / CA)
    except ssl.SSLError as error:
        raise UsageError(
            f"{source} must have authorities in PEM, got {directory / CA}: {error.reason or error}"
        ) from None
    return context


def _check_dates(source: str, path: Path, own: Certificate) -> None:
    got = f"{source} must be valid now, got {path}"
    if fault := _untimely(got, own, f"issue it again ({ISSUE})"):
        raise UsageError(fault)


def _untimely(got: str, certificate: Certificate, remedy: str) -> str:
    """What is wrong with the dates of a certificate now, and what to do; empty if nothing is."""
    now = time.time()
    clock = "set this machine's clock right"
    if now > certificate.not_after:
        return f"{got}, which expired on {day(certificate.not_after)}; {remedy}, or {clock}"
    if now < certificate.not_before:
        return f"{got}, which is valid from {day(certificate.not_before)}; {clock}"
    return ""


def _shake_hands(source: str, directory: Path) -> tuple[tuple[str, str], ...]:
    """Let the learner dial itself, in memory, with each side showing the certificate. Returns the
    certificate's names."""
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    dialling = _loaded(source, directory, ssl.PROTOCOL_TLS_CLIENT)
    serving = _loaded(source, directory, ssl.PROTOCOL_TLS_SERVER)
    client = dialling.wrap_bio(to_client, to_server)
    server = serving.wrap_bio(to_server, to_client, server_side=True)
    try:
        for _ in range(_FLIGHTS):
            for side in (client, server):
                with suppress(ssl.SSLWantReadError):
                    side.do_handshake()
        shown = server.getpeercert() or {}
    except ssl.SSLCertVerificationError as error:
        raise UsageError(_distrust(source, directory, error)) from None
    except (ssl.SSLError, ValueError) as error:
        raise UsageError(
            f"{source} must be files that TLS can use, got {directory}: {error}"
        ) from None
    return shown.get("subjectAltName", ())  # type: ignore[return-value]


def _distrust(source: str, directory: Path, error: ssl.SSLCertVerificationError) -> str:
    path = directory / CERT
    if error.verify_code == _PURPOSE:
        return (
            f"{source} must allow both serverAuth and clientAuth, got {path}, whose extended key"
            f" usage does not; issue it again: {ISSUE}"
        )
    if error.verify_code in _DATES and (fault := _untimely_signer(source, directory)):
        return fault
    return (
        f"{source} must be signed by an authority of {directory / CA}, got {path}:"
        f" {error.verify_message}; copy the authority's ca.pem, or issue the certificate again:"
        f" {ISSUE}"
    )


def _untimely_signer(source: str, directory: Path) -> str:
    """What is wrong with the dates of those who have signed the learner's certificate."""
    authorities, chain, _ = _content(source, directory)
    between = f"{source} must be valid now, got a certificate of {directory / CERT}"
    above = f"{source} must have authorities that are valid now, got one of {directory / CA}"
    again = f"issue it again ({ISSUE})"
    anew = f"make another one in a new folder ({INIT}), issue all certificates there"
    faults = [_untimely(between, each, again) for each in certificates_in(chain)[1:]]
    faults += [_untimely(above, each, anew) for each in certificates_in(authorities)]
    return next(filter(None, faults), "")


def _check_names(
    source: str, path: Path, shown: tuple[tuple[str, str], ...], name: str, host: str
) -> None:
    uris = [value for kind, value in shown if kind == "URI"]
    if uris != [uri_of(name)]:
        raise UsageError(
            f"{source} must be the certificate of {name!r}, with the one URI {uri_of(name)},"
            f" got {path} with {uris or 'none'}; pass the name that it was issued for, or"
            f" issue one: {ISSUE}"
        )
    hosts = {value for kind, value in shown if kind == "DNS"}
    missing = {host, ANY_LEARNER} - hosts
    if missing:
        raise UsageError(
            f"{source} must have the DNS names {host} and {ANY_LEARNER}, got {path} without"
            f" {' and '.join(sorted(missing))}; issue it again, with the same ca.pem: {ISSUE}"
        )
