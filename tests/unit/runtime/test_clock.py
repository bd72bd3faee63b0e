"""The clock that goes on while the machine is suspended."""

from __future__ import annotations

import time
from types import SimpleNamespace

import pytest

from mend_optim.runtime import clock

BOOTTIME = 7


def read(number: int) -> float:
    """Two clocks of a machine that was suspended for an hour."""
    return {BOOTTIME: 3700.0}[number]


def refuse(number: int) -> float:
    raise OSError(22, "Invalid argument")


def monotonic() -> float:
    return 100.0


@pytest.mark.parametrize(
    ("platform", "expected"),
    [
        ({"CLOCK_BOOTTIME": BOOTTIME, "clock_gettime": read}, 3700.0),
        ({"CLOCK_BOOTTIME": BOOTTIME, "clock_gettime": refuse}, 100.0),
        ({"clock_gettime": read}, 100.0),
        ({}, 100.0),
    ],
    ids=["linux", "sandbox", "macos", "windows"],
)
def test_time_in_suspend_counts_where_the_platform_can_tell(
    monkeypatch: pytest.MonkeyPatch, platform: dict[str, object], expected: float
) -> None:
    monkeypatch.setattr(clock, "time", SimpleNamespace(monotonic=monotonic, **platform))
    assert clock._choose()() == expected


def test_the_clock_of_this_machine_is_never_behind_that_of_python() -> None:
    """They are alike until the machine is suspended."""
    earlier = time.monotonic()
    first = clock.now()
    assert earlier <= first <= clock.now()
