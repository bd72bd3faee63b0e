"""The clock that a learner tells its engine the time by.

A learner finds out that it was stopped by a gap of its clock (`membership.stops`). `time.monotonic`
shows no gap where the machine was suspended: on Linux it stands still with the machine, and a
learner that resumes would publish a merge that the others have made without it. Linux has a second
clock, CLOCK_BOOTTIME, which goes on in suspend and is otherwise the same.

So everything that the engine is told, or that is compared with times of the engine, is read here.
Timeouts of locks, conditions and asyncio go by `time.monotonic`, and must: that is the clock of the
system calls behind them. The two are a different number of seconds apart after each suspension, so
a time of one is never compared with a time of the other. A difference of two times of one clock may
be waited for by the other."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial


def now() -> float:
    """The time in seconds, which goes on while the machine is suspended if the platform can tell.
    Only differences have a meaning."""
    return _read()


def _choose() -> Callable[[], float]:
    boottime = getattr(time, "CLOCK_BOOTTIME", None)  # Linux has it
    if boottime is None:
        return time.monotonic
    try:
        time.clock_gettime(boottime)
    except OSError:  # the kernel, or a sandbox in its place, does not have it
        return time.monotonic
    return partial(time.clock_gettime, boottime)


_read = _choose()
