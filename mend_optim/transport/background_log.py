"""Lines of the log from this library's own threads, written on one more thread.

The user's handlers, filters and formatters run where a line is written. They may raise, or wait for
a disk, a terminal or a server. On the network loop or on a worker thread, they would end or hold up
a learner. So these threads only put their lines into a queue, and so does code that they share with
the user's own threads. Other lines of the user's threads are written there and then, as any
library's are. The arguments of a line must not change later: they are formatted by the writer."""

from __future__ import annotations

import atexit
import logging
import os
import queue
import sys
import threading
import traceback
from contextlib import suppress

#: The most lines that wait. A line may hold a traceback, and that the tensors of its frames.
MOST_WAITING = 1000
LOGGER = "mend_optim"
LEFT_OUT = "{} lines were left out, because a handler of the log is slow"
#: Seconds that the end of the process waits for the lines.
EXIT_S = 3.0
#: Seconds that a thread without lines may take to end.
END_S = 0.2


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
    """The thread that writes the lines, while there are some, and the lines that wait for it."""

    def __init__(self) -> None:
        # A handler of a signal may log where the main thread does.
        self._lock = threading.RLock()
        self._waiting: queue.SimpleQueue[logging.LogRecord | threading.Event] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        #: Lines that were left out, of which nobody was told.
        self._left_out = 0
        self._has_failed = False
        #: The end of the lines that a `flush` has waited for in vain: a handler hangs.
        self._in_vain: threading.Event | None = None

    def put(self, record: logging.LogRecord) -> None:
        """Let a line be written after all others. Waits for nothing, except that without a thread
        the caller writes."""
        with self._lock:
            if self._waiting.qsize() >= MOST_WAITING:
                self._left_out += 1
                return
            is_started = self._start()
            if is_started:
                self._waiting.put(record)
        if not is_started:
            self._write(record)

    def flush(self, within_s: float) -> bool:
        """Wait until all lines that wait are written, but not if it is their writer that asks.
        False if that takes longer, and at once if it did before and still does."""
        with self._lock:
            thread = self._thread
            if thread is None or threading.current_thread() is thread:
                return True
            if self._in_vain and not self._in_vain.is_set():
                return False
            done = threading.Event()
            self._waiting.put(done)
        if not done.wait(within_s):
            self._in_vain = done
            return False
        # It ends now, unless others go on to tell lines.
        thread.join(END_S)
        return True

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
        while (item := self._next()) is not None:
            if isinstance(item, logging.LogRecord):
                self._write(item)
            self._tell_left_out()
            if isinstance(item, threading.Event):
                item.set()

    def _next(self) -> logging.LogRecord | threading.Event | None:
        """What is to be done next. If nothing is, the thread ends: a process without learners has
        no threads of this library."""
        with self._lock:
            if not self._waiting.empty():
                return self._waiting.get()
            self._thread = None
            return None

    def _tell_left_out(self) -> None:
        """Once no line waits any more, tell of those that were left out."""
        with self._lock:
            count = self._left_out if self._waiting.empty() else 0
            self._left_out -= count
        if count:
            level, text = logging.WARNING, LEFT_OUT.format(count)
            line = {"name": LOGGER, "levelno": level, "levelname": "WARNING", "msg": text}
            self._write(logging.makeLogRecord(line))

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
# After the learners were closed, which registers later, and before `logging` closes its handlers.
atexit.register(lambda: flush(EXIT_S))
