"""Lines of the log while the training thread waits long: that it still does, for what, and how much
has come meanwhile."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

from mend_optim.engine.engine import Engine
from mend_optim.runtime.wait_bar import WaitBar

log = logging.getLogger("mend_optim")
#: Seconds between two lines of one wait, and before the first.
LINE_EVERY_S = 10.0

Wait = Callable[[Callable[[], bool], float], bool]


class LongWait:
    """One wait of the training thread, which alone calls it, without the mutex: a log may be slow.

    Args:
        begin: how its lines begin: with the learner's name, and what waits.
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
        self._bar = WaitBar(begin, what, received, clock)
        self._since = clock()
        self._before = received()
        self._due_at = self._since + LINE_EVERY_S

    def __enter__(self) -> LongWait:
        return self

    def __exit__(self, *error: object) -> None:
        self._bar.close()

    def tell(self) -> None:
        """Write a line and draw the bar, if they are due."""
        self._bar.draw()
        now = self._clock()
        if now < self._due_at:
            return
        self._due_at = now + LINE_EVERY_S
        megabytes = (self._received() - self._before) / 1e6
        text = f"{self._begin} after {now - self._since:.0f} s for {self._what()}"
        log.info("%s; %.1f MB received meanwhile", text, megabytes)

    def until(self, holds: Callable[[], bool], wait: Wait) -> None:
        """Wait as long as it takes. `wait` is told for how many seconds it may wait at most."""
        with self:
            while not wait(holds, self._left_s()):
                self.tell()

    def _left_s(self) -> float:
        return min(max(0.0, self._due_at - self._clock()), self._bar.left_s())


def joining(engine: Engine) -> str:
    """The thing that a learner waits for before its first step. Call it with the mutex held."""
    return engine.joining.waiting.what()


def merging(engine: Engine) -> str:
    """The thing that a learner at rest waits for. Call it with the mutex held."""
    totals, fragments = engine.state.totals, engine.state.fragments
    tokens = max((fragment.unmerged(totals).tokens for fragment in fragments), default=0)
    return f"{tokens:,} tokens to be merged" if tokens else "the others' work"


def finishing(engine: Engine) -> str:
    """The thing that a learner in `finish()` waits for. Call it with the mutex held."""
    causes = engine.finish_wait.causes()
    named = [f"{name} ({why})" for name, why in causes.items()]
    return ", ".join(named) if named else merging(engine)
