"""In lockstep, several fragments, and learners that are at different steps of a period, or at the
same ones."""

from __future__ import annotations

from itertools import pairwise
from random import Random
from typing import Any

import pytest

from mend_optim.protocol.timing import Timing
from tests.virtual.cluster import Cluster
from tests.virtual.process import Learner
from tests.virtual.ranked import Ranked
from tests.virtual.storms import policies

H = 8
#: No round is given up within a test.
TIMING = Timing(beat_s=10.0, evict_after_s=4000.0, round_timeout_s=2000.0, join_timeout_s=60.0)


class Watched(Learner):
    """A learner whose offers before a boundary are counted."""

    def copy(self, wanted: list[int]) -> None:
        super().copy(wanted)
        fragments = self.engine.state.fragments
        pending = [(p, fragments[p].pending) for p in wanted]
        self.cluster.seen["early"] += sum(not each.due for p, each in pending if each)


class Lockstep(Cluster):
    """Learners in lockstep on links that lose nothing."""

    learner_type: type[Learner] = Watched

    def __init__(self, n: int, seed: int, fragments: int, adopt_after: int, **options: Any) -> None:
        chosen = policies(
            grace_s=1000.0,
            timing=TIMING,
            sync_every=H,
            fragments=fragments,
            adopt_after=adopt_after,
        )
        super().__init__(n, seed, chosen, loss=0.0, duplicates=0.0, **options)
        self.oracle.counts = False

    def sealed(self, name: str, since: float = 0.0) -> list[float]:
        """When a learner took the anchors of rounds that had all offers."""
        return [
            at
            for id, at, record in self.ledger
            if id.name == name and at >= since and record.reason == "all_present"
        ]


@pytest.mark.parametrize("fragments", [2, 5])
@pytest.mark.parametrize("adopt_after", [0, 1, 6])
@pytest.mark.parametrize("ranks", [1, 2])
@pytest.mark.parametrize("seed", range(2))
def test_a_learner_that_joins_later_stops_nobody(
    fragments: int, adopt_after: int, ranks: int, seed: int
) -> None:
    """It waited at the boundary of one fragment, and the others at that of another, until a round
    timed out."""
    cluster = Lockstep(4, seed, fragments, adopt_after)
    cluster.learner_type = Learner if ranks == 1 else Ranked
    for name in cluster.names[:3]:
        cluster.start(name, 1.0)
    cluster.run(90.0 + 3.0 * seed)
    cluster.start(cluster.names[3], 1.0)
    met_at = cluster.now
    cluster.run(500.0)
    for name in cluster.names:
        times = cluster.sealed(name, met_at)
        assert len(times) > 5 * fragments
        # A period takes the slowest learner at most 8 steps of 3.6 s.
        assert max(after - before for before, after in pairwise(times)) < 50.0
        assert cluster.now - times[-1] < 50.0
    members = {len(r.members) for _, at, r in cluster.ledger if at > met_at + 150.0}
    assert members == {4}


class Extended(Watched):
    """A learner that adds a group at a certain step."""

    def step(self) -> None:
        if self.engine.state.totals.step == 2 * H + 3:
            self.extend()
        super().step()


class Aligned(Lockstep):
    learner_type = Extended


@pytest.mark.parametrize("seed", range(12))
def test_aligned_learners_offer_at_their_own_boundaries_alone(seed: int) -> None:
    """However long messages are on their way. Else the run would not be the same again."""
    draw = Random(seed)
    fragments, adopt_after, buffers = draw.randint(2, 5), draw.randint(0, H), seed % 2
    cluster = Aligned(3, seed, fragments, adopt_after, buffers=bool(buffers))
    cluster.training = False
    cluster.start_all()
    cluster.run(100.0)  # all have joined
    cluster.training, cluster.delay_s = True, draw.choice([0.3, 2.0, 8.0])
    rounds = 5 * fragments
    assert cluster.until(
        lambda: all(len(cluster.sealed(name)) > rounds for name in cluster.names), 5000.0
    )
    assert cluster.seen["extended"] == 3
    assert cluster.seen["early"] == 0
    merged = [r for _, _, r in cluster.ledger if r.fragment < fragments and r.members]
    assert len(merged) > 3 * (rounds - 3 * (1 + buffers))
    for record in merged:
        whole = H * (record.fragment + 1) // fragments if record.version == 1 else H
        assert {member.steps for member in record.members} == {whole}
