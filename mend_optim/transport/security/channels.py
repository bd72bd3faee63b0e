"""How links are secured: ports, channels and callers, in plaintext or over mutual TLS. A learner
uses one of the two, in both directions, and never the other."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Protocol

from mend_optim.errors import UsageError
from mend_optim.protocol.proofs import Notary
from mend_optim.protocol.unreached import Unreached
from mend_optim.transport.address import grpc_target, is_loopback, parse_address
from mend_optim.transport.background_log import BackgroundLog
from mend_optim.transport.diagnosis import DENIED
from mend_optim.transport.grpc_setup import grpc
from mend_optim.transport.limits import check
from mend_optim.transport.security.certificate import Certificate, certificates_in, day
from mend_optim.transport.security.expiry import Reminder
from mend_optim.transport.security.identity import Identity
from mend_optim.transport.security.names import ANY_LEARNER, name_in
from mend_optim.transport.security.probe import probe, probe_without_credentials

log = BackgroundLog("mend_optim")

Options = Sequence[tuple[str, int]]
Aside = Callable[[Callable[[], Identity | None]], Awaitable[Identity | None]]
"""Runs a function that may block, beside the loop."""
#: On a thread that the interpreter waits for when it ends.
ON_EXECUTOR: Aside = asyncio.to_thread

#: Seconds for which a peer's certificate counts on after its end, so that a clock that is wrong by
#: less stops no run. TLS itself refuses new connections at once.
EXPIRY_GRACE_S = 3600.0


class Security(Protocol):
    """How links are secured."""

    @property
    def authenticates(self) -> bool:
        """Whether a peer's name is proven."""

    @property
    def keeps_bytes(self) -> bool:
        """Whether no byte can change on the way without notice."""

    @property
    def notary(self) -> Notary | None:
        """Signs and checks offers; None if they are not signed."""

    def described(self) -> str:
        """Describe it to the user, in one line."""

    def bind(self, server: Any, address: str) -> int:
        """Let a gRPC server listen there; return the port. Raises `RuntimeError`, as gRPC does."""

    def channel(self, address: str, options: Options, name: str) -> Any:
        """Return a channel to the learner of this name; to any learner, if the name is empty."""

    def may_dial(self, address: str) -> bool:
        """Whether this learner may connect to an address that others tell it."""

    def check_caller(self, context: Any, name: str) -> Certificate | None:
        """Return the certificate of an RPC's caller, if it has one. Raise `PeerError` unless the
        caller may speak as the learner of this name."""

    def check_peer(self, name: str, certificate: Certificate | None) -> None:
        """Raise `PeerError` if a peer must not take part any more. Its certificate is not known if
        it has not called."""

    async def renew(self) -> bool:
        """Read files that have changed; return whether there is another certificate. If they are
        wrong, the former one stays, and a warning says so. Another one says that it will end."""

    async def probe(self, address: str) -> Unreached | None:
        """Dial an address at which no hello succeeds. Returns what is wrong there, if that can be
        seen."""


class Plaintext:
    """No encryption and no authentication.

    Args:
        described: Why that is so, for the user.
        is_local: Whether nothing may leave this machine: then no device on the way can damage it.
    """

    authenticates = False
    notary = None

    def __init__(self, described: str, *, is_local: bool = False) -> None:
        self._described = described
        self._is_local = self.keeps_bytes = is_local

    def described(self) -> str:
        return self._described

    def bind(self, server: Any, address: str) -> int:
        return int(server.add_insecure_port(address))

    def channel(self, address: str, options: Options, name: str) -> Any:
        return grpc.aio.insecure_channel(grpc_target(address), options=list(options))

    def may_dial(self, address: str) -> bool:
        """Everywhere, or at the addresses that only this machine has."""
        host, _ = parse_address("address", address)
        return not self._is_local or is_loopback(host)

    def check_caller(self, context: Any, name: str) -> Certificate | None:
        """Believe the caller."""
        return None

    def check_peer(self, name: str, certificate: Certificate | None) -> None:
        """Believe the peer."""

    async def renew(self) -> bool:
        return False

    async def probe(self, address: str) -> Unreached | None:
        return await probe_without_credentials(address)


