"""The folder of one `mend run`: the learners' secret, and marks of those that have joined."""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

if sys.platform != "win32":
    import fcntl


@contextmanager
def run_folder() -> Iterator[Path]:
    """A new folder of this user's own, which is removed in the end. Until then it is locked:
    systemd-tmpfiles removes what has lain in /tmp for ten days, but nothing in a folder that
    somebody holds a lock on (tmpfiles.d(5)). Without the secret, no learner of a long run could be
    started again."""
    with tempfile.TemporaryDirectory(prefix="mend-run-") as name, _locked(name):
        yield Path(name)


@contextmanager
def _locked(folder: str) -> Iterator[None]:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        if sys.platform != "win32":
            with suppress(OSError):  # not every file system has locks
                fcntl.flock(descriptor, fcntl.LOCK_SH)
        yield
    finally:
        os.close(descriptor)
