"""Credentials to an identity, whichever kind they are, and again when files have changed."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING

from mend_optim.errors import UsageError
from mend_optim.transport.security.credentials import Credentials, Source
from mend_optim.transport.security.files import CA, CERT, DENY, KEY, read_identity
from mend_optim.transport.security.identity import Identity
from mend_optim.transport.security.shared_secret import secret_identity

if TYPE_CHECKING:
    from mend_optim.transport.security.notary import CertificateNotary

#: Of each file that is there: when it was written, which file it is, and its size.
Stamps = tuple[tuple[str, int, int, int], ...]


class CredentialFiles:
    """The files of one learner's credentials.

    Args:
        source: What the user calls the credentials, for errors.
        credentials: The paths.
        name: The learner's name.
    """

    def __init__(self, source: str, credentials: Credentials, name: str) -> None:
        self._source = source
        # The script may change its folder before the files are read again.
        self._credentials = replace(credentials, path=credentials.path.absolute())
        self._name = name
        #: The files as they were when they were last read and right.
        self._seen: Stamps = ()

    def read(self) -> Identity:
        """Read and check the files. Raises `UsageError`."""
        stamps = self._stamps()
        path = self._credentials.path
        match self._credentials.source:
            case Source.FILES:
                identity = read_identity(self._source, path, self._name)
                if self._credentials.signed:
                    self._check_signs(identity)
            case Source.SECRET:
                identity = secret_identity(self._source, path, self._name)
        self._seen = stamps
        return identity

    def read_again(self) -> Identity | None:
        """Read the files if they have changed, else return None. Raises `UsageError`.

        A secret is never read again: with another one, a learner would leave all its peers."""
        return self.read() if self._stamps() != self._seen else None

    def notary(self) -> type[CertificateNotary] | None:
        """The maker of the notary of an identity that was read; None if offers are not signed."""
        if not self._credentials.signed:
            return None
        from mend_optim.transport.security.notary import CertificateNotary

        return CertificateNotary

    def _check_signs(self, identity: Identity) -> None:
        try:
            from mend_optim.transport.security.notary import check_signs
        except ImportError:
            raise UsageError(
                f"{self._source}.signed must be False without the package cryptography, got True;"
                " run pip install 'mend-optim[certs]'"
            ) from None
        check_signs(self._source, identity)

    def _stamps(self) -> Stamps:
        if self._credentials.source is Source.SECRET:
            return ()
        stamps = []
        for file in (CA, CERT, KEY, DENY):
            with suppress(OSError):  # reading the file tells the fault
                seen = (self._credentials.path / file).stat()
                stamps.append((file, seen.st_mtime_ns, seen.st_ino, seen.st_size))
        return tuple(stamps)
