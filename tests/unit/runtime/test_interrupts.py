"""Ctrl-C inside a context in which it is held back."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator

import pytest

from mend_optim.runtime.interrupts import Uninterrupted


@pytest.fixture(autouse=True)
def handler() -> Iterator[None]:
    """Python's own handler, which may not be that of the test run."""
    former = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, former)


def ctrl_c() -> None:
    signal.raise_signal(signal.SIGINT)


def hit_in_the_middle(ends: list[str]) -> None:
    with Uninterrupted():
        ctrl_c()
        ends.append("the context's")


def hit_in_an_inner_context(ends: list[str]) -> None:
    with Uninterrupted():
        with Uninterrupted():
            ctrl_c()
            ends.append("the inner context's")
        ends.append("the context's")


def hit_and_wrong() -> None:
    with Uninterrupted():
        ctrl_c()
        raise ValueError


def test_ctrl_c_takes_effect_at_the_end() -> None:
    ends: list[str] = []
    with pytest.raises(KeyboardInterrupt):
        hit_in_the_middle(ends)
    assert ends == ["the context's"]
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    with pytest.raises(KeyboardInterrupt):
        ctrl_c()


def test_without_ctrl_c_nothing_happens() -> None:
    with Uninterrupted():
        pass
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_an_inner_context_does_not_let_it_through() -> None:
    ends: list[str] = []
    with pytest.raises(KeyboardInterrupt):
        hit_in_an_inner_context(ends)
    assert ends == ["the inner context's", "the context's"]


def test_an_error_is_the_context_of_the_interrupt() -> None:
    with pytest.raises(KeyboardInterrupt) as raised:
        hit_and_wrong()
    assert isinstance(raised.value.__context__, ValueError)


def test_the_users_handler_is_called_once() -> None:
    calls: list[int] = []
    signal.signal(signal.SIGINT, lambda number, _: calls.append(number))
    with Uninterrupted():
        ctrl_c()
        assert not calls
    assert calls == [signal.SIGINT]


def test_an_ignored_signal_stays_ignored() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with Uninterrupted():
        ctrl_c()
    assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN


def test_another_thread_leaves_the_handler_alone() -> None:
    seen: list[object] = []

    def look() -> None:
        with Uninterrupted():
            seen.append(signal.getsignal(signal.SIGINT))

    thread = threading.Thread(target=look)
    thread.start()
    thread.join()
    assert seen == [signal.default_int_handler]
