"""How long a loop stood still between two of its steps, at most."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import NamedTuple


class Longest(NamedTuple):
    """The steps of a span, and its longest gaps in seconds."""

    steps: int = 0
    #: The longest time between two steps.
    gap_s: float = 0.0
    #: The same, without the time in which the thread was ready to run and had no core.
    gap_with_core_s: float = 0.0


class Gaps:
    """The longest gap between two steps that nothing excuses."""

    def __init__(self) -> None:
        self._last: tuple[float, float] | None = None
        self._longest = Longest()

    def note(self, now: float, without_core: float) -> None:
        """A step has ended at `now`. Until then, the thread was without a core for so long in all;
        both are seconds of counters that begin anywhere."""
        steps, gap_s, gap_with_core_s = self._longest
        if self._last is not None:
            gap = now - self._last[0]
            gap_s = max(gap_s, gap)
            gap_with_core_s = max(gap_with_core_s, gap - (without_core - self._last[1]))
        self._last = now, without_core
        self._longest = Longest(steps + 1, gap_s, gap_with_core_s)

    def excuse(self) -> None:
        """The loop did something else since its last step, so the gap there does not count."""
        self._last = None

    def take(self) -> Longest:
        """The gaps since the last call. The next call begins anew."""
        taken, self._longest = self._longest, Longest()
        return taken


def without_core_s() -> float:
    """How long this thread was ready to run and had no core, as Linux counts it; elsewhere 0."""
    counters = Path(f"/proc/self/task/{threading.get_native_id()}/schedstat")
    try:
        return int(counters.read_text(encoding="ascii").split()[1]) / 1e9
    except OSError:
        return 0.0
