from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mend_optim.engine.schedule import Schedule
from mend_optim.errors import UsageError


def boundaries(schedule: Schedule, fragment: int, steps: int) -> list[int]:
    """The steps at which a fragment that is merged at once is due."""
    mark, found = schedule.first_cycle_start(fragment), []
    for step in range(1, steps + 1):
        if schedule.due(step, mark):
            found.append(step)
            mark = step
    return found


schedules = st.builds(Schedule, sync_every=st.integers(1, 40), fragments=st.integers(1, 50))


def test_two_fragments_take_turns() -> None:
    schedule = Schedule(sync_every=6, fragments=2)
    assert boundaries(schedule, 0, 18) == [3, 9, 15]
    assert boundaries(schedule, 1, 18) == [6, 12, 18]


def test_a_learner_that_starts_late_is_staggered_from_its_own_start() -> None:
    schedule = Schedule(sync_every=6, fragments=2)
    assert schedule.first_cycle_start(0, step=100) + 6 == 103


@given(schedules)
def test_every_fragment_is_due_once_in_every_period(schedule: Schedule) -> None:
    period = schedule.sync_every
    for fragment in range(schedule.fragments):
        due = boundaries(schedule, fragment, 3 * period)
        assert [
            sum(start < step <= start + period for step in due) for start in (0, period, 2 * period)
        ] == [1, 1, 1]


@given(schedules)
def test_boundaries_are_spread_evenly_over_the_period(schedule: Schedule) -> None:
    """At one step as few of them as can be."""
    period, fragments = schedule.sync_every, schedule.fragments
    first = [schedule.first_cycle_start(p) + period for p in range(fragments)]
    gaps = [b - a for a, b in zip([0, *first], first, strict=False)]
    at_once = [first.count(step) for step in range(1, period + 1)]
    assert max(at_once) == -(-fragments // period)
    assert first[0] >= 1
    assert max(gaps) - min(gaps) <= 1
    assert first[-1] == period


@pytest.mark.parametrize(("adopt_after", "expected"), [(None, False), (0, True), (3, True)])
def test_a_fixed_overlap_makes_rounds_lockstep(adopt_after: int | None, expected: bool) -> None:
    assert Schedule(sync_every=6, adopt_after=adopt_after).lockstep is expected


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"sync_every": 0}, ["sync_every", "an int >= 1", "0"]),
        ({"sync_every": 2.5}, ["sync_every", "an int >= 1", "2.5"]),
        ({"sync_every": True}, ["sync_every", "an int >= 1", "True"]),
        ({"fragments": -1}, ["fragments", "an int >= 1", "-1"]),
        (
            {"sync_every": 4, "adopt_after": 5},
            ["adopt_after", "[0, sync_every=4]", "5", "before the next boundary"],
        ),
        ({"adopt_after": -1}, ["adopt_after", "-1", "before the next boundary"]),
        ({"adopt_after": 1.0}, ["adopt_after", "int", "1.0"]),
    ],
)
def test_a_wrong_value_is_named_with_its_bound_and_remedy(
    wrong: dict[str, Any], words: list[str]
) -> None:
    with pytest.raises(UsageError) as caught:
        Schedule(**wrong)
    assert [word for word in words if word not in str(caught.value)] == []
