"""Learners of which two never reach each other, in virtual time: they merge all the same."""

from __future__ import annotations

import pytest

from tests.virtual.cluster import Cluster
from tests.virtual.storms import policies

FRAGMENTS = 6


def rounds(n: int, apart: tuple[str, str]) -> dict[str, list[int]]:
    """The versions of each learner's anchors after two minutes; all laws are checked meanwhile."""
    chosen = policies(sync_every=2 * FRAGMENTS, fragments=FRAGMENTS)
    cluster = Cluster(n, 1, chosen, loss=0.0, duplicates=0.0)
    cluster.speed = dict.fromkeys(cluster.names, 1.0)
    cluster.cut([apart, apart[::-1]], 1000.0)
    cluster.start_all()
    cluster.run(120.0)
    learners = cluster.learners.values()
    return {x.name: [f.lineage.version for f in x.engine.state.fragments] for x in learners}


@pytest.mark.parametrize(
    ("n", "apart"),
    [
        (3, ("learner-0", "learner-2")),
        (4, ("learner-0", "learner-1")),
        (5, ("learner-1", "learner-3")),
    ],
)
def test_every_fragment_has_rounds_and_every_learner_its_anchors(
    n: int, apart: tuple[str, str]
) -> None:
    """Before, one fragment of each of these clusters had none: its sealer by one roster took
    another learner for it, and that one the first."""
    assert min(min(versions) for versions in rounds(n, apart).values()) >= 5
