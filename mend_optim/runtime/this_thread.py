"""Which thread calls."""

from __future__ import annotations

from threading import get_ident


def this_thread() -> int:
    """The identifier of the calling thread: never 0, and the same until that thread ends."""
    return get_ident()
