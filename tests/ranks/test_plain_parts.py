"""Plain tensors that ranks split by hand, beside a learner whose ranks have DTensors."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.ranks.company import Company, Nursery
from tests.ranks.test_merging import assert_copies_are_equal, distance, joined


def played(nursery: Nursery, folder: Path, ways: tuple[str, str]) -> list[list[dict[str, Any]]]:
    """How each rank of two learners that split a model in these ways has ended."""
    folder.mkdir()
    company = Company(nursery, folder)
    learners = [
        company.start(name, "halve", 1 if way == "whole" else 2, way=way)
        for name, way in zip("ab", ways, strict=True)
    ]
    return list(map(company.left, learners))


@pytest.mark.parametrize("ways", [("plain", "tensorwise"), ("sharded", "fused")], ids=str)
def test_plain_parts_are_merged_with_distributed_tensors(
    nursery: Nursery, tmp_path: Path, ways: tuple[str, str]
) -> None:
    twins = played(nursery, tmp_path / "twins", ("whole", "whole"))
    assert distance(twins[0][0]["trained"], twins[1][0]["trained"]) > 1e-3
    learners = played(nursery, tmp_path / "ranks", ways)
    ended = []
    for way, ranks, (twin,) in zip(ways, learners, twins, strict=True):
        for kind in ("trained", "ended"):
            both = [rank[kind] for rank in ranks]
            assert distance(joined(way, *both), twin[kind]) < 1e-5
            assert_copies_are_equal(way, *both)
        ended.append(joined(way, *(rank["ended"] for rank in ranks)))
    assert ended[0] == ended[1]
    assert len({rank["digest"] for ranks in learners for rank in ranks}) == 1