class MutualTls:
    """Both ends of every connection show a certificate of the run's authority.

    Args:
        identity: What this learner shows.
        kind: What the user calls that.
        read_again: Returns what it shows from now on, if that has changed. Raises `UsageError`. It
            may block for long.
        notary: Makes the notary, given what returns the present identity; None: offers are not
            signed.
        aside: Runs `read_again` on another thread.
    """

    authenticates = True
    keeps_bytes = True

    def __init__(
        self,
        identity: Identity,
        kind: str,
        read_again: Callable[[], Identity | None] = lambda: None,
        notary: Callable[[Callable[[], Identity]], Notary] | None = None,
        aside: Aside = ON_EXECUTOR,
    ) -> None:
        self._identity = identity
        self.notary = notary(lambda: self._identity) if notary else None
        self._kind = kind
        self._read_again = read_again
        self._aside = aside
        #: What was last said to be wrong with files that have changed.
        self._complaint = ""
        self._reminder = Reminder()

    def described(self) -> str:
        signed = ", offers signed" if self.notary else ""
        return f"mutual TLS ({self._kind}), {self._identity.described()}{signed}"

    def bind(self, server: Any, address: str) -> int:
        own = self._identity
        credentials = grpc.ssl_server_credentials(
            [(own.key, own.chain)], root_certificates=own.authorities, require_client_auth=True
        )
        return int(server.add_secure_port(address, credentials))

    def channel(self, address: str, options: Options, name: str) -> Any:
        own = self._identity
        credentials = grpc.ssl_channel_credentials(own.authorities, own.key, own.chain)
        host = own.host_of(name) if name else ANY_LEARNER
        named = [*options, ("grpc.ssl_target_name_override", host)]
        return grpc.aio.secure_channel(grpc_target(address), credentials, options=named)

    def may_dial(self, address: str) -> bool:
        """Everywhere."""
        return True

    def check_caller(self, context: Any, name: str) -> Certificate | None:
        shown = context.auth_context()
        check(shown.get("transport_security_type") == [b"ssl"], "the connection is not TLS")
        proven = name_in([uri.decode("ascii", "replace") for uri in shown.get("peer_uri", ())])
        check(proven == name, f"the certificate of {proven!a} cannot speak for {name!a}")
        certificate = certificates_in(shown["x509_pem_cert"][0])[0]
        self.check_peer(name, certificate)
        return certificate

    def check_peer(self, name: str, certificate: Certificate | None) -> None:
        denied = self._identity.denied
        check(name not in denied, f"{name!a} {DENIED}")
        if certificate is not None:
            check(certificate.sha256 not in denied, f"the certificate of {name!a} {DENIED}")
            late_s = time.time() - certificate.not_after
            end = day(certificate.not_after)
            check(late_s <= EXPIRY_GRACE_S, f"the certificate of {name!a} expired on {end}")

    async def renew(self) -> bool:
        former = self._identity
        await self._read_files()
        present = self._identity
        if words := self._reminder.due(certificates_in(present.chain), time.time()):
            log.warning("%s: %s", present.name, words)
        return present.shown != former.shown

    async def _read_files(self) -> None:
        name = self._identity.name
        try:
            present = await self._aside(self._read_again)
        except UsageError as error:
            if str(error) != self._complaint:
                self._complaint = str(error)
                log.warning("%s: the former credentials stay: %s", name, error)
            return
        if present is None:
            return
        self._complaint = ""
        self._identity = present
        log.info("%s: credentials were read again: %s", name, present.described())

    async def probe(self, address: str) -> Unreached | None:
        return await probe(address, self._identity.authorities)


#: For a transport that nobody told otherwise.
BARE = Plaintext("none: plaintext")
