"""The output of several processes, line by line, with the name of each before its lines."""

from __future__ import annotations

import re
from collections.abc import Iterator

#: A line that is longer is cut into several.
LONGEST = 1 << 16
_END = re.compile(rb"\r\n|\r|\n")
#: Colours of names on a terminal: all but black, white and red.
_COLOURS = (36, 33, 32, 35, 34)


class Prefixed:
    """One stream of one process.

    Args:
        name: of the process.
        width: of the longest name, so that lines begin at one place.
        index: of the process, for its colour; None: without one.
    """

    def __init__(self, name: str, width: int, index: int | None = None) -> None:
        told = f"{name.ljust(width)} | "
        if index is not None:
            told = f"\x1b[{_COLOURS[index % len(_COLOURS)]}m{told}\x1b[0m"
        self._prefix = told.encode()
        self._rest = b""

    def feed(self, data: bytes) -> Iterator[bytes]:
        """Take in what the process wrote; return whole lines. A progress bar that goes back to the
        begin of its line makes a line each time."""
        *lines, self._rest = _END.split(self._rest + data)
        for line in lines:
            if line:
                yield self._line(line)
        while len(self._rest) > LONGEST:
            yield self._line(self._rest[:LONGEST])
            self._rest = self._rest[LONGEST:]

    def end(self) -> Iterator[bytes]:
        """The stream has ended, perhaps within a line."""
        rest, self._rest = self._rest, b""
        if rest:
            yield self._line(rest)

    def _line(self, line: bytes) -> bytes:
        return self._prefix + line + b"\n"
