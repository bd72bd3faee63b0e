"""The thread that all learners of a process share: one asyncio loop for their networks."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine
from contextlib import suppress
from typing import Any, TypeVar

T = TypeVar("T")
CLOSE_S = 3.0  # how long close() may take: goodbyes go out, the worker ends its job


class NetworkLoop:
    """The process's one asyncio loop, on a daemon thread, while any learner uses it."""

    _lock = threading.Lock()
    _shared: NetworkLoop | None = None
    _users = 0

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        self.thread = threading.Thread(
            target=self.loop.run_forever, name="mend-network", daemon=True
        )
        self.thread.start()

    @classmethod
    def acquire(cls) -> NetworkLoop:
        with cls._lock:
            cls._shared = cls._shared or cls()
            cls._users += 1
            return cls._shared

    def release(self) -> None:
        with self._lock:
            NetworkLoop._users -= 1
            if NetworkLoop._users:
                return
            NetworkLoop._shared = None
        self.loop.call_soon_threadsafe(self.loop.stop)
        self.thread.join(CLOSE_S)
        if not self.thread.is_alive():
            self.loop.close()

    def run(self, work: Coroutine[Any, Any, T], timeout_s: float) -> T:
        """Run a coroutine on the loop and wait for it."""
        return asyncio.run_coroutine_threadsafe(work, self.loop).result(timeout_s)

    def soon(self, action: Callable[[], None]) -> None:
        with suppress(RuntimeError):  # the loop was closed meanwhile
            self.loop.call_soon_threadsafe(action)
