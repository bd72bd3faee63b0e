"""Lines of a long wait: one every 10 s, with what is waited for and what has come meanwhile."""

from __future__ import annotations

import logging
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mend_optim.runtime.long_wait import LINE_EVERY_S, LongWait


class Waiter:
    """A wait in a time of its own."""

    def __init__(self) -> None:
        self.now = 100.0
        self.received = 5_000_000
        self.asked = 0
        self.wait = LongWait("a: waits", self.what, lambda: self.received, lambda: self.now)

    def what(self) -> str:
        self.asked += 1
        return f"cause {self.asked}"

    def sleep(self, holds: Callable[[], bool], timeout_s: float) -> bool:
        """Stands for a wait that never ends early."""
        assert timeout_s <= LINE_EVERY_S
        self.now += timeout_s
        return holds()


def test_a_line_has_the_time_the_cause_and_the_bytes(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "mend_optim")
    waiter = Waiter()
    waiter.wait.tell()
    assert caplog.messages == []
    waiter.now, waiter.received = 110.0, 7_500_000
    waiter.wait.tell()
    waiter.now = 119.9
    waiter.wait.tell()
    waiter.now = 121.0
    waiter.wait.tell()
    assert caplog.messages == [
        "a: waits after 10 s for cause 1; 2.5 MB received meanwhile",
        "a: waits after 21 s for cause 2; 2.5 MB received meanwhile",
    ]
    assert {record.levelno for record in caplog.records} == {logging.INFO}


@given(st.lists(st.floats(0, 30), max_size=30))
def test_lines_are_never_closer_than_that(pauses: list[float]) -> None:
    waiter, told, due = Waiter(), 0, 100.0 + LINE_EVERY_S
    for pause in pauses:
        waiter.now += pause
        waiter.wait.tell()
        if waiter.now >= due:
            told, due = told + 1, waiter.now + LINE_EVERY_S
        assert waiter.asked == told


def test_a_wait_goes_on_until_it_is_over_and_tells_every_10_s() -> None:
    waiter = Waiter()
    waiter.wait.until(lambda: waiter.now >= 135.0, waiter.sleep)
    assert (waiter.now, waiter.asked) == (140.0, 3)
    waiter.wait.until(lambda: True, waiter.sleep)
    assert waiter.asked == 3
