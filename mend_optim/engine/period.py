"""The period H that a run chooses for itself, from the time that its rounds take.

A round's time L is the number of inner steps from a snapshot until its anchor is ready. Every
learner measures its own, and its beats tell the median of the last rounds. The sealer of fragment 0
decides, and its seal carries H, so all learners have one period and the ledger of any of them shows
it. That matters: learners that each choose a period of their own drift apart."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Collection
from dataclasses import dataclass
from statistics import median_high

from mend_optim.engine.schedule import Schedule
from mend_optim.errors import (
    is_number,
    plain_number,
    require,
    require_instance,
    take_plain_numbers,
)

#: A learner tells its median once it has seen so many rounds, and of no more than so many. Rounds
#: with an earlier period count, too: how long they take hardly depends on how often they begin.
FEWEST, LAST = 3, 9
#: The period of a run that measures nothing, because its rounds take as long as it is told.
USUAL = 20
#: A period that is right within one step, or within this share, is kept.
STEADY = 0.25


@dataclass(frozen=True, kw_only=True)
class AutoPeriod:
    """The limits of `sync_every="auto"`: a period that the run chooses for itself.

    With rounds that take L inner steps, the period is L: as often as the link allows. The more
    often learners hear of one another, the more they gain (docs/learning.md). A link that others
    need too, or that is paid for by the byte, should get a `bytes_per_s`.

    Args:
        least: the shortest period, in inner steps; at least 1.
        most: the longest period, in inner steps; at least `least`.
        bytes_per_s: what one learner may send and receive per second on average; greater than 0.
            None: as much as the link takes.

    Raises:
        UsageError: an argument is out of its bounds.

    Example:
        >>> AutoPeriod(bytes_per_s=1e6).most
        512
    """

    least: int = 1
    most: int = 512
    bytes_per_s: float | None = None

    def __post_init__(self) -> None:
        take_plain_numbers(self)
        for name, smallest in (("least", 1), ("most", self.least)):
            value = getattr(self, name)
            whole = type(value) is int and value >= smallest
            require(whole, f"sync_every.{name}", value, f"an int >= {smallest}")
        rate = self.bytes_per_s
        positive = rate is None or (is_number(rate) and rate > 0)
        require(positive, "sync_every.bytes_per_s", rate, "None or a number > 0")

    def next(self, present: int, latencies: Collection[int], nbytes: float, step_s: float) -> int:
        """The period that follows `present`.

        Args:
            present: the period now.
            latencies: L of each learner that has measured it.
            nbytes: what the busiest learner sends and receives in one round of the whole model.
            step_s: how long an inner step of the fastest learner takes, in seconds.
        """
        if not latencies:
            return present
        wanted = median_high(latencies)
        if self.bytes_per_s is not None and step_s > 0:
            wanted = max(wanted, math.ceil(nbytes / (self.bytes_per_s * step_s)))
        wanted = min(max(wanted, self.least), self.most)
        return present if is_steady(present, wanted) else wanted


def is_steady(present: int, wanted: int) -> bool:
    """Whether a period is so close to the one that is wanted that it is kept. Every change lets all
    turns begin anew."""
    return abs(wanted - present) <= max(1, STEADY * present)


class Latency:
    """How many inner steps the rounds of one learner take."""

    def __init__(self) -> None:
        self._last: deque[int] = deque(maxlen=LAST)
        #: How many there were, of all fragments.
        self.rounds = 0

    def add(self, steps: int) -> None:
        """An anchor that merged the learner's offer is ready, so many steps after the snapshot."""
        self._last.append(steps)
        self.rounds += 1

    @property
    def median(self) -> int:
        """L, at least 1; 0 if there were too few rounds."""
        return max(1, median_high(self._last)) if len(self._last) >= FEWEST else 0


def read_period(
    sync_every: int | str | AutoPeriod, fragments: int | None, adopt_after: int | None
) -> tuple[Schedule, AutoPeriod | None]:
    """The first schedule of these arguments, and the limits of an automatic period; None if it is
    fixed. Rounds begin as often as they end, until the run has measured how long they take. Under
    `adopt_after` that is known, so the period is fixed from the start.

    Args:
        sync_every: as the user tells it.
        fragments: P; None if it is not known yet. The schedule has 1 then.
        adopt_after: τ.

    Raises:
        UsageError: an argument is wrong.
    """
    require_instance("sync_every", sync_every)
    sync_every, adopt_after = plain_number(sync_every), plain_number(adopt_after)
    auto = AutoPeriod() if sync_every == "auto" else sync_every
    if not isinstance(auto, AutoPeriod):
        number = type(auto) is int and auto >= 1
        require(number, "sync_every", auto, "an int >= 1, 'auto' or an AutoPeriod(least=…, …)")
        schedule = Schedule(sync_every=auto, fragments=fragments or 1, adopt_after=adopt_after)  # type: ignore[arg-type]
        _check_turns(schedule)
        return schedule, None
    fewest = [auto.least]
    if adopt_after is not None:
        fewest += [USUAL, *(n for n in (fragments, adopt_after) if type(n) is int)]
    first = min(max(fewest), auto.most)
    schedule = Schedule(sync_every=first, fragments=fragments or 1, adopt_after=adopt_after)
    if adopt_after is None:
        return schedule, auto
    _check_turns(schedule)
    return schedule, None


def _check_turns(schedule: Schedule) -> None:
    """With a fixed period, each fragment has a boundary of its own."""
    require(
        schedule.fragments <= schedule.sync_every,
        "fragments",
        schedule.fragments,
        f"at most sync_every={schedule.sync_every}",
        "each fragment needs an inner step of its own in every period: "
        "raise sync_every or lower fragments",
    )
