"""The mutex around one learner's engine."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

#: A thread that waits looks up at least so often, in seconds.
LOOK_UP_S = 1.0


class Guard:
    """The mutex that all threads of one learner share, and whether that learner is over.

    Use `with guard.mutex`, never `with guard.changed`: the condition's `__enter__` is Python code,
    in which Ctrl-C can leave the lock held. A context manager written here would be, too."""

    def __init__(self) -> None:
        self.mutex = threading.RLock()
        #: Notified when the engine, the mailbox or `over` has changed.
        self.changed = threading.Condition(self.mutex)
        #: The learner was closed, or a thread of it failed: nobody need wait for it any longer.
        self.over = False
        #: The error that made a thread fail, until the training thread has raised it.
        self.error: BaseException | None = None
        #: Called with the time, without the mutex, whenever a thread that waits looks up.
        self.meanwhile: Callable[[float], None] = _nothing

    def is_held(self) -> bool:
        """Whether the calling thread holds the mutex."""
        return bool(self.mutex._is_owned())  # type: ignore[attr-defined]

    def wait(self, holds: Callable[[], bool], timeout_s: float) -> bool:
        """Wait until `holds()`, which is called with the mutex held, or until the learner is over.
        False if neither comes in time."""
        deadline = time.monotonic() + timeout_s
        while True:
            left_s = max(0.0, deadline - time.monotonic())
            with self.mutex:
                if self.changed.wait_for(lambda: holds() or self.over, min(left_s, LOOK_UP_S)):
                    return True
            self.meanwhile(time.monotonic())
            if left_s <= LOOK_UP_S:
                return False

    def abandon(self) -> None:
        """In a forked child: a thread that is not here may hold the mutex for ever. Make it anew;
        nobody waits for it here."""
        self.mutex = threading.RLock()
        self.changed = threading.Condition(self.mutex)
        self.over = True
        self.error = None

    def end(self, error: BaseException | None = None) -> None:
        """Make the learner over, after `error` if there was one."""
        with self.mutex:
            self.over = True
            if error is not None:
                self.error = error
            self.changed.notify_all()


def _nothing(now: float) -> None:
    """There is nothing to do while a thread waits."""
