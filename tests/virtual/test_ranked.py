"""Storms over learners of several ranks, beside learners of one process."""

from __future__ import annotations

import pytest

from tests.virtual import playing
from tests.virtual.ranked import ranked

FIRST, EACH, BATCHES = 300, 30, 2
SEEN = (
    "copied in passing",
    "copied in vain",
    "added in passing",
    "met in a step",
    "recalled",
    "merge",
    "crash",
    "restored",
    "frozen",
    "paused",
    "rolled_back",
    "reset",
    "founded",
    "superseded",
)


@pytest.mark.parametrize("batch", range(BATCHES))
def test_laws_hold_where_copies_come_late_and_corrections_later(batch: int) -> None:
    first = FIRST + batch * EACH
    seen, failed = playing.seen_in(range(first, first + EACH), ranked)
    assert not failed, failed[0]
    for what in SEEN:
        assert seen[what] > 0, f"no {what} in {EACH} storms: they are too mild to prove anything"
