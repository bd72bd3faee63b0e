"""Ctrl-C, held back where the training thread must not stop half-way.

Python calls the handler of SIGINT on the main thread, between any two steps of whatever that thread
does. By default it raises `KeyboardInterrupt` there. In a notebook, the script then goes on with
the same optimizer. A learner that was left half-way through a change would stop merging for ever,
and its peers might wait for it."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable
from types import FrameType
from typing import Any


class Uninterrupted:
    """A context at whose end Ctrl-C takes effect, if it came within. Wait for nothing inside.

    It does nothing on other threads than the main one, where no handler is called, and nothing if
    Ctrl-C calls no handler of Python's."""

    __slots__ = ("_former", "_held")

    def __init__(self) -> None:
        #: The handler that it holds back; None if there is none.
        self._former: Callable[[int, FrameType | None], Any] | None = None
        #: The arguments for that handler; None if Ctrl-C has not come.
        self._held: tuple[int, FrameType | None] | None = None

    def __enter__(self) -> None:
        if threading.get_ident() != threading.main_thread().ident:
            return
        former = signal.getsignal(signal.SIGINT)
        if callable(former):
            # First this: once the handler is replaced, nothing can come between the two.
            self._former = former
            signal.signal(signal.SIGINT, self._hold)

    def __exit__(self, *_: object) -> None:
        former = self._former
        if former is None:
            return
        signal.signal(signal.SIGINT, former)
        if self._held is not None:
            former(*self._held)

    def _hold(self, number: int, frame: FrameType | None) -> None:
        self._held = (number, frame)
