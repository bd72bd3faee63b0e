"""Storms in virtual time: a cluster and its faults, drawn from a seed, as plain data that can be
replayed and made smaller.

    play many; failures are made smaller and printed:
        python -m tests.virtual.storms --seeds 0:20000 --wide 100 --jobs 2
    play one that was printed:
        python -m tests.virtual.storms --replay "Storm(...)"

DESIGN's laws 3 to 6 are checked after every event. When the last fault is over, all learners must
end on one model within `LIMIT_S` of virtual time, and every unit of work must be accounted for."""

from __future__ import annotations

import argparse
import itertools
import os
import random
import sys
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, ClassVar

from mend_optim.engine.moment_schedule import ORDERS, Moment, MomentSchedule
from mend_optim.engine.period import AutoPeriod
from mend_optim.engine.policies import Policies
from mend_optim.engine.quorum import Grace, Quorum
from mend_optim.engine.schedule import Schedule
from mend_optim.protocol.timing import Timing
from tests.virtual import playing
from tests.virtual.cluster import Cluster

TIMING = Timing(evict_after_s=8, join_timeout_s=6, round_timeout_s=15)
# From the last fault to one model: evictions, joining, a few rounds; and where learners disagree,
# until an anchor has stood still for so long that they take anybody's word.
LIMIT_S = 120.0
MOMENTS = tuple(Moment(name=order, order=order, decay=0.9) for order in ORDERS)
POINTS = ("collecting", "merging", "sealed", "told")


def policies(
    quorum: int | None = None,
    grace_s: float = 2,
    timing: Timing = TIMING,
    stays: bool = False,
    auto: AutoPeriod | None = None,
    **schedule: int | None,
) -> Policies:
    return Policies(
        auto=auto,
        schedule=Schedule(**{"sync_every": 5, **schedule}),  # type: ignore[arg-type]
        quorum=Quorum(minimum=quorum),
        grace=Grace(max_s=grace_s),
        timing=timing,
        residual_in_weights=stays,
    )


@dataclass(frozen=True)
class Fault:
    """A method of `Cluster` to call at a moment, with its arguments."""

    at: float
    kind: str
    facts: tuple[Any, ...]

    def __repr__(self) -> str:
        return f"Fault({self.at!r}, {self.kind!r}, {self.facts!r})"


