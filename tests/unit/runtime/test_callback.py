"""`on_event` on a thread of its own: it may raise, be slow, or hang."""

from __future__ import annotations

import logging
import threading
from unittest.mock import Mock

import pytest

from mend_optim.engine.ledger import Event
from mend_optim.protocol.lineage import PeerId
from mend_optim.runtime import callback as room
from mend_optim.runtime.callback import Callback
from mend_optim.runtime.reporter import Reporter
from tests.support.learners import LOCKSTEP, PATIENCE_S, cluster, descent, drive, read


def event(number: int) -> Event:
    return Event("met", f"number {number}", {"number": number})


class Slow:
    """A function that is called with events, and waits in each call until it is let go."""

    def __init__(self) -> None:
        self.seen: list[int] = []
        self.called = threading.Event()
        self.let_go = threading.Event()

    def __call__(self, event: Event) -> None:
        self.called.set()
        assert self.let_go.wait(PATIENCE_S)
        self.seen.append(event.facts["number"])


def warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [r.getMessage() for r in caplog.records if r.levelno >= logging.WARNING]


def never(error: BaseException) -> None:
    raise AssertionError(error)


def test_what_is_to_end_the_script_is_told_on(caplog: pytest.LogCaptureFixture) -> None:
    """As an exception of the thread alone, that of sys.exit() would end nothing."""
    told: list[BaseException] = []

    def leave(_: Event) -> None:
        raise SystemExit(3)

    callback = Callback("a", leave, told.append)
    callback.tell(event(0))
    callback.close(PATIENCE_S)
    assert [(type(error), error.args) for error in told] == [(SystemExit, (3,))]
    assert warnings(caplog) == ["a: on_event ends training"]


def test_a_function_is_told_of_all_events_in_order_although_it_raises(
    caplog: pytest.LogCaptureFixture,
) -> None:
    seen: list[int] = []

    def fail(event: Event) -> None:
        seen.append(event.facts["number"])
        raise RuntimeError("a bug of the user's")

    callback = Callback("a", fail, never)
    for number in range(5):
        callback.tell(event(number))
    callback.close(PATIENCE_S)
    assert seen == [0, 1, 2, 3, 4]
    assert warnings(caplog) == [
        f"a: on_event failed, told of 'met'; failures so far: {count}" for count in (1, 2, 4)
    ]
    assert "a bug of the user's" in caplog.text


def test_no_event_waits_for_a_function_that_hangs(caplog: pytest.LogCaptureFixture) -> None:
    slow = Slow()
    callback = Callback("a", slow, never)
    callback.tell(event(0))
    assert slow.called.wait(PATIENCE_S)
    callback.tell(event(1))
    callback.close(0.0)
    assert slow.seen == []
    assert warnings(caplog) == ["a: on_event hangs: the end does not wait for it"]
    slow.let_go.set()
    callback.close(PATIENCE_S)
    assert slow.seen == [0, 1]


