"""Standard output or standard error of `mend run`, whose reader may stand still: a pager that waits
for a key, or a collector of logs that hangs. Nothing here waits for it."""

from __future__ import annotations

import os
import select
from collections.abc import Iterable
from contextlib import suppress
from typing import TextIO

#: A pipe into which anything can be written takes so much at once, without waiting.
PIECE = 4096
#: An outlet with so much that waits for its reader is full.
FULL = 1 << 20


class Outlet:
    """One of the two streams.

    Args:
        stream: of Python.
    """

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._waiting = bytearray()
        try:
            self.number: int | None = stream.fileno()
        except OSError:  # it is no file
            self.number = None

    @property
    def is_stalled(self) -> bool:
        """Whether something waits for the reader."""
        return bool(self._waiting)

    @property
    def is_full(self) -> bool:
        """Whether much waits for the reader."""
        return len(self._waiting) > FULL

    def put(self, lines: Iterable[bytes]) -> None:
        """Write lines, or keep them until the reader goes on."""
        data = b"".join(lines)
        if self.number is None:
            self._stream.buffer.write(data)
        else:
            self._waiting += data
            self.write()

    def write(self) -> None:
        """Write what the reader takes now. A reader that has gone, such as `head`, or a full disk
        stops nobody: output that cannot be written is lost."""
        assert self.number is not None
        begin = 0
        # Python's own buffer would keep what failed, and fail again with every line.
        try:
            with suppress(BlockingIOError):  # somebody who shares it has it write without waiting
                while begin < len(self._waiting) and _takes_more(self.number):
                    begin += os.write(self.number, self._waiting[begin : begin + PIECE])
        except OSError:
            begin = len(self._waiting)
        del self._waiting[:begin]


def _takes_more(number: int) -> bool:
    return bool(select.select([], [number], [], 0)[1])
