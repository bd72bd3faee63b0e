"""Threads that work inside torch, and that the end of the process waits for.

When the interpreter exits, it stops every daemon thread that comes back from torch. C++ takes that
for an error, and ends the process with SIGABRT: a launcher sees a script that has failed, although
all its work is done. So the exit waits for such a thread. Each wait has a limit: a store on a host
that froze never answers."""

from __future__ import annotations

import threading

from mend_optim.runtime import clock

#: How many seconds to wait for each of them.
_patience_s: dict[threading.Thread, float] = {}


def note(thread: threading.Thread, patience_s: float) -> None:
    """This thread is about to end, and may be inside torch until then."""
    for other in list(_patience_s):
        if not other.is_alive():
            _patience_s.pop(other, None)
    _patience_s[thread] = patience_s


def await_end() -> None:
    """Wait for the threads that were noted; for each at most as long as was said."""
    began = clock.now()
    for thread, patience_s in list(_patience_s.items()):
        if thread.is_alive():
            thread.join(max(0.0, began + patience_s - clock.now()))
