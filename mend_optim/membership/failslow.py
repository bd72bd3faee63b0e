"""Who has become slow: seconds per token, and per byte, to verdicts with reasons.

A learner keeps a `Pace` of each of its streams of durations, and tells the others its `Level` with
every beat. A `Watch` judges them all: failing is who has become slower than it was, by more than
the others have, and is now slower than they are. Steady hardware is never failing, however slow;
nor is anybody when all become slower alike."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from mend_optim.errors import is_number, require
from mend_optim.membership.changepoint import LONGEST, NOISE, RunLengths
from mend_optim.protocol.lineage import PeerId
from mend_optim.protocol.messages import Level

LEAST, MOST = 1e-50, 1e50  # of seconds and amounts: what is beyond is not a measurement
STEADY = 3  # blocks that make a level: one or two are a stall
RECENT = 8  # blocks that a level is taken from
# blocks within which a change is looked for: as many are left to compare it with
OLDEST = LONGEST // 2
CHANGE = math.log(1.1)  # the least that a verified change is
PRIOR = 8  # blocks that the jitter known of earlier levels counts for
DRAGGED = 2  # usual blocks that a block may take
SETTLE = 2  # times that a suspect, and the others, tell of later blocks before there is a verdict
TINY = 1e-9

Stream = tuple[PeerId, str]  # whose, and by what cause


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
            "else a learner would be failing and recovered at once",
        )


def is_sound(level: Level) -> bool:
    """Whether this can be the level of a `Pace`: what a peer says need not be."""
    return 1 / MOST**2 < level.before <= level.now < MOST**2 and 0 <= level.spread < math.inf


class Pace:
    """The level of one stream of durations. Every `block` of them count as one, their median: one
    spike in a block, a data stall or a pause to evaluate, is not seen at all. Two or three are
    enough if they are so slow that as many of the fastest among them would take as long as
    `DRAGGED` blocks at the fastest level: rounds do not become longer with a straggler's steps. The
    first `skip` blocks, in which much is compiled, are left out.

    A change is what is certain to have begun 3 or more blocks ago, makes 10 % of difference, and
    goes on."""

    def __init__(self, block: int = 4, skip: int = 2) -> None:
        self._block, self._skip = block, skip
        self._rates: list[float] = []
        self._unit = 0.0  # the first block's rate; all others are logarithms of ratios to it
        self._runs = RunLengths()
        self._run = 0
        self._recent: list[float] = []  # the present level's
        self._steady: list[float] = []
        self._noise = NOISE
        self._usual = math.inf  # the rate of the fastest level

    def add(self, seconds: float, amount: float) -> None:
        """One duration, of so many tokens or bytes. What is not finite and positive is ignored."""
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
        count = len(self._rates)
        return count >= 2 and count * min(self._rates) >= DRAGGED * self._block * self._usual

    def _observe(self, rate: float) -> None:
        self._unit = self._unit or rate
        x = math.log(rate / self._unit)
        self._runs.add(x)
        self._run += 1
        self._recent.append(x)
        del self._recent[:-LONGEST]
        held = self._runs.shortest()
        if STEADY <= held <= OLDEST and held < self._run:
            self._change(held)
        if self._run >= STEADY:
            self._usual = self._unit * math.exp(self._before)

    def _change(self, held: int) -> None:
        """The present level has held for so many blocks, if it differs enough from the one
        before."""
        past, present = self._recent[:-held], self._recent[-held:]
        level = median(past)
        step = median(present[-RECENT:]) - level
        # if the last block is back again, it was a stall
        if abs(step) < CHANGE or (present[-1] - level) / step < 0.5:
            return
        if self._run - held >= STEADY:
            self._steady = [*self._steady[1 - RECENT :], level]
            self._noise = self._jitter(past)
        self._recent, self._run = present, held

    def _jitter(self, logs: Sequence[float]) -> float:
        """The standard deviation of a block about its level: by MAD, and by what was known."""
        seen = deviation(logs) ** 2
        return math.sqrt((PRIOR * self._noise**2 + len(logs) * seen) / (PRIOR + len(logs)))

    @property
    def _now(self) -> float:
        return median(self._recent[-RECENT:])

    @property
    def _before(self) -> float:
        return min([self._now, *self._steady])

    @property
    def level(self) -> Level | None:
        """None until there have been enough blocks to tell."""
        if self._run < STEADY:
            return None
        error = math.sqrt(math.pi / 2 / min(len(self._recent), RECENT)) * self._jitter(self._recent)
        return Level(
            self._unit * math.exp(self._now), self._unit * math.exp(self._before), error, self._run
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """A failing learner: since when, why ("compute" or "link"), how many times slower than before
    (and than the others than before), the seconds of its work lost since, ∫ (1 − 1/ratio) dt, and
    whether the user was told of them."""

    peer: PeerId
    cause: str
    since: float
    ratio: float
    lost_s: float = 0.0
    costly: bool = False

    @property
    def lost_per_hour_s(self) -> float:
        return 3600 * (1 - 1 / self.ratio)

    def after(self, seconds: float) -> Verdict:
        """The same verdict so much later."""
        return replace(self, lost_s=self.lost_s + seconds * (1 - 1 / self.ratio))


class Slower(NamedTuple):
    """How one learner compares with the others: `ratio`, how many times slower than before, and
    than the others than before; `than_others`, how many times slower now; `doubt`, one standard
    deviation of log(ratio)."""

    ratio: float
    than_others: float
    doubt: float


def compare(own: Level, others: Sequence[Level]) -> Slower:
    """With rᵢ = nowᵢ / beforeᵢ: log ratio = log rᵢ − median log rⱼ, doubt = max(1.4826 MAD log rⱼ,
    spreadᵢ), j ≠ i."""
    change = math.log(own.now / own.before)
    if not others:
        return Slower(math.exp(change), math.inf, max(own.spread, TINY))
    changes = [math.log(other.now / other.before) for other in others]
    than_others = own.now / median([other.now for other in others])
    return Slower(
        math.exp(change - median(changes)), than_others, max(deviation(changes), own.spread, TINY)
    )


class Watch:
    """Verdicts on all learners, oneself included. Failing is only a verdict: nobody is banned for
    it.

    Who fails by the policy is a suspect first: when all become slower alike, somebody finds it, or
    is heard of, before the others. It is failing if it still is once it, and more than half of the
    others, told twice of later blocks."""

    def __init__(self, policy: FailSlow) -> None:
        self.policy = policy
        self._verdicts: dict[Stream, Verdict] = {}
        # each one's `run`, and its changes since
        self._suspects: dict[Stream, dict[PeerId, tuple[int, int]]] = {}
        self._at = -math.inf

    @property
    def failing(self) -> dict[PeerId, Verdict]:
        """Of each failing learner the worst verdict."""
        ascending = sorted(
            self._verdicts.values(), key=lambda verdict: (verdict.ratio, verdict.cause)
        )
        return {verdict.peer: verdict for verdict in ascending}

    def judge(
        self, now: float, levels: Mapping[PeerId, Mapping[str, Level]]
    ) -> list[tuple[str, Verdict]]:
        """What has changed, in the learners' order: "slow" when one begins to fail, "costly" when
        it has lost what replacing it would cost, "recovered" when it is over. Who is not in
        `levels` is forgotten; nobody is failing by a cause of which there is no level."""
        streams: dict[str, dict[PeerId, Level]] = {}
        for peer, causes in levels.items():
            for cause, level in causes.items():
                if is_sound(level):
                    streams.setdefault(cause, {})[peer] = level
        observed = {(peer, cause) for cause, stream in streams.items() for peer in stream}
        passed, self._at = max(0.0, now - self._at), now
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
        slower, verdict = self._slower(key[0], stream), self._verdicts.get(key)
        if verdict is None:
            if not slower or not self._fails(stream[key[0]], slower):
                self._suspects.pop(key, None)
                return None
            if not self._stays(key, stream):
                return None
            del self._suspects[key]
            self._verdicts[key] = Verdict(peer=key[0], cause=key[1], since=now, ratio=slower.ratio)
            return "slow", self._verdicts[key]
        if not slower or slower.ratio < self.policy.recover:
            return "recovered", self._verdicts.pop(key)
        observed, costly = verdict.costly, verdict.lost_s >= self.policy.restart_s
        self._verdicts[key] = replace(verdict, ratio=slower.ratio, costly=costly)
        return ("costly", self._verdicts[key]) if costly and not observed else None

    def _slower(self, peer: PeerId, stream: Mapping[PeerId, Level]) -> Slower | None:
        """None if there is nothing to say of the peer, or if it has not become slower: then
        whatever the others did."""
        own = stream.get(peer)
        if own is None or own.now < self.policy.recover * own.before:
            return None
        return compare(own, [level for other, level in stream.items() if other != peer])

    def _fails(self, own: Level, slower: Slower) -> bool:
        policy = self.policy
        return (
            own.run >= policy.patience
            and slower.ratio >= policy.threshold
            and slower.than_others >= policy.threshold
            and math.log(slower.ratio) >= policy.score * slower.doubt
        )

    def _stays(self, key: Stream, stream: Mapping[PeerId, Level]) -> bool:
        """Whether the suspect, and more than half of the others, have told enough since."""
        heard = self._suspects.setdefault(key, {})
        for peer, level in stream.items():
            run, news = heard.get(peer, (level.run, 0))
            heard[peer] = level.run, news + (level.run != run)
        behind = [peer for peer in stream if heard[peer][1] < SETTLE]
        return key[0] not in behind and 2 * len(behind) < max(1, len(stream) - 1)


def median(values: Sequence[float]) -> float:
    ordered, half = sorted(values), len(values) // 2
    return ordered[half] if len(ordered) % 2 else (ordered[half - 1] + ordered[half]) / 2


def deviation(values: Sequence[float]) -> float:
    """The standard deviation by the median absolute deviation: 1.4826 MAD."""
    middle = median(values)
    return 1.4826 * median([abs(value - middle) for value in values])
