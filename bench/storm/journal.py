"""The journal of a run: one JSON object a line. All processes append to it, with the time on the
clock that they share."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

Line = dict[str, Any]


class Journal:
    """Appends lines, each in one write, so lines of several processes never mix and SIGKILL loses
    none."""

    def __init__(self, path: Path, **always: Any) -> None:
        self.path, self._always = path, always
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)

    def say(self, event: str, **facts: Any) -> None:
        line = {"t": round(time.monotonic(), 5), "event": event, **self._always, **facts}
        os.write(self._file, json.dumps(line, separators=(",", ":"), default=str).encode() + b"\n")

    def close(self) -> None:
        os.close(self._file)


def objects(path: Path) -> Iterator[Line]:
    """The JSON objects in a file of lines. Skips a line that a dying process left unfinished."""
    with path.open(encoding="utf-8", errors="replace") as file:
        for text in file:
            try:
                line = json.loads(text)
            except ValueError:
                continue
            if isinstance(line, dict):
                yield line


def read(path: Path) -> list[Line]:
    """All lines of a journal, in the order of time."""
    return sorted(
        (line for line in objects(path) if "t" in line), key=lambda line: float(line["t"])
    )
