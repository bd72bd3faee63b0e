"""When a user is told that a certificate ends."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mend_optim.transport.security.certificate import Certificate
from mend_optim.transport.security.expiry import BEFORE_S, PARTS, Reminder

DAY = 24 * 3600.0


def certificate(not_before: float, not_after: float, sha256: str = "a") -> Certificate:
    return Certificate(sha256=sha256, key=b"", not_before=not_before, not_after=not_after)


def told(reminder: Reminder, chain: list[Certificate], times: list[float]) -> list[float]:
    """The times at which there are words."""
    return [now for now in times if reminder.due(chain, now)]


def test_a_certificate_of_a_month_is_told_of_four_times() -> None:
    one = certificate(0, 30 * DAY)
    minutes = [minute * 60.0 for minute in range(32 * 24 * 60)]
    assert told(Reminder(), [one], minutes) == [30 * DAY - before for before in BEFORE_S]


def test_one_that_was_issued_for_a_day_is_told_of_in_its_last_hours() -> None:
    one = certificate(0, DAY)
    minutes = [minute * 60.0 for minute in range(2 * 24 * 60)]
    assert told(Reminder(), [one], minutes) == [DAY - DAY / PARTS, DAY - 3600, DAY]


def test_the_words_say_when_and_what_to_do() -> None:
    reminder, one = Reminder(), certificate(0, 30 * DAY)
    text = "its certificate expires on 1970-01-31 00:00 UTC: issue it again, and replace its files"
    assert reminder.due([one], 29.5 * DAY).startswith(text)
    assert reminder.due([one], 31 * DAY).startswith("its certificate expired on 1970-01-31")


def test_a_new_certificate_is_told_of_anew() -> None:
    reminder, former = Reminder(), certificate(0, 30 * DAY)
    assert reminder.due([former], 40 * DAY)
    assert not reminder.due([certificate(40 * DAY, 70 * DAY, "b")], 41 * DAY)
    assert reminder.due([certificate(40 * DAY, 70 * DAY, "b")], 69.5 * DAY)


def test_the_first_of_a_chain_that_ends_counts() -> None:
    chain = [certificate(0, 900 * DAY), certificate(0, 30 * DAY, "b"), certificate(0, 800 * DAY)]
    words = Reminder().due(chain, 29 * DAY)
    assert words.startswith("a certificate of its cert.pem expires on 1970-01-31")


@pytest.mark.parametrize("now", [0.0, 1e9, 1e11])
def test_one_that_is_valid_for_ever_is_not_told_of(now: float) -> None:
    assert not Reminder().due([certificate(0, 253402300799.0)], now)


@given(
    life=st.floats(60, 3650 * DAY),
    times=st.lists(st.floats(-DAY, 4000 * DAY), min_size=1, max_size=30),
)
def test_nothing_is_told_twice_or_in_the_first_two_thirds(life: float, times: list[float]) -> None:
    words, reminder = list[tuple[float, str]](), Reminder()
    for now in sorted(times):
        if text := reminder.due([certificate(0, life)], now):
            words.append((now, text))
    assert len(words) <= len(BEFORE_S)
    assert all(now >= life - life / PARTS - 1e-3 for now, _ in words)
    assert bool(words) == (max(times) >= life - min(BEFORE_S[0], life / PARTS))
    assert [("expired" in text) for _, text in words] == [now >= life for now, _ in words]
    assert all(former < later for (former, _), (later, _) in pairwise(words))
