"""Storms over learners of several ranks, beside learners of one process."""

from __future__ import annotations

import pytest

from tests.virtual import playing
from tests.virtual.ranked import ranked, ranked_in_lockstep

FIRST, EACH, BATCHES = 300, 30, 2
IN_PASSING = ("copied in passing", "added in passing", "recalled")
IN_LOCKSTEP = ("went on in lockstep", "waiting")
SEEN = (
    "met in a step",
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


def check(seeds: range, in_lockstep: bool) -> None:
    seen, failed = playing.seen_in(seeds, ranked_in_lockstep if in_lockstep else ranked)
    assert not failed, failed[0]
    for what in (*SEEN, *IN_PASSING, *(IN_LOCKSTEP if in_lockstep else ("copied in vain",))):
        assert seen[what] > 0, f"no {what} in {EACH} storms: they are too mild to prove anything"


@pytest.mark.parametrize("batch", range(BATCHES))
def test_laws_hold_where_copies_come_late_and_corrections_later(batch: int) -> None:
    first = FIRST + batch * EACH
    check(range(first, first + EACH), in_lockstep=False)


def test_laws_hold_where_ranks_meet_at_the_steps_at_which_something_is_due() -> None:
    check(range(FIRST, FIRST + EACH), in_lockstep=True)
