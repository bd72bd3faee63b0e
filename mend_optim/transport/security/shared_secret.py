"""Credentials from one secret: every learner derives the same authority, and issues itself a
certificate for its name, in memory.

    secret (32 random bytes) ──HKDF-SHA256──▶ key of the authority (P-256)
                                                  │ signs
    a new key in every process ──▶ certificate of this learner

Nothing that a peer or a listener sees allows a guess at the secret: it is random, never a
passphrase, and only the authority's public key is made of it.
"""

from __future__ import annotations

import base64
import binascii
import secrets
from datetime import datetime
from pathlib import Path

from mend_optim.errors import UsageError
from mend_optim.transport.security.files import read_file, refuse_open_key
from mend_optim.transport.security.identity import Identity

#: Bytes of a secret.
SECRET_BYTES = 32
_PREFIX = "mend-secret-1:"
#: Whoever has the secret can issue a certificate for any time. So these are valid at any time, and
#: no clock matters. RFC 5280 has this end for certificates without one.
BEGINNING = datetime(2000, 1, 1)
END = datetime(9999, 12, 31, 23, 59, 59)
MAKE = "python -m mend_optim.certs secret"


def new_secret() -> str:
    """Return the text of a new secret's file."""
    return _PREFIX + base64.urlsafe_b64encode(secrets.token_bytes(SECRET_BYTES)).decode() + "\n"


def secret_identity(source: str, file: Path, name: str) -> Identity:
    """Read a secret, and issue a certificate for this name.

    Args:
        source: What the user calls the credentials, for errors.
        file: Holds the secret.
        name: The learner's name.

    Raises:
        UsageError: The file is missing or unreadable, others may read it, it holds no secret, or
            the package `cryptography` is not installed.
    """
    refuse_open_key(source, file)
    secret = _read_secret(source, file)
    try:
        from mend_optim.transport.security.issuing import Authority
    except ImportError:
        raise UsageError(
            f"{source} must be Credentials.files(…) without the package cryptography, got a secret"
            f" in {file}; run pip install 'mend-optim[certs]'"
        ) from None
    authority = Authority.of_secret(secret, BEGINNING, END)
    chain, key = authority.issue(name, BEGINNING, END)
    return Identity(name=name, authorities=authority.pem, chain=chain, key=key)


def _read_secret(source: str, file: Path) -> bytes:
    text = read_file(source, file).decode(errors="replace").strip()
    try:
        secret = base64.b64decode(text.removeprefix(_PREFIX), altchars=b"-_", validate=True)
    except (binascii.Error, ValueError):
        secret = b""
    if not text.startswith(_PREFIX) or len(secret) != SECRET_BYTES:
        # never its content
        raise UsageError(
            f"{source} must be a file with a secret of {SECRET_BYTES} random bytes, got {file} with"
            f" something else; make one in a new file: {MAKE} FILE"
        )
    return secret
