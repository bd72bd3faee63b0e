"""Lines of the log from this library's own threads, written on one more thread.

The user's handlers, filters and formatters run where a line is written. They may raise, or wait for
a disk, a terminal or a server. On the network loop or on a worker thread, they would end or hold up
a learner. So these threads only put their lines into a queue. Lines of the user's own threads are
written there and then, as any library's are."""

from __future__ import annotations

import logging
import os
import queue
import sys
import threading
import traceback
from contextlib import suppress

#: The most lines that wait. A line may hold a traceback, and that the tensors of its frames.
MOST_WAITING = 1000


class BackgroundLog:
    """A logger for code that may run on this library's own threads.

    Args:
        name: the name of the logger.
    """

    def __init__(self, name: str) -> None:
        self._logger = logging.getLogger(name)

    def debug(self, text: str, *args: object, exc_info: bool = False) -> None:
        self._tell(logging.DEBUG, text, args, exc_info)

    def info(self, text: str, *args: object) -> None:
        self._tell(logging.INFO, text, args)

    def warning(self, text: str, *args: object) -> None:
        self._tell(logging.WARNING, text, args)

    def exception(self, text: str, *args: object) -> None:
        """Write an error, with the exception that is being handled."""
        self._tell(logging.ERROR, text, args, exc_info=True)

    def log(self, level: int, text: str, *args: object) -> None:
        self._tell(level, text, args)

    def _tell(
        self, level: int, text: str, args: tuple[object, ...], exc_info: bool = False
    ) -> None:
        if not self._logger.isEnabledFor(level):
            return
        caller = sys._getframe(2)
        error = sys.exc_info() if exc_info else None
        with suppress(Exception):  # the user may have a factory of records
            record = self._logger.makeRecord(
                self._logger.name,
                level,
                caller.f_code.co_filename,
                caller.f_lineno,
                text,
                args,
                error,
                caller.f_code.co_name,
            )
            _writer.put(record)


class _Writer:
    """The thread that writes the lines, from the first one on, and the lines that wait for it."""

    def __init__(self) -> None:
        # A handler of a signal may log where the main thread does.
        self._lock = threading.RLock()
        self._waiting: queue.SimpleQueue[logging.LogRecord | threading.Event] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        #: Lines that were left out since the last one that was not.
        self._left_out = 0
        self._has_failed = False
        #: What `flush` has waited for in vain: a handler hangs.
        self._awaited: threading.Event | None = None

    def put(self, record: logging.LogRecord) -> None:
        """Let a line be written after all others. Waits for nothing, except that without a thread
        the caller writes."""
        with self._lock:
            if self._waiting.qsize() >= MOST_WAITING:
                self._left_out += 1
                return
            if self._left_out:
                record.msg = f"{record.getMessage()} ({self._left_out} lines before were left out)"
                record.args = ()
                self._left_out = 0
            is_started = self._start()
            if is_started:
                self._waiting.put(record)
        if not is_started:
            self._write(record)

    def flush(self, within_s: float) -> bool:
        """Wait until all lines that wait are written, but not if it is their writer that asks.
        False if that takes longer, and at once if it did before and still does."""
        if self._thread is None or threading.current_thread() is self._thread:
            return True
        if self._awaited and not self._awaited.is_set():
            return False
        self._awaited = done = threading.Event()
        self._waiting.put(done)
        return done.wait(within_s)

    def _start(self) -> bool:
        """Whether the thread runs, from here on at the latest."""
        if self._thread is None:
            thread = threading.Thread(target=self._run, name="mend-log", daemon=True)
            try:
                thread.start()
            except RuntimeError:  # too many threads, or the interpreter is shutting down
                return False
            self._thread = thread
        return True

    def _run(self) -> None:
        while True:
            item = self._waiting.get()
            if isinstance(item, threading.Event):
                item.set()
            else:
                self._write(item)
            # While nothing comes, nothing of the last line is held.
            del item

    def _write(self, record: logging.LogRecord) -> None:
        try:
            logging.getLogger(record.name).handle(record)
        except BaseException:  # even `sys.exit()`, as a handler has nothing to say here
            if not self._has_failed and logging.raiseExceptions and sys.stderr:
                self._has_failed = True
                with suppress(Exception):
                    print("A handler of the log failed (told once):", file=sys.stderr)
                    traceback.print_exc()


_writer = _Writer()


def flush(within_s: float) -> bool:
    """Wait until all lines are written that this library's threads have told so far. False if that
    takes longer."""
    return _writer.flush(within_s)


def _begin_anew() -> None:
    """In a forked child, in which the thread is not: the parent writes the lines that wait."""
    global _writer
    _writer = _Writer()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_begin_anew)
