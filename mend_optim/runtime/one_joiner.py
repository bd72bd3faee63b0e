"""One thread at a time joins."""

from __future__ import annotations

import threading
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from mend_optim.runtime.learner import Learner


class OneJoiner:
    """Two threads of a script may both take the first step of one optimizer. The second one waits
    until the first has joined."""

    def __init__(self) -> None:
        # A signal may interrupt the wait, and its handler may step.
        self._lock = threading.RLock()

    def of(self, learner: Learner | None) -> AbstractContextManager[Any]:
        """A context that one thread is in at a time. In a forked child, the thread that was in it
        is not there to leave it; the learner is closed there."""
        return nullcontext() if learner and learner.closed else self._lock
