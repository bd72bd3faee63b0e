"""Learners of which none reaches all others, in virtual time: lines, and racks whose heads alone
reach each other. The work of all is merged, and all end on one model."""

from __future__ import annotations

import random
from collections.abc import Sequence
from itertools import combinations, pairwise

import pytest

from tests.support.depth import DEEP
from tests.virtual.storms import policies
from tests.virtual.test_endings import LIMIT_S, Ends

Links = Sequence[tuple[int, int]]

#: Two racks of three; 2 and 3 are their heads.
RACKS = ((0, 1), (0, 2), (1, 2), (2, 3), (3, 4), (3, 5), (4, 5))
RING = tuple((i, (i + 1) % 6) for i in range(6))
#: By name, how many learners there are, and the pairs that reach each other.
NETS: dict[str, tuple[int, Links]] = {
    "four in a line": (4, list(pairwise(range(4)))),
    "five in a line": (5, list(pairwise(range(5)))),
    "two racks": (6, RACKS),
    "a ring of six": (6, RING),
}


def linked(n: int, links: Links, fragments: int, seed: int) -> Ends:
    named = [tuple(f"learner-{i}" for i in pair) for pair in combinations(range(n), 2)]
    reach = {frozenset(f"learner-{i}" for i in pair) for pair in links}
    walls = [(a, b) for a, b in named if frozenset((a, b)) not in reach]
    chosen = policies(sync_every=5 * fragments, fragments=fragments)
    cluster = Ends(n, seed, chosen, loss=0.0, walls=walls)
    cluster.start_all()
    return cluster


@pytest.mark.parametrize("net", NETS)
def test_the_work_of_all_is_merged(net: str) -> None:
    """Before, that of the first in a line was in no anchor, however long they trained."""
    cluster = linked(*NETS[net], fragments=1, seed=1)
    cluster.run(150.0)
    for learner in cluster.learners.values():
        state = learner.engine.state
        (fragment,) = state.fragments
        assert fragment.unmerged(state.totals).tokens < state.totals.tokens / 3


@pytest.mark.parametrize("seed", range(6 if DEEP else 2))
@pytest.mark.parametrize("fragments", [1, 3])
@pytest.mark.parametrize("net", NETS)
def test_all_end_on_one_model_with_all_work_in_it(net: str, fragments: int, seed: int) -> None:
    """Before, nobody ended: the rest waited for that of the first in a line."""
    cluster = linked(*NETS[net], fragments, seed)
    r = random.Random(seed)
    for name in cluster.names:
        cluster.at(r.uniform(60, 90), cluster.finish, name)
    cluster.run(90.0)
    assert cluster.until(lambda: cluster.all_ended(set(cluster.names)), LIMIT_S)
    ends = list(cluster.ends.values())
    assert all(end.anchors == ends[0].anchors for end in ends)
    assert sum(end.left_over for end in ends) == 0
