"""Checks that every adopted anchor was right: by the losses, by the order of the anchors, by their
digests."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator, Sequence
from itertools import pairwise
from statistics import mean, median, pvariance

from bench.storm.figure import Figure, none_of, spread
from bench.storm.log import NEVER, Adoption, Log, Process

GROUP = 8  # the mean loss of so many steps tells trained weights from random ones
LEARNED = 0.5  # nats: with less progress the losses cannot tell
WINDOW = 10  # rounds; the mean loss must fall from one window to the next
DOUBT = 3.0  # standard errors; a smaller rise may be chance


def correctness_figures(log: Log) -> Iterator[Figure]:
    lives = len(log.steps)
    yield none_of(
        "wrong adoptions: losses back towards random weights", wrong_adoptions(log), lives
    )
    yield none_of("lineages that went back", went_back(log), len(log.adoptions))
    notes = "same fragment, version and tokens, other digest, and no common anchor later"
    yield none_of("digest disagreements that stayed", disagreements(log), len(log.adoptions), notes)
    rises, largest = loss_rises(log)
    yield none_of(
        f"loss rises, means of {WINDOW} rounds",
        rises,
        len(largest) + 1,
        f"by more than {DOUBT:g} σ",
    )
    means = [m for m, _, _ in loss_windows(log)]
    if means:
        what = "loss, first and last of these windows"
        yield spread(what, "nats", [means[0], means[-1]], notes="value: the last", value=_last)
    yield from work_kept(log)


def _last(values: Sequence[float]) -> float:
    return values[-1]


# ── losses ────────────────────────────────────────────────────────────────────────────────────────


def groups(steps: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    """(moment of the last, mean loss) of every GROUP steps."""
    parts = [steps[i : i + GROUP] for i in range(0, len(steps) - GROUP + 1, GROUP)]
    return [(part[-1][0], mean(loss for _, loss in part)) for part in parts]


class Course:
    """How far training had come: by second, the lowest median loss over the learners so far."""

    def __init__(self, log: Log) -> None:
        seconds: defaultdict[int, list[float]] = defaultdict(list)
        for steps in log.steps.values():
            for t, loss in groups(steps):
                seconds[int(t)].append(loss)
        firsts = [
            groups(steps)[0][1]
            for (_, life), steps in log.steps.items()
            if life == 1 and len(steps) >= GROUP
        ]
        self.random = median(firsts) if firsts else math.inf
        self._seconds, best = {}, self.random
        for second in sorted(seconds):
            best = min(best, median(seconds[second]))
            self._seconds[second] = best

    def limit(self, t: float) -> float:
        """Half way back to the loss of random weights; infinite while training has not come far
        enough to tell."""
        reached = self._seconds.get(int(t) - 1, self.random)
        return (reached + self.random) / 2 if self.random - reached >= LEARNED else math.inf


def wrong_adoptions(log: Log) -> list[str]:
    """Lives whose loss, after they had taken the others' weights, was ever back half way to that of
    random weights.

    A life whose loss had been there all along does not count: that learner may have been stopped
    while the others learned."""
    course, found = Course(log), []
    for process in log.processes:
        life, best, begin = (
            (process.who, process.life),
            math.inf,
            _shares_weights_from(log, process),
        )
        for t, loss in groups([step for step in log.steps.get(life, []) if step[0] >= begin]):
            if loss > course.limit(t) and (best == math.inf or best < course.limit(t)):
                found.append(
                    f"{process.who}{process.life} at {t - log.began:.1f} s, loss {loss:.2f}"
                )
                break
            best = min(best, loss)
    return found


def _shares_weights_from(log: Log, process: Process) -> float:
    """When the process has the others' weights: when it joined, or, if it began alone, with its
    first anchor."""
    if not process.alone:
        return process.ready
    own = (
        a.t
        for a in log.adoptions
        if (a.who, a.life) == (process.who, process.life) and a.reason != "founded"
    )
    return next(own, NEVER)


def loss_windows(log: Log) -> list[tuple[float, float, int]]:
    """(mean, its variance, n) of all losses between every WINDOW seals."""
    marks = [seal.t for seal in log.seals if seal.t <= log.ended][::WINDOW]
    steps = sorted(step for steps in log.steps.values() for step in steps)
    found, i = [], 0
    for begin, end in pairwise(marks):
        losses = []
        while i < len(steps) and steps[i][0] < end:
            losses += [steps[i][1]] if steps[i][0] >= begin else []
            i += 1
        if losses:
            found.append((mean(losses), pvariance(losses) / len(losses), len(losses)))
    return found


def loss_rises(log: Log) -> tuple[list[str], list[float]]:
    """Where a window's mean is above the one before by more than chance; and all differences, in
    standard errors."""
    windows = loss_windows(log)
    differences = [(b[0] - a[0]) / math.sqrt(a[1] + b[1] or 1e-12) for a, b in pairwise(windows)]
    rises = [f"window {i + 2} by {d:.1f} σ" for i, d in enumerate(differences) if d > DOUBT]
    return rises, differences


# ── lineages ──────────────────────────────────────────────────────────────────────────────────────


def by_life(log: Log) -> dict[tuple[str, int, int], list[Adoption]]:
    """The anchors of every life and fragment, in order."""
    found: defaultdict[tuple[str, int, int], list[Adoption]] = defaultdict(list)
    for adoption in log.adoptions:
        found[adoption.who, adoption.life, adoption.fragment].append(adoption)
    return dict(found)


def went_back(log: Log) -> list[str]:
    """Anchors that were not greater than the one before, in the same life."""
    pairs = [(a, b) for listed in by_life(log).values() for a, b in pairwise(listed)]
    return [
        f"{b.who}{b.life} at version {b.version}"
        for a, b in pairs
        if b.key <= a.key or b.tokens < a.tokens
    ]


def disagreements(log: Log) -> list[str]:
    """Two anchors of equal tokens and version, but with other digests.

    That alone is a split brain. It is wrong only if their holders never held one common anchor
    again, although both went on."""
    same: defaultdict[tuple[int, int, int], defaultdict[str, list[Adoption]]] = defaultdict(
        lambda: defaultdict(list)
    )
    for a in log.adoptions:
        same[a.fragment, a.version, a.tokens][a.digest].append(a)
    lives, found = by_life(log), []
    for (fragment, version, _), holders in same.items():
        rivals = [(x, y) for x, y in pairwise(sorted(holders))]
        for mine, other in rivals:
            pairs = [(a, b) for a in holders[mine] for b in holders[other]]
            if any(_parted(lives, a, b) for a, b in pairs):
                found.append(f"fragment {fragment} version {version}: {mine[:8]} and {other[:8]}")
    return found


def _parted(lives: dict[tuple[str, int, int], list[Adoption]], a: Adoption, b: Adoption) -> bool:
    """Whether both adopted something later, and never the same anchor."""
    later = [[x for x in lives[y.who, y.life, y.fragment] if x.key > y.key] for y in (a, b)]
    digests = [{x.digest for x in listed} for listed in later]
    return bool(digests[0] and digests[1]) and not digests[0] & digests[1]


# ── work ──────────────────────────────────────────────────────────────────────────────────────────


def work_kept(log: Log) -> Iterator[Figure]:
    steps = sum(map(len, log.steps.values()))
    trained = sum(line["step_tokens"] for line in log.of("born")[:1]) * steps
    merged = max((a.tokens for a in log.adoptions), default=0)
    if trained:
        notes = "the rest died with a process, or was trained since"
        yield spread(
            "tokens trained that are in the last anchor", "", [merged / trained], notes=notes
        )
    dropped = float(sum(a.dropped_tokens for a in log.adoptions))
    yield spread("tokens dropped in doubt", "", [dropped], notes=f"of {trained}")
