"""One thread at a time joins."""

from __future__ import annotations

import os
import threading
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from mend_optim.runtime.learner import Learner


class OneJoiner:
    """Two threads of a script may both take the first step of one optimizer. The second one waits
    until the first has joined."""

    def __init__(self) -> None:
        #: By process: in a forked child, the thread that is in the context is not there to leave
        #: it. A signal may interrupt the wait, and its handler may step.
        self._locks: dict[int, threading.RLock] = {}

    def of(self, learner: Learner | None) -> AbstractContextManager[Any]:
        """A context that one thread of a process is in at a time. A learner that is closed, as it
        is in a forked child, is waited for by nobody."""
        if learner and learner.closed:
            return nullcontext()
        # This is one step, whatever another thread does meanwhile.
        return self._locks.setdefault(os.getpid(), threading.RLock())
