"""A learner whose training loop has ended, or pauses for minutes, costs the others nothing: whole
clusters in virtual time."""

from __future__ import annotations

import pytest

from tests.support.depth import many
from tests.virtual.cluster import Cluster
from tests.virtual.storms import TIMING, policies

GRACE_S = 8.0
SETTLED_S = TIMING.evict_after_s + GRACE_S  # until the learner counts as idle


def running(n: int, seed: int, **options: int | None) -> Cluster:
    """A cluster after some rounds. Its learners are equally fast."""
    cluster = Cluster(n, seed, policies(grace_s=GRACE_S, **options), loss=0.0, duplicates=0.0)
    cluster.speed = dict.fromkeys(cluster.names, 1.0)
    cluster.start_all()
    cluster.run(40)
    assert version(cluster)
    return cluster


def version(cluster: Cluster) -> int:
    return max(x.engine.state.fragments[0].lineage.version for x in cluster.learners.values())


def rounds(cluster: Cluster, seconds: float) -> int:
    before = version(cluster)
    cluster.run(seconds)
    return version(cluster) - before


@pytest.mark.parametrize("adopt_after", [None, 2])
@pytest.mark.parametrize("idle", range(3))
def test_rounds_are_as_frequent_beside_a_training_loop_that_has_ended(
    idle: int, adopt_after: int | None
) -> None:
    """Whichever learner it is: one of the three runs the rounds."""
    calm = rounds(running(3, 1, adopt_after=adopt_after), 100.0)
    cluster = running(3, 1, adopt_after=adopt_after)
    cluster.pause(cluster.names[idle], 10**6)
    cluster.run(SETTLED_S)
    assert rounds(cluster, 100.0) >= 0.9 * calm
    assert cluster.seen["idle"] == 1


def test_it_still_counts_for_the_quorum() -> None:
    """Two of two are needed: the other's work is merged, although one of the two never steps."""
    cluster = running(2, 2)
    cluster.pause("learner-1", 10**6)
    cluster.run(SETTLED_S)
    before = version(cluster)
    assert cluster.until(lambda: version(cluster) >= before + 5, 100)
    (own,) = cluster.learners["learner-0"].engine.state.fragments
    assert own.unmerged(cluster.learners["learner-0"].engine.state.totals).step < 20


@pytest.mark.parametrize("adopt_after", [None, 2])
@pytest.mark.parametrize("seed", range(many(3, 5)))
def test_with_its_next_step_it_takes_part_again_and_nothing_is_lost(
    seed: int, adopt_after: int | None
) -> None:
    cluster = running(3, seed, adopt_after=adopt_after)
    victim = cluster.names[seed % 3]
    cluster.pause(victim, 60.0)
    cluster.run(60.0)
    taken = version(cluster)
    cluster.run(40.0)
    records = cluster.learners[cluster.names[seed % 3 - 1]].engine.state.records
    assert any(
        member.name == victim and member.tokens
        for record in records
        if record.version > taken
        for member in record.members
    )
    assert cluster.settle()
    trained = sum(x.engine.state.totals.tokens for x in cluster.learners.values())
    (tokens,) = {x.engine.state.fragments[0].lineage.tokens for x in cluster.learners.values()}
    assert tokens == trained
