"""Which thread calls."""

from __future__ import annotations

from threading import get_ident


def this_thread() -> int:
    """The identifier of the calling thread. It is the same at every call as long as that lives."""
    return get_ident()
