"""How a certificate says the name of a learner.

    URI  mend-optim:<base64url(name)>                 the name, for the peer that is dialled
    DNS  n<base32(sha256(key of the authority || name))>.mend-optim.invalid
                                                      the same, for the peer that dials
    DNS  learner.mend-optim.invalid                   some learner of the run

A name has up to 200 bytes of any text, so it fits neither a DNS name nor a CN. A server reads the
URI of its caller. A caller never sees the certificate of its server: gRPC only compares DNS names
with the one that the caller demands. The hash begins with the authority's key, so that the name
which a dial sends in the clear tells a listener nothing.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
from collections.abc import Sequence

from mend_optim.errors import PeerError
from mend_optim.transport.limits import check, checked_name

_SCHEME = "mend-optim:"
_DOMAIN = "mend-optim.invalid"
#: The DNS name that the certificate of every learner has.
ANY_LEARNER = f"learner.{_DOMAIN}"


def uri_of(name: str) -> str:
    """Return the URI that a learner's certificate has."""
    return _SCHEME + base64.urlsafe_b64encode(name.encode()).decode().rstrip("=")


def host_of_name(name: str, authority_key: bytes) -> str:
    """Return the DNS name that a learner's certificate has.

    Args:
        name: The learner's name.
        authority_key: The authority's public key, as its certificate holds it (the DER encoding of
            a SubjectPublicKeyInfo).
    """
    digest = hashlib.sha256(authority_key + name.encode()).digest()
    return f"n{base64.b32encode(digest).decode().rstrip('=').lower()}.{_DOMAIN}"


def name_in(uris: Sequence[str]) -> str:
    """Return the name that a certificate's URIs say.

    Raises:
        PeerError: There is not exactly one URI, or it is not that of a learner. Another part of a
            certificate, such as its CN, never stands in.
    """
    check(len(uris) == 1, f"the certificate has {len(uris)} URIs; a learner's has exactly one")
    scheme, text = uris[0][: len(_SCHEME)], uris[0][len(_SCHEME) :]
    check(scheme == _SCHEME, f"the URI {uris[0]!a} of the certificate is no learner's")
    try:
        padded = text + "=" * (-len(text) % 4)
        name = base64.b64decode(padded, altchars=b"-_", validate=True).decode()
    except (binascii.Error, ValueError) as fault:
        raise PeerError(f"the URI {uris[0]!a} of the certificate holds no name") from fault
    # One name has one spelling.
    check(uri_of(checked_name("name", name)) == uris[0], f"the URI {uris[0]!a} is misspelt")
    return name
