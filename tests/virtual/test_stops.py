"""All learners of a run are stopped at a time: a machine is suspended, or its containers paused."""

from __future__ import annotations

import pytest

from tests.support.depth import many
from tests.virtual.cluster import Cluster
from tests.virtual.storms import TIMING, policies


@pytest.mark.parametrize("n", [2, 3, 5])
@pytest.mark.parametrize("seed", range(many(2, 6)))
def test_learners_that_were_all_stopped_at_a_time_train_on_together(seed: int, n: int) -> None:
    """None of them was silent, so none evicts another."""
    cluster = Cluster(n, seed, policies(fragments=1 + seed % 2), loss=0.0)
    cluster.start_all()
    cluster.run(20.0)
    merged = cluster.seen["merge"]
    for name in cluster.names:
        cluster.jump(name, 10 * TIMING.evict_after_s)
    assert cluster.until(lambda: cluster.seen["merge"] > merged + 1, 60.0)
    assert cluster.seen["jumped"] == n
    assert cluster.seen["evicted"] == 0
    assert cluster.settle()
    assert not cluster.oracle.missing()
