"""The threads that help a worker to hash."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor

#: One thread hashes about 1 GB/s, so more would seldom make a round quicker.
MOST = 4


class Hashers:
    """A few threads, which begin with the first large message."""

    def __init__(self) -> None:
        most = min(MOST, os.cpu_count() or 1)
        self._pool = ThreadPoolExecutor(most, thread_name_prefix="mend-hash")

    def spread(
        self, function: Callable[[memoryview], bytes], items: Iterable[memoryview], /
    ) -> list[bytes]:
        """`map`, on these threads as long as there are any: they end before the worker does where
        the interpreter ends."""
        items = list(items)
        try:
            return list(self._pool.map(function, items))
        except RuntimeError:
            return list(map(function, items))

    def end(self) -> None:
        """End the threads. From now on the caller's thread hashes."""
        # They have nothing to do, because whoever has work for them waits for it.
        self._pool.shutdown(wait=True)
