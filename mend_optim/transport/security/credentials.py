"""The credentials of a learner, as its user gives them: paths of files, and never their content."""

from __future__ import annotations

import os
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

from mend_optim.errors import require


class Source(Enum):
    """What a path of credentials leads to."""

    FILES = "files"
    SECRET = "secret"


@dataclass(frozen=True, slots=True, kw_only=True)
class Credentials:
    """What a learner proves its name with, and knows its peers by. All its links then use mutual
    TLS, whose two ends both show a certificate of the run's authority.

    Make one by `Credentials.secret` or `Credentials.files`. It holds a path; the files are read
    when a `MendOptimizer` is made. [Security](security.md) has recipes for both.

    Attributes:
        source: `Source.FILES` or `Source.SECRET`.
        path: the directory of the files, or the file of the secret.
        signed: whether learners sign their offers.

    Example:
        >>> from mend_optim import Credentials
        >>> Credentials.secret("cluster.secret")
        Credentials.secret('cluster.secret')
        >>> Credentials.files("pki/alpha")
        Credentials.files('pki/alpha')
    """

    source: Source
    path: Path
    signed: bool = False

    @classmethod
    def files(cls, directory: str | os.PathLike[str], *, signed: bool = False) -> Credentials:
        """A certificate of this learner's own, and the authorities that its peers' are from.

        Args:
            directory: holds `ca.pem` (the authorities), `cert.pem` (this learner's certificate, and
                any between it and an authority) and `key.pem` (its key, which nobody else may
                read). A file `deny.txt` may list learners to turn away: a name, or the SHA-256 of a
                certificate, on each line.
            signed: whether learners sign their offers with these keys. Then no sealer can invent,
                change or repeat a member of a round, and the ledger keeps the proofs. All learners
                must have the same. Needs `pip install mend-optim[certs]`.

        Returns:
            The credentials.

        Raises:
            UsageError: it is not a path, or `signed` is not a bool.
        """
        require(isinstance(signed, bool), "credentials.signed", signed, "True or False")
        return cls(source=Source.FILES, path=_path("directory", directory), signed=signed)

    @classmethod
    def secret(cls, file: str | os.PathLike[str]) -> Credentials:
        """One secret for all learners of a run. Whoever has it may take any name. Needs
        `pip install mend-optim[certs]`.

        Args:
            file: the file of the secret, which `python -m mend_optim.certs secret` writes. Nobody
                else may read it.

        Returns:
            The credentials.

        Raises:
            UsageError: it is not a path.
        """
        return cls(source=Source.SECRET, path=_path("file", file))

    def __repr__(self) -> str:
        signed = ", signed=True" if self.signed else ""
        return f"Credentials.{self.source.value}({str(self.path)!r}{signed})"


def _path(argument: str, path: object) -> Path:
    is_path = isinstance(path, str | os.PathLike) and bool(os.fspath(path))
    require(is_path, f"credentials.{argument}", path, "a path")
    return Path(path)  # type: ignore[arg-type]
