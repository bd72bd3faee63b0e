"""Learners of which many never reach one another, in virtual time: two rooms, and a machine between
them. Nearly all work of all of them is merged."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import replace
from itertools import pairwise

import pytest

from tests.support.depth import DEEP
from tests.virtual.cluster import Cluster
from tests.virtual.storms import draw, policies

FRAGMENTS = 6
Pairs = list[tuple[str, str]]


def named(pairs: Iterable[tuple[int, int]]) -> Pairs:
    both = [(a, b) for pair in pairs for a, b in (pair, pair[::-1])]
    return [(f"learner-{a}", f"learner-{b}") for a, b in both]


#: learner-0 is between the rooms.
TWO_AND_TWO = named((a, b) for a in (1, 2) for b in (3, 4))
THREE_AND_THREE = named((a, b) for a in (1, 2, 3) for b in (4, 5, 6))
ONE_AND_ONE = named([(1, 2)])


def played(n: int, apart: Pairs, until: float, parted_at: float) -> Cluster:
    """A cluster of so many learners, some of which do not reach each other from a time on; all laws
    are checked meanwhile."""
    chosen = policies(sync_every=2 * FRAGMENTS, fragments=FRAGMENTS)
    cluster = Cluster(n, 1, chosen, loss=0.0, duplicates=0.0)
    cluster.speed = dict.fromkeys(cluster.names, 1.0)
    cluster.at(parted_at, cluster.cut, apart, 10_000.0)
    if not parted_at:
        cluster.run(0.01)
    cluster.start_all()
    cluster.run(until)
    return cluster


def shares(cluster: Cluster) -> dict[str, float]:
    """By learner, the share of its steps that its least anchor has of it."""
    found = {}
    for learner in cluster.learners.values():
        state = learner.engine.state
        merged = [f.lineage.tokens for f in state.fragments]
        found[learner.name] = min(merged) / sum(
            other.engine.state.totals.tokens for other in cluster.learners.values()
        )
    return found


@pytest.mark.parametrize(
    ("n", "apart", "until", "parted_at"),
    [
        (3, ONE_AND_ONE, 120.0, 0.0),
        (5, TWO_AND_TWO, 120.0, 0.0),
        (5, TWO_AND_TWO, 240.0, 40.0),
        *([(7, THREE_AND_THREE, 240.0, 30.0), (3, ONE_AND_ONE, 240.0, 40.0)] if DEEP else []),
    ],
)
def test_the_work_of_two_rooms_is_merged(
    n: int, apart: Pairs, until: float, parted_at: float
) -> None:
    """Before, each of two rooms had rounds of its own, and half of the work was lost."""
    cluster = played(n, apart, until, parted_at)
    assert cluster.seen["offer relayed"] > 10
    assert cluster.seen["seal relayed"] > 10
    assert min(shares(cluster).values()) > 0.75  # the rest is in rounds that are not over


def longest_pause(cluster: Cluster, since: float) -> float:
    """The longest time for which a fragment of a learner has stood still since then."""
    moves = defaultdict(lambda: [since])
    for learner, at, record in cluster.ledger:
        if at > since:
            moves[learner.name, record.fragment].append(at)
    return max(b - a for at in moves.values() for a, b in pairwise([*at, cluster.now]))


@pytest.mark.parametrize("seed", range(6 if DEEP else 1))
def test_no_room_waits_for_long_for_a_go_between_that_comes_late(seed: int) -> None:
    """When it comes, learners miss seals of sealers that they do not reach. Before, fragments stood
    still for 30 s: until their learners believed the whole anchor of the go-between."""
    chosen = policies(sync_every=2 * FRAGMENTS, fragments=FRAGMENTS)
    cluster = Cluster(5, seed, chosen, loss=0.0, duplicates=0.0, delay_s=0.05, work_s=0.05)
    cluster.speed = dict.fromkeys(cluster.names, 0.3)
    cluster.at(0.0, cluster.cut, TWO_AND_TWO, 10_000.0)
    cluster.run(0.01)
    for name in cluster.names[1:]:
        cluster.start(name)
    cluster.at(12.0, cluster.start, "learner-0")
    cluster.run(45.0)
    assert longest_pause(cluster, 12.0) < 12.0
    assert min(shares(cluster).values()) > 0.5


@pytest.mark.parametrize("seed", range(6 if DEEP else 1))
def test_no_room_waits_for_long_when_a_net_drops_what_passes_between_two(seed: int) -> None:
    """No stream breaks. Before, learners sent offers to sealers that they did not reach until gRPC
    gave the streams up, and waited for one another meanwhile."""
    chosen = policies(sync_every=2 * FRAGMENTS, fragments=FRAGMENTS)
    cluster = Cluster(5, seed, chosen, loss=0.0, duplicates=0.0, delay_s=0.05, work_s=0.05)
    cluster.speed = dict.fromkeys(cluster.names, 0.3)
    cluster.at(20.0, cluster.stall, TWO_AND_TWO, 10_000.0)
    cluster.start_all()
    cluster.run(60.0)
    assert longest_pause(cluster, 20.0) < 3.5 * chosen.timing.evict_after_s
    assert min(shares(cluster).values()) > 0.75


def test_all_take_the_same_sealer_however_many_anchors_each_has_adopted() -> None:
    """In a short run, learner-7 has trained nothing yet. Before, those with fewer adopted anchors
    took it for a sealer, and the others did not, so a fragment stood still for ever."""
    replace(draw(569), seed=700_000).play()
