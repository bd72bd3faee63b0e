"""Learners that become slow, and fast again, in virtual time: how soon the others stop waiting for
them, and start again.

    python -m tests.virtual.stragglers --seeds 0:2000

Inner steps vary by 10 % (log-normal). Now and then one takes five times as long, and every 50 steps
all learners pause."""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field, replace
from random import Random

from tests.virtual.cluster import Cluster
from tests.virtual.storms import TIMING, policies

JITTER = 0.1
EVALUATES_EACH, EVALUATION = 50, 8.0  # steps; how many steps it takes
SPIKES, SPIKE = 0.005, 5.0
WARM, SLOW, AFTER = 12, 8, 12  # rounds before, during and after
AT_MOST = 5  # rounds until the slow learner is found, and until it is expected again
STEP_S = 0.5


class Paced(Cluster):
    """A cluster with one slow learner. `factor`: how many times slower than the others a learner
    is."""

    def __init__(self, straggler: Straggler) -> None:
        plan = policies(
            straggler.quorum, sync_every=straggler.sync_every, adopt_after=straggler.adopt_after
        )
        plan = replace(plan, timing=replace(TIMING, join_timeout_s=60.0))
        super().__init__(
            straggler.n, straggler.seed, plan, loss=0.0, duplicates=0.0, delay_s=0.05, work_s=0.05
        )
        self.oracle.counts = False
        self.speed = dict(zip(self.names, straggler.speeds, strict=True))
        self.factor = dict.fromkeys(self.names, 1.0)
        self.victim = self.names[straggler.seed % straggler.n]
        # In how many rounds a learner was wrongly left out.
        self.accused: Counter[str] = Counter()

    def step_s(self, name: str) -> float:
        """One inner step, with whatever the script did before it."""
        learner, r = self.learners[name], self.random
        took = STEP_S * self.speed[name] * r.lognormvariate(0.0, JITTER) * self.factor[name]
        took *= SPIKE if r.random() < SPIKES else 1.0
        pauses = learner.engine.state.totals.step % EVALUATES_EACH == EVALUATES_EACH - 1
        return took + STEP_S * self.speed[name] * EVALUATION * pauses

    @property
    def version(self) -> int:
        anchors = (f.lineage for x in self.learners.values() for f in x.engine.state.fragments[:1])
        return max((lineage.version for lineage in anchors), default=0)

    def left_out(self, name: str) -> bool:
        """Whether the sealer no longer waits for that learner."""
        sealers = (x for x in self.learners.values() if x.engine.state.roster.sealer(0) == x.id)
        return any(name in {id.name for id in x.engine.stragglers.failing} for x in sealers)

    def rounds(
        self, count: int, done: Callable[[], bool] = lambda: False, innocent: bool = True
    ) -> int:
        """Play so many rounds, or until `done`; returns how many there were. Counts the wrong
        verdicts of each."""
        start = seen = self.version
        while self.version - start < count and not done():
            assert self.until(lambda last=seen: self.version > last or done(), 600), (
                "no rounds any more"
            )
            seen = self.version
            for name in self.names:
                self.accused[name] += self.left_out(name) and (innocent or name != self.victim)
        return seen - start


@dataclass(frozen=True)
class Straggler:
    """One learner of `n` becomes `factor` times slower, and recovers."""

    seed: int
    n: int = 3
    sync_every: int = 32
    factor: float = 2.0
    quorum: int | None = None
    adopt_after: int | None = None
    speeds: tuple[float, ...] = field(default=(1.0, 1.0, 1.0))

    @classmethod
    def drawn(cls, seed: int) -> Straggler:
        r = Random(seed)
        n, factor = r.randint(3, 6), r.choice([1.5, 2.0, 5.0])
        every = r.choice([32, 48] if factor > 2 else [16, 32])
        quorum, overlap = r.choice([None, 2]), r.choice([None, None, None, 4])
        return cls(
            seed, n, every, factor, quorum, overlap, tuple(r.uniform(1.0, 1.1) for _ in range(n))
        )

    def play(self) -> tuple[Paced, int, int]:
        """Rounds until the sealer stops waiting for the slow learner, and until it waits again."""
        cluster = Paced(self)
        cluster.start_all()
        cluster.rounds(WARM)
        cluster.factor[cluster.victim] = self.factor
        found = cluster.rounds(SLOW, lambda: cluster.left_out(cluster.victim), innocent=False)
        cluster.rounds(SLOW, innocent=False)
        cluster.factor[cluster.victim] = 1.0
        back = cluster.rounds(SLOW, lambda: not cluster.left_out(cluster.victim), innocent=False)
        cluster.rounds(AFTER)
        return cluster, found, back


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", default="0:1000")
    parser.add_argument("--jobs", type=int, default=None)
    options = parser.parse_args()
    seeds = range(*map(int, options.seeds.split(":")))
    found, back, accused, rounds = Counter[int](), Counter[int](), 0, 0
    with ProcessPoolExecutor(options.jobs) as pool:
        for seed, (late, later, wrong, played) in zip(
            seeds, pool.map(_one, seeds, chunksize=8), strict=True
        ):
            found[late] += 1
            back[later] += 1
            accused, rounds = accused + wrong, rounds + played
            if late > AT_MOST or later > AT_MOST or wrong:
                verdict = f"found after {late}, back after {later}, {wrong} wrong"
                print(f"{Straggler.drawn(seed)}: {verdict}", flush=True)
    print(
        f"{len(seeds)} stragglers; rounds until found {sorted(found.items())}, "
        f"until back {sorted(back.items())}; {accused} wrong verdicts in {rounds} learner-rounds"
    )
    late = sum(
        count for counts in (found, back) for rounds_, count in counts.items() if rounds_ > AT_MOST
    )
    sys.exit(late > 0 or accused * 10_000 > rounds)


def _one(seed: int) -> tuple[int, int, int, int]:
    cluster, found, back = Straggler.drawn(seed).play()
    return found, back, sum(cluster.accused.values()), cluster.version * len(cluster.names)


if __name__ == "__main__":
    main()
