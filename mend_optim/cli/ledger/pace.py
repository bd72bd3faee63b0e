"""The tokens per second of a run, over the time in which it went on.

An *interval* is the time from one round of a fragment to its next, in which the work of the latter
was done. A *pause* is an interval with a gap: nobody wrote a line for more than a minute, and for
more than ten times as long as the intervals around usually take. So a run that stopped overnight
has a pause, and a run with a round each half an hour has none.

    tokens/s = Σ tokens / Σ seconds, over all intervals but the pauses

Work of a pause counts no more than its time: a run that resumes has done that work since an unknown
moment. The same holds of the first round, which no interval comes before."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import median_low

from mend_optim.protocol.sight import QUIET_ROUNDS, QUIET_S

#: An interval is compared with so many before it, and as many after it: a run may choose longer
#: periods later.
AROUND = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Pace:
    """The work of a run, and the time that it took.

    Attributes:
        tokens: of the rounds that end an interval without a pause.
        seconds: of these intervals.
        pauses: the seconds of each interval with a pause, in order of time.
    """

    tokens: int = 0
    seconds: float = 0.0
    pauses: tuple[float, ...] = ()

    @property
    def per_s(self) -> float:
        """Tokens per second; 0 if there is no time to tell it of."""
        return self.tokens / self.seconds if self.seconds else 0.0


def pace_of(rounds: Sequence[tuple[float, int]], lines: Sequence[float]) -> Pace:
    """The pace of a fragment.

    Args:
        rounds: the time of each round and the tokens that it added, by time.
        lines: the times of all lines of all learners, in order.
    """
    times = [time for time, _ in rounds]
    spans = [after - before for before, after in pairwise(times)]
    tokens, seconds, pauses = 0, 0.0, []
    for i, span in enumerate(spans):
        around = spans[max(0, i - AROUND) : i + AROUND + 1]
        if _gap(lines, times[i], times[i + 1]) > max(QUIET_S, QUIET_ROUNDS * median_low(around)):
            pauses.append(span)
        else:
            tokens += rounds[i + 1][1]
            seconds += span
    return Pace(tokens=tokens, seconds=seconds, pauses=tuple(pauses))


def _gap(lines: Sequence[float], begin: float, end: float) -> float:
    """The longest time between these two in which nobody wrote a line."""
    within = lines[bisect_left(lines, begin) : bisect_right(lines, end)]
    return max((after - before for before, after in pairwise([begin, *within, end])), default=0.0)
