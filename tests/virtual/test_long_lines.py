"""Learners of which none reaches all others, in virtual time: lines, racks whose heads alone reach
each other, and nets of any shape. The work of all is merged, and all end on one model, and soon."""

from __future__ import annotations

import random
from collections.abc import Sequence
from itertools import combinations, pairwise

import pytest

from tests.support.depth import DEEP
from tests.virtual.storms import policies
from tests.virtual.test_endings import Ends

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
#: From the last `finish()` to the end. Offers and seals take up to five links, of 0.3 s each, and
#: what a beat tells takes as many beats of a second. Before, some clusters took 300 s and more.
SOON_S = 60.0


def any_net(seed: int) -> tuple[int, Links]:
    """Four to seven learners, each of which reaches all others by some way."""
    r = random.Random(seed)
    n = r.randrange(4, 8)
    links = {(r.randrange(i), i) for i in range(1, n)}
    more = {tuple(sorted(r.sample(range(n), 2))) for _ in range(r.randrange(3))}
    return n, sorted(links | more)  # type: ignore[arg-type]


def linked(n: int, links: Links, fragments: int, seed: int, late: int = 0) -> Ends:
    """A cluster that has been started, but for its last learners."""
    named = [tuple(f"learner-{i}" for i in pair) for pair in combinations(range(n), 2)]
    reach = {frozenset(f"learner-{i}" for i in pair) for pair in links}
    walls = [(a, b) for a, b in named if frozenset((a, b)) not in reach]
    chosen = policies(sync_every=5 * fragments, fragments=fragments)
    cluster = Ends(n, seed, chosen, loss=0.0, walls=walls)
    for name in cluster.names[: n - late]:
        cluster.start(name, 1.0)
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
    end_together(linked(*NETS[net], fragments, seed), seed)


@pytest.mark.parametrize("seed", range(60 if DEEP else 6))
def test_all_end_soon_in_a_net_of_any_shape(seed: int) -> None:
    """Before, learners that are three links or more apart chose different sealers for some
    fragments. Two branches got on side by side, and one of four such clusters did not end within
    600 s."""
    end_together(linked(*any_net(seed), fragments=3, seed=seed), seed)


@pytest.mark.parametrize(("n", "seed"), [(6, 8), (8, 1), (8, 3)])
def test_a_branch_that_arose_while_learners_met_ends_soon(n: int, seed: int) -> None:
    """Before, it ended after four times the longest pause between its rounds, although nobody began
    any: after 61 to 139 s."""
    end_together(linked(n, list(pairwise(range(n))), fragments=3, seed=seed), seed)


@pytest.mark.parametrize("fragments", [1, 3])
@pytest.mark.parametrize("n", [4, 6])
def test_a_learner_that_joins_late_at_the_end_of_a_line_makes_no_branch(
    n: int, fragments: int
) -> None:
    """Before, it sealed some fragments with the learner that hears it, and the others went on
    without the two: of four in a line, for as long as they trained."""
    cluster = linked(n, list(pairwise(range(n))), fragments, seed=1, late=1)
    cluster.run(100.0)
    cluster.start_all()
    cluster.run(60.0)
    assert len(cluster.learners) == n
    lists = [
        [learner.engine.state.sealer(p) for p in range(fragments)]
        for learner in cluster.learners.values()
    ]
    assert all(each == lists[0] for each in lists)
    end_together(cluster, seed=1)


def end_together(cluster: Ends, seed: int) -> None:
    r = random.Random(seed)
    for name in cluster.names:
        cluster.at(r.uniform(60, 90), cluster.finish, name)
    cluster.run(90.0)
    assert cluster.until(lambda: cluster.all_ended(set(cluster.names)), SOON_S)
    ends = list(cluster.ends.values())
    assert all(end.anchors == ends[0].anchors for end in ends)
    assert sum(end.left_over for end in ends) == 0
