"""The thread that all learners of a process share: one asyncio loop for their networks."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from contextlib import suppress
from typing import Any, TypeVar

from mend_optim.transport.late_events import tell_unless_late

T = TypeVar("T")
# The longest that each part of close() may take: goodbyes go out, the worker ends its present job.
CLOSE_S = 3.0
# Once the last learner is gone, the longest that work which others began may take, and then the
# longest that cancelled work may take to end.
LEFT_S, END_S = 1.5, 1.0


class NetworkLoop:
    """The process's one asyncio loop, on a daemon thread, while at least one learner uses it."""

    _lock = threading.Lock()
    _shared: NetworkLoop | None = None
    _users = 0
    # In a forked child, the parent's loop. What belongs to it must not be taken apart here.
    _inherited: NetworkLoop | None = None

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        self.loop.set_exception_handler(tell_unless_late)
        # Work that was begun on other threads and is not over.
        self._begun: set[asyncio.Task[Any]] = set()
        self.thread = threading.Thread(target=self._run, name="mend-network", daemon=True)
        self.thread.start()

    def _run(self) -> None:
        self.loop.run_forever()
        self.loop.run_until_complete(asyncio.sleep(0))  # what came in the last turn begins
        if self._begun:
            # Nobody waits for it any more. The poller of gRPC would wait at the end of the process,
            # without limit, for a server whose end was cancelled.
            self.loop.run_until_complete(asyncio.wait(set(self._begun), timeout=LEFT_S))
        # On a busy machine some streams are only being cancelled by now. If they went with the
        # loop, Python would write a traceback for each.
        tasks = asyncio.all_tasks(self.loop)
        for task in tasks:
            task.cancel()
        if tasks:
            self.loop.run_until_complete(asyncio.wait(tasks, timeout=END_S))

    @classmethod
    def acquire(cls) -> NetworkLoop:
        """The loop of this process, for one more learner."""
        with cls._lock:
            cls._shared = cls._shared or cls()
            cls._users += 1
            return cls._shared

    def release(self) -> None:
        """One learner less uses the loop; the last one stops it."""
        with self._lock:
            NetworkLoop._users -= 1
            if NetworkLoop._users:
                return
            NetworkLoop._shared = None
        self.loop.call_soon_threadsafe(self.loop.stop)
        self.thread.join(CLOSE_S)
        if not self.thread.is_alive():
            self.loop.close()

    @classmethod
    def abandon(cls) -> None:
        """In a forked child: the loop is the parent's, and a thread that is not here may hold the
        lock. A loop that is made here is a new one."""
        cls._lock = threading.Lock()
        cls._inherited = cls._shared
        cls._shared = None
        cls._users = 0

    def run(self, work: Coroutine[Any, Any, T], timeout_s: float) -> T:
        """Run a coroutine on the loop and wait for its result. Called on any other thread."""
        return self.begin(work).result(timeout_s)

    def begin(self, work: Coroutine[Any, Any, T]) -> Future[T]:
        """Begin to run a coroutine on the loop. Called on any other thread."""
        return asyncio.run_coroutine_threadsafe(self._noted(work), self.loop)

    async def _noted(self, work: Coroutine[Any, Any, T]) -> T:
        task = asyncio.current_task()
        assert task is not None
        self._begun.add(task)
        try:
            return await work
        finally:
            self._begun.discard(task)

    def soon(self, action: Callable[[], None]) -> None:
        """Call `action` on the loop. Called on any thread."""
        # The loop may have been closed meanwhile.
        with suppress(RuntimeError):
            self.loop.call_soon_threadsafe(action)

    def later(self, delay_s: float, action: Callable[[], None]) -> asyncio.TimerHandle:
        """Call `action` on the loop after so many seconds. Called on the loop."""
        return self.loop.call_later(delay_s, action)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=NetworkLoop.abandon)
