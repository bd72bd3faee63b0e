"""Why nobody could be reached at an address, and the remedy."""

from __future__ import annotations

from enum import Enum


class Unreached(Enum):
    """What a visit to an address came to, other than a learner. The value is for people."""

    NAME = "the name does not resolve"
    ITSELF = "nobody but this learner is there"
    REFUSED = "connection refused"
    ROUTE = "no route to that host"
    ANSWER = "no answer"
    MUTE = "it accepts connections, and says nothing"
    PROTOCOL = "what answers is no learner"
    CLOSED = "it closes connections, and says nothing"
    LEAVING = "the learner there is leaving"
    WANTS_TLS = "it wants TLS"
    NO_TLS = "it speaks no TLS"
    EXPIRED = "its certificate has expired"
    EARLY = "its certificate is not valid yet"
    AUTHORITY = "its certificate is of another authority"
    NO_LEARNER = "its certificate is no learner's"
    IMPOSTOR = "its certificate is not of the name that it says"
    DECLINED = "it declines this learner's certificate"
    DENIED = "its name is in this learner's deny.txt"

    @property
    def remedy(self) -> str:
        """What a user can do about it."""
        return _REMEDIES[self]


_REMEDIES = {
    Unreached.NAME: "correct the name in peers, or give an IP address",
    Unreached.ITSELF: "start the other learners",
    Unreached.REFUSED: "start the learner there, or correct its port in peers",
    Unreached.ROUTE: "check the network between the two machines",
    Unreached.ANSWER: "start that machine, or open its firewall for the port",
    Unreached.MUTE: (
        "look whether the process there stands still, and whether the network drops large packets"
    ),
    Unreached.PROTOCOL: (
        "correct the port in peers, and give all learners credentials of one authority, or none"
    ),
    Unreached.CLOSED: (
        "look whether the learner there has all the connections that it takes (raise its ulimit -n"
        " or limits.learners), or correct the port in peers"
    ),
    Unreached.LEAVING: "start the learner there again",
    Unreached.WANTS_TLS: "give this learner the run's credentials, or correct the port in peers",
    Unreached.NO_TLS: "give that learner credentials, too, or correct the port in peers",
    Unreached.EXPIRED: "issue its certificate again, or set the clocks right",
    Unreached.EARLY: "set the clocks of both machines right",
    Unreached.AUTHORITY: "give all learners credentials of one authority, or one secret",
    Unreached.NO_LEARNER: "correct the port in peers, or issue its certificate again",
    Unreached.IMPOSTOR: "find out who runs that process",
    Unreached.DECLINED: "compare the authorities, dates and deny.txt of both",
    Unreached.DENIED: "take it out of that file, or its address out of peers",
}
