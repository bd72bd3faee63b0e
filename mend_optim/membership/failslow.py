"""Which learners have become slow: from seconds per token, and per byte, to verdicts with reasons.

A learner keeps one `Pace` per stream of durations: its inner steps, per token, and its uploads, per
byte. It tells the others its `Level` of each with every beat. A `Watch` judges all learners by
these levels. A learner is failing if it has become slower than it was, by more than the others
have, and is now slower than they are. Steady hardware never fails, however slow. Nor does any
learner fail when all become slower alike.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import median
from typing import NamedTuple

from mend_optim.errors import is_number, require, take_plain_numbers
from mend_optim.membership.changepoint import LONGEST, NOISE, RunLengths
from mend_optim.protocol.lineage import PeerId
from mend_optim.protocol.messages import Level

#: Seconds and amounts are between these two; anything beyond is not a measurement.
LEAST = 1e-50
MOST = 1e50
#: Blocks that make a level; one or two are a stall.
STEADY = 3
#: Blocks that a level is taken from, the newest.
RECENT = 8
#: A change is looked for within this many blocks, so that as many are left to compare it with.
OLDEST = LONGEST // 2
#: The least that a level must move, as a logarithm, to count as a change: 10 %.
CHANGE = math.log(1.1)
#: The jitter known of earlier levels counts for this many blocks.
PRIOR = 8
#: A block ends early once it takes as long as this many usual blocks.
DRAGGED = 2
#: A suspect, and more than half of the others, must report later blocks this often before there is
#: a verdict.
SETTLE = 2
#: The least doubt, so that nothing is divided by 0.
TINY = 1e-9

Stream = tuple[PeerId, str]
"""A learner, and the cause of its durations: "compute" or "link"."""


@dataclass(frozen=True, kw_only=True)
class FailSlow:
    """When a learner counts as failing. Rounds don't wait for a failing learner.

    Args:
        threshold: How many times slower the learner must be than it was, and than the others are;
            > 1.1.
        score: By how many robust standard deviations; > 0.
        patience: For how many blocks of steps; an int >= 1.
        recover: The learner is failing no more once it is less than this many times slower; > 1,
            and at most `threshold`.
        restart_s: The seconds of its work that replacing a learner costs; > 0. Once a failing
            learner has lost as many, you get an event (the ski-rental rule, as in FALCON, arXiv
            2410.12588).

    Raises:
        UsageError: An argument is out of its bounds.

    Example:
        >>> FailSlow(threshold=1.5).recover
        1.1
    """

    threshold: float = 1.2
    score: float = 3.5
    patience: int = 3
    recover: float = 1.1
    restart_s: float = 300.0

    def __post_init__(self) -> None:
        take_plain_numbers(self)
        for name, least in (("threshold", 1.1), ("score", 0), ("recover", 1), ("restart_s", 0)):
            value = getattr(self, name)
            require(
                is_number(value) and value > least, f"failslow.{name}", value, f"a number > {least}"
            )
        require(
            type(self.patience) is int and self.patience >= 1,
            "failslow.patience",
            self.patience,
            "an int >= 1",
        )
        require(
            self.recover <= self.threshold,
            "failslow.recover",
            self.recover,
            f"at most threshold={self.threshold}",
            "otherwise a learner would be failing and recovered at once",
        )


def is_sound(level: Level) -> bool:
    """Return whether this can be the level of a `Pace`. A level that a peer sent need not be."""
    return 1 / MOST**2 < level.before <= level.now < MOST**2 and 0 <= level.spread < math.inf


class Pace:
    """The level of one stream of durations.

    The median of every `block` of them counts as one observation, so one spike in a block, such as
    a data stall or a pause to evaluate, is not seen at all. Two or three make a block if they are
    so slow that as many of the fastest among them would take as long as `DRAGGED` blocks at the
    fastest level. So the time until a verdict doesn't grow with the length of a straggler's steps.

    The level changes when it is certain that something changed 3 or more blocks ago, that the
    change makes 10 % of difference, and that it goes on.

    Args:
        block: Durations in a block.
        skip: The first blocks that are left out, because much is compiled in them.
    """

    def __init__(self, block: int = 4, skip: int = 2) -> None:
        self._block = block
        self._skip = skip
        #: Seconds per token or byte of the present block. Invariant: fewer than `block`.
        self._rates: list[float] = []
        #: The first block's rate; 0 until there is one. Every other rate is kept as the logarithm
        #: of its ratio to this one.
        self._unit = 0.0
        #: How long the present level has held, as a distribution.
        self._runs = RunLengths()
        #: Blocks of the present level.
        self._run = 0
        #: The present level's last `LONGEST` blocks.
        self._recent: list[float] = []
        #: The last `RECENT` earlier levels that held for `STEADY` blocks or more.
        self._steady: list[float] = []
        #: The standard deviation of a block about its level.
        self._noise = NOISE
        #: The rate of the fastest level; infinite until there is a level.
        self._usual = math.inf
        #: The level to tell the others; None until there have been `STEADY` blocks. Written by
        #: `_observe` alone: it is told far more often than there is a block.
        self.level: Level | None = None

    def add(self, seconds: float, amount: float) -> None:
        """Take in one duration.

        Args:
            seconds: How long it took.
            amount: Tokens or bytes that it was spent on. Both must be finite and positive; the
                duration is ignored otherwise.
        """
        if not (LEAST < seconds < MOST and LEAST < amount < MOST):
            return
        self._rates.append(seconds / amount)
        if len(self._rates) == self._block or self._drags():
            rate = median(self._rates)
            self._rates.clear()
            if self._skip:
                self._skip -= 1
            else:
                self._observe(rate)

    def _drags(self) -> bool:
        """Return whether the present block is so slow that it ends early."""
        count = len(self._rates)
        return count >= 2 and count * min(self._rates) >= DRAGGED * self._block * self._usual

    def _observe(self, rate: float) -> None:
        """Take in one block."""
        self._unit = self._unit or rate
        x = math.log(rate / self._unit)
        self._runs.add(x)
        self._run += 1
        self._recent.append(x)
        del self._recent[:-LONGEST]
        held = self._runs.shortest()
        if STEADY <= held <= OLDEST and held < self._run:
            self._change(held)
        self.level = self._measured() if self._run >= STEADY else None
        if self.level:
            self._usual = self.level.before

    def _change(self, held: int) -> None:
        """Begin a new level with the last `held` blocks, if they differ enough from those
        before."""
        past = self._recent[:-held]
        present = self._recent[-held:]
        level = median(past)
        step = median(present[-RECENT:]) - level
        # if the last block is back again, it was a stall
        if abs(step) < CHANGE or (present[-1] - level) / step < 0.5:
            return
        if self._run - held >= STEADY:
            self._steady = [*self._steady[1 - RECENT :], level]
            self._noise = self._jitter(past)
        self._recent = present
        self._run = held

    def _jitter(self, logs: Sequence[float]) -> float:
        """Return the standard deviation of a block about its level, by these blocks' MAD and by
        what is known of earlier levels."""
        seen = deviation(logs) ** 2
        return math.sqrt((PRIOR * self._noise**2 + len(logs) * seen) / (PRIOR + len(logs)))

    def _measured(self) -> Level:
        """The present level, by the blocks so far."""
        now = median(self._recent[-RECENT:])
        before = min([now, *self._steady])
        error = math.sqrt(math.pi / 2 / min(len(self._recent), RECENT)) * self._jitter(self._recent)
        return Level(self._unit * math.exp(now), self._unit * math.exp(before), error, self._run)


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """A learner that is failing."""

    #: The learner.
    peer: PeerId
    #: Which stream became slow: "compute" or "link".
    cause: str
    #: When the verdict was given.
    since: float
    #: How many times slower it is than it was, relative to how much slower the others became.
    #: Invariant: > 1.
    ratio: float
    #: The seconds of its work lost since: ∫ (1 − 1/ratio) dt. Never decreases.
    lost_s: float = 0.0
    #: Whether `lost_s` has reached `FailSlow.restart_s`, so that the user was told.
    costly: bool = False

    @property
    def lost_per_hour_s(self) -> float:
        """Seconds of its work that it loses in an hour at this ratio."""
        return 3600 * (1 - 1 / self.ratio)

    def after(self, seconds: float) -> Verdict:
        """Return the same verdict so many seconds later."""
        return replace(self, lost_s=self.lost_s + seconds * (1 - 1 / self.ratio))


class Slower(NamedTuple):
    """How one learner compares with the others."""

    #: How many times slower it is than before, relative to the others' median of the same.
    ratio: float
    #: How many times slower than the others' median it is now; infinite if there are no others.
    than_others: float
    #: One standard deviation of log(ratio). Invariant: > 0.
    doubt: float


def compare(own: Level, others: Sequence[Level]) -> Slower:
    """Compare a learner i with the others j ≠ i.

    With r = now / before:

        log ratio = log rᵢ − median log rⱼ
        doubt = max(1.4826 MAD log rⱼ, spreadᵢ)
    """
    change = math.log(own.now / own.before)
    if not others:
        return Slower(math.exp(change), math.inf, max(own.spread, TINY))
    changes = [math.log(other.now / other.before) for other in others]
    than_others = own.now / median([other.now for other in others])
    return Slower(
        math.exp(change - median(changes)), than_others, max(deviation(changes), own.spread, TINY)
    )


class Watch:
    """Verdicts on all learners, this one included. A verdict bans no learner; rounds only don't
    wait for it.

    A learner that fails by the policy is a suspect first. When all become slower alike, one of them
    notices, or is heard of, before the others. The suspect is failing if it still fails once it,
    and more than half of the others, have reported later blocks twice.
    """

    def __init__(self, policy: FailSlow) -> None:
        self.policy = policy
        #: The learners that are failing, by stream.
        self._verdicts: dict[Stream, Verdict] = {}
        #: The learners that may be. By stream and reporting learner, that learner's last `run`, and
        #: how often its `run` has changed since the suspicion. No stream is in both tables.
        self._suspects: dict[Stream, dict[PeerId, tuple[int, int]]] = {}
        #: When `judge` was last called.
        self._at = -math.inf

    @property
    def failing(self) -> dict[PeerId, Verdict]:
        """The worst verdict on each failing learner."""
        ascending = sorted(
            self._verdicts.values(), key=lambda verdict: (verdict.ratio, verdict.cause)
        )
        return {verdict.peer: verdict for verdict in ascending}

    def judge(
        self, now: float, levels: Mapping[PeerId, Mapping[str, Level]]
    ) -> list[tuple[str, Verdict]]:
        """Judge all learners.

        Args:
            now: The time.
            levels: The levels that each learner gives, by cause. A learner that is not listed is
                forgotten. A learner cannot fail by a cause for which it gives no level.

        Returns:
            The changes, in the learners' order: "slow" when a learner begins to fail, "costly" when
            it has lost as much time as replacing it would cost, "recovered" when it fails no more.
        """
        streams: dict[str, dict[PeerId, Level]] = {}
        for peer, causes in levels.items():
            for cause, level in causes.items():
                if is_sound(level):
                    streams.setdefault(cause, {})[peer] = level
        observed = {(peer, cause) for cause, stream in streams.items() for peer in stream}
        passed = max(0.0, now - self._at)
        self._at = now
        self._verdicts = {
            key: verdict.after(passed)
            for key, verdict in self._verdicts.items()
            if key[0] in levels
        }
        self._suspects = {key: runs for key, runs in self._suspects.items() if key in observed}
        turns = (
            self._turn(now, key, streams.get(key[1], {}))
            for key in sorted(observed | set(self._verdicts))
        )
        return [turn for turn in turns if turn]

    def _turn(
        self, now: float, key: Stream, stream: Mapping[PeerId, Level]
    ) -> tuple[str, Verdict] | None:
        """Judge one learner by one cause; return what has changed."""
        peer, cause = key
        slower = self._slower(peer, stream)
        verdict = self._verdicts.get(key)
        if verdict is None:
            if not slower or not self._fails(stream[peer], slower):
                self._suspects.pop(key, None)
                return None
            if not self._persists(key, stream):
                return None
            del self._suspects[key]
            self._verdicts[key] = Verdict(peer=peer, cause=cause, since=now, ratio=slower.ratio)
            return "slow", self._verdicts[key]
        if not slower or slower.ratio < self.policy.recover:
            return "recovered", self._verdicts.pop(key)
        costly = verdict.lost_s >= self.policy.restart_s
        self._verdicts[key] = replace(verdict, ratio=slower.ratio, costly=costly)
        return ("costly", self._verdicts[key]) if costly and not verdict.costly else None

    def _slower(self, peer: PeerId, stream: Mapping[PeerId, Level]) -> Slower | None:
        """Compare a learner with the others. None if it gives no level, or if it has not become
        slower itself; then it doesn't matter what the others did."""
        own = stream.get(peer)
        if own is None or own.now < self.policy.recover * own.before:
            return None
        return compare(own, [level for other, level in stream.items() if other != peer])

    def _fails(self, own: Level, slower: Slower) -> bool:
        """Return whether a learner fails by the policy."""
        policy = self.policy
        return (
            own.run >= policy.patience
            and slower.ratio >= policy.threshold
            and slower.than_others >= policy.threshold
            and math.log(slower.ratio) >= policy.score * slower.doubt
        )

    def _persists(self, key: Stream, stream: Mapping[PeerId, Level]) -> bool:
        """Return whether the suspect, and more than half of the others, have reported enough later
        blocks since the suspicion."""
        heard = self._suspects.setdefault(key, {})
        for peer, level in stream.items():
            run, changes = heard.get(peer, (level.run, 0))
            heard[peer] = (level.run, changes + (level.run != run))
        behind = [peer for peer in stream if heard[peer][1] < SETTLE]
        return key[0] not in behind and 2 * len(behind) < max(1, len(stream) - 1)


def deviation(values: Sequence[float]) -> float:
    """Return the standard deviation by the median absolute deviation: 1.4826 MAD."""
    middle = median(values)
    return 1.4826 * median([abs(value - middle) for value in values])
