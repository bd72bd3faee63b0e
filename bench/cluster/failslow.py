"""Finding learners that become slow: the cost of watching, and our rule compared with two others on
the same durations.

There are four learners on equal hardware, or on unequal hardware where noted. Rounds have 16 inner
steps. Durations have 10 % of log-normal jitter, one step in a hundred takes 3 to 10 times as long,
and every 50th step is followed by a pause of 20 steps. A verdict counts as false in every round at
whose end it stands. A slowdown counts as found if there is a verdict at the end of one of its first
five rounds. The other rules see one number a round: its mean, as is usual, or its median, which
spares them the pauses. Our thresholds begin above 1.1, because less than 10 % counts as no change.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from bench.result import Result, compared, plain
from mend_optim.membership.failslow import FailSlow, Pace, Watch
from mend_optim.protocol.lineage import PeerId
from mend_optim.protocol.messages import Level

LEARNERS, STEPS, BLOCK = 4, 16, 4  # steps a round, and steps a beat
PEERS = [PeerId(str(i), 1) for i in range(LEARNERS)]
CV, SPIKES, PAUSE = 0.1, 0.01, 50
# rounds of a run in which nobody becomes slow, and such runs
STEADY, STEADY_RUNS, UNEQUAL_RUNS = 500, 20, 4
EQUAL, UNEQUAL = (1.0, 1.0, 1.0, 1.0), (1.0, 1.0, 1.3, 1.6)  # how slow the learners' hardware is
BEFORE, WITHIN, TRIALS = 30, 5, 300  # rounds before a slowdown; rounds to find it in; slowdowns
FACTORS = (1.5, 2.0)
WINDOW = 20
SEED = 1
COSTS_US = 20.0  # the most that watching may add to an inner step
REPEATS, ADDS = 15, 2000

Durations = NDArray[np.float64]  # (learners, steps)
Flags = NDArray[np.bool_]  # (limits, learners, rounds): is the learner failing at its end?
THRESHOLDS = (1.11, 1.15, 1.2, 1.3, 1.5, 1.75, 2.0)
RATIOS = (1.05, 1.1, 1.2, 1.3, 1.5, 1.75, 2.0)
SCORES = (1.5, 2.0, 2.5, 3.0, 3.5, 4.0)


def _durations(rng: np.random.Generator, rounds: int) -> Durations:
    shape = LEARNERS, rounds * STEPS
    seconds = np.exp(rng.normal(0, math.sqrt(math.log(1 + CV**2)), shape))
    seconds *= np.where(rng.random(shape) < SPIKES, rng.uniform(3, 10, shape), 1)
    for row, phase in zip(seconds, rng.integers(0, PAUSE, LEARNERS), strict=True):
        row[phase::PAUSE] += 20
    return seconds


def _ours(seconds: Durations) -> Flags:
    """Our rule, judged at every block, as if each learner sent a beat there."""
    paces, watches = [Pace() for _ in PEERS], [Watch(FailSlow(threshold=t)) for t in THRESHOLDS]
    flags = np.zeros((len(THRESHOLDS), LEARNERS, seconds.shape[1] // STEPS), bool)
    for step in range(0, seconds.shape[1], BLOCK):
        for pace, values in zip(paces, seconds[:, step : step + BLOCK].tolist(), strict=True):
            for value in values:
                pace.add(value, 1.0)
        levels = {
            peer: {"compute": p.level} for peer, p in zip(PEERS, paces, strict=True) if p.level
        }
        for watch, at in zip(watches, flags, strict=True):
            watch.judge(step, levels)
            at[:, step // STEPS] = [peer in watch.failing for peer in PEERS]
    return flags


def _by_round(reduce: Callable[..., Durations], seconds: Durations) -> Durations:
    return reduce(seconds.reshape(LEARNERS, -1, STEPS), axis=2)


def _score(rounds: Durations) -> Flags:
    """(x − mean) / standard deviation of the learner's own last 20 rounds."""
    past = np.lib.stride_tricks.sliding_window_view(rounds, WINDOW, axis=1)[:, :-1]
    z = np.zeros_like(rounds)
    z[:, WINDOW:] = (rounds[:, WINDOW:] - past.mean(axis=2)) / past.std(axis=2)
    return np.stack([z > limit for limit in SCORES])