@dataclass(frozen=True)
class Storm:
    """A cluster of `n` learners and the faults in its first `seconds`. `seed` determines the
    network's random delays and losses."""

    seed: int
    n: int
    fragments: int = 1
    quorum: int | None = None
    adopt_after: int | None = None
    hidden: int = 0
    loss: float = 0.05
    stays: bool = False
    #: The longest period that the run may choose; 0: it is fixed.
    auto: int = 0
    #: Whether buffers are merged, too.
    buffers: bool = False
    #: How many zones there are; 0: the learners are in none.
    zones: int = 0
    #: Whether moments are averaged, in some rounds.
    moments: bool = False
    #: Whether a part of the learners is in one of two rooms, which never reach each other.
    rooms: bool = False
    seconds: float = 20.0
    faults: tuple[Fault, ...] = ()
    module: ClassVar[str] = "tests.virtual.storms"
    cluster_type: ClassVar[type[Cluster]] = Cluster

    @property
    def sync_every(self) -> int:
        """The period, in steps."""
        return 3 + self.fragments

    def play(self) -> Cluster:
        """Play it. Raises `AssertionError` if a law is broken."""
        schedule = {
            "sync_every": self.sync_every,
            "fragments": self.fragments,
            "adopt_after": self.adopt_after,
        }
        fixed = not self.auto or self.adopt_after is not None
        auto = None if fixed else AutoPeriod(most=self.auto)
        quorum = self.quorum
        if (
            quorum and self.rooms
        ):  # nobody at rest answers the call of a sealer that it is apart from
            quorum = min(quorum, self.reached())
        chosen = policies(quorum, stays=self.stays, auto=auto, **schedule)
        if self.moments:
            chosen = replace(chosen, moments=MOMENTS, periods=MomentSchedule(first=2, second=3))
        cluster = self.cluster_type(
            self.n,
            self.seed,
            chosen,
            hidden=self.hidden,
            loss=self.loss,
            buffers=self.buffers,
            zones=self.zones,
            walls=self.walls() if self.rooms else (),
        )
        cluster.start_all()
        for fault in self.faults:
            cluster.at(fault.at, getattr(cluster, fault.kind), *fault.facts)
        cluster.run(self.seconds)
        assert cluster.settle(LIMIT_S), (
            f"no common model {LIMIT_S:g} s after the last fault: {cluster.keys()}"
        )
        assert not cluster.seen["joint offer in vain"], "a joint offer to one that takes none"
        return cluster

    def walls(self) -> list[tuple[str, str]]:
        """The pairs of learners that never reach each other. Every third learner reaches all."""
        pairs = itertools.combinations(range(self.n), 2)
        return [(f"learner-{a}", f"learner-{b}") for a, b in pairs if {a % 3, b % 3} == {1, 2}]

    def reached(self) -> int:
        """How many learners each of them reaches at least, with itself."""
        apart = Counter(name for pair in self.walls() for name in pair)
        return self.n - max(apart.values(), default=0)

    def smaller(self) -> Iterator[Storm]:
        """The storm without one of its faults, fragments or learners."""
        for i in range(len(self.faults)):
            yield replace(self, faults=self.faults[:i] + self.faults[i + 1 :])
        if self.loss:
            yield replace(self, loss=0.0)
        if self.fragments > 1:
            yield replace(self, fragments=self.fragments - 1)
        if self.buffers:
            yield replace(self, buffers=False)
        if self.zones:
            yield replace(self, zones=0)
        if self.moments:
            yield replace(self, moments=False)
        if self.rooms:
            yield replace(self, rooms=False)
        if self.n > 2:
            lost = f"learner-{self.n - 1}"
            spared = tuple(f for f in self.faults if lost not in repr(f.facts))
            quorum = min(self.quorum, self.n - 1) if self.quorum else None
            yield replace(
                self,
                n=self.n - 1,
                quorum=quorum,
                hidden=min(self.hidden, self.n - 3),
                faults=spared,
            )


# Drawing


def draw(seed: int, wide: bool = False) -> Storm:
    """A few learners, where faults combine in all ways; or, if `wide`, up to 64 learners or 24
    fragments."""
    r = random.Random(seed)
    n = r.choice([2, 2, 2, 2, 3, 3, 3, 3, 4, 4, 4, 5, 5, r.choice([6, 7, 8])])
    fragments = r.choice([1, 1, 1, 2, 2, 3])
    if wide:
        n, fragments = r.choice([(16, 1), (16, 3), (32, 1), (64, 1), (3, 24), (4, 12)])
    storm = Storm(
        seed,
        n,
        fragments,
        quorum=r.choice([None, None, None, 1, 2, r.randint(1, n), n]),
        adopt_after=r.choice([None, None, None, 0, 2]),
        hidden=r.choice([0, 0, 1]) if n > 2 else 0,
        loss=r.choice([0.0, 0.05, 0.05, 0.2]),
        seconds=15.0 if wide else 20.0,
    )
    names = [f"learner-{i}" for i in range(n)]
    faults = [f for _ in range(r.randint(1, 5)) for f in _draw_fault(r, names, storm.seconds)]
    if r.random() < 0.15:
        faults += [Fault(storm.seconds * r.random(), "extend", (name,)) for name in names]
    if r.random() < 0.4:  # synchronize(), and on; a codec that stays makes closing offers of it
        storm = replace(storm, stays=True)
        faults += [
            Fault(storm.seconds * r.random(), "rest", (r.choice(names),))
            for _ in range(r.randint(1, 4))
        ]
    if n > 3 and not wide and r.random() < 0.15:
        heir = list(_draw_heir(r, names))
        storm, faults = replace(storm, quorum=1), heir + (faults if r.random() < 0.5 else [])
    # Drawn apart, so that a seed has the faults that it had before there were these.
    faults += _draw_pauses(random.Random(f"pauses of {seed}"), names, storm.seconds)
    faults += _draw_clocks(random.Random(f"clocks of {seed}"), names, storm.seconds)
    faults += _draw_accidents(random.Random(f"accidents of {seed}"), names, storm.seconds)
    faults += _draw_rollbacks(random.Random(f"rollbacks of {seed}"), names, storm.seconds)
    faults += _draw_resets(random.Random(f"resets of {seed}"), names, storm.seconds)
    auto = 0 if wide else random.Random(f"period of {seed}").choice([0, 0, 8, 30])
    buffers = random.Random(f"buffers of {seed}").random() < 0.25
    zones = random.Random(f"zones of {seed}").choice([0, 0, 2, 3]) if n > 2 else 0
    # In zones they travel in joint offers, too.
    moments = zones > 0 and random.Random(f"moments of {seed}").random() < 0.5
    rooms = n > 2 and random.Random(f"rooms of {seed}").random() < 0.15
    storm = replace(storm, auto=auto, buffers=buffers, zones=zones, moments=moments, rooms=rooms)
    return replace(storm, faults=tuple(sorted(faults, key=lambda fault: fault.at)))


