"""Why a bulky message did not get through, as far as the transport can tell."""

from __future__ import annotations

from enum import Enum
from typing import NamedTuple


class Cause(Enum):
    """The kinds of faults."""

    #: The connection broke, or nothing moved on it.
    BROKEN = "broken"
    #: The peer itself has ended the transfer, as where it has no room, or no answer.
    ENDED = "ended"
    #: Bytes of the message changed on the way.
    DAMAGED = "damaged"
    #: The certificate that the peer shows on a new connection is not accepted.
    UNTRUSTED = "untrusted"
    #: The peer, which cannot be dialled, has not answered.
    UNANSWERED = "unanswered"


class TransferFault(NamedTuple):
    """Why one transfer failed."""

    cause: Cause = Cause.BROKEN
    #: The peer's own words, if it has ended the transfer; else empty.
    words: str = ""


BROKEN = TransferFault()
