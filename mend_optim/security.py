"""The arguments of `MendOptimizer` that say how links are secured, and the refusal to go
without."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from mend_optim.environment import stand_in
from mend_optim.errors import UsageError, require, require_instance
from mend_optim.transport.address import is_loopback, parse_address
from mend_optim.transport.security.channels import (
    ON_EXECUTOR,
    Aside,
    MutualTls,
    Plaintext,
    Security,
)
from mend_optim.transport.security.credentials import Credentials
from mend_optim.transport.security.loading import CredentialFiles

log = logging.getLogger("mend_optim")

LOCAL = "none: plaintext, within this machine"
INSECURE = "none: plaintext, by insecure=True"
WARNING = (
    "%s: insecure=True: links are neither encrypted nor authenticated, so any process that reaches"
    " a learner's port can read the model and replace it"
)
REMEDY = (
    "pass credentials=Credentials.secret(…) or Credentials.files(…), which encrypt and authenticate"
    " all links, or insecure=True if you trust every process that reaches them"
)
_YES = ("1", "true", "yes")
_NO = ("", "0", "false", "no")


@dataclass(frozen=True, kw_only=True)
class LinkSecurity:
    """How a learner's links are secured. It holds paths, and no secret.

    Errors about `credentials` say `source`, the argument or the variable that they came from."""

    credentials: Credentials | None = None
    source: str = "credentials"
    insecure: bool = False

    def open(self, name: str, aside: Aside = ON_EXECUTOR) -> Security:
        """Read and check the files of the learner of this name. They are read again later: `aside`
        runs that on another thread. Raises `UsageError`."""
        if self.credentials is not None:
            files = CredentialFiles(self.source, self.credentials, name)
            kind = self.credentials.source.value
            return MutualTls(files.read(), kind, files.read_again, files.notary(), aside)
        if self.insecure:
            log.warning(WARNING, name)
            return Plaintext(INSECURE)
        return Plaintext(LOCAL, is_local=True)

    @property
    def signed(self) -> bool:
        """Whether this learner's offers are signed."""
        return self.credentials is not None and self.credentials.signed


def read_security(credentials: Credentials | None, insecure: bool) -> LinkSecurity:
    """Check the two arguments, and fill in what they omit from the environment.

    Raises:
        UsageError: one of them is wrong, or they contradict each other.
    """
    require_instance("credentials", credentials)
    known = isinstance(credentials, Credentials | None)
    bound = "a Credentials.secret(…) or a Credentials.files(…)"
    require(known, "credentials", credentials, bound)
    require(isinstance(insecure, bool), "insecure", insecure, "True or False")
    source = "credentials"
    if credentials is None:
        credentials, source = _credentials_told()
    insecure_from = "insecure"
    if not insecure:
        insecure, insecure_from = _insecure_told()
    remedy = "leave one of the two out"
    contradicts = insecure and credentials is not None
    require(not contradicts, insecure_from, True, f"left out with {source}", remedy)
    return LinkSecurity(credentials=credentials, source=source, insecure=insecure)


def refuse_open_links(
    security: LinkSecurity,
    listen: str | None,
    listen_from: str,
    peers: Sequence[str],
    peers_from: str,
) -> None:
    """Raise `UsageError` if links would leave this machine in plaintext, and nobody said so."""
    if security.credentials is not None or security.insecure:
        return
    if listen is not None:
        host, _ = parse_address(listen_from, listen)
        bound = "a loopback address, such as '127.0.0.1:29600', without credentials"
        require(is_loopback(host), listen_from, listen, bound, REMEDY)
    for peer in peers:
        refuse_open_link(security, peers_from, peer)


def refuse_open_link(security: LinkSecurity, source: str, peer: str) -> None:
    """Raise `UsageError` if a link to this peer would leave this machine in plaintext, and nobody
    said so. The error calls the address `source`."""
    if security.credentials is not None or security.insecure:
        return
    host, _ = parse_address(source, peer)
    bound = "loopback addresses, such as '127.0.0.1:29600', without credentials"
    require(is_loopback(host), source, peer, bound, REMEDY)


def _credentials_told() -> tuple[Credentials | None, str]:
    """The credentials of the environment, and the variable that they came from."""
    directory, directory_from = stand_in("credentials")
    secret, secret_from = stand_in("secret")
    if directory and secret:
        raise UsageError(
            f"{secret_from} must be left out with {directory_from}, got both; keep the one that all"
            " learners use"
        )
    if secret:
        return Credentials.secret(Path(secret)), secret_from
    return Credentials.files(Path(directory)) if directory else None, directory_from


def _insecure_told() -> tuple[bool, str]:
    text, variable = stand_in("insecure")
    told = text.strip().lower()
    require(told in (*_YES, *_NO), variable, text, f"one of {', '.join(filter(None, _YES + _NO))}")
    return told in _YES, variable
