"""A learner that goes on from its checkpoint with other ranks, which divide the model in another
way. All of it goes through torch.distributed.checkpoint. Another learner trains on meanwhile."""

from __future__ import annotations

from pathlib import Path

import torch

from tests.ranks.company import Company, Nursery
from tests.ranks.parallel import TOKENS, Ways
from tests.ranks.scenarios import STEPS
from tests.ranks.test_configurations import joined

#: dp2 tp2, one process, pp4, and a world of another size.
PARTS = (Ways(2, 2), Ways(), Ways(1, 1, 4), Ways(2))


def test_a_learner_goes_on_divided_in_another_way(nursery: Nursery, tmp_path: Path) -> None:
    company = Company(nursery, tmp_path)
    b = company.start("b", "beside", moments=True)
    company.await_event("b0", "open")
    before: dict[str, torch.Tensor] | None = None
    for part, ways in enumerate(PARTS):
        is_last = part == len(PARTS) - 1
        a = company.start("a", "go on", ways.ranks, ways=ways, part=part, end_here=is_last)
        left = company.left(a)
        if before is not None:
            loaded = joined([rank["loaded"] for rank in left])
            assert loaded.keys() == before.keys()
            assert all(torch.equal(loaded[name], value) for name, value in before.items())
        before = joined([rank["saved"] for rank in left])
        steps, dropped = left[0]["status"]
        assert (steps, dropped) == ((part + 1) * STEPS, 0)
    (other,) = company.left(b)
    agreed, digest, tokens = left[0]["finish"]
    assert agreed
    assert {rank["finish"][1] for rank in left} == {digest, other["finish"][1]}
    # Each token is counted once, although it was trained by one of four worlds.
    assert tokens == {"a": len(PARTS) * STEPS * TOKENS, "b": other["trained"]}
    ended = joined([rank["ended"] for rank in left])
    assert all(torch.equal(ended[name], value) for name, value in other["ended"].items())
