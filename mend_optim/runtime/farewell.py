"""A goodbye on SIGTERM, with which Slurm, Kubernetes and Docker end a process.

Python's default ends it at once, and its peers notice only when it falls silent. So this module
takes SIGTERM over, but only from the default, and only while there are learners. A handler of the
user's is never replaced, nor called. After the goodbye, SIGTERM ends the process as it would have
without this library: with the same status, and without the script's own clean-up.

Python calls a handler on the main thread, between any two steps of whatever that thread does. That
may be inside a learner, with its mutex held. So another thread says goodbye. The main thread waits
for it where it may, and else goes on until it is out of the learner. A call that waits for peers
would then raise, because its learner is closed: it waits for the goodbye first, so that the script
never sees that."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterable, Sequence
from typing import Protocol

from mend_optim.runtime.guard import Guard
from mend_optim.runtime.network_loop import CLOSE_S


class Leaving(Protocol):
    """The part of a `Learner` that this module needs."""

    guard: Guard
    #: The thread that closes it; None if none does.
    closer: int | None

    def close(self) -> None:
        """Leave and stop, or do nothing if that has begun."""

    def await_end(self) -> None:
        """Wait until `close` has ended, on whichever thread."""


class Farewell:
    """The handler of SIGTERM, while it is ours.

    Args:
        learners: returns the open learners of this process.
    """

    def __init__(self, learners: Callable[[], Sequence[Leaving]]) -> None:
        self._learners = learners
        self._thread: threading.Thread | None = None
        self._said = False

    def prepare(self) -> None:
        """Take SIGTERM over from the default. Only the main thread can."""
        if _is_main_thread() and signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
            self._thread = None
            self._said = False
            signal.signal(signal.SIGTERM, self._handle)

    def give_back(self) -> None:
        """Restore the default, if the handler is still ours. Only the main thread can; without
        learners, the handler does what the default does."""
        if _is_main_thread() and self._is_handler():
            signal.signal(signal.SIGTERM, signal.SIG_DFL)

    def _is_handler(self) -> bool:
        return signal.getsignal(signal.SIGTERM) == self._handle

    def _handle(self, number: int, frame: object) -> None:
        if not self._is_handler():
            # The user's handler calls the one before it. That was none, before this library.
            return
        learners = self._learners()
        if self._said or not learners:
            self._end()
            return
        if self._thread:  # some launchers send SIGTERM twice
            return
        self._thread = threading.Thread(
            target=self._say_goodbye, args=(learners,), name="mend-farewell", daemon=True
        )
        try:
            self._thread.start()
        except RuntimeError:  # the interpreter is shutting down
            self._end()
            return
        if not any(map(_is_inside, learners)):
            self._thread.join(CLOSE_S)
            self._end()

    def await_end(self) -> None:
        """On the main thread, outside all learners: if a goodbye is being said, end as it does."""
        if self._thread and _is_main_thread() and self._is_handler():
            self._thread.join(CLOSE_S)
            self._end()

    def _say_goodbye(self, learners: Iterable[Leaving]) -> None:
        """Close the learners, then raise SIGTERM once more. The main thread may have gone on."""
        try:
            for learner in learners:
                learner.close()
                learner.await_end()
        finally:
            self._said = True
            # Another thread could take the signal, and the main thread would not wake up.
            signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGTERM)

    def _end(self) -> None:
        """End the process as the default does."""
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGTERM)
        # The kernel ignores that for the first process of a container. It would train on alone.
        if self._thread and os.getpid() == 1:
            os._exit(128 + signal.SIGTERM)


def _is_inside(learner: Leaving) -> bool:
    """Whether the calling thread is at work in this learner."""
    return learner.guard.is_held() or learner.closer == threading.get_ident()


def _is_main_thread() -> bool:
    return threading.current_thread() is threading.main_thread()
