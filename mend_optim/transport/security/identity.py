"""What a learner shows and proves at each handshake."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NoReturn

from mend_optim.transport.security.certificate import Certificate, certificates_in, day
from mend_optim.transport.security.names import host_of_name


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Identity:
    """The content of credentials. It never leaves its process: it cannot be pickled or copied, and
    its `repr` shows no key."""

    #: The learner's name, which its certificate says.
    name: str
    #: The authorities, in PEM.
    authorities: bytes = field(repr=False)
    #: The learner's certificate, and those between it and an authority, in PEM.
    chain: bytes = field(repr=False)
    #: The learner's private key, in PEM.
    key: bytes = field(repr=False)
    #: Names and certificates' SHA-256s of peers that are turned away.
    denied: frozenset[str] = frozenset()

    @property
    def certificate(self) -> Certificate:
        """The learner's own certificate."""
        return certificates_in(self.chain)[0]

    @property
    def shown(self) -> tuple[bytes, bytes, bytes]:
        """What handshakes depend on."""
        return self.authorities, self.chain, self.key

    def host_of(self, name: str) -> str:
        """Return the DNS name that the certificate of a learner must have. The first authority
        decides: while authorities change, certificates have a name for each of them."""
        return host_of_name(name, certificates_in(self.authorities)[0].key)

    def described(self) -> str:
        """Describe the certificate in a few words."""
        own = self.certificate
        return f"certificate {own.sha256[:12]}, valid until {day(own.not_after)}"

    def __reduce_ex__(self, protocol: object) -> NoReturn:
        raise TypeError("an Identity holds a private key, so it is never pickled or copied")