def _draw_fault(r: random.Random, names: list[str], seconds: float) -> Iterator[Fault]:
    at, name, other, lasting = r.random() * seconds, *r.sample(names, 2), r.random() * 12
    kind = r.choice(
        [
            "kill",
            "kill",
            "kill",
            "leave",
            "part",
            "cut",
            "slow",
            "freeze",
            "jump",
            "duplicate",
            "trap",
        ]
    )
    if kind in ("kill", "leave"):
        yield Fault(at * r.random(), "save", (r.choice([name, name, other]),))
        yield Fault(at, "crash" if kind == "kill" else "leave", (name,))
        yield _return(r, at + lasting, name)
    elif kind == "part":
        yield Fault(at, "partition", (tuple(n for n in names if r.random() < 0.5), lasting))
    elif kind == "cut":
        yield Fault(at, "cut", (((name, other),), lasting))
    elif kind == "slow":
        yield Fault(at, "slow", (name, other, r.choice([3.0, 10.0, 30.0]), lasting))
    elif kind == "freeze":
        yield Fault(at, "freeze", (name, lasting, r.random() < 0.5))
    elif kind == "jump":
        yield Fault(at, "jump", (name, r.choice([0.5, 5.0, 60.0])))
    elif kind == "duplicate":
        yield Fault(at, "duplicate", (name, lasting, r.random() < 0.5))
    else:
        yield Fault(at, "trap", (r.choice(POINTS),))
        for n in names:
            yield _return(r, min(at + 5 + lasting, seconds), n)


def _draw_heir(r: random.Random, names: list[str]) -> Iterator[Fault]:
    """Both sides of a partition seal, and a learner on the lesser side restarts: the offer in its
    checkpoint, and the work next to it, move to the other branch."""
    name, other = r.sample(names, 2)
    at = 4 + 3 * r.random()
    saved = at + 5 + 4 * r.random()
    yield Fault(at, "partition", ((name, other), 9 + 4 * r.random()))
    yield Fault(saved - 3.5, "slow", (name, other, 30.0, 4.0))
    yield Fault(saved, "save", (name,))
    yield Fault(saved + 0.05, "crash", (name,))
    yield Fault(saved + 0.1 + r.random(), "restore", (name,))


def _draw_pauses(r: random.Random, names: list[str], seconds: float) -> Iterator[Fault]:
    """Training loops that end, or pause for longer than a learner may before it counts as idle."""
    for name in names if r.random() < 0.15 else ():
        if r.random() < 0.5:
            yield Fault(seconds * r.random(), "pause", (name, r.uniform(3.0, 25.0)))


