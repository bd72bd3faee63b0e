"""Signals inside a context in which they are held back."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator

import pytest

from mend_optim.runtime import interrupts
from mend_optim.runtime.interrupts import Uninterrupted

OTHERS = (
    signal.SIGTERM,
    signal.SIGALRM,
    signal.SIGCHLD,  # of torch's DataLoader
    signal.SIGUSR1,
    signal.SIGUSR2,
    signal.SIGHUP,
)


class Stopped(Exception):
    """What the handlers of other signals raise."""


def stop(*_: object) -> None:
    raise Stopped


@pytest.fixture(autouse=True)
def handler() -> Iterator[None]:
    """Python's own handler of Ctrl-C, which may not be that of the test run."""
    former = [(number, signal.getsignal(number)) for number in (signal.SIGINT, *OTHERS)]
    signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    for number, before in former:
        signal.signal(number, before)


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


def hit_by(*numbers: int) -> None:
    with Uninterrupted():
        for number in numbers:
            signal.raise_signal(number)


@pytest.mark.parametrize("number", OTHERS)
def test_other_signals_take_effect_at_the_end(number: int) -> None:
    signal.signal(number, stop)
    ended = False

    def hit() -> None:
        nonlocal ended
        with Uninterrupted():
            signal.raise_signal(number)
            ended = True

    with pytest.raises(Stopped):
        hit()
    assert ended
    assert signal.getsignal(number) is stop


def test_signals_are_told_in_order_although_their_handlers_raise() -> None:
    calls: list[int] = []

    def tell(number: int, _: object) -> None:
        calls.append(number)
        raise Stopped

    for number in (signal.SIGINT, *OTHERS):
        signal.signal(number, tell)
    with pytest.raises(Stopped):
        hit_by(signal.SIGUSR1, signal.SIGINT, signal.SIGTERM)
    assert calls == [signal.SIGUSR1, signal.SIGINT, signal.SIGTERM]
    with pytest.raises(Stopped):
        signal.raise_signal(signal.SIGALRM)
    assert calls[3:] == [signal.SIGALRM]


def test_ctrl_c_while_handlers_are_replaced_or_restored_leaves_all_as_they_were(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Ctrl-C comes as soon as a handler is replaced, at the beginning or at the end."""
    calls: list[int] = []

    def tell(number: int, _: object) -> None:
        calls.append(number)

    for number in OTHERS:
        signal.signal(number, tell)
    replace = interrupts._signal.signal

    def hit_in_one_call(at: int) -> None:
        before = len(calls)
        left = [at]

        def replaced(number: int, handler: object) -> None:
            replace(number, handler)
            left[0] -= 1
            if not left[0]:
                ctrl_c()

        monkeypatch.setattr(interrupts._signal, "signal", replaced)
        with pytest.raises(KeyboardInterrupt):
            hit_by(signal.SIGTERM, signal.SIGALRM)
        monkeypatch.undo()
        assert calls[before:] == [signal.SIGTERM, signal.SIGALRM]
        assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
        assert all(signal.getsignal(number) is tell for number in OTHERS)

    for at in range(1, 2 * len(OTHERS) + 3):
        hit_in_one_call(at)


def test_a_handler_that_raises_before_it_is_replaced_leaves_all_as_they_were(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    signal.signal(signal.SIGUSR1, stop)
    replace = interrupts._signal.signal

    def replaced(number: int, handler: object) -> None:
        replace(number, handler)
        monkeypatch.undo()
        signal.raise_signal(signal.SIGUSR1)  # SIGINT was the first one to be replaced

    monkeypatch.setattr(interrupts._signal, "signal", replaced)
    with pytest.raises(Stopped):
        hit_by()
    assert signal.getsignal(signal.SIGUSR1) is stop
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_a_handler_is_never_called_while_another_one_is_in_its_place(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It may look: the farewell does nothing if the user has replaced its handler."""
    seen: list[object] = []

    def tell(number: int, _: object) -> None:
        seen.append(signal.getsignal(number))

    signal.signal(signal.SIGTERM, tell)
    replace = interrupts._signal.signal

    def replaced(number: int, handler: object) -> None:
        replace(number, handler)
        signal.raise_signal(signal.SIGTERM)

    monkeypatch.setattr(interrupts._signal, "signal", replaced)
    with Uninterrupted():
        pass
    monkeypatch.undo()
    assert seen
    assert set(seen) == {tell}


def test_a_handler_that_sets_another_one_is_obeyed() -> None:
    """As one does that lets the second Ctrl-C end the process."""

    def once(number: int, _: object) -> None:
        signal.signal(signal.SIGUSR1, signal.SIG_IGN)
        raise KeyboardInterrupt

    signal.signal(signal.SIGINT, once)
    signal.signal(signal.SIGUSR1, stop)
    restore = Uninterrupted._restore

    def restored(self: Uninterrupted) -> None:
        once_only.undo()
        self._former = dict(self._former)
        interrupts._signal.signal(signal.SIGINT, once)  # Python has put it back
        with pytest.raises(KeyboardInterrupt):
            ctrl_c()
        restore(self)

    once_only = pytest.MonkeyPatch()
    once_only.setattr(Uninterrupted, "_restore", restored)
    with Uninterrupted():
        pass
    assert signal.getsignal(signal.SIGUSR1) is signal.SIG_IGN


def test_a_handler_that_was_kept_calls_the_users_after_the_end() -> None:
    with Uninterrupted():
        kept = signal.getsignal(signal.SIGINT)
    assert callable(kept)
    with pytest.raises(KeyboardInterrupt):
        kept(signal.SIGINT, None)
