"""The result of a survey: the way between a learner and somebody that takes no part. The arithmetic
is here, too."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

#: Bytes of the first transfer of a survey. Each further one has so many times the bytes.
FIRST_BYTES = 16 << 10
GROWTH = 4
#: Bytes of the greatest transfer.
MOST_BYTES = 4 << 20
#: A transfer has told enough if it took so long, and so many round trips. Before that, its time is
#: mostly that of the round trip.
ENOUGH_S = 0.25
ENOUGH_TRIPS = 4
#: Seconds after which no greater transfer in the same direction is begun.
SPENT_S = 1.5


class DialBack(Enum):
    """How it went when a learner dialled its caller back. The value is the word on the wire."""

    REACHED = "reached"
    REFUSED = "connection refused"
    ANSWER = "no answer"
    ROUTE = "no route"
    #: Somebody took the connection, and didn't say the token.
    OTHER = "somebody else"


@dataclass(frozen=True, slots=True, kw_only=True)
class ClockTrip:
    """One reading of a learner's clock: four times in nanoseconds, each by the clock of the machine
    where it was taken.

    Attributes:
        asked_ns: when the caller asked.
        received_ns: when the learner read that.
        answered_ns: when the learner answered.
        heard_ns: when the caller read that.
    """

    asked_ns: int
    received_ns: int
    answered_ns: int
    heard_ns: int

    @property
    def is_possible(self) -> bool:
        """Whether no clock was set back meanwhile."""
        return 0 <= self.answered_ns - self.received_ns <= self.heard_ns - self.asked_ns

    @property
    def travel_ns(self) -> int:
        """The time that the question and the answer were on their way."""
        return (self.heard_ns - self.asked_ns) - (self.answered_ns - self.received_ns)

    @property
    def offset_ns(self) -> int:
        """By how much the learner's clock is ahead of the caller's. It is exact if both ways take
        the same time."""
        there = self.received_ns - self.asked_ns
        back = self.answered_ns - self.heard_ns
        return (there + back) // 2

    @property
    def bound_ns(self) -> int:
        """The offset is wrong by no more than this, because no way takes less than no time."""
        return -(-self.travel_ns // 2) + 1


def clearest(trips: Sequence[ClockTrip]) -> ClockTrip | None:
    """Return the trip that bounds the offset most narrowly; None if there is none."""
    possible = [trip for trip in trips if trip.is_possible]
    return min(possible, key=lambda trip: trip.travel_ns, default=None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Transfer:
    """Bytes that went one way, and were acknowledged.

    Attributes:
        nbytes: how many.
        took_s: from the request until all were there, and the caller knew it.
        round_trip_s: the part of that which is no transfer.
    """

    nbytes: int
    took_s: float
    round_trip_s: float

    @property
    def bytes_per_s(self) -> float:
        """The rate of the link. It is never more than twice the rate that was seen: if the round
        trip took most of the time, then what is left of that says little."""
        return self.nbytes / max(self.took_s - self.round_trip_s, self.took_s / 2, 1e-9)

    @property
    def is_enough(self) -> bool:
        """Whether the time was that of the transfer, and not of the round trip alone."""
        return self.took_s >= max(ENOUGH_S, ENOUGH_TRIPS * self.round_trip_s)

    @property
    def is_least(self) -> bool:
        """Whether the link may well be faster: the round trip took much of the time."""
        return self.took_s < ENOUGH_TRIPS * self.round_trip_s


def next_bytes(done: Sequence[Transfer]) -> int:
    """Return the bytes of the next transfer, after these in the same direction; 0 if they are
    enough."""
    if not done:
        return FIRST_BYTES
    last = done[-1]
    spent_s = sum(transfer.took_s for transfer in done)
    if last.is_enough or spent_s >= SPENT_S or last.nbytes >= MOST_BYTES:
        return 0
    return min(GROWTH * last.nbytes, MOST_BYTES)


@dataclass(frozen=True, slots=True, kw_only=True)
class Surveyed:
    """The result of a survey, as far as it came.

    Attributes:
        seen_ip: the IP address that the learner sees the caller under.
        clock: the clearest reading of the learner's clock.
        up: the greatest transfer from the caller to the learner.
        down: the greatest one to the caller.
        dialled: how it went when the learner dialled back; None if it was not asked to.
        wait_s: after how long it takes a survey again, because it has just had others.
        is_too_old: whether the learner knows of no surveys.
        fault: why the survey ended early.
    """

    seen_ip: str = ""
    clock: ClockTrip | None = None
    up: Transfer | None = None
    down: Transfer | None = None
    dialled: DialBack | None = None
    wait_s: float = 0.0
    is_too_old: bool = False
    fault: str = ""
