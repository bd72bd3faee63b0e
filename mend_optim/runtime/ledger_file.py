"""The ledger on disk, written by a thread of its own: a disk that is full, gone or hangs holds
nobody up."""

from __future__ import annotations

import logging
import os
import threading
import time
from collections import deque
from pathlib import Path

from mend_optim.engine.ledger import RoundRecord
from mend_optim.protocol.lineage import PeerId

log = logging.getLogger("mend_optim")
PROMPT_S = 0.2  # a healthy disk takes a thousandth of it
KEPT = 1000  # lines that wait for the disk; a learner adopts an anchor a minute or so


class LedgerFile:
    """One learner's ledger. Lines that cannot be written wait for the next one, and for the disk to
    have room again."""

    def __init__(self, path: Path, by: PeerId) -> None:
        self._path, self._by = path, by
        self._mutex = threading.Lock()  # `with` on it, never on the condition: see `Learner`
        self._condition = threading.Condition(self._mutex)
        self._lines: deque[bytes] = deque()
        self._dropped = 0
        self._due = self._busy = self._hangs = self._broken = self._closed = False
        self._thread: threading.Thread | None = None

    def add(self, record: RoundRecord) -> None:
        """Stamp a record, and hand it over. It is in the file when this returns, unless the disk
        fails or hangs."""
        line = record.json(self._by, time.time()).encode() + b"\n"
        with self._mutex:
            if self._closed or len(self._lines) >= KEPT:
                self._dropped += 1
                return
            self._lines.append(line)
            self._due = True
            self._condition.notify_all()
            if not self._thread:
                self._thread = threading.Thread(target=self._work, name="mend-ledger", daemon=True)
                self._thread.start()
            if not self._hangs:
                self._hangs = not self._condition.wait_for(
                    lambda: not (self._due or self._busy), PROMPT_S
                )

    def close(self, within_s: float) -> None:
        """Try once more to write what waits, and end the thread; a disk that hangs keeps its thread
        and its lines."""
        with self._mutex:
            self._closed = True
            self._condition.notify_all()
        if self._thread:
            self._thread.join(within_s)
            if self._thread.is_alive():
                log.warning(
                    "the ledger %s hangs: %d lines are not written", self._path, len(self._lines)
                )

    def _work(self) -> None:
        closed = False
        while not closed:
            with self._mutex:
                self._condition.wait_for(lambda: self._due or self._closed)
                self._due, self._busy, closed = False, True, self._closed
            try:
                self._write()
                self._report(None)
            except OSError as error:
                self._report(error)

    def _write(self) -> None:
        """Append the lines that wait. Each is taken away when all of it is in the file."""
        if not self._lines:
            return
        file = os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o666)
        try:
            if _ends_within_a_line(self._path):
                _write_all(file, b"\n")
            while self._lines:
                _write_all(file, self._lines[0])
                with self._mutex:
                    self._lines.popleft()
        finally:
            os.close(file)

    def _report(self, error: OSError | None) -> None:
        """Say that the disk fails, once until it works again."""
        with self._mutex:
            self._busy = self._hangs = False
            before, self._broken = self._broken, error is not None
            dropped, self._dropped = self._dropped, self._dropped if error else 0
            self._condition.notify_all()
        if error and not before:
            log.warning("the ledger %s cannot be written: %s", self._path, error)
        if before and not error:
            log.info("the ledger %s can be written again", self._path)
        if dropped and not error:
            log.warning(
                "the ledger %s lacks %d lines: %d were waiting already", self._path, dropped, KEPT
            )


def _write_all(file: int, content: bytes) -> None:
    while content:
        content = content[os.write(file, content) :]


def _ends_within_a_line(path: Path) -> bool:
    """Whether a full disk, or a death, has cut the last line short."""
    if not path.is_file():  # a device, a pipe
        return False
    with path.open("rb") as file:
        return (
            file.seek(0, os.SEEK_END) > 0
            and file.seek(-1, os.SEEK_END) >= 0
            and file.read(1) != b"\n"
        )
