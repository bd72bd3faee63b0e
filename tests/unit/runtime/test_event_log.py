"""The log: how loud each event is, and what it says of the rounds without a line for each."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import Any

import pytest

from mend_optim.engine.ledger import Event, MemberRecord, RoundRecord
from mend_optim.runtime import event_log
from mend_optim.runtime.event_log import EVERY_S, MOST_LINES, EventLog, level_of


class Clock:
    """Time that passes when a test says so."""

    now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def lines(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """The lines that a user sees at level INFO, by the time the test reads them."""
    monkeypatch.setattr(event_log, "log", logging.getLogger("mend_optim"))
    caplog.set_level(logging.INFO, "mend_optim")
    seen: list[str] = []

    class Keep(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            seen.append(record.getMessage())

    handler = Keep(logging.INFO)
    logging.getLogger("mend_optim").addHandler(handler)
    yield seen
    logging.getLogger("mend_optim").removeHandler(handler)


def round_of(*members: str, version: int = 1, **facts: Any) -> Event:
    record = RoundRecord(
        fragment=0,
        version=version,
        tokens=1000 * version,
        digest="5eed",
        reason="all_present" if members else "pulled",
        members=tuple(
            MemberRecord(name=name, incarnation=1, seq=1, tokens=8, steps=8, weight=0.5)
            for name in members
        ),
        **facts,
    )
    return Event("round", f"fragment 0 version {version}", {"round": record})


@pytest.mark.parametrize(
    ("event", "level"),
    [
        (Event("alone", ""), logging.WARNING),
        (Event("waiting", ""), logging.WARNING),
        (Event("suspected", ""), logging.WARNING),
        (Event("evicted", ""), logging.WARNING),
        (Event("joined", ""), logging.INFO),
        (Event("left", ""), logging.INFO),
        (Event("slow", ""), logging.INFO),
        (Event("restored", "", {"dropped": False}), logging.INFO),
        (Event("restored", "", {"dropped": True}), logging.WARNING),
        (round_of("a"), logging.DEBUG),
        (Event("period", ""), logging.DEBUG),
        (Event("joined", "", lifts="waiting"), logging.WARNING),
        (Event("met", "", lifts="evicted"), logging.WARNING),
        (Event("met", "", lifts="left"), logging.INFO),
        (Event("together", "", lifts="alone"), logging.WARNING),
        (Event("quorum", "", lifts="below_quorum"), logging.WARNING),
        (Event("recovered", "", lifts="costly"), logging.WARNING),
        (Event("recovered", "", lifts="slow"), logging.INFO),
    ],
)
def test_an_all_clear_is_as_loud_as_the_news_that_it_lifts(event: Event, level: int) -> None:
    assert level_of(event) == level


def test_the_first_merge_is_told_and_then_a_summary_at_most_every_30_s(
    clock: Clock, lines: list[str]
) -> None:
    log = EventLog("a", lambda: 16, clock)
    log.tell(round_of("a", "b"))
    assert lines == ["a: first merge: one model of a, b, 1,000 tokens in it, H = 16, nothing lost"]
    for version in range(2, 61):
        clock.now += 1.0
        log.tell(round_of("a", "b", version=version))
    assert lines[1:] == [
        "a: merged 30 rounds in 30 s: a, b; 31,000 tokens in the model, H = 16, nothing lost"
    ]


def test_a_pause_between_rounds_brings_no_summary_of_nothing(
    clock: Clock, lines: list[str]
) -> None:
    log = EventLog("a", lambda: 16, clock)
    log.tell(round_of("a", "b"))
    clock.now += 10 * EVERY_S
    log.tell(Event("left", "b left"))
    assert lines[1:] == ["a: b left"]
    log.tell(round_of("a", "b", version=2))
    assert lines[2].startswith("a: merged 1 round in 300 s: a, b; 2,000 tokens")


def test_a_summary_names_what_was_lost_and_who_was_not_in_all_rounds(
    clock: Clock, lines: list[str]
) -> None:
    log = EventLog("a", lambda: 16, clock)
    log.tell(round_of("a", "b"))
    log.tell(round_of(version=2, dropped_tokens=64, superseded_tokens=32))
    log.tell(round_of("a", version=3, absent=("b",)))
    clock.now = EVERY_S
    log.tell(round_of("a", "b", version=4))
    assert lines[1:] == [
        "a: merged 2 rounds in 30 s: a, b in 1; 4,000 tokens in the model, H = 16, "
        "tokens dropped: 64, tokens superseded: 32, offers missed: 1"
    ]
    clock.now = 2 * EVERY_S
    log.tell(round_of("a", "b", version=5))
    assert lines[2].endswith("nothing lost")


def test_an_anchor_that_was_taken_whole_is_no_merge(clock: Clock, lines: list[str]) -> None:
    log = EventLog("a", lambda: 16, clock)
    log.tell(round_of(version=7))
    assert lines == []
    log.tell(round_of("a", "b", version=8))
    assert lines == ["a: first merge: one model of a, b, 8,000 tokens in it, H = 16, nothing lost"]


def test_a_peer_cannot_fill_the_log(clock: Clock, lines: list[str]) -> None:
    log = EventLog("a", lambda: 16, clock)
    for n in range(1000):
        log.tell(Event("fault", f"offer {n} of b refused: damaged"))
    log.tell(Event("left", "c left"))
    assert len(lines) == MOST_LINES + 1
    assert lines[-1] == "a: c left"
    clock.now = EVERY_S
    log.tell(Event("fault", "offer 1000 of b refused: damaged"))
    assert lines[MOST_LINES + 1 :] == [
        f"a: {1000 - MOST_LINES} more lines of the kind 'fault' were left out; on_event gets all",
        "a: offer 1000 of b refused: damaged",
    ]


def test_events_that_come_one_by_one_are_all_told(clock: Clock, lines: list[str]) -> None:
    log = EventLog("a", lambda: 16, clock)
    for n in range(5 * MOST_LINES):
        log.tell(Event("suspected", f"b is suspected to be gone, time {n}"))
        clock.now += EVERY_S / MOST_LINES
    assert len(lines) == 5 * MOST_LINES
