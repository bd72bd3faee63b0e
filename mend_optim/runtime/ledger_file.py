"""The ledger on disk. A thread of its own writes it, so that a disk that is full, gone or hanging
holds nobody up."""

from __future__ import annotations

import errno
import os
import stat
import threading
import time
from collections import deque
from pathlib import Path

from mend_optim.engine.ledger import RoundRecord
from mend_optim.protocol.lineage import PeerId
from mend_optim.transport.background_log import BackgroundLog

log = BackgroundLog("mend_optim")
# The longest that `add` waits for the disk. A healthy one takes a thousandth of it.
PROMPT_S = 0.2
# The most lines that wait for the disk: some megabytes. Quick rounds write tens of lines a second.
KEPT = 10_000
# A new ledger is for its owner's eyes: it names all learners and what they did.
MODE = 0o600
# Whoever may write to the folder could else lead the lines into another file of the user's.
NO_LINK = getattr(os, "O_NOFOLLOW", 0)
NO_FOLDER = "there is no folder {}; make it, and the lines that wait are written"
LINKED = "it is a symbolic link; give the path of the file that it leads to"


class LedgerFile:
    """One learner's ledger. Lines that cannot be written wait for the next line, and for the disk
    to have room again.

    Args:
        path: the file to append to.
        by: the learner that writes it.
    """

    def __init__(self, path: Path, by: PeerId) -> None:
        self._path = path
        #: Its incarnation may change.
        self.by = by
        # Use `with` on the lock, never on the condition: see `Guard`.
        self._mutex = threading.Lock()
        self._condition = threading.Condition(self._mutex)
        self._lines: deque[bytes] = deque()
        self._dropped = 0
        # Lines wait that the thread has not begun to write.
        self._due = False
        # The thread is writing.
        self._busy = False
        # The last write took longer than `PROMPT_S` and is not done.
        self._hangs = False
        # The last write failed.
        self._broken = False
        self._closed = False
        self._thread: threading.Thread | None = None

    def add(self, record: RoundRecord) -> None:
        """Stamp a record and hand it to the thread. It is in the file when this returns, unless
        the disk fails or hangs."""
        line = record.json(self.by, time.time()).encode() + b"\n"
        with self._mutex:
            if self._closed or len(self._lines) >= KEPT:
                self._dropped += 1
                return
            self._lines.append(line)
            self._due = True
            self._condition.notify_all()
            if not self._thread:
                self._thread = self._started()
            if self._thread and not self._hangs:
                self._hangs = not self._condition.wait_for(
                    lambda: not (self._due or self._busy), PROMPT_S
                )

    def close(self, within_s: float) -> None:
        """Try once more to write the lines that wait, and end the thread. A thread whose disk
        hangs goes on until the process ends."""
        with self._mutex:
            self._closed = True
            self._condition.notify_all()
            if self._lines and not self._thread:
                self._thread = self._started()
        if self._thread:
            self._thread.join(within_s)
        if self._thread and self._thread.is_alive():
            log.warning(
                "the ledger %s hangs: %d lines are not written", self._path, len(self._lines)
            )
        elif self._lines:
            log.warning(
                "the ledger %s cannot be written, and this learner ends: %d lines are lost",
                self._path,
                len(self._lines) + self._dropped,
            )

    def _started(self) -> threading.Thread | None:
        """The thread. None if it cannot be started now: the lines wait."""
        thread = threading.Thread(target=self._work, name="mend-ledger", daemon=True)
        try:
            thread.start()
        except RuntimeError as error:  # too many threads, or the interpreter is shutting down
            if not self._broken:
                self._broken = True
                log.warning("the ledger %s cannot be written: %s", self._path, error)
            return None
        return thread

    def _work(self) -> None:
        closed = False
        while not closed:
            with self._mutex:
                self._condition.wait_for(lambda: self._due or self._closed)
                self._due = False
                self._busy = True
                closed = self._closed
            try:
                self._write()
                self._report(None)
            except OSError as error:
                self._report(error)

    def _write(self) -> None:
        """Append the lines that wait. Each is taken away when all of it is in the file."""
        if not self._lines:
            return
        file = _opened(self._path)
        try:
            if _ends_within_a_line(self._path, file):
                _write_all(file, b"\n")
            while self._lines:
                _write_all(file, self._lines[0])
                with self._mutex:
                    self._lines.popleft()
        finally:
            os.close(file)

    def _report(self, error: OSError | None) -> None:
        """Log that the disk fails, once until it works again."""
        with self._mutex:
            self._busy = False
            self._hangs = False
            was_broken = self._broken
            self._broken = error is not None
            dropped = self._dropped
            if error is None:
                self._dropped = 0
            self._condition.notify_all()
        if error and not was_broken:
            log.warning("the ledger %s cannot be written: %s", self._path, error)
        if was_broken and not error:
            log.info("the ledger %s can be written again", self._path)
        if dropped and not error:
            log.warning(
                "the ledger %s lacks %d lines: %d were already waiting", self._path, dropped, KEPT
            )


def _write_all(file: int, content: bytes) -> None:
    while content:
        content = content[os.write(file, content) :]


def _opened(path: Path) -> int:
    """Open the ledger to append to it. Raises `OSError`; one that says so if it is a link, or if
    its folder is missing."""
    try:
        return os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | NO_LINK, MODE)
    except OSError as error:
        if error.errno == errno.ELOOP and path.is_symlink():
            raise OSError(error.errno, LINKED) from error
        if error.errno == errno.ENOENT and not path.parent.exists():
            raise OSError(error.errno, NO_FOLDER.format(path.parent)) from error
        raise


def _ends_within_a_line(path: Path, file: int) -> bool:
    """Whether a full disk, or a kill, has cut the last line short."""
    about = os.fstat(file)
    # The path may be a device or a pipe.
    if not stat.S_ISREG(about.st_mode) or not about.st_size:
        return False
    reading = os.open(path, os.O_RDONLY | NO_LINK)
    try:
        os.lseek(reading, -1, os.SEEK_END)
        return os.read(reading, 1) != b"\n"
    finally:
        os.close(reading)