def test_so_many_events_wait_for_a_function_and_no_more(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(room, "MOST_WAITING", 2)
    slow = Slow()
    callback = Callback("a", slow, never)
    callback.tell(event(0))
    assert slow.called.wait(PATIENCE_S)
    for number in range(1, 6):
        callback.tell(event(number))
    slow.let_go.set()
    callback.close(PATIENCE_S)
    assert slow.seen == [0, 1, 2]
    assert warnings(caplog) == [
        "a: on_event is slow or hangs, and 2 events wait for it: it is not told of more until it "
        "has caught up; training goes on"
    ]


def test_a_function_that_has_caught_up_hears_again_and_the_log_counts_what_it_missed(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(room, "MOST_WAITING", 1)
    slow = Slow()
    last = threading.Event()

    def tell(event: Event) -> None:
        slow(event)
        if event.facts["number"] == 1:
            last.set()

    callback = Callback("a", tell, never)
    callback.tell(event(0))
    assert slow.called.wait(PATIENCE_S)
    for number in range(1, 4):
        callback.tell(event(number))
    slow.let_go.set()
    assert last.wait(PATIENCE_S)
    callback.tell(event(4))
    callback.close(PATIENCE_S)
    assert slow.seen == [0, 1, 4]
    assert warnings(caplog)[1:] == ["a: on_event was not told of 2 events"]


def test_a_function_that_stays_slow_fills_no_log(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It hears of the next event once none waits, and not whenever one place is free."""
    monkeypatch.setattr(room, "MOST_WAITING", 2)
    turns, done = threading.Semaphore(0), threading.Semaphore(0)
    seen: list[int] = []

    def take_turns(event: Event) -> None:
        done.release()
        assert turns.acquire(timeout=PATIENCE_S)
        seen.append(event.facts["number"])

    def let_it_take_one() -> None:
        turns.release()
        assert done.acquire(timeout=PATIENCE_S)

    callback = Callback("a", take_turns, never)
    callback.tell(event(0))
    assert done.acquire(timeout=PATIENCE_S)
    for number in (1, 2, 3):
        callback.tell(event(number))
    let_it_take_one()
    callback.tell(event(4))
    assert len(warnings(caplog)) == 1
    let_it_take_one()
    callback.tell(event(5))
    for _ in range(2):
        turns.release()
    callback.close(PATIENCE_S)
    assert seen == [0, 1, 2, 5]
    assert warnings(caplog)[1:] == ["a: on_event was not told of 2 events"]


def test_where_no_thread_can_be_started_training_goes_on(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    slow = Slow()
    slow.let_go.set()
    callback = Callback("a", slow, never)
    monkeypatch.setattr(room.threading.Thread, "start", Mock(side_effect=RuntimeError("no more")))
    callback.tell(event(0))
    callback.close(PATIENCE_S)
    assert warnings(caplog) == ["a: no thread could be started for on_event; failures so far: 1"]


def test_the_first_call_is_known_to_be_the_functions(monkeypatch: pytest.MonkeyPatch) -> None:
    """Although the thread that starts it has not come back yet."""
    seen: list[bool] = []
    called = threading.Event()

    def look(_: Event) -> None:
        seen.append(callback.is_own_thread())
        called.set()

    def start_and_wait(thread: threading.Thread) -> None:
        start(thread)
        assert called.wait(PATIENCE_S)

    start = room.threading.Thread.start
    callback = Callback("a", look, never)
    monkeypatch.setattr(room.threading.Thread, "start", start_and_wait)
    callback.tell(event(0))
    callback.close(PATIENCE_S)
    assert seen == [True]


def test_a_function_may_close_its_callback() -> None:
    ended = threading.Event()

    def close(_: Event) -> None:
        callback.close(PATIENCE_S)
        ended.set()

    callback = Callback("a", close, never)
    callback.tell(event(0))
    assert ended.wait(PATIENCE_S)


def test_a_reporter_that_is_closed_has_told_of_all_events() -> None:
    slow = Slow()
    reporter = Reporter(lambda: PeerId("a", 1), None, slow, lambda: 1, never)
    for number in range(3):
        reporter.report(event(number))
    slow.let_go.set()
    reporter.close(PATIENCE_S)
    assert slow.seen == [0, 1, 2]


def test_a_function_that_hangs_holds_up_neither_rounds_nor_the_end() -> None:
    let_go = threading.Event()

    def hang(_: Event) -> None:
        let_go.wait(PATIENCE_S)

    try:
        with cluster(
            descent(0.0), descent(0.0), each=[{"on_event": hang}, {}], **LOCKSTEP
        ) as optimizers:
            drive(optimizers, 5, lambda i, s: 1.0)
            assert [o.status().rounds_adopted for o in optimizers] == [5, 5]
            assert [read(o) for o in optimizers] == [[-5.0], [-5.0]]
            assert [o.status().dropped_tokens for o in optimizers] == [0, 0]
            let_go.set()
    finally:
        let_go.set()
