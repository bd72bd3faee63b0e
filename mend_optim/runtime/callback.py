"""The user's `on_event`, on a thread of its own, so that one that is slow or hangs holds nobody
up: it may write to a disk, or to a service on the network."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable

from mend_optim.engine.ledger import Event
from mend_optim.transport.background_log import BackgroundLog

log = BackgroundLog("mend_optim")
# The most events that wait for the callback. Quick rounds are tens of events a second.
MOST_WAITING = 10_000


class Callback:
    """Calls a function with one learner's events, one after another, in order.

    Args:
        name: the learner's name.
        function: called with every event. It may raise.
        end: called with what is no `Exception`, as `sys.exit()` raises: the next step is to raise
            it.
    """

    def __init__(
        self,
        name: str,
        function: Callable[[Event], None],
        end: Callable[[BaseException], object],
    ) -> None:
        self._name = name
        self._function = function
        self._end = end
        self._waiting: queue.SimpleQueue[Event | None] = queue.SimpleQueue()
        #: Events are dropped from when too many wait until none does.
        self._dropped = 0
        self._failures = 0
        self._thread: threading.Thread | None = None

    def tell(self, event: Event) -> None:
        """Let the function be called with `event`, after all others. Waits for nothing. Only the
        worker thread calls it."""
        waiting = self._waiting.qsize()
        if waiting >= MOST_WAITING and not self._dropped:
            text = (
                "%s: on_event is slow or hangs, and %d events wait for it: it is not told of more "
                "until it has caught up; training goes on"
            )
            log.warning(text, self._name, waiting)
        if waiting >= MOST_WAITING or (self._dropped and waiting):
            self._dropped += 1
            return
        if self._dropped:
            log.warning("%s: on_event was not told of %d events", self._name, self._dropped)
            self._dropped = 0
        self._waiting.put(event)
        if not self._thread:
            self._start()

    def _start(self) -> None:
        # Known before it starts: the function may ask at once whether it is the caller.
        self._thread = threading.Thread(target=self._run, name="mend-callback", daemon=True)
        try:
            self._thread.start()
        except RuntimeError:  # too many threads, or the interpreter is shutting down
            self._thread = None
            self._report_failure("no thread could be started for on_event")

    def is_own_thread(self) -> bool:
        """Whether the caller is the function."""
        return threading.current_thread() is self._thread

    def close(self, within_s: float) -> None:
        """Wait until the function was called with all events, but not if it is the caller."""
        self._waiting.put(None)
        if self._thread and not self.is_own_thread():
            self._thread.join(within_s)
            if self._thread.is_alive():
                log.warning("%s: on_event hangs: the end does not wait for it", self._name)

    def _run(self) -> None:
        try:
            while (event := self._waiting.get()) is not None:
                self._call(event)
        except BaseException as error:
            log.exception("%s: on_event ends training", self._name)
            self._end(error)

    def _call(self, event: Event) -> None:
        try:
            self._function(event)
        except Exception:
            self._report_failure(f"on_event failed, told of {event.kind!r}")

    def _report_failure(self, what: str) -> None:
        """One that fails at every event would fill the log: so the 1st, 2nd, 4th, 8th … are
        told."""
        self._failures += 1
        if not self._failures & (self._failures - 1):
            log.exception("%s: %s; failures so far: %d", self._name, what, self._failures)
