"""Why nobody could be reached at an address, and the remedy."""

from __future__ import annotations

from enum import Enum


class Unreached(Enum):
    """What a visit to an address came to, other than a learner. The value is for people."""

    NAME = "the name does not resolve"
    REFUSED = "connection refused"
    ROUTE = "no route to that host"
    ANSWER = "no answer"
    PROTOCOL = "what answers is no learner"
    LEAVING = "the learner there is leaving"

    @property
    def remedy(self) -> str:
        """What a user can do about it."""
        return _REMEDIES[self]


_REMEDIES = {
    Unreached.NAME: "correct the name in peers, or give an IP address",
    Unreached.REFUSED: "start the learner there, or correct its port in peers",
    Unreached.ROUTE: "check the network between the two machines",
    Unreached.ANSWER: "start that machine, or open its firewall for the port",
    Unreached.PROTOCOL: "correct the port in peers, and put no TLS before a learner",
    Unreached.LEAVING: "start the learner there again",
}
