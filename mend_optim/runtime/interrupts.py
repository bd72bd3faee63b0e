"""Signals, held back where the training thread must not stop half-way.

Python calls the handler of a signal on the main thread, between any two steps of whatever that
thread does. The handler may raise there: that of Ctrl-C does by default, and so do those of
timeouts (SIGALRM) and of warnings before a preemption (SIGTERM, SIGUSR1). The script may then go on
with the same optimizer. A learner that was left half-way through a change would stop merging for
ever, and its peers might wait for it."""

from __future__ import annotations

# Each step asks for all handlers several times. The functions of `signal` take ten times as long as
# those of `_signal` that they wrap, because they look each handler up in an enumeration.
import _signal  # type: ignore[import-not-found]
import signal
import threading
from collections.abc import Callable
from types import FrameType
from typing import Any

#: The signals whose handlers raise in real scripts. SIGCHLD is one: torch's DataLoader raises when
#: one of its workers was killed. The rest tell of faults of the process itself, or of files.
NAMES = (
    "INT",
    "TERM",
    "ALRM",
    "CHLD",
    "USR1",
    "USR2",
    "HUP",
    "QUIT",
    "VTALRM",
    "PROF",
    "XCPU",
    "BREAK",
)
NUMBERS = tuple(
    int(getattr(signal, "SIG" + name)) for name in NAMES if hasattr(signal, "SIG" + name)
)


class Uninterrupted:
    """A context at whose end signals take effect that came within. Wait for nothing inside that has
    no end.

    It does nothing on other threads than the main one, where no handler is called, and nothing to
    signals that call no handler of Python's."""

    __slots__ = ("_former", "_held", "_within")

    def __init__(self) -> None:
        #: The handlers that it holds back, by the number of their signal.
        self._former: dict[int, Callable[[int, FrameType | None], Any]] = {}
        #: The signals that have come, in order, with the frame in which each did.
        self._held: dict[int, FrameType | None] = {}
        #: Whether signals are held back now.
        self._within = False

    def __enter__(self) -> None:
        if threading.get_ident() != threading.main_thread().ident:
            return
        # First this. A handler that is called while it is replaced by another one may take itself
        # for one that the user has replaced, and do nothing.
        self._within = True
        try:
            for number in NUMBERS:
                former = _signal.getsignal(number)
                if callable(former):
                    # First this: once the handler is replaced, the signal may come.
                    self._former[number] = former
                    _signal.signal(number, self._hold)
        except BaseException:  # a handler that was not replaced yet has raised
            self.__exit__()
            raise

    def __exit__(self, *_: object) -> None:
        if not self._within:
            return
        try:
            self._restore()
        finally:
            self._within = False
            self._deliver()

    def _restore(self) -> None:
        try:
            for number, former in self._former.items():
                # Another one may be there by now: a handler that is back may set others.
                if _signal.getsignal(number) == self._hold:
                    _signal.signal(number, former)
        except BaseException:  # a handler that is back has raised
            self._restore()
            raise

    def _deliver(self) -> None:
        """Call the handlers of the signals that came, also if one of them raises."""
        if not self._held:
            return
        number = next(iter(self._held))
        frame = self._held.pop(number)
        try:
            self._former[number](number, frame)
        finally:
            self._deliver()

    def _hold(self, number: int, frame: FrameType | None) -> None:
        if self._within:
            self._held[number] = frame
        else:  # code that ran within has kept this handler
            self._former[number](number, frame)
