"""A bar on the terminal while the training thread waits long: for what, since when, and how much
has come meanwhile. tqdm draws it where it is installed. Elsewhere there are only the lines of the
log."""

from __future__ import annotations

import shutil
import sys
import time
from collections.abc import Callable
from typing import Any

#: A wait that is shorter has no bar, and does not import tqdm.
SHOW_AFTER_S = 1.0
#: Seconds between two looks of one bar.
LOOK_EVERY_S = 0.5
#: Columns that tqdm needs behind the text.
_FIGURES = 32
_LEAST_TEXT = 20


class WaitBar:
    """The bar of one wait of the training thread, which alone calls it, without the mutex. It is
    cleared at the end.

    Args:
        begin: how its text begins: with the learner's name, and what waits.
        what: returns what is waited for.
        received: returns the bytes that have come since the learner's start.
        clock: returns the time in seconds.
    """

    def __init__(
        self,
        begin: str,
        what: Callable[[], str],
        received: Callable[[], int],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._begin = begin
        self._what = what
        self._received = received
        self._clock = clock
        self._before = received()
        self._due_at = clock() + SHOW_AFTER_S
        self._over = not _is_terminal()
        self._bar: Any = None

    def __enter__(self) -> WaitBar:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        """Clear the bar. No other is drawn in this wait."""
        self._over = True
        if self._bar is not None:
            self._bar.close()

    def left_s(self) -> float:
        """For how many seconds there is nothing to draw."""
        return float("inf") if self._over else max(0.0, self._due_at - self._clock())

    def draw(self) -> None:
        """Draw the bar, if that is due."""
        if self.left_s() > 0:
            return
        self._due_at = self._clock() + LOOK_EVERY_S
        received = self._received() - self._before
        text = _fitting(f"{self._begin} for {self._what()}")
        if self._bar is None:
            self._bar = _new_bar(text, received)
            self._over = self._bar is None
            return
        self._bar.set_description_str(text, refresh=False)
        self._bar.n = received
        self._bar.refresh()


def _is_terminal() -> bool:
    """Whether somebody looks at stderr. Programs without a console may have none, a daemon may have
    closed it, and what a script puts in its place often has `write` and `flush` alone."""
    try:
        return sys.stderr.isatty()
    except (AttributeError, ValueError):
        return False


def _new_bar(text: str, received: int) -> Any:
    """A bar of tqdm that counts bytes, and is drawn at once; None where tqdm is missing."""
    try:
        from tqdm import tqdm
    except ImportError:
        return None
    options = {"unit": "B", "unit_scale": True, "leave": False, "file": sys.stderr}
    return tqdm(desc=text, initial=received, **options)


def _fitting(text: str) -> str:
    """The text, cut to what a line of the terminal holds: tqdm cannot clear a longer one."""
    room = max(_LEAST_TEXT, shutil.get_terminal_size().columns - _FIGURES)
    return text if len(text) <= room else f"{text[: room - 1]}…"
