"""What forked children inherit: every socket of a learner's server.

The workers of a `DataLoader` outlive a killed learner by seconds. Until then its port would be
taken, so that it could not be started again, and its peers' connections would look alive."""

from __future__ import annotations

import os
import socket
from contextlib import suppress
from stat import S_ISSOCK

PORTS: set[int] = set()  # that learners of this process listen on
OPEN_FILES = "/proc/self/fd"  # Linux, where forking is the default


def let_go() -> None:
    """In a forked child: give up all sockets at these ports. Their numbers stay taken, by nothing:
    gRPC's leftovers in the child must never close a file that came to have the same number."""
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
    """The local port of a socket, 0 if it has none."""
    seen = socket.socket(fileno=number)
    try:
        return int(seen.getsockname()[1]) if seen.family in (socket.AF_INET, socket.AF_INET6) else 0
    finally:
        seen.detach()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=let_go)
