"""Why a hello got no answer, read from the words of the fault.

gRPC gives a failed dial one status, UNAVAILABLE, whatever its cause; only the details tell. They
are made for people, and may change with a version of gRPC. Words that are not known here count as
no answer."""

from __future__ import annotations

from mend_optim.errors import PeerError
from mend_optim.protocol.unreached import Unreached

#: Why a learner that is leaving answers no hello.
LEAVING = "this learner is leaving"
#: How such a learner's answer ends if its `deny.txt` has the caller.
DENIED = "is denied here"

#: Words of the fault, in lower case. The first that occur decide.
_WORDS = (
    (LEAVING, Unreached.LEAVING),
    (DENIED, Unreached.DECLINED),
    ("errors resolving", Unreached.NAME),
    ("dns resolution failed", Unreached.NAME),
    ("connection refused", Unreached.REFUSED),
    ("no route to host", Unreached.ROUTE),
    ("network is unreachable", Unreached.ROUTE),
    ("host is unreachable", Unreached.ROUTE),
    ("socket closed", Unreached.PROTOCOL),
    ("connection reset", Unreached.PROTOCOL),
    ("failed parsing http/2", Unreached.PROTOCOL),
    ("http1", Unreached.PROTOCOL),
    ("http2 header", Unreached.PROTOCOL),
    ("hostname verification", Unreached.IMPOSTOR),
    ("not in peer certificate", Unreached.IMPOSTOR),
    ("ssl", Unreached.PROTOCOL),
    ("unimplemented", Unreached.PROTOCOL),
)

#: Words of a fault, in lower case, where this learner does not accept what the other side shows.
_DISTRUST = ("certificate_verify_failed", "hostname verification", "not in peer certificate")


def is_distrust(fault: PeerError) -> bool:
    """Whether no connection came about, because of the certificate that the other side shows."""
    text = str(fault).lower()
    return text.startswith("unavailable") and any(words in text for words in _DISTRUST)


def why_unreached(fault: PeerError) -> Unreached:
    """Return why a hello failed.

    A server that wants TLS, and one that speaks another protocol, can look alike from here: both
    close the connection. So do the forwarder of a container in which no learner listens yet, and a
    learner that has all the connections that it takes.
    """
    text = str(fault).lower()
    known = (cause for words, cause in _WORDS if words in text)
    return next(known, Unreached.ANSWER)
