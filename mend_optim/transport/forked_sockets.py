"""Closes a learner's sockets in forked children, which inherit them.

The workers of a `DataLoader` outlive a killed learner by seconds. As long as they held its sockets,
its port would be taken, so it could not be started again, and its peers' connections would look
alive.
"""

from __future__ import annotations

import os
import socket
from contextlib import suppress
from stat import S_ISSOCK

#: The ports that learners of this process listen on.
PORTS: set[int] = set()
#: Where Linux lists a process's open files. On other systems nothing is closed; there forking is
#: not the default.
OPEN_FILES = "/proc/self/fd"


def let_go() -> None:
    """In a forked child: close all sockets at these ports.

    Their file numbers stay taken, by /dev/null. Otherwise gRPC's leftovers in the child could close
    a file that was opened later and got one of these numbers.
    """
    if not PORTS or not os.path.isdir(OPEN_FILES):
        return
    nothing = os.open(os.devnull, os.O_RDWR)
    for number in map(int, os.listdir(OPEN_FILES)):
        with suppress(OSError):
            if S_ISSOCK(os.fstat(number).st_mode) and _port(number) in PORTS:
                os.dup2(nothing, number)
    os.close(nothing)
    PORTS.clear()


def _port(number: int) -> int:
    """Return the local port of a socket; 0 if it has none."""
    seen = socket.socket(fileno=number)
    try:
        return int(seen.getsockname()[1]) if seen.family in (socket.AF_INET, socket.AF_INET6) else 0
    finally:
        seen.detach()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=let_go)