def _ratio(rounds: Durations) -> Flags:
    """x / median of all learners in this round."""
    return np.stack([rounds / np.median(rounds, axis=0) > limit for limit in RATIOS])


def _rules() -> dict[str, tuple[tuple[float, ...], float, Callable[[Durations], Flags]]]:
    """For each name: the limits, the usual limit, and the rule."""
    return {
        "ours, threshold": (THRESHOLDS, 1.2, _ours),
        "z of round means": (SCORES, 3.0, lambda seconds: _score(_by_round(np.mean, seconds))),
        "z of round medians": (SCORES, 3.0, lambda seconds: _score(_by_round(np.median, seconds))),
        "ratio of round means to their median": (
            RATIOS,
            1.2,
            lambda seconds: _ratio(_by_round(np.mean, seconds)),
        ),
        "ratio of round medians to their median": (
            RATIOS,
            1.2,
            lambda seconds: _ratio(_by_round(np.median, seconds)),
        ),
    }


def _false(rule: Callable[[Durations], Flags], hardware: Sequence[float], runs: int) -> Durations:
    """For each limit, the share of learner-rounds with a verdict although nobody became slow."""
    rng, slowness = np.random.default_rng(SEED), np.array(hardware)[:, None]
    return np.mean(
        [rule(slowness * _durations(rng, STEADY)).mean(axis=(1, 2)) for _ in range(runs)], axis=0
    )


def _found(rule: Callable[[Durations], Flags], factor: float) -> Durations:
    """For each limit, the share of slowdowns with a verdict within five rounds."""
    rng, found = np.random.default_rng(SEED + 1), []
    for _ in range(TRIALS):
        seconds = _durations(rng, BEFORE + WITHIN)
        seconds[0, BEFORE * STEPS :] *= factor
        found.append(rule(seconds)[:, 0, BEFORE:].any(axis=1))
    return np.mean(found, axis=0)


def _roc() -> Iterator[Result]:
    for name, (limits, usual, rule) in _rules().items():
        false, unequal = _false(rule, EQUAL, STEADY_RUNS), _false(rule, UNEQUAL, UNEQUAL_RUNS)
        found = {factor: _found(rule, factor) for factor in FACTORS}
        for i, limit in enumerate(limits):
            shares = ", ".join(f"{share[i]:.3f} of {factor:g}x" for factor, share in found.items())
            notes = f"found within {WITHIN} rounds: {shares}; "
            notes += f"false on unequal hardware: {unequal[i]:.2g}"
            notes += "; the usual limit" if limit == usual else ""
            yield plain(
                "failslow",
                f"{name} > {limit:g}",
                "false verdicts/learner-round",
                [float(false[i])],
                notes,
            )


def _add_us(rng: np.random.Generator) -> float:
    """Microseconds of one inner step, over many: most only add to a block, and one in four ends
    it."""
    pace, seconds = Pace(), np.exp(rng.normal(0, CV, ADDS)).tolist()
    started = time.perf_counter()
    for value in seconds:
        pace.add(value, 1.0)
    return 1e6 * (time.perf_counter() - started) / ADDS


def _judge_us(levels: Mapping[PeerId, Mapping[str, Level]]) -> float:
    watch, started = Watch(FailSlow()), time.perf_counter()
    for now in range(100):
        watch.judge(now, levels)
    return 1e4 * (time.perf_counter() - started)


def _costs() -> Iterator[Result]:
    rng = np.random.default_rng(SEED)
    adds = [_add_us(rng) for _ in range(REPEATS)]
    notes = f"floor = what it may cost; {ADDS} steps a repeat"
    yield compared(
        "failslow",
        "to time an inner step",
        "us",
        adds,
        [COSTS_US] * REPEATS,
        goal="<= 1",
        notes=notes,
    )
    steady, slow = Level(1.0, 1.0, 0.02, 30), Level(2.0, 1.0, 0.02, 30)
    peers = [PeerId(str(i), 1) for i in range(8)]
    levels = {
        peer: {"compute": slow if i < 4 else steady, "link": steady} for i, peer in enumerate(peers)
    }
    yield plain(
        "failslow",
        "to judge 8 learners, half of them slow",
        "us",
        [_judge_us(levels) for _ in range(REPEATS)],
    )


def run() -> Iterator[Result]:
    yield from _costs()
    yield from _roc()