def _draw_accidents(r: random.Random, names: list[str], seconds: float) -> Iterator[Fault]:
    """Weights that explode, or become NaN."""
    for name in r.sample(names, r.choice([0, 0, 0, 1, 1, 2])):
        yield Fault(seconds * r.random(), "ruin", (name, r.choice(["outsized", "not finite"])))


def _draw_rollbacks(r: random.Random, names: list[str], seconds: float) -> Iterator[Fault]:
    """Users who go back to an earlier anchor, perhaps two of them at a time."""
    for name in r.sample(names, r.choice([0, 0, 0, 1, 1, 2])):
        at = seconds * r.random()
        yield Fault(at * r.random(), "save", (r.choice(names),))
        yield Fault(at, "roll_back", (name,))


def _draw_resets(r: random.Random, names: list[str], seconds: float) -> Iterator[Fault]:
    """Users who load other weights in mid-run, and say that the jump is no progress."""
    for name in r.sample(names, r.choice([0, 0, 0, 1, 1, 2])):
        yield Fault(seconds * r.random(), "reset_progress", (name,))


def _draw_clocks(r: random.Random, names: list[str], seconds: float) -> Iterator[Fault]:
    """Clocks that are set back between two starts of a learner, and twins of which the younger one
    seems to be the older."""
    for name in r.sample(names, r.choice([0, 0, 0, 1, 2])):
        at, lasting = seconds * r.random(), 12 * r.random()
        if r.random() < 0.3:
            yield Fault(at, "duplicate", (name, lasting, r.random() < 0.5, True))
            continue
        yield Fault(at * r.random(), "save", (r.choice(names),))
        yield Fault(at, r.choice(["crash", "crash", "leave"]), (name,))
        yield Fault(at + lasting, "start_early", (name,))


def _return(r: random.Random, at: float, name: str) -> Fault:
    return Fault(at, "restore" if r.random() < 0.4 else "start", (name,))


# Playing many


def ends(seeds: Iterable[int]) -> list[str]:
    """How the storms of these seeds end, a line for each."""
    played = [draw(seed).play() for seed in seeds]
    return [f"{end.now} {end.trained} {end.seen} {end.keys()}" for end in played]


def seen_in(seeds: range, wide: bool = False) -> tuple[Counter[str], list[str]]:
    """Counts of the events in the storms of these seeds, and the failure of each that failed."""
    return playing.seen_in(seeds, partial(draw, wide=wide))


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Storms in virtual time.")
    parser.add_argument("--seeds", default="0:20000", metavar="FROM:TO")
    parser.add_argument(
        "--wide", type=int, default=100, metavar="N", help="of many learners, or many fragments"
    )
    parser.add_argument("--jobs", type=int, default=os.cpu_count())
    parser.add_argument("--replay", metavar="STORM", help="play one that was printed")
    return parser.parse_args()


def main() -> None:
    arguments = parse_arguments()
    if arguments.replay:
        cluster = eval(arguments.replay, {"Storm": Storm, "Fault": Fault}).play()
        print(f"nothing went wrong: {dict(cluster.seen)}")
        return
    first, last = map(int, arguments.seeds.split(":"))
    started, seen, failed = time.monotonic(), Counter[str](), 0
    with ProcessPoolExecutor(arguments.jobs) as pool:
        wide = [
            pool.submit(seen_in, range(seed, seed + 1), True)
            for seed in range(first, first + arguments.wide)
        ]
        many = [
            pool.submit(seen_in, range(i, min(i + 100, last)), False)
            for i in range(first, last, 100)
        ]
        for done, future in enumerate((*wide, *many), 1):
            some, wrong = future.result()
            seen.update(some)
            failed += len(wrong)
            print(*wrong, sep="\n", end="\n" * bool(wrong), flush=True)
            print(
                f"{done} of {len(wide) + len(many)} parts, {failed} failed",
                file=sys.stderr,
                flush=True,
            )
    took, count = time.monotonic() - started, last - first + arguments.wide
    print(f"{count} storms, {failed} failed, {took:.0f} s; seen: {dict(sorted(seen.items()))}")
    sys.exit(bool(failed))


if __name__ == "__main__":
    main()
