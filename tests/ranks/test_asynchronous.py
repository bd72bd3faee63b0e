"""A learner whose ranks overlap their matrix products with their collectives, by torch's
asynchronous tensor parallelism, in one compiled graph."""

from __future__ import annotations

from pathlib import Path

from tests.ranks.company import Company, Nursery
from tests.ranks.overlapped import BLOCKS
from tests.ranks.scenarios import STEPS, distance
from tests.ranks.test_configurations import Left, assert_one_model, assert_same

#: (fragment, version) of each round whose anchor is in the weights by the last of 10 steps. Copies
#: are made of fragment 0 after 2, 6 and 10 steps, and of fragment 1 after 4 and 8. Each anchor is
#: taken 2 steps later.
DUE = ((0, 1), (0, 2), (1, 1), (1, 2))
#: The round of the copy at the last step. Its anchor may be here by then, or come while the learner
#: finishes. No weights have it before.
NOT_DUE = (0, 3)


def played(nursery: Nursery, folder: Path, ranks: int) -> tuple[Left, Left]:
    """The weights that a learner of so many ranks and one beside it end with."""
    folder.mkdir()
    company = Company(nursery, folder)
    a = company.start("a", "overlap", ranks)
    for who in a:
        company.await_event(who, "compiled")
    b = company.start("b", "overlap")
    return company.left(a), company.left(b)


def test_corrections_come_into_a_compiled_graph(nursery: Nursery, tmp_path: Path) -> None:
    (a_twin,), (b_twin,) = played(nursery, tmp_path / "twins", 1)
    a, b = played(nursery, tmp_path / "ranks", 2)
    assert distance(a_twin["trained"], b_twin["trained"]) > 1e-3
    assert_same(a, a_twin, 1e-6)
    assert_same(b, b_twin, 1e-6)
    assert_one_model(a, b)
    for learner in (a[0], b[0], a_twin, b_twin):  # of several ranks, the first has the rounds
        assert set(DUE) <= set(learner["rounds"]) <= {*DUE, NOT_DUE}
    for rank in a:
        assert rank["graphs"] == 1
        # Of each block, both products of the forward and both of the backward pass; but nobody
        # asks for the gradient of what goes into the first.
        assert rank["calls"] == {
            "fused_all_gather_matmul": 2 * BLOCKS * STEPS,
            "fused_matmul_reduce_scatter": (2 * BLOCKS - 1) * STEPS,
        }
    assert a_twin["graphs"] == 0
